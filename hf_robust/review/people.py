"""What people's answers are worth as results: human accuracy beside the models, and lists of spurious components."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics import weighted
from ..metrics.intervals import wilson
from ..metrics.resampling import bootstrap
from .base import Answer, Item, Mode, ReviewError
from .decisions import Rule, decide
from .votes import cast, images, majority

Interval = tuple[float, float]


@dataclass(frozen=True)
class Proportion:
    """`right` of `n`; `value` the fraction.

    wilson     95 % Wilson interval.   bootstrap  95 % percentile interval over resampled images.
    """

    right: int
    n: int
    value: float
    wilson: Interval
    bootstrap: Interval


@dataclass(frozen=True)
class HumanAccuracy:
    """People's accuracy at naming the class; fractions.

    answers     right answers of all answers: what one person gets. Its `bootstrap` interval keeps the answers to one
                image together; its `wilson` interval takes them for independent and is too narrow.
    majority    images whose most frequent answer is right; an image without one (a tie) counts as wrong.
    ties        such images.   unanswered  images without a trusted answer: in neither denominator.
    workers     people whose answers count.
    """

    answers: Proportion
    majority: Proportion
    ties: int
    unanswered: int
    workers: int


def human_accuracy(
    items: Sequence[Item],
    answers: Sequence[Answer],
    mode: Mode,
    truth: Mapping[str, Collection[str]],
    *,
    trusted: Collection[str] | None,
    question: str = "class",
    replicates: int = 1000,
    seed: int = 0,
) -> HumanAccuracy:
    """How often people name the right class, for the images of a review (sentinels left out).

    truth    row_id -> the values that are right; several where an image has several acceptable names.
    trusted  the workers whose answers count; None: everyone's.
    ReviewError for an image without truth, without any answer at all, for a right value that no one could choose, and
    as in `votes.cast`.
    """
    judged = images(items)
    _check_truth(judged, truth, question)
    votes = cast(items, answers, mode, workers=trusted)
    given = {item.item_id: votes[item.item_id, question] for item in judged}
    answered = [item for item in judged if given[item.item_id]]
    if not answered:
        raise ReviewError(
            f"expected answers to {question!r} of {len(judged)} images, got none that count: collect some"
        )
    right = [[value in truth[item.row_id] for value in given[item.item_id].values()] for item in answered]
    chosen = [majority(given[item.item_id].values()) for item in answered]
    by_majority = [value in truth[item.row_id] for value, item in zip(chosen, answered, strict=True)]
    return HumanAccuracy(
        _proportion(right, replicates, seed),
        _proportion([[value] for value in by_majority], replicates, seed),
        chosen.count(None),
        len(judged) - len(answered),
        len({worker for own in given.values() for worker in own}),
    )


def component_list(
    items: Sequence[Item],
    answers: Sequence[Answer],
    mode: Mode,
    components: Mapping[str, tuple[int, int]],
    *,
    trusted: Collection[str] | None,
    rule: Rule,
) -> dict[int, list[int]]:
    """class index -> its components that people judged spurious, both ascending; undecided and tied ones are left out.

    components  row_id -> (ImageNet-1k index of the class, component number from 0) for every sheet of the review.
    ReviewError for a sheet that is not in it, for two sheets of one component, and as in `decide`.
    """
    sheets = images(items)
    unknown = [item.row_id for item in sheets if item.row_id not in components]
    if unknown:
        raise ReviewError(f"expected a class and component for every sheet, got none for row {unknown[0]!r}: add it")
    decisions = decide(items, answers, mode, trusted=trusted, rule=rule)
    found: dict[int, list[int]] = {}
    seen = set()
    for item in sheets:
        index, component = components[item.row_id]
        if (index, component) in seen:
            raise ReviewError(f"expected one sheet a component, got two of component {component} of class {index}")
        seen.add((index, component))
        if decisions[item.item_id].accepted:
            found.setdefault(index, []).append(component)
    return {index: sorted(found[index]) for index in sorted(found)}


def component_json(found: Mapping[int, Sequence[int]]) -> str:
    """The list as text in the published format, {"class": [component, …]}, as `--components` reads it.

    >>> component_json({850: [0, 2]})
    '{\\n"850": [0, 2]\\n}\\n'
    """
    rows = ",\n".join(f'"{index}": {json.dumps([int(c) for c in found[index]])}' for index in sorted(found))
    return "{\n" + rows + "\n}\n"


def _proportion(right: Sequence[Sequence[bool]], replicates: int, seed: int) -> Proportion:
    """Of all answers, from the answers to each image."""
    flat = np.array([value for own in right for value in own], dtype=np.float64)
    image = np.repeat(np.arange(len(right)), [len(own) for own in right])
    count = int(flat.sum())
    spread = bootstrap(weighted.mean(flat), flat.size, replicates=replicates, seed=seed, clusters=image)
    return Proportion(count, flat.size, count / flat.size, wilson(count, flat.size), spread)


def _check_truth(judged: Sequence[Item], truth: Mapping[str, Collection[str]], question: str) -> None:
    for item in judged:
        right = truth.get(item.row_id)
        if not right:
            raise ReviewError(f"expected the right names of every image, got none for row {item.row_id!r}: add them")
        choices = item.options.get(question)
        if choices is not None and not set(right) & set(choices):
            raise ReviewError(
                f"expected a right name among the {len(choices)} options of item {item.item_id!r}, got none of "
                f"{', '.join(sorted(right))}: nobody could have chosen it"
            )
