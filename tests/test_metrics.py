"""Detection, selective accuracy and calibration: hand-worked values, second computations, properties."""

from __future__ import annotations

import re
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from hf_robust.metrics import (
    adaptive_bins,
    aupr,
    auroc,
    aurra,
    calibration_error,
    curve,
    fpr_at_tpr,
    l2_calibration_error,
    n_bins,
    response_rate_accuracy,
)

# few distinct values, so that most examples have ties
scored = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
    lambda rows: len({ood for _, ood in rows}) == 2
)
graded = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30)


def split(rows):
    values, flags = zip(*rows, strict=True)
    return np.array(values, dtype=np.float64), np.array(flags)


def naive_fpr(scores, is_ood, tpr):
    """Try every threshold."""
    rates = []
    for threshold in np.unique(scores):
        found = scores >= threshold
        if found[is_ood].mean() >= tpr:
            rates.append(found[~is_ood].mean())
    return min(rates)


def naive_nearest_fpr(scores, is_ood, tpr):
    """The threshold with the nearest recall; the larger false positive rate on ties; none below full recall."""
    best = None
    for threshold in sorted(np.unique(scores), reverse=True):
        found = scores >= threshold
        distance = abs(found[is_ood].mean() - tpr)
        if best is None or distance <= best[0]:
            best = (distance, found[~is_ood].mean())
        if found[is_ood].all():
            break
    return best[1]


# detection


def test_average_precision_is_the_step_sum_over_recall_gains():
    assert aupr([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]) == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_tied_scores_are_one_step_of_average_precision():
    # threshold 2 finds one of two positives among three rows, threshold 1 both among four
    assert aupr([2, 2, 2, 1], [1, 0, 0, 1]) == pytest.approx(1 / 2 * 1 / 3 + 1 / 2 * 2 / 4)


def test_all_scores_equal_give_the_base_rate_and_one_half():
    scores, is_ood = np.zeros(12), np.arange(12) < 2
    assert aupr(scores, is_ood) == pytest.approx(2 / 12)
    assert auroc(scores, is_ood) == 0.5
    assert fpr_at_tpr(scores, is_ood) == 1.0


def test_perfect_separation_gives_one_one_zero_and_reversed_scores_zero_auroc():
    scores, is_ood = np.arange(10.0), np.arange(10) >= 6
    assert (aupr(scores, is_ood), auroc(scores, is_ood), fpr_at_tpr(scores, is_ood)) == (1.0, 1.0, 0.0)
    assert auroc(-scores, is_ood) == 0.0


def test_fpr_takes_the_first_threshold_that_reaches_the_rate():
    # 20 positives at 20 .. 1: the 19th, at score 2, reaches 19/20; negatives at 30, 2.5 and 1.5: two of three are above
    scores = [*range(20, 0, -1), 30, 2.5, 1.5]
    assert fpr_at_tpr(scores, [True] * 20 + [False] * 3) == pytest.approx(2 / 3)


def test_released_fpr_takes_the_nearest_rate_even_if_it_is_lower():
    # threshold 3: recall 1/2, no negative; threshold 1: recall 2/2, the one negative; 0.7 is nearer to 1/2
    scores, is_ood = [3, 1, 1], [True, True, False]
    assert fpr_at_tpr(scores, is_ood, tpr=0.7, released_code=True) == 0.0
    assert fpr_at_tpr(scores, is_ood, tpr=0.7) == 1.0


def test_released_fpr_takes_the_larger_rate_among_thresholds_of_equal_recall():
    # recall 1/2 at threshold 4 (0 of 2 negatives) and at threshold 3 (1 of 2)
    scores, is_ood = [4, 3, 2, 1], [True, False, True, False]
    assert fpr_at_tpr(scores, is_ood, tpr=0.5, released_code=True) == 0.5
    assert fpr_at_tpr(scores, is_ood, tpr=0.5) == 0.0


@given(scored)
def test_detection_agrees_with_scikit_learn_and_naive_loops(rows):
    scores, is_ood = split(rows)
    assert aupr(scores, is_ood) == pytest.approx(average_precision_score(is_ood, scores), abs=1e-12)
    assert auroc(scores, is_ood) == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    for tpr in (0.5, 0.95, 1.0):
        assert fpr_at_tpr(scores, is_ood, tpr=tpr) == naive_fpr(scores, is_ood, tpr)
        assert fpr_at_tpr(scores, is_ood, tpr=tpr, released_code=True) == naive_nearest_fpr(scores, is_ood, tpr)


@given(scored, st.randoms(use_true_random=False))
def test_detection_does_not_depend_on_row_order_scale_or_duplication(rows, random):
    shuffled = random.sample(rows, len(rows))
    (scores, is_ood), (other, other_ood) = split(rows), split(shuffled)
    for metric in (aupr, auroc, fpr_at_tpr):
        assert metric(scores, is_ood) == metric(other, other_ood)
        assert metric(scores, is_ood) == metric(np.exp(scores) * 7, is_ood)
        assert metric(np.tile(scores, 3), np.tile(is_ood, 3)) == pytest.approx(metric(scores, is_ood), abs=1e-12)


