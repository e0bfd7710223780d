"""A stage of a regeneration: one function that reads finished stages and writes its own columns, part by part.

A stage never changes or removes a row. It adds columns, and may drop a row by `keep` = false with a `reason`. A folder
is named by the hash of everything that decides its content (settings, facts, the stage before), so that other settings
make another folder and leave what is there; a killed stage loses at most the parts in work.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import FileLock

from ..predictions.parts import part_path, put_table, work_list
from ..predictions.plan import DamagedError, canonical, read_json, write_json
from ..predictions.temporary import remove_leftovers
from ..runner import Meter, World
from .ledger import DROPPED_BY, KEEP, REASON, ROW_ID, Done, Ledger, is_stage_part
from .setting_kinds import in_words, is_of, kinds_of

__all__ = [
    "DROPPED_BY", "KEEP", "REASON", "ROW_ID",
    "Ledger", "PartWise", "Settings", "Source", "Stage", "StageError", "Waiting", "Whole", "Work",
    "for_kept", "row_id", "run_stage", "seed_of",
]  # fmt: skip

_SECONDS_BETWEEN_LOOKS = 0.5
STAGE_FILE, DONE_FILE = "stage.json", "done.json"
_SEAL = "sha256"  # of the rest of done.json: with fewer rows or columns in it the set would be another
_NULL = '"null"'  # how a config says none
Settings = Any  # a frozen dataclass of JSON values


class StageError(ValueError):
    """A stage that cannot be run as asked, or gave something that is no table of its rows."""


class Waiting(RuntimeError):
    """Work that people have to do before a stage can go on; the message says what and how."""


@dataclass(frozen=True)
class Work:
    """What a stage is given beside its settings.

    out         the folder of the regeneration.
    rows        the finished stages before this one; None for the first.
    candidates  the pool of pictures that the user named, if any.
    """

    out: Path
    world: World
    meter: Meter
    rows: Ledger | None = None
    candidates: str | None = None

    @property
    def ledger(self) -> Ledger:
        """The finished stages; StageError for the first stage, which has none."""
        if self.rows is None:
            raise StageError("expected a stage before this one, got none: begin the recipe with one that makes rows")
        return self.rows


@dataclass(frozen=True)
class Source:
    """The first stage: makes the rows. `make(index)` gives part `index` with ROW_ID and the lineage columns.

    facts  what decides the rows beside the settings, as JSON: the hash of a list of files, of a pool.
    rows   how many in all, where that is known before.
    """

    facts: Mapping[str, Any]
    parts: int
    make: Callable[[int], pa.Table]
    rows: int | None = None


@dataclass(frozen=True)
class PartWise:
    """A stage that treats each part alone: `make(rows)` gives ROW_ID and new columns for exactly these rows, in order.

    columns  those of earlier stages that it reads, beside ROW_ID, KEEP and REASON; None for all.
    """

    facts: Mapping[str, Any]
    make: Callable[[pa.Table], pa.Table]
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Whole:
    """A stage that has to see every row: `make(ledger)` yields each part's table, in order. One process does it."""

    facts: Mapping[str, Any]
    make: Callable[[Ledger], Iterable[pa.Table]]


Step = Source | PartWise | Whole


@dataclass(frozen=True)
class Stage:
    """One step of a recipe.

    settings  frozen dataclass: the stage's section of the config, every default the published procedure.
    start     called once a process, before any part; may do work that all processes share, such as running models.
    """

    name: str
    what: str
    settings: type
    start: Callable[[Settings, Work], Step]


def row_id(lineage: Mapping[str, Any]) -> str:
    """32 hexadecimal digits of the SHA-256 of a row's lineage: what it was made from, and nothing else.

    >>> row_id({"prompt": "a", "seed": 1}) == row_id({"seed": 1, "prompt": "a"})
    True
    """
    return hashlib.sha256(canonical(dict(lineage)).encode()).hexdigest()[:32]


def seed_of(*parts: object) -> int:
    """A seed below 2^63 from texts and numbers: the same on every machine, rank and batch.

    >>> seed_of("a", 1) == seed_of("a", 1), seed_of("a", 1) == seed_of("a", 2)
    (True, False)
    """
    return int.from_bytes(hashlib.sha256(canonical(list(parts)).encode()).digest()[:8], "big") >> 1


