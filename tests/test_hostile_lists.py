"""Lists, tables and exports that people hand to `regenerate`, `review` and `health`, broken on purpose."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from hf_robust.health import read_years
from hf_robust.regenerate.collect import CollectSettings, start_collect
from hf_robust.regenerate.openimages import read_openimages
from hf_robust.regenerate.pairs import read_nuisances, read_subjects, read_templates
from hf_robust.regenerate.pool_labels import label_reader, read_label_map, read_sidecar
from hf_robust.regenerate.recipes import configure, recipe_of
from hf_robust.regenerate.spurious_mining import object_labels
from hf_robust.regenerate.stage import StageError, Work
from hf_robust.regenerate.wordnet import read_hierarchy
from hf_robust.review.base import IMAGE_VALIDITY, ReviewError
from hf_robust.review.exchange_labelstudio import import_label_studio
from hf_robust.review.exchange_mturk import import_mturk
from hf_robust.review.folder import Review, read_review
from hf_robust.review.space import read_events
from hf_robust.review.tasks import Candidate, make_review
from hf_robust.runner import World

EXAMPLES = int(os.environ.get("HF_ROBUST_FUZZ", "40"))  # as in test_hostile_files.py
bounded = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
NAMES = st.text(st.characters(codec="utf-8"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENDLESS = "x" * 200_000  # longer than a field of Python's csv may be

Reader = Callable[[Path], Any]

# each with a header or a line that it takes, so that the fuzz gets past it
TABLES: dict[str, tuple[Reader, str]] = {
    "categories": (lambda path: read_subjects(str(path)), "folder,display_name,imagenet_1k\nmug,mug,504\n"),
    "nuisances": (lambda path: read_nuisances("background", str(path)), "dining_room-s\n"),
    "templates": (lambda path: read_templates(str(path)), "kind,template\nbackground,a {c} in a {n}\n"),
    "sidecar": (read_sidecar, "file_name,licence\na.jpg,CC-BY\n"),
    "labels": (lambda path: label_reader(f"file:{path}"), "file_name,label\na.jpg,tench\n"),
    "label map": (read_label_map, "label,wnid\nfish,n01440764\n"),
    "objects": (lambda path: object_labels(path, [0]), "class,label\n0,/m/0dxb5\n"),
    "is-a": (read_hierarchy, "n00001740 n01440764\n"),
    "data.noun": (read_hierarchy, "  1 text\n01440764 05 n 01 tench 0 001 @ 01439121 n 0000 | a fish\n"),
    "OpenImages ids": (
        lambda path: read_openimages([path], [], {"a"}), "ImageID,License,OriginalLandingURL,Author\na,b,c,d\n",
    ),
    "OpenImages labels": (
        lambda path: read_openimages([], [path], {"a"}), "ImageID,Source,LabelName,Confidence\na,verification,/m/1,1\n",
    ),
    "configuration": (lambda path: configure(recipe_of("imagenet-a"), path, []), "[collect]\nmin_side = 64\n"),
    "years": (read_years, "timm/resnet50,2015\n"),
}  # fmt: skip


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call gives, or None and the words of its refusal; any other error is a failure of the test."""
    try:
        return call(), ""
    except (ValueError, ReviewError, StageError) as error:
        refusal = str(error)
    assert refusal.startswith(("expected ", "unknown "))
    return None, refusal


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def as_csv(rows: list[list[str]]) -> str:
    stream = io.StringIO()
    csv.writer(stream).writerows(rows)
    return stream.getvalue()


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_as_it_should_be_is_read(tmp_path: Path, kind: str) -> None:
    reader, good = TABLES[kind]
    assert reader(put(tmp_path / "table", good.encode())) is not None


@pytest.mark.parametrize("kind", TABLES)
@bounded
@given(
    junk=st.binary(max_size=120)
    | st.text(max_size=120).map(str.encode)
    | st.lists(st.lists(NAMES, max_size=5), max_size=4).map(as_csv).map(str.encode),
    after=st.sampled_from([0, 1, 2]),
)
def test_a_table_of_any_bytes_is_read_or_refused_with_its_name(
    tmp_path: Path, kind: str, junk: bytes, after: int
) -> None:
    reader, good = TABLES[kind]
    kept = "".join(good.splitlines(keepends=True)[:after]).encode()
    path = put(tmp_path / "table", kept + junk)
    found, refusal = outcome(lambda: reader(path))
    assert found is not None or str(path) in refusal


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("tail", [f'"{ENDLESS}"', ENDLESS, "[" * 100_000, f"a = {'[' * 100_000}", "\0", '"'])
def test_a_table_with_an_endless_or_open_field_is_read_or_refused_with_its_name(
    tmp_path: Path, kind: str, tail: str
) -> None:
    reader, good = TABLES[kind]
    for text in (tail, good.splitlines()[0] + "\n" + tail, good + tail):
        path = put(tmp_path / "table", text.encode())
        found, refusal = outcome(lambda path=path: reader(path))
        assert found is not None or str(path) in refusal


