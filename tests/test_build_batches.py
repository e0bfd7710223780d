"""Pictures that are read ahead by forks: same rows, same order, same checksums, and nothing left when it stops."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from builder_archives import A_FILES, D_FILES, as_folder, as_tar, as_zip, picture
from datasets import Dataset
from datasets import Image as ImageColumn

from hf_robust.builders import RECIPES, BuildError, build, installed, recipes
from hf_robust.builders.ahead import MOST_FORKS, reading_ahead
from hf_robust.builders.archive import Archive, Member, open_archive, slices
from hf_robust.builders.batches import MOST_BYTES, Chosen, parts
from hf_robust.builders.checksum import Checksum
from hf_robust.builders.recipe import Picture, Recipe

NUMBER = 250  # three record batches: 100 + 100 + 50
FILES = {f"imagenet-a/n01498041/0.{n:04d}_x _ y_0.5.jpg": picture(n, size=(8, 8 + n % 5)) for n in range(NUMBER)}
NAMES = [name.removeprefix("imagenet-a/") for name in FILES]


def members(*sizes: int) -> Chosen:
    return [(Member(f"{n}.jpg", size), Picture(f"{n}.jpg", "test", "c", {})) for n, size in enumerate(sizes)]


def rows_of(built: Any) -> list[dict[str, Any]]:
    return list(built.load()["test"].cast_column("image", ImageColumn(decode=False)))


@pytest.mark.parametrize("as_source", [as_tar, as_zip, as_folder])
def test_pictures_of_several_batches_keep_their_order_and_their_bytes(tmp_path: Path, as_source: Any) -> None:
    built = build("imagenet-a", as_source(tmp_path / "a", FILES), allow_incomplete=True, out=tmp_path / "out")
    rows = rows_of(built)
    assert [row["file_name"] for row in rows] == NAMES
    assert [row["image"]["bytes"] for row in rows] == list(FILES.values())
    assert [row["sha256"] for row in rows] == [hashlib.sha256(content).hexdigest() for content in FILES.values()]


def test_unreadable_pictures_within_a_batch_do_not_touch_the_bytes_of_the_others(tmp_path: Path) -> None:
    bad = {list(FILES)[n]: content for n, content in ((0, b""), (50, b"no picture"), (99, b"\xff\xd8"), (249, b"GIF"))}
    source = as_tar(tmp_path / "a.tar", {**FILES, **bad})
    built = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out")
    good = {name.removeprefix("imagenet-a/"): content for name, content in FILES.items() if name not in bad}
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


def test_an_archive_that_is_not_made_for_forks_is_read_here_in_order() -> None:
    seen: list[tuple[int, str]] = []

    def read_one(member: Member) -> bytes:
        seen.append((os.getpid(), member.path))
        return picture(int(member.path))

    sizes = [(Member(str(n), len(picture(n))), Picture(str(n), "test", "c", {})) for n in range(12)]
    archive = Archive("ledger", tuple(m for m, _ in sizes), read_one, lambda: None)
    with reading_ahead(archive) as read:
        rows = sum(len(batch.seen) for batch in read(sizes, 2))
    assert rows == 12
    assert [path for _, path in seen] == [str(n) for n in range(12)]
    assert {process for process, _ in seen} == {os.getpid()}


def test_a_build_that_is_stopped_leaves_no_thread_no_process_and_no_file(tmp_path: Path) -> None:
    before = threading.active_count()

    def stop(done: int, total: int) -> None:
        if done == 120:
            raise KeyboardInterrupt

    source = as_tar(tmp_path / "a.tar", FILES)
    with pytest.raises(KeyboardInterrupt):
        build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out", progress=stop)
    assert (threading.active_count(), multiprocessing.active_children()) == (before, [])
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.suffix != ".lock"] == []


def chosen_of(contents: Sequence[bytes], place: Path) -> Chosen:
    """So many pictures, one behind the other in a file."""
    place.write_bytes(b"".join(contents))
    starts = accumulate(map(len, contents), initial=0)
    return [
        (Member(str(n), len(content), start), Picture(str(n), "test", "c", {}))
        for n, (content, start) in enumerate(zip(contents, starts, strict=False))
    ]


needs_forks = pytest.mark.skipif(
    not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2, reason="forks need Linux and two cores"
)


@needs_forks
def test_forks_read_and_their_spaces_are_used_again_without_mixing_pictures(tmp_path: Path) -> None:
    contents = [picture(n, size=(8, 8 + n % 5)) + bytes(n % 3) for n in range(61)]
    rows = chosen_of(contents, tmp_path / "all")
    with slices(tmp_path / "all", (), "tar") as archive, reading_ahead(archive) as read:
        for _ in range(2):  # two splits, one after the other
            got = []
            for batch in read(rows, 2):
                got += batch.content.to_pylist()
                assert 1 < len(multiprocessing.active_children()) <= MOST_FORKS
            assert got == contents
            assert multiprocessing.active_children() == []
        assert list(read([], 2)) == []
        both = zip(read(rows, 2), read(rows[::-1], 2), strict=True)  # two at once
        pairs = [one.content.to_pylist() + other.content.to_pylist() for one, other in both]
        assert [pair[0] for pair in pairs] == contents[::2]
        assert [pair[-1] for pair in pairs][:-1] == contents[-2::-2]


@needs_forks
def test_where_no_process_can_be_forked_it_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    contents = [picture(n) for n in range(7)]
    rows = chosen_of(contents, tmp_path / "all")
    monkeypatch.setattr(os, "fork", refused)
    with slices(tmp_path / "all", (), "tar") as archive, reading_ahead(archive) as read:
        assert [content for batch in read(rows, 2) for content in batch.content.to_pylist()] == contents


@needs_forks
def test_an_interrupt_while_forks_are_started_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fork

    def interrupted() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return real()

    monkeypatch.setattr(os, "fork", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build("imagenet-a", as_tar(tmp_path / "a.tar", FILES), allow_incomplete=True, out=tmp_path / "out")
    assert (installed(out=tmp_path / "out"), multiprocessing.active_children()) == ((), [])


@needs_forks
def test_forks_of_two_builds_in_threads_end_with_their_process(tmp_path: Path) -> None:
    as_tar(tmp_path / "a.tar", FILES)
    writer = subprocess.Popen([sys.executable, "-c", TWO_BUILDS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    children = [int(pid) for pid in writer.stdout.readline().split()]
    assert len(children) > 2
    writer.kill()
    writer.communicate()
    expect_gone(children)


TWO_BUILDS = """
import multiprocessing, sys, threading, time
from pathlib import Path
from hf_robust.builders import build
folder, both = Path(sys.argv[1]), threading.Barrier(3)
def stop(done, total):
    if done == 1:
        both.wait()
        time.sleep(600)
