"""How far confidence is from accuracy: binned calibration errors and soft F1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .selective import tie_starts

Norm = Literal[1, 2, "max"]
Binning = Literal["adaptive", "equal_width"]


@dataclass(frozen=True)
class Bins:
    """Bins in order of rising confidence.

    size  int64 (B,): examples, none empty;   confidence, accuracy  float64 (B,): their means.
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
    return _adaptive(confidence, correct, bin_size=bin_size, share_ties=True)


def _adaptive(confidence: ArrayLike, correct: ArrayLike, *, bin_size: int, share_ties: bool) -> Bins:
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


def equal_width_bins(confidence: ArrayLike, correct: ArrayLike, *, bins: int = 15) -> Bins:
    """The examples in the intervals ((i - 1) / bins, i / bins], 0 in the first; empty intervals are left out.

    Guo et al., arXiv 1706.04599 (15 bins). confidence (N,) in [0, 1], correct (N,) bool or 0/1; ValueError for bins < 1
    and as in `adaptive_bins`.

    >>> equal_width_bins([0.5, 0.6, 1.0], [True, False, True], bins=2).size.tolist()
    [1, 2]
    """
    values = checks.probabilities(confidence, "confidence")
    right = checks.flags(correct, "correct", like=values)
    place = equal_width_places(values, bins=bins)
    size = np.bincount(place, minlength=bins)
    filled = size > 0
    means = (np.bincount(place, weights=v, minlength=bins)[filled] / size[filled] for v in (values, right))
    return Bins(size[filled], *means)


def equal_width_places(confidence: NDArray[np.float64], *, bins: int) -> NDArray[np.int64]:
    """Index of the interval ((i - 1) / bins, i / bins] of each confidence: int64 (N,), 0 in the first."""
    if bins < 1:
        raise ValueError(f"expected bins >= 1, got {bins}: the usual number is 15")
    # against the edges, not by multiplication: 0.7 * 10 is 7.000000000000001 in floats
    place = np.searchsorted(np.arange(1, bins + 1) / bins, confidence, side="left")
    return np.minimum(place, bins - 1).astype(np.int64)


def calibration_error(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    norm: Norm = 2,
    bin_size: int = 100,
    released_code: bool = False,
    binning: Binning = "adaptive",
    bins: int = 15,
    debiased: bool = False,
) -> float:
    """Calibration error in [0, 1]: norm 2 root mean square over bins, norm 1 mean absolute, "max" the largest.

    confidence  (N,) in [0, 1].   correct  (N,) bool or 0/1.
    binning     "adaptive", the paper's: bins of `bin_size`, see `adaptive_bins`; fewer examples than a bin make one bin
                of all (see `n_bins`). "equal_width": `bins` intervals, see `equal_width_bins`; norm 1 is the usual ECE.
    debiased    norm 2 only: takes the sampling error of each bin's accuracy off (Kumar, Liang and Ma, arXiv
                1909.10155); bins of one example count 0 as in their code, and a negative sum gives 0.
    `released_code=True` (adaptive, not debiased) is the function of the repository natural-adv-examples: its last, most
    confident bin is never counted (so 100 to 199 examples give 0.0) though its examples stay in the denominator, tied
    rows lie as an unstable sort leaves them, and fewer than `bin_size` examples are a ValueError, for that code stops
    with an IndexError there. ValueError for options that do not go together and for input as in `adaptive_bins`.

    >>> calibration_error([0.75, 0.75], [True, True])  # one bin: |0.75 - 1|
    0.25
    """
    check_options(norm=norm, binning=binning, debiased=debiased, released_code=released_code)
    if released_code:
        return _released(confidence, correct, norm=norm, bin_size=bin_size)
    if binning == "adaptive":
        cut = adaptive_bins(confidence, correct, bin_size=bin_size)
    else:
        cut = equal_width_bins(confidence, correct, bins=bins)
    if debiased:
        return float(debiased_norm(cut.size, cut.confidence, cut.accuracy))
    return float(bin_norm(cut.size, cut.confidence - cut.accuracy, norm=norm))


