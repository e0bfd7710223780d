"""What the pages of docs/ take as given: a tiny generator, and what other tools give back after people answered."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hf_robust.regenerate.review import ReviewSettings, simulated
from hf_robust.review.base import Answer
from hf_robust.review.exchange_labelstudio import TASKS
from hf_robust.review.exchange_mturk import INPUT
from hf_robust.review.folder import Review, read_review

ROOT = Path(__file__).resolve().parent.parent


def tiny_generator(folder: Path) -> Path:
    """The pipeline that docs/imagenet-d.md makes, by its own command."""
    command = [sys.executable, str(ROOT / "tests" / "tiny_diffusion.py"), str(folder / "tiny-generator")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "tiny-generator"


def pretended(folder: Path) -> tuple[Review, list[Answer]]:
    """The review below `people-d`, and the answers of pretend workers to all of it."""
    review = read_review(next((folder / "people-d").glob("review-*")))
    return review, simulated(review, ReviewSettings(good=0.8))


def mechanical_turk(folder: Path) -> None:
    """Batch_results.csv, as the requester's site gives it for mturk/."""
    review, answers = pretended(folder)
    rows = []
    with (folder / "mturk" / INPUT).open(encoding="ascii", newline="") as file:
        for line in csv.DictReader(file):
            task = review.task[line["task_id"]]
            own = [answer for answer in answers if answer.task_id == task.task_id]
            seconds = str(5 * len(task.items))
            row = {"WorkerId": own[0].worker, "AssignmentStatus": "Submitted", "WorkTimeInSeconds": seconds}
            row |= {f"Input.{name}": value for name, value in line.items()}
            rows.append(row | {f"Answer.{a.question}_{task.items.index(a.item_id) + 1}": a.value for a in own})
    with (folder / "Batch_results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)


def label_studio(folder: Path) -> None:
    """label-studio-export.json: what a project gives for the tasks of this review, exported as the page does it."""
    from hf_robust.review.exchange_labelstudio import export_label_studio

    review, answers = pretended(folder)
    export_label_studio(review, folder / "exported", base_url="https://pictures.example/d")
    numbers = {name: i for i, name in enumerate(sorted({a.worker for a in answers}), start=1)}
    rows = json.loads((folder / "exported" / TASKS).read_text(encoding="utf-8"))
    for number, row in enumerate(rows, start=1):
        asked = (row["data"]["task_id"], row["data"]["item_id"])
        own = [a for a in answers if (a.task_id, a.item_id) == asked]
        chosen = [
            {"type": "choices", "from_name": a.question, "to_name": "image", "value": {"choices": [a.value]}}
            for a in own
        ]
        done = {"id": number, "completed_by": numbers[own[0].worker], "result": chosen, "was_cancelled": False,
                "created_at": "2026-03-09T22:16:08.728353Z", "lead_time": 4.0}  # fmt: skip
        row |= {"id": number, "annotations": [done]}
    (folder / "label-studio-export.json").write_text(json.dumps(rows), encoding="utf-8")


GIVEN: Mapping[str, Callable[[Path], None]] = {"mechanical-turk": mechanical_turk, "label-studio": label_studio}
