"""One vote a worker, item and question: what every statistic and decision counts, from answers in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from .base import IMAGE, SENTINELS, Answer, Item, Mode, ReviewError

Votes = Mapping[tuple[str, str], Mapping[str, str]]  # (item_id, question) -> worker -> value
Sitting = Mapping[tuple[str, str], str]  # (item_id, question) -> value, of one worker in one task


def sittings(items: Iterable[Item], answers: Iterable[Answer], mode: Mode) -> dict[tuple[str, str], Sitting]:
    """(worker, task_id) -> what that worker answered in that task, the earliest sitting first.

    Of several answers to one question in a task the last counts (a correction). "Last" and "earliest" go by `at`, then
    by the order given. ReviewError for an answer to an unknown item or question, or one that is not offered.
    """
    known = by_id(items, mode)
    found: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for answer in sorted(answers, key=lambda answer: answer.at or ""):
        _check(answer, known, mode)
        found.setdefault((answer.worker, answer.task_id), {})[answer.item_id, answer.question] = answer.value
    return dict(found)


def cast(
    items: Sequence[Item], answers: Iterable[Answer], mode: Mode, *, workers: Collection[str] | None = None
) -> dict[tuple[str, str], dict[str, str]]:
    """(item_id, question) -> worker -> value, for every item of every kind, in the order of items and workers' names.

    A worker has one vote: of several tasks with one item the first counts, for later ones are not blind any more.
    workers  whose answers count; None: everyone's. Errors and what one task gives as in `sittings`.
    """
    chosen: dict[tuple[str, str], dict[str, str]] = {
        (item.item_id, question.name): {} for item in items for question in mode.questions
    }
    for (worker, _), given in sittings(items, answers, mode).items():
        if workers is None or worker in workers:
            for key, value in given.items():
                chosen[key].setdefault(worker, value)
    return {key: dict(sorted(own.items())) for key, own in chosen.items()}


def by_id(items: Iterable[Item], mode: Mode) -> dict[str, Item]:
    """item_id -> item; ReviewError for an id that stands twice, or a sentinel that cannot be judged."""
    known: dict[str, Item] = {}
    questions = {question.name for question in mode.questions}
    for item in items:
        if item.item_id in known:
            raise ReviewError(f"expected each item once, got {item.item_id!r} twice: make the review again")
        known[item.item_id] = item
    for item in known.values():
        if item.kind not in (IMAGE, *SENTINELS):
            raise ReviewError(
                f"expected a kind of item among {(IMAGE, *SENTINELS)}, got {item.kind!r} at {item.item_id!r}"
            )
        asked = {name for name, accepted in item.expected.items() if accepted} & questions
        if item.kind in ("positive", "negative") and (not asked or not set(item.expected) <= questions):
            raise ReviewError(
                f"expected the answers that pass for the {item.kind} sentinel {item.item_id!r}, for questions among "
                f"{sorted(questions)}, got {sorted(item.expected)}: set `expected`"
            )
        if item.kind == "consistent" and item.repeats not in known:
            raise ReviewError(
                f"expected the consistent sentinel {item.item_id!r} to repeat an item of this review, got "
                f"{item.repeats!r}: set `repeats`"
            )
    return known


def options(item: Item, mode: Mode, question: str) -> tuple[str, ...]:
    """The values that may be answered: the question's choices, else the item's own options."""
    for known in mode.questions:
        if known.name == question:
            return tuple(choice.value for choice in known.choices) or tuple(item.options.get(question, ()))
    raise ReviewError(
        f"expected a question of {mode.name!r} ({', '.join(q.name for q in mode.questions)}), got {question!r}: "
        "these answers are from another review"
    )


def majority(values: Iterable[str]) -> str | None:
    """The value given most often; None where two share the first place, or there is none.

    >>> majority(["yes", "no", "yes"]), majority(["yes", "no"]), majority([])
    ('yes', None, None)
    """
    first = Counter(values).most_common(2)
    if not first or (len(first) == 2 and first[0][1] == first[1][1]):
        return None
    return first[0][0]


def images(items: Sequence[Item]) -> tuple[Item, ...]:
    """The items that are to be judged, without the sentinels."""
    return tuple(item for item in items if item.kind == IMAGE)


def _check(answer: Answer, known: Mapping[str, Item], mode: Mode) -> None:
    item = known.get(answer.item_id)
    if item is None:
        raise ReviewError(
            f"expected answers to the {len(known)} items of this review, got one to {answer.item_id!r} in task "
            f"{answer.task_id!r}: these answers are from another review"
        )
    allowed = options(item, mode, answer.question)
    if answer.value not in allowed:
        raise ReviewError(
            f"expected one of {', '.join(map(repr, allowed)) or 'no value'} for {answer.question!r} of item "
            f"{answer.item_id!r}, got {answer.value!r}: remove or correct that answer"
        )
