"""Equal-width bins, the debiased error, soft F1: hand-worked values, second computations, properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_robust.metrics import adaptive_bins, calibration_error, equal_width_bins, l2_calibration_error, soft_f1

graded = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=40)


def split(rows):
    values, flags = zip(*rows, strict=True)
    return np.array(values) / 20, np.array(flags)


def loop_over_intervals(confidence, correct, *, norm, bins):
    gaps = []
    for i in range(bins):
        rows = (confidence > i / bins) & (confidence <= (i + 1) / bins) | ((confidence == 0) & (i == 0))
        if rows.any():
            gaps.append((rows.mean(), abs(confidence[rows].mean() - correct[rows].mean())))
    if norm == "max":
        return max(gap for _, gap in gaps)
    return sum(weight * gap**norm for weight, gap in gaps) ** (1 / norm)


# equal width


@given(graded, st.sampled_from([1, 2, "max"]), st.sampled_from([1, 5, 10, 15]))
def test_equal_width_agrees_with_a_loop_over_intervals(rows, norm, bins):
    confidence, correct = split(rows)
    value = calibration_error(confidence, correct, norm=norm, binning="equal_width", bins=bins)
    assert value == pytest.approx(loop_over_intervals(confidence, correct, norm=norm, bins=bins), abs=1e-12)


def test_intervals_hold_their_upper_edge_and_the_first_holds_zero():
    bins = equal_width_bins([0.0, 0.1, 0.7, 0.71, 1.0], [0, 1, 1, 0, 1], bins=10)
    assert bins.size.tolist() == [2, 1, 1, 1]
    assert bins.confidence == pytest.approx([0.05, 0.7, 0.71, 1.0])
    assert bins.accuracy == pytest.approx([1 / 2, 1, 0, 1])


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_equal_confidences_make_one_interval(level):
    assert equal_width_bins(np.full(7, level), np.ones(7)).size.tolist() == [7]


def test_bins_below_one_are_refused():
    with pytest.raises(ValueError, match="bins >= 1, got 0"):
        equal_width_bins([0.5], [1], bins=0)


@given(graded, st.randoms(use_true_random=False))
def test_equal_width_does_not_depend_on_row_order_or_duplication(rows, random):
    (confidence, correct), (other, other_correct) = split(rows), split(random.sample(rows, len(rows)))
    value = calibration_error(confidence, correct, binning="equal_width")
    assert value == pytest.approx(calibration_error(other, other_correct, binning="equal_width"), abs=1e-12)
    doubled = calibration_error(np.tile(confidence, 2), np.tile(correct, 2), binning="equal_width")
    assert value == pytest.approx(doubled, abs=1e-12)


def test_duplication_with_a_bin_size_to_match_leaves_the_adaptive_error():
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(40), rng.random(40) < 0.5
    once = calibration_error(confidence, correct, bin_size=10)
    assert calibration_error(np.tile(confidence, 3), np.tile(correct, 3), bin_size=30) == pytest.approx(once)


# debiased


def test_the_debiased_error_takes_off_the_variance_of_each_accuracy():
    # one bin of 4 at 0.9, half right: gap 0.4, noise 1/2 * 1/2 / 3
    value = l2_calibration_error([0.9] * 4, [1, 1, 0, 0], debiased=True)
    assert value == pytest.approx((0.4**2 - 1 / 4 / 3) ** 0.5)


def test_the_debiased_error_is_cut_at_zero():
    assert l2_calibration_error([0.5] * 4, [1, 1, 0, 0], debiased=True) == 0.0


def test_a_bin_of_one_example_counts_nothing_in_the_debiased_error():
    assert calibration_error([0.2], [1], debiased=True) == 0.0
    # 0.2 stands alone; the two at 0.9 have gap 0.9 and no spread
    value = calibration_error([0.2, 0.9, 0.9], [1, 0, 0], binning="equal_width", debiased=True)
    assert value == pytest.approx((2 / 3 * 0.9**2) ** 0.5)


def test_the_debiased_square_is_unbiased_over_many_draws():
    rng = np.random.default_rng(4)
    confidence, truth = np.repeat([0.3, 0.6, 0.9], 30), np.repeat([0.5, 0.5, 0.5], 30)
    squares, plain = [], []
    for _ in range(400):
        correct = rng.random(90) < truth
        bins = adaptive_bins(confidence, correct, bin_size=30)
        assert bins.size.tolist() == [30, 30, 30]
        squares.append(calibration_error(confidence, correct, bin_size=30, debiased=True) ** 2)
        plain.append(calibration_error(confidence, correct, bin_size=30) ** 2)
    exact = (0.2**2 + 0.1**2 + 0.4**2) / 3
    noise = 0.25 / 30
    assert np.mean(squares) == pytest.approx(exact, abs=0.004)
    assert np.mean(plain) == pytest.approx(exact + noise, abs=0.004)


@given(graded)
def test_the_debiased_error_is_never_above_the_plain_one(rows):
    confidence, correct = split(rows)
    debiased = calibration_error(confidence, correct, bin_size=5, debiased=True)
    assert 0 <= debiased <= calibration_error(confidence, correct, bin_size=5) + 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": 1, "debiased": True}, "norm 2 with debiased=True, got 1"),
        ({"released_code": True, "debiased": True}, "adaptive bins without debiasing for the released code"),
        ({"released_code": True, "binning": "equal_width"}, "adaptive bins without debiasing for the released code"),
        ({"binning": "equal"}, "binning 'adaptive' or 'equal_width', got 'equal'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        calibration_error([0.5, 0.5], [0, 1], **options)


# soft F1


def soft_counts(confidence, correct):
    """F1 from soft true positives, false positives and false negatives; wrong examples are positive."""
    doubt = 1 - confidence
    found, alarms, missed = doubt[~correct].sum(), doubt[correct].sum(), confidence[~correct].sum()
    return 2 * found / (2 * found + missed + alarms)


@given(graded)
def test_soft_f1_agrees_with_its_soft_counts(rows):
    confidence, correct = split(rows)
    if (1 - confidence).sum() + (~correct).sum() > 0:
        assert soft_f1(confidence, correct) == pytest.approx(soft_counts(confidence, correct), abs=1e-12)


def test_soft_f1_is_one_where_doubt_is_all_on_the_wrong_examples():
    assert soft_f1([1, 0, 1], [1, 0, 1]) == 1.0
    assert soft_f1([0.3], [1]) == 0.0


def test_soft_f1_without_doubt_and_without_wrong_examples_is_refused():
    with pytest.raises(ValueError, match="got 2 rows that are right with confidence 1"):
        soft_f1([1, 1], [1, 1])
    with pytest.raises(ValueError, match="outside, the first at row 0"):
        soft_f1([1.2], [0])
