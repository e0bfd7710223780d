"""Parts of a source: how it is cut, how a part is written whole, and the proof that every row is there once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..schema import ID, predictions_schema
from .plan import PLAN_FILE, SOURCE_FILE, SourcePlan, canonical, read_json, write_json
from .temporary import renamed

PART_ROWS = 100
RUN_FILE = "run.json"
_FOOTER = b"hf_robust"
Item = TypeVar("Item")
_MOST_KNOWN = 100_000  # parts, about 50 MB
_WHOLE: dict[Path, tuple[int, int, int, str, str]] = {}  # parts of which this process knows that they are whole


@dataclass(frozen=True)
class RowTable:
    """The rows of a data set without their pictures.

    ids      readable and unique.
    keys     what a picture is known by before it is read: its SHA-256, or its size in bytes for a folder read in place.
    labels   every acceptable ImageNet-1k index of each row; empty where the picture shows none of the classes.
    groups   column name -> values, one a row.
    """

    ids: tuple[str, ...]
    keys: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    groups: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __post_init__(self) -> None:
        if len(set(self.ids)) != len(self.ids):
            seen: set[str] = set()
            double = next(i for i in self.ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise ValueError(f"expected unique ids, got {double!r} more than once: rename one of the two pictures")


@dataclass(frozen=True)
class Part:
    """A fixed piece of a source: `rows` are positions in its table."""

    index: int
    rows: tuple[int, ...]
    fingerprint: str

    @property
    def file_name(self) -> str:
        """Name of the part's file in the source's folder."""
        return part_path(Path(), self.index).name


def cut(table: RowTable, *, by_class: bool) -> tuple[Part, ...]:
    """The parts of a table: one a class, or PART_ROWS rows each in table order."""
    if by_class:
        classes: dict[int, list[int]] = {}
        for i, labels in enumerate(table.labels):
            classes.setdefault(labels[0], []).append(i)
        pieces = sorted(classes.items())
    else:
        starts = range(0, len(table), PART_ROWS)
        pieces = [(n, list(range(s, min(s + PART_ROWS, len(table))))) for n, s in enumerate(starts)]
    return tuple(Part(index, tuple(rows), fingerprint(table, rows)) for index, rows in pieces)


def fingerprint(table: RowTable, rows: Iterable[int]) -> str:
    """SHA-256 over id, key, labels and groups of these rows, in order."""
    digest = hashlib.sha256()
    for i in rows:
        groups = {name: values[i] for name, values in sorted(table.groups.items())}
        digest.update(canonical([table.ids[i], table.keys[i], list(table.labels[i]), groups]).encode() + b"\n")
    return digest.hexdigest()


def ids_hash(ids: Iterable[str]) -> str:
    """SHA-256 of the sorted ids, one a line."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def part_table(
    table: RowTable,
    part: Part,
    sha256: Sequence[str | None],
    errors: Sequence[str | None],
    outputs: Mapping[str, NDArray[np.float32]],
) -> pa.Table:
    """The predictions of one part.

    sha256, errors  one a row; a row with an error has null outputs.
    outputs         column -> float32 (rows, width) or (rows,).
    """
    # the type is that of the whole column: a part whose values are all null has the columns of every other part
    groups = {n: pa.array([values[i] for i in part.rows], pa.infer_type(values)) for n, values in table.groups.items()}
    widths = {name: None if values.ndim == 1 else values.shape[1] for name, values in outputs.items()}
    schema = predictions_schema(widths, [pa.field(name, values.type) for name, values in groups.items()])
    missing = np.array([error is not None for error in errors], dtype=bool)
    columns: dict[str, Any] = {
        "id": [table.ids[i] for i in part.rows],
        "image_sha256": list(sha256),
        "labels": [list(table.labels[i]) for i in part.rows],
        "error": list(errors),
        **groups,
        **{name: _column(values, missing) for name, values in outputs.items()},
    }
    values = [columns[f.name] for f in schema]
    arrays = [pa.array(v, f.type) if isinstance(v, list) else v for v, f in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _column(values: NDArray[np.float32], missing: NDArray[np.bool_]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values, pa.float32(), mask=missing)
    lengths = np.where(missing, 0, values.shape[1])
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    flat = pa.array(values[~missing].reshape(-1), pa.float32())
    return pa.ListArray.from_arrays(offsets, flat, mask=pa.array(missing))


def write_part(folder: Path, part: Part, table: pa.Table) -> None:
    """Put a part in its place by rename; writing the same part twice is harmless."""
    records = records_hash(folder)
    footer = {
        "fingerprint": part.fingerprint,
        "rows": len(table),
        "ids": ids_hash(table[ID].to_pylist()),
        "records": records,
        "content": content_hash(table),
    }
    path = folder / part.file_name
    put_table(path, table, footer)
    _WHOLE[path] = (*_state(path), part.fingerprint, records)


def put_table(path: Path, table: pa.Table, footer: Mapping[str, Any]) -> None:
    """Write a table with `footer` beside its schema, by rename; equal tables give equal bytes."""
    put_tables(path, table.schema, [table], footer)


def put_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table], footer: Mapping[str, Any]) -> None:
    """The same for tables of one schema, of which only one is in memory; each is a row group."""
    schema = schema.with_metadata({_FOOTER: canonical(dict(footer)).encode()})
    with (
        renamed(path) as temporary,
        pq.ParquetWriter(
            temporary, schema, compression="zstd", use_dictionary=False, write_statistics=False,
            write_page_checksum=True,
        ) as writer,
    ):  # fmt: skip
        for table in tables:
            writer.write_table(table.cast(schema))


