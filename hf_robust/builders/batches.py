"""Batches of pictures: their bytes end to end in memory, and what they are; only the headers are decoded."""

from __future__ import annotations

import hashlib
import io
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from .archive import MIB, READ_ERRORS, Archive, Member
from .recipe import Picture

if TYPE_CHECKING:
    import pyarrow as pa

Chosen = Sequence[tuple[Member, Picture]]

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
class Look:
    """What one picture's bytes tell: SHA-256, width and height; `unreadable` names the error where they are none."""

    sha256: str = ""
    size: tuple[int, int] = (0, 0)
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Pictures in order with what they are, and the bytes of those that can be read as one binary array."""

    seen: tuple[tuple[Picture, Look], ...]
    content: pa.Array


def parts(pictures: Chosen, rows: int) -> Iterator[Chosen]:
    """The pictures in order, `rows` at a time; fewer where they would have more than MOST_BYTES together."""
    part: list[tuple[Member, Picture]] = []
    size = 0
    for member, picture in pictures:
        if part and (len(part) == rows or size + member.size > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append((member, picture))
        size += member.size
    if part:
        yield part


def size_of(pictures: Chosen) -> int:
    """How many bytes they have together."""
    return sum(member.size for member, _ in pictures)


def fill(archive: Archive, pictures: Chosen, space: memoryview) -> list[Look]:
    """Read the pictures end to end into the space, but for those that cannot be read, and tell what they are."""
    looks, end = [], 0
    for member, _ in pictures:
        looks.append(_look(archive, member, space[end : end + member.size]))
        if looks[-1].unreadable is None:  # otherwise the next one takes its place
            end += member.size
    return looks


def batch_of(pictures: Chosen, looks: Sequence[Look], space: bytearray | mmap.mmap) -> Batch:
    """The batch that `fill` has put into this space; its bytes are not copied."""
    import numpy as np
    import pyarrow as pa

    sizes = [member.size for (member, _), look in zip(pictures, looks, strict=True) if look.unreadable is None]
    ends = np.cumsum([0, *sizes], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(space).slice(0, int(ends[-1]))]
    seen = tuple((picture, look) for (_, picture), look in zip(pictures, looks, strict=True))
    return Batch(seen, pa.Array.from_buffers(pa.binary(), len(sizes), buffers))


def _look(archive: Archive, member: Member, place: memoryview) -> Look:
    try:
        archive.read_into(member, place)
        with Image.open(io.BytesIO(place), formats=FORMATS) as header:
            size = header.size
    except _NO_PICTURE as error:
        return Look(unreadable=type(error).__name__)
    return Look(hashlib.sha256(place).hexdigest(), size)
