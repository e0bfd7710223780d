"""Exact search for near perceptual hashes: the nearest within a Hamming radius."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_CHUNK = 16  # bits looked up at once
_QUERIES = 256  # looked up at a time, and
_AT_ONCE = 1 << 16  # candidates compared at a time: the memory of a search
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


def differing_bits(one: NDArray[np.uint16], other: NDArray[np.uint16]) -> NDArray[np.int64]:
    """In how many bits each of one differs from each of the other: int64 (N, M) of uint16 (N, words), (M, words)."""
    total = np.zeros((len(one), len(other)), np.int64)
    for own, others in zip(_columns(one), _columns(other), strict=True):
        total += _ones(own[:, None] ^ others[None, :])
    return total


class HashIndex:
    """Hashes that can be searched by Hamming distance.

    Multi-index hashing (Norouzi, Punjani, Fleet 2012, section 3): two hashes of m words that differ in at most r bits
    differ in at most a = r // m bits in one of the first r - m a + 1 words, or in at most a - 1 bits in one of the
    others. So every word has a table, and a query looks up all values that near to its own word. N hashes of 256 bits
    take 32 N bytes, and up to 64 N and 4 MB for the tables. Equal hashes slow the search down: give each once.
    """

    def __init__(self, hashes: NDArray[np.uint16], radius: int) -> None:
        """hashes: uint16 (N, words). radius: bits, below their number."""
        if not 0 <= radius < hashes.shape[1] * _CHUNK:
            raise ValueError(f"expected a radius of 0 to {hashes.shape[1] * _CHUNK - 1} bits, got {radius}")
        self._radius, self._columns = radius, _columns(hashes)
        place = np.min_scalar_type(len(hashes))  # two bytes are enough for 65,535
        self._order = [np.argsort(column, kind="stable").astype(place) for column in hashes.T]
        self._starts = [_starts(column) for column in hashes.T]
        words = hashes.shape[1]
        most, rest = divmod(radius, words)
        self._flips = [_flips(most if word <= rest else most - 1) for word in range(words)]

    def nearest(
        self, queries: NDArray[np.uint16], holders: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Holder of the nearest hash within the radius, and the differing bits; -1 and the radius + 1 without one.

        Of equally near ones the smallest holder counts.
        queries: uint16 (Q, words).  holders: int64 (N,), what each hash stands for; -1 for those not to be found.
        """
        # both in one number, so that the smallest is the nearest, and of those the first
        size = int(holders.max(initial=0)) + 1
        best = np.full(len(queries), (self._radius + 1) * size, np.int64)
        for start in range(0, len(queries), _QUERIES):
            block = slice(start, start + _QUERIES)
            self._search(queries[block], holders, size, best[block])
        bits, found = np.divmod(best, size)
        return np.where(bits <= self._radius, found, -1), bits

    def _search(
        self, queries: NDArray[np.uint16], holders: NDArray[np.int64], size: int, best: NDArray[np.int64]
    ) -> None:
        columns = _columns(queries)
        for word, (flips, starts) in enumerate(zip(self._flips, self._starts, strict=True)):
            values = (queries[:, word, None] ^ flips[None, :]).astype(np.intp)  # (Q, flips)
            first, end = starts[values], starts[values + 1]
            counts = end - first
            for rows in _blocks(counts.sum(axis=1)):
                self._compare(columns, rows, self._order[word], first[rows], counts[rows], holders, size, best)

    def _compare(
        self,
        queries: list[NDArray[np.uint64]],
        rows: slice,
        order: NDArray[np.unsignedinteger],
        first: NDArray[np.int32],
        counts: NDArray[np.int32],
        holders: NDArray[np.int64],
        size: int,
        best: NDArray[np.int64],
    ) -> None:
        """Lower `best` by the hashes order[first : first + counts] of each of these queries' flips."""
        lengths = counts.ravel()
        query = np.repeat(np.arange(rows.start, rows.stop), counts.sum(axis=1))
        # place in the table: where the range of that flip begins, and how far into it
        place = np.repeat(first.ravel() - np.cumsum(lengths) + lengths, lengths) + np.arange(len(query))
        candidate = order[place]
        keep = holders[candidate] >= 0
        query, candidate = query[keep], candidate[keep]
        distance = np.zeros(len(query), np.int64)
        for own, others in zip(queries, self._columns, strict=True):
            distance += _ones(own[query] ^ others[candidate])
            near = distance <= self._radius
            if np.count_nonzero(near) < len(near) / 2:  # what is too far already need not be compared in full
                query, candidate, distance = query[near], candidate[near], distance[near]
        near = distance <= self._radius
        np.minimum.at(best, query[near], distance[near] * size + holders[candidate[near]])


def _columns(hashes: NDArray[np.uint16]) -> list[NDArray[np.uint64]]:
    """The 64-bit words of hashes one after another: each (N,), filled up with zeros."""
    filled = np.zeros((len(hashes), -(-hashes.shape[1] // 4) * 4), np.uint16)
    filled[:, : hashes.shape[1]] = hashes
    return [np.ascontiguousarray(column) for column in filled.view(np.uint64).T]


def _ones(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    if hasattr(np, "bitwise_count"):
        counted: NDArray[np.uint8] = np.bitwise_count(words)
        return counted
    total: NDArray[np.uint8] = _ONES[words.view(np.uint16).reshape(*words.shape, 4)].sum(axis=-1, dtype=np.uint8)
    return total


def _starts(column: NDArray[np.uint16]) -> NDArray[np.int32]:
    """Where the hashes with each value of a word begin in its table, and where the last end."""
    starts = np.zeros((1 << _CHUNK) + 1, np.int32)
    np.cumsum(np.bincount(column, minlength=1 << _CHUNK), dtype=np.int32, out=starts[1:])
    return starts


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
