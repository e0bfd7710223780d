"""Pictures that are the same or nearly so: within a set, and between a set and a reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .pictures import BITS, Bits, Looks

RADIUS = 64  # bits of BITS: on photos, copies re-encoded, shrunk or cropped by 2 % differ in up to 50, others in 90
_BLOCK = 2048

Pair = tuple[int, int, int, bool]  # position, position, differing bits, whether one is mirrored


@dataclass(frozen=True)
class Group:
    """Positions of pictures that are alike, at least two; `distance` is the least number of differing bits."""

    members: tuple[int, ...]
    same_bytes: bool
    distance: int
    mirrored: bool


@dataclass(frozen=True)
class Leak:
    """A picture of the set that is also in a reference, by position in each."""

    position: int
    reference_position: int
    same_bytes: bool
    distance: int
    mirrored: bool


def check_radius(radius: int) -> None:
    """ValueError for a radius that is negative or so wide that any two pictures lie within it."""
    if not 0 <= radius < BITS // 2:
        raise ValueError(f"expected a radius from 0 to {BITS // 2 - 1} bits, got {radius}: half of the bits is chance")


def same_bytes(looks: Looks) -> tuple[Group, ...]:
    """Groups of pictures with equal bytes."""
    by_hash: dict[str, list[int]] = defaultdict(list)
    for i, sha256 in enumerate(looks.sha256):
        by_hash[sha256].append(i)
    by_hash.pop("", None)  # what could not be read
    return tuple(Group(tuple(found), True, 0, False) for found in by_hash.values() if len(found) > 1)


def near(looks: Looks, radius: int = RADIUS) -> tuple[Group, ...]:
    """Groups of pictures whose perceptual hashes, one mirrored or not, differ in at most `radius` bits.

    Groups are connected: a chain of near pairs is one group. Pictures with equal bytes count as one, so that a group of
    nothing but those is left out. The nearest groups come first.
    """
    first = {sha256: i for i, sha256 in reversed(list(enumerate(looks.sha256)))}
    kept = np.array([first[looks.sha256[i]] == i for i in looks.hashed], dtype=bool)
    positions, bits, mirrors = looks.hashed[kept], looks.bits[kept], looks.mirrored[kept]
    _, own, inverse = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    leaders = own[inverse.reshape(-1)].tolist()  # equal hashes count once: thousands of blank pictures are one
    pairs: list[Pair] = [(int(positions[k]), int(positions[i]), 0, False) for i, k in enumerate(leaders) if i != k]
    for mirrored, others in ((False, bits), (True, mirrors)):
        for i, j, distance in within(bits[own], others[own], radius):
            if i < j:
                pairs.append((int(positions[own[i]]), int(positions[own[j]]), distance, mirrored))
    return tuple(sorted(_connected(pairs), key=lambda group: (group.distance, group.members)))


def leaks(looks: Looks, reference: Looks, radius: int = RADIUS) -> tuple[Leak, ...]:
    """Each picture that has its like in the reference, once, with the nearest one there."""
    there = {sha256: j for j, sha256 in reversed(list(enumerate(reference.sha256)))}
    best = {i: Leak(i, there[s], True, 0, False) for i, s in enumerate(looks.sha256) if s and s in there}
    for mirrored, others in ((False, reference.bits), (True, reference.mirrored)):
        for i, j, distance in within(looks.bits, others, radius):
            place = int(looks.hashed[i])
            if place not in best or (not best[place].same_bytes and distance < best[place].distance):
                best[place] = Leak(place, int(reference.hashed[j]), False, distance, mirrored)
    return tuple(sorted(best.values(), key=lambda leak: (not leak.same_bytes, leak.distance, leak.position)))


def within(one: Bits, other: Bits, radius: int) -> Iterator[tuple[int, int, int]]:
    """(i, j, differing bits) of every packed row of `one` (N, BITS / 8) and of `other` at most `radius` bits apart.

    All pairs, exactly, by blocks of a matrix product: with signs ±1, s·t = BITS - 2 · differing bits.
    """
    for start in range(0, len(one), _BLOCK):
        left = _signs(one[start : start + _BLOCK])
        for begin in range(0, len(other), _BLOCK):
            product: NDArray[np.float32] = left @ _signs(other[begin : begin + _BLOCK]).T
            for i, j in zip(*np.nonzero(product >= BITS - 2 * radius), strict=True):
                yield start + int(i), begin + int(j), (BITS - int(product[i, j])) // 2


def _signs(bits: Bits) -> NDArray[np.float32]:
    return np.unpackbits(bits, axis=1).astype(np.float32) * 2 - 1


def _connected(pairs: Sequence[Pair]) -> Iterator[Group]:
    parent: dict[int, int] = {}

    def root(i: int) -> int:
        while parent.setdefault(i, i) != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j, _, _ in pairs:
        parent[max(root(i), root(j))] = min(root(i), root(j))
    nearest: dict[int, tuple[int, bool]] = {}
    for i, _, distance, mirrored in pairs:
        nearest[root(i)] = min(nearest.get(root(i), (BITS, True)), (distance, mirrored))
    members: dict[int, list[int]] = defaultdict(list)
    for i in sorted(parent):
        members[root(i)].append(i)
    for top, found in members.items():
        yield Group(tuple(found), False, *nearest[top])
