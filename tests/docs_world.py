"""What the pages of docs/ take as given: tiny models, people's answers, and what other tools give back.

`python tests/docs_world.py NAME` makes one of them in the current folder, where the blocks of its page were run.
"""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hf_robust.data import decode
from hf_robust.metrics.vqa import question
from hf_robust.regenerate.review import FACTS_FILE, ReviewSettings, decides, facts_of, simulated
from hf_robust.review.base import COMPONENT_LABELS, NAME_THE_CLASS, Answer
from hf_robust.review.exchange_labelstudio import TASKS
from hf_robust.review.exchange_mturk import INPUT
from hf_robust.review.folder import Review, read_review
from hf_robust.review.simulate import Worker, simulate
from hf_robust.review.store import Store
from hf_robust.runner.questions import most_confusing, option_of

ROOT = Path(__file__).resolve().parent.parent


def tiny_generator(folder: Path) -> Path:
    """The pipeline that docs/imagenet-d.md makes, by its own command."""
    command = [sys.executable, str(ROOT / "tests" / "tiny_diffusion.py"), str(folder / "tiny-generator")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "tiny-generator"


def reviews(folder: Path) -> dict[str, Review]:
    """Name of the folder that a page gave -> the review in it or below it."""
    found = [*folder.glob(f"*/{FACTS_FILE}"), *folder.glob(f"*/review-*/{FACTS_FILE}")]
    return {path.relative_to(folder).parts[0]: read_review(path.parent) for path in found}


def pretended(review: Review) -> list[Answer]:
    """What pretend workers answer to all of a review; of what is known to be clean they are sure."""
    if decides(review.mode) and review.mode.name != COMPONENT_LABELS.name:
        return simulated(review, ReviewSettings(good=0.8))
    workers = [Worker(hashlib.sha256(b"pretend %d" % i).hexdigest(), 0.9, steady=1.0) for i in range(5)]
    given = simulate(review.items, review.tasks, truth_of(review), workers, review.mode, seed=0)
    known = {item.item_id: item.expected for item in review.items if item.kind == "positive"}
    return [replace(a, value=known[a.item_id][a.question][0]) if a.item_id in known else a for a in given]


def truth_of(review: Review) -> dict[str, dict[str, str]]:
    """row_id -> question -> the right answer; of components the first of every class is spurious."""
    if review.mode.name == NAME_THE_CLASS.name:
        return {key: {"class": names[0]} for key, names in facts_of(review.folder, "truth")["truth"].items()}
    places = facts_of(review.folder, "components")["components"].items()
    return {key: {"component": "not-spurious" if component else "spurious"} for key, (_, component) in places}


def people(folder: Path) -> None:
    """Pretend workers answer everything that is asked in the reviews below the folder."""
    for review in reviews(folder).values():
        Store(review.folder).import_answers(pretended(review))


def mechanical_turk(folder: Path) -> None:
    """Batch_results.csv, as the requester's site gives it for mturk/, which was exported from people-a."""
    review = reviews(folder)["people-a"]
    answers, rows = pretended(review), []
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
    """label-studio-export.json, as a project gives it for label-studio/, which was exported from people-c."""
    answers = pretended(reviews(folder)["people-c"])
    numbers = {name: i for i, name in enumerate(sorted({a.worker for a in answers}), start=1)}
    rows = json.loads((folder / "label-studio" / TASKS).read_text(encoding="utf-8"))
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


def vision_language_model(folder: Path) -> None:
    """tiny-vlm/, which has learnt an answer to each question of questions.csv by heart, some of them wrong."""
    import tiny_vlm

    lessons = []
    with (folder / "questions.csv").open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file, delimiter="\t")):
            shown = decode((folder / "demo-output/pictures/imagenet-d" / row["image_dir"]).read_bytes())
            truth = option_of(row["gt_category"])
            other = most_confusing(truth, row["top1_pred_cate"], row["top2_pred_cate"]) or ""
            said = ((truth, truth), (truth, other), (other, truth), ("both", truth), ("a thing", other))[number % 5]
            answers = [f"{truth} or {other}" if one == "both" else one for one in said]
            lessons += [(shown, question(truth, other), answers[0]), (shown, question(other, truth), answers[1])]
    tiny_vlm.save(folder / "tiny-vlm", lessons=lessons)


GIVEN: Mapping[str, Callable[[Path], None]] = {
    "mechanical-turk": mechanical_turk,
    "label-studio": label_studio,
    "people": people,
    "vision-language-model": vision_language_model,
}

if __name__ == "__main__":
    GIVEN[sys.argv[1]](Path.cwd())