for n in range(2):
    given = dict(allow_incomplete=True, out=folder / str(n), progress=stop)
    threading.Thread(target=build, args=("imagenet-a", folder / "a.tar"), kwargs=given, daemon=True).start()
both.wait()
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


def expect_gone(processes: Sequence[int]) -> None:
    until = time.monotonic() + 60
    while any(Path("/proc", str(pid)).exists() for pid in processes):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_split_whose_pictures_are_all_unreadable_is_left_out(tmp_path: Path) -> None:
    files = {name: b"" if name.startswith("texture/") else data for name, data in D_FILES.items()}
    built = build("imagenet-d", as_tar(tmp_path / "d.tar", files), allow_incomplete=True, out=tmp_path / "out")
    assert sorted(built.load()) == ["background", "material"]
    assert any("texture" in line and "unreadable" in line for line in built.differences)
    assert sorted(path.name for path in built.path.glob("*.arrow")) == [
        "imagenet-d-background.arrow", "imagenet-d-material.arrow",
    ]  # fmt: skip


@needs_forks
def test_a_fork_that_dies_is_named_and_leaves_no_other(tmp_path: Path) -> None:
    rows = chosen_of([picture(n) for n in range(40)], tmp_path / "all")
    with slices(tmp_path / "all", (), "tar") as archive, reading_ahead(archive) as read:
        batches = read(rows, 2)
        next(batches)
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        with pytest.raises(BuildError, match="got its end with exit code -9"):
            list(batches)
    assert multiprocessing.active_children() == []


