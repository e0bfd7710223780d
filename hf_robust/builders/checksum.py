"""The checksum of an archive, computed in a thread while the archive is listed, read and written."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from .archive import MIB
from .recipe import Recipe

BLOCK = 32 * MIB  # large, since between two blocks the thread has to wait for its turn at Python's lock


class Checksum:
    """The checksum of a recipe's archive: SHA-256 where none is published, so that builds can be compared.

    `begin` names the file; at the end of the `with` block a computation that nobody waits for is given up.
    """

    def __init__(self, recipe: Recipe) -> None:
        digest: tuple[str, str | None] = recipe.digest or ("sha256", None)
        self._algorithm, self._official = digest
        self._pool, self._stop = ThreadPoolExecutor(1), threading.Event()
        self._path: Path | None = None
        self._digest: Future[str] | None = None

    def __enter__(self) -> Checksum:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forget()
        self._pool.shutdown()

    def begin(self, path: Path | None) -> None:
        """Begin with this file; nothing to do for a folder, or for the file that was begun before."""
        if path is not None and path != self._path and path.is_file():
            self._path, self._digest = path, self._pool.submit(self._compute, path)

    def forget(self) -> None:
        """Give up: there is no checksum for this source."""
        self._stop.set()
        self._digest = None

    def found(self) -> str | None:
        """The checksum as "algorithm:value" once it is known; None for what has none."""
        return None if self._digest is None else f"{self._algorithm}:{self._digest.result()}"

    def differences(self, *, wait: bool = True) -> list[str]:
        """One line where it is not the published one, else none; without `wait` none before it is known."""
        if self._official is None or self._digest is None or not (wait or self._digest.done()):
            return []
        found = self._digest.result()
        line = f"the archive's {self._algorithm} is {found}, official {self._official}"
        return [] if found == self._official else [line]

    def _compute(self, path: Path) -> str:
        digest = hashlib.new(self._algorithm)
        with path.open("rb", buffering=0) as stream:
            block = memoryview(bytearray(max(1, min(BLOCK, path.stat().st_size))))
            while not self._stop.is_set() and (size := stream.readinto(block)):
                digest.update(block[:size])
        return digest.hexdigest()