# --- what stands beside a picture of a pool


def picture_bytes() -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((80, 70), 90).convert("RGB").save(stream, "PNG")
    return stream.getvalue()


PICTURE = picture_bytes()


def collected(pool: Path, **options: Any) -> list[dict[str, Any]]:
    work = Work(pool.parent / "work", World(0, 1, "cpu"), lambda *_: None, candidates=str(pool))
    asked = CollectSettings(require_label=False, **options)
    step = start_collect(asked, work)
    return [row for part in range(step.parts) for row in step.make(part).to_pylist()]


def tar_with(path: Path, **beside: bytes) -> Path:
    with tarfile.open(path, "w") as archive:
        for ending, content in {"png": PICTURE, **beside}.items():
            info = tarfile.TarInfo(f"0001.{ending}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@bounded
@given(
    values=st.dictionaries(st.sampled_from(["label", "licence", "author", "x"]), JSON, max_size=4)
    | st.binary(max_size=60)
)
def test_a_json_beside_a_picture_of_a_tar_never_stops_the_pool(tmp_path: Path, values: Any) -> None:
    content = values if isinstance(values, bytes) else json.dumps(values).encode()
    (row,) = collected(tar_with(tmp_path / "pool.tar", json=content), label_by="column:label")
    assert (row["name"], row["keep"]) == ("pool.tar/0001.png", True)


def test_a_text_beside_a_picture_that_is_no_text_never_stops_the_pool(tmp_path: Path) -> None:
    said = b'{"label": "\\ud800", "\\udfff": 1, "licence": "\\ud800"}'
    (row,) = collected(tar_with(tmp_path / "pool.tar", txt=b"\xff\xfe\0", json=said), label_by="column:label")
    assert (row["keep"], row["weak_label"]) == (True, "\\ud800")


@bounded
@given(names=st.lists(JSON, max_size=3), metadata=st.binary(max_size=40) | JSON.map(lambda v: json.dumps(v).encode()))
def test_class_names_of_any_kind_in_a_parquet_file_never_stop_the_pool(
    tmp_path: Path, names: list[Any], metadata: bytes
) -> None:
    said = json.dumps({"info": {"features": {"label": {"names": names}}}}).encode()
    table = pa.table({"image": [PICTURE], "label": pa.array([1], pa.int64())})
    for huggingface in (said, metadata):
        pq.write_table(table.replace_schema_metadata({b"huggingface": huggingface}), tmp_path / "pool.parquet")
        (row,) = collected(tmp_path / "pool.parquet", label_by="column:label")
        assert row["keep"]


# --- what comes back from people


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> Review:
    images = [Candidate(f"row-{i}", "mug") for i in range(3)]
    return make_review(
        tmp_path_factory.mktemp("review") / "it", IMAGE_VALIDITY, images, [], lambda candidate: PICTURE, workers=1,
        images_a_task=3, sentinel_rate=0.0, seed=1,
    )  # fmt: skip


def mturk_row(review: Review, **columns: str) -> str:
    row = {"WorkerId": "A1", "AssignmentStatus": "Approved", "Input.task_id": review.tasks[0].task_id, **columns}
    return as_csv([list(row), list(row.values())])


@bounded
@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()), seconds=NAMES)
def test_results_of_mechanical_turk_of_any_bytes_are_read_or_refused(
    review: Review, tmp_path: Path, content: bytes, seconds: str
) -> None:
    fields = content.decode("utf-8", "replace").replace("\0", "")
    for data in (
        content,
        mturk_row(review, **{"Answer.taskAnswers": fields, "WorkTimeInSeconds": seconds}).encode(),
    ):
        path = put(tmp_path / "results.csv", data)
        found, refusal = outcome(lambda path=path: import_mturk(review, path, enter=str))
        assert found is not None or str(path) in refusal


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "1e999", "-5", "", "a"])
def test_a_work_time_that_is_none_is_left_out(review: Review, tmp_path: Path, seconds: str) -> None:
    question = review.mode.questions[0]
    value = review.values(review.items[0], question)[0]
    columns = {f"Answer.{question.name}_1": value, "WorkTimeInSeconds": seconds}
    path = put(tmp_path / "results.csv", mturk_row(review, **columns).encode())
    (answer,) = import_mturk(review, path, enter=str).answers
    assert answer.seconds is None


