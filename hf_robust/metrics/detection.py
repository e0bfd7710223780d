"""How well one score an image separates out-of-distribution from in-distribution rows, from a single sort.

In every function a higher score means more out-of-distribution, and out-of-distribution is the positive class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks


@dataclass(frozen=True)
class Curve:
    """Rows at or above each distinct threshold, highest threshold first.

    true_positives   int64 (T,): positive rows with a score >= the threshold; the last entry is their total.
    false_positives  int64 (T,): the same for negative rows.
    """

    true_positives: NDArray[np.int64]
    false_positives: NDArray[np.int64]

    def average_precision(self) -> float:
        """Sum over thresholds of (gain in recall) x precision: step-wise, not the trapezoid."""
        tp, fp = self.true_positives, self.false_positives
        gain = np.diff(tp, prepend=0)
        return float(np.sum(gain * (tp / (tp + fp))) / tp[-1])

    def area(self) -> float:
        """Fraction of (positive, negative) pairs in the right order, a tied pair counts one half; exact in integers."""
        tp, fp = self.true_positives, self.false_positives
        gain_tp, gain_fp = np.diff(tp, prepend=0), np.diff(fp, prepend=0)
        return float(np.sum(gain_fp * (2 * tp - gain_tp)) / (2 * int(tp[-1]) * int(fp[-1])))

    def false_positive_rate(self, tpr: float) -> float:
        """Smallest false positive rate among the thresholds whose true positive rate is at least `tpr`."""
        recall = self.true_positives / self.true_positives[-1]
        return float(self.false_positives[np.argmax(recall >= tpr)] / self.false_positives[-1])

    def false_positive_rate_nearest(self, tpr: float) -> float:
        """False positive rate of the threshold whose true positive rate is nearest to `tpr`, the larger one on ties.

        Thresholds below the first that reaches full recall do not take part, as in the released code.
        """
        stop = int(np.argmax(self.true_positives == self.true_positives[-1])) + 1
        recall = self.true_positives[:stop] / self.true_positives[-1]
        nearest = stop - 1 - int(np.argmin(np.abs(recall - tpr)[::-1]))
        return float(self.false_positives[nearest] / self.false_positives[-1])


def curve(scores: ArrayLike, is_ood: ArrayLike) -> Curve:
    """The counts that all detection measures are made of; sort once, ask for as many measures as you like.

    scores  (N,) finite, higher = more out-of-distribution.   is_ood  (N,) bool or 0/1.
    Raises ValueError for empty, non-finite or unequal input and when one of the two groups is empty.
    """
    values = checks.vector(scores, "scores")
    positive = checks.flags(is_ood, "is_ood", like=values)
    checks.both_groups(positive, "is_ood", yes="out-of-distribution", no="in-distribution")
    order = np.argsort(-values)
    values, positive = values[order], positive[order]
    last_of_tie = np.append(np.flatnonzero(values[1:] != values[:-1]), values.size - 1)
    tp = np.cumsum(positive, dtype=np.int64)[last_of_tie]
    return Curve(tp, last_of_tie + 1 - tp)


def aupr(scores: ArrayLike, is_ood: ArrayLike) -> float:
    """Average precision in (0, 1], ties grouped; chance is the fraction of out-of-distribution rows.

    The AUPR of ImageNet-O (arXiv 1907.07174, section 3). Input and errors as in `curve`.

    >>> aupr([3.0, 2.0, 1.0], [True, False, True])  # (1/1 + 2/3) / 2
    0.8333333333333333
    """
    return curve(scores, is_ood).average_precision()


def auroc(scores: ArrayLike, is_ood: ArrayLike) -> float:
    """Area under the ROC curve in [0, 1]; ties count one half, chance is 0.5. Input and errors as in `curve`.

    >>> auroc([3.0, 2.0, 1.0], [True, False, True])  # one of two pairs is in order
    0.5
    """
    return curve(scores, is_ood).area()


def fpr_at_tpr(scores: ArrayLike, is_ood: ArrayLike, *, tpr: float = 0.95, released_code: bool = False) -> float:
    """False positive rate in [0, 1] once a fraction `tpr` of the out-of-distribution rows is found; lower is better.

    The smallest rate among the thresholds with a true positive rate >= tpr. `released_code=True` takes the threshold
    whose true positive rate is nearest to tpr instead (the larger false positive rate on ties), as in the repository
    natural-adv-examples. ValueError unless 0 < tpr <= 1; otherwise input and errors as in `curve`.

    >>> fpr_at_tpr([4.0, 3.0, 2.0, 1.0], [True, False, True, False])  # both found at threshold 2: one of two negatives
    0.5
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"expected tpr in (0, 1], got {tpr}: pass a fraction such as 0.95")
    counts = curve(scores, is_ood)
    return counts.false_positive_rate_nearest(tpr) if released_code else counts.false_positive_rate(tpr)
