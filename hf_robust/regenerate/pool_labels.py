"""Weak labels of a pool: which text says what a picture shows, and which class that text means."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..labels import imagenet_1k, imagenet_1k_index, imagenet_1k_names
from .pool_base import Entry
from .stage import StageError

FOLDER, NONE, COLUMN, FILE = "folder", "none", "column:", "file:"
FILE_NAME, LABEL, WNID = "file_name", "label", "wnid"
_WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Sidecar:
    """A CSV with a column file_name and more: what is said about each picture outside of the pool."""

    columns: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    sha256: str

    def of(self, entry: Entry) -> dict[str, str]:
        """What it says about an entry, by its name in the pool or else its base name."""
        found = self.rows.get(entry.name) or self.rows.get(entry.name.rpartition("/")[2])
        return dict(zip(self.columns, found, strict=True)) if found is not None else {}


def read_sidecar(path: Path, key: str = FILE_NAME) -> Sidecar:
    """The CSV at `path` by its column `key`; StageError where it is none, or says two things about one name."""
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").splitlines()
        reader = csv.reader(lines)
        table = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StageError(f"expected a CSV in UTF-8 at {path}, got {error}") from error
    columns = tuple(table[0][1]) if table else ()
    if key not in columns:
        raise StageError(f"expected a column {key!r} in {path}, got the columns {', '.join(columns) or 'none'}")
    place = columns.index(key)
    rows: dict[str, tuple[str, ...]] = {}
    for number, row in table[1:]:
        if len(row) != len(columns) or rows.setdefault(row[place], tuple(row)) != tuple(row):
            raise StageError(
                f"expected {len(columns)} values and each {key} once in {path}, got another at line {number}"
            )
    return Sidecar(columns, rows, hashlib.sha256(content).hexdigest())


def label_reader(label_by: str) -> tuple[Callable[[Entry, Mapping[str, str]], str], Sidecar | None]:
    """A function entry, columns -> the text that says what it shows, and the file it reads from, if any.

    label_by  "folder", "none", "column:NAME", or "file:CSV" with columns file_name and label.
    """
    if label_by == FOLDER:
        return (lambda entry, _: entry.folder), None
    if label_by == NONE:
        return (lambda _, __: ""), None
    if label_by.startswith(COLUMN):
        name = label_by.removeprefix(COLUMN)
        return (lambda _, columns: columns.get(name, "")), None
    if label_by.startswith(FILE):
        sidecar = read_sidecar(Path(label_by.removeprefix(FILE)))
        if LABEL not in sidecar.columns:
            raise StageError(f"expected a column {LABEL!r} in {label_by.removeprefix(FILE)}, got {sidecar.columns}")
        return (lambda entry, _: sidecar.of(entry).get(LABEL, "")), sidecar
    raise StageError(f"expected label_by as folder, none, column:NAME or file:CSV, got {label_by!r}")


def read_label_map(path: Path) -> tuple[dict[str, str], str]:
    """Label text -> WordNet id, name or index, from a CSV with columns label and wnid; and the file's SHA-256."""
    table = read_sidecar(path, LABEL)
    if WNID not in table.columns:
        raise StageError(f"expected a column {WNID!r} in {path}, got the columns {', '.join(table.columns)}")
    place = table.columns.index(WNID)
    return {label: row[place] for label, row in table.rows.items()}, table.sha256


def wnid_of(text: str, label_map: Mapping[str, str]) -> str | None:
    """The WordNet id that a text means: an id, the name of one of the 1,000 classes, or an index of theirs.

    >>> wnid_of("n01440764", {}), wnid_of("Tench", {}), wnid_of("0", {}), wnid_of("fish", {"fish": "tench"})
    ('n01440764', 'n01440764', 'n01440764', 'n01440764')
    >>> wnid_of("1000", {}) is None
    True
    """
    text = label_map.get(text, text).strip()
    if _WNID.fullmatch(text):
        return text
    if text.isascii() and text.isdigit():
        return imagenet_1k().wnids[int(text)] if len(text) < 5 and int(text) < 1000 else None
    return _wnid_of_name().get(_plain(text))


@cache
def _wnid_of_name() -> dict[str, str]:
    return {_plain(name): wnid for name, wnid in zip(imagenet_1k_names(), imagenet_1k().wnids, strict=True)}


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").strip()


def labels_of(wnid: str | None) -> list[int]:
    """The acceptable ImageNet-1k indices: one, or none for a class outside the 1,000.

    >>> labels_of("n01440764"), labels_of("n00007846"), labels_of(None)
    ([0], [], [])
    """
    index = imagenet_1k_index().get(wnid or "")
    return [] if index is None else [index]
