"""How far apart two sets of pictures are, in the features of a model: Fréchet distance and kernel distance."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import FeatureSet, check_comparable, open_features
from .forward import forward_features
from .frechet import FEWEST, Frechet, frechet, frechet_distance, groups_of
from .kernel import Kernel, kernel_distance, squared_mmd
from .moments import Moments, grouped, merge, merged, moments_of

__all__ = [
    "Distance", "FeatureSet", "Frechet", "Kernel", "Moments", "check_comparable", "distance", "forward_features",
    "frechet", "frechet_distance", "grouped", "groups_of", "kernel_distance", "merge", "merged", "moments_of",
    "open_features", "squared_mmd",
]  # fmt: skip

MOST_FOR_KERNEL = 20_000  # pictures of a set that subsets are drawn from: they stand in memory


@dataclass(frozen=True)
class Distance:
    """Both distances between two sets, and what they stand on. `notes` must be said beside them."""

    title: str
    model: str
    weights: str
    dimensions: int
    counts: tuple[int, int]
    frechet: Frechet
    kernel: Kernel
    notes: tuple[str, ...]


def distance(one: FeatureSet, other: FeatureSet, *, seed: int = 0) -> Distance:
    """Fréchet and kernel distance of two sets in one pass over each.

    seed  of the groups for the interval and the subsets of the kernel distance.
    Raises ValueError where the sets were seen by different models, one has fewer than 2 pictures, or a feature is not
    finite.
    """
    check_comparable(one, other)
    for found in (one, other):
        if found.count < 2:
            raise ValueError(f"expected at least 2 pictures in {found.folder}, got {found.count}: add pictures")
    moments, samples = [], []
    for found in (one, other):
        taken = _sample(found.count, seed)
        kept: list[NDArray[np.float32]] = []
        moments.append(grouped(_keeping(found.chunks(), taken, kept), groups_of(found.count, seed)))
        samples.append(np.concatenate(kept))
    shared = {s for s in one.sha256 if s} & {s for s in other.sha256 if s}
    model = str(one.plan["model"])
    return Distance(
        f"Fréchet distance (features of {model})",
        model,
        str(one.plan["weights"]),
        one.width,
        (one.count, other.count),
        frechet(*moments, independent=not shared),
        kernel_distance(samples[0], samples[1], seed=seed),
        tuple(_notes(one, other, shared)),
    )


def _sample(count: int, seed: int) -> NDArray[np.bool_]:
    """(count,): which rows the kernel distance may draw from."""
    taken = np.zeros(count, dtype=bool)
    taken[np.random.default_rng(seed).permutation(count)[:MOST_FOR_KERNEL]] = True
    return taken


def _keeping(
    chunks: Iterator[NDArray[np.float32]], taken: NDArray[np.bool_], kept: list[NDArray[np.float32]]
) -> Iterator[NDArray[np.float32]]:
    start = 0
    for chunk in chunks:
        kept.append(chunk[taken[start : start + len(chunk)]])
        start += len(chunk)
        yield chunk


def _notes(one: FeatureSet, other: FeatureSet, shared: Collection[str]) -> Iterator[str]:
    if min(one.count, other.count) <= one.width:
        yield (
            f"fewer pictures than the {one.width} dimensions of the features: the Fréchet distance is exact for these "
            "pictures, but far above that of larger sets; compare it only with sets of the same number"
        )
    if min(one.count, other.count) < FEWEST:
        yield f"a set of fewer than {FEWEST} pictures has no interval"
    if shared:
        yield f"{len(shared)} pictures are in both sets, so that no interval is given"
    if one.source.preprocessing != other.source.preprocessing:
        yield (
            f"the pictures were prepared differently (rules {one.source.rule} and {other.source.rule}): part of the "
            "distance may come from that"
        )
    for found in (one, other):
        if found.failed:
            yield f"{found.failed} pictures of {found.source.dataset} could not be read and are left out"
        if found.absent:
            yield f"{found.absent} of {len(found.source.parts)} parts of {found.source.dataset} are not there yet"
