"""Results as a Markdown page for people and as flat CSV for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ..scoring.people import is_people
from .leaderboard import (
    Cell,
    Column,
    Leaderboard,
    Line,
    Result,
    is_whole,
    leaderboard,
    marks,
    metric_name,
    number,
    ordered,
    plain,
    unit,
    variant,
)
from .notes import details_of, legend, notes_of, protocol_lines, remarks, shared_notes

_EMPTY = "—"
_RIGHT = ("Value", "95 % interval", "n")
_FULL = (
    "In full, with fingerprints of the data, its differences from the official one and each transform: results.json."
)
_FLAT = (
    "model", "benchmark", "metric", "ood_score", "spufix", "split", "value", "ci95_low", "ci95_high", "n", "n_failed",
    "complete", "subset", "headline", "preprocessing", "run", "reason", "notes", "kind",
)  # fmt: skip


def escape(text: object) -> str:
    """`text` as one Markdown table cell that shows exactly these characters; harmless ones stay bare."""
    shown = plain(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([|`*~])", r"\\\1", shown)
    shown = re.sub(r"^\[|\](?=[(:\[])", r"\\\g<0>", shown)  # what makes a link; other brackets are only brackets
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", shown)  # inside a word an underscore is literal anyway


def _list(texts: Iterable[str]) -> list[str]:
    """A Markdown list; an item that begins like a heading or a list of its own stays text."""
    return ["- " + re.sub(r"^(\d*)(?=[-+#.)])", r"\1\\", escape(text)) for text in texts]


def _table(header: Sequence[str], right: Sequence[bool], body: Iterable[Sequence[str]]) -> list[str]:
    rule = ["---:" if r else "---" for r in right]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *body)]


def markdown(results: Sequence[Result]) -> str:
    """The report page: leaderboard in per cent with footnotes and legend, then every benchmark with all its numbers."""
    if not results:
        return "# Results\n\nNo results.\n"
    rows = ordered(results)
    parts = ["# Results", "", *_leaderboard(leaderboard(rows), rows)]
    for benchmark, group in groupby([r for r in rows if r["benchmark"]], key=lambda r: str(r["benchmark"])):
        own = list(group)
        people, models = [row for row in own if is_people(row)], [row for row in own if not is_people(row)]
        parts += ["", f"## {escape(benchmark)}", *(_section(models) if models else [])]
        parts += ["", "### People", *_section(people)] if people else []
    return "\n".join([*parts, "", _FULL]) + "\n"


def _leaderboard(board: Leaderboard, rows: Sequence[Result]) -> list[str]:
    header, right = ["Model", "Preprocessing", "Run"], [False, False, False]
    for column in board.columns:
        names = [f"{column.benchmark} {column.metric}", *filter(None, [column.companion])]
        header += [escape(f"{name.strip()} (%)") for name in names]
        right += [True] * len(names)
    text = _table(header, right, (_line(line, board.columns) for line in board.lines))
    if any(cell.interval for line in board.lines for cell in line.cells):
        text += ["", "Headline values in per cent, in brackets the 95 % interval."]
    holes = [f"({i}) {note.text}" for i, note in enumerate(board.footnotes, 1)]
    remaining = [*holes, *legend(rows), *remarks(rows)]
    return [*text, "", *_list(remaining)] if remaining else text


def _line(line: Line, columns: Sequence[Column]) -> list[str]:
    cells = [escape(line.model), escape(line.preprocessing), escape(line.run)]
    for column, cell in zip(columns, line.cells, strict=True):
        cells.append(_headline(cell))
        if column.companion:
            nothing = "" if line.people else _EMPTY
            cells.append(nothing if cell.companion is None else f"{100 * cell.companion:.1f}")
    return cells


def _headline(cell: Cell) -> str:
    if cell.value is None:
        return f"{_EMPTY} ({cell.footnote})" if cell.footnote else ""
    interval = f" [{100 * cell.interval[0]:.1f}, {100 * cell.interval[1]:.1f}]" if cell.interval else ""
    return f"{100 * cell.value:.1f}{cell.marks}{interval}"


def _section(rows: Sequence[Result]) -> list[str]:
    """Who was evaluated, the protocol, the notes, then a table of what differs from row to row."""
    notes, said = shared_notes(rows)
    cells = [_row(row, said) for row in rows]
    one = {name for name in ("Model", "Preprocessing", "Run") if len({row[name] for row in cells}) == 1}
    empty = {name for name in ("95 % interval", "Details", "Remark") if not any(row[name] for row in cells)}
    empty |= {"Split"} if all(map(is_whole, rows)) else set()
    who = "; ".join(f"{name.lower()}: {cells[0][name]}" for name in cells[0] if name in one and cells[0][name])
    text = ["", f"{who[0].upper()}{who[1:]}"] if who else []
    for title, items in (("Protocol:", protocol_lines(rows)), ("Notes:", notes)):
        text += ["", title, "", *_list(items)] if items else []
    header = [name for name in cells[0] if name not in one | empty]
    return [*text, "", *_table(header, [h in _RIGHT for h in header], ([row[h] for h in header] for row in cells))]


def _row(row: Result, said: set[str]) -> dict[str, str]:
    metric, ends = str(row["metric"] or ""), row["ci95"]
    remark = "; ".join(filter(None, [row["reason"], *(note for note in notes_of(row) if note not in said)]))
    return {
        "Metric": escape(metric_name(row)) or "(failed)",
        "Split": "all" if is_whole(row) else escape(row["split"]),
        "Model": escape(row["model"]),
        "Preprocessing": escape(row["preprocessing"] or ""),
        "Run": escape(row["run"] or ""),
        "Value": _EMPTY if row["value"] is None else number(row["value"], metric) + marks(row),
        "Unit": unit(metric) if metric else "",
        "95 % interval": f"[{number(ends[0], metric)}, {number(ends[1], metric)}]" if ends else "",
        "n": str(row["n"]),
        "Details": escape(details_of(row)),
        "Remark": escape(remark),
    }


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
        spufix = variant(row) if row.get("spufix") else None
        flat = {
            "kind": "model",
            **row,
            "spufix": spufix,
            "ci95_low": low,
            "ci95_high": high,
            "notes": "; ".join(map(str, row["notes"])),
        }
        protocol = [_shown(row["protocol"][key]) if key in row["protocol"] else None for key in keys]
        writer.writerow([_inert(value) for value in (*(flat.get(name) for name in _FLAT), *protocol)])
    return stream.getvalue()


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
