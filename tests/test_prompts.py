"""Stage `prompts`: every category with every nuisance, drawn evenly, from ImageNet-D's lists or a user's own files."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_robust.labels import imagenet_1k, imagenet_d_categories
from hf_robust.regenerate.pairs import KINDS, read_nuisances, read_subjects, read_templates
from hf_robust.regenerate.prompts import PROMPTS, PromptSettings, counts, grid, pair, shares
from hf_robust.regenerate.stage import Ledger, StageError, Work, run_stage
from hf_robust.runner import World

CATEGORIES = "folder,display_name,imagenet_1k\nmug,coffee_mug,504\nwok,wok,n04596742 567\nfig,fig,952\n"


def _work(out: Path, rank: int = 0, size: int = 1) -> Work:
    return Work(out, World(rank, size, "cpu"), lambda done, total: None)


def _run(out: Path, **values: Any) -> Ledger:
    return run_stage(PROMPTS, PromptSettings(**values), _work(out))


def _rows(settings: PromptSettings) -> list[dict[str, Any]]:
    rows = grid(settings)
    return [rows.row(i) for i in range(len(rows))]


def _file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """Three categories, two backgrounds, one texture, four materials: 3 × (2 + 1 + 4) = 21 pairs."""
    return {
        "categories": _file(tmp_path, "categories.csv", CATEGORIES),
        "backgrounds": _file(tmp_path, "backgrounds.txt", "# two places\ndining_room-s\n\nmoon\n"),
        "textures": _file(tmp_path, "textures.txt", "polka-dotted\n"),
        "materials": _file(tmp_path, "materials.txt", "wood\nfur\nfire\nice\n"),
    }


def test_the_published_lists_make_113_times_547_prompts() -> None:
    assert counts(PromptSettings()) == {"background": 113 * 468, "texture": 113 * 47, "material": 113 * 32}
    assert len(grid(PromptSettings())) == 113 * 547 == 61_811


@pytest.mark.parametrize("kind", KINDS)
def test_our_nuisances_are_the_names_of_the_reference_lists(kind: str, shared: Path) -> None:
    listed = (shared / "reference" / "label_spaces" / f"imagenet_d_nuisances_{kind}.txt").read_text().split()
    expected = [(name[:-2] if name.endswith("-s") else name).replace("_", " ") for name in listed]
    assert list(read_nuisances(kind, None)) == expected


def test_a_broden_name_loses_its_suffix_and_its_underscores() -> None:
    backgrounds = read_nuisances("background", None)
    assert "dining room" in backgrounds
    assert "church-indoor" in backgrounds
    assert not [name for name in backgrounds if name.endswith("-s") or "_" in name]


def test_labels_are_every_acceptable_class_of_the_category() -> None:
    right = {category.folder: list(category.indices) for category in imagenet_d_categories()}
    rows = _rows(PromptSettings(limit=300))
    assert len({row["category"] for row in rows}) > 90
    assert all(row["labels"] == right[row["category"]] for row in rows)


@given(st.integers(1, 12), st.integers(1, 12))
def test_every_pair_comes_once_before_any_comes_again(first: int, second: int) -> None:
    pairs = [pair(m, first, second) for m in range(2 * first * second)]
    every = sorted(product(range(first), range(second)))
    for repeat in (0, 1):
        assert sorted((a, b) for a, b, r in pairs if r == repeat) == every


def test_own_lists_make_each_pair_of_each_kind_once(own: dict[str, str]) -> None:
    rows = _rows(PromptSettings(**own))
    names = {
        "background": ["dining room", "moon"],
        "texture": ["polka-dotted"],
        "material": ["wood", "fur", "fire", "ice"],
    }
    expected = {(c, kind, n) for kind in names for c in ("mug", "wok", "fig") for n in names[kind]}
    assert {(r["category"], r["nuisance"], r["nuisance_name"]) for r in rows} == expected
    assert len(rows) == len(expected) == 21


def test_a_prompt_holds_the_names_as_they_are_spoken(own: dict[str, str]) -> None:
    prompts = {row["prompt"] for row in _rows(PromptSettings(**own))}
    assert "A photo of a coffee mug in the dining room" in prompts
    assert "A photo of a fig with a polka-dotted texture" in prompts
    assert "A photo of a wok made of fire material" in prompts


def test_categories_may_be_given_by_wordnet_id_and_by_index(own: dict[str, str]) -> None:
    wok = read_subjects(own["categories"])[1]
    assert wok.labels == (imagenet_1k().wnids.index("n04596742"), 567)


@pytest.mark.parametrize("limit", [1, 3, 30, 113, 339, 1000])
def test_a_limit_is_even_over_kinds_and_categories(limit: int) -> None:
    rows = _rows(PromptSettings(limit=limit))
    kinds = Counter(row["nuisance"] for row in rows)
    categories = Counter(row["category"] for row in rows)
    assert sum(kinds.values()) == limit
    assert max(kinds.values()) - min(kinds[kind] for kind in KINDS) <= 1
    assert max(categories.values()) <= -(-limit // 113) + 1
    assert len(categories) >= min(limit, 113) - 3


def test_a_limit_is_even_over_the_nuisances_of_a_kind() -> None:
    names = Counter(row["nuisance_name"] for row in _rows(PromptSettings(nuisances=("material",), limit=320)))
    assert len(names) == 32
    assert set(names.values()) <= {9, 10, 11}  # 320 / 32 = 10


def test_a_small_limit_is_part_of_every_larger_one(own: dict[str, str]) -> None:
    ids = [{row["row_id"] for row in _rows(PromptSettings(**own, limit=n))} for n in (4, 9, 21, 500)]
    assert [len(found) for found in ids] == [4, 9, 21, 21]
    assert ids[0] < ids[1] < ids[2] == ids[3]


def test_kinds_that_are_used_up_leave_their_share_to_the_others() -> None:
    assert shares([100, 3, 100], 60) == (29, 3, 28)  # (60 − 3) / 2, the first taking the odd one
    assert shares([1, 1, 1], 60) == (1, 1, 1)


def test_another_seed_draws_other_prompts_and_other_seeds() -> None:
    first, same, other = (_rows(PromptSettings(limit=60, seed=seed)) for seed in (0, 0, 1))
    assert first == same
    assert not {row["row_id"] for row in first} & {row["row_id"] for row in other}


def test_the_seed_of_a_row_does_not_depend_on_the_other_rows_or_the_wording(
    own: dict[str, str], tmp_path: Path
) -> None:
    words = "kind,template\nmaterial,{n} {c}\n"
    plain = {r["category"] + r["nuisance_name"]: r["seed"] for r in _rows(PromptSettings(**own))}
    alone = PromptSettings(**own, nuisances=("material",), limit=5, templates=_file(tmp_path, "words.csv", words))
    rows = _rows(alone)
    assert len(rows) == 5
    assert all(row["seed"] == plain[row["category"] + row["nuisance_name"]] for row in rows)


def test_several_templates_are_taken_in_turn_by_the_images_of_a_pair(own: dict[str, str], tmp_path: Path) -> None:
    words = "kind,template\ntexture,{n} {c}\ntexture,{c} that is {n}\n"
    settings = {**own, "templates": _file(tmp_path, "words.csv", words), "nuisances": ("texture",), "images": 3}
    figs = [row for row in _rows(PromptSettings(**settings)) if row["category"] == "fig"]
    assert [row["prompt"] for row in figs] == ["polka-dotted fig", "fig that is polka-dotted", "polka-dotted fig"]
    assert [row["repeat"] for row in figs] == [0, 1, 2]
    assert len({row["seed"] for row in figs}) == 3


def test_the_stage_cuts_parts_of_100_rows_each_made_alone(tmp_path: Path) -> None:
    step = PROMPTS.start(PromptSettings(), _work(tmp_path))
    assert step.parts == 619  # 61,811 / 100, rounded up
    assert step.make(618).num_rows == 11
    assert step.make(300).to_pylist() == [grid(PromptSettings()).row(i) for i in range(30_000, 30_100)]


def test_two_processes_make_the_bytes_of_one(own: dict[str, str], tmp_path: Path) -> None:
    settings = PromptSettings(**own, part_rows=4)
    one = run_stage(PROMPTS, settings, _work(tmp_path / "one"))
    for rank in (1, 0):
        two = run_stage(PROMPTS, settings, _work(tmp_path / "two", rank, 2))
    folders = [ledger.stages[0].folder for ledger in (one, two)]
    assert one.rows_of == (4, 4, 4, 4, 4, 1)
    assert [p.read_bytes() for p in sorted(folders[0].glob("part-*"))] == [
        p.read_bytes() for p in sorted(folders[1].glob("part-*"))
    ]


def test_a_changed_list_makes_another_stage(own: dict[str, str], tmp_path: Path) -> None:
    before = _run(tmp_path / "out", **own)
    Path(own["textures"]).write_text("striped\n", encoding="utf-8")
    after = _run(tmp_path / "out", **own)
    assert before.key != after.key
    assert before.stages[0].folder != after.stages[0].folder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nuisances": ("weather",)}, "unknown kind of nuisance 'weather'; known: background, texture, material"),
        ({"nuisances": ()}, r"expected kinds of nuisances, each once, got \[\]"),
        ({"nuisances": ("texture", "texture")}, "each once"),
        ({"limit": 0}, "expected limit of stage 'prompts' to be a whole number of at least 1, got 0"),
        ({"images": 1.5}, "expected images"),
        ({"part_rows": 0}, "expected part_rows"),
        ({"categories": "absent.csv"}, "expected a text file at absent.csv"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(StageError, match=message):
        grid(PromptSettings(**values))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("folder,name\nmug,mug\n", "expected the columns folder, display_name, imagenet_1k .* called 'display_name'"),
        ("folder,display_name,imagenet_1k\n", "expected lines below the header"),
        (CATEGORIES + "mug,a mug,504\n", "expected each folder in .* once, got 'mug'"),
        (CATEGORIES + "cup,Coffee mug,504\n", "expected each display_name in .* once, got 'coffee mug'"),
        (CATEGORIES + "cup,cup,n00000001\n", "or a WordNet id of ImageNet-1k in line 5 of .*, got 'n00000001'"),
        (CATEGORIES + "cup,cup,1000\n", "expected an index below 1000 .* got '1000'"),
        (CATEGORIES + "cup,cup,\n", "expected ImageNet-1k classes, each once, in line 5"),
        (CATEGORIES + "cup,cup,504 504\n", "each once, in line 5 of .*, got '504 504'"),
        (CATEGORIES + "../cup,cup,504\n", "expected the name of one folder in line 5 of .*, got '../cup'"),
        (CATEGORIES + "cup,,504\n", "expected a display_name in line 5"),
        (CATEGORIES + "cup,cup\n", "expected 3 fields in line 5"),
    ],
)
def test_a_wrong_line_of_categories_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "categories.csv", text)
    with pytest.raises(StageError, match=message):
        read_subjects(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n# nothing\n", "expected names of kind 'background', one a line, in .*, got none"),
        ("dining_room-s\nDining room\n", "expected each background in .* once, got 'dining room'"),
    ],
)
def test_a_list_of_nuisances_without_names_or_with_a_name_twice_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    path = _file(tmp_path, "backgrounds.txt", text)
    with pytest.raises(StageError, match=message):
        read_nuisances("background", path)


@pytest.mark.parametrize(
    "template", ["a photo of a {c}", "{c} in {n} and {x}", "{c!r} {n}", "{c.folder} {n}", "{c} {n", "{c} {n:9}", ""]
)
def test_a_template_needs_the_category_and_the_nuisance_and_nothing_else(template: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "words.csv", f"kind,template\ntexture,{template}\n")
    with pytest.raises(StageError, match=r"expected a template with \{c\} and \{n\}"):
        read_templates(path)


def test_a_kind_without_a_template_is_refused(own: dict[str, str], tmp_path: Path) -> None:
    words = _file(tmp_path, "words.csv", "kind,template\ntexture,{n} {c}\n")
    with pytest.raises(StageError, match=r"expected a template of kind 'background' in .*, got none: add a line"):
        grid(PromptSettings(**own, templates=words))
