"""kill -9 at random moments, five a command: what goes on afterwards ends in the bytes of an uninterrupted run.

`python bench/kills.py --seed N` does the same twenty times a command, with moments of your own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kill_review import kill_review_often
from kill_runs import KILLABLE, kill_often, killable

SEED = int(os.environ.get("HF_ROBUST_KILL_SEED", "8"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", KILLABLE)
def test_a_command_that_was_killed_five_times_ends_in_the_same_bytes(tmp_path: Path, name: str) -> None:
    report = kill_often(killable(tmp_path, name), tmp_path, 5, seed=SEED)
    assert report.kills == 5


def test_a_review_that_was_killed_five_times_loses_no_answer_and_doubles_none(tmp_path: Path) -> None:
    report = kill_review_often(tmp_path, 5, seed=SEED)
    assert report.kills == 5
