"""Pictures read ahead of the writer by forks of this process, which read, hash and look at the headers.

Threads gain little: between any two calls that read or hash they wait for each other at Python's lock.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from .archive import Archive
from .batches import Batch, Chosen, Look, batch_of, fill, parts, size_of
from .errors import BuildError

Read = Callable[[Chosen, int], Iterator[Batch]]

MOST_FORKS = 3  # together they read and hash faster than one process writes

_Fork = tuple[BaseProcess, Connection]


@contextmanager
def reading_ahead(archive: Archive) -> Iterator[Read]:
    """How to read this archive: a function that gives the pictures in batches of up to so many rows, in order.

    A batch is shorter where its pictures would exceed MOST_BYTES. Its bytes are overwritten as soon as the next one is
    asked for. At the end of the block nothing is read any more. Without a second core, where a process cannot be
    forked safely, or where the archive is read in order, nothing is read ahead.
    """
    running: list[_Fork] = []
    try:
        yield partial(_by_forks, running, archive) if _can_fork(archive) else partial(_in_turn, archive)
    finally:
        for process, pipe in running:
            pipe.close()
            process.terminate()
            process.join()


def _can_fork(archive: Archive) -> bool:
    # a daemon of multiprocessing may not have children
    linux = sys.platform.startswith("linux") and not multiprocessing.current_process().daemon
    return linux and archive.concurrent and _cores() > 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _in_turn(archive: Archive, pictures: Chosen, rows: int) -> Iterator[Batch]:
    for part in parts(pictures, rows):
        space = bytearray(size_of(part))
        yield batch_of(part, fill(archive, part, memoryview(space)), space)


def _by_forks(running: list[_Fork], archive: Archive, pictures: Chosen, rows: int) -> Iterator[Batch]:
    given = list(parts(pictures, rows))
    number = min(MOST_FORKS, _cores(), len(given))
    # Memory that all share. One batch is with the writer; each fork has one in work and one waiting.
    spaces = [mmap.mmap(-1, max(1, *map(size_of, given))) for _ in range(min(2 * number + 1, len(given)))]
    forks = [_fork(running, archive, given, spaces) for _ in range(number)]
    for n in range(len(spaces)):
        forks[n % number][1].send(n)
    for n, part in enumerate(given):
        yield batch_of(part, _answer(*forks[n % number]), spaces[n % len(spaces)])
        if (following := n + len(spaces)) < len(given):
            forks[following % number][1].send(following)


def _fork(running: list[_Fork], archive: Archive, given: list[Chosen], spaces: list[mmap.mmap]) -> _Fork:
    ours, theirs = multiprocessing.Pipe()
    not_theirs = [ours, *(pipe for _, pipe in running)]
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(archive, given, spaces, theirs, not_theirs), daemon=True
    )
    with warnings.catch_warnings():
        # From Python 3.12 on: a fork of a process with threads. Those here hash, and hold nothing that a fork needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    running.append((process, ours))
    return running[-1]


def _serve(
    archive: Archive, given: list[Chosen], spaces: list[mmap.mmap], pipe: Connection, not_ours: list[Connection]
) -> None:
    """What a fork does: fills a space for each number that it gets, until nobody is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that writes, which then ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()
    for other in not_ours:  # held open here it would never end for the one that it belongs to
        other.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            n = pipe.recv()
            try:
                looks: list[Look] | Exception = fill(archive, given[n], memoryview(spaces[n % len(spaces)]))
            except Exception as error:
                looks = error
            pipe.send(looks)
    os._exit(0)  # at once: what this process had opened, such as a progress bar, belongs to the one that writes


def _answer(process: BaseProcess, pipe: Connection) -> list[Look]:
    try:
        told = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise BuildError(
            f"expected a process to read pictures, got its end with exit code {process.exitcode}; was memory short? "
            "Build again"
        ) from None
    if isinstance(told, Exception):
        raise told
    return list(told)
