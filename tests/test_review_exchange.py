"""Mechanical Turk and Label Studio: out to files, and back from files as those tools write them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from hf_robust.review.base import IMAGE_VALIDITY, MODES, NAME_THE_CLASS, Answer, Mode, ReviewError
from hf_robust.review.exchange_labelstudio import export_label_studio, import_label_studio
from hf_robust.review.exchange_mturk import cell, export_mturk, import_mturk
from hf_robust.review.folder import Review
from hf_robust.review.simulate import Worker, simulate
from hf_robust.review.store import Store
from hf_robust.review.tasks import Candidate, make_review

HOSTILE = ("=HYPERLINK(1)", "<script>alert(1)</script>", 'a "mug" & ${task_id}', "Bärenklau 🎒", "@cmd", "+1", "-1")
OPTIONS = {"class": ("tabby cat", *HOSTILE)}
COLUMNS = (  # of a batch's results, in the order of the requester's web site
    "HITId", "HITTypeId", "Title", "Description", "Keywords", "Reward", "CreationTime", "MaxAssignments",
    "RequesterAnnotation", "AssignmentDurationInSeconds", "AutoApprovalDelayInSeconds", "Expiration",
    "NumberOfSimilarHITs", "LifetimeInSeconds", "AssignmentId", "WorkerId", "AssignmentStatus", "AcceptTime",
    "SubmitTime", "AutoApprovalTime", "ApprovalTime", "RejectionTime", "RequesterFeedback", "WorkTimeInSeconds",
    "LifetimeApprovalRate", "Last30DaysApprovalRate", "Last7DaysApprovalRate",
)  # fmt: skip

MakeReview = Callable[[Mode], Review]


@pytest.fixture
def review_of(tmp_path: Path, picture: Callable[..., Image.Image]) -> MakeReview:
    """A function mode -> a review of seven images with hostile subjects, all kinds of sentinels, three people each."""

    def make(mode: Mode) -> Review:
        own: dict[str, Any] = {} if mode.questions[0].choices else {"options": OPTIONS}
        passes = {} if mode.questions[0].choices else {"expected": {"class": ("tabby cat",)}}
        images = [Candidate(f"row-{i}", HOSTILE[i], **own) for i in range(7)]
        sentinels = [Candidate(f"{kind}-{i}", "mug", kind, **passes, **own)
                     for kind in ("positive", "negative") for i in range(2)]  # fmt: skip

        def png(candidate: Candidate) -> bytes:
            content = io.BytesIO()
            picture([*images, *sentinels].index(candidate)).save(content, "PNG")
            return content.getvalue()

        return make_review(tmp_path / mode.name, mode, images, sentinels, png, workers=3, images_a_task=4,
                           sentinel_rate=0.3, seed=1)  # fmt: skip

    return make


def given(review: Review) -> list[Answer]:
    """What three people of middling care answer."""
    truth = {
        item.row_id: {question.name: review.values(item, question)[0] for question in review.mode.questions}
        for item in review.items
    }
    workers = [Worker(f"A{i}XYZ", accuracy=0.6) for i in range(3)]
    return simulate(review.items, review.tasks, truth, workers, review.mode, seed=4)


def votes(answers: list[Answer] | tuple[Answer, ...], name: Callable[[str], str] = str) -> set[tuple[str, ...]]:
    return {(name(a.worker), a.task_id, a.item_id, a.question, a.value) for a in answers}


class Page(HTMLParser):
    """Fields of the page: name -> values offered; texts of the questions; pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self.pictures: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag == "img" and found["src"]:
            self.pictures.append(found["src"])
        if tag == "input":
            self.fields.setdefault(found["name"], []).append(found["value"])
        if found.get("data-options"):  # the page's script makes these buttons
            self.fields[found["data-name"]] = json.loads(found["data-options"])

    def handle_data(self, data: str) -> None:
        self.text += data


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shown(page: Path, row: dict[str, str]) -> Page:
    """The page as the site makes it of a row."""
    return Page(re.sub(r"\$\{(\w+)\}", lambda field: row[field[1]], page.read_text(encoding="ascii")))


