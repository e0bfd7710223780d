"""The metadata of OpenImages: who made a picture, under which licence, and which labels people gave it.

Read are the CSV files as published: image ids (ImageID, OriginalURL, OriginalLandingURL, License, Author, …) and labels
(ImageID, Source, LabelName, Confidence). They describe nine million pictures; what is kept is that of the pool alone.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from .collect import CollectSettings, start_collect
from .pool import open_pool
from .pool_labels import NONE
from .stage import Source, Stage, StageError, Work

OPENIMAGES_LABELS = "openimages_labels"
IMAGE_ID = "ImageID"
ORIGIN = {"licence": "License", "source_page": "OriginalLandingURL", "author": "Author"}  # ours -> theirs
_LABEL, _CONFIDENCE = "LabelName", "Confidence"
_BLOCK = 1 << 24


@dataclass(frozen=True)
class OpenImages:
    """What the metadata say about the pictures of a pool, by image id.

    origins  licence, source page and author, as in ORIGIN.   labels  those given with a confidence above 0, sorted.
    """

    origins: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, tuple[str, ...]]


def openimages_id(name: str) -> str:
    """The image id in a file's name.

    >>> openimages_id("train/000a1249af2bc5f0.jpg")
    '000a1249af2bc5f0'
    """
    return PurePosixPath(name).stem


def read_openimages(metadata: Sequence[Path], labels: Sequence[Path], ids: Collection[str]) -> OpenImages:
    """What the files say about these pictures; memory for the pictures alone, whatever the size of the files.

    A label counts from a confidence above 0: given by people, or by the machine and not refused. Labels of confidence 0
    say that people looked and saw nothing. StageError for a file that is no such CSV.
    """
    wanted = pa.array(sorted(ids), pa.string())
    origins: dict[str, tuple[str, ...]] = {}
    for path in metadata:
        for row in _rows(path, (IMAGE_ID, *ORIGIN.values()), wanted):
            origins[row[IMAGE_ID]] = tuple(sys.intern(row[theirs]) for theirs in ORIGIN.values())  # many are equal
    found: dict[str, set[str]] = defaultdict(set)
    for path in labels:
        for row in _rows(path, (IMAGE_ID, _LABEL, _CONFIDENCE), wanted):
            if _confidence(row[_CONFIDENCE], path) > 0:
                found[row[IMAGE_ID]].add(sys.intern(row[_LABEL]))
    return OpenImages(origins, {key: tuple(sorted(names)) for key, names in found.items()})


def _rows(path: Path, columns: Sequence[str], wanted: pa.Array) -> Iterator[dict[str, str]]:
    """The rows of these pictures, a block of the file in memory at a time."""
    from pyarrow import csv

    options = csv.ConvertOptions(
        include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()), strings_can_be_null=False
    )
    try:
        blocks = csv.open_csv(
            path,
            read_options=csv.ReadOptions(block_size=_BLOCK),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        with blocks:
            for block in blocks:
                yield from block.filter(pc.is_in(block[IMAGE_ID], value_set=wanted)).to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StageError(
            f"expected a CSV file of OpenImages with {', '.join(columns)} in {path}, got {error}"
        ) from error


def _confidence(text: str, path: Path) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise StageError(f"expected numbers in {_CONFIDENCE} of {path}, got {text!r}") from error


def file_hash(path: Path) -> str:
    """SHA-256 of a file; StageError where there is none."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise StageError(f"expected a file, got {error}") from error


@dataclass(frozen=True)
class CollectOpenImagesSettings:
    """Where the pictures of OpenImages are and what is known of them.

    pool        as for the stage `collect`; the file's name is the image id. --candidates of the command wins.
    metadata    CSV files of image ids, which say author, licence and page of each picture.
    labels      CSV files of labels; pictures without any have an empty list.
    min_side, part_rows, follow_links  as for `collect`.
    """

    pool: str = ""
    metadata: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    min_side: int = 64
    part_rows: int = 100
    follow_links: bool = False


def _start(settings: CollectOpenImagesSettings, work: Work) -> Source:
    collect = CollectSettings(
        settings.pool, label_by=NONE, require_label=False, min_side=settings.min_side, part_rows=settings.part_rows,
        follow_links=settings.follow_links,
    )  # fmt: skip
    rows = start_collect(collect, work)
    metadata, labels = ([Path(name) for name in names] for names in (settings.metadata, settings.labels))
    known = read_openimages(metadata, labels, _ids(collect, work))
    if metadata and not known.origins:
        raise StageError(
            f"expected image ids of {', '.join(settings.metadata)} as names of the pool's files, got none: "
            "give the CSV of the same subset"
        )
    facts = {**rows.facts, "metadata": [file_hash(p) for p in metadata], "labels": [file_hash(p) for p in labels]}
    return Source(facts, rows.parts, lambda part: _described(rows.make(part), known), rows.rows)


def _ids(settings: CollectSettings, work: Work) -> set[str]:
    pool = open_pool(
        work.candidates or settings.pool, work, part_rows=settings.part_rows, image_column=settings.image_column,
        follow_links=settings.follow_links,
    )  # fmt: skip
    return {openimages_id(entry.name) for part in range(len(pool.rows_of)) for entry in pool.entries(part)}


def _described(table: pa.Table, known: OpenImages) -> pa.Table:
    ids = [openimages_id(name) for name in table["name"].to_pylist()]
    nothing = ("",) * len(ORIGIN)
    for place, column in enumerate(ORIGIN):
        values = [known.origins.get(key, nothing)[place] or None for key in ids]
        table = table.set_column(table.column_names.index(column), column, pa.array(values, pa.string()))
    labels = pa.array([known.labels.get(key, ()) for key in ids], pa.list_(pa.string()))
    return table.append_column(OPENIMAGES_LABELS, labels)


COLLECT_OPENIMAGES = Stage(
    "collect_openimages", "pictures of OpenImages with author, licence and labels", CollectOpenImagesSettings, _start
)
