"""Weighted metrics are the metrics of repeated rows; the bootstrap draws what it says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_robust.metrics import (
    augrc,
    aupr,
    aurc,
    auroc,
    auroc_variance,
    aurra,
    bootstrap,
    calibration_error,
    e_aurc,
    fpr_at_tpr,
    resample,
    spurious_score,
    weighted,
    wilson,
)
from hf_robust.metrics import resampling as resampling_module
from hf_robust.metrics.resampling import resampled_weights

CALIBRATIONS = [
    {"norm": norm, "bin_size": 7, "binning": binning, "bins": 4, "debiased": debiased}
    for norm, binning, debiased in product([1, 2, "max"], ["adaptive", "equal_width"], [False, True])
    if norm == 2 or not debiased
]
DETECTIONS = [
    (aupr, weighted.aupr, {}),
    (aupr, weighted.aupr, {"positive": "id"}),
    (aupr, weighted.aupr, {"estimator": "trapezoid"}),
    (auroc, weighted.auroc, {}),
    (auroc, weighted.auroc, {"positive": "id"}),
    (fpr_at_tpr, weighted.fpr_at_tpr, {}),
    (fpr_at_tpr, weighted.fpr_at_tpr, {"positive": "id", "tpr": 0.6}),
]
GRADES = [
    (aurra, weighted.aurra, {}),
    (aurc, weighted.aurc, {}),
    (e_aurc, weighted.e_aurc, {}),
    (augrc, weighted.augrc, {}),
    *((calibration_error, weighted.calibration_error, options) for options in CALIBRATIONS),
]

weights_of_rows = st.lists(
    st.tuples(st.integers(0, 10), st.booleans(), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30
)


def columns(rows):
    """Values in [0, 1] with ties, flags, and two weightings of the rows (the second never all zero)."""
    values, flags, first, second = (np.array(column) for column in zip(*rows, strict=True))
    return values / 10, flags.astype(bool), np.stack([np.maximum(first, 1), second])


def repeated(weights, *arrays):
    return [np.repeat(array, weights) for array in arrays]


# weights


@settings(max_examples=60)
@given(weights_of_rows)
@pytest.mark.parametrize(("metric", "statistic", "options"), DETECTIONS)
def test_a_weighted_detection_metric_is_that_of_repeated_rows(metric, statistic, options, rows):
    values, flags, weights = columns(rows)
    if flags.all() or not flags.any():
        return
    drawn = statistic(values, flags, **options)(weights)
    for weight, value in zip(weights, drawn, strict=True):
        again, again_flags = repeated(weight, values, flags)
        if again_flags.all() or not again_flags.any():
            assert np.isnan(value)
        else:
            assert value == pytest.approx(metric(again, again_flags, **options), abs=1e-12)


@settings(max_examples=60)
@given(weights_of_rows)
@pytest.mark.parametrize(("metric", "statistic", "options"), GRADES)
def test_a_weighted_grade_is_that_of_repeated_rows(metric, statistic, options, rows):
    values, flags, weights = columns(rows)
    drawn = statistic(values, flags, **options)(weights)
    for weight, value in zip(weights, drawn, strict=True):
        if not weight.any():
            assert np.isnan(value)
        else:
            # debiased errors are roots of differences: compare squares
            again = metric(*repeated(weight, values, flags), **options)
            assert value**2 == pytest.approx(again**2, abs=1e-12)


def spurious_rows(seed=0):
    rng = np.random.default_rng(seed)
    index, is_spurious = np.repeat([4, 900, 17], 12), np.tile(np.arange(12) >= 5, 3)
    return rng.random(36).round(1), index, is_spurious, rng.integers(1, 4, (5, 36))


def test_a_weighted_spurious_score_is_that_of_repeated_rows():
    *rows, weights = spurious_rows()
    precision, area = weighted.spurious_score(*rows)(weights), weighted.spurious_score(*rows, area="auroc")(weights)
    for weight, ap, roc in zip(weights, precision, area, strict=True):
        result = spurious_score(*repeated(weight, *rows))
        assert (ap, roc) == pytest.approx((result.spurious_score, result.spurious_auroc), abs=1e-12)


def test_a_class_without_one_half_has_no_weighted_score():
    probability, index, is_spurious, weights = spurious_rows()
    weights[0, (index == 17) & is_spurious] = 0
    values = weighted.spurious_score(probability, index, is_spurious)(weights)
    assert np.isnan(values).tolist() == [True, False, False, False, False]


def test_weights_of_one_give_the_metric_itself():
    rng = np.random.default_rng(1)
    values, flags, one = rng.random(200), rng.random(200) < 0.4, np.ones((1, 200), dtype=np.int64)
    for metric, statistic, options in DETECTIONS + GRADES:
        assert statistic(values, flags, **options)(one)[0] == pytest.approx(metric(values, flags, **options), abs=1e-12)


@pytest.mark.parametrize(("metric", "statistic", "options"), DETECTIONS + GRADES)
def test_a_weighted_metric_checks_its_input_as_the_metric_does(metric, statistic, options):
    for build in (metric, statistic):
        with pytest.raises(ValueError, match=r"the first at row 1 \(nan\)"):
            build([0.1, np.nan], [0, 1], **options)
    with pytest.raises(ValueError, match="only 0 and 1"):
        statistic([0.1, 0.2], [0, 5], **options)


def test_options_of_a_weighted_metric_are_checked():
    with pytest.raises(ValueError, match="area 'average_precision' or 'auroc', got 'both'"):
        weighted.spurious_score([0.1, 0.2], [1, 1], [0, 1], area="both")
    with pytest.raises(ValueError, match="estimator"):
        weighted.aupr([0.1, 0.2], [0, 1], estimator="both")
    with pytest.raises(ValueError, match="bin_size >= 1"):
        weighted.calibration_error([0.1, 0.2], [0, 1], bin_size=0)
    with pytest.raises(ValueError, match=r"tpr in \(0, 1\]"):
        weighted.fpr_at_tpr([0.1, 0.2], [0, 1], tpr=0)


# draws


def all_weights(n, **options):
    return np.concatenate(list(resampled_weights(n, replicates=500, seed=3, **options)))


def test_each_replicate_draws_as_many_rows_as_there_are():
    weights = all_weights(40)
    assert weights.shape == (500, 40)
    assert (weights.sum(axis=1) == 40).all()
    # one row's weight is binomial(40, 1/40): mean 1, variance 39/40
    assert weights.mean() == 1
    assert weights.var() == pytest.approx(39 / 40, abs=0.03)


def test_each_stratum_keeps_its_number_of_rows():
    strata = np.array(["out", "in", "in", "out", "in"])
    weights = all_weights(5, strata=strata)
    assert (weights[:, strata == "out"].sum(axis=1) == 2).all()
    assert (weights[:, strata == "in"].sum(axis=1) == 3).all()


def test_rows_of_a_cluster_are_drawn_together():
    clusters = np.array([7, 7, 3, 3, 3, 9])
    weights = all_weights(6, clusters=clusters)
    for cluster in (7, 3):
        own = weights[:, clusters == cluster]
        assert (own == own[:, :1]).all()
    assert (weights[:, [0, 2, 5]].sum(axis=1) == 3).all()
    assert set(weights.sum(axis=1)) > {6}


def test_clusters_are_drawn_within_their_stratum():
    strata, clusters = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 2, 2, 3])
    weights = all_weights(5, strata=strata, clusters=clusters)
    assert (weights[:, :2].sum(axis=1) == 2).all()
    assert (weights[:, [2, 4]].sum(axis=1) == 2).all()
    with pytest.raises(ValueError, match="inside one stratum, got one in two, at row 1"):
        all_weights(3, strata=[0, 1, 1], clusters=[5, 5, 6])


def test_the_draws_do_not_depend_on_the_size_of_a_chunk(monkeypatch):
    strata = np.arange(30) < 11
    whole = all_weights(30, strata=strata)
    monkeypatch.setattr(resampling_module, "CHUNK_BYTES", 8 * 30 * 7)
    assert np.array_equal(whole, all_weights(30, strata=strata))


# intervals


def test_the_interval_is_the_same_for_one_seed_and_another_for_another():
    values = np.random.default_rng(0).random(50)
    intervals = [bootstrap(weighted.mean(values), 50, seed=seed) for seed in (1, 1, 2)]
    assert intervals[0] == intervals[1] != intervals[2]


def test_the_interval_of_a_proportion_is_close_to_wilson():
    correct = np.arange(1000) < 700
    assert bootstrap(weighted.mean(correct), 1000, replicates=4000) == pytest.approx(wilson(700, 1000), abs=0.004)


def test_the_spread_of_resampled_areas_is_the_error_of_delong():
    rng = np.random.default_rng(5)
    scores, is_ood = np.concatenate([rng.normal(1, 1, 150), rng.normal(0, 1, 250)]), np.arange(400) < 150
    values = resample([weighted.auroc(scores, is_ood)], 400, replicates=2000, strata=is_ood)[0]
    assert values.std() == pytest.approx(auroc_variance(scores, is_ood) ** 0.5, rel=0.06)


def test_the_spread_agrees_with_a_loop_that_draws_rows():
    rng = np.random.default_rng(6)
    scores, is_ood = rng.normal(size=120).round(1), np.arange(120) < 40
    loop = []
    for _ in range(800):
        rows = np.concatenate([rng.integers(0, 40, 40), rng.integers(40, 120, 80)])
        loop.append(aupr(scores[rows], is_ood[rows]))
    ours = resample([weighted.aupr(scores, is_ood)], 120, replicates=800, strata=is_ood)[0]
    assert (ours.mean(), ours.std()) == pytest.approx((np.mean(loop), np.std(loop)), abs=0.008)


def test_clusters_of_equal_rows_widen_the_interval_by_the_root_of_their_size():
    correct, clusters = np.repeat(np.random.default_rng(0).random(100) < 0.5, 9), np.repeat(np.arange(100), 9)
    narrow = resample([weighted.mean(correct)], 900, replicates=3000)[0].std()
    wide = resample([weighted.mean(correct)], 900, replicates=3000, clusters=clusters)[0].std()
    assert wide / narrow == pytest.approx(3, rel=0.08)


def test_several_statistics_see_the_same_rows():
    values = np.random.default_rng(0).random(20)
    first, second = resample([weighted.mean(values), weighted.mean(1 - values)], 20)
    assert first + second == pytest.approx(np.ones(1000))


def test_one_row_has_an_interval_of_no_width():
    assert bootstrap(weighted.aurra([0.4], [True]), 1) == (1.0, 1.0)


def test_a_replicate_without_a_value_is_refused_with_the_way_out():
    statistic = weighted.aupr([0.1, 0.2, 0.3], [0, 0, 1])
    with pytest.raises(ValueError, match=r"got none for \d+: a group was not drawn; pass strata"):
        bootstrap(statistic, 3)
    low, high = bootstrap(statistic, 3, strata=[0, 0, 1])
    assert (low, high) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 0}, "replicates >= 1, got 2 and 0"),
        ({"level": 95}, r"level in \(0, 1\), got 95"),
        ({"strata": [1]}, r"strata of shape \(2,\), got \(1,\)"),
        ({"clusters": [[1, 2]]}, r"clusters of shape \(2,\), got \(1, 2\)"),
    ],
)
def test_what_cannot_be_resampled_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap(weighted.mean([0.0, 1.0]), 2, **options)
