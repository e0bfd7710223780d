"""The bytes of a candidate's picture: made by a stage, or left where the pool has them."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from .ledger import Ledger
from .stage import StageError

SHA256 = "image_sha256"
IMAGE, SOURCE, OFFSET, LENGTH = "image", "source", "offset", "length"
_PARTS_IN_MEMORY = 2


def picture_columns(ledger: Ledger) -> tuple[str, ...]:
    """The columns that `picture_of` needs; LookupError where no stage has made pictures."""
    if IMAGE in ledger.columns:
        return (IMAGE,)
    if SOURCE in ledger.columns:
        return (SOURCE, OFFSET, LENGTH, *((SHA256,) if SHA256 in ledger.columns else ()))
    raise LookupError(f"expected pictures, got only {', '.join(ledger.columns)}: run the stage that makes them first")


def picture_of(row: Mapping[str, Any], out: Path) -> bytes:
    """The picture's bytes as they were made or found; StageError where the pool has other bytes there by now.

    out  the folder of the regeneration, which knows where its pool lies.
    """
    if IMAGE in row:
        return bytes(row[IMAGE])
    from .pool import pool_bytes
    from .pool_place import located

    place = located(row[SOURCE], out)
    content: bytes = pool_bytes(place, row[OFFSET], row[LENGTH])
    if row.get(SHA256) is not None and hashlib.sha256(content).hexdigest() != row[SHA256]:
        raise StageError(
            f"expected the picture that {place} held when it was collected, got another: put it back, or begin "
            "again with another --out"
        )
    return content


class Pictures:
    """The pictures of a ledger by position; the parts read last stay in memory, so reading in order is quick."""

    def __init__(self, ledger: Ledger) -> None:
        columns = picture_columns(ledger)
        self._out = ledger.stages[0].folder.parent
        self._starts = list(accumulate(ledger.rows_of, initial=0))

        @lru_cache(_PARTS_IN_MEMORY)
        def part(index: int) -> dict[str, Any]:
            table = ledger.part(index, columns)
            return {name: table[name].combine_chunks() for name in columns}

        self._part = part

    def read(self, position: int) -> bytes:
        """The bytes of the picture at `position` among all rows of the ledger."""
        index = bisect_right(self._starts, position) - 1
        row = position - self._starts[index]
        return picture_of({name: values[row].as_py() for name, values in self._part(index).items()}, self._out)
