"""Starts `evaluate` in every way that processes and machines can be many, and compares what they write byte by byte.

python bench/hosts.py [--model M] [--photos FOLDER] [--processes N ...] [--only WAY ...] [--shared FOLDER] [--json FILE]

here      processes of one machine: --processes, HF_ROBUST_RANK by hand, accelerate launch, torchrun
network   two machines that have a name and an address of their own and share a folder: namespaces of Linux joined by a
          virtual cable, and the same three ways (needs root and `ip`)
island    two machines that share a folder and have no network at all: by hand (needs `unshare`)
slurm     by hand below srun, and accelerate launch and torchrun on each of up to two nodes (needs a Slurm that answers
          and sees this Python and the folder of --shared)

Every way is compared with one process alone: every file of the run but the log of times. A way that cannot be had is
named with the reason. Exit code 1 where files differ, a command fails, or not as many processes worked as were asked.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from scale import lay_out

PYTHON = sys.executable
RANK, WORLD = "HF_ROBUST_RANK", "HF_ROBUST_WORLD"
ACCELERATE = [PYTHON, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]
NAMED = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'
PATIENCE = 600  # seconds for one way
EQUAL, ALONE = "equal", "alone"
PICTURES = 400  # eight parts


class UnavailableError(RuntimeError):
    """A way that this machine does not offer, with the reason."""


@dataclass(frozen=True)
class Task:
    """What is evaluated, and the folder that every machine sees."""

    model: str
    pictures: Path
    shared: Path

    def arguments(self, name: str) -> list[str]:
        data = ["--benchmark", "imagenet-val", "--imagenet-val", str(self.pictures)]
        more = ["--device", "cpu", "--batch-size", "4", "--allow-chance", "--out", str(self.shared / name)]
        return ["evaluate", "--model", self.model, *data, *more]

    def command(self, name: str) -> list[str]:
        return [PYTHON, "-m", "hf_robust", *self.arguments(name)]


@dataclass(frozen=True)
class Start:
    """A command, with the variables that it gets beside the common ones."""

    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One way of starting, and what came of it."""

    way: str
    hosts: int
    processes: int
    files: int
    outcome: str  # "equal", or what differs or failed
    seconds: float


