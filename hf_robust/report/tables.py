"""Results as a Markdown page for people and as flat CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from .leaderboard import Cell, Column, Leaderboard, Line, Result, leaderboard, marks, number, ordered, plain, unit

_EMPTY = "—"
_FLAT = (
    "model", "benchmark", "metric", "split", "value", "ci95_low", "ci95_high", "n", "n_failed", "complete", "subset",
    "headline", "preprocessing", "run", "reason", "notes",
)  # fmt: skip


def escape(text: object) -> str:
    """`text` as one Markdown table cell that shows exactly these characters."""
    shown = plain(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([|`*\[\]~])", r"\\\1", shown)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", shown)  # inside a word an underscore is literal anyway


def _table(header: Sequence[str], right: Sequence[bool], body: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---:" if r else "---" for r in right]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *body)]


def markdown(results: Sequence[Result]) -> str:
    """The report page: leaderboard in per cent with footnotes and legend, then every benchmark with all its numbers."""
    if not results:
        return "# Results\n\nNo results.\n"
    board = leaderboard(results)
    parts = ["# Results", "", *_leaderboard(board)]
    rows = [r for r in ordered(results) if r["benchmark"]]
    for benchmark, group in groupby(rows, key=lambda r: str(r["benchmark"])):
        parts += ["", f"## {escape(benchmark)}", "", *_section(list(group))]
    return "\n".join(parts) + "\n"


def _leaderboard(board: Leaderboard) -> list[str]:
    header, right = ["Model", "Preprocessing", "Run"], [False, False, False]
    for column in board.columns:
        names = [f"{column.benchmark} {column.metric}", *filter(None, [column.companion])]
        header += [escape(f"{name.strip()} (%)") for name in names]
        right += [True] * len(names)
    text = _table(header, right, (_line(line, board.columns) for line in board.lines))
    if any(cell.interval for line in board.lines for cell in line.cells):
        text += ["", "Headline values in per cent, in brackets the 95 % interval."]
    notes = [f"({i}) {escape(note.text)}" for i, note in enumerate(board.footnotes, 1)]
    return text + [line for note in (*notes, *map(escape, board.legend)) for line in ("", note)]


def _line(line: Line, columns: Sequence[Column]) -> list[str]:
    cells = [escape(line.model), escape(line.preprocessing), escape(line.run)]
    for column, cell in zip(columns, line.cells, strict=True):
        cells.append(_headline(cell))
        if column.companion:
            cells.append(_EMPTY if cell.companion is None else f"{100 * cell.companion:.1f}")
    return cells


def _headline(cell: Cell) -> str:
    if cell.value is None:
        return f"{_EMPTY} ({cell.footnote})"
    interval = f" [{100 * cell.interval[0]:.1f}, {100 * cell.interval[1]:.1f}]" if cell.interval else ""
    return f"{100 * cell.value:.1f}{cell.marks}{interval}"


def _section(rows: Sequence[Result]) -> list[str]:
    shared, own = _protocols(rows)
    header = ["Metric", "Split", "Model", "Preprocessing", "Run", "Value", "Unit", "95 % interval", "n", "Remark"]
    right = [False, False, False, False, False, True, False, True, True, False]
    text = [f"Protocol: {'; '.join(shared)}.", ""] if shared else []
    text += [line for item in own for line in (f"- {item}",)] + ([""] if own else [])
    return text + _table(header, right, map(_row, rows))


def _row(row: Result) -> list[str]:
    metric = str(row["metric"] or "")
    low_high = row["ci95"]
    value = _EMPTY if row["value"] is None else number(row["value"], metric) + marks(row)
    interval = f"[{number(low_high[0], metric)}, {number(low_high[1], metric)}]" if low_high else ""
    unread = f"{row['n_failed']} pictures could not be read" if row["n_failed"] else ""
    remark = "; ".join(filter(None, [row["reason"], unread, *row["notes"]]))
    names = [escape(row[name] or "") for name in ("model", "preprocessing", "run")]
    split = escape(row["split"] or "all") if metric else ""
    return [
        escape(metric) or "(failed)",
        split,
        *names,
        value,
        unit(metric) if metric else "",
        interval,
        str(row["n"]),
        escape(remark),
    ]


def _protocols(rows: Sequence[Result]) -> tuple[list[str], list[str]]:
    """What holds for the whole section, and what differs: by metric, or by metric and model where models differ."""
    with_one = [r for r in rows if r["metric"] and r["protocol"]]
    items = [{k: _shown(v) for k, v in r["protocol"].items()} for r in with_one]
    shared = [k for k in (items[0] if items else {}) if all(i.get(k) == items[0][k] for i in items)]
    rest: dict[str, dict[str, None]] = {}
    for row, item in zip(with_one, items, strict=True):
        differing = "; ".join(f"{escape(k)}: {escape(v)}" for k, v in item.items() if k not in shared)
        if differing:
            rest.setdefault(differing, {})[str(row["metric"])] = None
    own = [f"{', '.join(escape(m) for m in names)}: {text}" for text, names in rest.items()]
    return [f"{escape(k)}: {escape(items[0][k])}" for k in shared], own


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def csv_text(results: Sequence[Result]) -> str:
    """One row a result, flat columns, fractions with all digits; each protocol entry is a column of its own."""
    rows = ordered(results)
    keys = sorted({str(key) for row in rows for key in row["protocol"]})
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*_FLAT, *(_inert(f"protocol_{key}") for key in keys)])
    for row in rows:
        low, high = row["ci95"] or (None, None)
        flat = {**row, "ci95_low": low, "ci95_high": high, "notes": "; ".join(map(str, row["notes"]))}
        protocol = [_shown(row["protocol"][key]) if key in row["protocol"] else None for key in keys]
        writer.writerow([_inert(value) for value in (*(flat[name] for name in _FLAT), *protocol)])
    return stream.getvalue()


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
