"""Parts of a source: how it is cut, how a part is written whole, and the proof that every row is there once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..schema import ID, predictions_schema
from .plan import SOURCE_FILE, SourcePlan, canonical, write_json

PART_ROWS = 100
RUN_FILE = "run.json"
_FOOTER = b"hf_robust"


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
    footer = {"fingerprint": part.fingerprint, "rows": len(table), "ids": ids_hash(table[ID].to_pylist())}
    table = table.replace_schema_metadata({_FOOTER: canonical(footer).encode()})
    temporary = folder / f".{part.file_name}.{socket.gethostname()}.{os.getpid()}.tmp"
    pq.write_table(table, temporary, compression="zstd", use_dictionary=False, write_statistics=False)
    os.replace(temporary, folder / part.file_name)


def read_footer(path: Path) -> dict[str, Any] | None:
    """Fingerprint, row count and id hash of a part; None where it is absent or not whole."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowInvalid):  # absent, cut short, or with a footer of other bytes
        return None
    return dict(json.loads(metadata[_FOOTER])) if _FOOTER in metadata else None


def is_present(folder: Path, part: Part) -> bool:
    """Whether this part, made from these very rows, is there."""
    return _is_whole(folder / part.file_name, part.fingerprint)


def present_parts(folder: Path, source: SourcePlan) -> tuple[int, ...]:
    """Indices of the parts of a source that are there, whole, and made from the rows that its plan names."""
    return tuple(i for i, _, mark in source.parts if _is_whole(part_path(folder, i), mark))


def part_path(folder: Path, index: int) -> Path:
    """Where the part of that index lies."""
    return folder / f"part-{index:05d}.parquet"


def _is_whole(path: Path, fingerprint: str) -> bool:
    footer = read_footer(path)
    return footer is not None and footer["fingerprint"] == fingerprint


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files whose process, on this host, is gone."""
    ours = re.compile(re.escape(f".{socket.gethostname()}.") + r"(\d+)\.tmp")  # a host's name may hold dots
    for path in folder.glob(".*.tmp"):
        match = ours.search(path.name)
        if match is not None and not _is_alive(int(match[1])):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def finish(folder: Path) -> None:
    """Write run.json for the parts that are there: the proof that every row of each stands in them exactly once.

    The content depends on the parts alone, so any process may write it, any number of times.
    Raises ValueError when a row is missing or doubled.
    """
    source = SourcePlan.read(folder)
    present = present_parts(folder, source)
    ids = [i for n in present for i in pq.read_table(part_path(folder, n), columns=[ID])[ID].to_pylist()]
    expected = sum(rows for i, rows, _ in source.parts if i in present)
    if len(ids) != expected or len(set(ids)) != expected:
        raise ValueError(
            f"expected {expected} rows with unique ids in {folder}, got {len(ids)} rows and {len(set(ids))} ids: "
            "remove the folder and run again"
        )
    proof = {"rows": len(ids), "duplicates": 0, "missing": 0, "ids_sha256": ids_hash(ids)}
    write_json(
        folder / RUN_FILE,
        {
            "dataset": source.dataset,
            "rule": source.rule,
            "fingerprint": source.fingerprint(),
            "parts": list(present),
            "parts_of_dataset": len(source.parts),
            "proof": proof,
        },
    )


def source_folder(run: Path, dataset: str, rule: str) -> Path:
    """Where the predictions of a data set under a rule lie."""
    return run / f"{dataset}.{rule}"


def is_source_folder(path: Path) -> bool:
    """Whether `path` holds predictions of a source."""
    return (path / SOURCE_FILE).is_file()
