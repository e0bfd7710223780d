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
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import FrameType

from ..machine import cores
from .archive import Archive
from .batches import Batch, Chosen, Look, batch_of, fill, parts, size_of
from .errors import BuildError

Read = Callable[[Chosen, int], Iterator[Batch]]

MOST_FORKS = 3  # together they read and hash faster than one process writes

_LOOK_EVERY = 1.0  # seconds, for whether the process at the other end of a pipe still lives

_Fork = tuple[BaseProcess, Connection]


@contextmanager
def reading_ahead(archive: Archive) -> Iterator[Read]:
    """How to read this archive: a function that gives the pictures in batches of up to so many rows, in order.

    A batch is shorter where its pictures would exceed MOST_BYTES. Its bytes are overwritten as soon as the next one is
    asked for. At the end of the block nothing is read any more. Without a second core, where a process cannot be
    forked safely or at all, or where the archive is read in order, nothing is read ahead.
    """
    running: list[list[_Fork]] = []
    try:
        yield partial(_by_forks, running, archive) if _can_fork(archive) else partial(_in_turn, archive)
    finally:
        for forks in running:
            _end(forks)


def _end(forks: list[_Fork]) -> None:
    while forks:
        process, pipe = forks.pop()
        pipe.close()
        process.terminate()
        process.join()


def _can_fork(archive: Archive) -> bool:
    # a daemon of multiprocessing may not have children
    linux = sys.platform.startswith("linux") and not multiprocessing.current_process().daemon
    return linux and archive.concurrent and cores() > 1


def _in_turn(archive: Archive, pictures: Chosen, rows: int) -> Iterator[Batch]:
    for part in parts(pictures, rows):
        space = bytearray(size_of(part))
        yield batch_of(part, fill(archive, part, memoryview(space)), space)


def _by_forks(running: list[list[_Fork]], archive: Archive, pictures: Chosen, rows: int) -> Iterator[Batch]:
    given = list(parts(pictures, rows))
    number = min(MOST_FORKS, cores(), len(given))
    forks: list[_Fork] = []
    running.append(forks)
    try:
        # Memory that all share. One batch is with the writer; each fork has one in work and one waiting.
        spaces = [mmap.mmap(-1, max(1, *map(size_of, given))) for _ in range(min(2 * number + 1, len(given)))]
        for _ in range(number):
            others = [pipe for group in running for _, pipe in group]
            _fork(forks, others, (archive, given, spaces))
    except OSError:  # no more processes, or no more memory
        _end(forks)
        yield from _in_turn(archive, pictures, rows)
        return
    for n in range(len(spaces)):
        _ask(forks[n % number], n)
    for n, part in enumerate(given):
        yield batch_of(part, _answer(forks[n % number]), spaces[n % len(spaces)])
        if (following := n + len(spaces)) < len(given):
            _ask(forks[following % number], following)
    _end(forks)


def _fork(forks: list[_Fork], others: list[Connection], work: tuple[Archive, list[Chosen], list[mmap.mmap]]) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(*work, theirs, [ours, *others]), daemon=True
    )
    try:
        with warnings.catch_warnings(), _without_interrupt():
            # From Python 3.12 on, of a process with threads. Those here hash, and hold nothing that a fork needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
            forks.append((process, ours))
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()


@contextmanager
def _without_interrupt() -> Iterator[None]:
    """Ctrl-C takes effect at the end of the block: in the middle of a fork Python would print and forget it."""
    if threading.current_thread() is not threading.main_thread():  # no other is ever interrupted
        yield
        return
    seen: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda *given: seen.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if seen and callable(before):
        before(*seen[0])


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
        while _is_asked(pipe):
            n = pipe.recv()
            try:
                looks: list[Look] | Exception = fill(archive, given[n], memoryview(spaces[n % len(spaces)]))
            except Exception as error:
                looks = error
            pipe.send(looks)
    os._exit(0)  # at once: what this process had opened, such as a progress bar, belongs to the one that writes


def _is_asked(pipe: Connection) -> bool:
    """Waits for a number; False once the process that writes is gone, whoever else holds its end of the pipe."""
    parent = multiprocessing.parent_process()
    while not pipe.poll(_LOOK_EVERY):
        if parent is None or os.getppid() != parent.pid:
            return False
    return True


def _ask(fork: _Fork, n: int) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it has died, which is told where its answer is missed
        fork[1].send(n)


def _answer(fork: _Fork) -> list[Look]:
    process, pipe = fork
    try:
        while not pipe.poll(_LOOK_EVERY):
            if not process.is_alive() and not pipe.poll():
                raise EOFError
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
