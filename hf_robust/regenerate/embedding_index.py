"""Exact search for similar embeddings: every pair at or above a cosine, and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .row_file import RowFile, Rows

_DIRECTIONS = 128
_SAMPLE = 4096
_SLACK = 1e-3  # of a squared distance, in float32 products of 130 numbers
_AT_ONCE = 1 << 11  # rows compared with a block, or read, at a time: the memory of a search
_READ = 1 << 8
_MANY = 0.005


class EmbeddingIndex:
    """Unit vectors in a fixed order; each is compared with those before it.

    cos >= t means |a - b|² <= 2 - 2t, and no projection on orthogonal directions lengthens a difference. So pairs that
    are too far apart in the 128 directions of largest variance are left out at once, and only what remains is compared
    in full, in float64. The result does not depend on the directions, the device or the block.

    vectors  float16 (N, D), rows of length 1 up to rounding, an array or a file: it is read in blocks.
    N vectors take 520 N bytes of disk beside it, and the memory of a few D x D matrices; the time grows with N², 130
    products a pair.
    """

    def __init__(self, vectors: Rows, threshold: float, folder: Path | None = None) -> None:
        """folder: where the file without a name lies, until `close`; None for that of the system."""
        if not -1 < threshold <= 1:
            raise ValueError(f"expected a cosine threshold above -1 and at most 1, got {threshold}")
        self._vectors, self._threshold = vectors, threshold
        directions = _directions(vectors)
        # one product gives |a - b|² = -2ab + 1 |b|² + |a|² 1: no second pass over the large matrix
        self._base = RowFile(len(vectors), directions.shape[1] + 2, np.float32, folder)
        for start in range(0, len(vectors), _READ):
            projected = (_unit(vectors[start : start + _READ]) @ directions).astype(np.float32)
            squares = np.einsum("ij,ij->i", projected, projected)[:, None]
            base = np.concatenate([projected, squares, np.ones_like(squares)], axis=1)
            self._base.put(np.arange(start, start + len(base)), base)

    def close(self) -> None:
        """Free the disk."""
        self._base.close()

    def nearest(self, start: int, end: int, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """For each row in [start, end) the most similar wanted row before `start`, and one minus their cosine.

        -1 and infinity where none reaches the threshold; of equally similar ones the first counts.
        wanted: bool (N,).
        """
        found, distance = np.full(end - start, -1, np.int64), np.full(end - start, np.inf)
        queries = self._queries(start, end)
        for first in range(0, start, _AT_ONCE):
            last = min(start, first + _AT_ONCE)
            rows, others, apart = self._similar(queries, start, first, wanted[first:last])
            order = np.lexsort((others, apart, rows))
            places, leading = np.unique(rows[order] - start, return_index=True)
            best = order[leading]
            nearer = apart[best] < distance[places]
            found[places[nearer]], distance[places[nearer]] = others[best[nearer]], apart[best[nearer]]
        return found, distance

    def within(self, start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Row, earlier row and one minus the cosine of every similar pair of rows in [start, end), sorted."""
        rows, others, apart = self._similar(self._queries(start, end), start, start, np.ones(end - start, bool))
        earlier = others < rows
        return rows[earlier], others[earlier], apart[earlier]

    def _queries(self, start: int, end: int) -> NDArray[np.float32]:
        own: NDArray[np.float32] = self._base[start:end]
        return np.concatenate([-2 * own[:, :-2], own[:, -1:], own[:, -2:-1]], axis=1)

    def _similar(
        self, queries: NDArray[np.float32], start: int, first: int, wanted: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Row, wanted row and one minus the cosine of the similar pairs of rows from `start` on and from `first` on.

        In float32 first, which finds all that reach the threshold and few others, then in float64.
        """
        last = first + len(wanted)
        close = queries @ self._base[first:last].T <= np.float32(2 - 2 * self._threshold + _SLACK)
        close &= wanted
        if not close.any():
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        own, candidates = self._vectors[start : start + len(queries)], np.flatnonzero(close.any(axis=0))
        near = self._vectors[first:last][candidates]
        close = close[:, candidates]
        if np.count_nonzero(close) > _MANY * close.size:  # vectors that a few directions do not tell apart
            close &= _unit32(own) @ _unit32(near).T >= self._threshold - _SLACK
        rows, others = np.nonzero(close)
        cosines = _cosines(own, near, rows, others)
        reached = cosines >= self._threshold
        return rows[reached] + start, candidates[others[reached]] + first, 1.0 - cosines[reached]


def _cosines(
    one: NDArray[np.float16], other: NDArray[np.float16], rows: NDArray[np.int64], others: NDArray[np.int64]
) -> NDArray[np.float64]:
    found = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _READ):
        block = slice(start, start + _READ)
        found[block] = np.einsum("ij,ij->i", _unit(one[rows[block]]), _unit(other[others[block]]))
    return found


def _unit(vectors: NDArray[np.float16]) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    unit: NDArray[np.float64] = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    return unit


def _unit32(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    rounded = vectors.astype(np.float32)
    rounded /= np.linalg.norm(rounded, axis=1, keepdims=True)
    return rounded


def _directions(vectors: Rows) -> NDArray[np.float64]:
    """Orthonormal columns: the directions of largest variance of the first vectors, at most _DIRECTIONS."""
    count = min(_SAMPLE, len(vectors))
    width = vectors[:0].shape[1]
    total, products = np.zeros(width), np.zeros((width, width))
    for start in range(0, count, _READ):
        block = _unit(vectors[start : min(count, start + _READ)])
        total += block.sum(axis=0)
        products += block.T @ block
    _, found = np.linalg.eigh(products - np.outer(total, total) / max(1, count))
    columns: NDArray[np.float64] = found[:, ::-1][:, :_DIRECTIONS]
    return columns
