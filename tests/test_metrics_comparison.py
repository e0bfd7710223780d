"""Paired differences, exact tests, Holm's correction, differences of proportions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, false_discovery_control, norm

from hf_robust.metrics import (
    delong_difference,
    holm,
    mcnemar,
    minimum_detectable_difference,
    newcombe,
    paired_difference,
    paired_proportions,
    resample,
    sign_test,
    weighted,
    wilson,
)

# exact tests


@given(st.integers(0, 80), st.integers(0, 80))
def test_the_sign_test_agrees_with_scipy(wins, losses):
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert sign_test(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_the_sign_test_of_many_thousands_is_no_overflow():
    assert sign_test(5100, 4900) == pytest.approx(binomtest(5100, 10_000).pvalue, rel=1e-9)
    assert sign_test(0, 2000) == 0.0 or sign_test(0, 2000) < 1e-300


def test_mcnemar_counts_only_rows_that_differ():
    first = [1, 1, 1, 1, 1, 1, 0, 0, 1, 0]
    second = [0, 0, 0, 0, 0, 1, 1, 0, 1, 0]
    result = mcnemar(first, second)
    # 5 against 1: 2 (1 + 6) / 2^6
    assert (result.only_first, result.only_second, result.p_value) == (5, 1, 2 * (1 + 6) / 2**6)
    assert mcnemar(second, first).p_value == result.p_value


def test_equal_models_have_a_p_value_of_one():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p_value == 1.0
    assert mcnemar([1], [1]).p_value == 1.0


def test_unequal_rows_are_refused():
    with pytest.raises(ValueError, match=r"second_correct of shape \(2,\), got \(3,\)"):
        mcnemar([1, 0], [1, 0, 1])
    with pytest.raises(ValueError, match="counts >= 0, got -1 and 2"):
        sign_test(-1, 2)


# Holm


def plain_holm(p):
    """Step down: the i-th smallest times the number still in play, never below the one before."""
    result, before = [0.0] * len(p), 0.0
    for place, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        before = max(before, min(1.0, (len(p) - place) * p[i]))
        result[i] = before
    return result


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_agrees_with_a_step_down_loop(p):
    adjusted = holm(p)
    assert adjusted == pytest.approx(plain_holm(p))
    assert (adjusted >= false_discovery_control(p) - 1e-12).all()  # stricter than the false discovery rate
    assert (adjusted <= np.minimum(1, np.array(p) * len(p)) + 1e-12).all()  # never more than Bonferroni


def test_holm_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="outside, the first at row 1"):
        holm([0.1, 1.5])
    with pytest.raises(ValueError, match="at least one row in p_values"):
        holm([])


# paired bootstrap


def two_models(n=400):
    rng = np.random.default_rng(0)
    hard = rng.random(n)
    return hard + rng.normal(0, 0.1, n) < 0.7, hard + rng.normal(0, 0.1, n) < 0.6


def test_the_paired_error_is_that_of_the_differences_and_not_divided_again():
    first, second = two_models()
    result = paired_difference(weighted.mean(first), weighted.mean(second), 400, replicates=4000)
    gap = first.astype(float) - second
    assert result.value == pytest.approx(gap.mean())
    assert result.standard_error == pytest.approx(gap.std() / 400**0.5, rel=0.05)
    assert (result.low, result.high) == pytest.approx(
        (gap.mean() - 1.96 * gap.std() / 20, gap.mean() + 1.96 * gap.std() / 20), abs=0.005
    )


def test_pairing_is_narrower_than_two_separate_intervals():
    first, second = two_models()
    paired = paired_difference(weighted.mean(first), weighted.mean(second), 400)
    low, high = newcombe(int(first.sum()), 400, int(second.sum()), 400)
    assert paired.high - paired.low < 0.8 * (high - low)


def test_exchanging_the_models_mirrors_the_difference():
    first, second = two_models()
    there = paired_difference(weighted.mean(first), weighted.mean(second), 400)
    back = paired_difference(weighted.mean(second), weighted.mean(first), 400)
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low))
    assert (back.p_value, back.standard_error) == pytest.approx((there.p_value, there.standard_error))


def test_a_clear_difference_has_the_smallest_p_value_and_none_has_one():
    good, bad = weighted.mean(np.ones(50)), weighted.mean(np.zeros(50))
    assert paired_difference(good, bad, 50).p_value == pytest.approx(2 / 1001)
    same = paired_difference(good, good, 50)
    assert (same.value, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_a_centred_difference_has_the_value_as_its_resampled_mean():
    rng = np.random.default_rng(3)
    confidence = rng.beta(5, 2, 600)
    good, bad = rng.random(600) < confidence, rng.random(600) < confidence**3
    pair = weighted.calibration_error(confidence, good), weighted.calibration_error(confidence, bad)
    plain, centred = (paired_difference(*pair, 600, centred=c) for c in (False, True))
    drawn = resample(list(pair), 600)
    moved = (drawn[0] - drawn[1]).mean() - plain.value
    assert moved > 0.005  # noise lifts the error of the calibrated model by more
    assert (centred.low, centred.high) == pytest.approx((plain.low - moved, plain.high - moved), abs=1e-12)
    assert centred.value == plain.value


@pytest.mark.parametrize(("n", "only_first", "only_second"), [(24, 0.2, 0.1), (400, 0.05, 0.03), (400, 0.005, 0.0)])
def test_the_interval_of_paired_proportions_covers_the_difference_in_95_of_100_samples(n, only_first, only_second):
    rng = np.random.default_rng(n)
    drawn = rng.multinomial(n, [only_first, only_second, 1 - only_first - only_second], 1000)
    found = [paired_proportions(int(a), int(b), n) for a, b, _ in drawn]
    assert np.mean([d.low <= only_first - only_second <= d.high for d in found]) > 0.93


def test_paired_proportions_mirror_and_have_a_width_where_nothing_differs():
    there, back = paired_proportions(7, 2, 50), paired_proportions(2, 7, 50)
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low))
    assert there.p_value == pytest.approx(binomtest(2, 9).pvalue)
    none = paired_proportions(0, 0, 6)  # shares 1/8 and 1/8 of 8
    assert (none.value, none.high) == (0.0, pytest.approx(norm.ppf(0.975) * (2 / 8 / 8) ** 0.5))


def test_paired_proportions_refuse_impossible_counts():
    with pytest.raises(ValueError, match="at most n >= 1 rows, got 4 and 3 of 6"):
        paired_proportions(4, 3, 6)


def test_paired_detection_keeps_both_halves():
    rng = np.random.default_rng(1)
    is_ood = np.arange(300) < 60
    scores = is_ood + rng.normal(0, 1, 300)
    worse = scores + rng.normal(0, 1, 300)
    result = paired_difference(weighted.aupr(scores, is_ood), weighted.aupr(worse, is_ood), 300, strata=is_ood)
    assert 0 < result.low < result.value < result.high


# DeLong


def test_delong_of_two_scores_agrees_with_the_covariance_of_their_pairs():
    rng = np.random.default_rng(2)
    is_ood = np.arange(90) < 30
    first = is_ood + rng.normal(0, 1, 90)
    second = (0.5 * first + rng.normal(0, 1, 90)).round(1)
    kernels = [
        np.array([[(a > b) + (a == b) / 2 for b in scores[~is_ood]] for a in scores[is_ood]])
        for scores in (first, second)
    ]
    cov = sum(np.cov([k.mean(axis=axis) for k in kernels]) / size for axis, size in ((1, 30), (0, 60)))
    error = (cov[0, 0] + cov[1, 1] - 2 * cov[0, 1]) ** 0.5
    value = kernels[0].mean() - kernels[1].mean()
    result = delong_difference(first, second, is_ood)
    assert (result.value, result.standard_error) == pytest.approx((value, error))
    assert result.p_value == pytest.approx(2 * norm.sf(abs(value) / error))
    assert (result.low, result.high) == pytest.approx((value - 1.959964 * error, value + 1.959964 * error), abs=1e-6)


def test_delong_of_a_score_with_itself_is_no_difference():
    scores, is_ood = [3.0, 1.0, 2.0, 0.0], [1, 1, 0, 0]
    result = delong_difference(scores, scores, is_ood)
    assert (result.value, result.low, result.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)


# proportions and sizes


def test_newcombe_gives_the_published_example():
    # Newcombe 1998, table II, contrast (a) 56/70 - 48/80, method 10
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_newcombe_holds_the_difference_and_mirrors_when_exchanged(m, n, data):
    a, b = data.draw(st.integers(0, m)), data.draw(st.integers(0, n))
    low, high = newcombe(a, m, b, n)
    assert -1 <= low <= a / m - b / n <= high <= 1
    assert newcombe(b, n, a, m) == pytest.approx((-high, -low), abs=1e-12)
    assert high - low <= sum(top - bottom for bottom, top in (wilson(a, m), wilson(b, n))) + 1e-12


def test_the_detectable_difference_is_found_with_the_stated_power():
    error = 0.02
    difference = minimum_detectable_difference(error, level=0.95, power=0.8)
    # chance that the estimate lies more than 1.96 errors above 0, the other side is negligible
    assert norm.sf(norm.ppf(0.975) - difference / error) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="standard error >= 0, got -1"):
        minimum_detectable_difference(-1)
    with pytest.raises(ValueError, match=r"level in \(0, 1\)"):
        minimum_detectable_difference(0.1, power=1)