@dataclass(frozen=True)
class Host:
    """A machine: its name, its address, and what a command that runs there begins with."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


HERE = Host("here", "127.0.0.1")


# --- what is started


def by_option(task: Task, name: str, size: int, _: Sequence[Host]) -> list[Start]:
    return [Start([*task.command(name), "--processes", str(size)])]


def by_hand(task: Task, name: str, size: int, hosts: Sequence[Host]) -> list[Start]:
    """Ranks 0, 1, … in turn on each host."""
    places = [hosts[rank * len(hosts) // size] for rank in range(size)]
    return [
        Start([*host.prefix, *task.command(name)], {RANK: str(rank), WORLD: str(size)})
        for rank, host in enumerate(places)
    ]


def by_accelerate(task: Task, name: str, size: int, hosts: Sequence[Host]) -> list[Start]:
    meet = ["--num_machines", str(len(hosts)), "--main_process_ip", hosts[0].address] if len(hosts) > 1 else []
    command = [*ACCELERATE, "--num_processes", str(size), "--main_process_port", str(free_port()), *meet]
    rank = "--machine_rank"
    rest = ["-m", "hf_robust", *task.arguments(name)]
    return [Start([*host.prefix, *command, *([rank, str(i)] if meet else []), *rest]) for i, host in enumerate(hosts)]


def by_torchrun(task: Task, name: str, size: int, hosts: Sequence[Host]) -> list[Start]:
    command = [*TORCHRUN, "--nproc-per-node", str(size // len(hosts)), "--master-port", str(free_port())]
    meet = ["--nnodes", str(len(hosts)), "--master-addr", hosts[0].address, "--node-rank"]
    rest = ["-m", "hf_robust", *task.arguments(name)]
    return [Start([*host.prefix, *command, *meet, str(i), *rest]) for i, host in enumerate(hosts)]


def by_srun(task: Task, name: str, size: int, _: Sequence[Host]) -> list[Start]:
    place = f'{RANK}=$SLURM_PROCID {WORLD}=$SLURM_NTASKS exec "$@"'
    spread = ["--nodes", str(slurm_nodes()), "--ntasks", str(size)]
    return [Start(["srun", *spread, "bash", "-c", place, "bash", *task.command(name)])]


def by_srun_torchrun(task: Task, name: str, size: int, _: Sequence[Host]) -> list[Start]:
    place = "--nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr $FIRST"
    command = [*TORCHRUN, "--nproc-per-node", str(size // slurm_nodes()), "--master-port", str(free_port())]
    return [_on_each_node(command, place, task.arguments(name), size)]


def by_srun_accelerate(task: Task, name: str, size: int, _: Sequence[Host]) -> list[Start]:
    place = "--num_machines $SLURM_NNODES --machine_rank $SLURM_NODEID --main_process_ip $FIRST"
    command = [*ACCELERATE, "--num_processes", str(size), "--main_process_port", str(free_port())]
    return [_on_each_node(command, place, task.arguments(name), size)]


def _on_each_node(command: Sequence[str], place: str, arguments: Sequence[str], size: int) -> Start:
    """A launcher once on every node; the first of them is where the launchers meet."""
    first = "FIRST=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    script = f'{first}; exec {shlex.join(command)} {place} -m hf_robust "$@"'
    nodes = str(slurm_nodes())
    each = ["--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1", "--cpus-per-task", str(size // int(nodes))]
    return Start(["srun", *each, "bash", "-c", script, "bash", *arguments])


# --- machines


@contextmanager
def this_machine(_: Path) -> Iterator[list[Host]]:
    yield [HERE]


@contextmanager
def two_islands(_: Path) -> Iterator[list[Host]]:
    """Two machines without a network interface."""
    own = ("unshare", "--net", "--uts", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    named = tuple((*own, "sh", "-c", 'hostname "$0" && exec "$@"', f"island{i}") for i in (1, 2))
    _try([*named[0], "true"], "namespaces of Linux")
    yield [Host(prefix[-1], "127.0.0.1", prefix) for prefix in named]


@contextmanager
def two_machines(scratch: Path) -> Iterator[list[Host]]:
    """Two machines with one address each, which reach each other through a virtual cable."""
    names = [f"hfr{os.getpid()}{end}" for end in "ab"]
    addresses = [f"10.213.77.{i}" for i in (1, 2)]
    known = scratch / "hosts"
    known.write_text("127.0.0.1 localhost\n" + "".join(map("{} {}\n".format, addresses, names)))
    begin = ("unshare", "--uts", "--mount", "sh", "-c", NAMED, str(known))
    with ExitStack() as undo:
        for name in names:
            _try(["ip", "netns", "add", name], "network namespaces, as root")
            undo.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
        cable = ["ip", "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1]]
        _try(cable, "a virtual cable (veth)")
        for name, address in zip(names, addresses, strict=True):
            for words in (f"address add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                _try(["ip", "-n", name, *words.split()], "addresses in a network namespace")
        hosts = [
            Host(name, address, ("ip", "netns", "exec", name, *begin, name))
            for name, address in zip(names, addresses, strict=True)
        ]
        _try([*hosts[0].prefix, "true"], "namespaces of Linux")
        yield hosts


@contextmanager
def slurm(_: Path) -> Iterator[list[Host]]:
    """The nodes of the Slurm that answers here."""
    _try(["srun", "--immediate=10", "--ntasks", "1", PYTHON, "-c", "import hf_robust"], "a Slurm with this Python")
    yield [Host(f"node {i}", "") for i in range(slurm_nodes())]


@cache
def slurm_nodes() -> int:
    """How many nodes to use: two where two answer."""
    command = ["sinfo", "--noheader", "--Node", "--responding", "--format", "%n", "--states", "idle,mix,alloc,comp"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return min(2, len(set(said.stdout.split())))


def _try(command: Sequence[str], what: str) -> None:
    """UnavailableError with the last words of a command that fails or is not there."""
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"needs {what}, and there is no `{command[0]}` here")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UnavailableError(f"needs {what}; `{command[0]}` said: {said}")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


# --- running and comparing

By = Callable[[Task, str, int, Sequence[Host]], list[Start]]
Machines = Callable[[Path], AbstractContextManager[list[Host]]]
WAYS: dict[str, tuple[Machines, dict[str, By]]] = {
    "here": (
        this_machine,
        {"--processes N": by_option, "by hand": by_hand, "accelerate launch": by_accelerate, "torchrun": by_torchrun},
    ),
    "network": (two_machines, {"by hand": by_hand, "accelerate launch": by_accelerate, "torchrun": by_torchrun}),
    "island": (two_islands, {"by hand": by_hand}),
    "slurm": (
        slurm,
        {"srun": by_srun, "srun, torchrun": by_srun_torchrun, "srun, accelerate launch": by_srun_accelerate},
    ),
}


def run(starts: Sequence[Start]) -> str:
    """What went wrong, in words of the command that failed first; nothing where all ended well."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_ROBUST_")}
    # a launcher that knows no better takes the CPUs; one thread a process, so that the cores are shared
    plain |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    with ExitStack() as undo:
        begun = []
        for start in starts:
            said = undo.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(start.command, env={**plain, **start.variables}, stdout=said, stderr=said)
            undo.callback(_end, process)
            begun.append((process, said))
        deadline = time.monotonic() + PATIENCE
        for process, said in begun:
            try:
                wrong = f"exit code {code}" if (code := process.wait(max(0.0, deadline - time.monotonic()))) else ""
            except subprocess.TimeoutExpired:
                wrong = f"not done after {PATIENCE} s"
            if wrong:
                said.seek(0)
                return next((line for line in said if "hf-robust: error" in line), wrong).strip()
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Launchers end what they started when they are asked to; killed at once, they leave it behind."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()


