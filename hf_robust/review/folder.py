"""A review on disk: `review.json`, `items.json`, `tasks.json` and the pictures in `images/`, written whole or not."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .base import IMAGE, SENTINELS, Choice, Item, Mode, Question, ReviewError, Task

FORMAT = 1
REVIEW, ITEMS, TASKS, IMAGES = "review.json", "items.json", "tasks.json", "images"
PICTURE = re.compile(r"[0-9a-f]{20}\.(?:png|jpg|webp)")
_BEGINNINGS = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpg"))


@dataclass(frozen=True)
class Review:
    """What is asked of whom: a mode, its items and the tasks they are cut into.

    settings  how the tasks were made: workers, images_a_task, sentinel_rate, seed.
    """

    mode: Mode
    items: tuple[Item, ...]
    tasks: tuple[Task, ...]
    settings: Mapping[str, int | float]
    folder: Path

    @cached_property
    def item(self) -> Mapping[str, Item]:
        """item_id -> item."""
        return {item.item_id: item for item in self.items}

    @cached_property
    def task(self) -> Mapping[str, Task]:
        """task_id -> task."""
        return {task.task_id: task for task in self.tasks}

    @property
    def question(self) -> Mapping[str, Question]:
        """name -> question of the mode."""
        return {question.name: question for question in self.mode.questions}

    def values(self, item: Item, question: Question) -> tuple[str, ...]:
        """The answers that can be given to a question about an item, in the order they are offered."""
        if question.choices:
            return tuple(choice.value for choice in question.choices)
        return tuple(item.options.get(question.name, ()))

    def picture(self, name: str) -> Path:
        """Where a picture lies."""
        return self.folder / IMAGES / name


def is_for_browsers(content: bytes) -> bool:
    """Whether these are the bytes of a PNG, JPEG or WebP, which every browser shows."""
    return _ending(content) is not None


def _ending(content: bytes) -> str | None:
    kind = next((kind for start, kind in _BEGINNINGS if content.startswith(start)), None)
    return "webp" if kind is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP" else kind


def picture_name(content: bytes, seed: int, what: str) -> str:
    """An opaque name for a picture: PNG, JPEG or WebP bytes, else ReviewError naming `what`.

    The seed goes into it, so that the name is not the SHA-256 by which a picture may be known elsewhere.
    """
    kind = _ending(content)
    if kind is None:
        raise ReviewError(f"expected a PNG, JPEG or WebP picture for {what}, got bytes that begin with {content[:8]!r}")
    return f"{hashlib.sha256(b'%d:' % seed + content).hexdigest()[:20]}.{kind}"


def documents(review: Review) -> dict[str, bytes]:
    """The JSON files of a review, the same bytes for the same review; `review.json` comes last and seals the others."""
    parts = {
        ITEMS: _lines([asdict(item) for item in review.items]),
        TASKS: _lines([asdict(task) for task in review.tasks]),
    }
    head = {
        "format": FORMAT,
        "mode": asdict(review.mode),
        "settings": dict(review.settings),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()},
    }
    return {**parts, REVIEW: (json.dumps(head, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()}


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    written = (json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
    return ("[\n" + ",\n".join(written) + "\n]\n").encode()


def write(path: Path, content: bytes) -> None:
    """The file, under its name only once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def read_review(folder: Path | str) -> Review:
    """The review in a folder; ReviewError names the file that is missing, damaged or of another kind."""
    folder = Path(folder)
    head = _read(folder / REVIEW)
    try:
        if head["format"] != FORMAT:
            raise ReviewError(
                f"expected format {FORMAT} in {folder / REVIEW}, got {head['format']!r}: use the version it is from"
            )
        mode = _mode(head["mode"])
        settings = {str(name): value for name, value in head["settings"].items()}
        items = tuple(_item(row) for row in _read(folder / ITEMS, head["files"][ITEMS]))
        tasks = tuple(_task(row) for row in _read(folder / TASKS, head["files"][TASKS]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ReviewError(
            f"expected a review in {folder}, got files of another shape ({error}): make it again"
        ) from error
    review = Review(mode, items, tasks, settings, folder)
    _check(review)
    return review


def _read(path: Path, sha256: str | None = None) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ReviewError(f"expected a review in {path.parent}, got no {path.name} there: make one first") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ReviewError(f"expected {path} as review.json describes it, got another content: make the review again")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ReviewError(f"expected JSON in {path}, got something else ({error}): make the review again") from error


def _mode(row: Any) -> Mode:
    questions = tuple(
        Question(q["name"], q["text"], tuple(Choice(**choice) for choice in q["choices"]), tuple(q["accepts"]))
        for q in row["questions"]
    )
    return Mode(row["name"], row["title"], row["instructions"], questions)


def _item(row: Any) -> Item:
    lists = {name: {k: tuple(v) for k, v in row[name].items()} for name in ("expected", "options")}
    return Item(**{**row, **lists})


def _task(row: Any) -> Task:
    return Task(row["task_id"], row["block"], tuple(row["items"]))


def _check(review: Review) -> None:
    for what, rows, ids in (("item", review.items, review.item), ("task", review.tasks, review.task)):
        if len(rows) != len(ids):
            raise ReviewError(f"expected every {what} of {review.folder} once, got {len(rows)} with {len(ids)} ids")
    for task in review.tasks:
        unknown = [item_id for item_id in task.items if item_id not in review.item]
        if unknown:
            raise ReviewError(f"expected the items of task {task.task_id!r} in items.json, got none for {unknown[0]!r}")
    for item in review.items:
        check_item(review, item)


def check_item(review: Review, item: Item) -> None:
    """ReviewError where an item of the review cannot be shown: its picture, what it repeats, its answers."""
    if not PICTURE.fullmatch(item.picture):
        raise ReviewError(f"expected an opaque picture name for item {item.item_id!r}, got {item.picture!r}")
    if not review.picture(item.picture).is_file():
        raise ReviewError(f"expected {review.picture(item.picture)}, got no such file: make the review again")
    if item.kind != IMAGE and item.kind not in SENTINELS:
        raise ReviewError(f"expected a known kind for item {item.item_id!r}, got {item.kind!r}")
    if item.kind == "consistent" and item.repeats not in review.item:
        raise ReviewError(f"expected item {item.item_id!r} to repeat an item of the review, got {item.repeats!r}")
    for question in review.mode.questions:
        values = review.values(item, question)
        if len(values) < 2 or len(set(values)) < len(values):
            raise ReviewError(
                f"expected two or more different answers to {question.name!r} about {item.row_id!r}, got {values!r}"
            )
        beyond = set(item.expected.get(question.name, ())) - set(values)
        if beyond:
            raise ReviewError(f"expected an answer that can be given to {question.name!r}, got {sorted(beyond)[0]!r}")
