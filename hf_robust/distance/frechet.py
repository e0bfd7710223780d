"""Fréchet distance between two sets of features, how sure it is, and what it would be with more pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .moments import Moments, merged, without_each

GROUPS = 10  # of a set, each left out once
_STUDENT = 2.2621571628  # 97.5 % point of Student's t with GROUPS - 1 = 9 degrees of freedom
FEWEST = 20  # rows of a set for an interval
_ROUNDING = 1e-12  # of the summands: what is left of them where two sets are the same


@dataclass(frozen=True)
class Frechet:
    """A squared Fréchet distance, at least 0.

    ci95          what as many other pictures would give; None for sets with fewer than FEWEST rows, or shared ones.
    extrapolated  to endless pictures, linear in 1/N, from halves of the sets (Chong and Forsyth 2020): the value is
                  too high by a term that falls as 1/N. It may be below 0. None as above, and up to 2 D rows.
    """

    value: float
    ci95: tuple[float, float] | None
    extrapolated: float | None


def frechet_distance(one: Moments, other: Moments) -> float:
    """Squared Fréchet distance of the two Gaussians with these moments, in squared units of the features.

    |m₁ - m₂|² + tr(C₁ + C₂ - 2 (C₁C₂)^½), with tr (C₁C₂)^½ as the sum of the singular values of R₁R₂ᵀ, Rᵢᵀ Rᵢ = Cᵢ:
    exact for covariances of any rank, where a matrix square root is not (Dowson and Landau 1982; Heusel et al. 2017).
    ValueError for fewer than 2 rows or other numbers of dimensions.

    >>> from .moments import moments_of
    >>> one, other = moments_of(np.array([[0.0], [2.0]])), moments_of(np.array([[3.0], [9.0]]))
    >>> round(frechet_distance(one, other), 9)  # 5² + (√2 - √18)²
    33.0
    """
    for moments in (one, other):
        if moments.count < 2:
            raise ValueError(f"expected at least 2 pictures in each set, got {moments.count}: one has no covariance")
    if one.mean.shape != other.mean.shape:
        raise ValueError(
            f"expected features of the same model, got {len(one.mean)} and {len(other.mean)} dimensions: "
            "run one model over both sets"
        )
    gap = one.mean - other.mean
    cross = np.linalg.svd(one.root @ other.root.T, compute_uv=False).sum()
    scale = float(gap @ gap + np.square(one.root).sum() + np.square(other.root).sum())
    value = scale - 2 * float(cross)
    return value if value > _ROUNDING * scale else 0.0


def frechet(one: Sequence[Moments], other: Sequence[Moments], *, independent: bool = True) -> Frechet:
    """The distance of two sets given as groups of rows drawn at random (see `groups_of`), with its interval.

    The interval is the delete-a-group jackknife of each set, added up, with Student's t of GROUPS - 1 degrees
    (Efron and Tibshirani 1993, chapter 11; Kott 2001). independent=False: the sets share pictures, which leaving rows
    out of one set alone does not see.
    """
    whole = merged(one), merged(other)
    value = frechet_distance(*whole)
    if not independent or min(len(one), len(other)) < GROUPS:
        return Frechet(value, None, None)
    halves = [_halves(groups) for groups in (one, other)]
    at_half = float(np.mean([frechet_distance(a, b) for a in halves[0] for b in halves[1]]))
    enough = min(m.count for m in whole) > 2 * len(whole[0].mean)  # each half has a covariance of full rank
    left_out = (
        [frechet_distance(rest, whole[1]) for rest in without_each(one)],
        [frechet_distance(whole[0], rest) for rest in without_each(other)],
    )
    variance = sum((GROUPS - 1) * np.var(values) for values in left_out)
    margin = float(_STUDENT * np.sqrt(variance))
    return Frechet(value, (max(0.0, value - margin), value + margin), 2 * value - at_half if enough else None)


def groups_of(count: int, seed: int) -> NDArray[np.int64]:
    """(count,): the group of each row, GROUPS of them of equal size at random; one where there are too few rows."""
    groups = GROUPS if count >= FEWEST else 1
    return np.random.default_rng(seed).permutation(np.arange(count, dtype=np.int64) % groups)


def _halves(groups: Sequence[Moments]) -> tuple[Moments, Moments]:
    return merged(groups[0::2]), merged(groups[1::2])
