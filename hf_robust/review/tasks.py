"""From candidates to tasks: blinded overlap, an order of its own for each worker, sentinels mixed in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from .base import IMAGE, SENTINELS, Item, Kind, Mode, ReviewError, Task
from .folder import REVIEW, Review, check_item, documents, picture_name, read_review, write
from .store import answered_review, forget_empty_store

__all__ = ["Candidate", "make_review", "read_review"]


@dataclass(frozen=True)
class Candidate:
    """One picture to be asked about, before it has an opaque id; the fields are those of `Item`.

    kind      "image", "positive" (it must be accepted: clearly the subject) or "negative" (clearly not).
    expected  of a sentinel: question name -> answers that pass; may be left out for questions with fixed choices, where
              a positive one passes with the answers that the question accepts, a negative one with all others.
    """

    row_id: str
    subject: str
    kind: Kind = IMAGE
    expected: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_OF_A_POOL: tuple[Kind, ...] = ("positive", "negative")
ReadPicture = Callable[[Candidate], bytes]


def make_review(
    folder: Path | str,
    mode: Mode,
    images: Sequence[Candidate],
    sentinels: Sequence[Candidate],
    picture: ReadPicture,
    *,
    workers: int,
    images_a_task: int,
    sentinel_rate: float,
    seed: int,
) -> Review:
    """The review written to `folder`: the images cut into blocks, each block into `workers` tasks with sentinels.

    picture        gives the encoded bytes of a candidate (PNG, JPEG, WebP); they are stored as they are.
    workers        how many different people judge every image.
    images_a_task  at most; blocks are of nearly equal size.
    sentinel_rate  share of a task's items that are sentinels, in [0, 1): above 0 every task has at least one of each
                   kind there is (positive, negative, and consistent: an image of the task shown once more).
    With the same arguments the same bytes. Doing it again changes nothing; with other arguments it replaces a review
    that has no answers, and ReviewError over answers.
    """
    folder = Path(folder)
    _check_request(images, sentinels, workers, images_a_task, sentinel_rate)
    candidates = [*images, *sentinels]
    names = [picture_name(picture(c), seed, f"row {c.row_id!r}") for c in candidates]
    items = [_item(c, name, mode, seed) for c, name in zip(candidates, names, strict=True)]
    plan = _Plan(items[: len(images)], items[len(images) :], sentinel_rate, seed)
    tasks = [task for block in plan.blocks(images_a_task) for task in plan.tasks(*block, workers=workers)]
    used = {item_id for task, _ in tasks for item_id in task.items}
    repeats = {item.item_id: item for _, repeated in tasks for item in repeated}
    kept = [item for item in items if item.item_id in used]
    settings = {"workers": workers, "images_a_task": images_a_task, "sentinel_rate": sentinel_rate, "seed": seed}
    listed = tuple(sorted([*kept, *repeats.values()], key=lambda item: item.item_id))
    review = Review(mode, listed, tuple(task for task, _ in tasks), settings, folder)
    _write(review, dict(zip(names, candidates, strict=True)), picture)
    return review


def _check_request(
    images: Sequence[Candidate], sentinels: Sequence[Candidate], workers: int, images_a_task: int, rate: float
) -> None:
    if not images:
        raise ReviewError("expected images to ask about, got none: look at the stage before the review")
    if workers < 1 or images_a_task < 1:
        raise ReviewError(f"expected one or more workers and images a task, got {workers} and {images_a_task}")
    if not 0 <= rate < 1:
        raise ReviewError(f"expected a sentinel rate of 0 or more and below 1, got {rate}")
    wrong = [c for c in images if c.kind != IMAGE] + [c for c in sentinels if c.kind not in _OF_A_POOL]
    if wrong:
        raise ReviewError(
            f"expected images of kind 'image' and sentinels of kind 'positive' or 'negative', got {wrong[0].kind!r} "
            f"for row {wrong[0].row_id!r}: consistent sentinels are made from the images"
        )
    seen: set[tuple[str, str]] = set()
    for c in (*images, *sentinels):
        if (c.row_id, c.subject) in seen:
            raise ReviewError(f"expected every row once a subject, got {c.row_id!r} ({c.subject!r}) twice")
        seen.add((c.row_id, c.subject))


def _item(candidate: Candidate, picture: str, mode: Mode, seed: int) -> Item:
    item_id = _opaque(seed, candidate.row_id, candidate.subject)
    expected = _expected(candidate, mode)
    return Item(
        item_id, candidate.row_id, picture, candidate.subject, candidate.kind, expected, None, candidate.options
    )


def _expected(candidate: Candidate, mode: Mode) -> dict[str, tuple[str, ...]]:
    if candidate.kind == IMAGE:
        return {}
    expected = dict(candidate.expected)
    for question in mode.questions:
        if question.name not in expected and question.choices:
            wanted = candidate.kind == "positive"
            values = (choice.value for choice in question.choices)
            expected[question.name] = tuple(value for value in values if (value in question.accepts) == wanted)
    if not any(expected.values()):
        raise ReviewError(
            f"expected answers that pass for the {candidate.kind} sentinel {candidate.row_id!r}, got none: mode "
            f"{mode.name!r} has no fixed choices, so set `expected`"
        )
    return expected


def _opaque(*parts: object) -> str:
    return f"{_draw(*parts):064x}"[:16]


def _draw(*parts: object) -> int:
    """A number that looks random and is the same for the same parts in every version of every library."""
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest(), "big")


class _Plan:
    """How items become tasks; every draw comes from the seed and from what is drawn."""

    def __init__(self, images: Sequence[Item], sentinels: Sequence[Item], rate: float, seed: int) -> None:
        self.rate, self.seed = rate, seed
        self.images = self._shuffled(images, "images")
        self.pools: dict[Kind, list[Item]] = {
            kind: self._shuffled([s for s in sentinels if s.kind == kind], kind) for kind in _OF_A_POOL
        }

    def _shuffled(self, items: Sequence[Item], *salt: object) -> list[Item]:
        return sorted(items, key=lambda item: _draw(self.seed, *salt, item.item_id))

    def blocks(self, images_a_task: int) -> Iterator[tuple[int, list[Item]]]:
        """(number, images) of blocks whose sizes differ by one at most."""
        count = math.ceil(len(self.images) / images_a_task)
        bounds = [round(i * len(self.images) / count) for i in range(count + 1)]
        for block, (start, stop) in enumerate(pairwise(bounds)):
            yield block, self.images[start:stop]

    def tasks(self, block: int, images: list[Item], *, workers: int) -> Iterator[tuple[Task, list[Item]]]:
        """(task, the consistent sentinels in it) for every worker of a block."""
        for worker in range(workers):
            turn = block * workers + worker
            counts = self._counts(len(images), turn)
            shown = self._shuffled([*images, *self._taken(counts, turn)], "order", turn)
            ids, repeated = self._with_repeats(shown, counts["consistent"], turn)
            yield Task(f"{block:04d}-{worker}", block, tuple(ids)), repeated

    def _counts(self, images: int, turn: int) -> dict[Kind, int]:
        """How many of each kind a task gets: all kinds in turn until the rate is reached, one at least."""
        limits = {kind: len(pool) for kind, pool in self.pools.items()}
        limits["consistent"] = max(1, images // 2) if images + sum(map(bool, limits.values())) > 2 else 0
        counts: dict[Kind, int] = dict.fromkeys(SENTINELS, 0)
        kinds = [kind for kind in SENTINELS if limits[kind]]
        if not self.rate or not kinds:
            return counts
        wanted = min(max(round(images * self.rate / (1 - self.rate)), len(kinds)), sum(limits.values()))
        while sum(counts.values()) < wanted:
            open_kinds = [kind for kind in kinds if counts[kind] < limits[kind]]
            fewest = min(counts[kind] for kind in open_kinds)
            equal = [kind for kind in open_kinds if counts[kind] == fewest]
            counts[equal[turn % len(equal)]] += 1
        return counts

    def _taken(self, counts: Mapping[Kind, int], turn: int) -> Iterator[Item]:
        """The next sentinels of the pools: each is shown again only after all others were."""
        for kind, pool in self.pools.items():
            n = counts[kind]
            yield from (pool[(turn * n + i) % len(pool)] for i in range(n))

    def _with_repeats(self, shown: list[Item], count: int, turn: int) -> tuple[list[str], list[Item]]:
        """The order with `count` images of its first half shown once more, a third of the task later or further on."""
        order, half = list(shown), math.ceil(len(shown) / 2)
        chosen = self._shuffled([item for item in shown if item.kind == IMAGE], "repeat", turn)[:count]
        free = [place for place in range(half) if order[place] not in chosen]
        for item in chosen:  # those of the second half change places with one that is shown once
            place = order.index(item)
            if place >= half and free:
                other = free.pop()
                order[place], order[other] = order[other], order[place]
        ids, repeated = [item.item_id for item in order], []
        for item in sorted(chosen, key=order.index):
            again = replace(item, item_id=_opaque(self.seed, "again", item.item_id), kind="consistent",
                            repeats=item.item_id)  # fmt: skip
            first = ids.index(item.item_id) + 1 + max(2, len(shown) // 3)
            first = min(first, len(ids))
            ids.insert(first + _draw(self.seed, "place", turn, item.item_id) % (len(ids) - first + 1), again.item_id)
            repeated.append(again)
        return ids, repeated


def _write(review: Review, pictures: Mapping[str, Candidate], picture: ReadPicture) -> None:
    files = documents(review)
    head = review.folder / REVIEW
    same = head.is_file() and head.read_bytes() == files[REVIEW]
    answered = None if same else answered_review(review.folder)
    same = same or answered == hashlib.sha256(files[REVIEW]).hexdigest()  # review.json was lost or edited since
    if not same and answered is not None:
        raise ReviewError(
            f"expected the arguments that {review.folder} was made with, since it holds answers, got others: "
            "make the new review in another folder"
        )
    shown = {item.picture for item in review.items}
    for name, candidate in pictures.items():
        if name in shown and not review.picture(name).is_file():
            write(review.picture(name), picture(candidate))
    for item in review.items:
        check_item(review, item)
    if not same:
        head.unlink(missing_ok=True)  # a review that is being replaced is none
        forget_empty_store(review.folder)
    for name, content in files.items():
        path = review.folder / name
        if not path.is_file() or path.read_bytes() != content:
            write(path, content)
