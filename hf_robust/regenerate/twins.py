"""Which of many pictures show the same photo as an earlier one: equal bytes, near hashes, similar embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .embedding_index import EmbeddingIndex
from .hash_index import HashIndex, differing_bits
from .row_file import Rows

Kind = Literal["exact", "hash", "embedding"]
KINDS: tuple[Kind, ...] = ("exact", "hash", "embedding")
RECORD = np.dtype([("row", np.int64), ("other", np.int64), ("kind", np.uint8), ("distance", np.float64)])
_SEGMENT = 1 << 15  # rows whose marks are in memory at once
_BLOCK = 256  # rows decided at once
_ROW_BITS = 40
_ROW_MASK = (1 << _ROW_BITS) - 1
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Twin:
    """Why a picture goes: the earlier one that stays, how they were found, and how far apart they are.

    distance  0 for equal bytes, differing bits of the hashes, or one minus the cosine.
    """

    row: int
    kind: Kind
    distance: float


class Twins(Mapping[int, Twin]):
    """Row -> the earlier row that it duplicates; rows that are not there stay. 25 bytes a row that goes."""

    def __init__(self, records: NDArray[np.void]) -> None:
        """records: one a row that goes, of the type RECORD, ascending by row."""
        self.records = records

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Position in `records` of each of these rows; -1 for those that stay."""
        places = np.searchsorted(self.records["row"], rows)
        places[places == len(self.records)] = -1
        return np.where(self.records["row"][places] == rows, places, -1) if len(self.records) else places

    def __getitem__(self, row: int) -> Twin:
        place = int(self.places(np.array([row], np.int64))[0])
        if place < 0:
            raise KeyError(row)
        _, other, kind, distance = self.records[place].tolist()
        return Twin(other, KINDS[kind], distance)

    def __iter__(self) -> Iterator[int]:
        return iter(self.records["row"].tolist())

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Marks:
    """Pictures in order of preference, the references first; row i may only go for the sake of an earlier one.

    Arrays, or files of which a few ten thousand rows are in memory at a time.

    sha256      S32 (N,), of the bytes.
    hashes      uint16 (N, words) of the picture and of its mirror image.
    embeddings  float16 (N, D), None without a model.
    fixed       how many are of references: they always stay.
    """

    sha256: Rows
    hashes: Rows
    mirrored: Rows
    embeddings: Rows | None
    fixed: int


def find_twins(
    marks: Marks, *, hash_bits: int, cosine: float, folder: Path | None = None, segment: int = _SEGMENT
) -> Twins:
    """Row -> the earlier row that it duplicates; rows that are not there stay.

    In order of preference: a row goes if it is within the limits of a row that stays. So everything that goes is near
    something that stays, and chains of ever less similar pictures are not drawn in. Equal bytes count before hashes,
    hashes before embeddings, the smaller distance before the larger, the earlier row before the later.

    The rows are decided in segments, each compared with what stays of every earlier one: the memory is that of a
    segment and one byte a row, whatever stays, and the result does not depend on where they are cut.

    folder   where files without a name lie meanwhile; None for that of the system.
    segment  rows.
    """
    stays = np.arange(len(marks.sha256)) < marks.fixed
    records = [np.zeros(0, RECORD)]
    earlier = _cut(0, marks.fixed, segment)
    with ExitStack() as stack:
        similar = None
        if marks.embeddings is not None:
            similar = stack.enter_context(closing(EmbeddingIndex(marks.embeddings, cosine, folder)))
        for rows in _cut(marks.fixed, len(stays), segment):
            records += _compared(marks, rows, earlier, stays, hash_bits).decide(stays, similar)
            earlier.append(rows)
    return Twins(np.concatenate(records))


def _compared(
    marks: Marks, rows: slice, earlier: Sequence[slice], stays: NDArray[np.bool_], hash_bits: int
) -> _Segment:
    segment = _Segment(marks, rows, hash_bits)
    for others in earlier:
        segment.compare(marks, others, stays)
    return segment


def _cut(start: int, end: int, size: int) -> list[slice]:
    return [slice(first, min(end, first + size)) for first in range(start, end, size)]


