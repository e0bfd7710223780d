"""Metrics as functions of row weights, for resampling: sorted once, then evaluated for many weightings at a time.

Each function takes the input of the metric of the same name, with the same checks, and gives a `Statistic`. Weight w
counts a row w times, so that weights of one give the metric itself. Where a weighting empties a group that the metric
needs, its value is NaN; `bootstrap` refuses those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import calibration, checks, detection, selective
from .detection import AreaEstimator, Counts, Positive
from .spurious import pairs

Weights = NDArray[np.int64]
Statistic = Callable[[Weights], NDArray[np.float64]]  # weights (R, N), not negative -> values (R,)


def mean(values: ArrayLike) -> Statistic:
    """Mean of one finite value a row (N,): accuracy from flags, Brier score or likelihood from per-row scores.

    >>> mean([1.0, 4.0])(np.array([[1, 1], [2, 1]])).tolist()  # (1 + 4) / 2 and (1 + 1 + 4) / 3
    [2.5, 2.0]
    """
    each = checks.vector(values, "values")
    return lambda weights: _ratio(weights @ each, weights.sum(axis=1))


def aupr(
    scores: ArrayLike,
    is_ood: ArrayLike,
    *,
    positive: Positive = "ood",
    estimator: AreaEstimator = "average_precision",
) -> Statistic:
    """`detection.aupr` of weighted rows."""
    detection.aupr(scores, is_ood, positive=positive, estimator=estimator)  # all checks
    formula = detection.average_precision if estimator == "average_precision" else detection.trapezoid
    return _detected(scores, is_ood, positive, formula)


def auroc(scores: ArrayLike, is_ood: ArrayLike, *, positive: Positive = "ood") -> Statistic:
    """`detection.auroc` of weighted rows."""
    detection.auroc(scores, is_ood, positive=positive)  # all checks
    return _detected(scores, is_ood, positive, detection.area)


def fpr_at_tpr(scores: ArrayLike, is_ood: ArrayLike, *, tpr: float = 0.95, positive: Positive = "ood") -> Statistic:
    """`detection.fpr_at_tpr` of weighted rows."""
    detection.fpr_at_tpr(scores, is_ood, tpr=tpr, positive=positive)  # all checks
    return _detected(scores, is_ood, positive, lambda tp, fp: detection.false_positive_rate(tp, fp, tpr))


def _detected(
    scores: ArrayLike, is_ood: ArrayLike, positive: Positive, formula: Callable[[Counts, Counts], NDArray[np.float64]]
) -> Statistic:
    outside = np.asarray(is_ood, dtype=np.bool_)
    wanted, sign = (outside, -1.0) if positive == "ood" else (~outside, 1.0)
    ascending = sign * np.asarray(scores, dtype=np.float64)
    order = np.argsort(ascending)
    ends = _ends(ascending[order])
    kept = np.flatnonzero(wanted[order])

    def statistic(weights: Weights) -> NDArray[np.float64]:
        ranked = np.take(weights, order, axis=1)
        found = np.zeros_like(ranked)
        found[:, kept] = ranked[:, kept]
        tp, both = _until(found, ends), _until(ranked, ends)
        fp = both - tp
        return _where_defined(formula, tp, fp)

    return statistic


def _ends(ordered: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Last position of each run of equal values; None where nothing ties."""
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), ordered.size - 1)
    return None if last.size == ordered.size else last


def _until(weights: Weights, ends: NDArray[np.int64] | None) -> Counts:
    cumulative = np.cumsum(weights, axis=1, dtype=np.int64)
    return cumulative if ends is None else np.take(cumulative, ends, axis=1)


def _where_defined(
    formula: Callable[[Counts, Counts], NDArray[np.float64]], tp: Counts, fp: Counts
) -> NDArray[np.float64]:
    defined = (tp[:, -1] > 0) & (fp[:, -1] > 0)
    if defined.all():
        return formula(tp, fp)
    result = np.full(len(tp), np.nan)
    if defined.any():
        result[defined] = formula(tp[defined], fp[defined])
    return result


def _where_any_row(statistic: Statistic) -> Statistic:
    """The statistic with NaN for weightings that are 0 throughout."""

    def guarded(weights: Weights) -> NDArray[np.float64]:
        filled = weights.any(axis=1)
        if filled.all():
            return statistic(weights)
        result = np.full(len(weights), np.nan)
        if filled.any():
            result[filled] = statistic(weights[filled])
        return result

    return guarded


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> NDArray[np.float64]:
    result = np.full(np.shape(above), np.nan)
    np.divide(above, below, out=result, where=below > 0)
    return result


