"""Machines that fail: no room, no leave to write, vanished data, two at once, wrong clocks, a kill at every rename."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builder_archives import A_FILES, as_folder, as_tar, picture
from tiny_runs import ALONE, Sets, contents, make_sets, needs_of, run, write_validation

from hf_robust.benchmarks import benchmark
from hf_robust.builders import build, damaged, find, installed, verify_build
from hf_robust.cli import main
from hf_robust.data import open_rows
from hf_robust.predictions.temporary import renamed
from hf_robust.runner import RunOptions, evaluate
from hf_robust.runner.loop import PictureFailedError

BENCHMARKS = ("imagenet-a", "imagenet-o")
HF_ROBUST = [sys.executable, "-m", "hf_robust"]
PATIENCE = 120


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"), a=9, o=120)


@pytest.fixture(scope="module")
def whole(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(run(sets, tmp_path_factory.mktemp("runs"), "plain", *BENCHMARKS))


def command(sets: Sets, out: Path, *more: str) -> list[str]:
    return [
        "evaluate", "--model", sets.model("plain"), "--benchmark", *BENCHMARKS, "--data", str(sets.data),
        "--imagenet-val", str(sets.validation), "--out", str(out), "--device", "cpu", "--processes", "1",
        "--allow-chance", *more,
    ]  # fmt: skip


def run_of(out: Path) -> Path:
    (plan,) = out.glob("*/plan.json")
    return plan.parent


# --- a kill at every rename: the moments at which a half-made file could become a whole one


def child(work: Callable[[], object], *, dies_at: int) -> int:
    """The exit code of a fork that does the work and is killed just before its rename number `dies_at`."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code, left = 1, dies_at

    def counted(call: Callable[..., None]) -> Callable[..., None]:
        def renamed_or_dead(*arguments: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            call(*arguments, **options)

        return renamed_or_dead

    try:
        os.replace, os.rename = counted(os.replace), counted(os.rename)  # type: ignore[assignment]
        work()
        code = 0
    finally:
        os._exit(code)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_run_that_was_killed_before_any_of_its_renames_ends_in_the_same_files(
    sets: Sets, whole: dict[str, bytes], tmp_path: Path
) -> None:
    codes = []
    while not codes or codes[-1]:
        out = tmp_path / str(len(codes))
        codes.append(child(lambda to=out: run(sets, to, "plain", *BENCHMARKS), dies_at=len(codes)))
        assert contents(run(sets, out, "plain", *BENCHMARKS)) == whole
    assert set(codes[:-1]) == {-signal.SIGKILL}
    assert len(codes) > len(whole)  # every file came by a rename


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_build_that_was_killed_before_any_of_its_renames_is_whole_or_absent_and_then_whole(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "a.tar", A_FILES)
    expected = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "whole")
    codes = []
    while not codes or codes[-1]:
        out = tmp_path / str(len(codes))
        work = lambda to=out: build("imagenet-a", source, allow_incomplete=True, out=to)  # noqa: E731
        codes.append(child(work, dies_at=len(codes)))
        assert [verify_build(built).pictures for built in installed(out=out)] in ([], [3])
        assert damaged(out=out) == ()
        assert build("imagenet-a", source, allow_incomplete=True, out=out).fingerprint == expected.fingerprint
        assert not list(out.glob(".hf_robust*"))
        names = sorted(path.name for path in find("imagenet-a", out=out).path.iterdir())
        assert names == sorted(path.name for path in expected.path.iterdir())
    assert len(codes) > 2


def test_an_error_while_a_file_is_written_leaves_the_old_one_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(LookupError), renamed(path) as temporary:
        temporary.write_text(str({}["half"]))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.json", "old")]


