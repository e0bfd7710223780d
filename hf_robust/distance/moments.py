"""Mean and covariance of features that stream by, kept as a square root so that no accuracy is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Number, mean (D,) and scatter of rows; the scatter sum (x - mean)(x - mean)ᵀ is factorᵀ @ factor.

    factor  float64 (K, D), K at most 2 D: the centred rows themselves while they are few, later a triangle by QR. A
            root holds twice the digits of the scatter, and is exact where there are fewer rows than dimensions.
    """

    count: int
    mean: Array
    factor: Array

    @cached_property
    def root(self) -> Array:
        """(K, D), K at most D: rootᵀ @ root is the covariance with count - 1 below the sum (as `numpy.cov`)."""
        return np.asarray(_at_most(self.factor, self.factor.shape[1]) / np.sqrt(self.count - 1))

    def covariance(self) -> Array:
        """(D, D)."""
        return self.root.T @ self.root


def moments_of(rows: NDArray[np.floating[Any]]) -> Moments:
    """The moments of rows (N, D), N at least 1, in float64."""
    values = rows.astype(np.float64)
    mean = values.mean(axis=0)
    return Moments(len(values), mean, _at_most(values - mean, 2 * values.shape[1]))


def merge(one: Moments, other: Moments) -> Moments:
    """The moments of the rows of both (Chan, Golub and LeVeque 1979: the gap of the means is one more row)."""
    count = one.count + other.count
    gap = other.mean - one.mean
    between = np.sqrt(one.count * other.count / count) * gap
    factor = np.concatenate([one.factor, other.factor, between[None]])
    return Moments(count, one.mean + gap * (other.count / count), _at_most(factor, 2 * len(gap)))


def merged(pieces: Iterable[Moments]) -> Moments:
    """The moments of all pieces together; there is at least one."""
    first, *others = pieces
    for piece in others:
        first = merge(first, piece)
    return first


def grouped(chunks: Iterable[NDArray[np.floating[Any]]], group: NDArray[np.int64]) -> tuple[Moments, ...]:
    """The moments of each group of rows, from chunks (n, D) that together have one row for each entry of `group`."""
    found: list[Moments | None] = [None] * (int(group.max()) + 1)
    waiting: list[list[NDArray[np.floating[Any]]]] = [[] for _ in found]
    start = 0
    for chunk in chunks:
        own = group[start : start + len(chunk)]
        start += len(chunk)
        for k in np.unique(own).tolist():
            waiting[k].append(chunk[own == k])
            if sum(map(len, waiting[k])) >= chunk.shape[1]:  # one QR for many chunks
                found[k], waiting[k] = _joined(found[k], waiting[k]), []
    whole = [_joined(m, rows) if rows else m for m, rows in zip(found, waiting, strict=True)]
    return tuple(m for m in whole if m is not None)


def without_each(pieces: Sequence[Moments]) -> tuple[Moments, ...]:
    """For each piece the moments of all the others; there are at least two."""
    before, after = [pieces[0]], [pieces[-1]]
    for piece in pieces[1:-1]:
        before.append(merge(before[-1], piece))
    for piece in pieces[-2:0:-1]:
        after.append(merge(after[-1], piece))
    middle = [merge(left, right) for left, right in zip(before[:-1], after[-2::-1], strict=True)]
    return (after[-1], *middle, before[-1])


def _joined(known: Moments | None, rows: Sequence[NDArray[np.floating[Any]]]) -> Moments:
    new = moments_of(np.concatenate(rows))
    return new if known is None else merge(known, new)


def _at_most(factor: Array, rows: int) -> Array:
    """A factor of the same scatter with at most that many rows, which is at least its width."""
    return factor if len(factor) <= rows else np.asarray(np.linalg.qr(factor, mode="r"))
