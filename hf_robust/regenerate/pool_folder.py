"""A folder of pictures as a pool, read in place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from ..builders.archive import IMAGE_SUFFIXES, MAX_MEMBER, is_noise
from .pool_base import NO_FILE, OUTSIDE, TOO_LARGE, Entry, Pool, as_text, cut_evenly, fingerprint_of


def open_folder(root: Path, *, part_rows: int, follow_links: bool) -> Pool:
    """The files below `root` that are named like pictures, sorted by path; hidden files and linked folders left out.

    follow_links  whether a file may be a link that leads out of the folder; without it such a file is an entry that is
                  not read, since an unpacked archive of strangers may hold one.
    """
    files = sorted(_files(root))
    starts = list(accumulate(cut_evenly(len(files), part_rows), initial=0))

    def entries(index: int) -> Iterator[Entry]:
        for name, size in files[starts[index] : starts[index + 1]]:
            yield _entry(root, name, size, follow_links=follow_links)

    facts = {"kind": "folder", "files": fingerprint_of((as_text(n), s) for n, s in files)}
    return Pool(facts, cut_evenly(len(files), part_rows), entries, str(root))


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """(path below root, size) of each; the size of what is no plain file is -1."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as found:
            for item in found:
                name = f"{folder}{item.name}"
                if is_noise(item.name):
                    continue
                if item.is_dir(follow_symlinks=False):
                    waiting.append(f"{name}/")
                elif os.path.splitext(item.name)[1].lower() in IMAGE_SUFFIXES and not _leads_to_a_folder(item):
                    yield name, _size(item)


def _leads_to_a_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _size(item: os.DirEntry[str]) -> int:
    try:
        return item.stat().st_size if item.is_file() else -1
    except OSError:
        return -1


def _entry(root: Path, name: str, size: int, *, follow_links: bool) -> Entry:
    path = root / name
    trouble = None
    if as_text(name) != name or "\0" in name:
        return Entry(as_text(name), "", trouble="name that is no text")
    if size < 0:
        trouble = NO_FILE
    elif size > MAX_MEMBER:
        trouble = TOO_LARGE
    elif not follow_links and path.is_symlink() and not path.resolve().is_relative_to(root):
        trouble = OUTSIDE
    return Entry(name, str(path) if trouble is None else "", trouble=trouble)
