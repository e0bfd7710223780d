"""Kernel distance (KID): the squared maximum mean discrepancy of a cubic polynomial kernel, over subsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUBSETS, SUBSET_SIZE = 100, 1000


@dataclass(frozen=True)
class Kernel:
    """Mean and standard deviation of the squared MMD over `subsets` pairs of subsets of `subset_size` pictures."""

    value: float
    std: float
    subsets: int
    subset_size: int


def squared_mmd(one: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]]) -> float:
    """Unbiased squared MMD of rows (N, D) and (M, D) under (x·y / D + 1)³; it may be below 0.

    Both have at least 2 rows. Source: Bińkowski et al. 2018, equation 4, with the kernel of their section 4.
    """
    if min(len(one), len(other)) < 2:
        raise ValueError(f"expected at least 2 rows in each set, got {len(one)} and {len(other)}")
    first, second = one.astype(np.float64), other.astype(np.float64)
    within = _off_diagonal_mean(first) + _off_diagonal_mean(second)
    return float(within - 2 * _kernel(first, second).mean())


def kernel_distance(one: NDArray[np.floating[Any]], other: NDArray[np.floating[Any]], *, seed: int) -> Kernel:
    """KID of rows (N, D) and (M, D), subsets drawn without replacement.

    Subsets have 1,000 rows, or half of the smaller set where that is fewer: a subset that is the whole has no spread.
    """
    size = min(SUBSET_SIZE, max(2, min(len(one), len(other)) // 2))
    random = np.random.default_rng(seed)
    values = [
        squared_mmd(*(rows[random.choice(len(rows), size, replace=False)] for rows in (one, other)))
        for _ in range(SUBSETS)
    ]
    return Kernel(float(np.mean(values)), float(np.std(values)), SUBSETS, size)


def _kernel(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    base = one @ other.T
    base /= one.shape[1]
    base += 1
    cube: NDArray[np.float64] = base * base  # ** 3 takes many times as long
    cube *= base
    return cube


def _off_diagonal_mean(rows: NDArray[np.float64]) -> float:
    kernel = _kernel(rows, rows)
    return float((kernel.sum() - np.trace(kernel)) / (len(rows) * (len(rows) - 1)))
