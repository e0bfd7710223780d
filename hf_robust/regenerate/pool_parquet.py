"""Parquet files with pictures inside, as `datasets` writes them, here or on the Hub: rows by number."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..builders.hub import HTTP_CLIENTS
from .pool_base import Entry, LostPictureError, storable
from .stage import StageError

HUB = "hf://"
_BATCH = 16  # rows decoded at once: pictures are large
_BATCHES_KEPT = 3  # threads ask for rows out of order


def parquet_source(place: str, column: str) -> str:
    """The source text of the pictures in one column of a Parquet file."""
    return f"{place}#{column}"


@contextmanager
def network_errors(place: str) -> Iterator[None]:
    """Turns what the Hub's HTTP client raises, which is no OSError, into one that says what to do."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in HTTP_CLIENTS:
            raise
        raise OSError(f"expected to reach {place}, got {type(error).__name__}: check the network") from error


def opened(place: str) -> AbstractContextManager[Any]:
    """A Parquet file on this machine or under hf://, as a file to read from."""
    if not place.startswith(HUB):
        return open(place, "rb")
    from huggingface_hub import HfFileSystem

    return HfFileSystem().open(place, "rb")  # type: ignore[no-any-return]


def parquet_parts(place: str, image_column: str, part_rows: int) -> list[int]:
    """Rows of each part of a file: whole row groups of about `part_rows` rows, a larger group cut into such pieces.

    Reading a row means decoding its group up to there, so that parts of whole groups are read once. StageError where
    the file is no Parquet file or has no such column of pictures.
    """
    try:
        with network_errors(place), opened(place) as stream:
            file = pq.ParquetFile(stream)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            schema = file.schema_arrow
    except pa.ArrowException as error:
        raise StageError(f"expected a Parquet file at {place}, got {error}: copy it again") from error
    names = {field.name: field.type for field in schema}
    if image_column not in names or not _holds_pictures(names[image_column]):
        raise StageError(
            f"expected pictures in column {image_column!r} of {place}, got the columns {', '.join(names)}: "
            "name the column with image_column"
        )
    return merged(groups, part_rows)


