"""Mechanical Turk: a CSV file with one task a row, the page that shows it, and answers from the results file.

In the requester's web site the page is the design layout of a project, the CSV file its input, and the results file is
what "Download CSV" gives. No row says which of its items are sentinels.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from .base import Answer, Item, Question, ReviewError, Task
from .exchange import Enter, Imported, address, chosen_tasks, read_seconds, read_value
from .folder import Review, write

INPUT, PAGE = "mturk-input.csv", "mturk-page.html"
_ZONES = {"UTC": 0, "GMT": 0, "PST": -8, "PDT": -7}
_AGAIN = "assignments by a worker who had done those images: the images do not count again"


def export_mturk(
    review: Review, folder: Path | str, *, base_url: str, task_ids: Collection[str] | None = None
) -> tuple[Path, Path]:
    """Paths of the input CSV (one row a task) and of the page, written to `folder`.

    base_url  https address below which the review's pictures lie; workers' browsers refuse others.
    task_ids  the tasks to export, such as those of `still_needed`; None: all.
    Publish it with one assignment a HIT: each row is for one worker. Cells are ASCII and escaped for HTML, which also
    takes the meaning from a leading =, +, - or @ in a spreadsheet.
    """
    if not base_url.startswith("https://"):
        raise ReviewError(f"expected an https address for the pictures, got {base_url!r}: the page is served by https")
    tasks = chosen_tasks(review, task_ids)
    slots = max(len(task.items) for task in tasks)
    rows = [_row(review, task, slots, base_url) for task in tasks]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    folder = Path(folder)
    write(folder / INPUT, text.getvalue().encode("ascii"))
    write(folder / PAGE, _page(review, slots).encode("ascii"))
    return folder / INPUT, folder / PAGE


def import_mturk(review: Review, results: Path | str, *, enter: Enter, rejected: bool = False) -> Imported:
    """Answers of a results file.

    enter     gives the name for "mturk/<WorkerId>": `Store.enter` keeps the id on this machine and gives a salted hash.
    seconds   work time of the assignment divided by its items.   at  when it was submitted, where the zone is known.
    rejected  whether rejected assignments count.
    Both shapes of results are read: one `Answer.<field>` column a field, or all of them in `Answer.taskAnswers`.
    ReviewError for a missing column, an unknown task or an answer that the page does not offer, with the line.
    """
    path, name = Path(results), cache(enter)
    answers: list[Answer] = []
    left_out: Counter[str] = Counter()
    blocks: set[tuple[str, int]] = set()
    for line, row in _lines(path):
        task = review.task.get(row["Input.task_id"])
        if task is None:
            raise ReviewError(
                f"expected tasks of the review in {review.folder}, got {row['Input.task_id']!r} in line {line} of "
                f"{path}: it is from another review"
            )
        if row["AssignmentStatus"] == "Rejected" and not rejected:
            left_out["rejected assignments left out"] += 1
            continue
        if not row["WorkerId"].strip():
            raise ReviewError(f"expected who did each assignment, got no WorkerId in line {line} of {path}")
        worker = name(f"mturk/{row['WorkerId']}")
        left_out[_AGAIN] += (worker, task.block) in blocks
        blocks.add((worker, task.block))
        found = list(_answers(review, task, row, worker, f"line {line} of {path}"))
        left_out["questions without an answer"] += len(task.items) * len(review.mode.questions) - len(found)
        answers += found
    return Imported(tuple(answers), tuple(f"{count} {what}" for what, count in left_out.items() if count))


def cell(text: str) -> str:
    """Text for a cell that is put into HTML as it stands: ASCII, one line, markup and `$` escaped, no formula.

    >>> cell("=1+<b>"), cell("Bärenklau")
    ('&#61;1+&lt;b&gt;', 'B&#228;renklau')
    """
    plain = "".join(character if character.isprintable() else " " for character in text)
    safe = html.escape(plain, quote=True).replace("$", "&#36;")
    if safe[:1] in ("=", "+", "-", "@"):
        safe = f"&#{ord(safe[0])};{safe[1:]}"
    return safe.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _row(review: Review, task: Task, slots: int, base_url: str) -> dict[str, str]:
    """A row of the input file; slots that the task does not fill are empty and the page leaves them out."""
    row = {"task_id": cell(task.task_id)}
    for slot in range(1, slots + 1):
        item = review.item[task.items[slot - 1]] if slot <= len(task.items) else None
        row[f"image_{slot}"] = cell(address(base_url, item.picture)) if item else ""
        row[f"subject_{slot}"] = cell(item.subject) if item else ""
        for question in review.mode.questions:
            if not question.choices:
                row[f"{question.name}_options_{slot}"] = cell(json.dumps(_options(item, question)))
    return row


def _options(item: Item | None, question: Question) -> list[str]:
    return list(item.options[question.name]) if item else []


def _page(review: Review, slots: int) -> str:
    """The design layout: markers of the asset replaced, one section a slot."""
    page = (files("hf_robust") / "assets" / "mturk.html").read_text(encoding="ascii")
    sections = "\n".join(_section(review, slot) for slot in range(1, slots + 1))
    for marker, text in (
        ("<!-- title -->", cell(review.mode.title)),
        ("<!-- instructions -->", cell(review.mode.instructions)),
        ("<!-- items -->", sections),
    ):
        page = page.replace(marker, text)
    return page


def _section(review: Review, slot: int) -> str:
    asked = "\n".join(_fieldset(question, slot) for question in review.mode.questions)
    image = f"${{image_{slot}}}"
    return f'<section data-image="{image}">\n<img src="{image}" alt="Picture {slot}">\n{asked}\n</section>'


def _fieldset(question: Question, slot: int) -> str:
    """A question with its buttons; those of an item's own options are made by the page's script."""
    name = f"{question.name}_{slot}"
    text = cell(question.text).replace("{subject}", f"${{subject_{slot}}}")
    if not question.choices:
        return (
            f'<fieldset data-name="{cell(name)}" data-options="${{{question.name}_options_{slot}}}">'
            f"<legend>{text}</legend></fieldset>"
        )
    buttons = "".join(
        f'<label><input type="radio" name="{cell(name)}" value="{cell(choice.value)}" required> '
        f"{cell(choice.text)}</label>"
        for choice in question.choices
    )
    return f"<fieldset><legend>{text}</legend>{buttons}</fieldset>"


def _lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of a results file; ReviewError where it is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            needed = ("WorkerId", "AssignmentStatus", "Input.task_id")
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise ReviewError(
                    f"expected the results file of a Mechanical Turk batch, got no column {missing[0]!r} in {path}: "
                    "download the batch's results as CSV"
                )
            for row in reader:
                yield reader.line_num, {name: value or "" for name, value in row.items() if isinstance(name, str)}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ReviewError(f"expected a CSV file in {path}, got {error}: download the batch's results again") from error


def _answers(review: Review, task: Task, row: Mapping[str, str], worker: str, where: str) -> Iterator[Answer]:
    given = _given(row, where)
    whole = read_seconds(row.get("WorkTimeInSeconds"))
    seconds = None if whole is None else whole / len(task.items)
    at = _submitted(row.get("SubmitTime", ""))
    for slot, item_id in enumerate(task.items, 1):
        for question in review.mode.questions:
            raw = given.get(f"{question.name}_{slot}", "")
            if raw:
                value = read_value(review, review.item[item_id], question, raw, where)
                yield Answer(worker, task.task_id, item_id, question.name, value, seconds, at)


def _given(row: Mapping[str, str], where: str) -> dict[str, str]:
    """field -> value, from either shape of results."""
    given: dict[str, str] = {}
    for column, value in row.items():
        if column.startswith("Answer.") and column != "Answer.taskAnswers":
            field, _, choice = column.removeprefix("Answer.").partition(".")
            if not choice:
                given[field] = value
            elif value.lower() == "true":
                given[field] = choice
    if row.get("Answer.taskAnswers"):
        try:
            content = json.loads(row["Answer.taskAnswers"])
        except (ValueError, RecursionError) as error:
            raise ReviewError(
                f"expected JSON in Answer.taskAnswers in {where}, got something else ({error})"
            ) from error
        parts = content if isinstance(content, list) else [content]
        if not all(isinstance(part, dict) for part in parts):
            raise ReviewError(f"expected fields with values in Answer.taskAnswers in {where}, got {content!r}")
        given.update({field: _selected(value) for part in parts for field, value in part.items()})
    return given


def _selected(value: Any) -> str:
    """What was chosen of {"yes": true, "no": false}, or the text of a plain field."""
    if isinstance(value, dict):
        return next((str(name) for name, chosen in value.items() if chosen is True), "")
    return value if isinstance(value, str) else ""


def _submitted(text: str) -> str | None:
    """UTC, ISO 8601, of the web site's "Thu Oct 09 07:30:20 PDT 2025" or the API's ISO time; None for neither."""
    words = text.split()
    try:
        if len(words) == 6 and words[4] in _ZONES:
            zone = timezone(timedelta(hours=_ZONES[words[4]]))
            time = datetime.strptime(" ".join(words[:4] + words[5:]), "%a %b %d %H:%M:%S %Y").replace(tzinfo=zone)
        else:
            time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.astimezone(UTC).isoformat(timespec="seconds") if time.tzinfo else None
