"""Worker processes on this machine, for `evaluate --processes`: the same command again, each with its rank."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from .world import WORKER_PARENT, WORKER_RANK, WORKER_WORLD

PICTURES_WORTH_A_PROCESS = 100  # below, starting Python and loading the model costs more than it saves
MEMORY_PER_PROCESS = 2 << 30


def auto_processes(pictures: int, threads: int = 1) -> int:
    """How many processes of so many threads to use on this machine's CPUs for that many forward passes.

    Bounded by the cores that this process may use, by free memory (2 GiB each), and by the work.
    """
    import psutil

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fits = int(psutil.virtual_memory().available // MEMORY_PER_PROCESS)
    return max(1, min(cores // threads, fits, pictures // PICTURES_WORTH_A_PROCESS))


@contextmanager
def workers(arguments: Sequence[str], size: int) -> Iterator[list[str]]:
    """Ranks 1 to size - 1 of a world of `size`, each `python -m hf_robust` with these arguments.

    Yields a list that holds, after the block, the last line that each failed worker wrote. They share nothing with this
    process but the folder, so a worker that dies costs time and no result; they are ended with the block.
    """
    complaints: list[str] = []
    started = [_start(arguments, rank, size) for rank in range(1, size)]
    try:
        yield complaints
        for process, errors in started:
            if process.wait() != 0:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                complaints.append(said[-1] if said else f"exit code {process.returncode}")
    finally:
        for process, errors in started:
            if process.poll() is None:
                process.terminate()
                process.wait()
            errors.close()


def _start(arguments: Sequence[str], rank: int, size: int) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    errors = tempfile.TemporaryFile()  # noqa: SIM115  closed when the worker has ended
    place = {WORKER_RANK: str(rank), WORKER_WORLD: str(size), WORKER_PARENT: str(os.getpid())}
    environment = {**os.environ, **place, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hf_robust", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors), errors
