"""Pictures read ahead of the writer by a few threads: their bytes end to end in Arrow's memory, and what they are.

Threads help although Python runs one at a time: reading, SHA-256 and writing do not hold its lock.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from PIL import Image

from .archive import MIB, READ_ERRORS, Archive, Member
from .recipe import Picture

if TYPE_CHECKING:
    import pyarrow as pa

Chosen = list[tuple[Member, Picture]]

MOST_THREADS = 2  # besides the one that writes; more only wait for each other at Python's lock
MOST_BYTES = 256 * MIB  # in one batch; a hundred ordinary pictures are far below
# No format that starts another program (EPS) or holds no photo; JPEG covers MPO.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
_NO_PICTURE = (
    *READ_ERRORS,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """One picture and its bytes' SHA-256, width and height; `unreadable` names the error where there are none."""

    picture: Picture
    sha256: str = ""
    size: tuple[int, int] = (0, 0)
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures in order, and the bytes of those that can be read as one binary array."""

    seen: tuple[Seen, ...]
    content: pa.Array


@contextmanager
def threads_for(archive: Archive) -> Iterator[ThreadPoolExecutor]:
    """Threads to read this archive with; at the end what they have not begun is dropped, the rest awaited."""
    pool = ThreadPoolExecutor(_threads(archive))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _threads(archive: Archive) -> int:
    return min(MOST_THREADS, os.cpu_count() or 1) if archive.concurrent else 1


def read_ahead(pool: ThreadPoolExecutor, archive: Archive, pictures: Chosen, rows: int) -> Iterator[Batch]:
    """Batches of up to `rows` pictures in order, one more in work than there are threads.

    A batch is shorter where its pictures would exceed MOST_BYTES.
    """
    waiting = parts(pictures, rows)
    ahead = deque(pool.submit(read_batch, archive, part) for part in islice(waiting, _threads(archive) + 1))
    while ahead:
        batch = ahead.popleft().result()
        ahead += [pool.submit(read_batch, archive, part) for part in islice(waiting, 1)]
        yield batch


def parts(pictures: Chosen, rows: int) -> Iterator[Chosen]:
    """The pictures in order, `rows` at a time; fewer where they would have more than MOST_BYTES together."""
    part: Chosen = []
    size = 0
    for member, picture in pictures:
        if part and (len(part) == rows or size + member.size > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append((member, picture))
        size += member.size
    if part:
        yield part


def read_batch(archive: Archive, pictures: Sequence[tuple[Member, Picture]]) -> Batch:
    """The bytes of these pictures, and what they tell; only the headers are decoded."""
    import numpy as np
    import pyarrow as pa

    if archive.read_into is None:
        looked = [_look(picture, partial(archive.read, member)) for member, picture in pictures]
        readable = [content for seen, content in looked if seen.unreadable is None]
        return Batch(tuple(seen for seen, _ in looked), pa.array(readable, pa.binary()))
    space = pa.allocate_buffer(sum(member.size for member, _ in pictures))
    told, ends, view = [], [0], memoryview(space).cast("B")
    for member, picture in pictures:
        place = view[ends[-1] : ends[-1] + member.size]
        seen, _ = _look(picture, partial(archive.read_into, member, place))
        told.append(seen)
        if seen.unreadable is None:  # otherwise the next one takes its place
            ends.append(ends[-1] + member.size)
    buffers = [None, pa.py_buffer(np.asarray(ends, np.int32)), space.slice(0, ends[-1])]
    return Batch(tuple(told), pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers))


def _look(picture: Picture, read: Callable[[], bytes | memoryview]) -> tuple[Seen, bytes | memoryview]:
    content: bytes | memoryview = b""
    try:
        content = read()
        with Image.open(io.BytesIO(content), formats=FORMATS) as header:
            size = header.size
    except _NO_PICTURE as error:
        return Seen(picture, unreadable=type(error).__name__), content
    return Seen(picture, hashlib.sha256(content).hexdigest(), size), content
