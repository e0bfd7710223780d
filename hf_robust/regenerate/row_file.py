"""Rows of fixed width, and texts, in files without a name: memory holds only what is asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Rows(Protocol):
    """An array of rows, or a file of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


class RowFile:
    """N rows of one type and width in a file that is gone when it is closed, or when its process is killed.

    Pages of a memory map count as memory of the process once they were touched; what is read and written here does not.
    """

    def __init__(self, rows: int, width: int | None, dtype: DTypeLike, folder: Path | None = None) -> None:
        """width: numbers a row, None for rows that are one number each. folder: None for that of the system."""
        self._shape = () if width is None else (width,)
        self._rows, self._dtype = rows, np.dtype(dtype)
        self._bytes = self._dtype.itemsize * (1 if width is None else width)
        self._file = _without_name(folder)
        self._file.truncate(rows * self._bytes)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: slice | NDArray[np.int64], /) -> NDArray[Any]:
        """A copy of these rows; of a slice the step is left out of account."""
        if isinstance(rows, slice):
            start, end, _ = rows.indices(self._rows)
            return self._read(np.empty((max(0, end - start), *self._shape), self._dtype), start)
        found = np.empty((len(rows), *self._shape), self._dtype)
        for place, row in enumerate(rows.tolist()):
            self._read(found[place : place + 1], row)
        return found

    def put(self, rows: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Write row rows[i] = values[i]; neighbours that follow each other are written together."""
        values = np.ascontiguousarray(values, self._dtype)
        cuts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        for start, end in pairwise(cuts):
            if end > start:
                self._file.seek(int(rows[start]) * self._bytes)
                _write(self._file, values[start:end])

    def close(self) -> None:
        """Free the disk."""
        self._file.close()

    def _read(self, into: NDArray[Any], row: int) -> NDArray[Any]:
        self._file.seek(row * self._bytes)
        left = into.view(np.uint8).reshape(-1).data
        while len(left):
            done = self._file.readinto(left)  # type: ignore[attr-defined]  # of an unbuffered file
            if not done:
                raise OSError(f"expected {self._rows:,} rows in a temporary file, got fewer: was the disk full?")
            left = left[done:]
        return into


class TextFile:
    """A text for each of N rows in a file that is gone when it is closed."""

    def __init__(self, rows: int, folder: Path | None = None) -> None:
        self._places = RowFile(rows, 2, np.int64, folder)
        self._file = _without_name(folder)
        self._end = 0

    def put(self, rows: NDArray[np.int64], texts: Sequence[str]) -> None:
        """Write the text of each of these rows, of which there is at least one."""
        encoded = [text.encode() for text in texts]
        ends = self._end + np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self._file.seek(self._end)
        _write(self._file, np.frombuffer(b"".join(encoded), np.uint8))
        self._places.put(rows, np.stack([np.concatenate([[self._end], ends[:-1]]), ends], axis=1))
        self._end = int(ends[-1])

    def __getitem__(self, rows: NDArray[np.int64], /) -> list[str]:
        """The texts of these rows; empty where none was put."""
        found = []
        for start, end in self._places[rows].tolist():
            self._file.seek(start)
            found.append(self._file.read(end - start).decode())
        return found

    def close(self) -> None:
        """Free the disk."""
        self._file.close()
        self._places.close()


def _without_name(folder: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder, buffering=0)  # closed by its owner


def _write(file: IO[bytes], values: NDArray[Any]) -> None:
    left = values.view(np.uint8).reshape(-1).data
    while len(left):
        left = left[file.write(left) :]
