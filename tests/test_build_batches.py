"""Batches, files and checksum of a build: same rows, same order, same bytes, whatever the source is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builder_archives import A_FILES, D_FILES, MANY_FILES, as_folder, as_tar, as_zip, picture
from datasets import Dataset
from datasets import Image as ImageColumn

from hf_robust.builders import RECIPES, BuildError, build, installed, recipes
from hf_robust.builders.ahead import reading_ahead
from hf_robust.builders.archive import Member, open_archive, slices
from hf_robust.builders.batches import MOST_BYTES, Chosen, parts
from hf_robust.builders.checksum import Checksum
from hf_robust.builders.recipe import Picture, Recipe

NAMES = [name.removeprefix("imagenet-a/") for name in MANY_FILES]


def members(*sizes: int) -> Chosen:
    return [(Member(f"{n}.jpg", size), Picture(f"{n}.jpg", "test", "c", {})) for n, size in enumerate(sizes)]


def rows_of(built: Any) -> list[dict[str, Any]]:
    return list(built.load()["test"].cast_column("image", ImageColumn(decode=False)))


@pytest.mark.parametrize("as_source", [as_tar, as_zip, as_folder])
def test_pictures_of_several_batches_keep_their_order_and_their_bytes(tmp_path: Path, as_source: Any) -> None:
    built = build("imagenet-a", as_source(tmp_path / "a", MANY_FILES), allow_incomplete=True, out=tmp_path / "out")
    rows = rows_of(built)
    assert [row["file_name"] for row in rows] == NAMES
    assert [row["image"]["bytes"] for row in rows] == list(MANY_FILES.values())
    assert [row["sha256"] for row in rows] == [hashlib.sha256(content).hexdigest() for content in MANY_FILES.values()]


def test_unreadable_pictures_within_a_batch_do_not_touch_the_bytes_of_the_others(tmp_path: Path) -> None:
    bad = {
        list(MANY_FILES)[n]: content for n, content in ((0, b""), (50, b"no picture"), (99, b"\xff\xd8"), (249, b"GIF"))
    }
    source = as_tar(tmp_path / "a.tar", {**MANY_FILES, **bad})
    built = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out")
    good = {name.removeprefix("imagenet-a/"): content for name, content in MANY_FILES.items() if name not in bad}
    assert {row["file_name"]: row["image"]["bytes"] for row in rows_of(built)} == good
    assert sum("unreadable" in difference for difference in built.differences) == 4


def test_the_table_is_the_one_that_datasets_makes_of_the_rows(tmp_path: Path) -> None:
    built = build("imagenet-a", as_tar(tmp_path / "a.tar", A_FILES), allow_incomplete=True, out=tmp_path / "out")
    recipe = RECIPES["imagenet-a"]
    with open_archive(tmp_path / "a.tar", scratch=tmp_path) as archive:

        def rows() -> Iterator[dict[str, Any]]:
            for member in (m for m in archive.members if m.is_image):
                name, content = member.path.removeprefix("imagenet-a/"), archive.read(member)
                told = recipe.reader(archive, tmp_path, None).describe(name)
                assert not isinstance(told, str)
                sha256 = hashlib.sha256(content).hexdigest()
                yield {"image": {"bytes": content, "path": name}, "file_name": name, "sha256": sha256, **told.columns}

        expected = Dataset.from_list(list(rows()), features=recipe.features())
    made = built.load()["test"]
    assert made.column_names == list(recipe.features())
    assert made.data.table.equals(expected.select_columns(made.column_names).data.table)


def test_batches_have_at_most_so_many_rows_and_bytes() -> None:
    half = MOST_BYTES // 2
    assert [len(part) for part in parts(members(*[1] * 7), 3)] == [3, 3, 1]
    # half + half fills a batch, one byte more begins the next; what is too large for any stands alone
    assert [len(part) for part in parts(members(half, half, 1, half, MOST_BYTES + 1, 1), 100)] == [2, 2, 1, 1]
    assert list(parts([], 3)) == []


def test_a_batch_holds_its_pictures_end_to_end_and_names_those_that_cannot_be_read(tmp_path: Path) -> None:
    contents = [picture(1), b"none", picture(2)]
    (tmp_path / "all").write_bytes(b"".join(contents))
    starts = [0, len(contents[0]), len(contents[0]) + 4]
    held = [(Member(str(n), len(c), starts[n]), Picture(str(n), "test", "c", {})) for n, c in enumerate(contents)]
    lost = (Member("lost", 9, 10**6), Picture("lost", "test", "c", {}))
    with slices(tmp_path / "all", (), "tar") as archive, reading_ahead(archive) as read:
        (batch,) = read([*held, lost], 100)
    assert batch.content.to_pylist() == [contents[0], contents[2]]
    assert [look.unreadable for _, look in batch.seen] == [None, "UnidentifiedImageError", None, "OSError"]
    assert batch.seen[0][1].size == (12, 12)


def test_a_split_whose_pictures_are_all_unreadable_is_left_out(tmp_path: Path) -> None:
    files = {name: b"" if name.startswith("texture/") else data for name, data in D_FILES.items()}
    built = build("imagenet-d", as_tar(tmp_path / "d.tar", files), allow_incomplete=True, out=tmp_path / "out")
    assert sorted(built.load()) == ["background", "material"]
    assert any("texture" in line and "unreadable" in line for line in built.differences)
    assert sorted(path.name for path in built.path.glob("*.arrow")) == [
        "imagenet-d-background.arrow", "imagenet-d-material.arrow",
    ]  # fmt: skip


# The file that is written


def test_a_large_write_reaches_the_file_whole_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hf_robust.builders import arrow

    monkeypatch.setattr(arrow, "EARLY", 3 * arrow.PIECE)
    writes = [os.urandom(size) for size in (8, 0, 5 * arrow.PIECE + 3, 7, 2 * arrow.PIECE)]
    with arrow._InPieces(tmp_path / "file", "w") as stream:
        assert [stream.write(memoryview(data)) for data in writes] == [len(data) for data in writes]
    assert (tmp_path / "file").read_bytes() == b"".join(writes)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_with_the_file() -> None:
    from hf_robust.builders import arrow

    with arrow._InPieces("/dev/full", "w") as stream, pytest.raises(OSError, match=r"No space left.*/dev/full"):
        stream.write(b"picture")


def test_a_split_of_several_files_is_read_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hf_robust.builders import arrow

    monkeypatch.setattr(arrow, "SHARD", 1)  # bytes: each table gets a file of its own
    built = build("imagenet-a", as_tar(tmp_path / "a.tar", MANY_FILES), allow_incomplete=True, out=tmp_path / "out")
    files = sorted(path.name for path in built.path.glob("*.arrow"))
    assert files == [f"imagenet-a-test-{n:05d}-of-00003.arrow" for n in range(3)]
    assert [row["image"]["bytes"] for row in rows_of(built)] == list(MANY_FILES.values())
    assert built.load()["test"].info.splits["test"].shard_lengths == [100, 100, 50]


# The checksum


@pytest.fixture
def fresh_recipes() -> Iterator[None]:
    recipes.cache_clear()
    yield
    recipes.cache_clear()


def tiny(digest: tuple[str, str] | None) -> Recipe:
    return replace(RECIPES["imagenet-a"], digest=digest)


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_checksum_is_that_of_all_bytes_and_one_line_says_where_it_differs(tmp_path: Path, algorithm: str) -> None:
    content = os.urandom((1 << 20) + 7)  # a block and a little
    (tmp_path / "a.tar").write_bytes(content)
    official = hashlib.new(algorithm, content).hexdigest()
    for said, lines in ((official, 0), ("0" * len(official), 1)):
        with Checksum(tiny((algorithm, said))) as checksum:
            checksum.begin(tmp_path / "a.tar")
            assert checksum.found() == f"{algorithm}:{official}"
            assert len(checksum.differences()) == lines
            assert checksum.differences() == checksum.differences(wait=False)


def test_where_no_checksum_is_published_sha256_is_found_and_nothing_differs(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"abc")
    with Checksum(tiny(None)) as checksum:
        checksum.begin(tmp_path / "a.zip")
        assert checksum.found() == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
        assert checksum.differences() == []


def test_a_folder_has_no_checksum_nor_has_one_that_was_given_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    with Checksum(tiny(("md5", "0"))) as checksum:
        checksum.begin(tmp_path)
        assert (checksum.found(), checksum.differences()) == (None, [])
        checksum.begin(tmp_path / "file")
        checksum.forget()
        assert (checksum.found(), checksum.differences()) == (None, [])


def test_an_archive_that_differs_by_its_checksum_alone_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_recipes: None
) -> None:
    wnids = {name.split("/")[0] for name in NAMES}
    own = Recipe(
        name="own", title="Own.", addresses=(), digest=("sha256", "0" * 64), splits={"test": len(MANY_FILES)},
        classes=tuple(wnids), reader=RECIPES["imagenet-a"].reader, top_folders=("imagenet-a",), layout="n/…",
        columns_of="imagenet-a",
    )  # fmt: skip
    monkeypatch.setitem(RECIPES, "own", own)
    source, out = as_tar(tmp_path / "own.tar", MANY_FILES), tmp_path / "out"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    line = f"got 1 difference: the archive's sha256 is {digest}, official {'0' * 64}\\. Take"
    with pytest.raises(BuildError, match=line):
        build("own", source, out=out)
    assert (installed(out=out), [path for path in out.rglob("*") if path.suffix != ".lock"]) == ((), [])
    monkeypatch.setitem(RECIPES, "own", replace(own, digest=("sha256", digest)))
    recipes.cache_clear()
    assert build("own", source, out=out).complete
