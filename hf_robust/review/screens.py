"""What the page shows next, as plain data: one question about one picture, or what is left. No gradio here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from string import ascii_lowercase, digits
from typing import Any

from .base import Answer, Item, Question, ReviewError, Task
from .store import Store

Screen = dict[str, Any]
KEYS = digits[1:] + ascii_lowercase
PRELOADED = 2
_A_VOWEL = re.compile(r"[ai]|e(?!u)|o(?!ne\b)|u(?!ni|s[aeiou]|k|r[aeiou]|ti)|hour|honest|heir", re.I)


def question_text(question: Question, subject: str) -> str:
    """The question about a subject, with "an" for "a" where the subject sounds like it.

    >>> question_text(Question("q", "Is this a {subject}?", (), ()), "umbrella")
    'Is this an umbrella?'
    """
    text = question.text
    if _A_VOWEL.match(subject):
        text = re.sub(r"\b([Aa]) \{subject\}", r"\1n {subject}", text)
    return text.replace("{subject}", subject)


def buttons(question: Question, item: Item) -> list[dict[str, str]]:
    """Value, text and key of every possible answer; the options of an item get the keys 1 to 9, then letters."""
    if question.choices:
        return [asdict(choice) for choice in question.choices]
    values: Sequence[str] = item.options.get(question.name, ())
    keys = KEYS.ljust(len(values))
    return [{"value": value, "text": value, "key": key.strip()} for value, key in zip(values, keys, strict=False)]


class Desk:
    """What the page calls: every call gives the next screen; a ReviewError is for the person to read.

    Calls may be repeated: a page that got no answer sends the same call again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def start(self, name: str) -> Screen:
        """The first open question of the worker's task, or that nothing is left."""
        worker = self.store.enter(name)
        task = self.store.join(worker, _now())
        return self._rest(worker) if task is None else self._screen(worker, task)

    def answer(self, name: str, given: Mapping[str, Any]) -> Screen:
        """Keeps an answer (task, item, question, value, seconds); the screen after it."""
        answer, task = self._read(name, given)
        self.store.answer(answer)
        return self._screen(answer.worker, task)

    def undo(self, name: str, given: Mapping[str, Any]) -> Screen:
        """Takes back the answer to a question (task, item, question); shows that question again."""
        answer, task = self._read(name, given)
        self.store.undo(answer)
        return self._screen(answer.worker, task)

    def _read(self, name: str, given: Mapping[str, Any]) -> tuple[Answer, Task]:
        words = {key: given.get(key) for key in ("task", "item", "question")}
        words["value"] = given.get("value", "")
        wrong = [key for key, word in words.items() if not isinstance(word, str)]
        if wrong or words["task"] not in self.store.review.task:
            raise ReviewError(
                f"expected an answer to a question of this review, got {str(given)[:200]!r}: load the page again"
            )
        seconds = given.get("seconds")
        kept = float(seconds) if isinstance(seconds, int | float) else None
        task, item, question, value = (str(word) for word in words.values())
        answer = Answer(self.store.enter(name), task, item, question, value, kept)
        return answer, self.store.review.task[task]

    def _screen(self, worker: str, task: Task) -> Screen:
        """The first question of the task that is not answered; with none, what is left."""
        review = self.store.review
        given = self.store.answered(worker, task.task_id)
        answered = {(answer.item_id, answer.question) for answer in given}
        asked = [(item_id, question.name) for item_id in task.items for question in review.mode.questions]
        place = next((i for i, one in enumerate(asked) if one not in answered), None)
        last = {"task": task.task_id, "item": given[-1].item_id, "question": given[-1].question} if given else None
        if place is None:
            return {**self._rest(worker), "last": last}
        item, question = review.item[asked[place][0]], review.question[asked[place][1]]
        number = task.items.index(item.item_id)
        following = [review.item[item_id].picture for item_id in task.items[number + 1 : number + 1 + PRELOADED]]
        return {
            "screen": "item",
            "task": task.task_id,
            "item": item.item_id,
            "question": question.name,
            "picture": item.picture,
            "text": question_text(question, item.subject),
            "choices": buttons(question, item),
            "number": number + 1,
            "of": len(task.items),
            "which": place - number * len(review.mode.questions) + 1,
            "questions": len(review.mode.questions),
            "answered": len(answered),
            "asked": len(asked),
            "following": following,
            "last": last,
        }

    def _rest(self, worker: str) -> Screen:
        progress = self.store.progress(worker, _now())
        return {"screen": "rest", "finished": progress.finished, "left": progress.left, "last": None}


def _now() -> datetime:
    return datetime.now(UTC)
