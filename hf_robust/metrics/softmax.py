"""Softmax quantities in float64 from logits of any width, in chunks: the full matrix of probabilities is never held.

Beside the result, each function needs at most about four times CHUNK_BYTES (8 MiB), or a few rows where rows are
larger than a chunk; rows on disk (`schema.StoredRows`) are read a chunk at a time. -inf marks a column that the model
has no output for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import Rows, StoredRows
from . import checks

CHUNK_BYTES = 2 * 2**20  # a chunk and its copies stay in cache, and memory is flat from a few hundred rows on


def matrix(logits: ArrayLike) -> Rows:
    """`logits` as float rows of shape (N, K), K >= 1, in their own precision; rows on disk stay there."""
    array = logits if isinstance(logits, StoredRows) else np.asarray(logits)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected numbers in logits, got {array.dtype}: pass a float array of shape (N, K)")
    if array.ndim != 2 or not array.shape[1]:
        raise ValueError(f"expected logits of shape (N, K) with K >= 1, got {array.shape}: pass one row for each image")
    return array if array.dtype.kind == "f" else np.asarray(array, dtype=np.float64)


def chunks(logits: Rows) -> Iterator[slice]:
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
        part = np.asarray(array[rows]).astype(np.float64)
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
    result = np.asarray(array).astype(np.float64)
    result -= log_sum_exp(array)[:, None]
    return np.exp(result, out=result)


def max_probability(logits: ArrayLike) -> NDArray[np.float64]:
    """Maximum softmax probability of each row, the confidence of the benchmarks: float64 (N,) in (0, 1].

    Restrict the logits to the classes that take part before the call. Errors as in `log_sum_exp`.

    >>> max_probability([[1.0, 1.0, 1.0, 1.0]]).round(12).tolist()  # four equal classes
    [0.25]
    """
    array = matrix(logits)
    return np.asarray(np.exp(highest_logit(array) - log_sum_exp(array)))


def class_probability(logits: ArrayLike, column: ArrayLike) -> NDArray[np.float64]:
    """Softmax probability of column `column[i]` in row i: float64 (N,) in [0, 1].

    logits  (N, K).   column  int (N,), each in 0 .. K - 1, else a ValueError. Errors as in `log_sum_exp`.

    >>> class_probability([[2.0, 2.0], [0.0, float("-inf")]], [1, 1]).round(12).tolist()
    [0.5, 0.0]
    """
    array = matrix(logits)
    index = checks.integers(column, "column", like=np.empty(len(array)))
    bad = np.flatnonzero((index < 0) | (index >= array.shape[1]))
    if bad.size:
        raise ValueError(
            f"expected columns in 0 .. {array.shape[1] - 1}, got {index[bad[0]]} at row {bad[0]}: check the label space"
        )
    return np.asarray(np.exp(chosen_logit(array, index) - log_sum_exp(array)))


def highest_logit(logits: ArrayLike) -> NDArray[np.float64]:
    """The highest logit of each row: float64 (N,); NaN in a row that holds one.

    >>> highest_logit([[1.0, 3.0], [2.0, float("-inf")]]).tolist()
    [3.0, 2.0]
    """
    array = matrix(logits)
    return _each(array, lambda part, _: part.max(axis=1), np.float64)


def chosen_logit(logits: ArrayLike, column: NDArray[np.int64]) -> NDArray[np.float64]:
    """The logit of column `column[i]` in row i: float64 (N,).

    >>> chosen_logit([[1.0, 3.0], [2.0, 4.0]], np.array([1, 0])).tolist()
    [3.0, 2.0]
    """
    array = matrix(logits)
    return _each(array, lambda part, rows: part[np.arange(len(part)), column[rows]], np.float64)


def predicted(logits: ArrayLike) -> NDArray[np.int64]:
    """The column of the highest logit of each row, the lower of equal ones: int64 (N,).

    >>> predicted([[1.0, 3.0], [2.0, 2.0]]).tolist()
    [1, 0]
    """
    array = matrix(logits)
    return _each(array, lambda part, _: part.argmax(axis=1), np.int64)


def leading(logits: ArrayLike, k: int) -> NDArray[np.int64]:
    """The columns of the k highest logits of each row, highest first, the lower of equal ones first: int64 (N, k).

    >>> leading([[1.0, 3.0, 2.0], [2.0, 2.0, 2.0]], 2).tolist()
    [[1, 2], [0, 1]]
    """
    array = matrix(logits)
    return _each(array, lambda part, _: np.argsort(-part, axis=1, kind="stable")[:, :k], np.int64, (k,))


def _each(
    array: Rows, formula: Callable[[NDArray[Any], slice], NDArray[Any]], dtype: type[Any], shape: tuple[int, ...] = ()
) -> NDArray[Any]:
    result = np.empty((len(array), *shape), dtype=dtype)
    for rows in chunks(array):
        result[rows] = formula(np.asarray(array[rows]), rows)
    return result