@given(scored)
def test_flipping_scores_and_groups_keeps_auroc_and_flipping_scores_alone_mirrors_it(rows):
    scores, is_ood = split(rows)
    assert auroc(-scores, ~is_ood) == pytest.approx(auroc(scores, is_ood), abs=1e-12)
    assert auroc(-scores, is_ood) == pytest.approx(1 - auroc(scores, is_ood), abs=1e-12)


def test_one_curve_serves_all_three_measures():
    rng = np.random.default_rng(0)
    scores, is_ood = rng.normal(size=300).round(1), rng.random(300) < 0.2
    counts = curve(scores, is_ood)
    assert counts.average_precision() == aupr(scores, is_ood)
    assert counts.area() == auroc(scores, is_ood)
    assert counts.false_positive_rate(0.95) == fpr_at_tpr(scores, is_ood)


def test_half_precision_scores_are_cast_up():
    scores = np.array([0.1, 0.2, 0.3], dtype=np.float16)
    assert aupr(scores, [0, 1, 1]) == 1.0


# selective


def test_response_rate_accuracy_is_the_accuracy_of_the_most_confident():
    curve_ = response_rate_accuracy([0.5, 0.9, 0.7], [False, True, False])
    assert curve_ == pytest.approx([1 / 1, 1 / 2, 1 / 3])
    assert aurra([0.5, 0.9, 0.7], [False, True, False]) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_tied_confidences_give_the_mean_over_all_their_orderings():
    correct = [True, False, False, True]  # the last three are tied
    means = []
    for order in permutations(correct[1:]):
        row = np.array([correct[0], *order])
        means.append(np.cumsum(row) / np.arange(1, 5))
    assert response_rate_accuracy([0.9, 0.5, 0.5, 0.5], correct) == pytest.approx(np.mean(means, axis=0))


@given(graded, st.randoms(use_true_random=False))
def test_aurra_does_not_depend_on_row_order_or_monotone_transforms(rows, random):
    confidence, correct = split(rows)
    other, other_correct = split(random.sample(rows, len(rows)))
    assert aurra(confidence, correct) == aurra(other, other_correct) == aurra(confidence**3, correct)


@pytest.mark.parametrize(("correct", "value"), [(True, 1.0), (False, 0.0)])
def test_aurra_of_one_row_is_its_correctness(correct, value):
    assert aurra([0.3], [correct]) == value


def test_aurra_of_equal_confidences_is_the_accuracy():
    assert aurra(np.full(8, 0.5), np.arange(8) < 3) == pytest.approx(3 / 8)


# calibration


