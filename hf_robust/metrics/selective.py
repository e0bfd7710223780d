"""Accuracy on the most confident examples: the response rate accuracy curve and the area under it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks


def tie_starts(ordered: NDArray[np.float64]) -> NDArray[np.int64]:
    """First position of each run of equal values in a sorted, non-empty vector: int64 (groups,)."""
    return np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def response_rate_accuracy(confidence: ArrayLike, correct: ArrayLike) -> NDArray[np.float64]:
    """Accuracy on the i most confident examples for i = 1 .. N: float64 (N,), most confident first.

    confidence  (N,) finite; only its order matters.   correct  (N,) bool or 0/1.
    Where confidences tie, the expected value over all orderings of the tied examples, so that row order never matters;
    the published definition (arXiv 1907.07174) where nothing ties. ValueError for empty, non-finite or unequal input.

    >>> response_rate_accuracy([0.9, 0.8, 0.8], [True, True, False]).tolist()  # 1/1, 1.5/2, 2/3
    [1.0, 0.75, 0.6666666666666666]
    """
    values = checks.vector(confidence, "confidence")
    right = checks.flags(correct, "correct", like=values)
    order = np.argsort(-values)
    start = tie_starts(values[order])
    size = np.diff(start, append=values.size)
    hits = np.add.reduceat(right[order].astype(np.int64), start)
    before = np.repeat(np.cumsum(hits) - hits, size)
    place = np.arange(values.size) - np.repeat(start, size) + 1
    expected = before + np.repeat(hits, size) * place / np.repeat(size, size)
    return np.asarray(expected / np.arange(1, values.size + 1), dtype=np.float64)


def aurra(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the response rate accuracy curve in [0, 1]: mean over i of the accuracy of the i most confident.

    Input, ties and errors as in `response_rate_accuracy`.

    >>> aurra([0.9, 0.8], [True, False])  # (1 + 1/2) / 2
    0.75
    """
    return float(response_rate_accuracy(confidence, correct).mean())
