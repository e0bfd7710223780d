"""Intervals by resampling: rows drawn again with replacement, as row weights, for statistics of weighted.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .weighted import Statistic, Weights

CHUNK_BYTES = 2**20  # of weights: a statistic makes a few arrays of that size, and they should stay in cache


def bootstrap(
    statistic: Statistic,
    n: int,
    *,
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> tuple[float, float]:
    """Percentile bootstrap interval (low, high) of a statistic over n rows (Efron and Tibshirani 1993, chapter 13).

    statistic  a metric as a function of row weights (weighted.py).   Other options and errors: see `resample`.
    Deterministic in `seed`. Of one row, or of rows that are all alike, the width is 0: no method sees more there.

    >>> from hf_robust.metrics import weighted
    >>> low, high = bootstrap(weighted.mean([0.0, 1.0] * 50), 100)
    >>> 0.35 < low < 0.45 < 0.55 < high < 0.65  # 0.5 +- 1.96 * 0.05
    True
    """
    values = resample([statistic], n, replicates=replicates, seed=seed, strata=strata, clusters=clusters)[0]
    return percentile(values, level=level)


def percentile(values: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """The middle fraction `level` of resampled values (R,): (low, high), linear between order statistics."""
    checks.level(level)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def resample(
    statistics: Sequence[Statistic],
    n: int,
    *,
    replicates: int = 1000,
    seed: int = 0,
    strata: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Values of each statistic on the same resampled rows: float64 (len(statistics), replicates).

    strata    (N,) any labels: each stratum keeps its number of rows. Give it where a protocol has two halves (is_ood;
              class and half for the spurious score).
    clusters  (N,) any labels: whole clusters (a class, a photographer) are drawn instead of rows, within their stratum;
              a replicate then has more or fewer than N rows.
    The spread of these values is the standard error of the metric itself: it is not divided by anything again.
    ValueError where a cluster lies in two strata, for unequal lengths, and where a replicate has no value because a
    group that the metric needs was not drawn.
    """
    if n < 1 or replicates < 1:
        raise ValueError(f"expected n >= 1 and replicates >= 1, got {n} and {replicates}: 1,000 replicates are usual")
    result = np.empty((len(statistics), replicates))
    start = 0
    _keep_freed_memory()
    for weights in resampled_weights(n, replicates=replicates, seed=seed, strata=strata, clusters=clusters):
        for row, statistic in zip(result, statistics, strict=True):
            row[start : start + len(weights)] = statistic(weights)
        start += len(weights)
    missing = int(np.isnan(result).any(axis=0).sum())
    if missing:
        raise ValueError(
            f"expected a value for each of {replicates} replicates, got none for {missing}: a group was not drawn; "
            "pass strata (is_ood, or class and half), or larger and more clusters"
        )
    return result


def _keep_freed_memory() -> None:
    """Frees a large array that was never touched: from then on glibc keeps arrays below its size for the next one.

    Without it every array of a statistic comes from the system and goes back, and page faults double the time.
    """
    np.empty(2**25 - 2**16, dtype=np.uint8)


def resampled_weights(
    n: int, *, replicates: int, seed: int, strata: ArrayLike | None = None, clusters: ArrayLike | None = None
) -> Iterator[Weights]:
    """How often each row was drawn, in chunks: int64 (r, N), r summing to `replicates`; options as in `resample`."""
    cluster = _codes(clusters, "clusters", n)
    members = _members(_codes(strata, "strata", n), cluster, n)
    units = n if cluster is None else int(cluster.max()) + 1
    generators = [np.random.default_rng([seed, i]) for i in range(len(members))]
    rows = max(1, CHUNK_BYTES // (8 * max(n, units)))
    for start in range(0, replicates, rows):
        count = min(rows, replicates - start)
        weights = np.empty((count, units), dtype=np.int64)
        for generator, own in zip(generators, members, strict=True):
            weights[:, own] = _draw(generator, count, own.size)
        yield weights if cluster is None else np.take(weights, cluster, axis=1)


def _draw(generator: np.random.Generator, count: int, size: int) -> Weights:
    """Multinomial counts of `size` draws among `size` units, `count` times: int64 (count, size)."""
    drawn = generator.integers(0, size, (count, size), dtype=np.uint32).astype(np.int64)
    drawn += np.arange(count)[:, None] * size
    return np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)


def _codes(labels: ArrayLike | None, name: str, n: int) -> NDArray[np.int64] | None:
    """`labels` as 0 .. distinct - 1; ValueError unless there is one a row."""
    if labels is None:
        return None
    array = np.asarray(labels)
    if array.shape != (n,):
        raise ValueError(f"expected {name} of shape ({n},), got {array.shape}: pass one label for each row")
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _members(
    stratum: NDArray[np.int64] | None, cluster: NDArray[np.int64] | None, n: int
) -> tuple[NDArray[np.int64], ...]:
    """Units (rows or clusters) of each stratum."""
    if stratum is None:
        return (np.arange(n if cluster is None else int(cluster.max()) + 1),)
    if cluster is None:
        of_unit = stratum
    else:
        first = np.unique(cluster, return_index=True)[1]
        of_unit = stratum[first]
        split = np.flatnonzero(of_unit[cluster] != stratum)
        if split.size:
            raise ValueError(
                f"expected each cluster inside one stratum, got one in two, at row {split[0]}: leave strata out, or "
                "cluster within them"
            )
    order = np.argsort(of_unit, kind="stable")
    return tuple(np.split(order, np.flatnonzero(np.diff(of_unit[order])) + 1))
