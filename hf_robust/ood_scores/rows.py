"""Checked rows in float64 chunks: a whole matrix is never cast, so memory does not grow with the number of rows.

Beside its inputs and its result each score and fit needs at most about six times CHUNK_BYTES (192 MiB), or a few rows
where rows are larger than a chunk, plus what its own docstring names (a head in float64, a covariance, a bank).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import Rows, StoredRows

Float = NDArray[np.float64]

CHUNK_BYTES = 32 * 2**20
SCORE_BYTES = 2 * 2**20  # the same where a row's score is all that is kept: nothing is added up over a chunk


def matrix(values: ArrayLike, name: str) -> Rows:
    """`values` as float rows (N, width), N and width >= 1, in their own precision; rows on disk stay there."""
    array = values if isinstance(values, StoredRows) else np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected numbers in {name}, got {array.dtype}: pass a float array with one row an image")
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"expected {name} of shape (N, width), got {array.shape}: pass one row for each image")
    if not len(array):
        raise ValueError(f"expected at least one row in {name}, got none: check that the run holds predictions")
    return array if array.dtype.kind == "f" else np.asarray(array, dtype=np.float64)


def chunks(n_rows: int, width: int, most: int | None = None) -> Iterator[slice]:
    """Row ranges whose float64 copies take at most `most` bytes (CHUNK_BYTES) at `width` numbers, one row at least."""
    step = max(1, (CHUNK_BYTES if most is None else most) // (8 * width))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def logit_chunks(logits: Rows, *, width: int = 1, most: int | None = None) -> Iterator[tuple[slice, Float]]:
    """Row ranges of (N, K) logits and their float64 copies, for work that is `width` wide, or K where that is more.

    most  bytes of a copy, CHUNK_BYTES where it is None.
    -inf marks a column without an output. ValueError names the row for NaN, +inf, or nothing but -inf.
    """
    for where in chunks(len(logits), max(width, logits.shape[1]), most):
        part = np.asarray(logits[where]).astype(np.float64)
        highest = part.max(axis=1)  # NaN where a row holds one
        bad = np.flatnonzero(~np.isfinite(highest))
        if bad.size:
            raise ValueError(
                f"expected a finite highest logit in each row, got {highest[bad[0]]} at row {where.start + bad[0]}: "
                "check the class mask, and run that image again in float32 if half precision overflowed"
            )
        yield where, part


def feature_chunks(features: Rows, *, width: int = 1) -> Iterator[tuple[slice, Float]]:
    """Row ranges of (N, D) features and their float64 copies, for work that is `width` wide, or D where that is more.

    ValueError names the first row that is not finite.
    """
    for where in chunks(len(features), max(width, features.shape[1])):
        part = np.asarray(features[where]).astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(part).all(axis=1))
        if bad.size:
            raise ValueError(
                f"expected finite features, got a value that is not at row {where.start + bad[0]}: run that image "
                "again in float32, a half-precision overflow is the usual cause"
            )
        yield where, part


def each_logit_row(logits: ArrayLike, formula: Callable[[Float], Float], *, width: int = 1) -> Float:
    """`formula` of each row of (N, K) logits: float64 (N,); `formula` sees float64 chunks (n, K)."""
    array = matrix(logits, "logits")
    result = np.empty(len(array), dtype=np.float64)
    for where, part in logit_chunks(array, width=width, most=min(SCORE_BYTES, CHUNK_BYTES)):
        result[where] = formula(part)
    return result


def each_feature_row(features: ArrayLike, formula: Callable[[Float], Float], *, width: int = 1) -> Float:
    """`formula` of each row of (N, D) features: float64 (N,); `formula` sees float64 chunks (n, D)."""
    array = matrix(features, "features")
    result = np.empty(len(array), dtype=np.float64)
    for where, part in feature_chunks(array, width=width):
        result[where] = formula(part)
    return result


def same_width(features: Rows, expected: int, what: str) -> None:
    """ValueError unless the features have as many columns as `what` was made for."""
    if features.shape[1] != expected:
        raise ValueError(
            f"expected features of width {expected}, that of {what}, got {features.shape[1]}: take both from one model"
        )


def class_labels(labels: ArrayLike, n_rows: int, *, n_classes: int | None = None) -> NDArray[np.int64]:
    """`labels` as int64 (n_rows,), none negative and, where `n_classes` is given, each below it."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iu":
        raise TypeError(f"expected integers in labels, got {array.dtype}: pass one class index for each fit row")
    if array.shape != (n_rows,):
        raise ValueError(f"expected labels of shape ({n_rows},), got {array.shape}: pass one class for each fit row")
    bad = np.flatnonzero((array < 0) | (array >= (np.inf if n_classes is None else n_classes)))
    if bad.size:
        known = "0 or more" if n_classes is None else f"in 0 .. {n_classes - 1}"
        raise ValueError(
            f"expected labels {known}, got {array[bad[0]]} at row {bad[0]}: fit on rows of the classes that are scored"
        )
    return array.astype(np.int64)


def within(value: float, name: str, low: float, high: float) -> float:
    """`value`, which lies in [low, high), else a ValueError that names the option."""
    if not low <= value < high:
        raise ValueError(f"expected {name} in [{low:g}, {high:g}), got {value!r}: see the docstring of that score")
    return float(value)


def log_sum_exp(part: Float) -> Float:
    """log(sum(exp(row))) of checked rows: float64 (n,)."""
    highest = part.max(axis=1)
    return np.asarray(highest + np.log(np.exp(part - highest[:, None]).sum(axis=1)))


def log_probabilities(part: Float) -> Float:
    """Log-softmax of checked rows: float64 (n, K), -inf where the logit is."""
    return np.asarray(part - log_sum_exp(part)[:, None])
