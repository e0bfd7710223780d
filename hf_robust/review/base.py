"""What people are asked and what they answer, as data: modes, items, tasks, answers. No page, no statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["image", "positive", "negative", "consistent"]
IMAGE: Kind = "image"
SENTINELS: tuple[Kind, ...] = ("positive", "negative", "consistent")


class ReviewError(ValueError):
    """A review that cannot be made, read or decided as asked; the message names the file or the item."""


@dataclass(frozen=True)
class Choice:
    """One possible answer: the value that is stored, the words on the button, the key that presses it."""

    value: str
    text: str
    key: str


@dataclass(frozen=True)
class Question:
    """One question about every item; `{subject}` in the text stands for the item's subject.

    choices  the fixed answers; empty where each item brings its own options (name the class).
    accepts  the answers that speak for keeping the item.
    """

    name: str
    text: str
    choices: tuple[Choice, ...]
    accepts: tuple[str, ...]


@dataclass(frozen=True)
class Mode:
    """A kind of review: what the page shows and how answers are read.

    instructions  for the person, in a few sentences; shown before the first item and on request.
    """

    name: str
    title: str
    instructions: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Item:
    """One thing to be judged.

    item_id   unique in the review; says nothing about the kind (sentinels must not be told apart by a person).
    row_id    the row of the ledger that it is; for a sentinel the row its picture is from.
    picture   file name below `images/` of the review's folder.
    subject   what the question asks about ("backpack").
    kind      "image", or which kind of sentinel.
    expected  question name -> answers that pass, for positive and negative sentinels.
    repeats   item_id of the item that a consistent sentinel shows once more.
    options   for questions without fixed choices: question name -> the values to choose from.
    """

    item_id: str
    row_id: str
    picture: str
    subject: str
    kind: Kind = IMAGE
    expected: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    repeats: str | None = None
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What one worker does in one sitting: items in the order they are shown.

    block  tasks of one block show the same images, each to another worker.
    """

    task_id: str
    block: int
    items: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """One worker's answer to one question about one item in one task.

    seconds  from showing the item to the answer.  at  UTC, ISO 8601.
    """

    worker: str
    task_id: str
    item_id: str
    question: str
    value: str
    seconds: float | None = None
    at: str | None = None


_YES_NO = (Choice("yes", "Yes", "y"), Choice("no", "No", "n"))

IMAGE_VALIDITY = Mode(
    "image-validity",
    "Is the object in the picture?",
    "You see one picture at a time and two questions about one kind of object. Answer by what you see, not by how "
    "usual it is: strange materials, textures and places are meant to be there.",
    (
        Question("recognise", "Can you recognise a {subject} in this picture?", _YES_NO, ("yes",)),
        Question("usable", "Could the object be used as a {subject}?", _YES_NO, ("yes",)),
    ),
)

OBJECT_ABSENT = Mode(
    "object-absent",
    "Is the object anywhere in the picture?",
    "Look everywhere: an object that is small, cut off, mirrored or only drawn counts as shown.",
    (Question("shown", "Is a {subject}, or a part of one, anywhere in this picture?", _YES_NO, ("no",)),),
)

NAME_THE_CLASS = Mode(
    "name-the-class",
    "What is in the picture?",
    "Choose the one name that fits the main object of each picture.",
    (Question("class", "What is the main object in this picture?", (), ()),),
)

COMPONENT_LABELS = Mode(
    "component-labels",
    "What does the component respond to?",
    "Each sheet shows the pictures that one component of a class responds to most. Say whether what they share is the "
    "object itself or something that only appears with it.",
    (
        Question(
            "component",
            "Do these pictures share something that is not part of a {subject}?",
            (
                Choice("spurious", "Spurious: it is not the object", "s"),
                Choice("not-spurious", "Not spurious: it is the object, or part of it", "n"),
                Choice("inconsistent", "They share nothing clear", "i"),
            ),
            ("spurious",),
        ),
    ),
)

MODES: Mapping[str, Mode] = {
    mode.name: mode for mode in (IMAGE_VALIDITY, OBJECT_ABSENT, NAME_THE_CLASS, COMPONENT_LABELS)
}
