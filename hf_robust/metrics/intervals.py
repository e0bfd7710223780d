"""How sure a number is, where a formula says so: proportions, their differences, and the area under the ROC curve.

Everything else is resampled, see resampling.py.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks


def wilson(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval (low, high) of a proportion, fractions in [0, 1]; defined for 0 and n successes and n = 1.

    Wilson, JASA 22 (1927). ValueError unless 0 <= successes <= n, n >= 1 and 0 < level < 1.

    >>> low, high = wilson(50, 100)
    >>> round(low, 4), round(high, 4)
    (0.4038, 0.5962)
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}: check the counts")
    checks.level(level)
    z2 = normal_quantile(level) ** 2
    p = successes / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = 0.0 if successes == 0 else max(0.0, centre - half)  # exact ends: rounding would leave 1e-17
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def normal_quantile(level: float) -> float:
    """How many standard errors a two-sided interval of that level reaches to each side: 1.96 for 0.95."""
    return NormalDist().inv_cdf((1 + level) / 2)


def newcombe(
    first_successes: int, first_n: int, second_successes: int, second_n: int, *, level: float = 0.95
) -> tuple[float, float]:
    """Interval (low, high) of first minus second, two proportions over different images, such as an accuracy drop.

    Method 10 of Newcombe, Statistics in Medicine 17 (1998): made of two Wilson intervals, never outside [-1, 1].
    Errors as in `wilson`. For one set of images and two models see `paired_difference`.

    >>> low, high = newcombe(56, 70, 48, 80)  # the worked example (a) of that paper
    >>> round(low, 4), round(high, 4)
    (0.0524, 0.3339)
    """
    low1, high1 = wilson(first_successes, first_n, level=level)
    low2, high2 = wilson(second_successes, second_n, level=level)
    p1, p2 = first_successes / first_n, second_successes / second_n
    down = sqrt((p1 - low1) ** 2 + (high2 - p2) ** 2)
    up = sqrt((high1 - p1) ** 2 + (p2 - low2) ** 2)
    return p1 - p2 - down, p1 - p2 + up


def placements(scores: ArrayLike, is_ood: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each positive row the fraction of negatives below it, and for each negative the fraction of positives above.

    Ties count one half; both have the AUROC as their mean. Rows keep their order. Input as in `curve`; ValueError with
    fewer than two rows in a group, for then there is no variance.
    """
    values = checks.vector(scores, "scores")
    positive = checks.flags(is_ood, "is_ood", like=values)
    found, known = values[positive], values[~positive]
    if min(found.size, known.size) < 2:
        raise ValueError(
            f"expected at least two rows of each group, got {found.size} out-of-distribution and {known.size} "
            "in-distribution: DeLong's variance needs two of each"
        )
    return _below(found, known), 1 - _below(known, found)


def _below(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    ordered = np.sort(others)
    count = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    return np.asarray(count / (2 * others.size))


def auroc_variance(scores: ArrayLike, is_ood: ArrayLike) -> float:
    """DeLong's variance of the AUROC (DeLong, DeLong and Clarke-Pearson, Biometrics 44, 1988), from sorted ranks.

    Input as in `curve`; ValueError with fewer than two rows in a group.
    """
    found, known = placements(scores, is_ood)
    return float(found.var(ddof=1) / found.size + known.var(ddof=1) / known.size)


def delong(scores: ArrayLike, is_ood: ArrayLike, *, level: float = 0.95) -> tuple[float, float]:
    """DeLong interval (low, high) of `auroc`, cut at 0 and 1.

    AUROC plus and minus normal quantile x root of `auroc_variance`. Where the groups do not overlap at all the variance
    is 0 and so is the width: that is the method's limit, not certainty. Errors as in `auroc_variance`.

    >>> low, high = delong([4.0, 3.0, 2.0, 1.0], [True, False, True, False])  # 0.75 +- 1.96 * sqrt(1/16 + 1/16)
    >>> round(low, 4), high
    (0.057, 1.0)
    """
    checks.level(level)
    half = normal_quantile(level) * sqrt(auroc_variance(scores, is_ood))
    centre = float(placements(scores, is_ood)[0].mean())
    return max(0.0, centre - half), min(1.0, centre + half)
