"""Pictures that forks read ahead of the writer: nothing is mixed up, and nothing is left, however one of them ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from builder_archives import MANY_FILES, as_tar, picture
from datasets import Image as ImageColumn

from hf_robust.builders import BuildError, build, installed
from hf_robust.builders.ahead import MOST_FORKS, reading_ahead
from hf_robust.builders.archive import Archive, Member, slices
from hf_robust.builders.batches import Chosen
from hf_robust.builders.recipe import Picture


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

    source = as_tar(tmp_path / "a.tar", MANY_FILES)
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
        build("imagenet-a", as_tar(tmp_path / "a.tar", MANY_FILES), allow_incomplete=True, out=tmp_path / "out")
    assert (installed(out=tmp_path / "out"), multiprocessing.active_children()) == ((), [])


@needs_forks
def test_forks_of_two_builds_in_threads_end_with_their_process(tmp_path: Path) -> None:
    as_tar(tmp_path / "a.tar", MANY_FILES)
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
    as_tar(tmp_path / "a.tar", MANY_FILES)
    daemon = multiprocessing.get_context("fork").Process(target=_build_there, args=(tmp_path,), daemon=True)
    daemon.start()
    daemon.join()
    assert daemon.exitcode == 0
    (built,) = installed(out=tmp_path / "out")
    rows = built.load()["test"].cast_column("image", ImageColumn(decode=False))
    assert [row["image"]["bytes"] for row in rows] == list(MANY_FILES.values())


def _build_there(folder: Path) -> None:
    build("imagenet-a", folder / "a.tar", allow_incomplete=True, out=folder / "out")
