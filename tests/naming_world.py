"""A small ImageNet-A whose pictures people name, and people who do not exist, for the tests of human accuracy."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_runs import A_AND_O, FACTORIES, Sets, picture, write, write_validation

from hf_robust.builders import build
from hf_robust.cli import main
from hf_robust.review.base import IMAGE, Answer
from hf_robust.review.folder import Review, read_review
from hf_robust.review.simulate import Worker, simulate
from hf_robust.review.store import Store

PICTURES, WORKERS = 24, 3


def build_own(out: Path, work: Path, rows: int) -> None:
    """ImageNet-A of pictures that two models took for a golf cart and a bucket, which is none of its classes."""
    for i in range(rows):
        name = f"imagenet-a/{A_AND_O[i % 3]}/0.{i + 1:06d}_golf cart _ bucket_0.5.jpg"
        write(work / name, picture(i, kind="JPEG"))
    build("imagenet-a", work / "imagenet-a", allow_incomplete=True, out=out)


def make(sets: Sets, folder: Path, *more: object, benchmark: object = "imagenet-a") -> Review:
    arguments = ["review", "make", folder, "--mode", "name-the-class", "--benchmark", benchmark, "--data", sets.data]
    assert main([str(word) for word in (*arguments, *more)]) == 0
    return read_review(folder)


def truth_of(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((folder / "regeneration.json").read_text(encoding="utf-8"))["truth"]
    return found


def answer(folder: Path, accuracy: float, *, spammers: int = 0) -> list[Answer]:
    """Every task answered by simulated people, two more than a picture needs; only spammers fail on clean ones."""
    store = Store(folder)
    truth = {key: {"class": right[0]} for key, right in truth_of(folder).items()}
    people = [
        Worker(
            hashlib.sha256(b"worker %d" % i).hexdigest(), accuracy, "random" if i < spammers else "careful", steady=1.0
        )
        for i in range(WORKERS + 2)
    ]
    given = simulate(store.review.items, store.review.tasks, truth, people, store.review.mode, seed=1)
    clean = {item.item_id: item.expected["class"][0] for item in store.review.items if item.kind == "positive"}
    careful = {worker.name for worker in people if worker.habit == "careful"}
    given = [replace(a, value=clean[a.item_id]) if a.item_id in clean and a.worker in careful else a for a in given]
    store.import_answers(given)
    return given


def answer_by_hand(folder: Path, values: Callable[[int, Any], list[str]]) -> None:
    """Three workers; `values` gives, for the number of an image and its item, the three answers."""
    store = Store(folder)
    images = [item for item in store.review.items if item.kind == IMAGE]
    chosen = {item.item_id: values(i, item) for i, item in enumerate(images)}
    store.import_answers(
        Answer(store.enter(f"worker {w}"), f"0000-{w}", item_id, "class", own[w])
        for item_id, own in chosen.items()
        for w in range(WORKERS)
        if own[w]
    )


def counted(folder: Path, given: list[Answer]) -> tuple[int, int, int]:
    """(right answers, answers, pictures right by majority), counted plainly."""
    truth, images = truth_of(folder), {i.item_id: i for i in read_review(folder).items if i.kind == IMAGE}
    votes: dict[str, list[str]] = defaultdict(list)
    for one in given:
        if one.item_id in images:
            votes[one.item_id].append(one.value)
    right = sum(value in truth[images[key].row_id] for key, own in votes.items() for value in own)
    first = {key: Counter(own).most_common(2) for key, own in votes.items()}
    clear = {key: own[0][0] for key, own in first.items() if len(own) == 1 or own[0][1] > own[1][1]}
    return right, sum(map(len, votes.values())), sum(v in truth[images[k].row_id] for k, v in clear.items())


def people_of(runs: Path, name: str = "imagenet-a") -> dict[str, Any]:
    record: dict[str, Any] = json.loads((runs / "people" / f"{name}.json").read_text(encoding="utf-8"))
    return record


def row_of(benchmark: str) -> dict[str, Any]:
    return {"benchmark": benchmark, "protocol": {}, "subset": False}


def small_sets(folder: Path) -> Sets:
    build_own(folder / "data", folder / "work", PICTURES)
    factories = write(folder / "factories.py", FACTORIES.encode())
    return Sets(folder / "data", write_validation(folder / "validation", A_AND_O), factories)
