"""What every pool of candidates gives: its parts, the entries of each, and what decides them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..predictions.plan import canonical

# Why an entry is not even read.
NO_FILE = "not a plain file"
OUTSIDE = "name or link that leads outside"
TOO_LARGE = "more than 64 MiB"
CUT_SHORT = "cut short"
DAMAGED = "damaged archive"


class LostPictureError(OSError):
    """A place in a pool that can be read and holds no picture's bytes: the picture's fault, not the disk's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One candidate of a pool, unread.

    name     unique in the pool: path below its folder, shard and member, or shard and row.
    source, offset, length  where its bytes are, for `pool.pool_bytes`; source is empty where there is nothing to read.
    trouble  why it is not to be read.
    columns  what the pool itself says about it, as text.
    """

    name: str
    source: str
    offset: int | None = None
    length: int | None = None
    trouble: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the folder that holds it, empty where there is none."""
        return self.name.rpartition("/")[0].rpartition("/")[2]


@dataclass(frozen=True)
class Pool:
    """A pool, cut into fixed parts.

    facts    what decides the entries, as JSON; not where it lies on this machine, since it may be moved.
    rows_of  entries of each part.
    entries  part -> its entries, in order.
    root     the folder below which the entries lie; None for a pool that is no folder of this machine.
    """

    facts: Mapping[str, Any]
    rows_of: Sequence[int]
    entries: Callable[[int], Iterator[Entry]]
    root: str | None = None


def cut_evenly(rows: int, part_rows: int) -> list[int]:
    """Sizes of the parts of `rows` rows, `part_rows` each but for the last.

    >>> cut_evenly(250, 100), cut_evenly(0, 100)
    ([100, 100, 50], [])
    """
    return [min(part_rows, rows - start) for start in range(0, rows, part_rows)]


def fingerprint_of(files: Iterable[tuple[str, int]]) -> str:
    """SHA-256 over (name, size) of files, in order."""
    digest = hashlib.sha256()
    for name, size in files:
        digest.update(canonical([name, size]).encode() + b"\n")
    return digest.hexdigest()


def storable(text: str) -> str:
    """A text that can be stored; half a pair of UTF-16, which JSON may hold, is written as \\ud…."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_text(name: str) -> str:
    """A file's name as text that can be stored; bytes that are none are written as \\x.."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
