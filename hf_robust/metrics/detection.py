"""How well one score an image separates out-of-distribution from in-distribution rows, from a single sort.

In every function a higher score means more out-of-distribution. Out-of-distribution is the positive class unless
`positive="id"` asks for the in-distribution rows, found by a low score, instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks

Positive = Literal["ood", "id"]
AreaEstimator = Literal["average_precision", "trapezoid"]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """Rows at or above each distinct threshold, highest threshold first.

    true_positives   int64 (T,): positive rows with a score >= the threshold; the last entry is their total.
    false_positives  int64 (T,): the same for negative rows.
    """

    true_positives: Counts
    false_positives: Counts

    def average_precision(self) -> float:
        """Sum over thresholds of (gain in recall) x precision: step-wise, not the trapezoid."""
        return float(average_precision(self.true_positives, self.false_positives))

    def trapezoid(self) -> float:
        """Area under straight lines between the (recall, precision) points, from (0, 1): too high once scores tie."""
        return float(trapezoid(self.true_positives, self.false_positives))

    def area(self) -> float:
        """Fraction of (positive, negative) pairs in the right order, a tied pair counts one half; exact in integers."""
        return float(area(self.true_positives, self.false_positives))

    def false_positive_rate(self, tpr: float) -> float:
        """Smallest false positive rate among the thresholds whose true positive rate is at least `tpr`."""
        return float(false_positive_rate(self.true_positives, self.false_positives, tpr))

    def false_positive_rate_nearest(self, tpr: float) -> float:
        """False positive rate of the threshold whose true positive rate is nearest to `tpr`, the larger one on ties.

        Thresholds below the first that reaches full recall do not take part, as in the released code.
        """
        stop = int(np.argmax(self.true_positives == self.true_positives[-1])) + 1
        recall = self.true_positives[:stop] / self.true_positives[-1]
        nearest = stop - 1 - int(np.argmin(np.abs(recall - tpr)[::-1]))
        return float(self.false_positives[nearest] / self.false_positives[-1])

    def flipped(self) -> Curve:
        """The curve of the negated scores with the two groups exchanged, without sorting again."""
        tp, fp = self.true_positives, self.false_positives
        return Curve((fp[-1] - fp + np.diff(fp, prepend=0))[::-1], (tp[-1] - tp + np.diff(tp, prepend=0))[::-1])


# The formulas, over the last axis, so that a curve and a thousand resampled curves (weighted.py) share them.
# A threshold that holds no row changes nothing. Undefined, and not to be called, where one of the groups is empty.


def average_precision(tp: Counts, fp: Counts) -> NDArray[np.float64]:
    """Sum of (gain in recall) x precision over the thresholds on the last axis."""
    steps = tp / np.maximum(tp + fp, 1)
    steps *= _gain(tp)
    return np.asarray(steps.sum(axis=-1) / tp[..., -1])


def trapezoid(tp: Counts, fp: Counts) -> NDArray[np.float64]:
    """Sum of (gain in recall) x mean precision of both ends over the thresholds on the last axis."""
    found = tp + fp
    precision = tp / np.maximum(found, 1)
    precision[found == 0] = 1.0  # still at the point (0, 1)
    both_ends = precision.copy()
    both_ends[..., 1:] += precision[..., :-1]
    both_ends[..., 0] += 1.0
    both_ends *= _gain(tp)
    return np.asarray(both_ends.sum(axis=-1) / (2 * tp[..., -1]))


def area(tp: Counts, fp: Counts) -> NDArray[np.float64]:
    """Area under the ROC curve over the thresholds on the last axis."""
    pairs = np.sum(_gain(fp) * (2 * tp - _gain(tp)), axis=-1)
    return np.asarray(pairs / (2 * tp[..., -1] * fp[..., -1]))


def false_positive_rate(tp: Counts, fp: Counts, tpr: float) -> NDArray[np.float64]:
    """False positive rate of the first threshold on the last axis whose true positive rate is at least `tpr`."""
    first = np.argmax(tp / tp[..., -1:] >= tpr, axis=-1)[..., None]
    return np.asarray(np.take_along_axis(fp, first, axis=-1)[..., 0] / fp[..., -1])


def _gain(cumulative: NDArray[Any]) -> NDArray[Any]:
    return np.diff(cumulative, prepend=0, axis=-1)


def curve(scores: ArrayLike, is_ood: ArrayLike, *, positive: Positive = "ood") -> Curve:
    """The counts that all detection measures are made of; sort once, ask for as many measures as you like.

    scores    (N,) finite, higher = more out-of-distribution.   is_ood  (N,) bool or 0/1.
    positive  "ood", or "id" for in-distribution rows as the positive class, found by a low score.
    Raises ValueError for empty, non-finite or unequal input and when one of the two groups is empty.
    """
    if positive not in ("ood", "id"):
        raise ValueError(f"expected positive 'ood' or 'id', got {positive!r}: the benchmarks use 'ood'")
    values = checks.vector(scores, "scores")
    outside = checks.flags(is_ood, "is_ood", like=values)
    checks.both_groups(outside, "is_ood", yes="out-of-distribution", no="in-distribution")
    result = _counts(values, outside)
    return result if positive == "ood" else result.flipped()


def _counts(values: NDArray[np.float64], outside: NDArray[np.bool_]) -> Curve:
    # two plain sorts and a merge: numpy's sort is several times faster than its argsort
    n, ordered = values.size, np.sort(values)
    rare = outside if 2 * int(outside.sum()) <= n else ~outside
    own = values[np.flatnonzero(rare)]  # by index: twice as fast as by a random mask
    own.sort()
    at_first_of_tie = np.bincount(np.searchsorted(ordered, own), minlength=n)
    start = np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)
    below = (np.cumsum(at_first_of_tie) - at_first_of_tie)[start]
    rare_above = (own.size - below)[::-1]
    others_above = (n - start)[::-1] - rare_above
    return Curve(rare_above, others_above) if rare is outside else Curve(others_above, rare_above)


def aupr(
    scores: ArrayLike,
    is_ood: ArrayLike,
    *,
    positive: Positive = "ood",
    estimator: AreaEstimator = "average_precision",
) -> float:
    """Area under the precision-recall curve in (0, 1]; chance is the fraction of positive rows.

    The AUPR of ImageNet-O (arXiv 1907.07174, section 3) is the default: average precision, ties grouped, out-of-
    distribution positive. `estimator="trapezoid"` joins the points by straight lines (`auc` over
    `precision_recall_curve` in scikit-learn), which is not achievable between them. Input and errors as in `curve`.

    >>> aupr([3.0, 2.0, 1.0], [True, False, True])  # (1/1 + 2/3) / 2
    0.8333333333333333
    >>> aupr([3.0, 2.0, 1.0], [True, False, True], positive="id")  # the one in-distribution row is second from below
    0.5
    """
    if estimator not in ("average_precision", "trapezoid"):
        raise ValueError(
            f"expected estimator 'average_precision' or 'trapezoid', got {estimator!r}: the published one is "
            "'average_precision'"
        )
    counts = curve(scores, is_ood, positive=positive)
    return counts.average_precision() if estimator == "average_precision" else counts.trapezoid()


def auroc(scores: ArrayLike, is_ood: ArrayLike, *, positive: Positive = "ood") -> float:
    """Area under the ROC curve in [0, 1]; ties count one half, chance is 0.5. Input and errors as in `curve`.

    The same for both choices of `positive`, which is there so that all three measures are asked alike.

    >>> auroc([3.0, 2.0, 1.0], [True, False, True])  # one of two pairs is in order
    0.5
    """
    return curve(scores, is_ood, positive=positive).area()


def fpr_at_tpr(
    scores: ArrayLike,
    is_ood: ArrayLike,
    *,
    tpr: float = 0.95,
    positive: Positive = "ood",
    released_code: bool = False,
) -> float:
    """False positive rate in [0, 1] once a fraction `tpr` of the positive rows is found; lower is better.

    The smallest rate among the thresholds with a true positive rate >= tpr. `released_code=True` takes the threshold
    whose true positive rate is nearest to tpr instead (the larger false positive rate on ties), as in the repository
    natural-adv-examples. ValueError unless 0 < tpr <= 1; otherwise input and errors as in `curve`. `positive="id"` is
    the other common FPR95: out-of-distribution rows taken for known once 95 % of the known ones are accepted.

    >>> fpr_at_tpr([4.0, 3.0, 2.0, 1.0], [True, False, True, False])  # both found at threshold 2: one of two negatives
    0.5
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"expected tpr in (0, 1], got {tpr}: pass a fraction such as 0.95")
    counts = curve(scores, is_ood, positive=positive)
    return counts.false_positive_rate_nearest(tpr) if released_code else counts.false_positive_rate(tpr)
