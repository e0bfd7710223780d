"""Stage `collect`: the pictures of a pool become the rows of a regeneration, each looked at once."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..runner import World
from .inspect_picture import UNREADABLE, Inspected, inspect_picture
from .ledger import KEEP, REASON, ROW_ID
from .pool import open_pool, pool_bytes
from .pool_base import Entry, LostPictureError
from .pool_labels import NONE, Sidecar, label_reader, labels_of, read_label_map, read_sidecar, wnid_of
from .pool_place import below, remember_place
from .stage import Source, Stage, StageError, Work, row_id

NO_LABEL = "no label"
_SPELLINGS = {"licence": ("licence", "license"), "source_page": ("source_page", "url"), "author": ("author",)}


@dataclass(frozen=True)
class CollectSettings:
    """Where candidates are and what is known of them.

    pool            as `pool.open_pool` takes it; --candidates of the command wins.
    label_by        which text says what a picture shows: "folder" (name of its folder), "column:NAME" (a column of the
                    Parquet file or of the sidecar, a key of the JSON or the ending of a text beside it in a tar),
                    "file:CSV" (columns file_name, label), "none".
    label_map       CSV with columns label, wnid: what such a text means where it is no WordNet id, name of one of the
                    1,000 classes, or index of theirs.
    sidecar         CSV with column file_name and more, such as licence, source_page, author.
    require_label   whether a picture without a class is dropped.
    licence, source_page, author  the columns that hold these; None: the usual names.
    min_side        pixels of the shorter side.
    part_rows       pictures a part: what a kill can lose. More for millions.
    follow_links    whether files may be links that lead out of the folder.
    """

    pool: str = ""
    label_by: str = "folder"
    label_map: str | None = None
    sidecar: str | None = None
    require_label: bool = True
    licence: str | None = None
    source_page: str | None = None
    author: str | None = None
    image_column: str = "image"
    min_side: int = 64
    part_rows: int = 100
    follow_links: bool = False


SCHEMA = pa.schema(
    {
        ROW_ID: pa.string(),
        "name": pa.string(),
        "source": pa.string(),
        "offset": pa.int64(),
        "length": pa.int64(),
        "weak_label": pa.string(),
        "wnid": pa.string(),
        "labels": pa.list_(pa.int32()),
        "image_sha256": pa.string(),
        "width": pa.int32(),
        "height": pa.int32(),
        "format": pa.string(),
        "mode": pa.string(),
        "exif_orientation": pa.int32(),
        "licence": pa.string(),
        "source_page": pa.string(),
        "author": pa.string(),
        "detail": pa.string(),
        KEEP: pa.bool_(),
        REASON: pa.string(),
    }
)


def start_collect(settings: CollectSettings, work: Work) -> Source:
    """The rows of the pool; errors as `open_pool`, `label_reader` and `read_sidecar`."""
    pool = open_pool(
        work.candidates or settings.pool,
        work,
        part_rows=settings.part_rows,
        image_column=settings.image_column,
        follow_links=settings.follow_links,
    )
    remember_place(work.out, pool.root)
    if settings.min_side < 0:
        raise StageError(f"expected min_side of 0 or more pixels, got {settings.min_side}")
    read_label, labelled_by = label_reader(settings.label_by)
    label_map, map_hash = ({}, None) if settings.label_map is None else read_label_map(Path(settings.label_map))
    sidecar = None if settings.sidecar is None else read_sidecar(Path(settings.sidecar))

    def described(entry: Entry) -> dict[str, Any]:
        columns = {**entry.columns, **(sidecar.of(entry) if sidecar is not None else {})}
        text = read_label(entry, columns)
        wnid = wnid_of(text, label_map) if text else None
        said = {"weak_label": text or None, "wnid": wnid, "labels": labels_of(wnid)}
        return said | _provenance(settings, columns)

    def make(part: int) -> pa.Table:
        rows = [_row(entry, settings, described, pool.root) for entry in pool.entries(part)]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    files = {"sidecar": _hash(sidecar), "label_file": _hash(labelled_by), "label_map": map_hash}
    return Source({"pool": dict(pool.facts), **files}, len(pool.rows_of), make, rows=sum(pool.rows_of))


def _hash(file: Sidecar | None) -> str | None:
    return None if file is None else file.sha256


def _provenance(settings: CollectSettings, columns: Mapping[str, str]) -> dict[str, str | None]:
    found = {}
    for name, spellings in _SPELLINGS.items():
        asked = getattr(settings, name)
        values = [columns[s] for s in ((asked,) if asked is not None else spellings) if columns.get(s)]
        found[name] = values[0] if values else None
    return found


def _row(
    entry: Entry, settings: CollectSettings, described: Callable[[Entry], dict[str, Any]], root: str | None
) -> dict[str, Any]:
    content, reason, detail = None, entry.trouble, None
    if reason is None:
        try:
            content = pool_bytes(entry.source, entry.offset, entry.length)
        except (LostPictureError, PermissionError) as error:
            reason, detail = UNREADABLE, str(error)
        except OSError as error:  # a disk or network that is away must not make a pool of unreadable pictures
            raise StageError(
                f"expected to read {entry.name} of the pool, got {error}: is it still where it was? Then run again"
            ) from error
    sha256 = None if content is None else hashlib.sha256(content).hexdigest()
    seen = Inspected() if content is None else inspect_picture(content, min_side=settings.min_side)
    said = described(entry)
    reason = reason or seen.trouble
    if reason is None and said["wnid"] is None and settings.require_label and settings.label_by != NONE:
        reason = NO_LABEL
    header = {n: v for n, v in asdict(seen).items() if n in SCHEMA.names}
    return {
        # by content and name, not by place: a pool that moved has the same rows
        ROW_ID: row_id({"name": entry.name, "image_sha256": sha256}),
        "name": entry.name,
        "source": below(entry.source, root) or None,
        "offset": entry.offset,
        "length": entry.length,
        "image_sha256": sha256,
        **said,
        **header,
        "detail": detail or seen.detail,
        KEEP: reason is None,
        REASON: reason,
    }


def estimate(settings: Any, candidates: str) -> list[str]:
    """How many pictures a pool holds and what looking at them would take, as lines of text; from its first part.

    settings  of `collect`, or of a stage with some of the same fields.  Nothing is written that stays; the headers of
    every tar are read. Errors as `start_collect`.
    """
    names = {field.name for field in fields(CollectSettings)}
    known = {name: value for name, value in asdict(settings).items() if name in names}
    asked = CollectSettings(**{"label_by": NONE, **known})
    with tempfile.TemporaryDirectory() as scratch:
        work = Work(Path(scratch), World(0, 1, "cpu"), lambda *_: None, candidates=candidates)
        step = start_collect(asked, work)
        begun = time.perf_counter()
        table = step.make(0)
        seconds = (time.perf_counter() - begun) / len(table) * (step.rows or 0)
    reasons = Counter(reason for reason in table[REASON].to_pylist() if reason is not None)
    dropped = ", ".join(f"{reason} {n:,}" for reason, n in sorted(reasons.items())) or "none"
    return [
        f"pool: {step.rows:,} pictures in {step.parts:,} parts",
        f"of the first {len(table):,}, dropped: {dropped}",
        f"looking at all of them: about {max(1, round(seconds / 60)):,} min in one process",
    ]


COLLECT = Stage("collect", "pictures of a pool become rows, each looked at once", CollectSettings, start_collect)
