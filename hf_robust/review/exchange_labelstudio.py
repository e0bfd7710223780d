"""Label Studio: tasks and a labeling configuration to import there, and answers from its JSON export.

One task there is one item of one task here, so that order, overlap and sentinels stay. Nothing exported says which
items are sentinels.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .base import Answer, Item, Question, ReviewError
from .exchange import Enter, Imported, address, asked, chosen_tasks, read_seconds, read_value
from .folder import Review, write

TASKS, CONFIG = "label-studio-tasks.json", "label-studio-config.xml"


def export_label_studio(
    review: Review, folder: Path | str, *, base_url: str, task_ids: Collection[str] | None = None
) -> tuple[Path, Path]:
    """Paths of the tasks (JSON) and of the labeling configuration (XML), written to `folder`.

    base_url  where the review's pictures are served; "/data/local-files/?d=…" for Label Studio's own local storage.
    task_ids  the tasks to export, such as those of `still_needed`; None: all.
    Set the project to one annotation a task, in sequential order: overlap is already in the tasks.
    """
    rows = [
        {"data": _data(review, review.item[item_id], task.task_id, base_url)}
        for task in chosen_tasks(review, task_ids)
        for item_id in task.items
    ]
    folder = Path(folder)
    write(folder / TASKS, (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
    write(folder / CONFIG, _config(review).encode())
    return folder / TASKS, folder / CONFIG


def import_label_studio(review: Review, export: Path | str, *, enter: Enter) -> Imported:
    """Answers of a JSON export.

    enter    gives the name for "label-studio/<id>": `Store.enter` keeps the id on this machine and gives a salted hash.
    seconds  lead time of the annotation.   at  when it was created.
    Skipped annotations are left out and counted; predictions and drafts are no answers. ReviewError for another kind of
    file, an unknown task or item, or an answer that is not offered.
    """
    path, name = Path(export), cache(enter)
    answers: list[Answer] = []
    left_out: Counter[str] = Counter()
    for number, row in enumerate(_rows(path)):
        where = f"task {row.get('id', number)} of {path}"
        task_id, item = _item(review, row, where)
        for annotation in row["annotations"]:
            if annotation.get("was_cancelled"):
                left_out["skipped annotations left out"] += 1
                continue
            found = list(_answers(review, task_id, item, annotation, name, where))
            left_out["questions without an answer"] += len(review.mode.questions) - len(found)
            answers += found
    return Imported(tuple(answers), tuple(f"{count} {what}" for what, count in left_out.items() if count))


def _data(review: Review, item: Item, task_id: str, base_url: str) -> dict[str, Any]:
    data: dict[str, Any] = {
        "task_id": task_id,
        "item_id": item.item_id,
        "image": address(base_url, item.picture),
    }
    for question in review.mode.questions:
        data[f"question_{question.name}"] = asked(question, item)
        if not question.choices:
            data[f"options_{question.name}"] = [{"value": value} for value in review.values(item, question)]
    return data


def _config(review: Review) -> str:
    """The labeling configuration: instructions, picture, and a group of choices for every question."""
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Header", value=review.mode.instructions, size="5")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    taken: set[str] = set()
    for question in review.mode.questions:
        _choices(view, question, taken)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _choices(view: ElementTree.Element, question: Question, taken: set[str]) -> None:
    """A header with the question's words and its choices; a key that an earlier question has is not given again."""
    ElementTree.SubElement(view, "Header", value=f"$question_{question.name}", size="4")
    group = ElementTree.SubElement(
        view, "Choices", name=question.name, toName="image", choice="single-radio", required="true", showInline="true"
    )
    if not question.choices:
        group.set("value", f"$options_{question.name}")
    for choice in question.choices:
        element = ElementTree.SubElement(group, "Choice", value=choice.text, alias=choice.value)
        if choice.key not in taken:
            element.set("hotkey", choice.key)
            taken.add(choice.key)


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReviewError(f"expected a JSON export of Label Studio in {path}, got {error}: export it again") from error
    good = isinstance(content, list) and all(
        isinstance(row, dict) and isinstance(row.get("data"), dict) and isinstance(row.get("annotations"), list)
        for row in content
    )
    if not good or not all(_is_annotation(one) for row in content for one in row["annotations"]):
        raise ReviewError(
            f"expected a list of tasks with data and annotations in {path}, got another shape: choose the format JSON, "
            "not JSON-MIN"
        )
    return list(content)


def _is_annotation(one: Any) -> bool:
    results = one.get("result", []) if isinstance(one, dict) else None
    return isinstance(results, list) and all(
        isinstance(r, dict) and isinstance(r.get("value", {}), dict) and isinstance(r.get("from_name", ""), str)
        for r in results
    )


def _item(review: Review, row: Mapping[str, Any], where: str) -> tuple[str, Item]:
    task = review.task.get(str(row["data"].get("task_id")))
    item_id = str(row["data"].get("item_id"))
    if task is None or item_id not in task.items:
        raise ReviewError(
            f"expected an item of a task of the review in {review.folder}, got item {item_id!r} of task "
            f"{row['data'].get('task_id')!r} in {where}: it is from another review"
        )
    return task.task_id, review.item[item_id]


def _answers(
    review: Review, task_id: str, item: Item, annotation: Mapping[str, Any], enter: Enter, where: str
) -> Iterator[Answer]:
    by = annotation.get("completed_by")
    person = by.get("id", by.get("email")) if isinstance(by, dict) else by
    if person is None or not str(person).strip():
        raise ReviewError(f"expected who completed each annotation, got none in {where}: export it as JSON")
    worker = enter(
        f"label-studio/{person}".encode("utf-8", "backslashreplace").decode()
    )  # JSON may hold what is no text
    seconds, at = read_seconds(annotation.get("lead_time")), annotation.get("created_at")
    at = at if isinstance(at, str) else None
    for result in annotation.get("result", ()):
        question = review.question.get(result.get("from_name", ""))
        chosen = result.get("value", {}).get("choices", [])
        if question is None or not chosen:
            continue
        if not isinstance(chosen, list):
            raise ReviewError(f"expected a list of choices for {question.name!r} in {where}, got {chosen!r}")
        value = read_value(review, item, question, str(chosen[0]), where)
        yield Answer(worker, task_id, item.item_id, question.name, value, seconds, at)
