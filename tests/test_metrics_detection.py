"""Both polarities, the trapezoid and DeLong: hand-worked values, second computations, properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from hf_robust.metrics import aupr, auroc, auroc_variance, curve, delong, fpr_at_tpr

scored = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
    lambda rows: len({ood for _, ood in rows}) == 2
)
METRICS = (aupr, auroc, fpr_at_tpr)


def split(rows):
    values, flags = zip(*rows, strict=True)
    return np.array(values, dtype=np.float64), np.array(flags)


def random_scores(seed=0, n_out=40, n_in=70):
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.normal(0.8, 1, n_out), rng.normal(0, 1, n_in)]).round(1)
    return scores, np.repeat([True, False], [n_out, n_in])


# polarity


def test_in_distribution_as_positive_class_is_found_by_a_low_score():
    # rising: 1 (in), 2 (out), 3 (in), 4 (out)
    assert aupr([4, 3, 2, 1], [1, 0, 1, 0], positive="id") == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert fpr_at_tpr([4, 3, 2, 1], [1, 0, 1, 0], positive="id") == 1 / 2


@given(scored)
def test_the_other_polarity_is_that_of_negated_scores_and_exchanged_groups(rows):
    scores, is_ood = split(rows)
    for metric in METRICS:
        assert metric(scores, is_ood, positive="id") == pytest.approx(metric(-scores, ~is_ood), abs=1e-12)
    assert auroc(scores, is_ood, positive="id") == pytest.approx(auroc(scores, is_ood), abs=1e-12)


@given(scored)
def test_in_distribution_positive_agrees_with_scikit_learn(rows):
    scores, is_ood = split(rows)
    fpr, tpr, _ = roc_curve(~is_ood, -scores, drop_intermediate=False)
    assert aupr(scores, is_ood, positive="id") == pytest.approx(average_precision_score(~is_ood, -scores), abs=1e-12)
    assert fpr_at_tpr(scores, is_ood, positive="id") == pytest.approx(fpr[tpr >= 0.95].min(), abs=1e-12)


@given(scored)
def test_a_curve_flipped_twice_is_the_curve(rows):
    counts = curve(*split(rows))
    again = counts.flipped().flipped()
    assert again.true_positives.tolist() == counts.true_positives.tolist()
    assert again.false_positives.tolist() == counts.false_positives.tolist()


@given(scored)
def test_a_curve_counts_the_rows_at_or_above_each_distinct_score(rows):
    scores, is_ood = split(rows)
    counts, thresholds = curve(scores, is_ood), sorted(set(scores), reverse=True)
    assert counts.true_positives.tolist() == [int((scores[is_ood] >= t).sum()) for t in thresholds]
    assert counts.false_positives.tolist() == [int((scores[~is_ood] >= t).sum()) for t in thresholds]


@pytest.mark.parametrize("metric", METRICS)
def test_an_unknown_polarity_is_refused(metric):
    with pytest.raises(ValueError, match="positive 'ood' or 'id', got 'out'"):
        metric([1, 2], [0, 1], positive="out")


# trapezoid


def test_the_trapezoid_joins_the_points_from_recall_zero_precision_one():
    # points (0, 1), (1/2, 1), (1/2, 1/2), (1, 2/3)
    expected = 1 / 2 * (1 + 1) / 2 + 1 / 2 * (1 / 2 + 2 / 3) / 2
    assert aupr([4, 3, 2], [1, 0, 1], estimator="trapezoid") == pytest.approx(expected)


@given(scored)
def test_the_trapezoid_agrees_with_scikit_learn(rows):
    scores, is_ood = split(rows)
    precision, recall, _ = precision_recall_curve(is_ood, scores)
    assert aupr(scores, is_ood, estimator="trapezoid") == pytest.approx(auc(recall, precision), abs=1e-12)


def test_the_trapezoid_is_above_average_precision_where_all_scores_tie():
    # one threshold: precision 1/4 at full recall; the trapezoid draws a line from 1 down to it
    scores, is_ood = np.zeros(8), np.arange(8) < 2
    assert aupr(scores, is_ood) == 2 / 8
    assert aupr(scores, is_ood, estimator="trapezoid") == (1 + 2 / 8) / 2


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="estimator 'average_precision' or 'trapezoid', got 'step'"):
        aupr([1, 2], [0, 1], estimator="step")


# DeLong


def naive_variance(scores, is_ood):
    """The definition, pair by pair."""
    pairs = np.array([[(a > b) + (a == b) / 2 for b in scores[~is_ood]] for a in scores[is_ood]])
    m, n = pairs.shape
    return pairs.mean(axis=1).var(ddof=1) / m + pairs.mean(axis=0).var(ddof=1) / n


def test_the_variance_of_two_by_two_rows_by_hand():
    # placements of the positives: 1, 1/2; of the negatives: 1/2, 1; each variance 1/8, over 2 rows
    assert auroc_variance([4, 3, 2, 1], [1, 0, 1, 0]) == pytest.approx((1 / 8) / 2 + (1 / 8) / 2)


@pytest.mark.parametrize("seed", range(5))
def test_the_variance_agrees_with_a_loop_over_pairs_ties_included(seed):
    scores, is_ood = random_scores(seed)
    assert auroc_variance(scores, is_ood) == pytest.approx(naive_variance(scores, is_ood), abs=1e-14)


def test_the_interval_is_centred_on_the_area_under_the_curve():
    scores, is_ood = random_scores()
    low, high = delong(scores, is_ood)
    assert (low + high) / 2 == pytest.approx(roc_auc_score(is_ood, scores))
    assert high - low == pytest.approx(2 * 1.959963984540054 * naive_variance(scores, is_ood) ** 0.5)


def test_the_interval_is_cut_at_one():
    assert delong([4, 3, 2, 1], [1, 0, 1, 0])[1] == 1.0


@pytest.mark.slow
def test_the_interval_covers_the_true_area_in_95_of_100_samples():
    # scores N(1, 1) against N(0, 1): the true area is the normal distribution function at 1 / sqrt(2)
    truth, covered = 0.7602499389065233, 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        scores = np.concatenate([rng.normal(1, 1, 80), rng.normal(0, 1, 120)])
        low, high = delong(scores, np.arange(200) < 80)
        covered += low <= truth <= high
    assert 0.93 < covered / 1000 < 0.97


def test_the_interval_does_not_depend_on_row_order_or_scale():
    scores, is_ood = random_scores()
    order = np.random.default_rng(1).permutation(scores.size)
    assert delong(scores, is_ood) == pytest.approx(delong(np.exp(scores[order]), is_ood[order]), abs=1e-12)


def test_one_row_in_a_group_has_no_variance():
    with pytest.raises(ValueError, match="at least two rows of each group, got 1 out-of-distribution and 2 in-dist"):
        delong([1, 2, 3], [1, 0, 0])
    with pytest.raises(ValueError, match=r"level in \(0, 1\), got 95"):
        delong([1, 2, 3, 4], [1, 0, 0, 1], level=95)
