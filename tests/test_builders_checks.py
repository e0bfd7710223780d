"""What builders refuse, what they list, and what they read in place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from PIL import Image

from hf_robust import labels
from hf_robust.builders import NAMES, BuildError, build, image_folder, imagenet_a, imagenet_o, open_archive

# Names as in the official archive, one for each trait: blanks, apostrophes, dashes, doubled blanks, short numbers.
A_NAMES = (
    "0.000116_digital clock _ digital clock_0.865662.jpg",
    "0.000348_chameleon _ box turtle_0.55540705.jpg",
    "0_jack-o'-lantern _ carpenter's kit_1.JPEG",
    "0.0_bow tie _ Windsor tie_0.99.jpeg",
    "1_a _ b_0.jpg",
    "0.0001_T-shirt _ jersey_0.1.JPEG",
    "0.1_pill bottle _ sunscreen_0.25.jpg",
    "0.123_St. Bernard _ Great Pyrenees_0.5.jpg",
)
OUTSIDE = Path(__file__).resolve().parents[2] / "shared" / "reference" / "label_spaces"


def picture(seed: int = 0) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (seed % 256, seed // 256, 5)).save(stream, "PNG")
    return stream.getvalue()


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zip_of(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def a_set(tmp_path: Path, files: dict[str, bytes]) -> Path:
    return zip_of(tmp_path / "a.zip", files)


GOOD = "n01498041/0.1_x _ y_0.5.jpg"


def differences(tmp_path: Path, files: dict[str, bytes], name: str = "imagenet-a") -> tuple[str, ...]:
    return build(name, a_set(tmp_path, files), allow_incomplete=True, out=tmp_path / "out").differences


# Names


@pytest.mark.parametrize("name", A_NAMES)
def test_official_names_of_imagenet_a_are_read(name: str) -> None:
    row = imagenet_a.describe(f"n01498041/{name}")
    assert not isinstance(row, str)
    assert row.problem is None
    true, rest = name.split("_", 1)
    first, rest = rest.split(" _ ", 1)
    second, wrong = rest.rpartition(".")[0].rsplit("_", 1)
    assert [row.columns[c] for c in ("true_class_probability", "wrong_label_1", "wrong_label_2")] == [
        float(true), first, second
    ]  # fmt: skip
    assert row.columns["wrong_label_confidence"] == float(wrong)


@pytest.mark.skipif(not OUTSIDE.is_dir(), reason="needs ../shared")
def test_all_published_names_of_imagenet_a_and_the_sample_of_o_are_read() -> None:
    with (OUTSIDE / "imagenet_a_file_names.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 7500
    for row in rows:
        found = imagenet_a.describe(f"{row['wnid']}/{row['file_name']}")
        assert not isinstance(found, str)
        assert found.columns["wrong_label_1"] == row["name_field_2_pred"]
        assert found.columns["wrong_label_2"] == row["name_field_3_pred"]
        assert found.columns["wrong_label_confidence"] == float(row["name_field_4_conf"])
    with (OUTSIDE / "imagenet_o_file_names_sample.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            picture_o = imagenet_o.describe(f"{row['folder_wnid']}/{row['file_name']}")
            assert not isinstance(picture_o, str)
            assert picture_o.problem is None


def test_a_name_outside_the_grammar_keeps_its_picture_with_nulls(tmp_path: Path) -> None:
    built = build(
        "imagenet-a", a_set(tmp_path, {"n01498041/photo.jpg": picture()}), allow_incomplete=True, out=tmp_path / "out"
    )
    row = built.load()["test"][0]
    assert [row[c] for c in ("true_class_probability", "wrong_label_1", "wrong_label_confidence")] == [None] * 3
    assert "name outside the grammar: 'n01498041/photo.jpg'" in built.differences


# Differences


def test_the_error_lists_ten_differences_and_counts_the_rest(tmp_path: Path) -> None:
    # checksum, total, classes, three endings, twenty names: 1 + 1 + 1 + 3 + 20 = 26 = 10 + 16
    files = {f"n01498041/{i}.jpg": picture(i) for i in range(20)}
    with pytest.raises(BuildError, match=r"got 26 differences: the archive's sha256 is .*… and 16 more\. Take the"):
        build("imagenet-a", a_set(tmp_path, files), out=tmp_path / "out")


def test_counts_classes_and_endings_are_compared(tmp_path: Path) -> None:
    found = differences(tmp_path, {GOOD: picture(), "n01498041/0.1_x _ z_0.5.PNG": picture(1)})
    assert "2 pictures, official 7,500" in found
    assert any(d.startswith("199 of 200 classes are missing: n01531178, ") for d in found)
    assert "1 files end in .jpg, official 7,450" in found
    assert "1 files end in .PNG, official 0" in found
    assert "0 files end in .jpeg, official 25" in found


def test_an_archive_with_another_checksum_is_a_difference_and_a_folder_has_none(tmp_path: Path) -> None:
    assert any(d.startswith("the archive's sha256 is") for d in differences(tmp_path, {GOOD: picture()}))
    (tmp_path / "folder" / GOOD).parent.mkdir(parents=True)
    (tmp_path / "folder" / GOOD).write_bytes(picture())
    built = build("imagenet-a", tmp_path / "folder", allow_incomplete=True, out=tmp_path / "out")
    assert not any("sha256" in d for d in built.differences)


def test_pictures_of_unknown_classes_are_left_out_and_listed(tmp_path: Path) -> None:
    found = differences(tmp_path, {GOOD: picture(), "n99999999/0.1_x _ y_0.5.jpg": picture(1)})
    assert "left out 'n99999999/0.1_x _ y_0.5.jpg': 'n99999999' is not one of the 200 classes of ImageNet-A" in found
    assert "1 pictures, official 7,500" in found


def test_unreadable_pictures_are_left_out_and_listed(tmp_path: Path) -> None:
    bad = "n01498041/0.1_bad _ y_0.5.jpg"
    built = build(
        "imagenet-a", a_set(tmp_path, {GOOD: picture(), bad: b"no picture"}), allow_incomplete=True, out=tmp_path / "o"
    )
    assert f"left out {bad!r}: unreadable (UnidentifiedImageError)" in built.differences
    assert built.rows == 1


def test_the_same_bytes_twice_are_noted_and_no_difference(tmp_path: Path) -> None:
    twin = "n01531178/0.1_x _ y_0.5.jpg"
    files = a_set(tmp_path, {GOOD: picture(), twin: picture()})
    built = build("imagenet-a", files, allow_incomplete=True, out=tmp_path / "o")
    record = json.loads((built.path / "hf-robust.json").read_text())
    assert record["notes"] == [f"the same bytes twice: {GOOD!r} and {twin!r}"]
    assert not any("same bytes" in d for d in built.differences)


def test_other_members_are_listed_except_what_file_managers_and_the_release_leave(tmp_path: Path) -> None:
    extra = ("README.md", "__MACOSX/a/._x.jpg", "n01498041/._0.1_x _ y_0.5.jpg", ".DS_Store", "timestamp.txt")
    found = differences(tmp_path, {GOOD: picture(), "evil.exe": b"x", **dict.fromkeys(extra, b"x")})
    assert [d for d in found if "no picture" in d] == ["a member that is no picture: 'evil.exe'"]


def test_a_picture_outside_any_class_folder_is_left_out_and_listed(tmp_path: Path) -> None:
    assert "left out 'x.jpg': it does not lie in a class folder" in differences(
        tmp_path, {GOOD: picture(), "x.jpg": picture(1)}
    )


def test_two_trees_in_one_source_are_refused_unless_one_has_the_official_name(tmp_path: Path) -> None:
    files = {f"one/{GOOD}": picture(), f"two/{GOOD}": picture()}
    with pytest.raises(BuildError, match=r"expected imagenet-a in one folder .* got pictures below 'one', 'two'"):
        build("imagenet-a", a_set(tmp_path, files), allow_incomplete=True, out=tmp_path / "out")
    files = {f"imagenet-a/{GOOD}": picture(), f"two/{GOOD}": picture()}
    assert build("imagenet-a", a_set(tmp_path, files), allow_incomplete=True, out=tmp_path / "out").rows == 1


def test_validation_classes_need_fifty_pictures_each(tmp_path: Path) -> None:
    found = differences(tmp_path, {"n01440764/ILSVRC2012_val_00000001.JPEG": picture()}, "imagenet-val")
    assert "class 'n01440764' has 1 pictures, official 50" in found


def test_ten_photos_of_two_classes_can_be_built(tmp_path: Path) -> None:
    files = {f"{w}/0.{i}_x _ y_0.5.jpg": picture(i) for i, w in enumerate(["n01498041", "n01531178"] * 5)}
    built = build("imagenet-a", a_set(tmp_path, files), allow_incomplete=True, out=tmp_path / "out")
    assert (built.rows, built.complete) == (10, False)


# Sources


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="unknown data set 'imagnet-a'; known: imagenet-a, imagenet-o"):
        build("imagnet-a", tmp_path)


def test_a_missing_source_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"got nothing at .*missing\.tar; check the path"):
        build("imagenet-a", tmp_path / "missing.tar", out=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BuildError, match=r"expected pictures as n01498041/<name>\.jpg, got none"):
        build("imagenet-a", tmp_path / "empty", allow_incomplete=True, out=tmp_path / "out")


def test_only_unreadable_pictures_make_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="got 1 unreadable files"):
        build("imagenet-a", a_set(tmp_path, {GOOD: b"x"}), allow_incomplete=True, out=tmp_path / "out")


def test_addresses_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="expected a path or an http, https or file address, got 'ftp://x/y'"):
        build("imagenet-a", "ftp://x/y", out=tmp_path / "out")
    with pytest.raises(BuildError, match="imagenet-a is not built from the Hub"):
        build("imagenet-a", "hf://ILSVRC/imagenet-1k", out=tmp_path / "out")
    with pytest.raises(BuildError, match="this set has no open download"):
        build("imagenet-val", "official", out=tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 broken", b"\x1f\x8b broken"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BuildError, match="expected"):
        build("imagenet-a", tmp_path / "x", out=tmp_path / "out")


def test_archives_that_were_cut_off_are_refused(tmp_path: Path) -> None:
    whole = tar_of(tmp_path / "a.tar", (tarfile.TarInfo(GOOD), os.urandom(30_000)), (tarfile.TarInfo("x"), b"y"))
    for cut in (whole.read_bytes()[:9_000], gzip.compress(whole.read_bytes())[:9_000]):
        (tmp_path / "cut").write_bytes(cut)
        with pytest.raises(BuildError, match="download it again"):
            build("imagenet-a", tmp_path / "cut", allow_incomplete=True, out=tmp_path / "out")


# Hostile archives


@pytest.mark.parametrize("name", ["../x.jpg", "/x.jpg", "a/../../x.jpg", "C:/x.jpg", "a\\x.jpg", "a/\x07.jpg"])
def test_member_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    hostile = tar_of(tmp_path / "a.tar", (tarfile.TarInfo(GOOD), picture()), (tarfile.TarInfo(name), picture()))
    with pytest.raises(BuildError, match=r"expected relative member names, got .* in a\.tar"):
        build("imagenet-a", hostile, allow_incomplete=True, out=tmp_path / "out")
    with pytest.raises(BuildError, match=r"expected relative member names, got .* in a\.zip"):
        build("imagenet-a", a_set(tmp_path, {name: picture()}), allow_incomplete=True, out=tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar", "a.zip", "out"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("n01498041/link.jpg")
    info.type, info.linkname = kind, "/etc/hostname"
    hostile = tar_of(tmp_path / "a.tar", (tarfile.TarInfo(GOOD), picture()), (info, b""))
    with pytest.raises(BuildError, match=r"got a link or device 'n01498041/link\.jpg' in a\.tar"):
        build("imagenet-a", hostile, allow_incomplete=True, out=tmp_path / "out")


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("n01498041/link.jpg")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/hostname")
    with pytest.raises(BuildError, match=r"got a link or device 'n01498041/link\.jpg'"):
        build("imagenet-a", tmp_path / "a.zip", allow_incomplete=True, out=tmp_path / "out")


def test_a_link_out_of_a_folder_is_refused_and_one_inside_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "n01498041"
    folder.mkdir(parents=True)
    (folder / "real.jpg").write_bytes(picture())
    (folder / "inside.jpg").symlink_to("real.jpg")
    assert len(open_archive(tmp_path / "source", scratch=tmp_path).members) == 2
    (folder / "outside.jpg").symlink_to("/etc/hostname")
    with pytest.raises(BuildError, match=r"a link that leads outside, 'n01498041/outside\.jpg'"):
        build("imagenet-a", tmp_path / "source", allow_incomplete=True, out=tmp_path / "out")
    (folder / "outside.jpg").unlink()
    (tmp_path / "source" / "linked").symlink_to(folder)
    with pytest.raises(BuildError, match="the folder link 'linked'"):
        build("imagenet-a", tmp_path / "source", allow_incomplete=True, out=tmp_path / "out")


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    twice = tar_of(tmp_path / "a.tar", (tarfile.TarInfo(GOOD), picture()), (tarfile.TarInfo("./" + GOOD), picture(1)))
    with pytest.raises(BuildError, match=r"expected each member once, got 'n01498041/0\.1_x _ y_0\.5\.jpg' twice"):
        build("imagenet-a", twice, allow_incomplete=True, out=tmp_path / "out")


def test_a_member_of_more_than_64_mib_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "a.tar").open("wb") as stream:
        info = tarfile.TarInfo(GOOD)
        info.size = (64 << 20) + 1
        stream.write(info.tobuf())
        stream.truncate(512 + info.size + 1024 + 511)
    with pytest.raises(BuildError, match=r"at most 64 MiB, got 'n01498041/0\.1_x _ y_0\.5\.jpg' with 67,108,865 bytes"):
        build("imagenet-a", tmp_path / "a.tar", allow_incomplete=True, out=tmp_path / "out")


def test_decompression_bombs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"compressed [\d,]+ times in a\.zip; this looks like a decompression bomb"):
        build("imagenet-a", a_set(tmp_path, {GOOD: bytes(8 << 20)}), allow_incomplete=True, out=tmp_path / "out")
    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as stream:
        for _ in range(65):
            stream.write(bytes(1 << 20))
    with pytest.raises(BuildError, match=r"got over 67,108,864 bytes in a\.tar\.gz; a decompression bomb"):
        build("imagenet-a", tmp_path / "a.tar.gz", allow_incomplete=True, out=tmp_path / "out")


def test_a_picture_with_too_many_pixels_is_left_out(tmp_path: Path) -> None:
    bomb = bytearray(picture())
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    crc = zlib.crc32(bytes(bomb[12:29]))
    bomb[29:33] = crc.to_bytes(4, "big")
    found = differences(tmp_path, {GOOD: picture(), "n01498041/0.1_z _ y_0.5.jpg": bytes(bomb)})
    assert "left out 'n01498041/0.1_z _ y_0.5.jpg': unreadable (DecompressionBombError)" in found


def test_a_damaged_zip_member_is_left_out_and_listed(tmp_path: Path) -> None:
    content = os.urandom(500)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GOOD, picture())
        archive.writestr("n01498041/0.1_z _ y_0.5.jpg", content)
    path.write_bytes(path.read_bytes().replace(content, content[:-1] + bytes([content[-1] ^ 1])))
    built = build("imagenet-a", path, allow_incomplete=True, out=tmp_path / "out")
    assert "left out 'n01498041/0.1_z _ y_0.5.jpg': unreadable (BadZipFile)" in built.differences


def test_zip_members_that_overlap_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(GOOD, picture())
        archive.writestr("n01498041/b.jpg", picture(1))
        archive.filelist[1].header_offset = archive.filelist[0].header_offset
    with pytest.raises(BuildError, match="expected separate members"):
        build("imagenet-a", path, allow_incomplete=True, out=tmp_path / "out")


# Class folders in place


def test_class_folders_are_listed_sorted_with_their_indices(tmp_path: Path) -> None:
    for name in ("n15075141/b.JPEG", "n01440764/z.png", "n01440764/a.JPG", "n01440764/.hidden.jpg", "n01440764/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    index = labels.imagenet_1k_index()
    expected = (
        ("n01440764/a.JPG", index["n01440764"], 5),
        ("n01440764/z.png", index["n01440764"], 5),
        ("n15075141/b.JPEG", index["n15075141"], 5),
    )
    assert image_folder(tmp_path) == expected


def test_one_more_level_of_folders_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "val" / "n01440764").mkdir(parents=True)
    (tmp_path / "val" / "n01440764" / "a.jpg").write_bytes(b"123")
    assert image_folder(tmp_path) == (("val/n01440764/a.jpg", 0, 3),)


def test_unknown_class_folders_are_named(tmp_path: Path) -> None:
    for name in ("n01440764", "tench"):
        (tmp_path / name).mkdir()
    with pytest.raises(BuildError, match="got 1 other folders: tench in"):
        image_folder(tmp_path)
    with pytest.raises(BuildError, match="got nothing at"):
        image_folder(tmp_path / "missing")
    with pytest.raises(BuildError, match="got none in"):
        image_folder(tmp_path / "n01440764")


def test_every_name_has_a_recipe_with_facts_that_add_up() -> None:
    from hf_robust.builders import RECIPES

    assert tuple(RECIPES) == NAMES
    for recipe in RECIPES.values():
        total = sum(recipe.splits.values())
        assert not recipe.suffixes or sum(recipe.suffixes.values()) == total
        assert recipe.per_class is None or recipe.per_class * len(recipe.classes) == total
