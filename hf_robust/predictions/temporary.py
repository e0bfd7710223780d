"""Files that appear whole or not at all: a temporary name in the same folder, then a rename."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_ABANDONED = 24 * 3600  # seconds: the process numbers of another container or an earlier boot say nothing here


def temporary_name(path: Path) -> Path:
    """The name beside `path` that this process alone uses: host, process space and process are in it."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{_process_space()}-{os.getpid()}.tmp")


@contextmanager
def renamed(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; what the block writes there takes the place of `path`, or goes with an error.

    A killed process leaves its temporary file behind: `remove_leftovers` knows them.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:  # a full disk most of all: its file would take the room that is needed to go on
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:  # as pyarrow says it
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of this host whose process is gone.

    Whether one of another container with the same host name is gone cannot be seen: its files go after a day.
    """
    ours = re.compile(re.escape(f".{socket.gethostname()}.") + r"([0-9a-f]{8})-(\d+)\.tmp$")  # names may hold dots
    for path in folder.glob(".*.tmp"):
        match = ours.search(path.name)
        if match is None:
            continue
        if not _is_alive(int(match[2])) if match[1] == _process_space() else _is_old(path):
            path.unlink(missing_ok=True)


@cache
def _process_space() -> str:
    """Eight digits for the boot and the container within which a process number stands for one process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:  # not Linux: one space a host
        boot = space = ""
    return hashlib.sha256(f"{boot}{space}".encode()).hexdigest()[:8]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED
    except FileNotFoundError:
        return False
