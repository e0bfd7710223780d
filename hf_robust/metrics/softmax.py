"""Softmax quantities in float64 from logits of any width, in chunks: the full matrix of probabilities is never held.

Beside the result, each function needs at most about four times CHUNK_BYTES (128 MiB), or a few rows where rows are
larger than a chunk. -inf marks a column that the model has no output for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks

CHUNK_BYTES = 32 * 2**20


def matrix(logits: ArrayLike) -> NDArray[np.floating[Any]]:
    """`logits` as a float array of shape (N, K), K >= 1, in its own precision."""
    array = np.asarray(logits)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected numbers in logits, got {array.dtype}: pass a float array of shape (N, K)")
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"expected logits of shape (N, K) with K >= 1, got {array.shape}: pass one row for each image")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def chunks(logits: NDArray[Any]) -> Iterator[slice]:
    """Row ranges of (N, K) logits whose float64 copies take at most CHUNK_BYTES, one row at least."""
    rows = max(1, CHUNK_BYTES // (8 * logits.shape[1]))
    for start in range(0, len(logits), rows):
        yield slice(start, min(start + rows, len(logits)))


def log_sum_exp(logits: ArrayLike) -> NDArray[np.float64]:
    """log(sum(exp(row))) of each row: float64 (N,) from (N, K); half precision is cast up first.

    Raises ValueError naming the row for NaN, +inf, or a row that is -inf throughout.

    >>> log_sum_exp([[0.0, float("-inf")]]).tolist()
    [0.0]
    """
    array = matrix(logits)
    result = np.empty(len(array), dtype=np.float64)
    for rows in chunks(array):
        part = array[rows].astype(np.float64)
        checks.no_nan_logits(part, "logits", first_row=rows.start)
        highest = part.max(axis=1, keepdims=True)
        empty = np.flatnonzero(np.isneginf(highest[:, 0]))
        if empty.size:
            raise ValueError(
                f"expected a finite logit in each row, got only -inf at row {rows.start + empty[0]}: check the mask"
            )
        result[rows] = highest[:, 0] + np.log(np.exp(np.subtract(part, highest, out=part), out=part).sum(axis=1))
    return result


def probabilities(logits: ArrayLike) -> NDArray[np.float64]:
    """Probabilities of each row: float64 (N, K), the one function here that holds them all; errors as `log_sum_exp`.

    >>> probabilities([[0.0, 0.0], [float("-inf"), 1.0]]).round(12).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    array = matrix(logits)
    result = array.astype(np.float64)
    result -= log_sum_exp(array)[:, None]
    return np.exp(result, out=result)


def max_probability(logits: ArrayLike) -> NDArray[np.float64]:
    """Maximum softmax probability of each row, the confidence of the benchmarks: float64 (N,) in (0, 1].

    Restrict the logits to the classes that take part before the call. Errors as in `log_sum_exp`.

    >>> max_probability([[1.0, 1.0, 1.0, 1.0]]).round(12).tolist()  # four equal classes
    [0.25]
    """
    array = matrix(logits)
    normaliser = log_sum_exp(array)
    return np.asarray(np.exp(array.max(axis=1).astype(np.float64) - normaliser))


def class_probability(logits: ArrayLike, column: ArrayLike) -> NDArray[np.float64]:
    """Softmax probability of column `column[i]` in row i: float64 (N,) in [0, 1].

    logits  (N, K).   column  int (N,), each in 0 .. K - 1, else a ValueError. Errors as in `log_sum_exp`.

    >>> class_probability([[2.0, 2.0], [0.0, float("-inf")]], [1, 1]).round(12).tolist()
    [0.5, 0.0]
    """
    array = matrix(logits)
    index = checks.integers(column, "column", like=array[:, 0])
    bad = np.flatnonzero((index < 0) | (index >= array.shape[1]))
    if bad.size:
        raise ValueError(
            f"expected columns in 0 .. {array.shape[1] - 1}, got {index[bad[0]]} at row {bad[0]}: check the label space"
        )
    return np.asarray(np.exp(array[np.arange(len(array)), index].astype(np.float64) - log_sum_exp(array)))
