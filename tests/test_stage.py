"""Stages: parts, resuming, several processes, dropped rows, damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_robust.predictions.plan import DamagedError
from hf_robust.predictions.temporary import temporary_name
from hf_robust.regenerate.ledger import DROPPED_BY, KEEP, REASON, ROW_ID, Ledger
from hf_robust.regenerate.stage import (
    PartWise,
    Source,
    Stage,
    StageError,
    Whole,
    Work,
    changed,
    for_kept,
    row_id,
    run_stage,
    seed_of,
)
from hf_robust.runner import World

ALONE = World(0, 1, "cpu")


@dataclass(frozen=True)
class Numbers:
    rows: int = 25
    names: tuple[str, ...] = ()
    share: float = 0.5
    file: str | None = None


def _silent(done: int, total: int) -> None:
    pass


def work_in(out: Path, rows: Ledger | None = None, world: World = ALONE) -> Work:
    return Work(out, world, _silent, rows)


def _ids(first: int, last: int) -> list[str]:
    return [row_id({"n": n}) for n in range(first, last)]


def _count(settings: Numbers, work: Work) -> Source:
    def make(part: int) -> pa.Table:
        first, last = 10 * part, min(10 * part + 10, settings.rows)
        return pa.table(
            {ROW_ID: _ids(first, last), "n": list(range(first, last)), "image": [b"x" * 9] * (last - first)}
        )

    return Source({}, -(-settings.rows // 10), make, settings.rows)


MADE: list[str] = []


def _drop_odd(settings: Numbers, work: Work) -> PartWise:
    def make(rows: pa.Table) -> pa.Table:
        MADE.append(rows[ROW_ID][0].as_py())
        odd = [n % 2 == 1 for n in rows["n"].to_pylist()]
        return pa.table(
            {
                ROW_ID: rows[ROW_ID], "square": [n * n for n in rows["n"].to_pylist()],
                KEEP: [not o for o in odd], REASON: pa.array(["odd" if o else None for o in odd], pa.string()),
            }
        )  # fmt: skip

    return PartWise({}, make, ("n",))


def _drop_small(settings: Numbers, work: Work) -> Whole:
    def make(ledger: Ledger) -> Iterator[pa.Table]:
        for table in ledger.tables(("square",)):
            yield for_kept(table, lambda kept: _large(kept["square"].to_pylist()))

    return Whole({}, make)


def _large(squares: list[int]) -> dict[str, Any]:
    small = [s < 100 for s in squares]
    reasons = pa.array(["small" if s else None for s in small], pa.string())
    return {"half": [s // 2 for s in squares], KEEP: [not s for s in small], REASON: reasons}


COUNT = Stage("count", "makes numbers", Numbers, _count)
ODD = Stage("odd", "drops the odd ones", Numbers, _drop_odd)
SMALL = Stage("small", "drops the small ones", Numbers, _drop_small)


def run_all(out: Path, settings: Numbers, world: World = ALONE) -> Ledger:
    ledger = run_stage(COUNT, settings, work_in(out, world=world))
    ledger = run_stage(ODD, settings, work_in(out, ledger, world))
    return run_stage(SMALL, settings, work_in(out, ledger, world))


def content(out: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name != ".lock"
    }


def test_all_rows_stay_and_each_dropped_one_says_where_and_why(tmp_path: Path) -> None:
    ledger = run_all(tmp_path, Numbers())
    rows = [row for table in ledger.tables(("n", "half")) for row in table.to_pylist()]
    assert [row["n"] for row in rows] == list(range(25))
    assert [row["n"] for row in rows if row[KEEP]] == [10, 12, 14, 16, 18, 20, 22, 24]
    assert (rows[3][DROPPED_BY], rows[3][REASON], rows[3]["half"]) == ("odd", "odd", None)
    assert (rows[4][DROPPED_BY], rows[4][REASON], rows[4]["half"]) == ("small", "small", 8)
    assert ledger.kept() == 8


def test_the_funnel_adds_up_in_all_and_by_group(tmp_path: Path) -> None:
    ledger = run_all(tmp_path, Numbers())
    shown = [(row["stage"], row["rows"], row["dropped"], row["kept"], row["reasons"]) for row in ledger.funnel()]
    assert shown == [
        ("count", 25, 0, 25, {}),
        ("odd", 25, 12, 13, {"odd": 12}),
        ("small", 13, 5, 8, {"small": 5}),  # 0, 2, 4, 6, 8
    ]
    by_square = ledger.funnel("square")
    assert sum(row["kept"] for row in by_square if row["stage"] == "small") == 8


def test_two_processes_and_one_write_the_same_bytes(tmp_path: Path) -> None:
    run_all(tmp_path / "one", Numbers())
    ledger = None
    for stage in (COUNT, ODD, SMALL):
        for rank in (1, 0):  # each would do the other's parts as well: a process that comes late finds them there
            found = run_stage(stage, Numbers(), work_in(tmp_path / "two", ledger, World(rank, 2, "cpu")))
        ledger = found
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_finished_stage_is_not_made_again_and_a_lost_part_alone_is(tmp_path: Path) -> None:
    run_all(tmp_path, Numbers())
    before = content(tmp_path)
    MADE.clear()
    run_all(tmp_path, Numbers())
    assert MADE == []
    folder = next(tmp_path.glob("2-odd-*"))
    (folder / "part-00001.parquet").unlink()
    (folder / "done.json").unlink()  # as if killed before the last part
    half = temporary_name(folder / "part-00001.parquet")
    half.with_name(half.name.replace(f"-{os.getpid()}.tmp", "-999999999.tmp")).write_bytes(b"half")
    run_all(tmp_path, Numbers())
    assert len(MADE) == 1
    assert MADE[0] == row_id({"n": 10})
    assert content(tmp_path) == before


def test_other_settings_make_other_folders_and_leave_the_first_stages(tmp_path: Path) -> None:
    ledger = run_stage(COUNT, Numbers(), work_in(tmp_path))
    first = run_stage(ODD, Numbers(), work_in(tmp_path, ledger))
    MADE.clear()
    second = run_stage(ODD, Numbers(names=("other",)), work_in(tmp_path, ledger))
    assert len(MADE) == 3
    assert first.stages[1].folder != second.stages[1].folder
    assert len(list(tmp_path.glob("1-count-*"))) == 1


def test_a_stage_must_give_its_rows_new_columns_and_reasons(tmp_path: Path) -> None:
    ledger = run_stage(COUNT, Numbers(), work_in(tmp_path))

    def broken(name: str, make: Any) -> Stage:
        return Stage(name, "broken", Numbers, lambda settings, work: PartWise({}, make))

    fewer = broken("fewer", lambda rows: rows.select([ROW_ID]).slice(1))
    with pytest.raises(StageError, match="expected the 10 rows that stage 'fewer' was given, in order, got others"):
        run_stage(fewer, Numbers(), work_in(tmp_path, ledger))
    again = broken("again", lambda rows: rows.select([ROW_ID, "n"]))
    with pytest.raises(StageError, match="expected new columns of stage 'again', got n of an earlier stage"):
        run_stage(again, Numbers(), work_in(tmp_path, ledger))
    no_reason = {KEEP: pa.array([False] * 10), REASON: pa.nulls(10, pa.string())}
    silent = broken("silent", lambda rows: pa.table({ROW_ID: rows[ROW_ID], **no_reason}))
    with pytest.raises(StageError, match="expected a reason for every row that stage 'silent' drops"):
        run_stage(silent, Numbers(), work_in(tmp_path, ledger))


def test_rows_made_twice_are_refused(tmp_path: Path) -> None:
    def start(settings: Numbers, work: Work) -> Source:
        return Source({}, 2, lambda part: pa.table({ROW_ID: _ids(0, 5)}))

    with pytest.raises(StageError, match="expected rows with unique row_id, got 5 twice"):
        run_stage(Stage("twice", "", Numbers, start), Numbers(), work_in(tmp_path))


def test_damaged_bytes_of_a_part_are_found_when_it_is_read(tmp_path: Path) -> None:
    ledger = run_stage(COUNT, Numbers(), work_in(tmp_path))
    path = ledger.stages[0].folder / "part-00001.parquet"
    raw = bytearray(path.read_bytes())
    raw[60] ^= 0xFF
    path.write_bytes(bytes(raw))
    with pytest.raises(DamagedError, match=r"expected the part that a stage wrote in .*part-00001"):
        ledger.part(1)
    with pytest.raises(KeyError, match="no stage so far has made cube; made: row_id, n, image"):
        ledger.part(0, ("cube",))


def test_settings_of_another_kind_or_name_are_refused() -> None:
    assert changed(Numbers(), {"rows": 3, "names": ["a"], "share": 1}, where="x") == Numbers(3, ("a",), 1)
    assert changed(Numbers(), {"file": "a.csv"}, where="x").file == "a.csv"
    with pytest.raises(StageError, match=r"unknown setting 'row' in --set; known: rows, names, share, file"):
        changed(Numbers(), {"row": 3}, where="--set")
    with pytest.raises(StageError, match=r"expected rows in \[count\] like 25, got 'many'"):
        changed(Numbers(), {"rows": "many"}, where="[count]")
    with pytest.raises(StageError, match="expected rows in x like 25, got True"):
        changed(Numbers(), {"rows": True}, where="x")


def test_ids_and_seeds_depend_on_content_alone() -> None:
    assert row_id({"a": 1, "b": 2}) == row_id({"b": 2, "a": 1}) != row_id({"a": 1, "b": 3})
    assert 0 <= seed_of("x", 1) < 2**63
    assert seed_of("x", 1) == seed_of("x", 1) != seed_of("x", 2)


def test_parts_hold_page_checksums(tmp_path: Path) -> None:
    ledger = run_stage(COUNT, Numbers(), work_in(tmp_path))
    table = pq.read_table(ledger.stages[0].folder / "part-00000.parquet", page_checksum_verification=True)
    assert table["n"].to_pylist() == list(range(10))
