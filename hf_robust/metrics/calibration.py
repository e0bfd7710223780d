"""How far confidence is from accuracy, over bins that hold equally many examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .selective import tie_starts

Norm = Literal[1, 2, "max"]


@dataclass(frozen=True)
class Bins:
    """Adaptive bins in order of rising confidence.

    size  int64 (B,): examples;   confidence, accuracy  float64 (B,): their means.
    """

    size: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def n_bins(n: int, *, bin_size: int = 100) -> int:
    """Number of adaptive bins for n examples: n // bin_size, the last taking the remainder, and never fewer than one.

    Results over fewer than `bin_size` examples stand on one bin that is not full: flag them.

    >>> n_bins(7500), n_bins(150), n_bins(99)
    (75, 1, 1)
    """
    if bin_size < 1:
        raise ValueError(f"expected bin_size >= 1, got {bin_size}: the published value is 100")
    return max(1, n // bin_size)


def adaptive_bins(confidence: ArrayLike, correct: ArrayLike, *, bin_size: int = 100) -> Bins:
    """The examples sorted by confidence and cut every `bin_size`, the last bin with the remainder (arXiv 1907.07174).

    confidence  (N,) in [0, 1].   correct  (N,) bool or 0/1.
    Where a border falls inside a run of equal confidences, each side gets its share of the run's accuracy (the expected
    value over orderings), so that row order never matters. ValueError for empty, unequal, NaN or out-of-range input.
    """
    return _bins(confidence, correct, bin_size=bin_size, share_ties=True)


def _bins(confidence: ArrayLike, correct: ArrayLike, *, bin_size: int, share_ties: bool) -> Bins:
    values = checks.probabilities(confidence, "confidence")
    right = checks.flags(correct, "correct", like=values).astype(np.float64)
    order = np.argsort(values)
    values, right = values[order], right[order]
    if share_ties:
        start = tie_starts(values)
        run = np.diff(start, append=values.size)
        right = np.repeat(np.add.reduceat(right, start) / run, run)
    border = np.arange(n_bins(values.size, bin_size=bin_size)) * bin_size
    size = np.diff(border, append=values.size)
    return Bins(size, np.add.reduceat(values, border) / size, np.add.reduceat(right, border) / size)


def calibration_error(
    confidence: ArrayLike, correct: ArrayLike, *, norm: Norm = 2, bin_size: int = 100, released_code: bool = False
) -> float:
    """Calibration error in [0, 1] over adaptive bins: norm 2 root mean square, norm 1 mean absolute, "max" the largest.

    confidence  (N,) in [0, 1].   correct  (N,) bool or 0/1.   Bins, ties and errors as in `adaptive_bins`; fewer
    examples than a bin make one bin of all (see `n_bins`).
    `released_code=True` is the function of the repository natural-adv-examples: its last, most confident bin is never
    counted (so 100 to 199 examples give 0.0) though its examples stay in the denominator, tied rows lie as an unstable
    sort leaves them, and fewer than `bin_size` examples are a ValueError, for that code stops with an IndexError there.

    >>> calibration_error([0.75, 0.75], [True, True])  # one bin: |0.75 - 1|
    0.25
    """
    if norm not in (1, 2, "max"):
        raise ValueError(f"expected norm 1, 2 or 'max', got {norm!r}: the published one is 2")
    bins = _bins(confidence, correct, bin_size=bin_size, share_ties=not released_code)
    n = int(bins.size.sum())
    if released_code and n < bin_size:
        raise ValueError(
            f"expected at least {bin_size} examples for the released code, got {n}: it makes no bin there and stops "
            "with an IndexError; use released_code=False"
        )
    counted = bins.size.size - 1 if released_code else bins.size.size
    weight, gap = bins.size[:counted] / n, np.abs(bins.confidence - bins.accuracy)[:counted]
    if norm == "max":
        return float(gap.max(initial=0.0))
    return float(np.sqrt(np.sum(weight * gap**2)) if norm == 2 else np.sum(weight * gap))


def l2_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, bin_size: int = 100) -> float:
    """The paper's name for `calibration_error` with norm 2: root mean square calibration error, every bin counted."""
    return calibration_error(confidence, correct, norm=2, bin_size=bin_size)
