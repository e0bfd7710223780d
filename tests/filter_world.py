"""A pool of pictures as the first stage of a regeneration, and the way through the stages after it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hf_robust.labels import imagenet_1k_index
from hf_robust.regenerate.ledger import KEEP, REASON, ROW_ID, Ledger
from hf_robust.regenerate.stage import Source, Stage, Work, row_id, run_stage
from hf_robust.runner import World

TINY = "timm-random/test_vit"
PARTS = 4


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


def work(out: Path, *, rank: int = 0, size: int = 1) -> Work:
    return Work(out, World(rank, size, "cpu"), lambda done, total: None)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes() if file.exists() else file.name.encode()).hexdigest()


def _sha256(path: Path) -> str | None:
    """Of a file's bytes; None for a name that stands for no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def pool(files: Sequence[tuple[Path, str | None]], *, part_rows: int = PARTS, **more: Sequence[Any]) -> Stage:
    """A stage whose rows are (file, WordNet id); further columns by name, one value a row."""

    def make(part: int) -> pa.Table:
        where = range(part * part_rows, min((part + 1) * part_rows, len(files)))
        index = imagenet_1k_index()
        wnids = [files[i][1] for i in where]
        return pa.table(
            {
                ROW_ID: [row_id({"name": files[i][0].name}) for i in where],
                "name": [files[i][0].name for i in where],
                "source": [str(files[i][0]) for i in where],
                "offset": pa.nulls(len(where), pa.int64()),
                "length": pa.nulls(len(where), pa.int64()),
                "wnid": pa.array(wnids, pa.string()),
                "labels": pa.array([[index[w]] if w in index else [] for w in wnids], pa.list_(pa.int32())),
                "image_sha256": [_sha256(files[i][0]) for i in where],
                **{name: [values[i] for i in where] for name, values in more.items()},
            }
        )

    parts = -(-len(files) // part_rows)
    facts = {"files": [[file.name, wnid] for file, wnid in files], "more": {n: [str(v) for v in more[n]] for n in more}}
    return Stage("pool", "test pictures", NoSettings, lambda settings, work: Source(facts, parts, make))


def through(out: Path, *steps: tuple[Stage, Any], rank: int = 0, size: int = 1) -> Ledger:
    """The ledger after these (stage, settings)."""
    now = work(out, rank=rank, size=size)
    for stage, settings in steps:
        now = replace(now, rows=run_stage(stage, settings, now))
    return now.ledger


def rows_of(ledger: Ledger, columns: tuple[str, ...] | None = None) -> list[dict[str, Any]]:
    return [row for table in ledger.tables(columns) for row in table.to_pylist()]


def by_name(ledger: Ledger) -> Mapping[str, dict[str, Any]]:
    return {row["name"]: row for row in rows_of(ledger)}


def bytes_of(out: Path) -> dict[str, bytes]:
    """Every part of every stage."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.glob("*-*/part-*.parquet"))}


__all__ = ["KEEP", "REASON", "TINY", "by_name", "bytes_of", "pool", "rows_of", "through", "work"]