def test_answers_nested_without_end_are_refused_with_their_file(review: Review, tmp_path: Path) -> None:
    path = put(tmp_path / "r.csv", mturk_row(review, **{"Answer.taskAnswers": "[" * 100_000}).encode())
    with pytest.raises(ReviewError, match=r"expected JSON in Answer\.taskAnswers in line 2 of .*r\.csv"):
        import_mturk(review, path, enter=str)


@bounded
@given(content=st.binary(max_size=100) | JSON.map(lambda v: json.dumps(v).encode()), result=JSON, by=JSON)
def test_an_export_of_label_studio_of_any_bytes_is_read_or_refused(
    review: Review, tmp_path: Path, content: bytes, result: Any, by: Any
) -> None:
    task = review.tasks[0]
    named = {"task_id": task.task_id, "item_id": task.items[0]}
    value = {"choices": result}
    rows = [
        {"data": named, "annotations": [{"result": found, "completed_by": by, "lead_time": result, "created_at": by}]}
        for found in (result, [result], [{"from_name": review.mode.questions[0].name, "value": value}])
    ]
    for data in (content, *(json.dumps([row]).encode() for row in rows)):
        path = put(tmp_path / "export.json", data)
        found, refusal = outcome(lambda path=path: import_label_studio(review, path, enter=str))
        assert found is not None or str(path) in refusal


@bounded
@given(content=st.binary(max_size=100) | JSON.map(lambda v: json.dumps(v).encode()), value=JSON)
def test_events_of_a_space_of_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, value: Any) -> None:
    good = {"worker": "a", "task": "t", "item": "i", "question": "q", "value": "yes", "seconds": 1.0, "at": "2025"}
    lines = [content, *(json.dumps({**good, name: value}).encode() for name in good)]
    for data in lines:
        path = put(tmp_path / "events" / "a.jsonl", data)
        found, refusal = outcome(lambda: list(read_events(tmp_path / "events")))
        assert found is not None or str(path) in refusal


def test_events_nested_without_end_are_refused_with_their_line(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", b"[" * 100_000)
    with pytest.raises(ReviewError, match=r"expected an answer in line 1 of .*a\.jsonl"):
        list(read_events(path.parent))


@bounded
@given(content=st.binary(max_size=100) | JSON.map(lambda v: json.dumps(v).encode()), value=JSON)
def test_a_review_of_any_bytes_is_read_or_refused_with_its_folder(
    review: Review, tmp_path: Path, content: bytes, value: Any
) -> None:
    head = json.loads((review.folder / "review.json").read_text())
    for data in (content, *(json.dumps({**head, name: value}).encode() for name in head)):
        put(tmp_path / "review.json", data)
        for name in ("items.json", "tasks.json"):
            put(tmp_path / name, (review.folder / name).read_bytes())
        found, refusal = outcome(lambda: read_review(tmp_path))
        assert found is not None or str(tmp_path) in refusal


def test_a_review_nested_without_end_is_refused_with_its_file(tmp_path: Path) -> None:
    put(tmp_path / "review.json", b"[" * 100_000)
    with pytest.raises(ReviewError, match=r"expected JSON in .*review\.json"):
        read_review(tmp_path)


# --- names on the terminal


NAME = "mine.py:leaves: [/bold]"


def test_a_name_in_a_table_is_no_emoji_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    from hf_robust.cli.display import console_of, print_rows

    print_rows([{"name": NAME, "what": NAME}])
    console_of(stderr=False).print(NAME, markup=False)
    assert capsys.readouterr().out.count(NAME) == 3


def test_a_bar_of_any_name_is_drawn() -> None:
    from rich.console import Console

    from hf_robust.cli.display import progress_of

    screen = io.StringIO()
    with progress_of(Console(file=screen, force_terminal=True, width=120, emoji=False)) as meter_of:
        meter_of(NAME)(1, 1)
    assert NAME in screen.getvalue()
