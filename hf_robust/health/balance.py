"""How the pictures of a set are spread over its classes, and which classes have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .. import labels
from ..data import Rows

_GROUPS = ("category", "spurious_class", "confused_with")  # what stands for the class where a set has such a column


@dataclass(frozen=True)
class Balance:
    """Pictures of each class, the largest first, and the classes of the official set that have none.

    by         what the classes are: "label", or the column that stands for it.
    unlabelled pictures without a class.
    """

    by: str
    counts: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]
    unlabelled: int

    @property
    def ratio(self) -> float | None:
        """Pictures of the largest class over those of the smallest that has any; None without classes."""
        return self.counts[0][1] / self.counts[-1][1] if self.counts else None


def balance(rows: Rows) -> Balance:
    """The spread over classes: by the set's own class column where it has one, else by label."""
    by = next((name for name in _GROUPS if name in rows.table.groups), "label")
    wnids = labels.imagenet_1k().wnids
    if by == "label":  # a picture with several acceptable labels counts for the first
        found = [wnids[row[0]] if row else None for row in rows.table.labels]
    else:
        found = [None if value is None else _name(by, value) for value in rows.table.groups[by]]
    counts = Counter(name for name in found if name is not None)
    official = _official().get(rows.dataset, ())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Balance(by, tuple(ranked), tuple(name for name in official if name not in counts), found.count(None))


def _name(column: str, value: object) -> str:
    """A class as people can look it up: a column of class numbers holds positions in the list of the official set."""
    if not isinstance(value, int):
        return str(value)
    names = {"spurious_class": labels.imagenet_1k().wnids, "confused_with": labels.imagenet_o_wnids()}.get(column, ())
    return names[value] if value < len(names) else str(value)


def _official() -> Mapping[str, tuple[str, ...]]:
    return {
        "imagenet-a": labels.imagenet_a_wnids(),
        "imagenet-o": labels.imagenet_o_wnids(),
        "imagenet-d": tuple(c.folder for c in labels.imagenet_d_categories()),
        "spurious-imagenet": tuple(c.wnid for c in labels.spurious_classes()),
        "imagenet-val": labels.imagenet_1k().wnids,
        "imagenet-train": labels.imagenet_1k().wnids,
    }
