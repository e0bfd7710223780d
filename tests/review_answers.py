"""Small reviews written by hand: items, and answers in the order of workers."""

from __future__ import annotations

from collections.abc import Sequence

from hf_robust.review.base import IMAGE_VALIDITY, Answer, Item, Kind, Task

MODE = IMAGE_VALIDITY
BOTH = ("recognise", "usable")


def image(name: str, **more: object) -> Item:
    return Item(name, f"row-{name}", f"{name}.png", "backpack", **more)  # type: ignore[arg-type]


def sentinel(name: str, kind: Kind, value: str = "", repeats: str | None = None) -> Item:
    expected = dict.fromkeys(BOTH, (value,)) if value else {}
    return Item(name, f"row-{name}", f"{name}.png", "backpack", kind, expected, repeats)


def answers(item_id: str, *values: str, task: str = "t", first: int = 0, seconds: float | None = None) -> list[Answer]:
    """One worker a value: w0, w1, …; "yn" is yes to the first and no to the second question, "-" no answer."""
    words = {"y": "yes", "n": "no"}
    return [
        Answer(f"w{i}", task, item_id, question, words[letter], seconds)
        for i, pair in enumerate(values, first)
        for question, letter in zip(BOTH, pair, strict=True)
        if letter != "-"
    ]


def task(name: str, items: Sequence[str], block: int = 0) -> Task:
    return Task(name, block, tuple(items))
