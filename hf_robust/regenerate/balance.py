"""How many pictures of each class go on: at least, at most, and in all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from .ledger import KEEP, REASON, ROW_ID, Ledger
from .stage import Stage, StageError, Whole, Work

TOO_FEW, CLASS_FULL, SET_FULL = "its class has too few pictures", "its class is full", "the set is full"
SEEDED = "seeded"


@dataclass(frozen=True)
class BalanceSettings:
    """How a set is balanced.

    by        the column that holds a picture's class.
    at_least  classes with fewer candidates than this are dropped whole, before anything else.
    at_most   pictures of a class; None: no limit. Published ImageNet-A has 3 to 100, after human review.
    total     pictures of the set, taken from all classes in turn; None: no limit.
    order     which pictures of a class come first: "seeded", a draw by the row's id, so that a limit selects no more
              against the filters than they did; or a numeric column, smallest first, "-column" for largest first.
    """

    by: str = "labels"
    at_least: int = 1
    at_most: int | None = None
    total: int | None = None
    order: str = SEEDED
    seed: int = 0


@dataclass(frozen=True)
class BalanceOSettings(BalanceSettings):
    """How a set like ImageNet-O is balanced, over the classes that its pictures are taken for.

    by        the column that holds a picture's class; "wnid": what is thought to be on it.
    at_least  classes with fewer candidates than this are dropped whole, before anything else.
    at_most   pictures of a class; None: no limit.
    total     pictures of the set, taken from all classes in turn; None: no limit. Published ImageNet-O has 2,000, after
              human review.
    order     which pictures of a class come first: "seeded", a draw by the row's id; or a numeric column, smallest
              first, "-column" for largest first: "-confidence" takes what the filter is surest of.
    """

    by: str = "confused_with"


@dataclass(frozen=True, slots=True)
class _Row:
    position: int
    group: Any
    rank: tuple[float, str]


def _start(settings: BalanceSettings, work: Work) -> Whole:
    for name in ("at_least", "at_most", "total"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise StageError(f"expected {name} of at least 1, got {value}: leave it out for no limit")
    column = [] if settings.order == SEEDED else [settings.order.removeprefix("-")]
    unknown = [name for name in (settings.by, *column) if name not in work.ledger.columns]
    if unknown:
        raise StageError(f"unknown column {unknown[0]!r} in by or order; known: {', '.join(work.ledger.columns)}")
    return Whole({}, lambda ledger: dropped(ledger, _reasons(ledger, settings)))


def dropped(ledger: Ledger, reasons: Mapping[int, str]) -> Iterator[pa.Table]:
    """A table for each part that drops the rows at these positions, counted over the whole ledger, and no other."""
    start = 0
    for table in ledger.tables(()):
        before = table[KEEP].to_pylist()
        own = [reasons.get(start + i) if kept else None for i, kept in enumerate(before)]
        keep = [None if not kept else why is None for kept, why in zip(before, own, strict=True)]
        yield pa.table({ROW_ID: table[ROW_ID], KEEP: pa.array(keep, pa.bool_()), REASON: pa.array(own, pa.string())})
        start += len(table)


def _reasons(ledger: Ledger, settings: BalanceSettings) -> dict[int, str]:
    classes: dict[Any, list[_Row]] = {}
    for row in _kept(ledger, settings):
        classes.setdefault(row.group, []).append(row)
    reasons: dict[int, str] = {}
    left: list[tuple[int, tuple[float, str], int]] = []  # place in the class, rank, position
    for rows in classes.values():
        rows.sort(key=lambda row: row.rank)
        few = len(rows) < settings.at_least
        full = len(rows) if settings.at_most is None else settings.at_most
        reasons |= {row.position: TOO_FEW if few else CLASS_FULL for row in rows[0 if few else full :]}
        left += [] if few else [(place, row.rank, row.position) for place, row in enumerate(rows[:full])]
    beyond = sorted(left)[settings.total :] if settings.total is not None else []
    return reasons | {position: SET_FULL for _, _, position in beyond}


def _kept(ledger: Ledger, settings: BalanceSettings) -> Iterator[_Row]:
    """The kept rows; ranked by a column, ties go by the draw."""
    column = None if settings.order == SEEDED else settings.order.removeprefix("-")
    sign = -1.0 if settings.order.startswith("-") else 1.0
    start = 0
    for table in ledger.tables((settings.by, *([column] if column else []))):
        for i, row in enumerate(table.to_pylist()):
            if row[KEEP]:
                group = tuple(row[settings.by]) if isinstance(row[settings.by], list) else row[settings.by]
                yield _Row(start + i, group, (_number(row, column, sign), _draw(settings.seed, row[ROW_ID])))
        start += len(table)


def _number(row: Mapping[str, Any], column: str | None, sign: float) -> float:
    if column is None:
        return 0.0
    value = row[column]
    if not isinstance(value, int | float) or value != value:
        raise StageError(f"expected a number in column {column!r} of every kept row, got {value!r} in {row[ROW_ID]}")
    return sign * value


def _draw(seed: int, key: str) -> str:
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()


BALANCE = Stage("balance", "limit the pictures of each class and of the set", BalanceSettings, _start)
BALANCE_O = Stage("balance", "limit the pictures of each predicted class and of the set", BalanceOSettings, _start)
