"""Stage `duplicates`: of pictures that show the same photo one stays, and none that a reference set holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from .fingerprint import EMBEDDING, HASH, MIRRORED
from .hash_index import packed
from .ledger import KEEP, REASON, ROW_ID, Ledger
from .references import SHA256, Reference, embeddings_of, fingerprinted, open_reference
from .row_file import RowFile, TextFile
from .stage import Stage, StageError, Whole, Work
from .twins import KINDS, Marks, Twins, find_twins

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
        with ExitStack() as stack:
            pictures = _pictures(ledger, references, work.out, stack, side * side // 16)
            twins = find_twins(pictures.marks, hash_bits=settings.hash_bits, cosine=settings.cosine, folder=work.out)
            done = 0
            for rows in ledger.tables(()):
                kept = np.array(rows[KEEP].to_pylist(), bool)
                own = pictures.ranks[done : done + int(kept.sum())]
                done += len(own)
                yield _table(rows, kept, twins, twins.places(own), pictures)

    return Whole({"references": [reference.facts for reference in references]}, make)


@dataclass(frozen=True)
class _Pictures:
    """References and kept rows in order of preference: their marks and names, and where each kept row stands."""

    marks: Marks
    names: TextFile
    ranks: NDArray[np.int64]


def _pictures(ledger: Ledger, references: Sequence[Reference], folder: Path, stack: ExitStack, words: int) -> _Pictures:
    """Everything but the ranks goes to files without a name in `folder`, until the stack is closed.

    words  16-bit words of a hash.
    """
    fixed = sum(reference.rows for reference in references)
    ranks = fixed + _preference(ledger)
    total, done = fixed + len(ranks), 0

    def of(width: int | None, dtype: DTypeLike) -> RowFile:
        return stack.enter_context(closing(RowFile(total, width, dtype, folder)))

    sha256, hashes, mirrored = of(None, "S32"), of(words, np.uint16), of(words, np.uint16)
    names = stack.enter_context(closing(TextFile(total, folder)))
    vectors: RowFile | None = None
    for table, texts in _tables(ledger, references):
        rows = np.arange(done, done + len(table))
        rows = rows if done < fixed else ranks[rows - fixed]
        done += len(table)
        names.put(rows, texts)
        sha256.put(rows, np.array([bytes.fromhex(text) for text in table[SHA256].to_pylist()], "S32"))
        hashes.put(rows, packed(table[HASH].to_pylist()))
        mirrored.put(rows, packed(table[MIRRORED].to_pylist()))
        if EMBEDDING in table.column_names:
            found = embeddings_of(table)
            vectors = vectors or of(found.shape[1], np.float16)
            vectors.put(rows, found)
    return _Pictures(Marks(sha256, hashes, mirrored, vectors, fixed), names, ranks)


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
    pixels, ids, count = np.zeros(ledger.rows, np.int64), np.zeros(ledger.rows, np.uint64), 0
    for table in ledger.tables(columns):
        kept = table.filter(table[KEEP])
        rows = slice(count, count + len(kept))
        count += len(kept)
        if columns:
            width, height = (np.array(kept[name].to_pylist(), np.int64) for name in columns)
            pixels[rows] = -width * height
        # the first 16 digits of an id are no other row's: the first stage sees to it
        ids[rows] = [int(key[:16], 16) for key in kept[ROW_ID].to_pylist()]
    order = np.lexsort((ids[:count], pixels[:count]))
    ranks = np.empty(count, np.int64)
    ranks[order] = np.arange(count)
    return ranks


def _table(
    rows: pa.Table, kept: NDArray[np.bool_], twins: Twins, places: NDArray[np.int64], pictures: _Pictures
) -> pa.Table:
    """The columns of a part: `places` says of each kept row which record of the twins is its own, -1 for none."""
    found: NDArray[np.int64] = np.full(len(rows), -1, np.int64)
    found[kept] = places
    goes = found >= 0
    records = twins.records[found[goes]]
    names, reasons, kinds = (np.full(len(rows), None, object) for _ in range(3))
    names[goes] = pictures.names[records["other"]]
    reasons[goes] = np.where(records["other"] < pictures.marks.fixed, IN_REFERENCE, IN_POOL)
    kinds[goes] = np.array(KINDS)[records["kind"]]
    distances = np.zeros(len(rows), np.float32)
    distances[goes] = records["distance"]
    return pa.table(
        {
            ROW_ID: rows[ROW_ID],
            "duplicate_of": pa.array(names, pa.string()),
            "duplicate_kind": pa.array(kinds, pa.string()),
            "duplicate_distance": pa.array(distances, pa.float32(), mask=~goes),
            KEEP: pa.array(~goes, pa.bool_(), mask=~kept),
            REASON: pa.array(reasons, pa.string()),
        }
    )


DUPLICATES = Stage(
    "duplicates",
    "one of each photo stays, and none that a reference set holds",
    DuplicatesSettings,
    start_duplicates,
)
