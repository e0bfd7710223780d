"""The demo's miniatures: layouts of the official archives, names that follow the grammars, the same bytes each time."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hf_robust import labels
from hf_robust.cli.demo import drawing, photos
from hf_robust.cli.demo.pictures import draw

NAMES = ("imagenet-val", "imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d")
A_NAME = re.compile(r"(\d(?:\.\d+)?)_(.+?) _ (.+)_(\d(?:\.\d+)?)\.(jpg|jpeg|JPEG)")
O_NAME = re.compile(r"(.+)_(\d(?:\.\d+)?)\.JPEG")

pytestmark = pytest.mark.skipif(
    find_spec("foolbox") is None or find_spec("skimage") is None, reason="the demo extra is not installed"
)


@pytest.fixture(scope="module")
def minis(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return draw(tmp_path_factory.mktemp("minis"))


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "README.txt")


def test_there_is_a_folder_for_each_data_set(minis: dict[str, Path]) -> None:
    assert tuple(minis) == NAMES
    assert all(folder.name == name and folder.is_dir() for name, folder in minis.items())


def test_the_miniatures_hold_as_many_pictures_as_their_parts_say(minis: dict[str, Path]) -> None:
    counts = {name: len(_pictures(folder)) for name, folder in minis.items()}
    expected = {
        "imagenet-val": 21 * 2,  # 20 + 1 photos, each also mirrored
        "imagenet-a": 6 * 4,  # photos of A's classes × ways of making them hard
        "imagenet-o": 11 + 5,  # from packages + drawn
        "spurious-imagenet": 9 * 2,  # classes × parts of the photo
        "imagenet-d": 3 * 3 * 2,  # categories × kinds × variants
    }
    assert counts == expected


def test_every_picture_opens_and_every_drawn_one_is_at_most_320_pixels_wide(minis: dict[str, Path]) -> None:
    for folder in minis.values():
        for path in _pictures(folder):
            with Image.open(path) as image:
                image.load()
                copied = folder.name == "imagenet-val" and "mirrored" not in path.name
                assert copied or max(image.size) <= 320, path


def test_photos_are_copied_byte_for_byte(minis: dict[str, Path]) -> None:
    for number, photo in enumerate(photos.PHOTOS):
        wnid = labels.imagenet_1k().wnids[photo.index]
        copy = minis["imagenet-val"] / wnid / f"photo_{number:02d}{photo.path.suffix}"
        assert copy.read_bytes() == photo.path.read_bytes()


def test_names_in_the_wheels_carry_the_index_that_the_table_says() -> None:
    for photo in photos.PHOTOS[:20]:
        assert int(photo.path.stem.rsplit("_", 1)[1]) == photo.index


def test_names_of_the_a_miniature_follow_the_archives_grammar_with_all_three_extensions(minis: dict[str, Path]) -> None:
    matches = [A_NAME.fullmatch(p.name) for p in _pictures(minis["imagenet-a"])]
    assert None not in matches
    assert {m[5] for m in matches if m} == {"jpg", "jpeg", "JPEG"}


def test_folders_of_the_a_and_o_miniatures_are_classes_of_a_and_o(minis: dict[str, Path]) -> None:
    assert {p.parent.name for p in _pictures(minis["imagenet-a"])} <= set(labels.imagenet_a_wnids())
    assert {p.parent.name for p in _pictures(minis["imagenet-o"])} <= set(labels.imagenet_o_wnids())


def test_the_validation_miniature_covers_the_classes_of_a_and_some_of_o(minis: dict[str, Path]) -> None:
    validation = {p.parent.name for p in _pictures(minis["imagenet-val"])}
    assert {p.parent.name for p in _pictures(minis["imagenet-a"])} <= validation
    assert len(validation & set(labels.imagenet_o_wnids())) == 5  # chair, strawberry, thatch, bottlecap, prayer rug


def test_names_of_the_o_miniature_are_lemma_and_confidence(minis: dict[str, Path]) -> None:
    matches = [O_NAME.fullmatch(p.name) for p in _pictures(minis["imagenet-o"])]
    assert None not in matches
    assert all(0 <= float(m[2]) <= 1 for m in matches if m)


def test_folders_of_the_spurious_miniature_carry_index_and_component(minis: dict[str, Path]) -> None:
    validation = {p.parent.name for p in _pictures(minis["imagenet-val"])}
    for folder in sorted((minis["spurious-imagenet"] / "images").iterdir()):
        fields = folder.name.split("_")
        assert labels.imagenet_1k().wnids[int(fields[2])] in validation
        assert fields[-1] == "0"


def test_spurious_pictures_are_square(minis: dict[str, Path]) -> None:
    for path in _pictures(minis["spurious-imagenet"]):
        with Image.open(path) as image:
            assert image.size == (320, 320)


def test_the_d_miniature_has_three_kinds_of_known_categories_and_names_of_22_characters(minis: dict[str, Path]) -> None:
    parts = [p.relative_to(minis["imagenet-d"]).parts for p in _pictures(minis["imagenet-d"])]
    assert {kind for kind, _, _ in parts} == {"background", "texture", "material"}
    assert {c for _, c, _ in parts} == {"chair", "bottle_cap", "dress_shoe_men"}
    assert {c for _, c, _ in parts} <= {c.folder for c in labels.imagenet_d_categories()}
    assert all(re.fullmatch(r".{22}\.png", name) for _, _, name in parts)


def test_no_two_pictures_are_equal(minis: dict[str, Path]) -> None:
    digests = [hashlib.sha256(p.read_bytes()).digest() for folder in minis.values() for p in _pictures(folder)]
    assert len(digests) == len(set(digests))


def test_drawing_again_gives_the_same_bytes_and_replaces_the_old_files(tmp_path: Path, minis: dict[str, Path]) -> None:
    draw(tmp_path)
    (tmp_path / "imagenet-a" / "n01614925" / "stray.jpg").write_bytes(b"")
    again = draw(tmp_path)
    for name, folder in minis.items():
        assert [p.relative_to(folder) for p in _pictures(folder)] == [
            p.relative_to(again[name]) for p in _pictures(again[name])
        ]
        assert [p.read_bytes() for p in _pictures(folder)] == [p.read_bytes() for p in _pictures(again[name])]


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "imagenet-o" / "mine.jpg"
    kept.parent.mkdir()
    kept.write_bytes(b"mine")
    with pytest.raises(
        FileExistsError, match=r"expected no folder or an earlier miniature at .*imagenet-o, got other files"
    ):
        draw(tmp_path)
    assert kept.read_bytes() == b"mine"


def test_drawing_imports_none_of_the_packages_it_takes_photos_from(tmp_path: Path) -> None:
    code = "import sys, pathlib; from hf_robust.cli.demo.pictures import draw; draw(pathlib.Path(sys.argv[1]))\n"
    code += "print(sorted({'foolbox', 'skimage', 'sklearn', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_is_named_with_the_line_that_installs_it() -> None:
    with pytest.raises(ImportError, match=r'photos from the package no_such_photos: pip install "hf-robust\[demo\]"'):
        photos.package_file("no_such_photos", "a.jpg")


def test_a_missing_photo_is_named_with_the_line_that_reinstalls_it() -> None:
    with pytest.raises(ImportError, match=r"expected the photo data/none.jpg in the installed package foolbox"):
        photos.package_file("foolbox", "data/none.jpg")


def test_a_square_is_cut_from_the_centre_of_the_part() -> None:
    wide = Image.fromarray(np.repeat(np.array([[0, 0, 9, 9, 9, 9, 0, 0]], dtype=np.uint8), 4, axis=0)).convert("RGB")
    assert photos.square(wide, 4).getextrema() == ((9, 9),) * 3  # 8 × 4: columns 2 to 5
    assert photos.square(wide, 2, box=(0, 0, 0.25, 0.5)).getextrema() == ((0, 0),) * 3  # columns 0 to 1, rows 0 to 1


def test_a_ramp_meets_both_colours_and_the_middle() -> None:
    image = drawing.ramp(np.array([[0.0, 0.5, 1.0]]), (0, 10, 20), (100, 30, 20))
    assert np.asarray(image).tolist() == [[[0, 10, 20], [50, 20, 20], [100, 30, 20]]]


@pytest.mark.parametrize(
    "field",
    [
        drawing.clouds(64, seed=1, cells=3),
        drawing.stripes(64, count=5, angle=30),
        drawing.dots(64, count=4),
        drawing.rings(64, count=4),
        drawing.marble(64, seed=1),
    ],
    ids=["clouds", "stripes", "dots", "rings", "marble"],
)
def test_a_field_fills_the_range_from_0_to_1(field: drawing.Field) -> None:
    assert field.shape == (64, 64)
    assert field.min() == pytest.approx(0, abs=0.02)
    assert field.max() == pytest.approx(1, abs=0.02)
