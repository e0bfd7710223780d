"""What a builder is, as data: where the official archive lies, what it holds, and how a path becomes a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schema import dataset_features
from .archive import Archive

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True, slots=True)
class Picture:
    """What the path of a picture tells.

    group    its class as in Recipe.classes.
    columns  every column of the data set but image, file_name and sha256; null where the name does not tell.
    problem  what about the name differs from the official ones; None where nothing does.
    """

    file_name: str
    split: str
    group: str
    columns: Mapping[str, Any]
    problem: str | None = None


# The picture of a path (without leading folders), or the reason why it has to be left out.
Describe = Callable[[str], Picture | str]


@dataclass(frozen=True)
class Reading:
    """How to read one open archive.

    depth              parts of a picture's path that count; what stands before them is a leading folder.
    differences        what the side files (devkit, questions) lack.
    as_published       whether this is the layout whose checksum is published.
    """

    describe: Describe
    depth: int = 2
    differences: tuple[str, ...] = ()
    as_published: bool = True


@dataclass(frozen=True)
class Recipe:
    """One buildable data set.

    digest      (algorithm, hexadecimal value) of the official archive; None where none is published.
    splits      split -> official number of pictures.
    classes     official classes (folder names or WordNet ids); per_class the official number in each, if equal.
    names       of the class column, in label order; None: `classes`.
    columns_of  data set whose columns it has, for a set that follows a published one; None: its own.
    suffixes    ending as written -> official number; empty where not published.
    tolerated   beginnings of the names of other files that the official archive holds.
    """

    name: str
    title: str
    addresses: tuple[str, ...]
    digest: tuple[str, str] | None
    splits: Mapping[str, int]
    classes: tuple[str, ...]
    reader: Callable[[Archive, Path, Path | None], Reading]
    top_folders: tuple[str, ...]
    layout: str
    per_class: int | None = None
    names: tuple[str, ...] | None = None
    columns_of: str | None = None
    suffixes: Mapping[str, int] = field(default_factory=dict)
    square: bool = False
    nested: bool = False
    tolerated: tuple[str, ...] = ("README", "LICENSE", "timestamp")

    def features(self) -> datasets.Features:
        """The columns of the built set."""
        return dataset_features(self.columns_of or self.name, self.names or self.classes)


def by_path(describe: Describe) -> Callable[[Archive, Path, Path | None], Reading]:
    """A reader for archives whose pictures are told by their paths alone."""
    return lambda archive, source, devkit: Reading(describe)
