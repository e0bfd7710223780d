"""Is one model better than another on the same rows? Differences with intervals, exact tests, several at once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .intervals import normal_quantile, placements
from .resampling import percentile, resample
from .weighted import Statistic


@dataclass(frozen=True)
class Difference:
    """First model minus second on the same rows.

    value           the difference of the two metrics.
    low, high       its interval.   standard_error  its spread over repetitions.
    p_value         two-sided, of no difference.
    """

    value: float
    low: float
    high: float
    standard_error: float
    p_value: float


@dataclass(frozen=True)
class McNemar:
    """Rows that only the first model gets right, rows that only the second does, and the exact two-sided p-value."""

    only_first: int
    only_second: int
    p_value: float


def paired_difference(
    first: Statistic,
    second: Statistic,
    n: int,
    *,
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    centred: bool = False,
) -> Difference:
    """Difference of one metric between two models over the same n rows, by resampling the rows of both together.

    first, second  the metric as a function of row weights (weighted.py), rows in the same order.   Options and errors:
    see `resample`. The p-value inverts the percentile interval, 2 min(share <= 0, share >= 0) with one added to both
    counts, so it is never below 2 / (replicates + 1); two equal models get 1. Resampling cannot see
    what a handful of rows does not hold, so it is too sure there: `mcnemar` is exact for accuracy, with the interval
    of `paired_proportions`. `centred` moves the resampled differences so that their mean is the value: give it for a
    metric that repeated rows move to one side (a calibration error, an average precision of few rows), by more for
    one model than for the other.

    >>> from hf_robust.metrics import weighted
    >>> paired_difference(weighted.mean([1.0, 0.0]), weighted.mean([1.0, 0.0]), 2).p_value
    1.0
    """
    one = np.ones((1, n), dtype=np.int64)
    value = float((first(one) - second(one))[0])
    drawn = resample([first, second], n, replicates=replicates, seed=seed, strata=strata, clusters=clusters)
    apart = drawn[0] - drawn[1]
    if centred:
        apart -= apart.mean() - value
    low, high = percentile(apart, level=level)
    tail = 1 + min(int((apart <= 0).sum()), int((apart >= 0).sum()))
    spread = float(apart.std(ddof=1)) if replicates > 1 else 0.0
    return Difference(value, low, high, spread, min(1.0, 2 * tail / (replicates + 1)))


def delong_difference(first: ArrayLike, second: ArrayLike, is_ood: ArrayLike, *, level: float = 0.95) -> Difference:
    """Difference of the AUROC of two scores of the same rows, with DeLong's variance (Biometrics 44, 1988).

    first, second  (N,) finite, higher = more out-of-distribution.   is_ood  (N,) bool or 0/1.
    Errors as in `auroc_variance`.
    """
    checks.level(level)
    checks.same_length(np.asarray(second), "second", checks.vector(first, "first"))
    above = [a - b for a, b in zip(placements(first, is_ood), placements(second, is_ood), strict=True)]
    value = float(above[0].mean())
    error = sqrt(sum(float(a.var(ddof=1)) / a.size for a in above))
    half = normal_quantile(level) * error
    if error == 0:
        return Difference(value, value, value, 0.0, 1.0 if value == 0 else 0.0)
    p_value = 2 * NormalDist().cdf(-abs(value) / error)
    return Difference(value, max(-1.0, value - half), min(1.0, value + half), error, p_value)


def mcnemar(first_correct: ArrayLike, second_correct: ArrayLike) -> McNemar:
    """Exact test of equal accuracy on the same rows (McNemar, Psychometrika 12, 1947; binomial, not chi-square).

    first_correct, second_correct  (N,) bool or 0/1, rows in the same order. ValueError for empty or unequal input.

    >>> mcnemar([1, 1, 1, 1, 0], [0, 0, 0, 0, 0]).p_value  # all 4 on one side: 2 / 2^4
    0.125
    """
    values = checks.vector(first_correct, "first_correct")
    first = checks.flags(first_correct, "first_correct", like=values)
    second = checks.flags(second_correct, "second_correct", like=values)
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    return McNemar(only_first, only_second, sign_test(only_first, only_second))


def paired_proportions(only_first: int, only_second: int, n: int, *, level: float = 0.95) -> Difference:
    """Difference of two proportions over the same n rows, from the rows that only one of them counts (`McNemar`).

    Wald's interval after one more row of each kind (Bonett and Price, Journal of Educational and Behavioral Statistics
    37, 2012), which holds its level for few rows and has a width where no row differs; the p-value is `sign_test`.
    ValueError for counts below 0 or above n, n < 1, and a level outside (0, 1).

    >>> found = paired_proportions(2, 0, 6)  # shares 3/8 and 1/8 of 8: 0.25 +- 1.96 sqrt((0.5 - 0.25 ** 2) / 8)
    >>> round(found.value, 4), round(found.low, 4), round(found.high, 4), found.p_value
    (0.3333, -0.2083, 0.7083, 0.5)
    """
    checks.level(level)
    if n < 1 or min(only_first, only_second) < 0 or only_first + only_second > n:
        raise ValueError(
            f"expected counts >= 0 of at most n >= 1 rows, got {only_first} and {only_second} of {n}: check the rows"
        )
    first, second = (only_first + 1) / (n + 2), (only_second + 1) / (n + 2)
    error = sqrt((first + second - (first - second) ** 2) / (n + 2))
    half = normal_quantile(level) * error
    low, high = max(-1.0, first - second - half), min(1.0, first - second + half)
    return Difference((only_first - only_second) / n, low, high, error, sign_test(only_first, only_second))


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p-value, in (0, 1], of `wins` against `losses` under a fair coin; 1 without any.

    >>> sign_test(0, 3)  # 2 / 2^3
    0.25
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"expected counts >= 0, got {wins} and {losses}: count rows that differ")
    n, ways, tail = wins + losses, 1, 1
    for k in range(1, min(wins, losses) + 1):
        ways = ways * (n - k + 1) // k  # n over k, in integers of any size
        tail += ways
    return float(min(Fraction(1), Fraction(2 * tail, 2**n)))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values (M,) adjusted for M comparisons, in the given order: reject where still below the level.

    Holm, Scandinavian Journal of Statistics 6 (1979): controls the chance of any false claim. ValueError for empty
    input and values outside [0, 1].

    >>> holm([0.01, 0.04, 0.03]).round(12).tolist()  # 3 * 0.01, then 2 * 0.03, then 0.04, never falling
    [0.03, 0.06, 0.06]
    """
    p = checks.probabilities(p_values, "p_values")
    order = np.argsort(p, kind="stable")
    result = np.empty_like(p)
    result[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return result


def minimum_detectable_difference(standard_error: float, *, level: float = 0.95, power: float = 0.8) -> float:
    """The true difference that a two-sided test at this level finds with probability `power`; the metric's units.

    (normal quantile of the level + that of the power) x standard error of the difference: about 2.8 standard errors.

    >>> round(minimum_detectable_difference(0.01), 4)  # (1.96 + 0.8416) * 0.01
    0.028
    """
    checks.level(level)
    checks.level(power)
    if not 0 <= standard_error < np.inf:
        raise ValueError(f"expected a standard error >= 0, got {standard_error}: take it from a Difference")
    return (normal_quantile(level) + NormalDist().inv_cdf(power)) * standard_error