def naive_calibration(confidence, correct, *, norm, bin_size, skip_last=False):
    """The published text, bin by bin; no ties."""
    order = sorted(range(len(confidence)), key=lambda i: confidence[i])
    bins = [order[i * bin_size : (i + 1) * bin_size] for i in range(len(order) // bin_size)] or [order]
    bins[-1] = order[(len(bins) - 1) * bin_size :]
    gaps = []
    for rows in bins[:-1] if skip_last else bins:
        gap = abs(sum(confidence[i] for i in rows) / len(rows) - sum(bool(correct[i]) for i in rows) / len(rows))
        gaps.append((len(rows) / len(order), gap))
    if norm == "max":
        return max((gap for _, gap in gaps), default=0.0)
    return sum(weight * gap**norm for weight, gap in gaps) ** (1 / norm)


@pytest.mark.parametrize("norm", [1, 2, "max"])
@pytest.mark.parametrize("n", [1, 2, 99, 100, 150, 199, 200, 1037])
def test_calibration_agrees_with_a_loop_over_bins(n, norm):
    rng = np.random.default_rng(n)
    confidence = rng.random(n)
    correct = rng.random(n) < confidence**2
    expected = naive_calibration(confidence, correct, norm=norm, bin_size=100)
    assert calibration_error(confidence, correct, norm=norm) == pytest.approx(expected, abs=1e-12)
    if n >= 100:
        released = naive_calibration(confidence, correct, norm=norm, bin_size=100, skip_last=True)
        assert calibration_error(confidence, correct, norm=norm, released_code=True) == pytest.approx(
            released, abs=1e-12
        )


def test_two_bins_of_two_weigh_their_gaps_by_size():
    # bins {0.1, 0.3} with accuracy 0 and {0.6, 0.8, 0.7} with accuracy 1/3: gaps 0.2 and 0.7 - 1/3
    confidence, correct = [0.1, 0.6, 0.3, 0.8, 0.7], [0, 1, 0, 0, 0]
    gaps = (0.2, 0.7 - 1 / 3)
    assert calibration_error(confidence, correct, norm=1, bin_size=2) == pytest.approx(
        2 / 5 * gaps[0] + 3 / 5 * gaps[1]
    )
    assert calibration_error(confidence, correct, norm="max", bin_size=2) == pytest.approx(gaps[1])
    expected = (2 / 5 * gaps[0] ** 2 + 3 / 5 * gaps[1] ** 2) ** 0.5
    assert l2_calibration_error(confidence, correct, bin_size=2) == pytest.approx(expected)


@pytest.mark.parametrize("n", [100, 150, 199])
def test_the_released_code_gives_zero_where_the_last_bin_is_the_only_one(n):
    assert calibration_error(np.full(n, 0.9), np.zeros(n), released_code=True) == 0.0


def test_the_released_code_refuses_fewer_examples_than_a_bin():
    with pytest.raises(ValueError, match="at least 100 examples for the released code, got 99"):
        calibration_error(np.full(99, 0.9), np.zeros(99), released_code=True)


@pytest.mark.parametrize(("level", "right"), [(0.0, 0), (1.0, 1), (1.0, 0), (0.0, 1), (0.5, 1)])
def test_equal_confidences_at_the_edges_make_no_phantom_bin(level, right):
    for n in (1, 2, 99, 100, 150, 250):
        assert calibration_error(np.full(n, level), np.full(n, right)) == pytest.approx(abs(level - right))


def test_a_run_of_ties_across_a_border_is_shared_between_the_bins():
    # one run of four with two right: each bin of two gets accuracy 1/2, whatever the order of rows
    for correct in ([1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1]):
        bins = adaptive_bins([0.8] * 4, correct, bin_size=2)
        assert bins.accuracy == pytest.approx([1 / 2, 1 / 2])
        assert calibration_error([0.8] * 4, correct, bin_size=2) == pytest.approx(0.3)


@settings(max_examples=60)
@given(graded, st.randoms(use_true_random=False), st.sampled_from([1, 2, "max"]))
def test_calibration_does_not_depend_on_row_order(rows, random, norm):
    (confidence, correct), (other, other_correct) = split(rows), split(random.sample(rows, len(rows)))
    a = calibration_error(confidence / 8, correct, norm=norm, bin_size=5)
    assert a == pytest.approx(calibration_error(other / 8, other_correct, norm=norm, bin_size=5), abs=1e-12)
    assert 0 <= a <= 1


def test_the_number_of_bins_tells_a_bin_that_is_not_full():
    assert [n_bins(n) for n in (1, 99, 100, 199, 200, 7500)] == [1, 1, 1, 1, 2, 75]
    with pytest.raises(ValueError, match="bin_size >= 1, got 0"):
        n_bins(5, bin_size=0)


# what is refused


@pytest.mark.parametrize("metric", [aupr, auroc, fpr_at_tpr, aurra, response_rate_accuracy, calibration_error])
@pytest.mark.parametrize(
    ("values", "flags", "error", "message"),
    [
        ([0.1, np.nan, 0.2], [0, 1, 0], ValueError, r"1 of 3 that are not, the first at row 1 \(nan\)"),
        ([0.1, 0.2, np.inf], [0, 1, 0], ValueError, r"the first at row 2 \(inf\)"),
        ([], [], ValueError, "at least one row"),
        ([[0.1, 0.2]], [[0, 1]], ValueError, r"of shape \(N,\), got \(1, 2\)"),
        ([0.1, 0.2], [0, 1, 1], ValueError, r"of shape \(2,\), got \(3,\)"),
        ([0.1, 0.2], [0, 2], ValueError, "only 0 and 1 in .*, got 2 at row 1"),
        (["a", "b"], [0, 1], TypeError, "expected numbers in"),
        ([0.1, 0.2], ["no", "yes"], TypeError, "expected booleans in"),
    ],
)
def test_bad_input_is_named_with_its_row(metric, values, flags, error, message):
    with pytest.raises(error, match=message):
        metric(values, flags)


@pytest.mark.parametrize("metric", [aupr, auroc, fpr_at_tpr])
def test_one_group_alone_is_refused(metric):
    with pytest.raises(ValueError, match="got no out-of-distribution row among 2"):
        metric([0.1, 0.2], [0, 0])
    with pytest.raises(ValueError, match="got no in-distribution row among 2"):
        metric([0.1, 0.2], [1, 1])


def test_confidence_in_per_cent_is_refused():
    with pytest.raises(ValueError, match=re.escape("1 of 2 outside, the first at row 1 (91.5)")):
        calibration_error([0.5, 91.5], [1, 1])


def test_rounding_of_a_single_precision_softmax_is_no_error():
    assert calibration_error([1 + 1e-7], [1]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("tpr", [0, 1.1, 95])
def test_a_rate_outside_its_range_is_refused(tpr):
    with pytest.raises(ValueError, match=r"tpr in \(0, 1\]"):
        fpr_at_tpr([0.1, 0.2], [0, 1], tpr=tpr)


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="norm 1, 2 or 'max', got 3"):
        calibration_error([0.5], [1], norm=3)