def _holds_pictures(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return "bytes" in {kind.field(i).name for i in range(kind.num_fields)}
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def merged(groups: Sequence[int], part_rows: int) -> list[int]:
    """Sizes of parts: row groups put together up to `part_rows` rows, larger groups cut every `part_rows` rows.

    >>> merged([40, 40, 40, 250, 10], 100)
    [80, 40, 100, 100, 50, 10]
    """
    parts: list[int] = []
    waiting = 0
    for rows in groups:
        if waiting and waiting + rows > part_rows:
            parts.append(waiting)
            waiting = 0
        waiting += rows
        if rows > part_rows:
            parts += [part_rows] * ((rows - 1) // part_rows)
            waiting = rows - part_rows * ((rows - 1) // part_rows)
            parts.append(waiting)
            waiting = 0
    return [*parts, waiting] if waiting else parts


def parquet_entries(place: str, name: str, image_column: str, first: int, count: int) -> Iterator[Entry]:
    """The entries of some rows; every other column that is a text, a number or a class label is one of theirs."""
    with network_errors(place), opened(place) as stream:
        file = pq.ParquetFile(stream)
        plain = [f.name for f in file.schema_arrow if _is_plain(f.type)]
        names = _class_names(file.schema_arrow.metadata)
        rows = _plain_rows(file, plain, first, count)
    source = parquet_source(place, image_column)
    for number, row in enumerate(rows, start=first):
        columns = {n: _text(v, names.get(n)) for n, v in row.items() if v is not None}
        yield Entry(f"{name}/{number:08d}", source, number, None, None, columns)


def _is_plain(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating)
    return any(test(kind) for test in tests)


def _plain_rows(file: pq.ParquetFile, columns: Sequence[str], first: int, count: int) -> list[dict[str, Any]]:
    if not columns:
        return [{} for _ in range(count)]
    starts = _group_starts(file)
    groups = [g for g, start in enumerate(starts[:-1]) if start < first + count and starts[g + 1] > first]
    table = file.read_row_groups(groups, columns=list(columns), use_threads=False)
    rows: list[dict[str, Any]] = table.slice(first - starts[groups[0]], count).to_pylist()
    return rows


def _group_starts(file: pq.ParquetFile) -> list[int]:
    sizes = (file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups))
    return list(accumulate(sizes, initial=0))


def _class_names(metadata: dict[bytes, bytes] | None) -> dict[str, list[str]]:
    """Column -> names of its classes, as `datasets` leaves them in the schema."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        lists = {n: f["names"] for n, f in features.items() if isinstance(f, dict) and f.get("names")}
        return {n: [storable(str(name)) for name in names] for n, names in lists.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _text(value: Any, names: list[str] | None) -> str:
    if names is not None and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else ""  # -1 is "no label" of datasets
    return str(value)


class _Reader:
    """Reads the pictures of one file in order, some rows at a time; going back starts its row group again."""

    def __init__(self, source: str) -> None:
        self.source, self.state = source, _state(source)
        place, _, self._column = source.rpartition("#")
        self._stream = opened(place)
        self._file = pq.ParquetFile(self._stream)
        self._starts = _group_starts(self._file)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._next, self._end = 0, 0
        self._kept: list[tuple[int, pa.Array]] = []

    def close(self) -> None:
        self._batches, self._kept = iter(()), []
        self._file.close()
        self._stream.__exit__(None, None, None)

    def read(self, row: int) -> bytes:
        if not 0 <= row < self._starts[-1]:
            raise OSError(f"expected row {row} in {self.source}, got {self._starts[-1]} rows")
        for start, values in self._kept:
            if start <= row < start + len(values):
                return _picture(values[row - start], self.source)
        if not self._next <= row < self._end:
            self._begin(row)
        while self._next <= row:
            values = next(self._batches).column(0)
            self._kept = [*self._kept[1 - _BATCHES_KEPT :], (self._next, values)]
            self._next += len(values)
        start, values = self._kept[-1]
        return _picture(values[row - start], self.source)

    def _begin(self, row: int) -> None:
        group = max(g for g, start in enumerate(self._starts[:-1]) if start <= row)
        self._next, self._end, self._kept = self._starts[group], self._starts[group + 1], []
        self._batches = self._file.iter_batches(_BATCH, row_groups=[group], columns=[self._column], use_threads=False)


def _state(source: str) -> tuple[int, int, int] | None:
    """What shows that a file on this machine was replaced; a place on the Hub names its commit."""
    if source.startswith(HUB):
        return None
    found = os.stat(source.rpartition("#")[0])
    return found.st_mtime_ns, found.st_size, found.st_ino


def _picture(value: pa.Scalar, source: str) -> bytes:
    found = value.as_py()
    content = found.get("bytes") if isinstance(found, dict) else found
    if content is None:
        raise LostPictureError(f"expected the bytes of a picture in {source}, got none: embed the pictures in the file")
    return bytes(content)


_lock = threading.Lock()
_last: list[_Reader] = []  # one open file a process: rows are asked for in order


def parquet_bytes(source: str, row: int) -> bytes:
    """The bytes of the picture in that row of `PATH#COLUMN`; OSError where there is none."""
    with _lock, network_errors(source):
        if not _last or (_last[0].source, _last[0].state) != (source, _state(source)):
            close_parquet()
            try:
                _last.append(_Reader(source))
            except pa.ArrowException as error:
                raise OSError(f"expected a Parquet file for {source}, got {error}") from error
        try:
            return _last[0].read(row)
        except pa.ArrowException as error:
            raise OSError(f"expected pictures in {source}, got {error}") from error


def close_parquet() -> None:
    """Close the file that was read last."""
    while _last:
        _last.pop().close()


def hub_shards(text: str) -> tuple[str, list[tuple[str, str, int]]]:
    """Commit of `hf://datasets/OWNER/NAME[@REVISION][/PATTERN]`, and (place, name, size) of its Parquet files.

    PATTERN is of the files' paths, such as data/train-*.parquet; none means all. StageError where there are none, or
    the Hub cannot be reached.
    """
    from fnmatch import fnmatch

    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

    repo, revision, pattern = _address(text)
    try:
        with network_errors(repo):
            info = HfApi().dataset_info(repo, revision=revision, files_metadata=True)
    except (RepositoryNotFoundError, EntryNotFoundError) as error:
        raise StageError(f"expected a data set {repo!r} on the Hub, got none that you may see: log in?") from error
    except (HfHubHTTPError, OSError) as error:
        raise StageError(
            f"expected to reach {repo} on the Hub, got {type(error.__cause__ or error).__name__}: check the network"
        ) from error
    found = sorted((f.rfilename, f.size or 0) for f in info.siblings or ())
    found = [(n, size) for n, size in found if n.endswith(".parquet") and (not pattern or fnmatch(n, pattern))]
    if not found:
        raise StageError(f"expected Parquet files {pattern or '*.parquet'} in {repo}, got none: see its files")
    root = f"{HUB}datasets/{repo}@{info.sha}"
    return str(info.sha), [(f"{root}/{name}", name, size) for name, size in found]


def _address(text: str) -> tuple[str, str | None, str]:
    """Repo, revision and pattern.

    >>> _address("hf://datasets/o/n@main/data/train-*.parquet")
    ('o/n', 'main', 'data/train-*.parquet')
    """
    owner, _, rest = text.removeprefix(HUB).removeprefix("datasets/").partition("/")
    name, _, pattern = rest.partition("/")
    name, _, revision = name.partition("@")
    if not owner or not name:
        raise StageError(f"expected hf://datasets/OWNER/NAME, got {text!r}")
    return f"{owner}/{name}", revision or None, pattern