def _released(confidence: ArrayLike, correct: ArrayLike, *, norm: Norm, bin_size: int) -> float:
    cut = _adaptive(confidence, correct, bin_size=bin_size, share_ties=False)
    n = int(cut.size.sum())
    if n < bin_size:
        raise ValueError(
            f"expected at least {bin_size} examples for the released code, got {n}: it makes no bin there and stops "
            "with an IndexError; use released_code=False"
        )
    gap = cut.confidence - cut.accuracy
    gap[-1] = 0.0  # its loop stops one bin early
    return float(bin_norm(cut.size, gap, norm=norm))


def bin_norm(size: NDArray[Any], gap: NDArray[np.float64], *, norm: Norm) -> NDArray[np.float64]:
    """Norm of the gaps over the bins on the last axis, weighted by size; a bin of size 0 must have gap 0."""
    if norm == "max":
        return np.asarray(np.abs(gap).max(axis=-1))
    weight = size / size.sum(axis=-1, keepdims=True)
    return np.asarray(np.sqrt((weight * gap**2).sum(axis=-1)) if norm == 2 else (weight * np.abs(gap)).sum(axis=-1))


def debiased_norm(
    size: NDArray[Any], confidence: NDArray[np.float64], accuracy: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Root of the sum over bins (last axis) of size / N (gap^2 - accuracy (1 - accuracy) / (size - 1)), at least 0."""
    noise = accuracy * (1 - accuracy) / np.maximum(size - 1, 1)
    square = np.where(size > 1, (confidence - accuracy) ** 2 - noise, 0.0)
    return np.asarray(np.sqrt(np.maximum((size * square).sum(axis=-1) / size.sum(axis=-1), 0.0)))


def check_options(*, norm: Norm, binning: Binning, debiased: bool, released_code: bool) -> None:
    """ValueError for options of `calibration_error` that are unknown or do not go together."""
    if norm not in (1, 2, "max"):
        raise ValueError(f"expected norm 1, 2 or 'max', got {norm!r}: the published one is 2")
    if binning not in ("adaptive", "equal_width"):
        raise ValueError(f"expected binning 'adaptive' or 'equal_width', got {binning!r}: the paper's is 'adaptive'")
    if debiased and norm != 2:
        raise ValueError(f"expected norm 2 with debiased=True, got {norm!r}: the correction exists for squares only")
    if released_code and (debiased or binning != "adaptive"):
        raise ValueError(
            f"expected adaptive bins without debiasing for the released code, got binning={binning!r}, "
            f"debiased={debiased}: leave released_code out"
        )


def l2_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, *, bin_size: int = 100, debiased: bool = False
) -> float:
    """The paper's name for `calibration_error` with norm 2: root mean square calibration error, every bin counted."""
    return calibration_error(confidence, correct, norm=2, bin_size=bin_size, debiased=debiased)


def soft_f1(confidence: ArrayLike, correct: ArrayLike) -> float:
    """F1 in [0, 1] of finding the wrong examples, each counted as found with weight 1 - confidence; higher is better.

    2 sum (1 - c) w / (sum (1 - c) + sum w), w = 1 for a wrong example (repository natural-adv-examples). Without any
    wrong example it is 0, and where all are right with confidence 1 it is undefined and a ValueError; input and other
    errors as in `adaptive_bins`.

    >>> soft_f1([0.5, 0.5], [True, False])  # 2 * 0.5 / (1 + 1)
    0.5
    """
    values = checks.probabilities(confidence, "confidence")
    doubt, wrong = 1 - values, ~checks.flags(correct, "correct", like=values)
    total = float(doubt.sum() + wrong.sum())
    if total <= 0:
        raise ValueError(
            f"expected some doubt or some wrong example, got {values.size} rows that are right with confidence 1: "
            "soft F1 is 0 / 0 there, report the accuracy"
        )
    return float(2 * doubt[wrong].sum() / total)
