"""Tar and Parquet shards as one pool: each shard is looked through once, by whichever process comes to it first."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..predictions.parts import put_table, read_footer, work_list
from ..predictions.plan import DamagedError, canonical
from ..predictions.temporary import remove_leftovers
from .ledger import first_line
from .pool_base import Entry, Pool, cut_evenly, fingerprint_of
from .pool_parquet import parquet_entries, parquet_parts
from .pool_tar import index_tar, tar_entries
from .stage import StageError, Work

_INDEX = "pool"
_IN_MEMORY = 2


@dataclass(frozen=True)
class Shard:
    """One file of a pool: where it is, its name in the pool, its size in bytes."""

    place: str
    name: str
    size: int

    @property
    def is_tar(self) -> bool:
        """Whether it is a tar; the others are Parquet files."""
        return self.name.endswith(".tar")


def local_shards(root: Path, paths: Sequence[Path]) -> list[Shard]:
    """Shards of a folder, sorted by their path below `root`."""
    found = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return [Shard(str(path), name, path.stat().st_size) for name, path in found]


def open_shards(
    shards: Sequence[Shard], work: Work, *, part_rows: int, image_column: str, origin: str | None = None,
    root: str | None = None,
) -> Pool:  # fmt: skip
    """The pictures of all shards; a part never spans two shards.

    origin, root  what the shards' names are relative to: a repo at a commit, or a folder of this machine.
    A tar's headers have to be read once to know its members: the list is kept in the folder of the regeneration, and
    neither another process nor another start reads them again. Only two such lists are in memory at a time.
    """
    mark = fingerprint_of((shard.name, shard.size) for shard in shards)
    paths = [_index_path(work, shard, image_column, part_rows) for shard in shards]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(paths[0].parent)
    for number in work_list(range(len(shards)), work.world.rank, work.world.size):
        if read_footer(paths[number]) is None:
            table, sizes = _look_through(shards[number], image_column, part_rows)
            put_table(paths[number], table, {"rows_of": sizes})
    rows_of = [_rows_of(path) for path in paths]
    first_part = list(accumulate((len(rows) for rows in rows_of), initial=0))

    @lru_cache(_IN_MEMORY)
    def index(number: int) -> pa.Table:
        try:
            return pq.read_table(paths[number], page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise DamagedError(
                f"expected the list of a shard's pictures in {paths[number]}, got {first_line(error)}: remove that "
                "file and run again"
            ) from error

    def entries(part: int) -> Iterator[Entry]:
        number = bisect_right(first_part, part) - 1
        own = part - first_part[number]
        first, count = sum(rows_of[number][:own]), rows_of[number][own]
        shard = shards[number]
        if shard.is_tar:
            return tar_entries(Path(shard.place), shard.name, index(number).slice(first, count))
        return parquet_entries(shard.place, shard.name, image_column, first, count)

    facts = {"kind": "shards", "files": mark, **({} if origin is None else {"place": origin})}
    return Pool(facts, [n for rows in rows_of for n in rows], entries, root)


def _index_path(work: Work, shard: Shard, image_column: str, part_rows: int) -> Path:
    key = canonical([shard.place, shard.name, shard.size, image_column, part_rows])
    return work.out / _INDEX / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.parquet"


def _look_through(shard: Shard, image_column: str, part_rows: int) -> tuple[pa.Table, list[int]]:
    if shard.is_tar:
        table = index_tar(Path(shard.place))
        return table, cut_evenly(len(table), part_rows)
    return pa.table({}), parquet_parts(shard.place, image_column, part_rows)


def _rows_of(path: Path) -> list[int]:
    footer: dict[str, Any] | None = read_footer(path)
    if footer is None:
        raise StageError(f"expected the list of a shard's pictures in {path}, got none: was it removed? run again")
    return [int(n) for n in footer["rows_of"]]
