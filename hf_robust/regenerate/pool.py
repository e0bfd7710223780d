"""A pool of candidate pictures: a folder, tar or Parquet shards, a data set of the Hub, a built data set.

Pictures stay where they are; a row names the place of its bytes by three values, which `pool_bytes` reads, paths being
kept as those below the pool's folder (see `pool_place`):

    source               offset     length
    PATH                 none       none      a file
    PATH.tar             first byte bytes     a member of an uncompressed tar
    PATH.parquet#COLUMN  row        none      a row of a Parquet file, here or under hf://datasets/OWNER/NAME@COMMIT/
    built:NAME           row        none      a row of a data set that was built on this machine
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

from ..builders.archive import IMAGE_SUFFIXES
from ..data import MissingDataError, Rows, open_rows
from .pool_base import Entry, Pool, cut_evenly, fingerprint_of
from .pool_folder import open_folder
from .pool_parquet import HUB, hub_shards, parquet_bytes
from .pool_shards import Shard, local_shards, open_shards
from .stage import StageError, Work

BUILT = "built:"
_SHARD_ENDINGS = (".tar", ".parquet")


def pool_bytes(source: str, offset: int | None, length: int | None) -> bytes:
    """The bytes of one picture as the pool stores them.

    source, offset, length  as in the table above. OSError where the file is gone, shorter, or not what it was;
    LostPictureError where there is a row without a picture.
    """
    if offset is None:
        return Path(source).read_bytes()
    if length is not None:
        return _slice(source, offset, length)
    if source.startswith(BUILT):
        return _built(source.removeprefix(BUILT)).read(offset)
    return parquet_bytes(source, offset)


def _slice(path: str, offset: int, length: int) -> bytes:
    with open(path, "rb") as stream:
        stream.seek(offset)
        content = stream.read(length)
    if len(content) != length:
        raise OSError(f"expected {length:,} bytes from byte {offset:,} of {path}, got {len(content):,}")
    return content


@lru_cache(1)
def _built(name: str) -> Rows:
    try:
        return open_rows(name)
    except MissingDataError as error:
        raise OSError(str(error)) from error


def open_pool(text: str, work: Work, *, part_rows: int, image_column: str, follow_links: bool) -> Pool:
    """The pool that a text names.

    text  a folder of pictures or of shards (*.tar, *.parquet), one shard, a pattern of shards (`data/*.tar`),
          hf://datasets/OWNER/NAME[@REVISION][/PATTERN], or built:NAME.
    StageError where there is nothing, or both pictures and shards.
    """
    if part_rows < 1:
        raise StageError(f"expected part_rows of at least 1, got {part_rows}")
    if not text:
        raise StageError("expected a pool of candidates, got none: name it with --candidates SOURCE")
    if text.startswith(BUILT):
        return _open_built(text.removeprefix(BUILT), part_rows)
    if text.startswith(HUB):
        commit, files = hub_shards(text)
        shards, place = [Shard(*file) for file in files], {"origin": f"{text} at {commit}"}
    else:
        path = Path(os.path.expanduser(text)).resolve()
        shards, place = _shards(path), {"root": str(path if path.is_dir() else path.parent)}
        if not shards and path.is_dir():
            pool = open_folder(path, part_rows=part_rows, follow_links=follow_links)
            return _not_empty(pool, text)
    if not shards:
        raise StageError(f"expected a folder, *.tar or *.parquet, got nothing at {text}: check the path")
    return _not_empty(open_shards(shards, work, part_rows=part_rows, image_column=image_column, **place), text)


def _not_empty(pool: Pool, text: str) -> Pool:
    if not pool.rows_of:
        raise StageError(f"expected pictures in {text}, got no file that is named like one: check the path")
    return pool


def _shards(path: Path) -> list[Shard]:
    if path.is_dir():
        return local_shards(path, [Path(p) for p in _shards_below(path)])
    found = [path] if path.is_file() else [Path(p) for p in glob.glob(str(path))]  # a name may hold a [
    wrong = [p for p in found if p.suffix not in _SHARD_ENDINGS]
    if wrong:
        raise StageError(f"expected *.tar or *.parquet, got {wrong[0]}: unpack it, or gunzip a tar.gz")
    return local_shards(path.parent, [p for p in found if p.is_file()])


def _shards_below(root: Path) -> list[str]:
    shards: list[str] = []
    picture = None
    for folder, _, names in os.walk(root):
        for name in names:
            ending = os.path.splitext(name)[1].lower()
            if ending in _SHARD_ENDINGS:
                shards.append(os.path.join(folder, name))
            elif ending in IMAGE_SUFFIXES:
                picture = picture or os.path.join(folder, name)
    if shards and picture:
        raise StageError(f"expected pictures or shards in {root}, got both: {picture} and {shards[0]}; separate them")
    return shards


def _open_built(name: str, part_rows: int) -> Pool:
    try:
        rows = open_rows(name)
    except MissingDataError as error:
        raise StageError(str(error.args[0])) from error
    table = rows.table
    starts = list(accumulate(cut_evenly(len(table), part_rows), initial=0))

    def entries(part: int) -> Iterator[Entry]:
        for row in range(starts[part], starts[part + 1]):
            label = {"label": str(table.labels[row][0])} if table.labels[row] else {}
            yield Entry(table.ids[row], f"{BUILT}{name}", row, columns=label)

    mark = fingerprint_of((f"{i}:{key}", 0) for i, key in zip(table.ids, table.keys, strict=True))
    return Pool({"kind": "built", "place": name, "files": mark}, cut_evenly(len(table), part_rows), entries)
