"""What every exchange with another tool shares: addresses of pictures, words of questions, what is read back."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from .base import Answer, Item, Question, ReviewError, Task
from .folder import Review

Enter = Callable[[str], str]  # a worker id of the other tool -> the name it has in answers, such as Store.enter


@dataclass(frozen=True)
class Imported:
    """Answers from another tool, and in words what was left out."""

    answers: tuple[Answer, ...]
    notes: tuple[str, ...]


def asked(question: Question, item: Item) -> str:
    """The question about an item, in words."""
    return question.text.replace("{subject}", item.subject)


def address(base_url: str, picture: str) -> str:
    """Where the other tool finds a picture, `base_url` being where the review's `images/` is served."""
    return f"{base_url.rstrip('/')}/{picture}"


def chosen_tasks(review: Review, task_ids: Collection[str] | None) -> tuple[Task, ...]:
    """The tasks to export, in the order of the review; None: all. ReviewError for an unknown or no task."""
    if task_ids is None:
        return review.tasks
    unknown = sorted(set(task_ids) - set(review.task))
    if unknown or not task_ids:
        raise ReviewError(f"expected tasks of the review in {review.folder}, got {unknown[0] if unknown else 'none'!r}")
    return tuple(task for task in review.tasks if task.task_id in task_ids)


def read_seconds(raw: object) -> float | None:
    """How long an answer took, in seconds; None for what is no time.

    >>> read_seconds("12"), read_seconds(float("nan")), read_seconds(-1), read_seconds(None)
    (12.0, None, None, None)
    """
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        seconds = float(raw)
    except (ValueError, OverflowError):
        return None
    return seconds if 0 <= seconds < math.inf else None


def read_value(review: Review, item: Item, question: Question, raw: str, where: str) -> str:
    """The stored value for what a tool gives back: the value itself, or the words on the button.

    ReviewError, naming `where`, for anything else.
    """
    allowed = review.values(item, question)
    words = {choice.text: choice.value for choice in question.choices}
    value = raw if raw in allowed else words.get(raw)
    if value is None:
        raise ReviewError(
            f"expected one of {', '.join(map(repr, allowed))} for {question.name!r} in {where}, got {raw!r}: "
            "was it collected with another template?"
        )
    return value
