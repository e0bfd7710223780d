"""Tables as an Arrow data set in the layout that `datasets` reads back."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.arrow_writer import ArrowWriter

from .archive import MIB

VERSION = "1.0.0"
ROWS_IN_TABLE = 100  # of each record batch: what is read at once when a single row is wanted
SHARD = 500_000_000  # bytes after which a new file begins, as where `datasets` writes them
# In one call to the system, which takes several times as long for ten times as much: it looks for memory in one piece.
PIECE = MIB // 4
EARLY = 64 * MIB  # written, before they are sent on to the disk: otherwise they go there once all is written


class _InPieces(io.FileIO):
    """A file for large writes, which reach the disk while the next ones are made."""

    sent = 0

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[super().write(rest[:PIECE]) or 0 :]
        except OSError as error:  # a full disk: say which
            error.filename = self.name
            raise
        written = self.tell() - self.sent
        if written >= EARLY and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fileno(), self.sent, written, os.POSIX_FADV_DONTNEED)
            self.sent += written
        return size


def write_data_set(
    folder: Path, name: str, features: datasets.Features, splits: Mapping[str, Iterable[pa.Table]]
) -> None:
    """Writes the splits, each given as tables of at most ROWS_IN_TABLE rows, into the new folder.

    A split without rows is left out: `load_dataset` refuses the whole set where it finds one.
    """
    folder.mkdir(parents=True)
    told = datasets.SplitDict(dataset_name=name)
    for split, tables in splits.items():
        written = _write_split(folder, name, features, split, tables)
        if written.num_examples:
            told.add(written)
    size = sum(info.num_bytes for info in told.values())
    datasets.DatasetInfo(
        features=features,
        builder_name="arrow",
        dataset_name=name,
        config_name="default",
        version=VERSION,
        splits=told,
        download_size=0,
        dataset_size=size,
        size_in_bytes=size,
    ).write_to_directory(str(folder))


def _write_split(
    folder: Path, name: str, features: datasets.Features, split: str, tables: Iterable[pa.Table]
) -> datasets.SplitInfo:
    waiting = iter(tables)
    shards: list[tuple[int, int]] = []  # rows and bytes
    table = next(waiting, None)
    while table is not None:
        with (
            _InPieces(folder / f"{len(shards)}.part", "w") as stream,
            ArrowWriter(features=features, stream=stream, writer_batch_size=ROWS_IN_TABLE) as writer,
        ):
            size = 0
            while table is not None and size <= SHARD:
                writer.write_table(table)
                size += table.nbytes
                table = next(waiting, None)
            shards.append(writer.finalize())
    for n in range(len(shards)):
        place = f"-{n:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
        (folder / f"{n}.part").rename(folder / f"{name}-{split}{place}.arrow")
    rows = [rows for rows, _ in shards]
    return datasets.SplitInfo(
        name=split,
        num_bytes=sum(size for _, size in shards),
        num_examples=sum(rows),
        shard_lengths=rows if len(rows) > 1 else None,
        dataset_name=name,
    )
