"""Collecting candidates: folders, tar and Parquet shards, the Hub, labels, hostile pools, resuming."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback_hub import Commit, loopback_hub
from PIL import Image

from hf_robust.regenerate.collect import COLLECT, NO_LABEL, CollectSettings, estimate
from hf_robust.regenerate.inspect_picture import ANIMATED, BLANK, BOMB, DEEP, TOO_SMALL, UNREADABLE, inspect_picture
from hf_robust.regenerate.ledger import Ledger
from hf_robust.regenerate.pictures import Pictures
from hf_robust.regenerate.pool import pool_bytes
from hf_robust.regenerate.pool_base import CUT_SHORT, DAMAGED, NO_FILE, OUTSIDE, TOO_LARGE
from hf_robust.regenerate.pool_parquet import close_parquet, merged
from hf_robust.regenerate.pool_place import PLACE_FILE, located
from hf_robust.regenerate.pool_tar import index_tar
from hf_robust.regenerate.stage import StageError, Work, run_stage
from hf_robust.runner import World

Picture = Callable[..., Image.Image]
SMALL = CollectSettings(min_side=16)
TENCH, GOLDFISH = "n01440764", "n01443537"  # ImageNet-1k classes 0 and 1


def _silent(done: int, total: int) -> None:
    pass


def collect(out: Path, pool: Path | str, settings: CollectSettings = SMALL, *, rank: int = 0, size: int = 1) -> Ledger:
    return run_stage(COLLECT, settings, Work(out, World(rank, size, "cpu"), _silent, None, str(pool)))


def rows_of(ledger: Ledger) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for table in ledger.tables() for row in table.to_pylist()}


def reasons(ledger: Ledger) -> dict[str, str | None]:
    return {name: row["reason"] for name, row in rows_of(ledger).items()}


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def tar_of(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def parquet_of(path: Path, pictures: list[bytes], group: int, **columns: list[Any]) -> Path:
    images = [{"bytes": content, "path": f"{n}.png"} for n, content in enumerate(pictures)]
    pq.write_table(pa.table({"image": images, **columns}), path, row_group_size=group)
    return path


def some(picture: Picture, count: int) -> list[bytes]:
    return [encoded(picture(seed)) for seed in range(count)]


# Folders


def test_a_folder_is_rows_in_order_with_hash_size_and_class(tmp_path: Path, picture: Picture) -> None:
    one, other = some(picture, 2)
    pool = folder_of(tmp_path / "pool", {f"{GOLDFISH}/b.png": other, f"{TENCH}/a.png": one, "notes.txt": b"x"})
    rows = rows_of(collect(tmp_path / "out", pool))
    assert list(rows) == [f"{TENCH}/a.png", f"{GOLDFISH}/b.png"]
    row = rows[f"{TENCH}/a.png"]
    assert row["image_sha256"] == hashlib.sha256(one).hexdigest()
    assert (row["width"], row["height"], row["format"], row["mode"]) == (48, 40, "PNG", "RGB")
    assert (row["weak_label"], row["wnid"], row["labels"], row["keep"]) == (TENCH, TENCH, [0], True)
    assert row["source"] == f"./{TENCH}/a.png"
    assert pool_bytes(located(row["source"], tmp_path / "out"), row["offset"], row["length"]) == one


def stored(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.glob("1-*/*")) if p.name != ".lock"}


@pytest.mark.parametrize("kind", ["folder", "tar", "parquet", "one shard"])
def test_the_same_pool_in_another_place_has_the_same_bytes_and_is_read_there(
    kind: str, tmp_path: Path, picture: Picture
) -> None:
    contents = some(picture, 3)
    settings = SMALL
    for place in ("one", "other"):
        if kind == "folder":
            folder_of(tmp_path / place, {f"{TENCH}/{n}.png": content for n, content in enumerate(contents)})
        else:
            (tmp_path / place).mkdir()
        if kind == "tar":
            tar_of(tmp_path / place / "x.tar", {f"{n}.png": content for n, content in enumerate(contents)})
            settings = replace(SMALL, label_by="none")
        if kind in ("parquet", "one shard"):
            parquet_of(tmp_path / place / "x.parquet", contents, 2, label=[0] * 3)
            settings = replace(SMALL, label_by="column:label")
    name = "x.parquet" if kind == "one shard" else ""
    here = collect(tmp_path / "a", tmp_path / "one" / name, settings)
    there = collect(tmp_path / "b", tmp_path / "other" / name, settings)
    assert stored(tmp_path / "a") == stored(tmp_path / "b")
    for ledger in (here, there):
        pictures = Pictures(ledger)
        assert [pictures.read(n) for n in range(3)] == contents
    close_parquet()
    (tmp_path / "one").rename(tmp_path / "moved")
    with pytest.raises((OSError, StageError)):
        Pictures(here).read(0)
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("1-*/part-*")}
    again = Pictures(collect(tmp_path / "a", tmp_path / "moved" / name, settings))
    assert [again.read(n) for n in range(3)] == contents
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").glob("1-*/part-*")} == parts  # collected once
    (tmp_path / "a" / PLACE_FILE).unlink()
    with pytest.raises(StageError, match=r"expected the folder of the pool in .*, got none: run `regenerate` again"):
        Pictures(here).read(1)


def test_a_pool_that_changed_is_collected_anew(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/a.png": some(picture, 1)[0]})
    before = collect(tmp_path / "out", pool)
    folder_of(pool, {f"{TENCH}/b.png": encoded(picture(7))})
    after = collect(tmp_path / "out", pool)
    assert (before.rows, after.rows) == (1, 2)
    assert before.stages[0].folder != after.stages[0].folder


def test_labels_come_from_ids_names_indices_and_a_map(tmp_path: Path, picture: Picture) -> None:
    content = some(picture, 1)[0]
    labels = (TENCH, "Gold_Fish", "goldfish", "1", "1000", "n00007846", "carp")
    pool = folder_of(tmp_path / "pool", {f"{label}/x.png": content for label in labels})
    (tmp_path / "map.csv").write_text("label,wnid\ncarp,tench\n")
    found = rows_of(collect(tmp_path / "out", pool, replace(SMALL, label_map=str(tmp_path / "map.csv"))))
    by_label = {row["weak_label"]: (row["wnid"], row["labels"], row["reason"]) for row in found.values()}
    assert by_label == {
        TENCH: (TENCH, [0], None),
        "Gold_Fish": (None, [], NO_LABEL),
        "goldfish": (GOLDFISH, [1], None),
        "1": (GOLDFISH, [1], None),
        "1000": (None, [], NO_LABEL),
        "n00007846": ("n00007846", [], None),  # "person": a class, but none of the 1,000
        "carp": (TENCH, [0], None),
    }


def test_a_sidecar_gives_label_licence_and_page(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {f"{n}.png": content for n, content in enumerate(some(picture, 2))})
    (tmp_path / "said.csv").write_text(
        "file_name,class,license,source_page,by\n0.png,tench,CC-BY-2.0,https://example.org/0,Ann\n"
    )
    settings = replace(SMALL, label_by="column:class", sidecar=str(tmp_path / "said.csv"), author="by")
    rows = rows_of(collect(tmp_path / "out", pool, settings))
    assert [rows["0.png"][n] for n in ("wnid", "licence", "source_page", "author")] == [
        TENCH, "CC-BY-2.0", "https://example.org/0", "Ann",
    ]  # fmt: skip
    assert (rows["1.png"]["reason"], rows["1.png"]["licence"]) == (NO_LABEL, None)


def test_a_file_may_label_single_pictures(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {f"d/{n}.png": content for n, content in enumerate(some(picture, 2))})
    (tmp_path / "l.csv").write_text(f"file_name,label\nd/0.png,{TENCH}\n1.png,1\n")
    rows = rows_of(collect(tmp_path / "out", pool, replace(SMALL, label_by=f"file:{tmp_path / 'l.csv'}")))
    assert [row["labels"] for row in rows.values()] == [[0], [1]]


def test_other_words_in_a_sidecar_make_another_stage(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {"0.png": some(picture, 1)[0]})
    settings = replace(SMALL, label_by="column:class", sidecar=str(tmp_path / "said.csv"))
    found = []
    for name in ("tench", "goldfish"):
        (tmp_path / "said.csv").write_text(f"file_name,class\n0.png,{name}\n")
        found.append(rows_of(collect(tmp_path / "out", pool, settings))["0.png"]["labels"])
    assert found == [[0], [1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,label\na,b\n", "expected a column 'file_name'"),
        ("file_name,label\na,b\na,c\n", "each file_name once .* line 3"),
        ("file_name,label\na\n", "expected 2 values .* line 2"),
        ("", "got the columns none"),
    ],
)
def test_a_sidecar_that_is_none_is_named(tmp_path: Path, picture: Picture, text: str, said: str) -> None:
    pool = folder_of(tmp_path / "pool", {"0.png": some(picture, 1)[0]})
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(StageError, match=said):
        collect(tmp_path / "out", pool, replace(SMALL, sidecar=str(tmp_path / "s.csv")))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(SMALL, label_by="colour"), "folder, none, column:NAME or file:CSV, got 'colour'"),
        (replace(SMALL, part_rows=0), "part_rows of at least 1"),
    ],
)
def test_a_setting_that_means_nothing_is_named(
    tmp_path: Path, picture: Picture, settings: CollectSettings, said: str
) -> None:
    pool = folder_of(tmp_path / "pool", {"a/0.png": some(picture, 1)[0]})
    with pytest.raises(StageError, match=said):
        collect(tmp_path / "out", pool, settings)


def test_a_pool_of_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StageError, match="no file that is named like one"):
        collect(tmp_path / "out", tmp_path / "empty")
    with pytest.raises(StageError, match=r"got nothing at .*absent"):
        collect(tmp_path / "out", tmp_path / "absent")
    with pytest.raises(StageError, match="--candidates SOURCE"):
        collect(tmp_path / "out", "")


def test_pictures_and_shards_in_one_folder_are_refused(tmp_path: Path, picture: Picture) -> None:
    content = some(picture, 1)[0]
    tar_of(folder_of(tmp_path / "pool", {"a/0.png": content}) / "x.tar", {"a/1.png": content})
    with pytest.raises(StageError, match=r"got both: .*0\.png and .*x\.tar"):
        collect(tmp_path / "out", tmp_path / "pool")


# What is no usable picture


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_unusable_pictures_are_dropped_with_their_reason(tmp_path: Path, picture: Picture) -> None:
    image = picture(0)
    frames = {"save_all": True, "append_images": [picture(1)]}
    files = {
        "good.png": (encoded(image), None),
        "page.jpg": (b"<!DOCTYPE html><title>404</title>", UNREADABLE),
        "empty.jpg": (b"", UNREADABLE),
        "truncated.jpg": (encoded(image, "JPEG", quality=95)[:-200], UNREADABLE),
        "small.png": (encoded(picture(2, width=15, height=200)), TOO_SMALL),
        "grey.png": (encoded(Image.new("RGB", (40, 40), (90, 90, 90))), BLANK),
        "moving.gif": (encoded(image, "GIF", **frames), ANIMATED),
        "moving.webp": (encoded(image, "WEBP", **frames), ANIMATED),
        "moving.png": (encoded(image, "PNG", **frames), ANIMATED),
        "bomb.png": (png_header(30_000, 30_000), BOMB),
        "large.png": (png_header(10_000, 10_000), BOMB),  # Pillow itself would only warn
        "deep.png": (encoded(Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40)), DEEP),
        "cmyk.jpg": (encoded(image.convert("CMYK"), "JPEG"), None),
        "palette.gif": (encoded(image.convert("P"), "GIF"), None),
        "alpha.png": (encoded(image.convert("RGBA")), None),
        "bw.png": (encoded(image.convert("1")), None),
    }
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/{name}": content for name, (content, _) in files.items()})
    ledger = collect(tmp_path / "out", pool)
    assert reasons(ledger) == {f"{TENCH}/{name}": reason for name, (_, reason) in sorted(files.items())}
    assert ledger.funnel()[0]["reasons"][UNREADABLE] == 3
    assert rows_of(ledger)[f"{TENCH}/page.jpg"]["detail"] == "no picture format that Pillow knows"


def test_exif_orientation_is_recorded_and_not_applied(tmp_path: Path, picture: Picture) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/x.jpg": encoded(picture(0), "JPEG", exif=exif)})
    row = rows_of(collect(tmp_path / "out", pool))[f"{TENCH}/x.jpg"]
    assert (row["exif_orientation"], row["width"], row["height"]) == (6, 48, 40)


def test_damaged_exif_data_is_no_damaged_picture(picture: Picture) -> None:
    content = encoded(picture(0), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f" + b"\xff" * 40)
    found = inspect_picture(content, min_side=16)
    assert (found.trouble, found.exif_orientation) == (None, None)


def test_a_photo_with_a_preview_behind_it_is_no_animation(picture: Picture) -> None:
    content = encoded(picture(0), "MPO", save_all=True, append_images=[picture(1)])
    assert inspect_picture(content, min_side=16).trouble is None


def test_links_devices_and_huge_files_are_not_read(tmp_path: Path, picture: Picture) -> None:
    secret = folder_of(tmp_path / "elsewhere", {"secret.png": some(picture, 1)[0]}) / "secret.png"
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/a.png": some(picture, 1)[0]})
    (pool / TENCH / "out.png").symlink_to(secret)
    (pool / TENCH / "in.png").symlink_to(pool / TENCH / "a.png")
    (pool / "loop").symlink_to(pool, target_is_directory=True)
    os.mkfifo(pool / TENCH / "pipe.png")
    with (pool / TENCH / "sparse.png").open("wb") as stream:
        stream.truncate(65 << 20)
    found = reasons(collect(tmp_path / "out", pool))
    names = ("a.png", "in.png", "out.png", "pipe.png", "sparse.png")
    assert found == dict(zip((f"{TENCH}/{n}" for n in names), (None, None, OUTSIDE, NO_FILE, TOO_LARGE), strict=True))
    followed = reasons(collect(tmp_path / "out", pool, replace(SMALL, follow_links=True)))
    assert followed[f"{TENCH}/out.png"] is None


def test_a_broken_link_is_no_plain_file(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/a.png": some(picture, 1)[0]})
    (pool / TENCH / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert reasons(collect(tmp_path / "out", pool))[f"{TENCH}/gone.png"] == NO_FILE


def test_a_pool_that_went_away_stops_the_stage(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/a.png": some(picture, 1)[0]})
    step = COLLECT.start(SMALL, Work(tmp_path / "out", World(0, 1, "cpu"), _silent, None, str(pool)))
    (pool / TENCH / "a.png").unlink()
    with pytest.raises(StageError, match=r"expected to read n01440764/a\.png .* is it still where it was"):
        step.make(0)


def test_a_name_that_is_no_text_is_a_row_too(tmp_path: Path, picture: Picture) -> None:
    pool = folder_of(tmp_path / "pool", {f"{TENCH}/a.png": some(picture, 1)[0]})
    try:
        (pool / TENCH / os.fsdecode(b"\xff\xfe.png")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes text only")
    assert reasons(collect(tmp_path / "out", pool))[f"{TENCH}/\\xff\\xfe.png"] == "name that is no text"


# Tar shards


def test_a_webdataset_gives_its_pictures_with_what_belongs_to_them(tmp_path: Path, picture: Picture) -> None:
    one, other = some(picture, 2)
    said = json.dumps({"license": "CC0", "url": "https://example.org", "size": 3, "none": None}).encode()
    members = {"0000.jpg": one, "0000.json": said, "0000.cls": b"1\n", "0001.jpg": other, "0001.json": b"{broken"}
    tar_of(tmp_path / "shard-0.tar", members)
    rows = rows_of(collect(tmp_path / "out", tmp_path / "shard-0.tar", replace(SMALL, label_by="column:cls")))
    first, second = rows["shard-0.tar/0000.jpg"], rows["shard-0.tar/0001.jpg"]
    assert (first["labels"], first["licence"], first["source_page"]) == ([1], "CC0", "https://example.org")
    assert (second["reason"], second["licence"]) == (NO_LABEL, None)
    assert pool_bytes(located(second["source"], tmp_path / "out"), second["offset"], second["length"]) == other


def test_parts_of_tar_shards_never_span_two_shards(tmp_path: Path, picture: Picture) -> None:
    contents = some(picture, 5)
    pool = tmp_path / "pool"
    pool.mkdir()
    tar_of(pool / "a.tar", {f"{TENCH}/{n}.png": contents[n] for n in range(3)})
    tar_of(pool / "b.tar", {f"{TENCH}/{n}.png": contents[n] for n in (3, 4)})
    ledger = collect(tmp_path / "out", pool, replace(SMALL, part_rows=2))
    assert ledger.rows_of == (2, 1, 2)  # 3 = 2 + 1, then 2
    rows = rows_of(ledger)
    assert [r["image_sha256"] for r in rows.values()] == [hashlib.sha256(c).hexdigest() for c in contents]
    assert {row["wnid"] for row in rows.values()} == {TENCH}


def test_hostile_members_are_rows_that_are_not_read(tmp_path: Path, picture: Picture) -> None:
    content = some(picture, 1)[0]
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("/etc/x.png", b"0"), ("../x.png", b"0"), ("link.png", b"2"), ("hard.png", b"1"),
                           ("device.png", b"3"), ("pipe.png", b"6"), (f"{TENCH}/good.png", b"0")):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd" if kind in b"12" else ""
            info.size = len(content) if kind == b"0" else 0
            archive.addfile(info, io.BytesIO(content) if kind == b"0" else None)
        for _ in range(2):
            twice = tarfile.TarInfo(f"{TENCH}/twice.png")
            twice.size = len(content)
            archive.addfile(twice, io.BytesIO(content))
    found = reasons(collect(tmp_path / "out", path))
    assert found == {
        "x.tar//etc/x.png": OUTSIDE,
        "x.tar/../x.png": OUTSIDE,
        "x.tar/link.png": NO_FILE,
        "x.tar/hard.png": NO_FILE,
        "x.tar/device.png": NO_FILE,
        "x.tar/pipe.png": NO_FILE,
        f"x.tar/{TENCH}/good.png": None,
        f"x.tar/{TENCH}/twice.png": None,
        f"x.tar/{TENCH}/twice.png#2": None,
    }
    assert not (tmp_path.parent / "x.png").exists()


def test_a_member_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    info = tarfile.TarInfo("n01440764/huge.png")
    info.size = 1 << 40
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 512)
    found = index_tar(tmp_path / "x.tar").to_pylist()
    assert [row["trouble"] for row in found] == [TOO_LARGE, DAMAGED]


@pytest.mark.parametrize("cut", [1, 600, 2000])
def test_a_truncated_tar_gives_what_is_whole_and_says_so(tmp_path: Path, picture: Picture, cut: int) -> None:
    contents = [content.ljust(4096, b"\0") for content in some(picture, 3)]
    path = tar_of(tmp_path / "x.tar", {f"{TENCH}/{n}.png": c for n, c in enumerate(contents)})
    end = index_tar(path).to_pylist()[2]["offset"] + 4096
    path.write_bytes(path.read_bytes()[: end - cut])
    troubles = [row["trouble"] for row in index_tar(path).to_pylist()]
    assert troubles[:2] == [None, None]
    assert set(troubles[2:]) <= {CUT_SHORT, DAMAGED}
    assert troubles[-1] == DAMAGED


def test_noise_in_the_middle_of_a_tar_is_no_silent_end(tmp_path: Path, picture: Picture) -> None:
    path = tar_of(tmp_path / "x.tar", {f"{TENCH}/{n}.png": c for n, c in enumerate(some(picture, 4))})
    header = index_tar(path).to_pylist()[2]["offset"] - 512
    content = bytearray(path.read_bytes())
    content[header : header + 512] = bytes(range(256)) * 2
    path.write_bytes(content)
    assert [row["trouble"] for row in index_tar(path).to_pylist()] == [None, None, DAMAGED]


def test_a_tar_in_gzip_is_refused_with_what_to_do(tmp_path: Path, picture: Picture) -> None:
    with tarfile.open(tmp_path / "x.tar", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(StageError, match="in gzip: gunzip it first"):
        collect(tmp_path / "out", tmp_path / "x.tar")


# Parquet shards


def test_parquet_rows_are_read_in_any_order(tmp_path: Path, picture: Picture) -> None:
    contents = some(picture, 45)
    path = parquet_of(tmp_path / "x.parquet", contents, 20, label=[0] * 45)
    settings = replace(SMALL, label_by="column:label", part_rows=25)
    ledger = collect(tmp_path / "out", path, settings)
    assert ledger.rows_of == (20, 25)  # whole row groups: 20, then 20 + 5
    places = [(located(r["source"], tmp_path / "out"), r["offset"], r["length"]) for r in rows_of(ledger).values()]
    order = np.random.default_rng(0).permutation(45)
    assert [pool_bytes(*places[i]) for i in order] == [contents[i] for i in order]
    close_parquet()


def test_row_groups_are_joined_or_cut_to_parts() -> None:
    assert merged([10] * 5, 25) == [20, 20, 10]
    assert merged([7, 60, 3], 25) == [7, 25, 25, 10, 3]
    assert merged([], 25) == []
    assert sum(merged([3, 0, 99, 1, 250], 25)) == 3 + 99 + 1 + 250


def test_class_names_of_datasets_are_the_labels(tmp_path: Path, picture: Picture) -> None:
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageFeature

    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["goldfish", "tench"])})
    images = [{"bytes": content, "path": None} for content in some(picture, 3)]
    Dataset.from_dict({"image": images, "label": [0, 1, -1]}, features).to_parquet(str(tmp_path / "x.parquet"))
    rows = rows_of(collect(tmp_path / "out", tmp_path / "x.parquet", replace(SMALL, label_by="column:label")))
    assert [row["weak_label"] for row in rows.values()] == ["goldfish", "tench", None]
    assert [row["labels"] for row in rows.values()] == [[1], [0], []]


def test_rows_without_bytes_are_unreadable(tmp_path: Path, picture: Picture) -> None:
    table = pa.table({"image": [{"bytes": some(picture, 1)[0], "path": "a"}, {"bytes": None, "path": "b"}, None]})
    pq.write_table(table, tmp_path / "x.parquet")
    rows = rows_of(collect(tmp_path / "out", tmp_path / "x.parquet", replace(SMALL, label_by="none")))
    assert [row["reason"] for row in rows.values()] == [None, UNREADABLE, UNREADABLE]
    assert "embed the pictures" in list(rows.values())[1]["detail"]


def test_a_parquet_file_without_pictures_names_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": ["text"], "label": [1]}), tmp_path / "x.parquet")
    with pytest.raises(StageError, match=r"pictures in column 'image' .* columns image, label: name the column with"):
        collect(tmp_path / "out", tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes(b"PAR1 noise PAR1")
    with pytest.raises(StageError, match=r"expected a Parquet file at .*y\.parquet"):
        collect(tmp_path / "out", tmp_path / "y.parquet")


HUB_CODE = """
import sys, json
from pathlib import Path
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_collect import SMALL, collect, rows_of
from hf_robust.regenerate.pool import pool_bytes
ledger = collect(Path("out"), sys.argv[1], replace(SMALL, label_by="column:label", part_rows=3))
rows = rows_of(ledger)
again = [len(pool_bytes(r["source"], r["offset"], r["length"])) for r in rows.values()]
print(json.dumps([ledger.rows_of, [[n, r["labels"], r["source"], r["image_sha256"]] for n, r in rows.items()], again]))
"""


def test_a_data_set_of_the_hub_is_read_at_one_commit(tmp_path: Path, picture: Picture) -> None:
    contents = some(picture, 4)
    path = parquet_of(tmp_path / "x.parquet", contents, 2, label=[0, 1, 0, 1])
    with loopback_hub() as hub:
        put = (
            "import sys; from huggingface_hub import HfApi; a = HfApi(); a.create_repo('hf_robust/x', "
            "repo_type='dataset'); [a.upload_file(path_or_fileobj=sys.argv[1], path_in_repo=n, "
            "repo_id='hf_robust/x', repo_type='dataset') for n in ('data/train-0.parquet', 'data/test-0.parquet')]"
        )
        assert hub.run(put, tmp_path, str(path)).returncode == 0
        code = HUB_CODE.format(tests=str(Path(__file__).parent))
        done = hub.run(code, tmp_path, "hf://datasets/hf_robust/x/data/train-*.parquet")
        assert done.returncode == 0, done.stderr
        absent = hub.run(code, tmp_path, "hf://datasets/hf_robust/absent")
        commit: Commit = hub.repo("datasets/hf_robust/x").at()
    parts, rows, sizes = json.loads(done.stdout)
    assert parts == [2, 2]
    assert [labels for _, labels, _, _ in rows] == [[0], [1], [0], [1]]
    assert {source for _, _, source, _ in rows} == {
        f"hf://datasets/hf_robust/x@{commit.sha}/data/train-0.parquet#image"
    }
    assert [sha for *_, sha in rows] == [hashlib.sha256(c).hexdigest() for c in contents]
    assert sizes == [len(c) for c in contents]
    assert "expected a data set 'hf_robust/absent' on the Hub" in absent.stderr


# Before anything is done


def test_the_estimate_counts_the_pool_and_what_is_wrong_with_its_first_part(tmp_path: Path, picture: Picture) -> None:
    files = {f"{TENCH}/{n}.png": content for n, content in enumerate(some(picture, 3))}
    pool = folder_of(tmp_path / "pool", {**files, "no class/x.png": files[f"{TENCH}/0.png"], f"{TENCH}/y.png": b"x"})
    lines = estimate(replace(SMALL, part_rows=4), str(pool))
    assert lines[0] == "pool: 5 pictures in 2 parts"
    assert lines[1] == "of the first 4, dropped: unreadable 1"  # 0, 1, 2 and y of the class; then "no class"
    assert "1 min in one process" in lines[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool"]


# Processes and kills


def files_of(out: Path) -> dict[str, bytes]:
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*.parquet"))}


def shards(root: Path, picture: Picture) -> Path:
    root.mkdir()
    contents = some(picture, 12)
    tar_of(root / "a.tar", {f"{TENCH}/{n}.png": c for n, c in enumerate(contents[:7])})
    tar_of(root / "b.tar", {f"{GOLDFISH}/{n}.png": c for n, c in enumerate(contents[7:])})
    return root


def test_one_and_two_processes_write_the_same_bytes(tmp_path: Path, picture: Picture) -> None:
    pool = shards(tmp_path / "pool", picture)
    settings = replace(SMALL, part_rows=2)
    collect(tmp_path / "one", pool, settings)
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom pathlib import Path\n"
        "from dataclasses import replace\nfrom test_collect import SMALL, collect\n"
        "collect(Path(sys.argv[1]), sys.argv[2], replace(SMALL, part_rows=2), rank=int(sys.argv[3]), size=2)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "two"), str(pool)]
    workers = [subprocess.Popen([*command, str(rank)]) for rank in (0, 1)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path: Path, picture: Picture) -> None:
    pool = shards(tmp_path / "pool", picture)
    settings = replace(SMALL, part_rows=2)
    ledger = collect(tmp_path / "out", pool, settings)
    whole = files_of(tmp_path / "out")
    folder = ledger.stages[0].folder
    (folder / "done.json").unlink()
    (folder / "part-00001.parquet").unlink()
    (folder / "part-00003.parquet").write_bytes(b"cut short")
    next((tmp_path / "out" / "pool").glob("*.parquet")).write_bytes(b"")
    collect(tmp_path / "out", pool, settings)
    assert files_of(tmp_path / "out") == whole
