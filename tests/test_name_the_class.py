"""People name the class: the review of a benchmark's pictures, and what they got right."""

from __future__ import annotations

import csv
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from naming_world import (
    PICTURES,
    WORKERS,
    answer,
    answer_by_hand,
    counted,
    make,
    people_of,
    row_of,
    small_sets,
    truth_of,
)
from tiny_runs import A_AND_O, Sets, picture, write_validation

from hf_robust.benchmarks import benchmark
from hf_robust.benchmarks.derived import Derived
from hf_robust.builders import RECIPES, build_regenerated
from hf_robust.builders.archive import Archive, Member
from hf_robust.builders.recipe import Picture
from hf_robust.cli import main
from hf_robust.labels import imagenet_1k_index, imagenet_1k_names
from hf_robust.metrics import wilson
from hf_robust.predictions.parts import RowTable
from hf_robust.regenerate.class_names import Names
from hf_robust.review.base import IMAGE
from hf_robust.review.screens import Desk
from hf_robust.review.space import answer_repo_files
from hf_robust.review.store import Store
from hf_robust.scoring.people import people_rows

HOSTILE = ("<script>alert(1)</script>", "a\"_b'&<img src=x onerror=alert(2)>", "wok")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return small_sets(tmp_path_factory.mktemp("sets"))


def test_each_picture_is_offered_its_name_the_sets_wrong_ones_and_drawn_ones(sets: Sets, tmp_path: Path) -> None:
    made, truth = make(sets, tmp_path), truth_of(tmp_path)
    images = [item for item in made.items if item.kind == IMAGE]
    names = imagenet_1k_names()
    classes = {names[imagenet_1k_index()[wnid]] for wnid in A_AND_O}
    assert (len(images), {right for own in truth.values() for right in own}) == (PICTURES, classes)
    for item in images:
        offered = item.options["class"]
        assert len(set(offered)) == 5
        assert {*truth[item.row_id], "golfcart"} <= set(offered) <= set(names)
        assert "bucket" not in offered
    places = {item.options["class"].index(truth[item.row_id][0]) for item in images}
    assert len(places) > 2  # the right name does not always stand in one place


def test_the_spelling_of_imagenet_as_file_names_is_understood() -> None:
    names = Names.of(benchmark("imagenet-a"), RowTable((), (), ()))
    assert (len(names.indices), names.known("Golf Cart"), names.known("hot dog")) == (200, "golfcart", "hotdog")
    assert (names.known("banana"), names.known("bucket"), names.known(None)) == ("banana", None, None)


def test_every_wrong_label_of_the_real_file_names_is_one_of_the_names(shared: Path) -> None:
    names = Names.of(benchmark("imagenet-a"), RowTable((), (), ()))
    path = shared / "reference" / "label_spaces" / "imagenet_a_file_names.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7500
    for row in rows:
        own = imagenet_1k_names()[imagenet_1k_index()[row["wnid"]]]
        wrong = {names.known(row["name_field_2_pred"]), names.known(row["name_field_3_pred"])}
        assert None not in wrong
        assert own not in wrong
        assert names.known(row["class_name"]) == own


def test_nothing_that_the_page_can_show_tells_the_right_name(sets: Sets, tmp_path: Path) -> None:
    made = make(sets, tmp_path, "--imagenet-val", sets.validation)
    assert {item.subject for item in made.items} == {"object"}
    assert all(not item.expected for item in made.items if item.kind in (IMAGE, "consistent"))
    assert not any("regeneration" in name for name in answer_repo_files(made.folder))
    screen = Desk(Store(tmp_path)).start("someone")
    assert not {"subject", "expected", "kind", "truth", "row_id"} & set(screen)


def test_the_same_command_gives_the_same_review_and_another_seed_another(sets: Sets, tmp_path: Path) -> None:
    more = ("--imagenet-val", sets.validation, "--limit", 6)
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        make(sets, tmp_path / name, *more, "--seed", seed)
    one, two, three = (
        {p.name: p.read_bytes() for p in (tmp_path / name).glob("*.json")} for name in ("one", "two", "three")
    )
    assert one == two
    assert set(one) == set(three)
    assert all(one[name] != three[name] for name in one)


def test_clean_pictures_of_the_same_classes_are_the_positive_sentinels(sets: Sets, tmp_path: Path) -> None:
    made = make(sets, tmp_path, "--imagenet-val", sets.validation)
    kinds = Counter(item.kind for item in made.items)
    assert (kinds["positive"], kinds["negative"]) == (3, 0)  # one a class
    assert kinds["consistent"] > 0
    names = {imagenet_1k_names()[imagenet_1k_index()[wnid]] for wnid in A_AND_O}
    assert {value for i in made.items if i.kind == "positive" for value in i.expected["class"]} == names


