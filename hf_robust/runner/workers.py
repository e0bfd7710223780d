"""Worker processes on this machine, for `--processes`: the same command again, each with its rank."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from ..machine import cores
from .world import WORKER_PARENT, WORKER_RANK, WORKER_WORLD, World, is_launched

PICTURES_WORTH_A_PROCESS = 100  # below, starting a process and loading the model costs more than it saves
MEMORY_PER_PROCESS = 2 << 30


def auto_processes(pictures: int, threads: int = 1) -> int:
    """How many processes of so many threads to use on this machine's CPUs for that many forward passes.

    Bounded by the cores that this process may use, by free memory (2 GiB each), and by the work.
    """
    import psutil

    fits = int(psutil.virtual_memory().available // MEMORY_PER_PROCESS)
    return max(1, min(cores() // threads, fits, pictures // PICTURES_WORTH_A_PROCESS))


def can_fork(world: World, threads: int | None) -> bool:
    """Whether workers may be forks of this process, which have its libraries imported already.

    Only on Linux; a GPU that was looked at, or threads of OpenMP that ran, would leave a fork unable to compute.
    """
    return sys.platform.startswith("linux") and world.device == "cpu" and threads in (None, 1)


@contextmanager
def workers(arguments: Sequence[str], world: World, *, threads: int | None = None) -> Iterator[list[str]]:
    """Ranks 1 to world.size - 1, each `python -m hf_robust` with these arguments; none under a launcher.

    Where this process can be forked it is: that saves the seconds of importing what is imported here already.

    Yields a list that holds, after the block, the last line that each failed worker wrote. They share nothing with this
    process but the folder, so a worker that dies costs time and no result; they are ended with the block.
    """
    size = 1 if is_launched() else world.size
    start = _forked if can_fork(world, threads) else _started
    complaints: list[str] = []
    running: list[_Worker] = []
    try:
        for rank in range(1, size):
            place = {WORKER_RANK: str(rank), WORKER_WORLD: str(size), WORKER_PARENT: str(os.getpid())}
            running.append(start(arguments, place))
        yield complaints
        for worker in running:
            code = worker.wait()
            if code != 0:
                worker.errors.seek(0)
                said = worker.errors.read().decode(errors="replace").strip().splitlines()
                complaints.append(said[-1] if said else f"exit code {code}")
    finally:
        for worker in running:
            worker.end()
            worker.errors.close()


@dataclass(frozen=True)
class _Worker:
    """A running process: `wait` gives its exit code, `end` ends it where it still runs."""

    wait: Callable[[], int | None]
    end: Callable[[], None]
    errors: IO[bytes]


def _forked(arguments: Sequence[str], place: dict[str, str]) -> _Worker:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker has ended

    def work() -> None:
        os.environ.update(place)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # they may have been replaced
        sys.argv = ["hf-robust", *arguments]
        runpy.run_module("hf_robust", run_name="__main__", alter_sys=True)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()

    def wait() -> int | None:
        process.join()
        return process.exitcode

    def end() -> None:
        process.terminate()
        process.join()

    return _Worker(wait, end, errors)


def _started(arguments: Sequence[str], place: dict[str, str]) -> _Worker:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker has ended
    again = [sys.executable, "-m", "hf_robust", *arguments]
    environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(again, env=environment, stdout=subprocess.DEVNULL, stderr=errors)

    def end() -> None:
        process.terminate()
        process.wait()

    return _Worker(process.wait, end, errors)
