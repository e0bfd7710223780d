"""Exact search for similar embeddings: every pair at or above a cosine, and no other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_DIRECTIONS = 128
_SAMPLE = 4096
_SLACK = 1e-3  # of a squared distance, in float32 products of 130 numbers
_BASE_ROWS = 1 << 14  # rows compared with a block at a time: the memory of a search
_MANY = 0.005


class EmbeddingIndex:
    """Unit vectors in a fixed order; each is compared with those before it.

    cos >= t means |a - b|² <= 2 - 2t, and no projection on orthogonal directions lengthens a difference. So pairs that
    are too far apart in the 128 directions of largest variance are left out at once, and only what remains is compared
    in full, in float64. The result does not depend on the directions, the device or the block.

    vectors  float16 (N, D), an array or a memory map; rows of length 1 up to rounding.
    N vectors take 520 N bytes of memory beside the map; the time grows with N², 130 products a pair.
    """

    def __init__(self, vectors: NDArray[np.float16], threshold: float) -> None:
        if not -1 < threshold <= 1:
            raise ValueError(f"expected a cosine threshold above -1 and at most 1, got {threshold}")
        self._vectors, self._threshold = vectors, threshold
        directions = _directions(_unit(vectors[:_SAMPLE]))
        projected = np.empty((len(vectors), directions.shape[1]), np.float32)
        for start in range(0, len(vectors), _SAMPLE):
            block = slice(start, start + _SAMPLE)
            projected[block] = _unit(vectors[block]) @ directions
        squares = np.einsum("ij,ij->i", projected, projected)[:, None]
        ones = np.ones_like(squares)
        # one product gives |a - b|² = -2ab + 1 |b|² + |a|² 1: no second pass over the large matrix
        self._base = np.concatenate([projected, squares, ones], axis=1)

    def search(
        self, start: int, end: int, wanted: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Row, earlier row and cosine of every pair of a row in [start, end) with a wanted row before it, sorted."""
        pairs = [self._near(start, end, first, min(end, first + _BASE_ROWS)) for first in range(0, end, _BASE_ROWS)]
        rows = np.concatenate([row for row, _ in pairs])
        others = np.concatenate([other for _, other in pairs])
        possible = (others < rows) & wanted[others]
        rows, others = rows[possible], others[possible]
        cosines = self._cosines(rows, others)
        near = cosines >= self._threshold
        order = np.lexsort((others[near], rows[near]))
        return rows[near][order], others[near][order], cosines[near][order]

    def _near(self, start: int, end: int, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of rows in [start, end) and [first, last) that may reach the threshold: all that do, and few others."""
        limit = np.float32(2 - 2 * self._threshold + _SLACK)
        own = self._base[start:end]
        queries = np.concatenate([-2 * own[:, :-2], own[:, -1:], own[:, -2:-1]], axis=1)
        close = queries @ self._base[first:last].T <= limit
        if np.count_nonzero(close) > _MANY * close.size:  # vectors that a few directions do not tell apart
            one, other = (_unit(self._vectors[a:b]).astype(np.float32) for a, b in ((start, end), (first, last)))
            close = one @ other.T >= self._threshold - _SLACK
        row, earlier = np.nonzero(close)
        return row + start, earlier + first

    def _cosines(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.float64]:
        found = np.empty(len(rows), np.float64)
        for start in range(0, len(rows), _SAMPLE):
            block = slice(start, start + _SAMPLE)
            found[block] = np.einsum("ij,ij->i", _unit(self._vectors[rows[block]]), _unit(self._vectors[others[block]]))
        return found


def _unit(vectors: NDArray[np.float16]) -> NDArray[np.float64]:
    exact = vectors.astype(np.float64)
    unit: NDArray[np.float64] = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    return unit


def _directions(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    """Orthonormal columns: the directions of largest variance of a sample, at most _DIRECTIONS."""
    centred = sample - sample.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    columns: NDArray[np.float64] = vectors[:, ::-1][:, :_DIRECTIONS]
    return columns
