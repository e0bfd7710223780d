"""Brier score, likelihood, temperature, class masks, drops and effective robustness."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logit
from scipy.stats import linregress
from sklearn.metrics import log_loss

from hf_robust.metrics import (
    accuracy_drop,
    brier_score,
    effective_robustness,
    fit_logit_line,
    fit_temperature,
    hits,
    max_probability,
    negative_log_likelihood,
    probabilities,
    restrict,
)
from hf_robust.metrics import proper as proper_module
from hf_robust.metrics import softmax as softmax_module

NONE = float("-inf")


def random_logits(seed=0, n=60, classes=7, scale=3.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(0, scale, (n, classes))
    logits[np.arange(n), labels] += 1.5
    return logits, labels


# Brier score


def test_brier_is_the_mean_squared_distance_from_the_one_hot_truth():
    logits, labels = random_logits()
    p = probabilities(logits)
    assert brier_score(p, labels) == pytest.approx(((p - np.eye(7)[labels]) ** 2).sum(axis=1).mean())


def test_brier_by_hand_of_a_certain_right_and_a_certain_wrong_row():
    assert brier_score([[1.0, 0.0], [1.0, 0.0]], [0, 1]) == (0 + 2) / 2


def test_acceptable_labels_are_one_event_however_often_they_are_named():
    # (1 - 0.7)^2 + 0.2^2 + 0.1^2
    p = [[0.4, 0.3, 0.2, 0.1]]
    assert brier_score(p, [[0, 1]]) == pytest.approx(0.3**2 + 0.2**2 + 0.1**2)
    assert brier_score(p, [[1, 0, 1, -1]]) == pytest.approx(brier_score(p, [[0, 1]]))


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([[0.5, 0.5], [0.9, 0.2]], "one with sum 1.1 at row 1"),
        ([[1.5, -0.5]], "with sum 1 at row 0"),
        ([[float("nan"), 1.0]], "with sum nan at row 0"),
        ([[91.0, 9.0]], "with sum 100 at row 0"),
        (np.zeros((0, 2)), "at least one row in probabilities"),
    ],
)
def test_rows_that_are_no_distribution_are_named(p, message):
    with pytest.raises(ValueError, match=message):
        brier_score(np.array(p), np.zeros(len(p), dtype=np.int64))


def test_a_bad_row_of_a_later_chunk_keeps_its_number(monkeypatch):
    monkeypatch.setattr(softmax_module, "CHUNK_BYTES", 8 * 2 * 2)  # two rows a chunk
    p = np.full((5, 2), 0.5)
    p[4] = 0.9
    with pytest.raises(ValueError, match="at row 4"):
        brier_score(p, np.zeros(5, dtype=np.int64))
    logits = np.zeros((5, 2))
    logits[3, 0] = NONE
    with pytest.raises(ValueError, match="none at row 3"):
        negative_log_likelihood(logits, np.zeros(5, dtype=np.int64))


# likelihood


def test_likelihood_agrees_with_scikit_learn():
    logits, labels = random_logits()
    expected = log_loss(labels, probabilities(logits), labels=np.arange(7))
    assert negative_log_likelihood(logits, labels) == pytest.approx(expected, abs=1e-9)


def test_likelihood_adds_the_probabilities_of_acceptable_classes():
    # probabilities 1/4 each, two of them acceptable
    assert negative_log_likelihood([[5.0] * 4], [[0, 3]]) == pytest.approx(np.log(2))


def test_likelihood_takes_half_precision_and_log_probabilities():
    logits, labels = random_logits()
    half = logits.astype(np.float16)
    exact = -log_softmax(half.astype(np.float64), axis=1)[np.arange(60), labels].mean()
    assert negative_log_likelihood(half, labels) == pytest.approx(exact, abs=1e-12)
    assert negative_log_likelihood(np.log(probabilities(half)), labels) == pytest.approx(exact, abs=1e-12)


def test_likelihood_does_not_depend_on_row_order_duplication_or_a_shift():
    logits, labels = random_logits()
    value, order = negative_log_likelihood(logits, labels), np.random.default_rng(1).permutation(60)
    assert negative_log_likelihood(logits[order] + 7, labels[order]) == pytest.approx(value)
    assert negative_log_likelihood(np.tile(logits, (2, 1)), np.tile(labels, 2)) == pytest.approx(value)


def test_likelihood_of_chunks_is_that_of_the_whole(monkeypatch):
    logits, labels = random_logits()
    values = negative_log_likelihood(logits, labels), brier_score(probabilities(logits), labels)
    monkeypatch.setattr(softmax_module, "CHUNK_BYTES", 8 * 7 * 11)
    again = negative_log_likelihood(logits, labels), brier_score(probabilities(logits), labels)
    assert again == pytest.approx(values, abs=1e-12)


def test_an_impossible_label_and_a_temperature_of_zero_are_refused():
    with pytest.raises(ValueError, match="finite logit for an acceptable class, got none at row 1"):
        negative_log_likelihood([[0.0, 1.0], [NONE, 1.0]], [0, 0])
    with pytest.raises(ValueError, match="positive temperature, got 0"):
        negative_log_likelihood([[0.0, 1.0]], [0], temperature=0)


# temperature


@pytest.mark.parametrize("scale", [0.3, 3.0, 40.0])
@pytest.mark.parametrize("several", [False, True])
def test_the_temperature_agrees_with_a_line_search_of_scipy(scale, several):
    logits, labels = random_logits(scale=1.0)
    logits *= scale
    if several:
        labels = np.stack([labels, (labels + 1) % 7], axis=1)
    search = minimize_scalar(
        lambda s: negative_log_likelihood(logits, labels, temperature=float(np.exp(s))),
        bounds=(-5, 6),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert fit_temperature(logits, labels) == pytest.approx(np.exp(search.x), rel=1e-5)


def test_the_temperature_that_was_applied_is_found_again():
    logits, labels = random_logits()
    base = fit_temperature(logits, labels)
    assert fit_temperature(logits * 5, labels) == pytest.approx(5 * base)


def test_columns_without_an_output_and_chunks_leave_the_temperature(monkeypatch):
    logits, labels = random_logits()
    wider = np.concatenate([logits, np.full((60, 2), NONE)], axis=1)
    value = fit_temperature(logits, labels)
    monkeypatch.setattr(softmax_module, "CHUNK_BYTES", 8 * 9 * 7)
    assert fit_temperature(wider, labels) == pytest.approx(value)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_rows_without_a_best_temperature_are_refused(labels):
    with pytest.raises(ValueError, match="got 3 rows without one"):
        fit_temperature([[2.0, 0.0], [1.0, 0.0], [3.0, 1.0]], labels)


def test_the_bracket_of_the_temperature_is_wide():
    assert proper_module.TEMPERATURES == (1e-3, 1e3)


# class masks


def test_a_mask_restricts_before_argmax_and_softmax():
    logits, labels = restrict([[9.0, 1.0, 2.0, 3.0]], [[3, 0]], [3, 2])
    assert (logits.tolist(), labels.tolist()) == ([[3.0, 2.0]], [[0, -1]])
    assert hits(logits, labels).tolist() == [True]
    assert max_probability(logits) == pytest.approx(expit(3.0 - 2.0))


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "class columns of shape"),
        ([0, 0], "distinct classes in 0 .. 2, got 0 .. 0 with repeats"),
        ([0, 3], "distinct classes in 0 .. 2, got 0 .. 3"),
        ([True, False, True], "np.flatnonzero of a boolean mask"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(classes, message):
    with pytest.raises(ValueError, match=message):
        restrict([[1.0, 2.0, 3.0]], [0], classes)


# robustness


def test_the_drop_is_control_minus_benchmark():
    assert accuracy_drop([1, 1, 1, 0], [1, 0, 0, 0, 0]) == pytest.approx(3 / 4 - 1 / 5)
    with pytest.raises(ValueError, match="at least one row in correct"):
        accuracy_drop([], [1])


def test_the_line_of_a_field_agrees_with_scipy():
    rng = np.random.default_rng(0)
    clean = rng.uniform(0.6, 0.9, 40)
    shifted = expit(1.2 * logit(clean) - 2 + rng.normal(0, 0.2, 40))
    line, expected = fit_logit_line(clean, shifted), linregress(logit(clean), logit(shifted))
    assert (line.slope, line.intercept) == pytest.approx((expected.slope, expected.intercept))
    assert (line.r_squared, line.n) == (pytest.approx(expected.rvalue**2), 40)


def test_effective_robustness_is_what_lies_above_the_line():
    # two models on the line logit(shifted) = logit(clean) - log 3
    clean = np.array([0.5, 0.75])
    line = fit_logit_line(clean, [0.25, 0.5])
    assert line.predict([0.9]) == pytest.approx([3 / 4])  # odds 9 / 3
    assert effective_robustness([0.9, 0.5], [0.8, 0.25], line) == pytest.approx([0.05, 0])


def test_a_model_without_a_logit_is_named():
    with pytest.raises(ValueError, match="strictly between 0 and 1 in shifted, got 0 at row 1"):
        fit_logit_line([0.7, 0.8], [0.1, 0.0])
    with pytest.raises(ValueError, match="strictly between 0 and 1 in clean, got 1 at row 0"):
        fit_logit_line([1.0, 0.8], [0.1, 0.2])


def test_a_field_of_one_clean_accuracy_has_no_line():
    with pytest.raises(ValueError, match="two different clean accuracies, got 2 equal"):
        fit_logit_line([0.7, 0.7], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"shifted of shape \(2,\), got \(3,\)"):
        fit_logit_line([0.7, 0.8], [0.1, 0.2, 0.3])
