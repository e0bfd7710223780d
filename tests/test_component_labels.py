"""Which components are spurious: sheets of one component, a review of them, and the list in the published format."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hf_robust.cli import main
from hf_robust.labels import imagenet_1k_names
from hf_robust.review.base import IMAGE, Answer
from hf_robust.review.folder import Review, read_review
from hf_robust.review.simulate import Worker, simulate
from hf_robust.review.store import Store
from hf_robust.spurious.components import read_components
from hf_robust.spurious.sheet_list import read_component_sheets, write_component_sheets
from hf_robust.spurious.sheets import Component, Example, Sheet

SPURIOUS = {7: (0, 2), 850: (1,)}
COMPONENTS = 3  # of each class
COLOURS = ("red", "green", "blue", "white", "black", "yellow")


def sheet(index: int, numbers: Sequence[int] = range(COMPONENTS), *, pictures: bool = True) -> Sheet:
    components = []
    for number in numbers:
        shown = [Image.new("RGB", (40, 30 + number), COLOURS[(index + number + i) % 6]) if pictures else None
                 for i in range(4)]  # fmt: skip
        examples = tuple(Example(f"{index}/{i}", 2.0 - i, picture) for i, picture in enumerate(shown))
        components.append(Component(number, 0.2, examples, None))
    return Sheet(f"{index} {imagenet_1k_names()[index]}", "a model", 9, 3, tuple(components))


@pytest.fixture
def sheets(tmp_path: Path) -> Path:
    for index in SPURIOUS:
        write_component_sheets(tmp_path / "sheets", index, sheet(index))
    return tmp_path / "sheets"


def make(sheets: Path, folder: Path, *more: object) -> Review:
    arguments = ["review", "make", folder, "--mode", "component-labels", "--sheets", sheets, *more]
    assert main([str(word) for word in arguments]) == 0
    return read_review(folder)


def places_of(folder: Path) -> dict[str, tuple[int, int]]:
    found = json.loads((folder / "regeneration.json").read_text(encoding="utf-8"))["components"]
    return {key: (index, component) for key, (index, component) in found.items()}


def answer(folder: Path, accuracy: float = 1.0, *, habits: Sequence[Any] = ("careful",) * 3) -> None:
    """Every task answered by as many simulated people as there are habits, in turn."""
    store = Store(folder)
    right = {
        key: {"component": "spurious" if component in SPURIOUS[index] else "not-spurious"}
        for key, (index, component) in places_of(folder).items()
    }
    people = [
        Worker(hashlib.sha256(b"%d" % i).hexdigest(), accuracy, habit, steady=1.0) for i, habit in enumerate(habits)
    ]
    store.import_answers(simulate(store.review.items, store.review.tasks, right, people, store.review.mode, seed=0))


def answer_by_hand(folder: Path, given: Mapping[tuple[int, int], str]) -> None:
    """For class and component, one letter a worker: s, n, i, or - for none."""
    words = {"s": "spurious", "n": "not-spurious", "i": "inconsistent"}
    store, places = Store(folder), places_of(folder)
    store.import_answers(
        Answer(hashlib.sha256(b"%d" % w).hexdigest(), f"0000-{w}", item.item_id, "component", words[letter])
        for item in store.review.items
        for w, letter in enumerate(given.get(places[item.row_id], ""))
        if letter != "-"
    )


def test_each_component_has_a_sheet_of_its_own_and_is_listed(sheets: Path) -> None:
    listed = read_component_sheets(sheets)
    assert [(s.index, s.component) for s in listed] == [(index, c) for index in SPURIOUS for c in range(COMPONENTS)]
    assert {(s.index, s.subject) for s in listed} == {(index, imagenet_1k_names()[index]) for index in SPURIOUS}
    with Image.open(listed[0].picture) as picture:
        assert picture.size == (3 * 232 + 8, 2 * 232 + 8)  # four examples, three a line


def test_the_same_sheets_have_the_same_bytes(sheets: Path, tmp_path: Path) -> None:
    for index in SPURIOUS:
        write_component_sheets(tmp_path / "again", index, sheet(index))
    first, second = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (sheets, tmp_path / "again")
    )
    assert first == second
    assert len(first) == len(SPURIOUS) * (COMPONENTS + 1)


def test_a_component_without_pictures_has_no_sheet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_component_sheets(tmp_path, 7, sheet(7, pictures=False))
    assert not list(tmp_path.rglob("*.png"))
    arguments = ["review", "make", str(tmp_path / "r"), "--mode", "component-labels", "--sheets", str(tmp_path)]
    assert main(arguments) == 1
    assert "without a sheet: give --imagenet-train" in capsys.readouterr().err


def test_every_component_is_asked_about_under_the_name_of_its_class(sheets: Path, tmp_path: Path) -> None:
    made = make(sheets, tmp_path / "review")
    images = [item for item in made.items if item.kind == IMAGE]
    assert sorted(places_of(made.folder).values()) == [(i, c) for i in SPURIOUS for c in range(COMPONENTS)]
    assert {item.subject for item in images} == {imagenet_1k_names()[index] for index in SPURIOUS}
    assert {item.kind for item in made.items} == {IMAGE, "consistent"}
    told = (made.folder / "items.json").read_text(encoding="utf-8")
    assert ("component-0" in told, "class-0" in told) == (False, False)


def test_the_list_of_people_is_read_as_the_published_one_is(
    sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "review"
    make(sheets, folder)
    answer(folder)
    assert main(["review", "status", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "6 of 6 pictures are decided, 3 of them accepted" in said
    assert f"run `hf-robust review result {folder}`" in said
    assert main(["review", "result", str(folder)]) == 0
    assert "3 of 6 components judged spurious, of 2 classes" in capsys.readouterr().out
    assert read_components(folder / "components.json") == SPURIOUS
    assert main(["review", "result", str(folder), "--out", str(tmp_path / "mine.json")]) == 0
    assert read_components(tmp_path / "mine.json") == SPURIOUS


def test_a_majority_for_spurious_decides_and_three_opinions_do_not(sheets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "review"
    make(sheets, folder, "--sentinel-rate", 0)
    answer_by_hand(
        folder, {(7, 0): "sns", (7, 1): "sni", (7, 2): "nnn", (850, 0): "iis", (850, 1): "sss", (850, 2): "sin"}
    )
    assert main(["review", "result", str(folder)]) == 0
    assert read_components(folder / "components.json") == {7: (0,), 850: (1,)}


def test_no_list_is_written_while_components_are_undecided_unless_asked_for(
    sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "review"
    make(sheets, folder, "--sentinel-rate", 0)
    answer_by_hand(folder, {(7, 0): "ss-", (7, 1): "sn-"})
    assert main(["review", "result", str(folder)]) == 1
    assert "no list written while components are undecided" in capsys.readouterr().out
    assert not (folder / "components.json").exists()
    assert main(["review", "result", str(folder), "--allow-incomplete"]) == 1
    assert "missing: 13 answers to 5 pictures" in capsys.readouterr().out  # 1 + 4 · 3
    assert read_components(folder / "components.json") == {7: (0,)}


def test_where_nothing_is_spurious_no_list_is_written(
    sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "review"
    make(sheets, folder, "--sentinel-rate", 0)
    answer_by_hand(folder, {(index, c): "nnn" for index in SPURIOUS for c in range(COMPONENTS)})
    assert main(["review", "result", str(folder)]) == 1
    assert "no list written: it would be empty" in capsys.readouterr().out
    assert not (folder / "components.json").exists()


def own(folder: Path) -> Path:
    for kind in ("positive", "negative"):
        for i in range(3):
            path = folder / kind / "teddy_bear" / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = io.BytesIO()
            Image.new("RGB", (20 + i, 20), COLOURS[i]).save(stream, "PNG")
            path.write_bytes(stream.getvalue() + kind.encode())  # other bytes for each kind
    return folder


def test_who_always_presses_the_first_button_fails_own_sheets_of_known_answers(
    sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "review"
    made = make(sheets, folder, "--own-sentinels", own(tmp_path / "own"), "--sentinel-rate", 0.4)
    expected = {item.kind: item.expected["component"] for item in made.items if item.expected}
    assert expected == {"positive": ("spurious",), "negative": ("not-spurious", "inconsistent")}
    assert {item.subject for item in made.items if item.expected} == {"teddy bear"}
    answer(folder, habits=("careful", "careful", "first"))
    main(["review", "result", str(folder)])
    assert read_components(folder / "components.json") == SPURIOUS
    capsys.readouterr()
    main(["review", "status", str(folder)])
    assert "0 of " in capsys.readouterr().out  # negative sentinels passed by who presses the first button


LISTS: Mapping[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no JSON": (lambda values: "{", ""),
    "a class beyond the 1,000": (lambda values: {**values, "class": 1000}, ""),
    "a path that leads out": (lambda values: {**values, "components": {"0": "../secret.png"}}, ""),
    "a component without a number": (
        lambda values: {**values, "components": {"a": "class-0007/component-000.png"}}, "",
    ),
    "a sheet that is not there": (
        lambda values: {**values, "components": {"9": "class-0007/component-009.png"}}, "which is not there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", LISTS)
def test_a_damaged_list_of_sheets_is_an_error_that_names_it(sheets: Path, what: str) -> None:
    path = sheets / "class-0007.json"
    change, said = LISTS[what]
    changed = change(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed), encoding="utf-8")
    with pytest.raises(ValueError, match=f"expected a list of sheets in .*class-0007.json, got .*{said}"):
        read_component_sheets(sheets)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "expected --sheets with --mode component-labels, got none"),
        (("--sheets", "nowhere"), "expected the sheets of components that"),
        (("--sheets", "nowhere", "--limit", "3"), "expected --limit with --mode name-the-class only"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    assert main(["review", "make", str(tmp_path / "r"), "--mode", "component-labels", *more]) == 1
    assert said in capsys.readouterr().err


def test_people_beside_the_models_are_refused_for_components(
    sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(sheets, tmp_path / "review")
    assert main(["review", "result", str(tmp_path / "review"), "--to", str(tmp_path)]) == 1
    assert "expected the options of component-labels, got those of another mode" in capsys.readouterr().err