@needs_forks
def test_what_goes_wrong_in_a_fork_is_raised_here(tmp_path: Path) -> None:
    def into(member: Member, place: memoryview) -> None:
        raise RuntimeError(f"no way to read {member.path}")

    rows = chosen_of([picture(1)], tmp_path / "all")
    archive = Archive("broken", (), lambda member: b"", lambda: None, into, concurrent=True)
    with pytest.raises(RuntimeError, match="no way to read 0"), reading_ahead(archive) as read:
        list(read(rows, 1))


@needs_forks
def test_forks_end_when_the_process_that_writes_is_killed(tmp_path: Path) -> None:
    chosen_of([picture(n) for n in range(40)], tmp_path / "all")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "all"), str(len(picture(1)))],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout is not None
    children = [int(pid) for pid in writer.stdout.readline().split()]
    assert children
    writer.kill()
    writer.communicate()
    expect_gone(children)


WRITER = """
import multiprocessing, sys, time
from pathlib import Path
from hf_robust.builders.ahead import MOST_FORKS, reading_ahead
from hf_robust.builders.archive import Member, slices
from hf_robust.builders.recipe import Picture
size = int(sys.argv[2])
rows = [(Member(str(n), size, n * size), Picture(str(n), "test", "c", {})) for n in range(40)]
with slices(Path(sys.argv[1]), (), "tar") as archive, reading_ahead(archive) as read:
    for batch in read(rows, 2):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(600)
"""


def test_a_daemon_which_may_have_no_children_builds_too(tmp_path: Path) -> None:
    as_tar(tmp_path / "a.tar", FILES)
    daemon = multiprocessing.get_context("fork").Process(target=_build_there, args=(tmp_path,), daemon=True)
    daemon.start()
    daemon.join()
    assert daemon.exitcode == 0
    (built,) = installed(out=tmp_path / "out")
    assert [row["image"]["bytes"] for row in rows_of(built)] == list(FILES.values())


def _build_there(folder: Path) -> None:
    build("imagenet-a", folder / "a.tar", allow_incomplete=True, out=folder / "out")


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
    built = build("imagenet-a", as_tar(tmp_path / "a.tar", FILES), allow_incomplete=True, out=tmp_path / "out")
    files = sorted(path.name for path in built.path.glob("*.arrow"))
    assert files == [f"imagenet-a-test-{n:05d}-of-00003.arrow" for n in range(3)]
    assert [row["image"]["bytes"] for row in rows_of(built)] == list(FILES.values())
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
        name="own", title="Own.", addresses=(), digest=("sha256", "0" * 64), splits={"test": NUMBER},
        classes=tuple(wnids), reader=RECIPES["imagenet-a"].reader, top_folders=("imagenet-a",), layout="n/…",
        columns_of="imagenet-a",
    )  # fmt: skip
    monkeypatch.setitem(RECIPES, "own", own)
    source, out = as_tar(tmp_path / "own.tar", FILES), tmp_path / "out"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    line = f"got 1 difference: the archive's sha256 is {digest}, official {'0' * 64}\\. Take"
    with pytest.raises(BuildError, match=line):
        build("own", source, out=out)
    assert (installed(out=out), [path for path in out.rglob("*") if path.suffix != ".lock"]) == ((), [])
    monkeypatch.setitem(RECIPES, "own", replace(own, digest=("sha256", digest)))
    recipes.cache_clear()
    assert build("own", source, out=out).complete
