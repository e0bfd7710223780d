"""Uncompressed tar shards (WebDataset) as a pool: pictures by byte range, what belongs to them by base name."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..builders.archive import IMAGE_SUFFIXES, MAX_MEMBER, is_noise
from .pool_base import CUT_SHORT, DAMAGED, NO_FILE, OUTSIDE, TOO_LARGE, Entry, as_text, storable
from .stage import StageError

_BLOCK = 512
_BESIDE = 1 << 20  # a text that belongs to a picture is no longer than this
_SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "offset": pa.int64(),
        "length": pa.int64(),
        "trouble": pa.string(),
        "beside": pa.map_(pa.string(), pa.list_(pa.int64())),
    }
)


def index_tar(path: Path) -> pa.Table:
    """One row a picture: name, offset, length, trouble, and what else has its base name: ending -> [offset, length].

    Nothing is unpacked. Members with an absolute name or "..", links, devices, sparse and huge ones are rows that are
    not read; an archive that ends too early or cannot be read on gives one more such row. StageError for a compressed
    archive, which has no byte ranges.
    """
    size = path.stat().st_size
    pictures: list[dict[str, Any]] = []
    beside: dict[str, list[tuple[str, list[int]]]] = {}
    end = 0
    with path.open("rb") as stream:
        if stream.read(2) == b"\x1f\x8b":
            raise StageError(f"expected an uncompressed tar, got {path} in gzip: gunzip it first")
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                end = info.offset_data + -(-info.size // _BLOCK) * _BLOCK if info.isreg() else info.offset_data
                if not info.isdir() and not is_noise(os.path.basename(info.name)):
                    _note(info, size, pictures, beside)
        whole = _ends_well(path, end, size)
    except (tarfile.TarError, EOFError, OverflowError, ValueError):  # what headers of noise bring about
        whole = False
    rows = [{**row, "beside": beside.get(_stem(row["name"]), [])} for row in _renamed(pictures)]
    if not whole:
        rows.append({"name": "(the rest of the archive)", "trouble": DAMAGED, "beside": []})
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _note(
    info: tarfile.TarInfo,
    size: int,
    pictures: list[dict[str, Any]],
    beside: dict[str, list[tuple[str, list[int]]]],
) -> None:
    name = as_text(info.name)
    if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
        trouble = _trouble(info, size)
        place = {} if trouble else {"offset": info.offset_data, "length": info.size}
        pictures.append({"name": name, "trouble": trouble, **place})
    elif info.isreg() and not info.issparse() and info.size <= _BESIDE and info.offset_data + info.size <= size:
        stem = _stem(name)
        beside.setdefault(stem, []).append((name[len(stem) + 1 :], [info.offset_data, info.size]))


def _trouble(info: tarfile.TarInfo, size: int) -> str | None:
    if not info.isreg() or info.issparse():
        return NO_FILE
    parts = info.name.split("/")
    if info.name.startswith("/") or ".." in parts or "\\" in info.name:
        return OUTSIDE
    if info.size > MAX_MEMBER:
        return TOO_LARGE
    return CUT_SHORT if info.offset_data + info.size > size else None


def _ends_well(path: Path, end: int, size: int) -> bool:
    """Whether nothing but the end mark follows the last member; `tarfile` takes a damaged header for the end."""
    with path.open("rb") as stream:
        stream.seek(end)
        return end <= size and not any(stream.read(_BLOCK))


def _stem(name: str) -> str:
    """The key of WebDataset: the path up to the first dot of the base name.

    >>> _stem("a.b/0001.left.jpg")
    'a.b/0001'
    """
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _renamed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows with unique names: a name that comes again gets a number."""
    seen: dict[str, int] = {}
    for row in rows:
        seen[row["name"]] = seen.get(row["name"], 0) + 1
        count = seen[row["name"]]
        yield row if count == 1 else {**row, "name": f"{row['name']}#{count}"}


def tar_entries(path: Path, name: str, rows: pa.Table) -> Iterator[Entry]:
    """The entries of some rows of an index; texts beside a picture become columns, those of a JSON object its keys."""
    for row in rows.to_pylist():
        columns = {} if row["trouble"] else _columns(path, row["beside"])
        source = "" if row["trouble"] else str(path)
        yield Entry(f"{name}/{row['name']}", source, row["offset"], row["length"], row["trouble"], columns)


def _columns(path: Path, beside: list[tuple[str, list[int]]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for ending, (offset, length) in beside:
        with path.open("rb") as stream:
            stream.seek(offset)
            text = stream.read(length).decode("utf-8", "replace").strip()
        found |= _json_columns(text) if ending.rpartition(".")[2] == "json" else {ending: text}
    return found


def _json_columns(text: str) -> dict[str, str]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    items = values.items() if isinstance(values, dict) else ()
    return {storable(k): storable(v) if isinstance(v, str) else json.dumps(v) for k, v in items if v is not None}