def results(
    review: Review, source: Path, path: Path, answers: list[Answer], shape: str, **changes: str
) -> Path:  # fmt: skip
    """A results file of a batch, made from the input file and the answers."""
    lines = []
    for number, row in enumerate(rows_of(source)):
        task = review.task[row["task_id"]]
        own = [answer for answer in answers if answer.task_id == task.task_id]
        line = dict.fromkeys(COLUMNS, "")
        line |= {"HITId": f"3{number:029d}", "AssignmentId": f"39{number:028d}", "WorkerId": own[0].worker,
                 "AssignmentStatus": "Submitted", "SubmitTime": "Thu Oct 09 07:30:20 PDT 2025",
                 "WorkTimeInSeconds": str(5 * len(task.items))}  # fmt: skip
        line |= {f"Input.{name}": value for name, value in row.items()}
        fields = {f"{a.question}_{task.items.index(a.item_id) + 1}": a for a in own}
        offered = {
            name: review.values(review.item[a.item_id], review.question[a.question]) for name, a in fields.items()
        }
        if shape == "json":
            chosen = {name: {value: value == a.value for value in offered[name]} for name, a in fields.items()}
            line["Answer.taskAnswers"] = json.dumps([chosen])
        elif shape == "flags":
            line |= {
                f"Answer.{name}.{v}": str(v == a.value).lower() for name, a in fields.items() for v in offered[name]
            }
        else:
            line |= {f"Answer.{name}": a.value for name, a in fields.items()}
        lines.append({**line, **changes, "Approve": "", "Reject": ""})
    names = list(dict.fromkeys(name for line in lines for name in line))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, quoting=csv.QUOTE_ALL, restval="")
        writer.writeheader()
        writer.writerows(lines)
    return path


@pytest.mark.parametrize("mode", list(MODES.values()), ids=list(MODES))
@pytest.mark.parametrize("shape", ["fields", "flags", "json"])
def test_answers_come_back_from_mechanical_turk_as_they_were_given(
    review_of: MakeReview, tmp_path: Path, mode: Mode, shape: str
) -> None:
    review, store = review_of(mode), Store(tmp_path / mode.name)
    source, _ = export_mturk(review, tmp_path, base_url="https://pictures.example/images/")
    answers = given(review)
    found = import_mturk(review, results(review, source, tmp_path / "out.csv", answers, shape), enter=store.enter)
    assert votes(found.answers) == votes(answers, lambda worker: store.enter(f"mturk/{worker}"))
    assert {answer.seconds for answer in found.answers} == {5.0}
    assert {answer.at for answer in found.answers} == {"2025-10-09T14:30:20+00:00"}
    assert "A0XYZ" not in repr(found)
    assert store.import_answers(found.answers) == len(answers)
    assert store.import_answers(found.answers) == 0  # the same file again changes nothing


@pytest.mark.parametrize("mode", list(MODES.values()), ids=list(MODES))
def test_the_page_offers_every_question_of_every_picture_of_a_row_and_nothing_else(
    review_of: MakeReview, tmp_path: Path, mode: Mode
) -> None:
    review = review_of(mode)
    source, page = export_mturk(review, tmp_path, base_url="https://pictures.example/images")
    for row in rows_of(source):
        items = [review.item[item_id] for item_id in review.task[row["task_id"]].items]
        found = shown(page, row)
        assert found.pictures == [f"https://pictures.example/images/{item.picture}" for item in items]
        for slot, item in enumerate(items, 1):
            for question in mode.questions:
                assert found.fields[f"{question.name}_{slot}"] == list(review.values(item, question))
        if "{subject}" in mode.questions[0].text:
            assert all(mode.questions[0].text.replace("{subject}", item.subject) in found.text for item in items)
    assert "crowd-form" in found.tags


def test_hostile_subjects_are_neither_markup_nor_formulas_nor_fields(review_of: MakeReview, tmp_path: Path) -> None:
    for mode in (IMAGE_VALIDITY, NAME_THE_CLASS):
        source, page = export_mturk(review_of(mode), tmp_path / mode.name, base_url="https://pictures.example")
        for row in rows_of(source):
            assert not any(value.startswith(("=", "+", "-", "@")) for value in row.values())
            assert not any("<" in value or "${" in value for value in row.values())
            assert shown(page, row).tags.count("script") == 2  # the site's and the page's own
        assert source.read_bytes().isascii()


def test_a_cell_is_one_line_of_ascii() -> None:
    assert cell("\t=1\n2") == " =1 2"
    assert cell("@x $ 'é'") == "&#64;x &#36; &#x27;&#233;&#x27;"


@pytest.mark.parametrize("export", [export_mturk, export_label_studio])
def test_no_export_tells_a_sentinel_from_an_image(
    review_of: MakeReview, tmp_path: Path, export: Callable[..., tuple[Path, Path]]
) -> None:
    for mode in MODES.values():
        review = review_of(mode)
        text = "".join(path.read_text() for path in export(review, tmp_path / "out", base_url="https://x.example"))
        for word in ("positive", "negative", "consistent", "expected", "repeats", "sentinel", "row-"):
            assert word not in text.replace("inconsistent", "")


