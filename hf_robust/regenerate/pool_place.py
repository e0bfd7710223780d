"""Where the pool of a regeneration lies, kept beside the stages: their rows name pictures below it, so it may move."""

from __future__ import annotations

import os
from pathlib import Path

from ..predictions.plan import DamagedError, read_json, write_json
from .stage import StageError

PLACE_FILE = "pool-place.json"
_BELOW = "./"


def remember_place(out: Path, root: str | None) -> None:
    """Writes down the folder of the pool; None for one that is no folder of this machine."""
    write_json(out / PLACE_FILE, {"root": root})


def below(source: str, root: str | None) -> str:
    """A place as a row stores it: "./" and the path below the pool's folder; as it is where it lies elsewhere.

    >>> below("/data/pool/a/1.png", "/data/pool"), below("/data/pool2/1.png", "/data/pool"), below("built:x", None)
    ('./a/1.png', '/data/pool2/1.png', 'built:x')
    """
    start = None if root is None else root.rstrip(os.sep) + os.sep
    return source if start is None or not source.startswith(start) else _BELOW + source.removeprefix(start)


def located(source: str, out: Path) -> str:
    """The place that `below` stored, as `pool.pool_bytes` reads it; StageError where nothing says where the pool is."""
    if not source.startswith(_BELOW):
        return source
    try:
        root = read_json(out / PLACE_FILE, ["root"])["root"]
    except DamagedError:
        root = None
    if not isinstance(root, str):
        raise StageError(
            f"expected the folder of the pool in {out / PLACE_FILE}, got none: run `regenerate` again with --candidates"
        )
    return os.path.join(root, source.removeprefix(_BELOW))