def aurra(confidence: ArrayLike, correct: ArrayLike) -> Statistic:
    """`selective.aurra` of weighted rows."""
    groups = _groups(confidence, correct)

    def statistic(weights: Weights) -> NDArray[np.float64]:
        size, hits = groups(weights)
        end, total = np.cumsum(size, axis=1), size.sum(axis=1)
        start, before = end - size, np.cumsum(hits, axis=1) - hits
        table = selective.harmonic(int(total.max(initial=0)))
        # over a run of m ties with k hits: sum over j of (before + k j / m) / (start + j)
        lead = before - hits * start / np.maximum(size, 1)
        return _ratio((hits + lead * (table[end] - table[start])).sum(axis=1), total)

    return statistic


def aurc(confidence: ArrayLike, correct: ArrayLike) -> Statistic:
    """`selective.aurc` of weighted rows."""
    answered = aurra(confidence, correct)
    return lambda weights: np.asarray(1 - answered(weights))


def e_aurc(confidence: ArrayLike, correct: ArrayLike) -> Statistic:
    """`selective.e_aurc` of weighted rows."""
    risk = aurc(confidence, correct)
    right = np.asarray(correct, dtype=np.int64)

    def statistic(weights: Weights) -> NDArray[np.float64]:
        total = weights.sum(axis=1)
        return risk(weights) - selective.best_aurc(weights @ right, np.maximum(total, 1))

    return statistic


def augrc(confidence: ArrayLike, correct: ArrayLike) -> Statistic:
    """`selective.augrc` of weighted rows."""
    groups = _groups(confidence, correct)

    def statistic(weights: Weights) -> NDArray[np.float64]:
        size, hits = groups(weights)
        errors = size - hits
        until = np.cumsum(errors, axis=1)
        return _ratio((size * (2 * until - errors)).sum(axis=1), 2 * size.sum(axis=1) ** 2)

    return statistic


def _groups(confidence: ArrayLike, correct: ArrayLike) -> Callable[[Weights], tuple[Counts, Counts]]:
    """Weights -> rows and correct rows of each distinct confidence, highest first: two (R, groups)."""
    values = checks.vector(confidence, "confidence")
    right = checks.flags(correct, "correct", like=values)
    order = np.argsort(-values)
    starts, ranked_right = selective.tie_starts(values[order]), right[order]

    def groups(weights: Weights) -> tuple[Counts, Counts]:
        ranked = np.take(weights, order, axis=1)
        hits = ranked * ranked_right
        if starts.size == order.size:
            return ranked, hits
        return np.add.reduceat(ranked, starts, axis=1), np.add.reduceat(hits, starts, axis=1)

    return groups


def calibration_error(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    norm: calibration.Norm = 2,
    bin_size: int = 100,
    binning: calibration.Binning = "adaptive",
    bins: int = 15,
    debiased: bool = False,
) -> Statistic:
    """`calibration.calibration_error` of weighted rows; adaptive bins hold `bin_size` rows, repeats counted."""
    calibration.check_options(norm=norm, binning=binning, debiased=debiased, released_code=False)
    calibration.n_bins(1, bin_size=bin_size)
    values = checks.probabilities(confidence, "confidence")
    right = checks.flags(correct, "correct", like=values)
    if binning == "adaptive":
        cut = _adaptive_cut(values, right, bin_size=bin_size)
    else:
        cut = _equal_width_cut(values, right, bins=bins)

    @_where_any_row
    def statistic(weights: Weights) -> NDArray[np.float64]:
        size, mass, hits = cut(weights)
        filled = np.maximum(size, 1)
        mean_confidence, accuracy = mass / filled, hits / filled
        if debiased:
            return calibration.debiased_norm(size, mean_confidence, accuracy)
        return calibration.bin_norm(size, mean_confidence - accuracy, norm=norm)

    return statistic


Cut = Callable[[Weights], tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]]