def contents(out: Path) -> dict[str, bytes]:
    """Every file of the only run below `out` that must not depend on who wrote it when: all but the log of times."""
    (plan,) = out.glob("*/plan.json")
    files = (path for path in plan.parent.rglob("*") if path.is_file() and path.name != "log.jsonl")
    return {str(path.relative_to(plan.parent)): path.read_bytes() for path in files}


def compare(found: Mapping[str, bytes], alone: Mapping[str, bytes]) -> str:
    """EQUAL, or the first name of what differs and how many more there are."""
    names = sorted(name for name in found.keys() | alone.keys() if found.get(name) != alone.get(name))
    return f"DIFFERS: {names[0]} and {len(names) - 1} more" if names else EQUAL


def measure(
    task: Task, way: str, by: By, hosts: Sequence[Host], size: int, alone: Mapping[str, bytes] | None = None
) -> Row:
    """One way, started and compared with one process alone; without that, what it wrote is taken as it is."""
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{way}-{size}")
    started = time.perf_counter()
    wrong = run(by(task, name, size, hosts))
    seconds = time.perf_counter() - started
    found = {} if wrong else contents(task.shared / name)
    log = [] if wrong else _log(task.shared / name)
    worked = (len({line["host"] for line in log}), len({line["rank"] for line in log}))
    if not wrong and worked != (len(hosts), size):
        wrong = f"expected {len(hosts)} hosts and {size} processes at work, got {worked[0]} and {worked[1]}"
    outcome = f"FAILED: {wrong}" if wrong else compare(found, found if alone is None else alone)
    return Row(way, len(hosts), size, len(found), outcome, seconds)


def _log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in out.glob("*/log.jsonl") for line in file.read_text().splitlines()]


def rows_of(task: Task, places: Sequence[str], sizes: Sequence[int]) -> Iterator[Row]:
    """One process alone, then every way there is; a place that cannot be had is named."""
    yield measure(task, ALONE, by_option, [HERE], 1)
    alone = contents(task.shared / f"{ALONE}-1")
    for place in places:
        machines, ways = WAYS[place]
        try:
            with machines(task.shared) as hosts:
                for (way, by), size in product(ways.items(), sizes):
                    yield measure(task, f"{place}, {way}", by, hosts, size, alone)
        except UnavailableError as error:
            print(f"{place:34}skipped: {error}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm-random/test_vit", metavar="M", help="%(default)s")
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="laid out as ImageNet validation; else drawn")
    parser.add_argument("--processes", type=_even, nargs="+", default=[2, 4], metavar="N", help="even numbers (2 4)")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY", help=", ".join(WAYS))
    parser.add_argument("--shared", type=Path, metavar="FOLDER", help="where to work; all nodes see it (default: /tmp)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    rows: list[Row] = []
    print(f"{'way':34}{'hosts':>6}{'processes':>11}{'files':>7}{'s':>7}  bytes", flush=True)
    with tempfile.TemporaryDirectory(dir=given.shared) as name:
        scratch = Path(name).resolve()
        pictures = given.photos.resolve() if given.photos else lay_out(scratch / "val", PICTURES)
        for row in rows_of(Task(given.model, pictures, scratch), given.only, given.processes):
            rows.append(row)
            place = f"{row.way:34}{row.hosts:6}{row.processes:11}{row.files:7}{row.seconds:7.1f}"
            print(f"{place}  {row.outcome}", flush=True)
            if row.way == ALONE and row.outcome != EQUAL:
                break
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if all(row.outcome == EQUAL for row in rows) else 1


def _even(text: str) -> int:
    if not text.isdecimal() or int(text) < 2 or int(text) % 2:
        raise argparse.ArgumentTypeError(
            f"expected an even number of processes, as two machines share them, got {text!r}"
        )
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