def test_only_the_tasks_asked_for_are_exported(review_of: MakeReview, tmp_path: Path) -> None:
    review = review_of(IMAGE_VALIDITY)
    last = review.tasks[-1].task_id
    source, _ = export_mturk(review, tmp_path, base_url="https://x.example", task_ids=[last])
    assert [row["task_id"] for row in rows_of(source)] == [last]
    tasks, _ = export_label_studio(review, tmp_path, base_url="https://x.example", task_ids=[last])
    assert {row["data"]["task_id"] for row in json.loads(tasks.read_text())} == {last}
    with pytest.raises(ReviewError, match=r"expected tasks of the review .* got 'nine'"):
        export_mturk(review, tmp_path, base_url="https://x.example", task_ids=["nine"])


def test_pictures_without_https_are_refused(review_of: MakeReview, tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match="expected an https address"):
        export_mturk(review_of(IMAGE_VALIDITY), tmp_path, base_url="http://x.example")


def test_rejected_assignments_are_left_out_and_said(review_of: MakeReview, tmp_path: Path) -> None:
    review = review_of(IMAGE_VALIDITY)
    source, _ = export_mturk(review, tmp_path, base_url="https://x.example")
    path = results(review, source, tmp_path / "out.csv", given(review), "json", AssignmentStatus="Rejected")
    assert import_mturk(review, path, enter=str).answers == ()
    assert import_mturk(review, path, enter=str).notes == (f"{len(review.tasks)} rejected assignments left out",)
    assert len(import_mturk(review, path, enter=str, rejected=True).answers) == len(given(review))


def test_unanswered_questions_and_a_worker_with_two_tasks_of_one_block_are_said(
    review_of: MakeReview, tmp_path: Path
) -> None:
    review = review_of(IMAGE_VALIDITY)
    source, _ = export_mturk(review, tmp_path, base_url="https://x.example")
    path = results(review, source, tmp_path / "out.csv", given(review)[:-1], "fields", WorkerId="ONE")
    notes = import_mturk(review, path, enter=str).notes
    assert "1 questions without an answer" in notes
    # Two blocks of three tasks: two of each block come from someone who had done it.
    assert "4 assignments by a worker who had done those images: the images do not count again" in notes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Input.task_id": "other"}, "got 'other' in line 2"),
        ({"Answer.recognise_1": "perhaps"}, "expected one of 'yes', 'no' for 'recognise' in line 2 .* got 'perhaps'"),
        ({"Answer.taskAnswers": "{"}, "expected JSON in Answer.taskAnswers in line 2"),
        ({"Answer.taskAnswers": "7"}, "expected fields with values in Answer.taskAnswers in line 2"),
    ],
)
def test_results_of_something_else_are_refused_with_the_line(
    review_of: MakeReview, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    review = review_of(IMAGE_VALIDITY)
    source, _ = export_mturk(review, tmp_path, base_url="https://x.example")
    path = results(review, source, tmp_path / "out.csv", given(review), "fields", **change)
    with pytest.raises(ReviewError, match=message):
        import_mturk(review, path, enter=str)


def test_a_file_that_is_no_results_file_is_refused(review_of: MakeReview, tmp_path: Path) -> None:
    review, path = review_of(IMAGE_VALIDITY), tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ReviewError, match="got no column 'WorkerId'"):
        import_mturk(review, path, enter=str)
    with pytest.raises(ReviewError, match="expected a CSV file"):
        import_mturk(review, tmp_path / "none.csv", enter=str)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReviewError, match="expected a CSV file"):
        import_mturk(review, path, enter=str)


# Label Studio.


def annotated(review: Review, tasks: Path, answers: list[Answer], *, by: Callable[[str], Any]) -> list[dict[str, Any]]:
    """The JSON export of a project: the tasks with an annotation each."""
    rows = json.loads(tasks.read_text(encoding="utf-8"))
    for number, row in enumerate(rows):
        data = row["data"]
        own = [a for a in answers if (a.task_id, a.item_id) == (data["task_id"], data["item_id"])]
        result = [
            {"id": f"r{number}{a.question}", "type": "choices", "value": {"choices": [a.value]}, "origin": "manual",
             "from_name": a.question, "to_name": "image"}
            for a in own
        ]  # fmt: skip
        row |= {"id": number, "inner_id": number, "project": 1, "drafts": [], "predictions": [{"result": result[:1]}],
                "total_annotations": 1, "cancelled_annotations": 0}  # fmt: skip
        row["annotations"] = [
            {"id": number, "completed_by": by(own[0].worker), "result": result, "was_cancelled": False,
             "ground_truth": False, "created_at": "2026-03-09T22:16:08.728353Z", "lead_time": 4.288, "task": number}
        ]  # fmt: skip
    return list(rows)


