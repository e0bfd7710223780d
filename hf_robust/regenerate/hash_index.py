"""Exact search for near perceptual hashes: every pair within a Hamming radius, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_CHUNK = 16  # bits looked up at once
_AT_ONCE = 1 << 20  # candidates compared at a time: the memory of a search
_ONES = np.array([n.bit_count() for n in range(1 << _CHUNK)], dtype=np.uint8)  # numpy counts bits only since 2.0


def packed(hashes: Sequence[str]) -> NDArray[np.uint16]:
    """Hexadecimal hashes of equal length as 16-bit words: uint16 (N, bits / 16).

    >>> packed(["0001ffff"]).tolist()
    [[1, 65535]]
    """
    lengths = {len(text) for text in hashes}
    if len(lengths) > 1 or any(n % 4 for n in lengths):
        raise ValueError(f"expected hashes of one length in 16-bit words, got {sorted(lengths)} hexadecimal digits")
    width = (lengths or {4}).pop() // 4
    return np.frombuffer(bytes.fromhex("".join(hashes)), dtype=">u2").astype(np.uint16).reshape(-1, width)


class HashIndex:
    """Distinct hashes that can be searched by Hamming distance.

    Multi-index hashing (Norouzi, Punjani, Fleet 2012, section 3): two hashes of m words that differ in at most r bits
    differ in at most a = r // m bits in one of the first r - m a + 1 words, or in at most a - 1 bits in one of the
    others. So every word has a table, and a query looks up all values that near to its own word. N hashes of 256 bits
    take 32 N bytes, and 64 N for the tables.
    """

    def __init__(self, hashes: NDArray[np.uint16], radius: int) -> None:
        """hashes: uint16 (N, words), each once. radius: bits, below their number."""
        if not 0 <= radius < hashes.shape[1] * _CHUNK:
            raise ValueError(f"expected a radius of 0 to {hashes.shape[1] * _CHUNK - 1} bits, got {radius}")
        self.hashes, self.radius = hashes, radius
        self._order = [np.argsort(column, kind="stable").astype(np.int32) for column in hashes.T]
        self._starts = [
            np.searchsorted(column[order], np.arange((1 << _CHUNK) + 1)).astype(np.int64)
            for column, order in zip(hashes.T, self._order, strict=True)
        ]
        words = hashes.shape[1]
        most, rest = divmod(radius, words)
        self._flips = [_flips(most if word <= rest else most - 1) for word in range(words)]

    def search(
        self, queries: NDArray[np.uint16], wanted: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Query position, index position and distance of every pair within the radius, sorted, each once.

        queries: uint16 (Q, words).  wanted: bool (N,), the hashes to be found.
        """
        found: list[NDArray[np.int64]] = []
        for word in range(queries.shape[1]):
            values = queries[:, word, None] ^ self._flips[word][None, :]  # (Q, flips)
            first, end = self._starts[word][values], self._starts[word][values.astype(np.int64) + 1]
            counts = (end - first).sum(axis=1)
            for rows in _blocks(counts):
                found += self._compare(queries, rows, word, first[rows], end[rows], wanted)
        pairs = np.concatenate([np.zeros((0, 3), np.int64), *found])
        _, once = np.unique(pairs[:, 0] * len(self.hashes) + pairs[:, 1], return_index=True)
        return pairs[once, 0], pairs[once, 1], pairs[once, 2]

    def _compare(
        self,
        queries: NDArray[np.uint16],
        rows: slice,
        word: int,
        first: NDArray[np.int64],
        end: NDArray[np.int64],
        wanted: NDArray[np.bool_],
    ) -> list[NDArray[np.int64]]:
        lengths = (end - first).ravel()
        query = np.repeat(np.arange(rows.start, rows.stop), (end - first).sum(axis=1))
        # place in the table: where the range of that flip begins, and how far into it
        place = np.repeat(first.ravel() - np.cumsum(lengths) + lengths, lengths) + np.arange(len(query))
        candidate = self._order[word][place]
        keep = wanted[candidate]
        query, candidate = query[keep], candidate[keep]
        distance = _differing_bits(queries[query], self.hashes[candidate])
        near = distance <= self.radius
        return [np.stack([query[near], candidate[near].astype(np.int64), distance[near]], axis=1)]


def _differing_bits(one: NDArray[np.uint16], other: NDArray[np.uint16]) -> NDArray[np.int64]:
    differing = one ^ other
    if hasattr(np, "bitwise_count") and differing.shape[1] % 4 == 0:
        ones = np.bitwise_count(differing.view(np.uint64))
    else:
        ones = _ONES[differing]
    total: NDArray[np.int64] = ones.sum(axis=1, dtype=np.int64)
    return total


def _flips(bits: int) -> NDArray[np.uint16]:
    """Every 16-bit mask with at most `bits` ones; none for -1."""
    masks = [sum(1 << b for b in chosen) for n in range(bits + 1) for chosen in combinations(range(_CHUNK), n)]
    return np.array(masks, dtype=np.uint16)


def _blocks(counts: NDArray[np.int64]) -> list[slice]:
    """Slices of the queries with about _AT_ONCE candidates each, at least one query."""
    blocks: list[slice] = []
    start, total = 0, 0
    for i, count in enumerate(counts.tolist()):
        if i > start and total + count > _AT_ONCE:
            blocks.append(slice(start, i))
            start, total = i, 0
        total += count
    return [*blocks, slice(start, len(counts))] if len(counts) else []
