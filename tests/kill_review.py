"""Somebody who answers a review in a process that is killed again and again: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from kill_runs import BrokenError, Report
from review_world import questions, review

from hf_robust.review.store import Store

ROOT = Path(__file__).resolve().parent.parent
ANSWER = """
import sys
from datetime import UTC, datetime
from hf_robust.review.base import Answer
from hf_robust.review.store import Store
store = Store(sys.argv[1])
worker = store.enter(sys.argv[2])
task = store.join(worker, datetime.now(UTC))
for item in task.items:
    for question in store.review.mode.questions:
        store.answer(Answer(worker, task.task_id, item, question.name, "yes"))
        print(item, question.name, flush=True)
"""


def start(code: str, folder: Path, name: str) -> subprocess.Popen[str]:
    """A process of its own that runs the code for this review and worker."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(folder), name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def kill_review_often(folder: Path, kills: int, *, seed: int) -> Report:
    """Kills the process after random numbers of answers, which are then given from the first on again.

    BrokenError where an acknowledged answer is missing, one counts twice, or the end is not that of one sitting.
    """
    made = review(folder, count=60, images_a_task=60, workers=1)
    asked = {f"{item} {question}" for item, question in questions(made, "0000-0")}
    draw, report, said = random.Random(seed), Report(), set[str]()
    for _ in range(kills):
        moment = draw.randrange(len(asked) // 2) + draw.random() / 100
        said |= _answered(start(ANSWER, folder, "anna"), moment)
        report.kills += 1
        report.moments.append(moment)
        _check(folder, said)
    said |= _answered(start(ANSWER, folder, "anna"), None)
    if _check(folder, said) != asked:
        raise BrokenError("the answers at the end are not those of one sitting")
    return report


def _answered(process: subprocess.Popen[str], moment: float | None) -> set[str]:
    """What was acknowledged; killed that many answers, and hundredths of a second for its fraction, after its start."""
    said = set()
    assert process.stdout is not None
    for number, line in enumerate(process.stdout, start=1):
        said.add(line.strip())
        if moment is not None and number == max(1, int(moment)):
            time.sleep(moment % 1)
            process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    return said


def _check(folder: Path, said: set[str]) -> set[str]:
    """The answers that are there, each once."""
    answers = [f"{a.item_id} {a.question}" for a in Store(folder).answers()]
    with closing(sqlite3.connect(folder / "answers.sqlite")) as db:
        logged = db.execute("SELECT count(*) FROM log").fetchone()[0]
        whole = db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    if not said <= set(answers):
        raise BrokenError(f"{len(said - set(answers))} acknowledged answers are not there")
    if not whole or not len(answers) == len(set(answers)) == logged:
        raise BrokenError(f"expected each of {len(set(answers))} answers once, got {len(answers)} and {logged} logged")
    return set(answers)