@pytest.mark.parametrize("mode", list(MODES.values()), ids=list(MODES))
def test_answers_come_back_from_label_studio_as_they_were_given(
    review_of: MakeReview, tmp_path: Path, mode: Mode
) -> None:
    review, store = review_of(mode), Store(tmp_path / mode.name)
    tasks, _ = export_label_studio(review, tmp_path, base_url="/data/local-files/?d=review")
    answers, path = given(review), tmp_path / "export.json"
    path.write_text(json.dumps(annotated(review, tasks, answers, by=lambda worker: {"id": worker, "email": "a@b.c"})))
    found = import_label_studio(review, path, enter=store.enter)
    assert votes(found.answers) == votes(answers, lambda worker: store.enter(f"label-studio/{worker}"))
    assert {answer.seconds for answer in found.answers} == {4.288}
    assert found.notes == ()
    assert store.import_answers(found.answers) == len(answers)


@pytest.mark.parametrize("mode", list(MODES.values()), ids=list(MODES))
def test_the_configuration_asks_every_question_about_the_picture(
    review_of: MakeReview, tmp_path: Path, mode: Mode
) -> None:
    review = review_of(mode)
    tasks, config = export_label_studio(review, tmp_path, base_url="https://x.example/images/")
    view = ElementTree.fromstring(config.read_text(encoding="utf-8"))
    groups = view.findall("Choices")
    assert [(group.get("name"), group.get("toName")) for group in groups] == [(q.name, "image") for q in mode.questions]
    keys = [choice.get("hotkey") for choice in view.iter("Choice") if choice.get("hotkey")]
    assert len(keys) == len(set(keys))
    for row in json.loads(tasks.read_text(encoding="utf-8")):
        item = review.item[row["data"]["item_id"]]
        fields = {tag.get("value", "")[1:] for tag in view if tag.get("value", "").startswith("$")}
        assert fields <= set(row["data"])
        assert row["data"]["image"] == f"https://x.example/images/{item.picture}"
        for question, group in zip(mode.questions, groups, strict=True):
            offered = [choice.get("alias") for choice in group] or [
                option["value"] for option in row["data"][f"options_{question.name}"]
            ]
            assert offered == list(review.values(item, question))
            assert row["data"][f"question_{question.name}"] == question.text.replace("{subject}", item.subject)


def test_the_words_on_the_button_are_read_as_its_value_and_skipped_annotations_are_said(
    review_of: MakeReview, tmp_path: Path
) -> None:
    review, path = review_of(IMAGE_VALIDITY), tmp_path / "export.json"
    tasks, _ = export_label_studio(review, tmp_path, base_url="https://x.example")
    rows = annotated(review, tasks, given(review), by=lambda worker: 7)
    rows[0]["annotations"][0]["was_cancelled"] = True
    rows[1]["annotations"][0]["result"][0]["value"]["choices"] = ["No"]
    del rows[1]["annotations"][0]["result"][1]
    path.write_text(json.dumps(rows))
    found = import_label_studio(review, path, enter=str)
    assert found.answers[0].value == "no"
    assert found.answers[0].worker == "label-studio/7"
    assert found.notes == ("1 skipped annotations left out", "1 questions without an answer")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a JSON export of Label Studio"),
        ('[{"image": "x", "recognise": "yes"}]', "choose the format JSON, not JSON-MIN"),
        ('[{"data": {"task_id": "x", "item_id": "y"}, "annotations": []}]', "got item 'y' of task 'x'"),
    ],
)
def test_an_export_of_something_else_is_refused(
    review_of: MakeReview, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "export.json"
    path.write_text(content)
    with pytest.raises(ReviewError, match=message):
        import_label_studio(review_of(IMAGE_VALIDITY), path, enter=str)


def test_an_annotation_that_nobody_made_is_refused(review_of: MakeReview, tmp_path: Path) -> None:
    review, path = review_of(IMAGE_VALIDITY), tmp_path / "export.json"
    tasks, _ = export_label_studio(review, tmp_path, base_url="https://x.example")
    path.write_text(json.dumps(annotated(review, tasks, given(review), by=lambda worker: None)))
    with pytest.raises(ReviewError, match="expected who completed each annotation, got none in task 0"):
        import_label_studio(review, path, enter=str)
