"""How sure a number is."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson(successes: int, n: int, *, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval (low, high) of a proportion, fractions in [0, 1]; defined for 0 and n successes and n = 1.

    Wilson, JASA 22 (1927). ValueError unless 0 <= successes <= n, n >= 1 and 0 < level < 1.

    >>> low, high = wilson(50, 100)
    >>> round(low, 4), round(high, 4)
    (0.4038, 0.5962)
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}: check the counts")
    if not 0 < level < 1:
        raise ValueError(f"expected level in (0, 1), got {level}: pass a fraction such as 0.95")
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    p = successes / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = 0.0 if successes == 0 else max(0.0, centre - half)  # exact ends: rounding would leave 1e-17
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high
