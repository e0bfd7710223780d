"""What a review asks about, and where its pictures of known answers come from: one function for each recipe.

Sentinels are candidates that were dropped: a positive one is a picture that every model takes for its class, a negative
one such a picture asked about under another class's name. The choice is the same for the same ledger and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import labels
from ..review.tasks import Candidate
from .ledger import DROPPED_BY, KEEP, ROW_ID, Ledger
from .stage import seed_of

Row = Mapping[str, Any]
Subject = Callable[[Row], str]


def display_name(row: Row) -> str:
    """The category of a generated picture in words."""
    return str(row["display_name"]).replace("_", " ").replace("/", " or ")


def class_name(row: Row) -> str:
    """The ImageNet class of a picture in words."""
    return str(labels.imagenet_1k_names()[row["labels"][0]])


def lemma(row: Row) -> str:
    """What a picture outside ImageNet-1k shows, in words."""
    return str(row["true_lemmas"] or row["weak_label"]).split(",")[0].replace("_", " ")


def spurious_name(row: Row) -> str:
    """The class whose object must not be in the picture."""
    return str(labels.imagenet_1k_names()[row["spurious_class"]])


class Pool:
    """How one recipe's rows become questions.

    reads    columns of the ledger.
    subject  a row that is asked about -> what the question names.
    sure     a dropped row -> how certain it is that it shows its subject, 0 for not usable.
    """

    def __init__(self, reads: Sequence[str], subject: Subject, sure: Callable[[Row], float]) -> None:
        self.reads, self.subject, self.sure = tuple(reads), subject, sure

    def rows(self, ledger: Ledger) -> Iterator[tuple[int, Row]]:
        """(position, row) of every row with the columns that are read."""
        position = 0
        for table in ledger.tables(self.reads):
            for row in table.to_pylist():
                yield position, row
                position += 1


def questions(
    pool: Pool, ledger: Ledger, *, sentinels: int, seed: int
) -> tuple[list[Candidate], list[Candidate], dict[str, int]]:
    """(pictures to be judged, sentinels, row id -> position): at most `sentinels` of a kind, evenly over subjects."""
    images: list[Candidate] = []
    sure: list[tuple[float, str, str]] = []
    positions: dict[str, int] = {}
    for position, row in pool.rows(ledger):
        if row[KEEP]:
            images.append(Candidate(row[ROW_ID], pool.subject(row)))
            positions[row[ROW_ID]] = position
        elif row[DROPPED_BY] is not None and (certainty := pool.sure(row)) > 0:
            sure.append((certainty, row[ROW_ID], pool.subject(row)))
            positions[row[ROW_ID]] = position
    chosen = _spread(sure, 2 * sentinels)
    return images, _sentinels(chosen, images, seed), positions


def _spread(sure: Sequence[tuple[float, str, str]], count: int) -> list[tuple[str, str]]:
    """(row id, subject), the most certain first, no subject a second time before all have had their turn."""
    turn: dict[str, int] = {}
    ranked = []
    for certainty, key, subject in sorted(sure, key=lambda one: (-one[0], one[1])):
        turn[subject] = turn.get(subject, 0) + 1
        ranked.append((turn[subject], -certainty, key, subject))
    return [(key, subject) for *_, key, subject in sorted(ranked)[:count]]


def _sentinels(chosen: Sequence[tuple[str, str]], images: Sequence[Candidate], seed: int) -> list[Candidate]:
    """Half of them asked about as what they are, half as something else that is asked about too."""
    names = sorted({image.subject for image in images} | {subject for _, subject in chosen})
    found = [Candidate(key, subject, "positive") for key, subject in chosen[::2]]
    for key, subject in chosen[1::2]:
        others = [name for name in names if name != subject]
        if others:
            found.append(Candidate(key, others[seed_of(seed, key) % len(others)], "negative"))
    return found


def _all_surrogates_right(row: Row) -> float:
    given = [v for v in row["votes"] or () if v["role"] == "surrogate"]
    right = given and all(v["error"] is None and v["correct"] for v in given)
    return min(v["confidence"] for v in given) if right else 0.0


def _filter_is_right(row: Row) -> float:
    return float(row["true_probability"] or 0) if row["right_crops"] else 0.0


GENERATED = Pool(("display_name", "votes"), display_name, _all_surrogates_right)
MISCLASSIFIED = Pool(("labels", "true_probability", "right_crops"), class_name, _filter_is_right)
# no model knows these classes: people's own pictures (settings) serve as sentinels
OUTSIDE = Pool(("true_lemmas", "weak_label"), lemma, lambda row: 0.0)
SPURIOUS = Pool(("spurious_class",), spurious_name, lambda row: 0.0)
POOLS: Mapping[str, Pool] = {
    "imagenet-d": GENERATED, "imagenet-a": MISCLASSIFIED, "imagenet-o": OUTSIDE, "spurious-imagenet": SPURIOUS,
}  # fmt: skip