def for_kept(rows: pa.Table, make: Callable[[pa.Table], Mapping[str, pa.Array]]) -> pa.Table:
    """ROW_ID and the columns that `make` gives for the kept rows; null in rows that were dropped before.

    make may give KEEP and REASON too; a row dropped before gets KEEP null, which changes nothing.
    """
    kept = rows[KEEP].combine_chunks()
    places = pa.array(_places(kept.to_pylist()), pa.int64())
    columns = {name: pa.array(v) if isinstance(v, list) else v for name, v in make(rows.filter(kept)).items()}
    return pa.table({ROW_ID: rows[ROW_ID], **{name: values.take(places) for name, values in columns.items()}})


def _places(kept: Sequence[bool]) -> list[int | None]:
    places, count = [], 0
    for keep in kept:
        places.append(count if keep else None)
        count += keep
    return places


def run_stage(stage: Stage, settings: Settings, work: Work) -> Ledger:
    """The ledger with this stage's columns; makes the parts that are missing and joins in with other processes.

    Raises what the stage raises, StageError for a table that is not of its rows, Waiting where people have to act.
    """
    step = stage.start(settings, work)
    record = {
        "stage": stage.name,
        "settings": json.loads(canonical(asdict(settings))),
        "facts": json.loads(canonical(dict(step.facts))),
        "before": None if work.rows is None else work.rows.key,
    }
    key = hashlib.sha256(canonical(record).encode()).hexdigest()
    number = 1 if work.rows is None else len(work.rows.stages) + 1
    folder = work.out / f"{number}-{stage.name}-{key[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    if _read(folder / STAGE_FILE) != record:  # the key decides it, so an edited one is put right: the card quotes it
        write_json(folder / STAGE_FILE, record)
    parts = _parts(step, work)
    done = _done(stage.name, folder, key, parts)
    if done is None:
        remove_leftovers(folder)
        _make_parts(stage, step, folder, key, work)
        write_json(folder / DONE_FILE, _sealed(_summary(folder, key, parts, first=work.rows is None)))
        done = _done(stage.name, folder, key, parts)
    if done is None:
        raise DamagedError(f"expected {parts:,} parts in {folder}, got others meanwhile: is something else at work?")
    return Ledger((*(() if work.rows is None else work.rows.stages), done))


def finished(stage_folder: Path) -> bool:
    """Whether every part of that stage is there."""
    return (stage_folder / DONE_FILE).is_file()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except DamagedError:
        return None


def _done(name: str, folder: Path, key: str, parts: int) -> Done | None:
    """The finished stage; None where its record is absent or was touched, or a part is gone: those are made again."""
    summary = _read(folder / DONE_FILE)
    if summary is None or summary.get("key") != key or _sealed(summary) != summary:
        return None
    if sum(1 for _ in folder.glob("part-*.parquet")) < parts:
        return None
    return Done(name, folder, key, tuple(summary["rows"]), tuple(summary["columns"]))