def _equal_width_cut(values: NDArray[np.float64], right: NDArray[np.bool_], *, bins: int) -> Cut:
    order = np.argsort(calibration.equal_width_places(values, bins=bins), kind="stable")
    places = calibration.equal_width_places(values[order], bins=bins)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    confidence, correct = values[order], right[order]

    def cut(weights: Weights) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
        ranked = np.take(weights, order, axis=1)
        size, mass, hits = (np.add.reduceat(ranked * v, starts, axis=1) for v in (1, confidence, correct))
        return size, mass, hits

    return cut


def _adaptive_cut(values: NDArray[np.float64], right: NDArray[np.bool_], *, bin_size: int) -> Cut:
    groups = _groups(-values, right)
    distinct = np.unique(values)

    def cut(weights: Weights) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
        size, hits = groups(weights)
        until = _from_zero(size)
        total = until[:, -1:]
        number = np.maximum(1, total // bin_size)
        step = np.arange(int(number.max()) + 1)
        border = np.where(step < number, step * bin_size, total)
        # one search for all rows: each row's running count moved beyond the one before it
        shift = (np.arange(len(until)) * (int(total.max()) + 1))[:, None]
        place = np.searchsorted((until + shift).ravel(), border + shift)
        inside = np.maximum(place % until.shape[1] - 1, 0)  # the run of ties that ends at or holds the border
        over = until.ravel()[place] - border
        accuracy = np.take_along_axis(hits, inside, axis=1) / np.maximum(np.take_along_axis(size, inside, axis=1), 1)
        mass_until = _from_zero(size * distinct).ravel()[place] - over * distinct[inside]
        hits_until = _from_zero(hits).ravel()[place] - over * accuracy
        return np.diff(border, axis=1), np.diff(mass_until, axis=1), np.diff(hits_until, axis=1)

    return cut


def _from_zero(values: NDArray[Any]) -> NDArray[Any]:
    """Running sums of each row with a leading 0: (R, G + 1)."""
    result = np.zeros((len(values), values.shape[1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=1, out=result[:, 1:])
    return result


def spurious_score(
    probability: ArrayLike,
    class_index: ArrayLike,
    is_spurious: ArrayLike,
    *,
    area: Literal["average_precision", "auroc"] = "average_precision",
) -> Statistic:
    """`spurious_score` (mean average precision over the classes), or with "auroc" the mean AUROC, of weighted rows.

    For the pooled pairs use `aupr` and `auroc` with ~is_spurious. A weighting without one half of a class gives NaN.
    """
    if area not in ("average_precision", "auroc"):
        raise ValueError(f"expected area 'average_precision' or 'auroc', got {area!r}: the published one is the first")
    values, classes, genuine = pairs(probability, class_index, is_spurious)
    order = np.lexsort((-values, classes))
    values, classes, genuine = values[order], classes[order], genuine[order]
    changed = classes[1:] != classes[:-1]
    ends = np.append(np.flatnonzero(changed | (values[1:] != values[:-1])), values.size - 1)
    start = np.append(0, np.flatnonzero(np.diff(classes[ends])) + 1)  # first threshold of each class
    length = np.diff(start, append=ends.size)

    def statistic(weights: Weights) -> NDArray[np.float64]:
        ranked = np.take(weights, order, axis=1)
        tp, tp_total = _restarted(_until(ranked * genuine, ends), start, length)
        fp, fp_total = _restarted(_until(ranked * ~genuine, ends), start, length)
        gain_tp, gain_fp = (_gain_within(count, start) for count in (tp, fp))
        if area == "average_precision":
            each = np.add.reduceat(gain_tp * (tp / np.maximum(tp + fp, 1)), start, axis=1)
            below = tp_total * (fp_total > 0)
        else:
            each = np.add.reduceat(gain_fp * (2 * tp - gain_tp), start, axis=1)
            below = 2 * tp_total * fp_total
        return np.asarray(_ratio(each, below).mean(axis=1))

    return statistic


def _restarted(cumulative: Counts, start: NDArray[np.int64], length: NDArray[np.int64]) -> tuple[Counts, Counts]:
    """Running counts that begin anew with each class, and the count of each class."""
    last = np.take(cumulative, start + length - 1, axis=1)
    before = np.concatenate([np.zeros_like(last[:, :1]), last[:, :-1]], axis=1)
    return cumulative - np.repeat(before, length, axis=1), last - before


def _gain_within(count: Counts, start: NDArray[np.int64]) -> Counts:
    gain = np.diff(count, prepend=0, axis=1)
    gain[:, start] = count[:, start]
    return gain
