"""Who answers with care: sentinels passed, time taken, agreement with the others, and who is left out of decisions.

That answers of workers who fail sentinels are discarded is the published procedure (ImageNet-D, arXiv 2403.18775). It
gives no thresholds: those here are ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from ..metrics.intervals import wilson
from .base import IMAGE, Answer, Item, Mode, ReviewError
from .votes import Sitting, Votes, by_id, cast, majority, sittings

_ROUNDING = 1e-9  # 0.55 of 20 is a little more than 11


@dataclass(frozen=True)
class Share:
    """So many of so many; `rate` and `interval` (95 % Wilson) are None where nothing was seen."""

    passed: int
    seen: int

    @property
    def failed(self) -> int:
        """Seen and not passed."""
        return self.seen - self.passed

    @property
    def rate(self) -> float | None:
        """Fraction passed."""
        return self.passed / self.seen if self.seen else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % Wilson interval of the rate."""
        return wilson(self.passed, self.seen) if self.seen else None

    def __add__(self, other: Share) -> Share:
        return Share(self.passed + other.passed, self.seen + other.seen)


@dataclass(frozen=True)
class Reliability:
    """One worker.

    answers         answers given, to images and sentinels.
    positive … consistent   sentinels passed of those answered in full, counted in every task they stand in; a
                    consistent one passes when every answer equals the worker's own one to the item that it repeats.
    agreement       answers about images that equal the majority of the others, of those where the others have one.
    median_seconds  of answers with a time; None without.   timed  how many have one.
    """

    worker: str
    answers: int
    positive: Share
    negative: Share
    consistent: Share
    agreement: Share
    median_seconds: float | None
    timed: int

    @property
    def sentinels(self) -> Share:
        """All kinds of sentinels together."""
        return self.positive + self.negative + self.consistent


@dataclass(frozen=True)
class Thresholds:
    """When a worker's answers count; the numbers are ours, none are published.

    With the defaults and two questions, this many of 6,000 simulated workers are dropped after 1, 2 and 5 tasks of one
    sentinel of each kind: 95 % accurate 1.2, 1.9 and 1.4 %; 99 % accurate 0.1, 0.1 and 0 %; answering at random 85, 93
    and 99.9 %; always yes 0, 100 and 100 %. With fewest_of_a_kind = 1, after the first: 20, 3.7, 98.7 and 100 %; later
    the same. docs/review.md has them for five sentinels a task.

    positive, negative, consistent   least fraction of each kind of sentinel to be passed.
    fewest          sentinels, and timed answers, that must be seen before they speak against a worker.
    fewest_of_a_kind  of one kind, before it speaks alone; all kinds together must reach what each asks on average.
    fastest         least median of seconds an answer; below it nobody has looked.
    agreement       least agreement with the majority of the others; None: not asked, hard images split people.
    keep_unjudged   whether workers with fewer sentinels than `fewest` count.
    """

    positive: float = 0.5
    negative: float = 0.5
    consistent: float = 0.5
    fewest: int = 3
    fewest_of_a_kind: int = 2
    fastest: float = 0.4
    agreement: float | None = None
    keep_unjudged: bool = True

    def __post_init__(self) -> None:
        shares = (self.positive, self.negative, self.consistent, 0.0 if self.agreement is None else self.agreement)
        least = min(self.fewest, self.fewest_of_a_kind)
        if not all(0 <= share <= 1 for share in shares) or least < 1 or not 0 <= self.fastest < float("inf"):
            raise ReviewError(f"expected fractions in [0, 1], fewest… >= 1 and fastest >= 0 seconds, got {self}")


@dataclass(frozen=True)
class Trust:
    """Whose answers count: names in order, and for everyone else the reason.

    unjudged  those of `kept` who have seen too few sentinels.
    """

    kept: tuple[str, ...]
    dropped: Mapping[str, str]
    unjudged: tuple[str, ...]


def reliability(items: Sequence[Item], answers: Sequence[Answer], mode: Mode) -> dict[str, Reliability]:
    """worker -> Reliability, for everyone who gave an answer, by name; errors as in `votes.cast`."""
    known = by_id(items, mode)
    sentinels: dict[tuple[str, str], Share] = defaultdict(lambda: Share(0, 0))
    given: dict[str, int] = defaultdict(int)
    for (worker, _), sitting in sittings(items, answers, mode).items():
        given[worker] += len(sitting)
        for item_id in {item_id for item_id, _ in sitting}:
            passed = _passed(known[item_id], sitting, mode)
            if passed is not None:
                sentinels[worker, known[item_id].kind] += Share(int(passed), 1)
    agreed = _agreement(cast(items, answers, mode), known)
    seconds = _seconds(answers)
    return {
        worker: Reliability(
            worker,
            given[worker],
            sentinels[worker, "positive"],
            sentinels[worker, "negative"],
            sentinels[worker, "consistent"],
            agreed.get(worker, Share(0, 0)),
            median(seconds[worker]) if seconds[worker] else None,
            len(seconds[worker]),
        )
        for worker in sorted(given)
    }