def _sealed(summary: Mapping[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in summary.items() if name != _SEAL}
    return {**content, _SEAL: hashlib.sha256(canonical(content).encode()).hexdigest()}


def _parts(step: Step, work: Work) -> int:
    return step.parts if isinstance(step, Source) else work.ledger.parts


def _make_parts(stage: Stage, step: Step, folder: Path, key: str, work: Work) -> None:
    if isinstance(step, Whole):
        with FileLock(folder / ".lock"):
            missing = [i for i in range(work.ledger.parts) if not is_stage_part(folder, i, key)]
            if missing:
                _make_whole(stage, step, folder, key, work)
        return
    count = _parts(step, work)
    total = step.rows if isinstance(step, Source) else work.ledger.rows
    tell = _Progress(folder, key, count, total, work.meter)
    for index in work_list(range(count), work.world.rank, work.world.size):
        if not is_stage_part(folder, index, key):
            _put(stage, folder, index, key, _make(stage, step, index, work))
        tell()
    work.meter(total or count, total or count)


def _make(stage: Stage, step: Source | PartWise, index: int, work: Work) -> pa.Table:
    if isinstance(step, Source):
        table = step.make(index)
        if ROW_ID not in table.column_names:
            raise StageError(f"expected a column {ROW_ID!r} of stage {stage.name!r}, got {table.column_names}")
        return table
    before = work.ledger.part(index, step.columns)
    return _checked(stage, step.make(before), before, work.ledger)


def _make_whole(stage: Stage, step: Whole, folder: Path, key: str, work: Work) -> None:
    total, done = work.ledger.rows, 0
    for index, table in enumerate(step.make(work.ledger)):
        before = work.ledger.part(index, ())
        _put(stage, folder, index, key, _checked(stage, table, before, work.ledger))
        done += len(table)
        work.meter(done, total)


def _checked(stage: Stage, table: pa.Table, before: pa.Table, ledger: Ledger) -> pa.Table:
    if ROW_ID not in table.column_names or table[ROW_ID].to_pylist() != before[ROW_ID].to_pylist():
        raise StageError(f"expected the {len(before)} rows that stage {stage.name!r} was given, in order, got others")
    taken = [n for n in table.column_names if n in ledger.columns and n not in (ROW_ID, KEEP, REASON)]
    if taken:
        raise StageError(f"expected new columns of stage {stage.name!r}, got {', '.join(taken)} of an earlier stage")
    return table


def _put(stage: Stage, folder: Path, index: int, key: str, table: pa.Table) -> None:
    if KEEP in table.column_names:
        pairs = zip(table[KEEP].to_pylist(), table[REASON].to_pylist(), strict=True)
        if any(keep is False and not reason for keep, reason in pairs):
            raise StageError(f"expected a reason for every row that stage {stage.name!r} drops, got a row without one")
    put_table(part_path(folder, index), table, {"stage": stage.name, "key": key, "rows": len(table)})


def _summary(folder: Path, key: str, parts: int, *, first: bool) -> dict[str, Any]:
    """What done.json says; StageError where a row was made twice."""
    rows, columns = [], []
    seen = [np.zeros(0, np.uint64)]
    for index in range(parts):
        names = Ledger.column_names(folder, index)
        columns += [name for name in names if name not in columns]
        ids = Ledger.ids(folder, index)
        rows.append(len(ids))
        if first:  # eight bytes of each id are kept; the rows of later stages are those of the first
            seen.append(np.array([int(i[:16], 16) for i in ids], np.uint64))
    doubled = sum(rows) - len(np.unique(np.concatenate(seen))) if first else 0
    if doubled:
        raise StageError(f"expected rows with unique {ROW_ID}, got {doubled} twice in {folder}")
    return {"key": key, "rows": rows, "columns": columns}


@dataclass
class _Progress:
    """Tells how far all processes together are, by the parts on disk."""

    folder: Path
    key: str
    parts: int
    rows: int | None
    meter: Meter
    last: float = 0.0

    def __call__(self) -> None:
        now = time.monotonic()  # a folder of a million parts is not listed after each
        if now - self.last < _SECONDS_BETWEEN_LOOKS and self.last:
            return
        self.last = now
        there = sum(1 for _ in self.folder.glob("part-*.parquet"))
        if self.rows is None:
            self.meter(there, self.parts)
        else:
            self.meter(round(self.rows * there / max(1, self.parts)), self.rows)


def changed(settings: Settings, values: Mapping[str, Any], *, where: str) -> Settings:
    """The settings with these values; StageError for a name that is none of theirs, or a value of another kind."""
    known, kinds = asdict(settings), kinds_of(settings)
    for name, value in values.items():
        if name not in known:
            raise StageError(f"unknown setting {name!r} in {where}; known: {', '.join(known)}")
        if not is_of(value, kinds[name]):
            wanted = f"to be {in_words(kinds[name])}" if known[name] is None else f"like {known[name]!r}"
            raise StageError(f"expected {name} in {where} {wanted}, got {_NULL if value is None else repr(value)}")
    return replace(settings, **{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})


def iterate_kept(ledger: Ledger, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The kept rows one by one, with these columns."""
    for index in range(ledger.parts):
        table = ledger.part(index, tuple(columns))
        yield from table.filter(table[KEEP]).to_pylist()
