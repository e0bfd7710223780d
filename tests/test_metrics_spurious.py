"""Spurious score, accuracy with several labels, softmax, intervals."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, roc_auc_score

from hf_robust.metrics import accuracy, class_probability, hits, log_sum_exp, max_probability, spurious_score, wilson
from hf_robust.metrics import softmax as softmax_module

NONE = float("-inf")


def pairs(seed=0, classes=(4, 900, 17)):
    rng = np.random.default_rng(seed)
    index = np.repeat(classes, 12)
    spurious = np.tile(np.arange(12) >= 5, len(classes))
    return rng.random(index.size).round(1), index, spurious


# spurious score


def test_the_score_is_the_mean_over_classes_with_validation_as_positive():
    # class 1: order V S V -> (1 + 2/3) / 2;  class 2: order S V -> 1/2
    result = spurious_score([0.9, 0.5, 0.1, 0.3, 0.6], [1, 1, 1, 2, 2], [False, True, False, False, True])
    assert result.spurious_score == pytest.approx(((1 + 2 / 3) / 2 + 1 / 2) / 2)
    assert result.spurious_auroc == pytest.approx((1 / 2 + 0) / 2)
    assert [c.class_index for c in result.per_class] == [1, 2]


def test_the_score_agrees_with_a_loop_over_scikit_learn():
    probability, index, spurious = pairs()
    result = spurious_score(probability, index, spurious)
    by_class = [index == k for k in sorted(set(index))]
    ap = [average_precision_score(~spurious[k], probability[k]) for k in by_class]
    area = [roc_auc_score(~spurious[k], probability[k]) for k in by_class]
    assert [c.average_precision for c in result.per_class] == pytest.approx(ap)
    assert (result.spurious_score, result.spurious_auroc) == pytest.approx((np.mean(ap), np.mean(area)))
    assert result.joint_average_precision == pytest.approx(average_precision_score(~spurious, probability))
    assert result.joint_auroc == pytest.approx(roc_auc_score(~spurious, probability))


def test_each_class_shows_both_means_and_counts():
    probability, index, spurious = pairs()
    entry = next(
        c
        for c in spurious_score(probability, index, spurious, classified=probability > 0.5).per_class
        if c.class_index == 17
    )
    own = index == 17
    assert (entry.n_validation, entry.n_spurious) == (5, 7)
    assert entry.mean_probability_validation == pytest.approx(probability[own & ~spurious].mean())
    assert entry.fraction_classified_spurious == pytest.approx((probability[own & spurious] > 0.5).mean())


def test_the_score_does_not_depend_on_row_order():
    probability, index, spurious = pairs()
    order = np.random.default_rng(1).permutation(index.size)
    a, b = (
        spurious_score(probability, index, spurious),
        spurious_score(probability[order], index[order], spurious[order]),
    )
    assert (a.spurious_score, a.spurious_auroc, a.joint_auroc) == (b.spurious_score, b.spurious_auroc, b.joint_auroc)


def test_a_class_with_one_half_is_named():
    with pytest.raises(ValueError, match=r"got 1 with one half, the first class 7 \(only spurious rows\)"):
        spurious_score([0.1, 0.2, 0.3], [5, 5, 7], [False, True, True])


def test_a_probability_outside_its_range_is_named():
    with pytest.raises(
        ValueError, match=r"probabilities in \[0, 1\] in probability, got 1 of 2 outside, the first at row 1"
    ):
        spurious_score([0.1, -3.0], [5, 5], [False, True])


def test_class_names_instead_of_indices_are_refused():
    with pytest.raises(TypeError, match="expected integers in class_index"):
        spurious_score([0.1, 0.3], ["a", "a"], [False, True])


# accuracy


def test_any_acceptable_label_in_the_top_k_is_one_hit():
    logits = np.array([[5.0, 4, 3, 2], [2, 3, 4, 5], [5, 4, 3, 2]])
    labels = np.array([[1, 0], [0, -1], [3, 2]])
    assert hits(logits, labels).tolist() == [True, False, False]
    assert hits(logits, labels, k=3).tolist() == [True, False, True]
    assert hits(logits, labels, k=4).all()


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=12), st.integers(1, 5))
def test_hits_agree_with_a_stable_sort_ties_included(rows, k):
    logits = np.array(rows, dtype=np.float32)
    labels = np.stack([np.arange(len(rows)) % 5, np.full(len(rows), -1)], axis=1)
    ranking = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    expected = [bool(set(row) & {label}) for row, label in zip(ranking.tolist(), labels[:, 0].tolist(), strict=True)]
    assert hits(logits, labels, k=k).tolist() == expected
    assert hits(logits, logits.argmax(axis=1)).all()


def test_a_column_without_an_output_is_never_a_hit():
    assert hits([[1.0, NONE, NONE]], [[2]], k=3).tolist() == [False]


def test_half_precision_and_one_label_a_row_are_accepted():
    assert hits(np.array([[0.1, 0.2]], dtype=np.float16), [1]).tolist() == [True]


@pytest.mark.parametrize(
    ("logits", "labels", "k", "message"),
    [
        ([[0.0, 1], [np.nan, 1]], [[0], [0]], 1, "got such a value at row 1"),
        ([[0.0, np.inf]], [[0]], 1, "got such a value at row 0"),
        ([[0.0, 1]], [[2]], 1, r"labels in -1 .. 1, got \[2\] at row 0"),
        ([[0.0, 1]], [[-1]], 1, "none at row 0"),
        ([[0.0, 1]], [[0], [1]], 1, r"labels of shape \(1, L\), got \(2, 1\)"),
        ([[0.0, 1]], [[0]], 5, r"k in 1 .. 2 \(the number of classes\), got 5"),
        ([0.0, 1], [0], 1, r"logits of shape \(N, K\)"),
    ],
)
def test_what_accuracy_cannot_use_is_named(logits, labels, k, message):
    with pytest.raises(ValueError, match=message):
        hits(np.array(logits), np.array(labels), k=k)


def test_a_bad_row_of_a_later_chunk_keeps_its_number(monkeypatch):
    monkeypatch.setattr(softmax_module, "CHUNK_BYTES", 8 * 3 * 2)  # two rows a chunk
    logits = np.zeros((7, 3))
    logits[5, 1] = np.nan
    with pytest.raises(ValueError, match="row 5"):
        hits(logits, np.zeros((7, 1), dtype=np.int64))
    with pytest.raises(ValueError, match="row 5"):
        log_sum_exp(logits)


def test_accuracy_is_the_fraction_of_true_flags():
    assert accuracy([True, False, True, True]) == 3 / 4
    assert accuracy([False]) == 0.0
    with pytest.raises(ValueError, match="at least one row in correct"):
        accuracy([])


# softmax


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_softmax_quantities_agree_with_scipy_in_double_precision(dtype, monkeypatch):
    monkeypatch.setattr(softmax_module, "CHUNK_BYTES", 8 * 50 * 4)
    logits = np.random.default_rng(3).normal(0, 8, (31, 50)).astype(dtype)
    logits[:, 7] = NONE
    exact = softmax(logits.astype(np.float64), axis=1)
    assert log_sum_exp(logits) == pytest.approx(logsumexp(logits.astype(np.float64), axis=1), abs=1e-12)
    assert max_probability(logits) == pytest.approx(exact.max(axis=1), abs=1e-14)
    column = np.arange(31)
    assert class_probability(logits, column) == pytest.approx(exact[column, column], abs=1e-14)


def test_huge_logits_do_not_overflow():
    assert max_probability(np.array([[60000.0, 60000.0]], dtype=np.float16)) == pytest.approx(0.5)
    assert log_sum_exp([[-1e9, -1e9]]) == pytest.approx(-1e9 + np.log(2))


def test_a_row_without_any_output_is_named():
    with pytest.raises(ValueError, match="got only -inf at row 1"):
        max_probability([[0.0, 1.0], [NONE, NONE]])


def test_a_column_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match=r"columns in 0 .. 1, got 2 at row 0"):
        class_probability([[0.0, 1.0]], [2])


def test_memory_stays_within_the_stated_bound():
    logits = np.zeros((20_000, 1000), dtype=np.float32)
    tracemalloc.start()
    max_probability(logits)
    hits(logits, np.zeros((20_000, 2), dtype=np.int64), k=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * softmax_module.CHUNK_BYTES


# intervals


@given(st.integers(1, 500), st.data())
def test_wilson_agrees_with_scipy(n, data):
    successes = data.draw(st.integers(0, n))
    expected = binomtest(successes, n).proportion_ci(0.95, method="wilson")
    assert wilson(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_at_the_ends_is_exact():
    z2 = 1.959963984540054**2
    assert wilson(0, 10) == (0.0, pytest.approx(z2 / (10 + z2)))
    assert wilson(10, 10) == (pytest.approx(10 / (10 + z2)), 1.0)
    assert wilson(1, 1)[1] == 1.0


@pytest.mark.parametrize(("successes", "n", "level"), [(1, 0, 0.95), (3, 2, 0.95), (-1, 2, 0.95), (1, 2, 95)])
def test_impossible_counts_and_levels_are_refused(successes, n, level):
    with pytest.raises(ValueError, match="expected"):
        wilson(successes, n, level=level)
