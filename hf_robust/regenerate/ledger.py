"""The rows of a regeneration, joined over its finished stages: every candidate, kept or not, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..predictions.parts import footer_of, part_path, read_footer
from ..predictions.plan import DamagedError

ROW_ID, KEEP, REASON, DROPPED_BY = "row_id", "keep", "reason", "dropped_by"


@dataclass(frozen=True)
class Done:
    """A finished stage: its folder, the hash of what decided it, the rows of each part, its columns."""

    name: str
    folder: Path
    key: str
    rows_of: tuple[int, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Ledger:
    """Finished stages in their order; part i of each holds the same rows."""

    stages: tuple[Done, ...]

    @property
    def key(self) -> str:
        """Hash of everything that decided these rows."""
        return self.stages[-1].key

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.stages[0].rows_of)

    @property
    def rows_of(self) -> tuple[int, ...]:
        """Rows of each part."""
        return self.stages[0].rows_of

    @property
    def rows(self) -> int:
        """Number of rows, kept or not."""
        return sum(self.rows_of)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column of every stage, without DROPPED_BY."""
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.columns))

    def part(self, index: int, columns: tuple[str, ...] | None = None) -> pa.Table:
        """Part `index`: ROW_ID, the named columns (None: all), KEEP, REASON, and DROPPED_BY, the stage that dropped it.

        KeyError names a column that no stage has made; DamagedError a part with other bytes than were written.
        """
        wanted = [name for name in (self.columns if columns is None else columns) if name not in (ROW_ID, KEEP, REASON)]
        unknown = [name for name in wanted if name not in self.columns]
        if unknown:
            raise KeyError(f"no stage so far has made {', '.join(unknown)}; made: {', '.join(self.columns)}")
        joined: dict[str, Any] = {}
        rows = self.rows_of[index]
        keep, reason, dropped_by = [True] * rows, [None] * rows, [None] * rows
        for stage in self.stages:
            own = {ROW_ID, KEEP, REASON, *wanted} & set(stage.columns)
            table = read_stage_part(stage.folder, index, [name for name in stage.columns if name in own])
            _check_rows(stage, index, table, joined.get(ROW_ID, table[ROW_ID]), rows)
            joined |= {name: table[name] for name in table.column_names if name not in (KEEP, REASON)}
            if KEEP in table.column_names:
                _drop(stage.name, table, keep, reason, dropped_by)
        ordered = {name: joined[name] for name in (ROW_ID, *wanted)}
        kept = {KEEP: pa.array(keep, pa.bool_()), REASON: pa.array(reason, pa.string())}
        return pa.table({**ordered, **kept, DROPPED_BY: pa.array(dropped_by, pa.string())})

    def tables(self, columns: tuple[str, ...] | None = None) -> Iterator[pa.Table]:
        """Every part in order, one in memory at a time."""
        for index in range(self.parts):
            yield self.part(index, columns)

    def kept(self) -> int:
        """Number of rows that no stage dropped."""
        return sum(sum(table[KEEP].to_pylist()) for table in self.tables(()))

    def funnel(self, by: str | None = None) -> list[dict[str, Any]]:
        """How many rows each stage was given, dropped and kept, in all or for each value of the column `by`.

        `reasons` counts the rows of each reason.
        """
        dropped: dict[Any, Counter[tuple[str, str]]] = {}
        totals: Counter[Any] = Counter()
        for table in self.tables(() if by is None else (by,)):
            groups = [None] * len(table) if by is None else table[by].to_pylist()
            for group, stage, reason in zip(
                groups, table[DROPPED_BY].to_pylist(), table[REASON].to_pylist(), strict=True
            ):
                totals[group] += 1
                if stage is not None:
                    dropped.setdefault(group, Counter())[(stage, reason)] += 1
        return [
            row
            for group in sorted(totals, key=str)
            for row in self._steps(group, totals[group], dropped.get(group, Counter()), by)
        ]

    def _steps(
        self, group: Any, total: int, dropped: Mapping[tuple[str, str], int], by: str | None
    ) -> Iterator[dict[str, Any]]:
        left = total
        for stage in self.stages:
            reasons = {reason: n for (name, reason), n in sorted(dropped.items()) if name == stage.name}
            gone = sum(reasons.values())
            own = {} if by is None else {by: group}
            yield {**own, "stage": stage.name, "rows": left, "dropped": gone, "kept": left - gone, "reasons": reasons}
            left -= gone

    @staticmethod
    def ids(folder: Path, index: int) -> list[str]:
        """Row ids of one part of one stage."""
        return list(read_stage_part(folder, index, [ROW_ID])[ROW_ID].to_pylist())

    @staticmethod
    def column_names(folder: Path, index: int) -> list[str]:
        """Columns of one part of one stage."""
        return list(pq.read_schema(part_path(folder, index)).names)


def _check_rows(stage: Done, index: int, table: pa.Table, ids: pa.ChunkedArray, rows: int) -> None:
    # a part that was put in another's place is whole by itself
    if footer_of(table.schema).get("key") != stage.key or len(table) != rows or not table[ROW_ID].equals(ids):
        raise DamagedError(
            f"expected the {rows} rows of part {index} of the stages before in {part_path(stage.folder, index)}, "
            f"got others: remove {stage.folder} and run again"
        )


def _drop(stage: str, table: pa.Table, keep: list[Any], reason: list[Any], dropped_by: list[Any]) -> None:
    for i, (kept, why) in enumerate(zip(table[KEEP].to_pylist(), table[REASON].to_pylist(), strict=True)):
        if kept is False and keep[i]:
            keep[i], reason[i], dropped_by[i] = False, why, stage


def read_stage_part(folder: Path, index: int, columns: list[str]) -> pa.Table:
    """These columns of a part; DamagedError where its bytes are not those that were written."""
    path = part_path(folder, index)
    try:
        return pq.read_table(path, columns=columns, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(
            f"expected the part that a stage wrote in {path}, got {first_line(error)}: remove that file and run again"
        ) from error


def first_line(error: Exception) -> str:
    """What an error says, without the listings that pyarrow puts below."""
    return str(error).partition("\n")[0].rstrip(" .:")


def is_stage_part(folder: Path, index: int, key: str) -> bool:
    """Whether that part is there, made under this key."""
    footer = read_footer(part_path(folder, index))
    return footer is not None and footer.get("key") == key
