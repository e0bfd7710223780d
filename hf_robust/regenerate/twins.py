"""Which of many pictures show the same photo as an earlier one: equal bytes, near hashes, similar embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .embedding_index import EmbeddingIndex
from .hash_index import HashIndex

Kind = Literal["exact", "hash", "embedding"]
_BLOCK = 256  # rows decided at once


@dataclass(frozen=True)
class Twin:
    """Why a picture goes: the earlier one that stays, how they were found, and how far apart they are.

    distance  0 for equal bytes, differing bits of the hashes, or one minus the cosine.
    """

    row: int
    kind: Kind
    distance: float


@dataclass(frozen=True)
class Marks:
    """Pictures in order of preference, the references first; row i may only go for the sake of an earlier one.

    sha256      of the bytes.
    hashes      uint16 (N, words) of the picture and of its mirror image.
    embeddings  float16 (N, D), None without a model.
    fixed       how many are of references: they always stay.
    """

    sha256: Sequence[bytes] | NDArray[np.bytes_]
    hashes: NDArray[np.uint16]
    mirrored: NDArray[np.uint16]
    embeddings: NDArray[np.float16] | None
    fixed: int


def find_twins(marks: Marks, *, hash_bits: int, cosine: float) -> dict[int, Twin]:
    """Row -> the earlier row that it duplicates; rows that are not there stay.

    In order of preference: a row goes if it is within the limits of a row that stays. So everything that goes is near
    something that stays, and chains of ever less similar pictures are not drawn in. Equal bytes count before hashes,
    hashes before embeddings, the smaller distance before the larger, the earlier row before the later.
    """
    distinct, member = np.unique(marks.hashes, axis=0, return_inverse=True)
    member = member.reshape(-1)
    index = HashIndex(distinct, hash_bits)
    similar = None if marks.embeddings is None else EmbeddingIndex(marks.embeddings, cosine)
    holder = np.full(len(distinct), -1, np.int64)  # the row that stays with this hash: there is at most one
    stays = np.zeros(len(marks.sha256), bool)
    first: dict[bytes, int] = {}
    twins: dict[int, Twin] = {}
    for row in range(marks.fixed):
        first.setdefault(marks.sha256[row], row)
        stays[row] = True
        holder[member[row]] = row if holder[member[row]] < 0 else holder[member[row]]
    for start in range(marks.fixed, len(marks.sha256), _BLOCK):
        end = min(start + _BLOCK, len(marks.sha256))
        maybe = holder >= 0
        maybe[member[start:end]] = True
        near = _near_hashes(index, marks, start, end, maybe)
        alive = stays.copy()
        alive[start:end] = True
        alike = _grouped(*similar.search(start, end, alive)) if similar is not None else {}
        for row in range(start, end):
            twin = _twin(row, first.get(marks.sha256[row]), near.get(row, ()), alike.get(row, ()), holder, stays)
            if twin is not None:
                twins[row] = twin
                continue
            stays[row], holder[member[row]] = True, row
            first[marks.sha256[row]] = row
    return twins


def _near_hashes(
    index: HashIndex, marks: Marks, start: int, end: int, maybe: NDArray[np.bool_]
) -> dict[int, list[tuple[int, float]]]:
    """Row -> (distinct hash, bits) within the radius of its hash or of its mirror image's."""
    found: dict[int, list[tuple[int, float]]] = {}
    for queries in (marks.hashes, marks.mirrored):
        rows, hashes, bits = index.search(queries[start:end], maybe)
        for row, pairs in _grouped(rows + start, hashes, bits).items():
            found.setdefault(row, []).extend(pairs)
    return found


def _grouped(
    rows: NDArray[np.int64], others: NDArray[np.int64], values: NDArray[np.int64] | NDArray[np.float64]
) -> dict[int, list[tuple[int, float]]]:
    found: dict[int, list[tuple[int, float]]] = {}
    for row, other, value in zip(rows.tolist(), others.tolist(), values.tolist(), strict=True):
        found.setdefault(row, []).append((other, value))
    return found


def _twin(
    row: int,
    same: int | None,
    near: Iterable[tuple[int, float]],
    alike: Iterable[tuple[int, float]],
    holder: NDArray[np.int64],
    stays: NDArray[np.bool_],
) -> Twin | None:
    if same is not None:
        return Twin(same, "exact", 0.0)
    hashes = [(bits, int(holder[h])) for h, bits in near if 0 <= holder[h] < row]
    if hashes:
        bits, other = min(hashes)
        return Twin(other, "hash", float(bits))
    vectors = [(1.0 - value, other) for other, value in alike if stays[other]]
    return Twin(min(vectors)[1], "embedding", max(0.0, min(vectors)[0])) if vectors else None
