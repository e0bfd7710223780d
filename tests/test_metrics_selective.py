"""Risk and coverage: hand-worked values, all orderings of ties, closed forms."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hf_robust.metrics import (
    accuracy_at_response_rate,
    augrc,
    aurc,
    aurra,
    e_aurc,
    response_rate_accuracy,
    risk_coverage,
)

graded = st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=30)
AREAS = (aurc, e_aurc, augrc)


def split(rows):
    values, flags = zip(*rows, strict=True)
    return np.array(values, dtype=np.float64), np.array(flags)


def loop(confidence, correct):
    """AURC, E-AURC and AUGRC from the definitions; no ties."""
    wrong = [not correct[i] for i in sorted(range(len(correct)), key=lambda i: -confidence[i])]
    n = len(wrong)
    risks = [sum(wrong[: i + 1]) / (i + 1) for i in range(n)]
    best = sorted(wrong)
    best_risks = [sum(best[: i + 1]) / (i + 1) for i in range(n)]
    joint = [0.0, *(sum(wrong[: i + 1]) / n for i in range(n))]
    trapezoid = sum((a + b) / 2 / n for a, b in pairwise(joint))
    return sum(risks) / n, (sum(risks) - sum(best_risks)) / n, trapezoid


def test_the_three_areas_of_four_examples_by_hand():
    confidence, correct = [0.9, 0.8, 0.7, 0.6], [True, False, True, False]
    # risks 0, 1/2, 1/3, 1/2; best order has risks 0, 0, 1/3, 1/2; errors over all: 0, 0, 1/4, 1/4, 2/4
    assert aurc(confidence, correct) == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert e_aurc(confidence, correct) == pytest.approx((1 / 2) / 4)
    assert augrc(confidence, correct) == pytest.approx((0 + 1 / 8 + 1 / 4 + 3 / 8) / 4)


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_the_areas_agree_with_loops_over_the_definitions(n):
    rng = np.random.default_rng(n)
    confidence, correct = rng.random(n), rng.random(n) < 0.6
    values = [area(confidence, correct) for area in AREAS]
    assert values == pytest.approx(list(loop(confidence, correct)), abs=1e-12)


def test_tied_confidences_give_the_mean_area_over_all_their_orderings():
    confidence, correct = [0.9, 0.5, 0.5, 0.5, 0.1], [False, True, False, False, True]
    each = [loop([5, 4, 3, 2, 1], [correct[i] for i in (0, *middle, 4)]) for middle in permutations((1, 2, 3))]
    assert [area(confidence, correct) for area in AREAS] == pytest.approx(list(np.mean(each, axis=0)), abs=1e-12)


@given(graded)
def test_aurc_is_one_minus_aurra(rows):
    confidence, correct = split(rows)
    assert aurc(confidence, correct) == pytest.approx(1 - aurra(confidence, correct), abs=1e-12)


@given(graded.filter(lambda rows: len({right for _, right in rows}) == 2))
def test_augrc_is_the_closed_form_of_its_paper(rows):
    confidence, correct = split(rows)
    right, area = correct.mean(), roc_auc_score(correct, confidence)
    expected = (1 - area) * right * (1 - right) + (1 - right) ** 2 / 2
    assert augrc(confidence, correct) == pytest.approx(expected, abs=1e-12)


@given(graded)
def test_a_perfect_ranking_has_no_excess_and_a_reversed_one_the_most(rows):
    confidence, correct = split(rows)
    assert e_aurc(correct.astype(float) + np.arange(correct.size) / 100, correct) == pytest.approx(0, abs=1e-12)
    reversed_ = e_aurc(-correct.astype(float) + np.arange(correct.size) / 100, correct)
    assert -1e-12 <= e_aurc(confidence, correct) <= reversed_ + 1e-12


@given(graded, st.randoms(use_true_random=False))
def test_the_areas_do_not_depend_on_row_order_or_monotone_transforms(rows, random):
    (confidence, correct), (other, other_correct) = split(rows), split(random.sample(rows, len(rows)))
    for area in AREAS:
        assert area(confidence, correct) == area(other, other_correct) == area(np.exp(confidence), correct)


def test_duplicated_rows_leave_the_generalised_area():
    confidence, correct = np.array([0.9, 0.8, 0.3]), np.array([True, False, True])
    assert augrc(np.tile(confidence, 3), np.tile(correct, 3)) == pytest.approx(augrc(confidence, correct))


def test_the_curve_holds_coverage_risk_and_generalised_risk():
    curve = risk_coverage([0.9, 0.8, 0.7], [False, True, False])
    assert curve.coverage == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve.risk == pytest.approx([1, 1 / 2, 2 / 3])
    assert curve.generalized_risk == pytest.approx([1 / 3, 1 / 3, 2 / 3])


@pytest.mark.parametrize(("correct", "areas"), [(True, (0, 0, 0)), (False, (1, 0, 1 / 2))])
def test_one_row_has_the_areas_of_its_correctness(correct, areas):
    assert tuple(area([0.3], [correct]) for area in AREAS) == areas


def test_accuracy_at_a_response_rate_rounds_up_to_whole_examples():
    confidence, correct = [0.9, 0.8, 0.7, 0.6], [True, True, False, True]
    assert accuracy_at_response_rate(confidence, correct, rate=0.5) == 2 / 2
    assert accuracy_at_response_rate(confidence, correct, rate=0.51) == 2 / 3
    assert accuracy_at_response_rate(confidence, correct, rate=1) == 3 / 4
    assert accuracy_at_response_rate(confidence, correct, rate=1e-12) == 1 / 1


def test_a_rate_that_floats_cannot_hold_is_still_seven_of_a_hundred():
    confidence, correct = -np.arange(100.0), np.arange(100) < 7
    assert 0.07 * 100 > 7
    assert accuracy_at_response_rate(confidence, correct, rate=0.07) == 1.0


@given(graded, st.integers(1, 30))
def test_accuracy_at_a_response_rate_is_a_point_of_the_curve(rows, i):
    confidence, correct = split(rows)
    i = min(i, correct.size)
    value = accuracy_at_response_rate(confidence, correct, rate=i / correct.size)
    assert value == response_rate_accuracy(confidence, correct)[i - 1]


@pytest.mark.parametrize("rate", [0, -0.1, 1.01, 80, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(ValueError, match=r"rate in \(0, 1\]"):
        accuracy_at_response_rate([0.5], [True], rate=rate)


@pytest.mark.parametrize("area", [*AREAS, risk_coverage])
def test_bad_input_is_named_with_its_row(area):
    with pytest.raises(ValueError, match=r"the first at row 1 \(nan\)"):
        area([0.1, np.nan], [0, 1])
    with pytest.raises(ValueError, match="only 0 and 1 in correct, got 3 at row 0"):
        area([0.1, 0.2], [3, 1])
    with pytest.raises(ValueError, match="at least one row in confidence"):
        area([], [])