def test_people_of_a_known_accuracy_are_measured_with_it_inside_the_interval(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(sets, tmp_path, "--imagenet-val", sets.validation)
    given = answer(tmp_path, 0.85)
    assert main(["review", "status", str(tmp_path)]) == 0
    assert f"of {PICTURES} pictures: {PICTURES} have {WORKERS}" in capsys.readouterr().out
    assert main(["review", "result", str(tmp_path), "--to", str(tmp_path)]) == 0
    said, record = capsys.readouterr().out, people_of(tmp_path)
    right, answers, by_majority = counted(tmp_path, given)
    assert (record["answers"]["right"], record["answers"]["n"]) == (right, answers) == (right, PICTURES * WORKERS)
    assert (record["majority"]["right"], record["majority"]["n"]) == (by_majority, PICTURES)
    assert record["answers"]["bootstrap"][0] < 0.85 < record["answers"]["bootstrap"][1]
    assert tuple(record["majority"]["wilson"]) == wilson(by_majority, PICTURES)
    assert record["majority"]["value"] > record["answers"]["value"]  # the errors of several cancel out
    for text in ("24 pictures asked, of 24", f"{right} of {answers}", f"{by_majority} of 24", "ties", "about 90 %"):
        assert text in said


def test_an_answer_worked_by_hand(sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(sets, tmp_path, "--limit", 3, "--sentinel-rate", 0)
    truth = truth_of(tmp_path)

    def values(number: int, item: Any) -> list[str]:
        right = truth[item.row_id][0]
        wrong = [name for name in item.options["class"] if name != right]
        return [[right, right, right], [right, wrong[0], right], [wrong[0], right, wrong[1]]][number]

    answer_by_hand(tmp_path, values)
    assert main(["review", "result", str(tmp_path), "--to", str(tmp_path)]) == 0
    record = people_of(tmp_path)
    assert (record["answers"]["right"], record["answers"]["n"]) == (3 + 2 + 1, 9)
    assert (record["majority"]["right"], record["majority"]["n"], record["ties"]) == (2, 3, 1)
    assert (record["asked"], record["pictures_of_the_set"], record["workers"]) == (3, PICTURES, 3)
    assert "without --imagenet-val only repeated pictures" in capsys.readouterr().err
    one_answer = next(r for r in people_rows(tmp_path, [row_of("imagenet-a")]) if r["model"] == "people (one answer)")
    assert (one_answer["value"], one_answer["subset"], one_answer["n"]) == (pytest.approx(6 / 9), True, 9)


def test_missing_answers_are_told_and_the_exit_code_is_1(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(sets, tmp_path, "--limit", 3, "--sentinel-rate", 0)
    assert main(["review", "result", str(tmp_path)]) == 1
    assert "got none that count: collect some" in capsys.readouterr().err
    truth = truth_of(tmp_path)
    answer_by_hand(tmp_path, lambda i, item: [truth[item.row_id][0] if i else "", truth[item.row_id][0], ""])
    assert main(["review", "status", str(tmp_path)]) == 1
    assert "of 3 pictures: 2 have 2, 1 have 1" in capsys.readouterr().out
    assert main(["review", "result", str(tmp_path), "--to", str(tmp_path)]) == 1
    assert "missing: 4 answers to 3 pictures" in capsys.readouterr().out  # 1 + 1 + 2
    rows = people_rows(tmp_path, [row_of("imagenet-a")])
    assert {row["complete"] for row in rows} == {False}
    assert any("3 pictures have fewer answers" in note for row in rows for note in row["notes"])


def test_who_answers_at_random_does_not_count(sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(sets, tmp_path, "--imagenet-val", sets.validation, "--sentinel-rate", 0.4, "--images-a-task", 12)
    answer(tmp_path, 1.0, spammers=2)
    assert main(["review", "result", str(tmp_path), "--to", str(tmp_path)]) == 1  # their pictures need others
    record = people_of(tmp_path)
    assert (record["workers_dropped"], record["answers"]["value"]) == (2, 1.0)
    assert record["short"] > 0
    store = Store(tmp_path)
    assert store.join(store.enter("a new worker"), datetime.now(UTC)) is not None  # their tasks are handed out again


def hostile_set(folder: Path) -> Path:
    """A set like ImageNet-D whose categories are named by somebody who means harm."""
    rows = [(Member(f"{i}.png", len(picture(i)), i), i % len(HOSTILE)) for i in range(6)]
    chosen = [
        (member, Picture(f"background/{k}/{member.path}", "background", HOSTILE[k], columns(HOSTILE[k], k)))
        for member, k in rows
    ]
    archive = Archive("x", tuple(m for m, _ in rows), lambda m: picture(m.position), lambda: None)
    own = Derived(
        "imagenet-d", "hostile", "hostile", (0, 1, 2), "by a test", "none",
        groups=((0,), (1,), (2,)), categories=HOSTILE,
    )  # fmt: skip
    build_regenerated(RECIPES["imagenet-d"], archive, chosen, names=sorted(HOSTILE), record=own.as_record(), out=folder)
    return folder


def columns(category: str, index: int) -> dict[str, Any]:
    return {
        "label": category, "category": category, "nuisance": "background", "top1_prediction": None,
        "top2_prediction": HOSTILE[0], "imagenet_1k": [index],
    }  # fmt: skip


def test_a_regenerated_set_with_hostile_names_is_asked_about_and_measured(sets: Sets, tmp_path: Path) -> None:
    place = hostile_set(tmp_path / "set")
    made = make(sets, tmp_path / "review", "--images-a-task", 6, benchmark=place)
    offered = {name for item in made.items for name in item.options["class"]}
    words = {"<script>alert(1)<", "wok"}
    assert len(offered) == 3
    assert all(any(name.startswith(word) for name in offered) for word in words)
    screen = Desk(Store(tmp_path / "review")).start("someone")
    assert {choice["text"] for choice in screen["choices"]} == offered  # the page sets them as text, never as HTML
    answer(tmp_path / "review", 1.0)
    assert main(["review", "result", str(tmp_path / "review"), "--to", str(tmp_path)]) == 0
    record = people_of(tmp_path, "hostile")
    assert (record["majority"]["value"], record["stated"]) == (1.0, "")
    assert (record["choices"], record["chance"]) == (3, pytest.approx(1 / 3))  # there are no more names than these
    assert record["set_is_official"]
    rows = people_rows(tmp_path, [row_of("hostile")])
    assert [row["ci95"] for row in rows] == [list(wilson(6, 6)), None]  # answers that never vary say nothing of spread


def test_an_unreadable_picture_is_left_out_and_counted(sets: Sets, tmp_path: Path) -> None:
    folder = write_validation(tmp_path / "validation", A_AND_O, each=1)
    broken = next(folder.rglob("*.JPEG"))
    broken.write_bytes(broken.read_bytes()[:200])
    made = make(sets, tmp_path / "r", "--imagenet-val", folder, "--sentinel-rate", 0, benchmark="imagenet-val")
    assert len(made.items) == 2
    answer(tmp_path / "r", 1.0)
    assert main(["review", "result", str(tmp_path / "r"), "--to", str(tmp_path)]) == 0
    record = people_of(tmp_path, "imagenet-val")
    assert (record["asked"], record["unreadable"], record["pictures_of_the_set"]) == (2, 1, 3)
    row = people_rows(tmp_path, [row_of("imagenet-val")])[0]
    assert (row["n_failed"], row["complete"], row["subset"], row["n"]) == (1, False, False, 2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--benchmark", "imagenet-o"), "expected a benchmark whose pictures have a right class, got imagenet-o"),
        (("--benchmark", "imagenet-b"), "unknown benchmark 'imagenet-b'; known: "),
        ((), "expected --benchmark with --mode name-the-class, got none"),
        (("--benchmark", "imagenet-a", "--choices", "1"), "expected 2 or more choices"),
        (("--benchmark", "imagenet-a", "--sheets", "x"), "expected --sheets with --mode component-labels only"),
        (("--benchmark", "imagenet-a", "--limit", "0"), "expected --limit of at least 1"),
        (("--benchmark", "imagenet-d"), "expected a built 'imagenet-d', got none"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    arguments = ["review", "make", str(tmp_path / "r"), "--mode", "name-the-class", "--data", str(sets.data)]
    assert main([*arguments, *more]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r" / "review.json").exists()


def test_a_file_of_facts_that_belongs_to_another_review_is_refused(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(sets, tmp_path / "one")
    make(sets, tmp_path / "two", "--seed", 3)
    (tmp_path / "one" / "regeneration.json").replace(tmp_path / "two" / "regeneration.json")
    assert main(["review", "result", str(tmp_path / "two")]) == 1
    assert "of the review beside it, got that of another" in capsys.readouterr().err


def test_a_review_with_answers_is_not_replaced_by_another(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(sets, tmp_path)
    answer(tmp_path, 0.9)
    before = (tmp_path / "regeneration.json").read_bytes()
    arguments = ["review", "make", tmp_path, "--mode", "name-the-class", "--benchmark", "imagenet-a", "--data"]
    assert main([str(word) for word in (*arguments, sets.data, "--seed", 5)]) == 1
    assert "since it holds answers" in capsys.readouterr().err
    assert (tmp_path / "regeneration.json").read_bytes() == before
