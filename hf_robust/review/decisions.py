"""What people decided: which images are kept, whether more answers could change it, and what is still to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .base import IMAGE, Answer, Item, Mode, Question, ReviewError, Task
from .votes import Sitting, by_id, cast, images, sittings

Tie = Literal["drop", "one more"]


@dataclass(frozen=True)
class Rule:
    """How answers become a decision; the numbers are ours.

    A question is accepted when more answers speak for the image than not, and an image when all its questions are (the
    two questions of ImageNet-D, arXiv 2403.18775).
    workers  answers an image gets at most, from different workers.
    fewest   trusted answers to each question without which nothing is decided.
    tie      "drop": as many for as against does not accept; "one more": undecided until one more worker has answered.
    """

    workers: int = 3
    fewest: int = 2
    tie: Tie = "drop"

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.workers or self.tie not in ("drop", "one more"):
            raise ReviewError(f"expected 1 <= fewest <= workers and a tie rule 'drop' or 'one more', got {self}")


@dataclass(frozen=True)
class Decision:
    """What is decided about one image.

    accepted  by the answers so far; None: too few, or a tie that waits for one more.
    votes     question -> value -> how many trusted workers gave it.
    reason    a short text, the same for the same cause.
    final     no further answers, up to `Rule.workers`, can change it.
    """

    accepted: bool | None
    votes: Mapping[str, Mapping[str, int]]
    reason: str
    final: bool


@dataclass(frozen=True)
class Needed:
    """What is still to be collected.

    answers  item_id -> workers still missing, for images that are not final.
    open     tasks nobody has finished that hold such an image: go on with them.
    stopped  tasks nobody has finished whose images are all final: they can be withdrawn.
    again    tasks whose answers are in but do not suffice (the worker was dropped, a tie): give each once more, to
             another worker; a task may stand here more than once.
    """

    answers: Mapping[str, int]
    open: tuple[str, ...]
    stopped: tuple[str, ...]
    again: tuple[str, ...]


def decide(
    items: Sequence[Item],
    answers: Sequence[Answer],
    mode: Mode,
    *,
    trusted: Collection[str] | None,
    rule: Rule,
) -> dict[str, Decision]:
    """item_id -> Decision for every image, in the order of items; a worker has one vote a question (votes.cast).

    trusted  the workers whose answers count (`reliability.trusted(…).kept`); None: everyone's.
    ReviewError for a mode whose questions accept nothing (name the class: see people.py), and as in `votes.cast`.
    """
    _check(mode)
    votes = cast(items, answers, mode, workers=trusted)
    return {
        item.item_id: _decision(
            {question: Counter(votes[item.item_id, question.name].values()) for question in mode.questions}, rule
        )
        for item in images(items)
    }


def still_needed(
    items: Sequence[Item],
    tasks: Sequence[Task],
    answers: Sequence[Answer],
    mode: Mode,
    *,
    trusted: Collection[str] | None,
    rule: Rule,
) -> Needed:
    """Which images need more answers and which tasks give them; arguments and errors as in `decide`.

    ReviewError also for a task with an item that is not in the review.
    """
    decisions = decide(items, answers, mode, trusted=trusted, rule=rule)
    missing = {item_id: _missing(found, mode, rule) for item_id, found in decisions.items() if not found.final}
    finished, lost = _finished(items, tasks, answers, mode, trusted)
    wanted = {task.task_id: max((missing.get(item, 0) for item in task.items), default=0) for task in tasks}
    pending = [task for task in tasks if task.task_id not in finished and task.task_id not in lost]
    again: list[str] = []
    for block in sorted({task.block for task in tasks}):
        own = [task.task_id for task in tasks if task.block == block]
        ready = sum(task.block == block for task in pending)
        spent = sorted((name for name in own if name in lost | finished), key=lambda name: name not in lost)
        count = max(wanted[name] for name in own) - ready
        candidates = spent or own
        again += [candidates[i % len(candidates)] for i in range(max(0, count))]
    return Needed(
        missing,
        tuple(task.task_id for task in pending if wanted[task.task_id]),
        tuple(task.task_id for task in pending if not wanted[task.task_id]),
        tuple(again),
    )


def settled(accepting: Any, others: Any, left: Any, tie: Tie) -> tuple[Any, Any]:
    """(surely accepted, surely not) when `left` more answers to a question may come; ints or arrays of them.

    >>> settled(2, 0, 1, "drop"), settled(1, 1, 1, "drop"), settled(0, 1, 1, "drop"), settled(0, 1, 1, "one more")
    ((True, False), (False, False), (False, True), (False, False))
    """
    best = accepting + left
    return accepting > others + left, (best <= others) if tie == "drop" else (best < others)


def _decision(votes: Mapping[Question, Counter[str]], rule: Rule) -> Decision:
    accepted: bool | None = True
    reason, sure, refused = "accepted", True, False
    for question, given in votes.items():
        total = given.total()
        accepting = sum(given[value] for value in question.accepts)
        others = total - accepting
        yes, no = settled(accepting, others, max(0, rule.workers - total), rule.tie)
        enough = total >= rule.fewest
        sure, refused = sure and yes and enough, refused or (no and enough)
        state, why = _state(question, accepting, others, enough, rule)
        if _worse(state, accepted):
            accepted, reason = state, why
    shown = {question.name: dict(sorted(given.items())) for question, given in votes.items()}
    return Decision(accepted, shown, reason, sure or refused)


def _state(question: Question, accepting: int, others: int, enough: bool, rule: Rule) -> tuple[bool | None, str]:
    if not enough:
        return None, "too few trusted answers"
    if accepting == others:
        return (False, f"tie: {question.name}") if rule.tie == "drop" else (None, f"tie, one more: {question.name}")
    return (True, "accepted") if accepting > others else (False, f"majority against: {question.name}")


def _worse(state: bool | None, so_far: bool | None) -> bool:
    """Dropped beats undecided beats accepted: one question against is enough."""
    rank = {True: 0, None: 1, False: 2}
    return rank[state] > rank[so_far]


def _missing(found: Decision, mode: Mode, rule: Rule) -> int:
    """Workers that must still answer for the image to become final, at most."""
    most = 0
    for question in mode.questions:
        given = Counter(found.votes[question.name])
        total = given.total()
        tied = 2 * sum(given[value] for value in question.accepts) == total
        most = max(most, rule.workers - total, int(tied and rule.tie == "one more"))
    return most


def _finished(
    items: Sequence[Item], tasks: Sequence[Task], answers: Sequence[Answer], mode: Mode, trusted: Collection[str] | None
) -> tuple[set[str], set[str]]:
    """Tasks that some trusted worker has finished, and those that only dropped workers have begun or finished."""
    known = by_id(items, mode)
    unknown = [(task.task_id, item) for task in tasks for item in task.items if item not in known]
    if unknown:
        raise ReviewError(f"expected tasks of items of this review, got {unknown[0][1]!r} in task {unknown[0][0]!r}")
    given: dict[str, dict[str, Sitting]] = {task.task_id: {} for task in tasks}
    for (worker, task_id), sitting in sittings(items, answers, mode).items():
        given.setdefault(task_id, {})[worker] = sitting
    finished, lost = set(), set()
    for task in tasks:
        asked = {
            (item, question.name) for item in task.items for question in mode.questions if known[item].kind == IMAGE
        }
        owners = given[task.task_id]
        good = {worker: own for worker, own in owners.items() if trusted is None or worker in trusted}
        if any(asked <= set(own) for own in good.values()):
            finished.add(task.task_id)
        elif owners and not good:
            lost.add(task.task_id)
    return finished, lost


def _check(mode: Mode) -> None:
    without = [question.name for question in mode.questions if not question.accepts]
    if without:
        raise ReviewError(
            f"expected questions with answers that accept an image, got none for {without[0]!r} of {mode.name!r}: "
            "for people's accuracy use people.human_accuracy"
        )
