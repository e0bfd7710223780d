"""A small review of drawn pictures, for the tests of tasks, store and page."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hf_robust.review.base import IMAGE_VALIDITY, MODES, NAME_THE_CLASS, Answer, Kind, Mode
from hf_robust.review.folder import Review
from hf_robust.review.store import Store
from hf_robust.review.tasks import Candidate, make_review

NAMES = ("backpack", "umbrella", "wok", "kite")
SETTINGS: dict[str, Any] = {"workers": 2, "images_a_task": 4, "sentinel_rate": 0.3, "seed": 1}


def picture(candidate: Candidate) -> bytes:
    """A PNG of colour blobs that depends on the row."""
    blobs = np.random.default_rng(zlib.crc32(candidate.row_id.encode())).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(blobs).resize((64, 64), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def images(count: int, mode: Mode = IMAGE_VALIDITY) -> list[Candidate]:
    options = {"class": NAMES} if mode is NAME_THE_CLASS else {}
    return [Candidate(f"image {i}", NAMES[i % len(NAMES)], options=options) for i in range(count)]


def sentinels(count: int = 2, mode: Mode = IMAGE_VALIDITY) -> list[Candidate]:
    """`count` positive and as many negative ones."""
    kinds: tuple[Kind, Kind] = ("positive", "negative")
    named = mode is NAME_THE_CLASS
    return [
        Candidate(
            f"{kind} {i}", "wok", kind, {"class": ("wok",) if kind == "positive" else ("kite",)} if named else {},
            {"class": NAMES} if named else {},
        )
        for kind in kinds
        for i in range(count)
    ]  # fmt: skip


def review(folder: Path, mode: str = "image-validity", *, count: int = 8, **changed: Any) -> Review:
    asked = MODES[mode]
    return make_review(folder, asked, images(count, asked), sentinels(2, asked), picture, **{**SETTINGS, **changed})


def questions(made: Review, task_id: str) -> Iterator[tuple[str, str]]:
    """(item, question) of a task, as they are asked."""
    for item_id in made.task[task_id].items:
        for question in made.mode.questions:
            yield item_id, question.name


def fill(store: Store, worker: str, task_id: str, value: str = "yes") -> list[Answer]:
    """Answers all of a task; what was given."""
    given = [Answer(worker, task_id, item, question, value) for item, question in questions(store.review, task_id)]
    for answer in given:
        store.answer(answer)
    return given
