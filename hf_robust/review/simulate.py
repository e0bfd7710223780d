"""Workers that do not exist: answers for tests and demonstrations, and what a review will cost and yield."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..metrics.resampling import percentile
from .base import SENTINELS, Answer, Item, Mode, ReviewError, Task
from .decisions import Rule, settled
from .votes import by_id, options

Habit = Literal["careful", "random", "first"]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Worker:
    """How a simulated person answers.

    accuracy  chance that an answer of a careful one is right; a wrong one is any other value, equally likely.
    habit     "careful", or a spammer: "random" answers, or always the "first" one offered.
    steady    chance that a careful one repeats the own answer to an image shown once more.
    seconds   mean time an answer; drawn between half and one and a half of it.
    """

    name: str
    accuracy: float = 0.95
    habit: Habit = "careful"
    steady: float = 0.95
    seconds: float = 2.0


def simulate(
    items: Sequence[Item],
    tasks: Sequence[Task],
    truth: Mapping[str, Mapping[str, str]],
    workers: Sequence[Worker],
    mode: Mode,
    *,
    seed: int,
) -> list[Answer]:
    """Every task answered in full: the workers take the tasks in turn, nobody two of one block.

    truth  row_id -> question -> right value, for the images; sentinels bring their own.
    Each answer depends on the seed, the worker, the task and the item alone: more tasks leave the others as they are.
    ReviewError with fewer workers than tasks in a block, and for an image without truth.
    """
    known = by_id(items, mode)
    return [
        answer
        for task, worker in _in_turn(tasks, workers)
        for answer in _sitting(task, worker, known, truth, mode, seed)
    ]


@dataclass(frozen=True)
class Outcome:
    """What a review yields if people answer with this accuracy: (mean, low, high) over simulated reviews, 95 %.

    right  fraction of images whose decision is right.
    tied   fraction for which a tie among `workers` answers speaks: dropped by it, or one more worker is asked.
    good   fraction of the accepted images that should be; NaN where nothing is accepted.
    saved  fraction of the answers about images that need not be collected when images stop once decided; below 0 where
           ties cost more than that.
    """

    accuracy: float
    right: tuple[float, float, float]
    tied: tuple[float, float, float]
    good: tuple[float, float, float]
    saved: tuple[float, float, float]


@dataclass(frozen=True)
class Plan:
    """What a review costs, before it is made.

    shown    pictures shown, sentinels and repeats among them.   answers  to all questions.
    hours    of all workers together.   minutes_a_task  of one.
    """

    images: int
    workers: int
    tasks: int
    sentinels: int
    shown: int
    answers: int
    hours: float
    minutes_a_task: float
    outcomes: tuple[Outcome, ...]


def plan_review(
    images: int,
    mode: Mode,
    *,
    rule: Rule,
    images_a_task: int,
    sentinel_rate: float,
    seconds_an_answer: float,
    valid: float = 0.5,
    accuracies: Sequence[float] = (0.7, 0.8, 0.9, 0.95, 0.99),
    replicates: int = 200,
    seed: int = 0,
) -> Plan:
    """Tasks, answers, hours and the quality to expect of a review of `images` images by `rule.workers` people each.

    images_a_task, sentinel_rate  as in `make_review`, with all three kinds of sentinels.
    valid       assumed fraction of images that should be accepted.
    accuracies  assumed chances that an answer is right, one outcome each; answers are independent, and an image that
                should be dropped is so by its last question alone, which is the hardest case.
    ReviewError for numbers out of range and for a mode that accepts nothing.
    """
    _check_plan(images, mode, images_a_task, sentinel_rate, seconds_an_answer, valid, accuracies, replicates)
    blocks = math.ceil(images / images_a_task)
    sizes = [images * (i + 1) // blocks - images * i // blocks for i in range(blocks)]
    sentinels = rule.workers * sum(_sentinels(size, sentinel_rate) for size in sizes)
    shown = images * rule.workers + sentinels
    answers = shown * len(mode.questions)
    tasks = blocks * rule.workers
    return Plan(
        images,
        rule.workers,
        tasks,
        sentinels,
        shown,
        answers,
        answers * seconds_an_answer / 3600,
        answers * seconds_an_answer / 60 / tasks,
        tuple(
            _outcome(accuracy, images, len(mode.questions), rule, valid, replicates, np.random.default_rng([seed, i]))
            for i, accuracy in enumerate(accuracies)
        ),
    )


def _in_turn(tasks: Sequence[Task], workers: Sequence[Worker]) -> list[tuple[Task, Worker]]:
    blocks: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        blocks[task.block].append(task)
    turn, given = 0, []
    for block, own in blocks.items():
        if len(own) > len({worker.name for worker in workers}):
            raise ReviewError(
                f"expected {len(own)} or more workers, one for each task of block {block}, got {len(workers)}: add some"
            )
        for task in own:
            given.append((task, workers[turn % len(workers)]))
            turn += 1
    return given


def _sitting(
    task: Task,
    worker: Worker,
    known: Mapping[str, Item],
    truth: Mapping[str, Mapping[str, str]],
    mode: Mode,
    seed: int,
) -> list[Answer]:
    """One task from beginning to end."""
    given: dict[tuple[str, str], str] = {}
    answers = []
    for item_id in task.items:
        draw = random.Random(f"{seed}/{worker.name}/{task.task_id}/{item_id}")
        item = known[item_id]
        for question in mode.questions:
            values = options(item, mode, question.name)
            before = given.get((str(item.repeats), question.name))
            if worker.habit == "careful" and before is not None and draw.random() < worker.steady:
                value = before
            else:
                value = _value(worker, values, _right(item, known, truth, question.name), draw)
            given[item_id, question.name] = value
            seconds = round(worker.seconds * (0.5 + draw.random()), 3)
            answers.append(Answer(worker.name, task.task_id, item_id, question.name, value, seconds))
    return answers


def _value(worker: Worker, values: Sequence[str], right: str, draw: random.Random) -> str:
    if worker.habit == "first":
        return values[0]
    if worker.habit == "random":
        return draw.choice(values)
    others = [value for value in values if value != right]
    return right if not others or draw.random() < worker.accuracy else draw.choice(others)


def _right(item: Item, known: Mapping[str, Item], truth: Mapping[str, Mapping[str, str]], question: str) -> str:
    """The right value: what a sentinel expects, else the truth of the row."""
    if item.expected.get(question):
        return item.expected[question][0]
    if item.kind == "consistent":
        return _right(known[str(item.repeats)], known, truth, question)
    try:
        return truth[item.row_id][question]
    except KeyError as error:
        raise ReviewError(
            f"expected the right answer to {question!r} for every image, got none for row {item.row_id!r}: add it"
        ) from error


def _sentinels(images: int, rate: float) -> int:
    """How many sentinels a task of so many images gets, as `make_review` cuts it."""
    return max(round(images * rate / (1 - rate)), len(SENTINELS)) if rate else 0


def _outcome(
    accuracy: float, images: int, questions: int, rule: Rule, valid: float, replicates: int, draw: np.random.Generator
) -> Outcome:
    rows = [_one_review(accuracy, images, questions, rule, valid, draw) for _ in range(replicates)]
    columns = np.array(rows).T
    return Outcome(accuracy, *(_spread(column) for column in columns))


def _one_review(
    accuracy: float, images: int, questions: int, rule: Rule, valid: float, draw: np.random.Generator
) -> tuple[float, float, float, float]:
    """right, tied, good, saved of one simulated review."""
    wanted = draw.random(images) < valid
    truth = np.ones((images, questions), dtype=np.bool_)
    truth[:, -1] = wanted
    most = rule.workers + (rule.tie == "one more")
    correct = draw.random((images, questions, most)) < accuracy
    yes = (correct == truth[:, :, None]).cumsum(axis=2)
    asked = np.arange(1, most + 1)
    sure, refused = settled(yes, asked - yes, np.maximum(rule.workers - asked, 0), rule.tie)
    enough = asked >= rule.fewest
    accepted, dropped = (sure & enough).all(axis=1), (refused & enough).any(axis=1)
    final = accepted | dropped
    at = final.argmax(axis=1)  # the first: with all answers every image is final
    kept = accepted[np.arange(images), at]
    ahead = 2 * yes[:, :, rule.workers - 1] - rule.workers
    tied = ahead.min(axis=1) == 0
    good = float(wanted[kept].mean()) if kept.any() else float("nan")
    return float((kept == wanted).mean()), float(tied.mean()), good, float(1 - (at + 1).mean() / rule.workers)


def _spread(values: NDArray[np.float64]) -> tuple[float, float, float]:
    defined = values[~np.isnan(values)]
    if not defined.size:
        return (float("nan"),) * 3
    return (float(defined.mean()), *percentile(defined))


def _check_plan(images: int, mode: Mode, images_a_task: int, rate: float, seconds: float, *chances: Any) -> None:
    valid, accuracies, replicates = chances
    if min(images, images_a_task, replicates) < 1 or not 0 <= rate < 1 or not 0 <= seconds < math.inf:
        raise ReviewError(
            f"expected at least one image, image a task and replicate, a sentinel rate in [0, 1) and seconds of 0 or "
            f"more, got {images}, {images_a_task}, {replicates}, {rate} and {seconds}"
        )
    if not all(0 <= chance <= 1 for chance in (valid, *accuracies)):
        raise ReviewError(f"expected chances in [0, 1], got valid {valid} and accuracies {tuple(accuracies)}")
    if not all(question.accepts for question in mode.questions):
        raise ReviewError(f"expected a mode that accepts images, got {mode.name!r}: its majority is not a decision")