def trusted(found: Mapping[str, Reliability], thresholds: Thresholds) -> Trust:
    """Whose answers count under the thresholds, who is dropped with the reason, and who could not be judged."""
    kept, dropped, unjudged = [], {}, []
    for worker, own in sorted(found.items()):
        reason = _against(own, thresholds)
        judged = own.sentinels.seen >= thresholds.fewest
        if reason is None and not judged and not thresholds.keep_unjudged:
            reason = f"only {own.sentinels.seen} sentinels seen, {thresholds.fewest} needed to be judged"
        if reason is not None:
            dropped[worker] = reason
            continue
        kept.append(worker)
        if not judged:
            unjudged.append(worker)
    return Trust(tuple(kept), dropped, tuple(unjudged))


def _against(own: Reliability, thresholds: Thresholds) -> str | None:
    """Why a worker's answers do not count, or None."""
    if own.sentinels.seen >= thresholds.fewest:
        failed = _failed_sentinels(own, thresholds)
        if failed is not None:
            return failed
    if own.median_seconds is not None and own.timed >= thresholds.fewest and own.median_seconds < thresholds.fastest:
        return f"median of {own.median_seconds:.2g} s an answer, {thresholds.fastest:g} s needed"
    rate, wanted = own.agreement.rate, thresholds.agreement
    if rate is not None and wanted is not None and own.agreement.seen >= thresholds.fewest and rate < wanted:
        return (
            f"{own.agreement.passed} of {own.agreement.seen} answers as the majority of the others, {wanted:g} of them "
            "needed"
        )
    return None


def _failed_sentinels(own: Reliability, thresholds: Thresholds) -> str | None:
    """Which kind of sentinels a worker failed, or all kinds together; None for one who passed."""
    kinds = (
        ("positive", own.positive, thresholds.positive),
        ("negative", own.negative, thresholds.negative),
        ("consistent", own.consistent, thresholds.consistent),
    )
    for kind, share, least in kinds:
        if share.rate is not None and share.seen >= thresholds.fewest_of_a_kind and share.rate < least:
            return f"{share.passed} of {share.seen} {kind} sentinels passed, {least:g} of them needed"
    everything, wanted = own.sentinels, sum(least * share.seen for _, share, least in kinds)
    if everything.passed < wanted - _ROUNDING:
        return (
            f"{everything.passed} of {everything.seen} sentinels passed, {wanted / everything.seen:.2g} of them needed"
        )
    return None


def _passed(item: Item, sitting: Sitting, mode: Mode) -> bool | None:
    """Whether a sentinel is passed in a sitting; None for an image, and for one that is not answered in full."""
    if item.kind == IMAGE:
        return None
    accepted: dict[tuple[str, str], tuple[str, ...]]
    if item.kind == "consistent":
        names = [question.name for question in mode.questions]
        asked = [(item.item_id, name) for name in names] + [(str(item.repeats), name) for name in names]
        accepted = {(item.item_id, name): (sitting.get((str(item.repeats), name), ""),) for name in names}
    else:
        accepted = {(item.item_id, name): values for name, values in item.expected.items() if values}
        asked = list(accepted)
    if not all(key in sitting for key in asked):
        return None
    return all(sitting[key] in values for key, values in accepted.items())


def _agreement(votes: Votes, known: Mapping[str, Item]) -> dict[str, Share]:
    agreed: dict[str, Share] = defaultdict(lambda: Share(0, 0))
    for (item_id, _), voters in votes.items():
        if known[item_id].kind != IMAGE:
            continue
        for worker, value in voters.items():
            others = majority(own for other, own in voters.items() if other != worker)
            if others is not None:
                agreed[worker] += Share(int(value == others), 1)
    return agreed


def _seconds(answers: Sequence[Answer]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        if answer.seconds is not None and isfinite(answer.seconds) and answer.seconds >= 0:
            seconds[answer.worker].append(answer.seconds)
    return seconds