def read_footer(path: Path) -> dict[str, Any] | None:
    """Fingerprint, row count and id hash of a part; None where it is absent or not whole."""
    try:
        return footer_of(pq.read_schema(path)) or None
    except (OSError, pa.ArrowInvalid):  # absent, cut short, or with a footer of other bytes
        return None


def footer_of(schema: pa.Schema) -> dict[str, Any]:
    """What `put_table` wrote beside a schema; empty where that was another program."""
    metadata = schema.metadata or {}
    return dict(json.loads(metadata[_FOOTER])) if _FOOTER in metadata else {}


def records_hash(folder: Path) -> str:
    """SHA-256 over the plan and the source's plan as they stand beside a part: whose predictions it holds."""
    paths = (folder.parent / PLAN_FILE, folder / SOURCE_FILE)
    return _records_hash(tuple((path, *_state(path)) for path in paths))


def _state(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


@lru_cache(maxsize=64)  # asked for with every part
def _records_hash(files: tuple[tuple[Path, int, int, int], ...]) -> str:
    records = [read_json(path) if path.is_file() else None for path, *_ in files]
    return hashlib.sha256(canonical(records).encode()).hexdigest()


def content_hash(table: pa.Table) -> str:
    """SHA-256 over every value of a table, whatever the layout of its memory."""
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table[name].combine_chunks()
        digest.update(f"{name}:{len(column)}:".encode())
        if not pa.types.is_list(column.type) or not pa.types.is_float32(column.type.value_type):
            digest.update(canonical(column.to_pylist()).encode())
            continue
        lengths = column.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(lengths, dtype=np.int64).data)
        digest.update(np.ascontiguousarray(column.flatten().to_numpy(zero_copy_only=False)).data)
    return digest.hexdigest()


def work_list(parts: Sequence[Item], rank: int, size: int) -> tuple[Item, ...]:
    """The order in which one of `size` processes goes through the parts.

    First its own (position % size == rank), then the others', from the end of each list, so that a helper starts with
    what its owner would reach last.
    """
    own = parts[rank::size]
    others = [part for step in range(1, size) for part in reversed(parts[(rank + step) % size :: size])]
    return (*own, *others)


def is_present(folder: Path, part: Part) -> bool:
    """Whether this part, made from these very rows under the plan that stands beside it, is there and undamaged."""
    return _is_whole(folder / part.file_name, part.fingerprint)


def present_parts(folder: Path, source: SourcePlan, asked: Collection[int] | None = None) -> tuple[int, ...]:
    """Indices of the parts of a source that are there, whole, and made from the rows that its plan names.

    asked  only these are looked at: reading one class of a thousand must not read the other parts.
    """
    parts = [(i, mark) for i, _, mark in source.parts if asked is None or i in asked]
    return tuple(i for i, mark in parts if _is_whole(part_path(folder, i), mark))


def part_path(folder: Path, index: int) -> Path:
    """Where the part of that index lies."""
    return folder / f"part-{index:05d}.parquet"


def _is_whole(path: Path, fingerprint: str) -> bool:
    """Reads the whole part, but once a process: a file that was written or read here and did not change since is known.

    A change is told by time, size and inode; damage by the disk alone is found by the next process.
    """
    mark = (*_state(path), fingerprint, records_hash(path.parent))
    if _WHOLE.get(path) == mark:
        return True
    if not _was_read_whole(path, fingerprint):
        return False
    while len(_WHOLE) >= _MOST_KNOWN:
        _WHOLE.pop(next(iter(_WHOLE)))
    _WHOLE[path] = mark
    return True


def _was_read_whole(path: Path, fingerprint: str) -> bool:
    footer = read_footer(path)
    if footer is None or footer.get("fingerprint") != fingerprint or footer.get("records") != records_hash(path.parent):
        return False
    try:
        return bool(footer.get("content") == content_hash(pq.read_table(path)))
    except (OSError, ValueError, TypeError, pa.ArrowException):  # pages or columns of other bytes, or NaN for a number
        return False


def finish(folder: Path) -> None:
    """Write run.json for the parts that are there: the proof that every row of each stands in them exactly once.

    The content depends on the parts alone, so any process may write it, any number of times.
    Raises ValueError when a row is missing or doubled.
    """
    write_json(folder / RUN_FILE, proof_of(folder))


def proof_of(folder: Path) -> dict[str, Any]:
    """What run.json must say of the parts that are there; errors as in `finish`."""
    source = SourcePlan.read(folder)
    present = present_parts(folder, source)
    ids = [i for n in present for i in pq.read_table(part_path(folder, n), columns=[ID])[ID].to_pylist()]
    expected = sum(rows for i, rows, _ in source.parts if i in present)
    if len(ids) != expected or len(set(ids)) != expected:
        raise ValueError(
            f"expected {expected} rows with unique ids in {folder}, got {len(ids)} rows and {len(set(ids))} ids: "
            "remove the folder and run again"
        )
    return {
        "dataset": source.dataset,
        "rule": source.rule,
        "fingerprint": source.fingerprint(),
        "parts": list(present),
        "parts_of_dataset": len(source.parts),
        "proof": {"rows": len(ids), "duplicates": 0, "missing": 0, "ids_sha256": ids_hash(ids)},
    }


def source_folder(run: Path, dataset: str, rule: str) -> Path:
    """Where the predictions of a data set under a rule lie."""
    return run / f"{dataset}.{rule}"


def is_source_folder(path: Path) -> bool:
    """Whether `path` holds predictions of a source."""
    return (path / SOURCE_FILE).is_file()