class _Segment:
    """Rows that are decided together, and what of the rows before them that stay is nearest to each."""

    def __init__(self, marks: Marks, rows: slice, hash_bits: int) -> None:
        self._rows, self._radius = rows, hash_bits
        self._hashes, self._mirrored = marks.hashes[rows], marks.mirrored[rows]
        self._bytes, self._group = np.unique(marks.sha256[rows], return_inverse=True)
        self._first = np.full(len(self._bytes), -1, np.int64)  # the row that stays with these bytes
        # bits and row in one number: the smallest is the nearest, and of those the first
        self._nearest = np.full(rows.stop - rows.start, _FAR, np.int64)

    def compare(self, marks: Marks, others: slice, stays: NDArray[np.bool_]) -> None:
        """Look for twins in an earlier segment."""
        kept = np.flatnonzero(stays[others])
        if not len(kept):
            return
        self._find_bytes(marks.sha256[others][kept], kept + others.start)
        # references may have equal hashes: the first counts
        distinct, once = np.unique(marks.hashes[others][kept], axis=0, return_index=True)
        index, holders = HashIndex(distinct, self._radius), kept[once] + others.start
        for queries in (self._hashes, self._mirrored):
            np.minimum(self._nearest, _joined(*index.nearest(queries, holders)), out=self._nearest)

    def _find_bytes(self, sha256: NDArray[np.bytes_], rows: NDArray[np.int64]) -> None:
        places = np.minimum(np.searchsorted(self._bytes, sha256), len(self._bytes) - 1)
        same = (self._bytes[places] == sha256) & (self._first[places] < 0)
        self._first[places[same][::-1]] = rows[same][::-1]  # of several assignments the last holds: the first row

    def decide(self, stays: NDArray[np.bool_], similar: EmbeddingIndex | None) -> Iterator[NDArray[np.void]]:
        """The records of the rows that go, block by block; sets `stays` of the others."""
        distinct, member = np.unique(self._hashes, axis=0, return_inverse=True)
        index, holders = HashIndex(distinct, self._radius), np.full(len(distinct), -1, np.int64)
        member = member.reshape(-1)
        for first in range(0, len(member), _BLOCK):
            block = slice(first, min(len(member), first + _BLOCK))
            nearest = self._nearest[block]
            for queries in (self._hashes[block], self._mirrored[block]):
                nearest = np.minimum(nearest, _joined(*index.nearest(queries, holders)))
            start, end = self._rows.start + block.start, self._rows.start + block.stop
            near = _Choice(start, nearest >> _ROW_BITS, np.where(nearest < _FAR, nearest & _ROW_MASK, -1))
            near.add(*self._near_within(block))
            alike = None
            if similar is not None:
                earlier, apart = similar.nearest(start, end, stays)
                alike = _Choice(start, apart, earlier)
                alike.add(*similar.within(start, end))
            yield self._decide_block(block, near, alike, stays)
            staying = np.flatnonzero(stays[start:end])
            holders[member[block][staying]] = staying + start

    def _near_within(self, block: slice) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Row, earlier row and bits of the near pairs in a block."""
        own = self._hashes[block]
        bits = np.minimum(differing_bits(own, own), differing_bits(self._mirrored[block], own))
        rows, others = np.nonzero(np.tril(bits <= self._radius, -1))
        start = self._rows.start + block.start
        return rows + start, others + start, bits[rows, others]

    def _decide_block(
        self, block: slice, near: _Choice, alike: _Choice | None, stays: NDArray[np.bool_]
    ) -> NDArray[np.void]:
        records: list[tuple[int, int, int, float]] = []
        for row, group in enumerate(self._group[block].tolist(), self._rows.start + block.start):
            if (same := int(self._first[group])) >= 0:
                records.append((row, same, 0, 0.0))
            elif (hashed := near.least(row, stays)) is not None:
                records.append((row, hashed[1], 1, hashed[0]))
            elif alike is not None and (similar := alike.least(row, stays)) is not None:
                records.append((row, similar[1], 2, max(0.0, similar[0])))
            else:
                stays[row], self._first[group] = True, row
        return np.array(records, RECORD)


class _Choice:
    """For each row of a block the nearest row before the block that stays, and the near ones inside it."""

    def __init__(
        self, start: int, distances: NDArray[np.int64] | NDArray[np.float64], others: NDArray[np.int64]
    ) -> None:
        """others: -1 where there is none."""
        self._before = dict(enumerate(zip(distances.tolist(), others.tolist(), strict=True), start))
        self._inside: dict[int, list[tuple[float, int]]] = {}

    def add(
        self, rows: NDArray[np.int64], others: NDArray[np.int64], distances: NDArray[np.int64] | NDArray[np.float64]
    ) -> None:
        """Pairs inside the block, of which the earlier row may stay or not."""
        for row, other, distance in zip(rows.tolist(), others.tolist(), distances.tolist(), strict=True):
            self._inside.setdefault(row, []).append((distance, other))

    def least(self, row: int, stays: NDArray[np.bool_]) -> tuple[float, int] | None:
        """The smallest distance, and of those the first row that stays."""
        found = [pair for pair in self._inside.get(row, ()) if stays[pair[1]]]
        if self._before[row][1] >= 0:
            found.append(self._before[row])
        return min(found, default=None)


def _joined(rows: NDArray[np.int64], bits: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(rows < 0, _FAR, (bits << _ROW_BITS) + rows)
