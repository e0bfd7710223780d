"""The evaluate command in real processes: any number of them, either launcher, killed and resumed: the same bytes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tiny_runs import A_AND_O, Sets, contents, make_sets, run, write, write_validation

from hf_robust.runner import WorldError, join_world
from hf_robust.runner.world import _asked_of_launcher

HF_ROBUST = [sys.executable, "-m", "hf_robust"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
LAUNCHED = [*ACCELERATE, "--multi_gpu", "--num_processes", "2", "--main_process_port", "0", "-m", "hf_robust"]
BENCHMARKS = ("imagenet-a", "imagenet-o")
PATIENCE = 120  # seconds for one command on a busy machine


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def in_this_process(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(run(sets, tmp_path_factory.mktemp("runs"), "plain", *BENCHMARKS))


def arguments(sets: Sets, out: Path, *more: str, model: str = "plain") -> list[str]:
    return [
        "evaluate", "--model", sets.model(model), "--benchmark", *BENCHMARKS, "--data", str(sets.data),
        "--imagenet-val", str(sets.validation), "--out", str(out), "--device", "cpu", "--allow-chance", *more,
    ]  # fmt: skip


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


def run_of(out: Path) -> Path:
    (plan,) = out.glob("*/plan.json")
    return plan.parent


def test_two_processes_give_the_bytes_of_one(sets: Sets, tmp_path: Path, in_this_process: dict[str, bytes]) -> None:
    done = finished([*HF_ROBUST, *arguments(sets, tmp_path, "--processes", "2")])
    assert done.returncode == 0, done.stderr
    assert contents(run_of(tmp_path)) == in_this_process
    log = (run_of(tmp_path) / "log.jsonl").read_text()
    assert sorted(re.findall(r'"rank": (\d), "world": (\d)', log)) == [("0", "2"), ("1", "2")]


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "3", "auto"])
def test_any_number_of_processes_gives_the_same_bytes(
    sets: Sets, tmp_path: Path, in_this_process: dict[str, bytes], processes: str
) -> None:
    done = finished([*HF_ROBUST, *arguments(sets, tmp_path, "--processes", processes)])
    assert done.returncode == 0, done.stderr
    assert contents(run_of(tmp_path)) == in_this_process


@pytest.mark.slow
def test_accelerate_launch_gives_the_same_bytes(sets: Sets, tmp_path: Path, in_this_process: dict[str, bytes]) -> None:
    done = finished([*LAUNCHED, *arguments(sets, tmp_path)])
    assert done.returncode == 0, done.stderr
    assert contents(run_of(tmp_path)) == in_this_process
    assert '"rank": 1, "world": 2' in (run_of(tmp_path) / "log.jsonl").read_text()


@pytest.mark.slow
def test_a_real_convolutional_model_gives_the_same_bytes_in_one_and_in_two_processes(
    sets: Sets, tmp_path: Path
) -> None:
    for n in ("1", "2"):
        command = arguments(sets, tmp_path / n, "--processes", n)
        command[command.index("--model") + 1] = "timm-random/test_efficientnet"
        assert finished([*HF_ROBUST, *command]).returncode == 0
    assert contents(run_of(tmp_path / "1")) == contents(run_of(tmp_path / "2"))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("2", "3"), ("3", "1"), ("1", "2")])
def test_a_killed_run_goes_on_with_another_number_of_processes_to_the_same_bytes(
    sets: Sets, tmp_path: Path, before: str, after: str
) -> None:
    whole = contents(run(sets, tmp_path / "whole", "slow", *BENCHMARKS))
    out = tmp_path / "killed"
    kept = _killed_after_a_part(arguments(sets, out, "--processes", before, model="slow"), out)
    assert 0 < len(kept) < sum(name.endswith(".parquet") for name in whole)
    done = finished([*HF_ROBUST, *arguments(sets, out, "--processes", after, model="slow")])
    assert done.returncode == 0, done.stderr
    assert contents(run_of(out)) == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def _killed_after_a_part(command: list[str], out: Path) -> dict[Path, int]:
    """Finished parts and their times after SIGKILL of the first process; its workers must end by themselves."""
    process = subprocess.Popen([*HF_ROBUST, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(lambda: any(out.rglob("part-*.parquet")))
        workers = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive, f"{len(alive)} workers outlived the run that started them, {len(gone)} ended"
    return {path: path.stat().st_mtime_ns for path in out.rglob("part-*.parquet")}


def _wait(until: object) -> None:
    assert callable(until)
    end = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@pytest.mark.slow
def test_accelerate_that_silently_starts_one_process_is_stopped(sets: Sets, tmp_path: Path) -> None:
    command = [*ACCELERATE, "--cpu", "--num_processes", "2", "-m", "hf_robust", *arguments(sets, tmp_path)]
    done = finished(command)
    assert done.returncode != 0
    assert "expected 2 processes as the launcher was told, got a world of 1. On CPUs start with: ACCEL" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_another_number_of_processes_than_the_launcher_s_is_stopped(sets: Sets, tmp_path: Path) -> None:
    done = finished([*LAUNCHED, *arguments(sets, tmp_path, "--processes", "3")])
    assert done.returncode != 0
    assert "expected 3 processes as the launcher was told, got a world of 2" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_launcher_that_promised_more_processes_than_there_are_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_robust.runner.world._parent_command", lambda: ["accelerate", "launch", "--num_processes=4"])
    with pytest.raises(
        WorldError, match=r"expected 4 processes .* got a world of 1\. .* hf-robust evaluate --processes 4"
    ):
        join_world("cpu")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python /bin/accelerate launch --cpu --num_processes 2 -m hf_robust", 2),
        ("python /bin/accelerate-launch --num-processes=3 regenerate.py", 3),
        ("python -m accelerate.commands.launch --num_processes 2 x.py", 2),
        ("python -m accelerate.commands.accelerate_cli launch --cpu --num_processes 2", 2),
        ("accelerate launch -m hf_robust", None),
        ("bash -c run", None),
        ("python -m pytest --num_processes 2", None),
    ],
)
def test_the_launcher_s_own_words_are_understood(command: str, expected: int | None) -> None:
    assert _asked_of_launcher(command.split()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_broken_picture_ends_the_command_with_a_sentence_and_keeps_the_parts(
    sets: Sets, tmp_path: Path, processes: str
) -> None:
    broken = replace(sets, validation=write_validation(tmp_path / "validation"))
    write(broken.validation / A_AND_O[0] / "ILSVRC2012_val_00000001.JPEG", b"no picture")
    done = finished([*HF_ROBUST, *arguments(broken, tmp_path / "runs", "--processes", processes)])
    assert done.returncode == 1
    assert "hf-robust: error: expected a picture at id 'ILSVRC2012_val_00000001' of imagenet-val" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((run_of(tmp_path / "runs") / "imagenet-a.model").glob("part-*"))
    again = finished([*HF_ROBUST, *arguments(broken, tmp_path / "runs", "--on-error", "record", "--json")])
    assert again.returncode == 0, again.stderr
    assert '"n_failed": 1' in again.stdout


@pytest.mark.slow
def test_a_model_that_fails_is_a_row_and_the_others_run(sets: Sets, tmp_path: Path) -> None:
    command = arguments(sets, tmp_path, "--json")
    command.insert(command.index("--model") + 1, sets.model("out_of_memory"))
    done = finished([*HF_ROBUST, *command])
    assert done.returncode == 1
    assert "tried to allocate more than there is" in done.stdout
    assert '"metric": "top1_accuracy"' in done.stdout
