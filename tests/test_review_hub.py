"""A review as a Space: both repos pushed to a Hub, answers written there, brought back once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from loopback_hub import Hub, loopback_hub
from review_world import review

MAIN = """
import json, sys
from hf_robust.cli import main
for line in json.loads(sys.argv[1]):
    print("exit", main(line), flush=True)
"""
ANSWER = """
import json, sys
from huggingface_hub import HfApi
lines = open(sys.argv[1], "rb").read()
where = {"path_in_repo": "answers/one.jsonl", "repo_id": "tester/answers", "repo_type": "dataset"}
HfApi().upload_file(path_or_fileobj=lines, **where)
"""
SPACE = ["review", "space", "R", "--to", "tester/page", "--answers", "tester/answers"]


def said(hub: Hub, home: Path, code: str, argument: str) -> str:
    done = hub.run(code, home, argument)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_review_goes_to_a_space_and_its_answers_come_back_once(tmp_path: Path) -> None:
    made = review(tmp_path / "R")
    task = made.tasks[0]
    events = [
        {"worker": "f" * 64, "task": task.task_id, "item": item, "question": q.name, "value": "yes", "seconds": 1.5,
         "at": f"2026-01-01T00:00:{n:02d}+00:00"}
        for n, (item, q) in enumerate((i, q) for i in task.items for q in made.mode.questions)
    ]  # fmt: skip
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    with loopback_hub() as hub:
        dry = said(hub, tmp_path, MAIN, json.dumps([[*SPACE, "--dry-run"]]))
        assert "dry run, nothing was sent" in dry
        assert "app.py" in dry
        pushed = said(hub, tmp_path, MAIN, json.dumps([SPACE]))
        assert "exit 0" in pushed
        assert "REVIEW_SALT (16 characters or more" in pushed
        assert "review.json" not in said(hub, tmp_path, FILES, "space")  # it would give the sentinels away
        assert "review/review.json" in said(hub, tmp_path, FILES, "dataset")
        said(hub, tmp_path, ANSWER, "answers.jsonl")
        pull = ["review", "pull", "R", "--answers", "tester/answers"]
        back = said(hub, tmp_path, MAIN, json.dumps([pull, pull]))
    assert f"1 files of answers read, {len(events)} answers new" in back
    assert "1 files of answers read, 0 answers new" in back


def test_a_dry_run_shows_the_files_also_where_the_hub_does_not_answer(tmp_path: Path) -> None:
    made = review(tmp_path / "R")
    home = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    dry = subprocess.run(
        [sys.executable, "-c", MAIN, json.dumps([[*SPACE, "--dry-run"], SPACE])],
        cwd=tmp_path, env={**os.environ, **home}, capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    size = (made.folder / "review.json").stat().st_size
    assert f"?       review/review.json  {size:,} bytes\n" in dry.stdout
    assert "dry run, nothing was sent: tester/answers\n" in dry.stdout
    assert "dry run, nothing was sent: tester/page\n" in dry.stdout
    assert "what tester/answers and tester/page hold is not known: expected to reach " in dry.stderr
    assert dry.stdout.split("exit ")[1:] == ["0\n", "1\n"]  # to send them, the Hub has to answer


FILES = """
import sys
from huggingface_hub import HfApi
repo = {"space": "tester/page", "dataset": "tester/answers"}[sys.argv[1]]
info = HfApi().repo_info(repo, repo_type=sys.argv[1])
assert info.private or sys.argv[1] == "space"
print([f.rfilename for f in info.siblings])
"""
