"""How sound a set is: faults, duplicates, leaks, balance, what predictions say, the page and the command."""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_runs
from PIL import Image, ImageOps
from run_folder import A, Source, peaked, write_run

from hf_robust import labels
from hf_robust.benchmarks import benchmarks
from hf_robust.cli.health import add_health
from hf_robust.data import Rows, open_folder, open_rows
from hf_robust.health import (
    Answers,
    Looks,
    answers_of,
    balance,
    health_of,
    leaks,
    look_at,
    near,
    read_years,
    record,
    same_bytes,
    summary,
    write_page,
)  # fmt: skip
from hf_robust.health.lookalikes import check_radius, within
from hf_robust.predictions.parts import RowTable

Draw = Callable[..., Image.Image]


def as_bytes(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def rows_of(contents: Sequence[bytes], *, labelled: Sequence[tuple[int, ...]] | None = None) -> Rows:
    """A set of these pictures under the ids that run_folder gives to its predictions of imagenet-a."""
    ids = tuple(f"imagenet-a/{i}.png" for i in range(len(contents)))
    table = RowTable(ids, tuple(str(len(c)) for c in contents), tuple(labelled or [(A[0],)] * len(contents)))
    return Rows("imagenet-a", table, lambda i: contents[i])


def look(*contents: bytes) -> Looks:
    return look_at(rows_of(contents), lambda done, total: None)


@pytest.fixture(scope="module")
def photo(picture: Draw) -> Callable[[int], Image.Image]:
    return lambda seed: picture(seed, width=200, height=160)


def cropped(image: Image.Image, share: float) -> Image.Image:
    width, height = image.size
    return image.crop((round(share * width), round(share * height), width - round(share * width), height))


def test_copies_are_found_and_other_pictures_are_not(photo: Callable[[int], Image.Image]) -> None:
    contents = [as_bytes(photo(k)) for k in range(30)]
    contents += [
        as_bytes(photo(0), "JPEG", quality=50),
        as_bytes(photo(1).resize((100, 80))),
        as_bytes(cropped(photo(2), 0.02)),
        as_bytes(ImageOps.mirror(photo(3)), "JPEG", quality=80),
    ]
    found = near(look(*contents))
    assert sorted(group.members for group in found) == [(0, 30), (1, 31), (2, 32), (3, 33)]
    assert [group.mirrored for group in sorted(found, key=lambda g: g.members)] == [False, False, False, True]


def test_equal_bytes_are_one_group_and_no_near_duplicates(photo: Callable[[int], Image.Image]) -> None:
    one, other = as_bytes(photo(0)), as_bytes(photo(1))
    looks = look(one, other, one, one)
    assert [group.members for group in same_bytes(looks)] == [(0, 2, 3)]
    assert near(looks) == ()


def test_a_chain_of_likes_is_one_group(photo: Callable[[int], Image.Image]) -> None:
    versions = [as_bytes(photo(0), "JPEG", quality=quality) for quality in (95, 70, 40)]
    (group,) = near(look(as_bytes(photo(9)), *versions))
    assert group.members == (1, 2, 3)


def test_files_of_one_colour_are_blank_and_one_group() -> None:
    looks = look(*(as_bytes(Image.new("RGB", (20 + k, 20), (200, 10, 10))) for k in range(5)))
    assert looks.faults == tuple((i, "blank: one even colour") for i in range(5))
    assert [(group.members, group.distance) for group in near(looks)] == [((0, 1, 2, 3, 4), 0)]


@pytest.mark.parametrize("radius", [0, 3, 90])
def test_pairs_within_a_radius_are_those_of_a_plain_count(radius: int) -> None:
    random = np.random.default_rng(0)
    one = random.integers(0, 256, (40, 32), dtype=np.uint8)
    other = np.concatenate([one[:7] ^ np.eye(7, 32, dtype=np.uint8), random.integers(0, 256, (20, 32), dtype=np.uint8)])
    counts = np.unpackbits(one[:, None] ^ other[None], axis=2).sum(axis=2)
    expected = {(i, j, int(counts[i, j])) for i in range(40) for j in range(27) if counts[i, j] <= radius}
    assert set(within(one, other, radius)) == expected
    assert len(expected) >= (7 if radius else 0)


def test_a_leak_is_the_nearest_in_the_reference(photo: Callable[[int], Image.Image]) -> None:
    here = look(*(as_bytes(photo(k)) for k in range(4)))
    there = look(
        as_bytes(photo(7)),
        as_bytes(ImageOps.mirror(photo(2))),
        as_bytes(photo(1), "JPEG", quality=30),
        as_bytes(photo(3)),
        as_bytes(photo(3), "JPEG"),
    )
    found = {leak.position: (leak.reference_position, leak.same_bytes, leak.mirrored) for leak in leaks(here, there)}
    assert found == {1: (2, False, False), 2: (1, False, True), 3: (3, True, False)}


def test_a_set_without_hashes_has_no_likes() -> None:
    looks = look(b"no picture", b"none either")
    assert (near(looks), leaks(looks, looks)[0].same_bytes, len(looks.bits)) == ((), True, 0)


def test_an_empty_set_has_no_findings() -> None:
    looks = look()
    assert (looks.sha256, looks.faults, same_bytes(looks), near(looks), leaks(looks, looks)) == ((), (), (), (), ())


@pytest.mark.parametrize("radius", [-1, 128])
def test_a_radius_that_says_nothing_is_refused(radius: int) -> None:
    with pytest.raises(ValueError, match=rf"expected a radius from 0 to 127 bits, got {radius}"):
        check_radius(radius)


def test_faulty_files_are_named_with_what_is_wrong(photo: Callable[[int], Image.Image]) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    upright = Image.Exif()
    upright[0x0112] = 1
    contents = [
        as_bytes(photo(0), "JPEG", exif=turned),
        as_bytes(photo(1), "JPEG", exif=upright),
        as_bytes(photo(2))[:500],
        as_bytes(photo(3), "GIF", save_all=True, append_images=[photo(4)]),
    ]
    faults = look(*contents).faults
    assert [i for i, _ in faults] == [0, 2, 3]
    assert faults[0][1].startswith("EXIF orientation 6: ")
    assert faults[1][1].startswith("unreadable: ")
    assert faults[2][1].startswith("animated: 2 frames")


def test_balance_counts_classes_and_names_those_without_pictures() -> None:
    wnids, names = labels.imagenet_a_wnids(), labels.imagenet_1k().wnids
    found = balance(rows_of([b""] * 6, labelled=[(A[0],), (A[1],), (A[0],), (), (A[0],), (A[2],)]))
    assert found.counts == ((names[A[0]], 3), (names[A[1]], 1), (names[A[2]], 1))
    assert (found.ratio, found.unlabelled, len(found.missing)) == (3.0, 1, len(wnids) - 3)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tiny_runs.Sets:
    return tiny_runs.make_sets(tmp_path_factory.mktemp("sets"), a=9, o=7)


@pytest.mark.parametrize(
    ("name", "by", "first"),
    [
        ("imagenet-a", "label", (sorted(tiny_runs.A_AND_O)[0], 3)),
        ("imagenet-o", "confused_with", (tiny_runs.A_AND_O[0], 3)),
        ("spurious-imagenet", "spurious_class", (min(tiny_runs.SPURIOUS), 2)),
        ("imagenet-d", "category", None),
    ],
)
def test_balance_uses_the_class_column_of_each_benchmark(
    sets: tiny_runs.Sets, name: str, by: str, first: tuple[str, int] | None
) -> None:
    found = balance(open_rows(name, built=sets.data))
    assert found.by == by
    assert first is None or found.counts[0] == first
    assert not {key for key, _ in found.counts} & set(found.missing)
    assert len(found.missing) + len(found.counts) == {"imagenet-d": 113, "spurious-imagenet": 100}.get(name, 200)


def test_a_folder_without_classes_has_no_balance(tmp_path: Path) -> None:
    tiny_runs.write(tmp_path / "pictures" / "a.png", tiny_runs.picture(0))
    found = balance(open_folder(tmp_path / "pictures"))
    assert (found.counts, found.ratio, found.missing, found.unlabelled) == ((), None, (), 1)


def runs_of(tmp_path: Path, **chosen: Sequence[int]) -> Path:
    """A folder of runs: for each model the class that it chooses for each of five pictures of class A[0]."""
    for name, classes in chosen.items():
        source = Source("imagenet-a", [[A[0]]] * len(classes), peaked(classes))
        write_run(tmp_path, ["imagenet-a"], [source], model=name, weights=(name.encode().hex() * 64)[:64])
    return tmp_path


def asked(runs: Path, n: int = 5, **options: Any) -> Answers:
    return answers_of(rows_of([b""] * n), runs, benchmarks(), **{"years": {}, **options})


RIGHT, WRONG, OTHER = A[0], A[1], A[2]


def test_solved_pictures_are_those_that_every_model_gets_right(tmp_path: Path) -> None:
    runs = runs_of(
        tmp_path,
        one=[RIGHT, RIGHT, WRONG, WRONG, RIGHT],
        two=[RIGHT, WRONG, WRONG, OTHER, RIGHT],
    )
    found = asked(runs)
    assert (found.solved, found.never) == ((0, 4), (2, 3))
    assert {m.name: m.accuracy for m in found.models} == {"one": 3 / 5, "two": 2 / 5}


def test_doubtful_labels_are_what_strong_models_agree_against(tmp_path: Path) -> None:
    runs = runs_of(
        tmp_path,
        strong_1=[WRONG, WRONG, RIGHT, RIGHT, RIGHT],
        strong_2=[WRONG, OTHER, RIGHT, RIGHT, RIGHT],
        strong_3=[WRONG, RIGHT, OTHER, RIGHT, RIGHT],
        weak=[RIGHT, WRONG, WRONG, WRONG, WRONG],
        weaker=[OTHER, WRONG, WRONG, WRONG, WRONG],
    )
    found = asked(runs)
    assert sorted(found.strong) == ["strong_1", "strong_2", "strong_3"]  # the median accuracy is 3 / 5
    (suspect,) = found.suspects
    names = labels.imagenet_1k_names()
    assert (suspect.position, suspect.label, suspect.said) == (0, names[RIGHT], names[WRONG])
    assert suspect.share == 1.0
    # logits of 8 for the chosen class and 0 for the other 199
    assert suspect.probability == pytest.approx(np.exp(8) / (np.exp(8) + 199), rel=1e-6)


def test_a_check_that_was_not_made_has_a_dash_in_the_table(tmp_path: Path) -> None:
    rows = rows_of([as_bytes(Image.new("RGB", (8, 8)))] * 5)
    found = health_of(rows, look(), [], asked(runs_of(tmp_path, one=[WRONG] * 5)))
    assert [line["found"] for line in summary(found) if line["check"] == "doubtful labels"] == ["—"]


def test_a_lower_agreement_finds_more(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, one=[WRONG, RIGHT], two=[WRONG, RIGHT], three=[OTHER, RIGHT])
    assert asked(runs, 2, agreement=0.8).suspects == ()
    assert [s.share for s in asked(runs, 2, agreement=0.6).suspects] == [2 / 3]


def test_one_model_alone_doubts_no_label(tmp_path: Path) -> None:
    found = asked(runs_of(tmp_path, one=[WRONG] * 5))
    assert found.suspects == ()
    assert found.notes == ("doubtful labels need at least 2 strong models, got 1",)


def test_years_group_the_models_that_have_one(tmp_path: Path) -> None:
    runs = runs_of(
        tmp_path, old=[WRONG] * 5, older=[RIGHT, WRONG, WRONG, WRONG, WRONG], new=[RIGHT] * 5, unknown=[RIGHT] * 5
    )
    found = asked(runs, years={"old": 2015, "older": 2015, "new": 2022})
    assert [(y.year, y.models, y.mean, y.best) for y in found.years] == [(2015, 2, 0.1, 0.2), (2022, 1, 1.0, 1.0)]


def test_a_picture_that_a_model_could_not_read_is_neither_solved_nor_never_right(tmp_path: Path) -> None:
    source = Source("imagenet-a", [[RIGHT]] * 3, peaked([RIGHT, RIGHT, WRONG]), errors={0: "broken"})
    write_run(tmp_path, ["imagenet-a"], [source])
    found = asked(tmp_path, 3)
    assert (found.solved, found.never, found.models[0].pictures) == ((1,), (2,), 2)


def test_predictions_of_other_pictures_do_not_count(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, one=[RIGHT] * 5)
    rows = rows_of([b""] * 5)
    keys = ("f" * 64, *rows.table.keys[1:])  # the first is known by its hash, which the run did not see
    table = RowTable(rows.table.ids, keys, rows.table.labels)
    found = answers_of(Rows("imagenet-a", table, rows.read), runs, benchmarks(), years={})
    assert found.solved == (1, 2, 3, 4)
    assert "saw 1 other pictures than are here now" in found.notes[0]


def test_runs_of_other_sets_are_no_answer(tmp_path: Path) -> None:
    write_run(tmp_path, [], [Source("imagenet-o", [[]] * 3, np.zeros((3, 1000)))])
    with pytest.raises(LookupError, match=r"expected predictions of imagenet-a in .*, got none \(no benchmark with"):
        asked(tmp_path)


def test_a_folder_of_runs_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a folder that `evaluate --out` wrote, got .*nothing"):
        asked(tmp_path / "nothing")


@pytest.mark.parametrize("agreement", [0.0, 1.5])
def test_an_agreement_that_is_no_share_is_refused(tmp_path: Path, agreement: float) -> None:
    with pytest.raises(ValueError, match=r"expected an agreement above 0 and at most 1"):
        asked(runs_of(tmp_path, one=[RIGHT] * 5), agreement=agreement)


def test_years_are_read_from_lines_of_model_and_year(tmp_path: Path) -> None:
    file = tmp_path / "years.csv"
    file.write_text("model,year\ntimm/resnet50,2015\n# a remark\n\nhf/x,y,2020\n")
    with pytest.raises(ValueError, match=r"expected model,year in line 5 of .*, got 'hf/x,y,2020'"):
        read_years(file)
    file.write_text('model,year\ntimm/resnet50,2015\n"hf/x,y", 2020\n')
    assert read_years(file) == {"timm/resnet50": 2015, "hf/x,y": 2020}


def page_of(tmp_path: Path, rows: Rows, answers: Answers | None = None, *, images: bool = True) -> str:
    looks = look_at(rows, lambda done, total: None)
    found = health_of(rows, looks, [(rows, looks)], answers)
    page = write_page(found, rows, [rows], record(found, rows, [rows]), tmp_path, images=images)
    return page.read_text(encoding="utf-8")


HOSTILE = '"><script>alert(1)</script>{{ 7 * 7 }}.png'


@pytest.fixture
def hostile(photo: Callable[[int], Image.Image]) -> Rows:
    rows = rows_of([as_bytes(photo(0)), as_bytes(photo(0), "JPEG"), b"broken"])
    table = RowTable((HOSTILE, f"x{HOSTILE}", "é/broken.png"), rows.table.keys, rows.table.labels)
    return Rows(HOSTILE, table, rows.read)


def test_the_page_escapes_every_name_and_loads_nothing(tmp_path: Path, hostile: Rows) -> None:
    page = page_of(tmp_path, hostile)
    assert "<script" not in page
    assert "{{ 7 * 7 }}" in page
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []


def test_the_page_shows_the_flagged_pictures_and_json_names_all(tmp_path: Path, hostile: Rows) -> None:
    page = page_of(tmp_path, hostile)
    assert page.count("data:image/jpeg;base64,") == 2 + 2 * 2  # a near pair, two leaks of two; the broken one has none
    values = json.loads((tmp_path / "health.json").read_text())
    assert values["near"][0]["members"] == [HOSTILE, f"x{HOSTILE}"]
    assert [leak["same_bytes"] for leak in values["leaks"]] == [True] * 3
    assert values["faults"][0]["id"] == "é/broken.png"


def test_the_page_without_images_holds_none(tmp_path: Path, hostile: Rows) -> None:
    page = page_of(tmp_path, hostile, images=False)
    assert "data:image" not in page
    assert "licences differ" not in page
    assert "broken.png" in page.replace("<wbr>", "")


def test_the_page_is_the_same_bytes_again(tmp_path: Path, hostile: Rows) -> None:
    assert page_of(tmp_path / "one", hostile) == page_of(tmp_path / "two", hostile)


def test_the_page_shows_what_models_say(tmp_path: Path, photo: Callable[[int], Image.Image]) -> None:
    runs = runs_of(tmp_path / "runs", one=[WRONG, RIGHT], two=[WRONG, RIGHT])
    rows = rows_of([as_bytes(photo(0)), as_bytes(photo(1))])
    answers = answers_of(rows, runs, benchmarks(), years={"one": 2020})
    page = page_of(tmp_path, rows, answers)
    assert "Doubtful labels: 1" in page
    assert labels.imagenet_1k_names()[WRONG] in page
    assert '<th scope="row">2020</th><td>1</td><td>50.0</td>' in page


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_health(parser.add_subparsers())
    options = parser.parse_args(["health", *words])
    return int(options.command(options))


def test_a_built_set_and_its_predictions_are_examined(
    sets: tiny_runs.Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("plain", "of_21k"):
        tiny_runs.run(sets, tmp_path / "runs", model, "imagenet-a")
    words = ["imagenet-a", "--data", str(sets.data), "--runs", str(tmp_path / "runs")]
    assert command(*words, "--reference", "imagenet-o", "--out", str(tmp_path / "page")) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^pictures +9 +not the official set", printed, re.MULTILINE)
    assert re.search(r"^models +2 ", printed, re.MULTILINE)
    assert (tmp_path / "page" / "health.html").is_file()
    assert command(*words, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["answers"]["models"]) == 2


def test_two_folders_that_share_pictures_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(4):
        tiny_runs.write(tmp_path / "mine" / f"{i}.png", tiny_runs.picture(i, size=(64, 64)))
    (tmp_path / "theirs").mkdir()
    shutil.copy(tmp_path / "mine" / "2.png", tmp_path / "theirs" / "other name.png")
    assert command(str(tmp_path / "mine"), "--reference", str(tmp_path / "theirs"), "--json") == 0
    (leak,) = json.loads(capsys.readouterr().out)["leaks"]
    assert (leak["id"], leak["reference_id"], leak["same_bytes"]) == ("2.png", "other name.png", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--years", "years.csv"], r"expected --runs RUNS with --years, got none"),
        (["--agreement", "0.5"], r"expected --runs RUNS with --agreement, got none"),
        (["--radius", "200"], r"expected a radius from 0 to 127 bits, got 200"),
    ],
)
def test_options_that_would_change_nothing_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    tiny_runs.write(tmp_path / "a.png", tiny_runs.picture(0))
    with pytest.raises(ValueError, match=message):
        command(str(tmp_path), *words)


def test_a_name_that_is_neither_a_set_nor_a_folder_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"expected a built 'imagnet-a', got none"):
        command("imagnet-a", "--data", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "expected a data set or a folder of pictures, got an empty name"),
        ("{0}/nope", "expected a data set or a folder of pictures, got no such folder at .*/nope: check the path"),
        ("{0}/a.txt", "got a file at .*/a.txt: check the path"),
    ],
)
def test_a_name_that_can_be_no_data_set_is_no_suggestion_to_build_one(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("text")
    tiny_runs.write(tmp_path / "good" / "a.png", tiny_runs.picture(0))
    for words in ([name.format(tmp_path)], [str(tmp_path / "good"), "--reference", name.format(tmp_path)]):
        with pytest.raises((ValueError, LookupError), match=message):
            command(*words)


def test_real_photos_have_no_likes_among_them_and_their_copies_are_found(shared: Path) -> None:
    files = sorted((shared / "data" / "nips2017" / "images").glob("*.png"))[:60]
    photos = [Image.open(file).convert("RGB") for file in files]
    copies = [as_bytes(cropped(ImageOps.mirror(p), 0.01), "JPEG", quality=70) for p in photos[:20]]
    found = near(look(*(file.read_bytes() for file in files), *copies))
    assert sorted(group.members for group in found) == [(i, 60 + i) for i in range(20)]
