"""Stage `duplicates`: of pictures that show the same photo one stays, and none that a reference set holds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .fingerprint import EMBEDDING, HASH, MIRRORED
from .hash_index import packed
from .ledger import KEEP, REASON, ROW_ID, Ledger
from .references import SHA256, Reference, embeddings_of, fingerprinted, open_reference
from .stage import Stage, StageError, Whole, Work
from .twins import Marks, Twin, find_twins

IN_POOL, IN_REFERENCE = "duplicate in the pool", "in the reference set"


@dataclass(frozen=True)
class DuplicatesSettings:
    """When two pictures are the same photo: equal bytes, or near hashes, or similar embeddings.

    references  what the new set must not hold: folders, shards, hf://OWNER/NAME, names of built data sets, or
                *.hashes.parquet of earlier releases.
    hash_bits   at most this many bits of the perceptual hashes differ, mirrored or not.
    cosine      at least this cosine of the embeddings; read where the stage `fingerprint` has made some.

    Both defaults are measured on photos (bench/duplicates.py) with 256-bit hashes and EfficientNet-Lite0.
    """

    references: tuple[str, ...] = ()
    hash_bits: int = 47
    cosine: float = 0.9


def start_duplicates(settings: DuplicatesSettings, work: Work) -> Whole:
    """Decides over all kept rows; errors as `open_reference`."""
    references = [open_reference(text, work) for text in settings.references]
    side = fingerprinted(work.ledger)["settings"]["hash_side"]
    if not 0 <= settings.hash_bits < side * side or not -1 < settings.cosine <= 1:
        raise StageError(
            f"expected hash_bits of 0 to {side * side - 1} and a cosine above -1 and at most 1, got "
            f"{settings.hash_bits} and {settings.cosine}"
        )

    def make(ledger: Ledger) -> Iterator[pa.Table]:
        with tempfile.TemporaryDirectory(dir=work.out) as scratch:
            marks, ids = _marks(ledger, references, Path(scratch), side * side // 16)
            twins = find_twins(marks, hash_bits=settings.hash_bits, cosine=settings.cosine)
            found = {ids[row]: (twin, ids[twin.row], twin.row < marks.fixed) for row, twin in twins.items()}
        yield from (_table(rows, found) for rows in ledger.tables(()))

    return Whole({"references": [reference.facts for reference in references]}, make)


def _marks(ledger: Ledger, references: Sequence[Reference], scratch: Path, words: int) -> tuple[Marks, list[str]]:
    """The marks of references and kept rows, larger pictures first, and their ids.

    words  16-bit words of a hash. Embeddings go to a file in `scratch`, of which only what is compared is in memory.
    """
    fixed = sum(reference.rows for reference in references)
    ranks = fixed + _preference(ledger)
    total = fixed + len(ranks)
    ids: list[str] = [""] * total
    sha256 = np.zeros(total, "S32")
    hashes, mirrored = [np.zeros((0, words), np.uint16)], [np.zeros((0, words), np.uint16)]
    places, done = [np.zeros(0, np.int64)], 0
    vectors: NDArray[np.float16] | None = None
    for table, names in _tables(ledger, references):
        rows = np.arange(done, done + len(table))
        rows = rows if done < fixed else ranks[rows - fixed]
        done += len(table)
        for row, name in zip(rows.tolist(), names, strict=True):
            ids[row] = name
        sha256[rows] = [bytes.fromhex(text) for text in table[SHA256].to_pylist()]
        hashes.append(packed(table[HASH].to_pylist()))
        mirrored.append(packed(table[MIRRORED].to_pylist()))
        places.append(rows)
        if EMBEDDING in table.column_names:
            found = embeddings_of(table)
            if vectors is None:
                vectors = np.memmap(scratch / "embeddings", np.float16, "w+", shape=(total, found.shape[1]))
            vectors[rows] = found
    order = np.argsort(np.concatenate(places), kind="stable")
    one, other = np.concatenate(hashes)[order], np.concatenate(mirrored)[order]
    return Marks(sha256, one, other, vectors, fixed), ids


def _tables(ledger: Ledger, references: Sequence[Reference]) -> Iterator[tuple[pa.Table, list[str]]]:
    """Every table that has rows, and the names of its rows: first the references', then the kept rows."""
    for reference in references:
        for table in reference.tables():
            if len(table):
                yield table, table["id"].to_pylist()
    columns = tuple(n for n in (SHA256, HASH, MIRRORED, EMBEDDING) if n in ledger.columns)
    for table in ledger.tables(columns):
        kept = table.filter(table[KEEP])
        if len(kept):
            yield kept, kept[ROW_ID].to_pylist()


def _preference(ledger: Ledger) -> NDArray[np.int64]:
    """The rank of each kept row, in ledger order: the picture with more pixels first, then by row id."""
    columns = ("width", "height") if {"width", "height"} <= set(ledger.columns) else ()
    pixels, ids = [np.zeros(0, np.int64)], [np.zeros(0, "S32")]
    for table in ledger.tables(columns):
        kept = table.filter(table[KEEP])
        sides = [np.array(kept[name].to_pylist(), np.int64) for name in columns]
        pixels.append(sides[0] * sides[1] if sides else np.zeros(len(kept), np.int64))
        ids.append(np.array(kept[ROW_ID].to_pylist(), "S32"))
    order = np.lexsort((np.concatenate(ids), -np.concatenate(pixels)))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def _table(rows: pa.Table, twins: Mapping[str, tuple[Twin, str, bool]]) -> pa.Table:
    found = [twins.get(key) for key in rows[ROW_ID].to_pylist()]
    kept = [twin is None if was else None for twin, was in zip(found, rows[KEEP].to_pylist(), strict=True)]
    return pa.table(
        {
            ROW_ID: rows[ROW_ID],
            "duplicate_of": pa.array([None if t is None else t[1] for t in found], pa.string()),
            "duplicate_kind": pa.array([None if t is None else t[0].kind for t in found], pa.string()),
            "duplicate_distance": pa.array([None if t is None else t[0].distance for t in found], pa.float32()),
            KEEP: pa.array(kept, pa.bool_()),
            REASON: pa.array([None if t is None else IN_REFERENCE if t[2] else IN_POOL for t in found], pa.string()),
        }
    )


DUPLICATES = Stage(
    "duplicates",
    "one of each photo stays, and none that a reference set holds",
    DuplicatesSettings,
    start_duplicates,
)
