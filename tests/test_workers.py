"""Worker processes, forked and started anew: what they say when they fail, and that none outlives its block."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from hf_robust.models import import_libraries
from hf_robust.runner import World
from hf_robust.runner.workers import can_fork, workers

PAIR = World(0, 2, "cpu")
BOTH_WAYS = pytest.mark.parametrize("threads", [1, 2])  # with more than one a process may not be forked


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@BOTH_WAYS
def test_the_last_line_of_a_worker_that_failed_is_its_complaint(threads: int) -> None:
    with workers(["score", "no-such-folder"], PAIR, threads=threads) as complaints:
        assert complaints == []
    (said,) = complaints
    assert said.startswith("hf-robust: error: expected a folder that `hf-robust evaluate --out` wrote, got 'no-such-")


@BOTH_WAYS
def test_a_worker_that_did_its_work_says_nothing_here(
    threads: int, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with workers(["list", "--data", str(tmp_path)], PAIR, threads=threads) as complaints:
        pass
    assert (complaints, capfd.readouterr()) == ([], ("", ""))


@BOTH_WAYS
def test_no_worker_outlives_its_block(threads: int, tmp_path: Path) -> None:
    before = children()

    def interrupted() -> None:
        with workers(["demo", "--out", str(tmp_path)], PAIR, threads=threads):
            assert children() - before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert children() == before


def test_only_a_process_on_linux_without_gpu_or_more_threads_may_be_forked() -> None:
    assert can_fork(PAIR, None) == can_fork(PAIR, 1) == sys.platform.startswith("linux")
    assert not can_fork(PAIR, 2)
    assert not can_fork(World(0, 2, "cuda:0"), 1)


def test_libraries_that_are_not_there_are_left_to_the_loader() -> None:
    import_libraries(["timm/resnet50", "no-such-source/x", "file.py:build", ""])
    assert {"torchvision", "timm"} <= set(sys.modules)
