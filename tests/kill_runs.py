"""Commands that are killed at random moments and started again: what must hold after each kill and at the end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
from builder_archives import as_tar, picture
from tiny_runs import Sets, make_sets

from hf_robust import labels
from hf_robust.builders import installed, verify_build

PATIENCE = 180  # seconds for one uninterrupted command on a busy machine
Files = Mapping[str, bytes]


class BrokenError(AssertionError):
    """A promise that a kill broke."""


@dataclass(frozen=True)
class Killable:
    """A command, and how its folder is looked at.

    arguments  out -> the command line of hf-robust; the same line goes on after a kill.
    begun      out -> whether the work itself has begun: importing libraries is no moment worth a kill.
    contents   out -> every file that must be equal however the command was interrupted.
    pieces     out -> the finished pieces, which no later command may write again.
    check      out -> raises BrokenError where something half-written counts as whole.
    """

    name: str
    arguments: Callable[[Path], list[str]]
    begun: Callable[[Path], bool]
    contents: Callable[[Path], Files]
    pieces: Callable[[Path], list[Path]]
    check: Callable[[Path, Files], None]


@dataclass
class Report:
    """What a series of kills gave."""

    kills: int = 0
    finished: int = 0
    pieces_kept: int = 0
    moments: list[float] = field(default_factory=list)  # seconds after the beginning of the work


# --- the commands; a new one is a function here and its name in KILLABLE


def _evaluate(sets: Sets, processes: int) -> Killable:
    def arguments(out: Path) -> list[str]:
        return [
            "evaluate", "--model", sets.model("slow"), "--benchmark", "imagenet-a", "imagenet-o", "imagenet-d",
            "--data", str(sets.data), "--imagenet-val", str(sets.validation), "--out", str(out), "--device", "cpu",
            "--allow-chance", "--processes", str(processes),
        ]  # fmt: skip

    def contents(out: Path) -> Files:
        return _files(out, lambda path: path.name != "log.jsonl")

    return Killable(
        f"evaluate, {processes} process{'es' if processes > 1 else ''}",
        arguments,
        lambda out: any(out.glob("*/plan.json")),
        contents,
        lambda out: sorted(out.rglob("part-*.parquet")),
        _check_run,
    )


def _check_run(out: Path, whole: Files) -> None:
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.suffix == ".parquet" and path.read_bytes() != whole.get(name):
            raise BrokenError(f"{name} is not what an uninterrupted run writes")
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
    for path in out.glob("*/*/run.json"):
        rows = sum(pq.read_metadata(part).num_rows for part in path.parent.glob("part-*.parquet"))
        if json.loads(path.read_text(encoding="utf-8"))["proof"]["rows"] > rows:
            raise BrokenError(f"{path.relative_to(out)} proves more rows than there are")


def _build(archive: Path) -> Killable:
    def arguments(out: Path) -> list[str]:
        return ["build", "imagenet-a", "--source", str(archive), "--allow-incomplete", "--out", str(out)]

    def contents(out: Path) -> Files:
        files = _files(out, lambda path: path.suffix != ".lock")
        return {name: _without_time(data) if name.endswith("hf-robust.json") else data for name, data in files.items()}

    def check(out: Path, whole: Files) -> None:
        for built in installed(out=out):
            verify_build(built)
        strange = [name for name in contents(out) if name.startswith("hf_robust___") and name not in whole]
        if strange:
            raise BrokenError(f"where load_dataset looks lies what an uninterrupted build leaves out: {strange[0]}")

    return Killable(
        "build",
        arguments,
        lambda out: (out / ".hf_robust-imagenet-a.building").is_dir(),
        contents,
        lambda out: sorted(out.glob("hf_robust___*/default/*/*/*.arrow")),
        check,
    )


def _without_time(record: bytes) -> bytes:
    return json.dumps({k: v for k, v in json.loads(record).items() if k != "built_at"}).encode()


def _files(out: Path, wanted: Callable[[Path], bool]) -> Files:
    found = sorted(path for path in out.rglob("*") if path.is_file() and wanted(path))
    return {str(path.relative_to(out)): path.read_bytes() for path in found}


def _regenerate(generator: Path) -> Killable:
    surrogates = ", ".join(f'"timm-random/test_{name}"' for name in ("vit", "efficientnet", "resnet", "byobnet"))

    def arguments(out: Path) -> list[str]:
        return [
            "regenerate", "imagenet-d", "--out", str(out), "--device", "cpu", "--set", "prompts.limit=60",
            "prompts.part_rows=6", f"generate.model={generator}", "generate.steps=1", "generate.height=32",
            "generate.width=32", "generate.batch=3", f"mine.surrogates=[{surrogates}]", "review.people=simulated",
            "review.images_a_task=6", "assemble.name=tiny-d",
        ]  # fmt: skip

    def contents(out: Path) -> Files:
        return _files(
            out, lambda path: path.name == "ledger.parquet" or (_in_a_stage(out, path) and path.name != ".lock")
        )

    def check(out: Path, whole: Files) -> None:
        for name, data in contents(out).items():
            if name.endswith(".parquet") and whole.get(name) != data:
                raise BrokenError(f"{name} is not what an uninterrupted regeneration writes")
        for built in installed(out=out / "set"):
            verify_build(built)

    return Killable(
        "regenerate",
        arguments,
        lambda out: any(out.glob("1-*/*")),
        contents,
        lambda out: sorted(out.glob("[0-9]-*/part-*.parquet")),
        check,
    )


def _in_a_stage(out: Path, path: Path) -> bool:
    return path.parent.parent == out and path.parent.name[:1].isdigit()


def killable(folder: Path, name: str) -> Killable:
    """The command of that name, over small data that is made in `folder`."""
    if name.startswith("evaluate"):
        return _evaluate(make_sets(folder / "sets", a=130, o=450), 2 if "2" in name else 1)
    if name == "regenerate":
        from tiny_diffusion import tiny_pipeline

        return _regenerate(tiny_pipeline(folder / "diffusion"))
    wnids = labels.imagenet_a_wnids()
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        f"imagenet-a/{wnids[i % 200]}/0.{i + 1:06d}_x _ y_0.5.jpg": picture(i, size=(200, 150)) for i in range(4000)
    }
    return _build(as_tar(folder / "imagenet-a.tar", files))


KILLABLE = ("evaluate, 1 process", "evaluate, 2 processes", "build", "regenerate")


# --- kill, look, start again


def kill_often(command: Killable, folder: Path, kills: int, *, seed: int) -> Report:
    """Kills the command `kills` times at moments drawn by `seed`; BrokenError for the first broken promise.

    Each command goes on in the folder of the one before. One that is done before its moment must have given the files
    of the uninterrupted run, and the next begins anew; so must the last, which nobody kills.
    """
    draw, report, out = random.Random(seed), Report(), folder / "killed"
    started = time.monotonic()
    _wait(_start(command, folder / "whole"))
    whole, start_up = command.contents(folder / "whole"), _start_up(command, folder / "probe")
    longest = time.monotonic() - started - 2 * start_up
    while report.kills < kills:
        moment = draw.uniform(0, longest)
        if _killed(command, out, moment, start_up, group=draw.random() < 0.5):
            report.kills += 1
            report.moments.append(round(moment, 3))
            command.check(out, whole)
        else:
            _expect_whole(command, out, whole)
            shutil.rmtree(out)
            report.finished += 1
    kept = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in command.pieces(out)}
    _wait(_start(command, out))
    _expect_whole(command, out, whole)
    if {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in kept} != kept:
        raise BrokenError("a piece that was finished before the kill was written again")
    report.pieces_kept = len(kept)
    return report


def _start(command: Killable, out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "hf_robust", *command.arguments(out)], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def _wait(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=PATIENCE)
    if process.returncode != 0:
        raise BrokenError(f"exit code {process.returncode}: {said.decode(errors='replace')[-800:]}")


def _start_up(command: Killable, out: Path) -> float:
    """Seconds from the start of the command to the beginning of its work."""
    started = time.monotonic()
    process = _start(command, out)
    _until_begun(command, process, out)
    seconds = time.monotonic() - started
    _kill(process, group=True)
    return seconds


def _until_begun(command: Killable, process: subprocess.Popen[bytes], out: Path) -> None:
    end = time.monotonic() + PATIENCE
    while process.poll() is None and not command.begun(out) and time.monotonic() < end:
        time.sleep(0.005)


def _killed(command: Killable, out: Path, moment: float, start_up: float, *, group: bool) -> bool:
    """Whether the command was killed `moment` seconds after its work began; False: it was done before.

    start_up  seconds until work begins, for a command that goes on: the sign of its beginning is there from before.
    group  with all its workers at once, as when a machine loses power; else only the first process, and the workers
           have to notice.
    """
    resumed = command.begun(out)
    process = _start(command, out)
    _until_begun(command, process, out)
    try:
        process.wait(timeout=moment + (start_up if resumed else 0))
    except subprocess.TimeoutExpired:
        _kill(process, group=group)
        return True
    _wait(process)
    return False


def _kill(process: subprocess.Popen[bytes], *, group: bool) -> None:
    if process.poll() is None:
        (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)  # workers hold the pipe until they have ended too


def _expect_whole(command: Killable, out: Path, whole: Files) -> None:
    found = command.contents(out)
    differing = sorted(name for name in {*found, *whole} if found.get(name) != whole.get(name))
    if differing:
        raise BrokenError(f"{len(differing)} files differ from those of an uninterrupted run: {differing[:3]}")
