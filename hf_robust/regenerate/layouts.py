"""From kept rows to the files and columns of a published set: one layout for each benchmark that can be regenerated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import labels
from ..builders.recipe import Picture

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """How a kept row becomes a picture of the set.

    reads     columns of the ledger, beside ROW_ID.
    picture   (row, ending with its dot) -> path and columns; the path may be taken already: see `distinct`.
    names     (rows' groups) -> names of the class column, in label order.
    """

    base: str
    reads: tuple[str, ...]
    picture: Callable[[Row, str], Picture]
    names: Callable[[Sequence[str]], tuple[str, ...]]


def _generated(row: Row, ending: str) -> Picture:
    votes = [v for v in row["votes"] or () if v["classes"] == "imagenet-d" and v["error"] is None]
    first, second = (votes[0]["predicted"], votes[0]["second"]) if votes else (None, None)
    columns = {
        "label": row["category"],
        "category": row["category"],
        "nuisance": row["nuisance"],
        "top1_prediction": first,
        "top2_prediction": second,
        "imagenet_1k": list(row["labels"]),
    }
    name = f"{row['nuisance']}/{row['category']}/{row['row_id'][:22]}{ending}"  # 22 characters, as published
    return Picture(name, row["nuisance"], row["category"], columns)


def _categories(found: Sequence[str]) -> tuple[str, ...]:
    official = tuple(c.folder for c in labels.imagenet_d_categories())
    return official if set(found) <= set(official) else tuple(sorted(found))


def _misclassified(row: Row, ending: str) -> Picture:
    first = row["wrong_label_1"]
    second = row["wrong_label_2"] or first  # one filter alone has one wrong label
    true, wrong = row["true_probability"], row["wrong_confidence"]
    columns = {
        "label": row["wnid"],
        "true_class_probability": true,
        "wrong_label_1": first,
        "wrong_label_2": second,
        "wrong_label_confidence": wrong,
        "imagenet_1k": list(row["labels"]),
    }
    stem = f"{_number(true)}_{_plain(first)} _ {_plain(second)}_{_number(wrong)}"
    return Picture(f"{row['wnid']}/{stem}{ending}", "test", row["wnid"], columns)


def _outside(row: Row, ending: str) -> Picture:
    columns: dict[str, Any] = {
        "confused_with": row["confused_with"],
        "true_lemmas": row["true_lemmas"],
        "confidence": row["confidence"],
        "imagenet_1k": [],
    }
    stem = f"{_plain(row['true_lemmas'])}_{_number(row['confidence'])}"
    return Picture(f"{row['confused_with']}/{stem}{ending}", "test", row["confused_with"], columns)


def _spurious(row: Row, ending: str) -> Picture:
    index, component = row["spurious_class"], row["component"]
    wnid = labels.imagenet_1k().wnids[index]
    columns: dict[str, Any] = {"spurious_class": wnid, "component": component, "feature": None, "imagenet_1k": []}
    folder = f"spurious_class_{index}_component_{component}"
    return Picture(f"{folder}/{row['row_id'][:16]}{ending}", "test", wnid, columns)


def _number(value: float) -> str:
    return f"{value:.7f}".rstrip("0").rstrip(".")  # never 1e-05, which the published grammar does not know


def _plain(text: str) -> str:
    """Without what would become a folder or upset a shell.

    >>> _plain("a/b _ c")
    'a-b - c'
    """
    return text.replace("/", "-").replace(" _ ", " - ").replace("\0", "")


def _in_imagenet_order(found: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(found, key=lambda wnid: labels.imagenet_1k_index()[wnid]))


LAYOUTS: Mapping[str, Layout] = {
    layout.base: layout
    for layout in (
        Layout("imagenet-d", ("category", "nuisance", "labels", "votes"), _generated, _categories),
        Layout(
            "imagenet-a",
            ("wnid", "labels", "true_probability", "wrong_label_1", "wrong_label_2", "wrong_confidence"),
            _misclassified,
            _in_imagenet_order,
        ),
        Layout("imagenet-o", ("confused_with", "true_lemmas", "confidence"), _outside, _in_imagenet_order),
        Layout(
            "spurious-imagenet", ("spurious_class", "component"), _spurious, lambda found: labels.imagenet_1k().wnids
        ),
    )
}


def distinct(name: str, taken: set[str]) -> str:
    """The name, or with " (2)", " (3)" … before its ending where it is taken; adds it to `taken`.

    >>> seen = {"a/b.jpg"}
    >>> distinct("a/b.jpg", seen), distinct("a/b.jpg", seen)
    ('a/b (2).jpg', 'a/b (3).jpg')
    """
    stem, dot, ending = name.rpartition(".")
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{stem} ({number}){dot}{ending}"
    taken.add(found)
    return found