# --- no room, no leave to write


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[None]:
    """A disk of its own at `folder`; skips where this user may not make one."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode
    ):
        pytest.skip("needs leave to mount a disk in memory")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)


@pytest.mark.parametrize("kilobytes", [16, 100, 400])
def test_a_full_disk_ends_the_command_with_the_place_and_with_room_it_goes_on_to_the_same_bytes(
    sets: Sets, whole: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], kilobytes: int
) -> None:
    out = tmp_path / "disk"
    with small_disk(out, f"size={kilobytes}k"):
        assert main(command(sets, out / "runs")) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(f"hf-robust: error: expected a place to read or write at '{out}/runs/")
        assert said.endswith("got: No space left on device; check it and its permissions")
        assert not list(out.rglob(".*.tmp"))
        done = {str(p.relative_to(out / "runs")): p.read_bytes() for p in out.rglob("part-*")}
        remount(out, "size=20m")
        assert main(command(sets, out / "runs")) == 0
        assert contents(run_of(out / "runs")) == whole
        assert all((out / "runs" / name).read_bytes() == data for name, data in done.items())


def test_a_full_disk_leaves_no_data_set_and_with_room_it_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"imagenet-a/n01498041/0.{i}1_x _ y_0.5.jpg": picture(i, size=(99, 99)) for i in range(200)}
    line = ["build", "imagenet-a", "--source", str(as_folder(tmp_path, files) / "imagenet-a"), "--allow-incomplete"]
    disk = tmp_path / "disk"
    with small_disk(disk, "size=100k"):
        assert main([*line, "--out", str(disk)]) == 1
        assert "No space left on device" in capsys.readouterr().err
        assert (installed(out=disk), list(disk.rglob("*.arrow"))) == ((), [])
        remount(disk, "size=20m")
        assert main([*line, "--out", str(disk)]) == 0
        assert verify_build(find("imagenet-a", out=disk)).pictures == 200


@pytest.mark.parametrize("what", ["evaluate", "build", "report"])
def test_a_folder_that_may_not_be_written_is_named(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    disk = tmp_path / "disk"
    runs = run(sets, tmp_path / "runs", "plain", "imagenet-a").parent
    lines = {
        "evaluate": command(sets, disk / "runs"),
        "build": [
            "build",
            "imagenet-a",
            "--source",
            str(as_tar(tmp_path / "a.tar", A_FILES)),
            "--out",
            str(disk / "d"),
        ],
        "report": ["report", str(runs), "--out", str(disk / "report"), "--no-images", "--allow-chance"],
    }
    with small_disk(disk, "size=1m,ro"):
        assert main(lines[what]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"hf-robust: error: expected a place to read or write at '{disk}")
    assert said.endswith("got: Read-only file system; check it and its permissions")


def test_runs_on_a_disk_that_may_not_be_written_say_so_and_are_not_scored_in_part(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "size=20m"):
        assert main(command(sets, disk / "runs")) == 0
        remount(disk, "ro")
        assert main(command(sets, disk / "runs")) == 1
        assert main(["score", str(disk / "runs"), "--allow-chance"]) == 1
    assert "got: Read-only file system" in capsys.readouterr().err


# --- data that vanish


@pytest.mark.parametrize("mode", ["raise", "record"])
def test_validation_pictures_that_vanish_stop_the_run_and_are_never_counted_as_broken(
    sets: Sets, whole: dict[str, bytes], tmp_path: Path, mode: Any
) -> None:
    mine = replace(sets, validation=write_validation(tmp_path / "validation"))
    away = tmp_path / "away"

    def vanish(done: int, total: int) -> None:
        if done >= 32 and mine.validation.exists():
            mine.validation.rename(away)

    asked = RunOptions(on_error=mode)
    needs = needs_of(mine, "imagenet-o", "imagenet-a", options=asked)
    chosen = [benchmark(name) for name in ("imagenet-o", "imagenet-a")]
    with pytest.raises(
        PictureFailedError, match=r"expected to read id .* got .*No such file.*: is the data still where"
    ):
        evaluate(mine.model("plain"), chosen, needs, tmp_path / "runs", options=asked, world=ALONE, meter=vanish)
    kept = list((tmp_path / "runs").rglob("part-*"))
    away.rename(mine.validation)
    assert contents(run(mine, tmp_path / "runs", "plain", *BENCHMARKS)) == whole
    assert kept


def test_a_data_set_that_is_removed_while_it_is_read_is_read_to_its_end_or_named(sets: Sets, tmp_path: Path) -> None:
    data = Path(shutil.copytree(sets.data, tmp_path / "data"))
    rows = open_rows("imagenet-a", built=data)
    before = rows.read(0)
    shutil.rmtree(data)
    assert rows.read(0) == before  # the file stays open


# --- two at once


@pytest.mark.slow
def test_two_commands_in_one_folder_at_once_both_succeed_with_the_bytes_of_one(
    sets: Sets, whole: dict[str, bytes], tmp_path: Path
) -> None:
    lines = [[*HF_ROBUST, *command(sets, tmp_path)] for _ in range(2)]
    both = [subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for line in lines]
    said = [process.communicate(timeout=PATIENCE)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert contents(run_of(tmp_path)) == whole
    json.loads((tmp_path / "results" / "results.json").read_text())
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_two_builds_at_once_wait_for_each_other_and_are_one_data_set(tmp_path: Path) -> None:
    files = {f"imagenet-a/n01498041/0.{i}1_x _ y_0.5.jpg": picture(i) for i in range(500)}
    source, out = as_tar(tmp_path / "a.tar", files), tmp_path / "out"
    line = [*HF_ROBUST, "build", "imagenet-a", "--source", str(source), "--allow-incomplete", "--out", str(out)]
    both = [subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=PATIENCE)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert [verify_build(built).pictures for built in installed(out=out)] == [500]
    assert not list(out.glob(".hf_robust*"))


# --- clocks


def test_a_clock_that_jumps_changes_no_byte_of_a_run(
    sets: Sets, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: draw.choice([0.0, 1e9, 4e9, -5.0, draw.uniform(0, 3e9)]))
    assert contents(run(sets, tmp_path, "plain", *BENCHMARKS)) == whole


def test_the_last_build_is_the_one_that_is_used_whatever_the_clock_said_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(seed: int) -> str:
        files = as_folder(tmp_path / str(seed), {"imagenet-a/n01498041/0.11_x _ y_0.5.jpg": picture(seed)})
        return build("imagenet-a", files, allow_incomplete=True, out=tmp_path / "out").fingerprint

    now = time.time()
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: now + 86_400)  # a day ahead
        first = built(1)
    second = built(2)
    assert first != second
    assert find("imagenet-a", out=tmp_path / "out").fingerprint == second
    newest = max((tmp_path / "out").glob("hf_robust___*/default/*/*/"), key=lambda folder: folder.stat().st_mtime)
    assert json.loads((newest / "hf-robust.json").read_text())["fingerprint"] == second  # as load_dataset looks


# --- records that vanish, builds that are damaged


def test_a_benchmark_whose_request_was_removed_is_a_failed_row_and_not_gone(sets: Sets, tmp_path: Path) -> None:
    assert main(command(sets, tmp_path)) == 0
    (run_of(tmp_path) / "requests" / "imagenet-o.model.json").unlink()
    assert main(["score", str(tmp_path), "--allow-chance", "--json"]) == 1
    results = json.loads((tmp_path / "results" / "results.json").read_text())["results"]
    (gone,) = [r for r in results if r["metric"] is None]
    assert (gone["benchmark"], gone["preprocessing"]) == ("imagenet-o", "model")
    assert gone["reason"].endswith("imagenet-o.model.json, got nothing: run the same `evaluate` again")
    assert main(command(sets, tmp_path)) == 0


def test_comparing_runs_says_which_benchmarks_it_leaves_out(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(sets, tmp_path / "a")) == 0
    only_a = command(sets, tmp_path / "b", "--batch-size", "4")
    only_a.remove("imagenet-o")
    assert main(only_a) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "left out: imagenet-o (model preprocessing): B was not asked for it" in capsys.readouterr().err
    request = run_of(tmp_path / "b") / "requests" / "imagenet-o.model.json"
    request.write_text(json.dumps({"benchmark": "imagenet-o", "mode": "model", "failure": "no room", "notes": []}))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]) == 1
    said = capsys.readouterr()
    assert "left out: imagenet-o (model preprocessing): failed in B: no room" in said.err
    assert {row["benchmark"] for row in json.loads(said.out)} == {"imagenet-a"}


@pytest.mark.parametrize("record", ["", "[]", '{"name": "imagenet-a"}'])
def test_a_damaged_build_is_listed_as_damaged_and_can_be_removed_or_built_again(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str
) -> None:
    data = Path(shutil.copytree(sets.data, tmp_path / "data"))
    (find("imagenet-a", out=data).path / "hf-robust.json").write_text(record)
    assert main(["list", "--installed", "--data", str(data), "--json"]) == 0
    said = capsys.readouterr()
    rows = {row["benchmark"]: row["built here"] for row in json.loads(said.out)}
    assert (rows["imagenet-a"], rows["imagenet-o"]) == ("DAMAGED", "120 pictures, incomplete")
    assert "got a damaged one" in said.err
    assert main(["remove", "imagenet-a", "--out", str(data)]) == 0
    assert damaged(out=data) == ()
    assert [built.name for built in installed(out=data)] == ["imagenet-d", "imagenet-o", "spurious-imagenet"]


def test_an_equal_build_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "a.tar", A_FILES)
    first = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out")
    (first.path / "hf-robust.json").write_text("[]")
    again = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out")
    assert (verify_build(again).pictures, damaged(out=tmp_path / "out")) == (3, ())


def test_an_export_writes_over_nothing_but_an_earlier_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"form": "of another program"}')
    line = ["spufix", "export", "--spufix", "none", "--model", "timm-random/test_vit", "--out", str(tmp_path / "mine")]
    assert main(line) == 1
    assert "or one that `spufix export` wrote, for --out, got " in capsys.readouterr().err
    (tmp_path / "mine" / "config.json").write_text('{"form": "hf_robust corrected model 1"}')
    assert main(line) == 1
    assert (
        "expected a file that `hf-robust spufix fit` wrote, got 'none'" in capsys.readouterr().err
    )  # one step further
