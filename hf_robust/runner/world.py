"""Which process of how many this is, and on which device it works."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Set for the workers that `evaluate --processes` starts itself, which share nothing but the folder; rank and world may
# also be set by hand or by Slurm, on any number of machines.
_LAUNCHED = {"RANK", "WORLD_SIZE"}  # what torchrun, and accelerate through it, tell each process
WORKER_RANK, WORKER_WORLD, WORKER_PARENT = "HF_ROBUST_RANK", "HF_ROBUST_WORLD", "HF_ROBUST_PARENT"

# What a driver of an accelerator puts into /dev on Linux; without any, torch need not be asked, which takes seconds.
_DRIVERS = ("nvidia*", "kfd", "dri", "dxg", "accel*", "davinci*", "habanalabs*", "xpu*", "apex*", "vfio")


class WorldError(RuntimeError):
    """The launcher gave another number of processes than was asked for."""


@dataclass(frozen=True)
class World:
    """Rank of this process, number of processes, and the torch device of this one."""

    rank: int
    size: int
    device: str


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher (accelerate, torchrun, our own) started this process as one of several."""
    return WORKER_RANK in environ or int(environ.get("WORLD_SIZE", "1")) > 1


def join_world(device: str | None = None, processes: int | None = None) -> World:
    """This process's place; WorldError when the world is not what the user asked for.

    device     "cpu", "cuda", "cuda:1", "mps"; None: what accelerate finds.
    processes  number asked for; None: whatever the launcher says.
    """
    if device not in (None, "cpu"):
        _check_device(device)
    if WORKER_RANK in os.environ:
        rank, size = _place(WORKER_RANK, WORKER_WORLD)
        if processes not in (None, size):
            raise WorldError(f"expected --processes {size} as {WORKER_WORLD} says, got {processes}: leave it out")
        if WORKER_PARENT in os.environ:
            _end_with(int(os.environ[WORKER_PARENT]))
        return World(rank, size, _device(device))
    if not is_launched() and _has_only_cpus(device):
        asked = processes or _asked_of_launcher(_parent_command())
        if asked is not None and asked != 1:
            raise WorldError(_wrong_world(asked, 1))
        return World(0, 1, "cpu")
    if os.environ.keys() >= _LAUNCHED and _has_only_cpus(device):
        # not asked of accelerate: it would connect the processes, which need nothing of each other but the folder
        rank, size = _place("RANK", "WORLD_SIZE")
        asked = processes or _asked_of_launcher(_parent_command())
        if asked not in (None, size):
            raise WorldError(_wrong_world(asked, size))
        return World(rank, size, "cpu")
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    # PartialState itself does not look at this variable, and without a GPU it would then find a world of one
    state = PartialState(cpu=device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU"))
    asked = processes or _asked_of_launcher(_parent_command())
    promised = int(os.environ.get("WORLD_SIZE", "1"))
    if state.num_processes != promised or (asked is not None and is_launched() and asked != promised):
        raise WorldError(_wrong_world(asked or promised, state.num_processes))
    if asked is not None and processes is None and asked != state.num_processes:
        raise WorldError(_wrong_world(asked, state.num_processes))
    return World(state.process_index, state.num_processes, device if device and ":" in device else _index(state.device))


def _place(rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = os.environ[rank_name], os.environ.get(size_name, "")
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise WorldError(
            f"expected {rank_name} from 0 to one less than {size_name}, got {rank!r} and {size!r}: set both, each "
            "process its own rank"
        )
    return int(rank), int(size)


def _has_only_cpus(device: str | None) -> bool:
    """Whether the work is on CPUs for certain: by the user's word, or since this machine has nothing else."""
    if device is not None or not sys.platform.startswith("linux"):
        return device == "cpu"
    return not any(next(Path("/dev").glob(pattern), None) for pattern in _DRIVERS)


def _check_device(device: str) -> None:
    """WorldError where this machine does not have the device; accelerate would take the CPU without a word."""
    import torch

    kind, _, number = device.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}.get(kind, 0)
    if not (number or "0").isdigit() or int(number or "0") >= count:
        has = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        has += ["mps"] if torch.backends.mps.is_available() else []
        raise WorldError(f"expected a device of this machine, got --device {device}: it has {', '.join(['cpu', *has])}")


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: a killed run leaves no workers behind that go on computing."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # nothing to tidy: what is half written is a temporary file

    threading.Thread(target=watch, name="hf-robust-parent", daemon=True).start()


def _wrong_world(asked: int, got: int) -> str:
    return (
        f"expected {asked} processes as the launcher was told, got a world of {got}. On CPUs start with: "
        f"ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes {asked} -m hf_robust evaluate …, "
        f"or let us start them: hf-robust evaluate --processes {asked} …"
    )


def _index(device: object) -> str:
    name = str(device)
    return "cpu" if name.startswith("cpu") else name


def _device(device: str | None) -> str:
    if device is not None:
        return device
    if _has_only_cpus(None):
        return "cpu"
    from accelerate import PartialState

    return _index(PartialState().device)


def _parent_command() -> Sequence[str]:
    import psutil

    try:
        parent = psutil.Process().parent()
        return parent.cmdline() if parent is not None else ()
    except psutil.Error:
        return ()


def _asked_of_launcher(command: Sequence[str]) -> int | None:
    """The --num_processes of an `accelerate launch` command line.

    `accelerate launch --cpu --num_processes 2` starts one process and tells it nothing; only its own words do.

    >>> _asked_of_launcher(["python", "/bin/accelerate", "launch", "--cpu", "--num_processes", "2", "x.py"])
    2
    """
    words = command[:4]  # python, then `accelerate launch`, `accelerate-launch` or `-m accelerate.commands.launch`
    if not any("accelerate" in word for word in words) or not any(re.search(r"\blaunch(\.py)?$", w) for w in words):
        return None
    for word, following in zip(command, (*command[1:], ""), strict=True):
        name, _, value = word.replace("-", "_").partition("=")
        if name == "__num_processes":
            number = value or following
            return int(number) if number.isdigit() else None
    return None
