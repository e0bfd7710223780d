"""The results on a terminal: one line a benchmark and model, nothing cut off, the reason where a number is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ..scoring.people import is_people
from .leaderboard import (
    COMPANIONS,
    Result,
    column_of,
    is_whole,
    line_key,
    line_names,
    marks,
    metric_name,
    number,
    ordered,
    plain,
    unit,
    variant,
)
from .notes import chance_of, legend, remarks

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Names = Mapping[tuple[str, str, str], str]

_GAP = 2  # blanks between columns
_NAME = 18  # least width of the first column; below, what stands beside a value moves under it
_BESIDE = {
    "control_top1_accuracy": "control", "id_accuracy": "ID acc.", "spurious_auroc": "AUROC", "vqa_answered": "answered",
}  # fmt: skip
_COLUMNS = ("metric", "value", "unit", "between", "n", "beside")
_RIGHT = ("value", "between", "n")
_STYLES = {"value": "bold", "between": "dim", "n": "dim"}


@dataclass(frozen=True)
class _Line:
    """One printed line; `reason` follows below it, red where `failed`."""

    label: str
    metric: str = ""
    value: str = ""
    marks: str = ""
    unit: str = ""
    between: str = ""
    n: str = ""
    beside: str = ""
    indent: int = 0
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True)
class _Block:
    """Lines under a title, which may be empty; `first` heads their first column."""

    title: str
    subtitle: str
    first: str
    lines: tuple[_Line, ...]


def show(results: Sequence[Result], console: Console, *, everything: bool = False) -> None:
    """Print the headline values of `results` in per cent, grouped by benchmark, the best model first, then failures.

    What people got right stands below the models of its benchmark.

    `everything` prints every metric of every split instead. Notes and the meaning of marks follow, each once.
    """
    from rich.text import Text

    if not results:
        console.print(Text("No results."))
        return
    rows = ordered(results)
    names = line_names(row for row in rows if not is_people(row))
    if len(names) == 1:
        console.print(_who(rows[0]))
        console.print()
    blocks = list(_everything(rows, names) if everything else _headlines(rows, names))
    together = tuple(line for block in blocks for line in block.lines)
    for place, block in enumerate(blocks):
        if place:
            console.print()
        _show_block(block, console, block.lines if everything else together, header=everything or not place)
    _show_notes(rows, console)


def _who(row: Result) -> Text:
    from rich.text import Text

    text = Text(plain(row["model"]), style="bold")
    text.append(f", {plain(row['preprocessing'])} preprocessing" if row["preprocessing"] else "", style="not bold")
    return text.append(f", run {plain(row['run'])}" if row["run"] else "", style="not bold")


def _headlines(rows: Sequence[Result], names: Names) -> Iterator[_Block]:
    """One block a benchmark with a line a model; with one model a single block with a line a benchmark."""
    lines: list[_Line] = []
    for benchmark, group in groupby(rows, key=lambda row: str(row["benchmark"] or "")):
        together = list(group)
        own = [row for row in together if not is_people(row)]
        metric = column_of(benchmark, own).metric
        for key in _best_first(own):
            of_line = [row for row in own if line_key(row) == key]
            label = names[key] if len(names) > 1 else plain(benchmark) or names[key]
            lines += _headline_lines(of_line, label, metric)
        people = (row for row in together if is_people(row))
        lines += [_short_line(row, plain(row["model"]), "", None, indent=2 * (len(names) == 1)) for row in people]
        if len(names) > 1:
            yield _Block(plain(benchmark) or "not started", plain(metric), "model", tuple(lines))
            lines = []
    if lines:
        yield _Block("", "", "benchmark", tuple(lines))


def _best_first(rows: Sequence[Result]) -> list[tuple[str, str, str]]:
    """The lines of one benchmark by their headline value, highest first; then those without one, then people."""
    best = {line_key(r): -r["value"] for r in rows if r["headline"] and is_whole(r) and r["value"] is not None}
    people = {line_key(row) for row in rows if is_people(row)}
    return sorted({line_key(r) for r in rows}, key=lambda key: (key in people, best.get(key, float("inf")), key))


def _headline_lines(rows: Sequence[Result], label: str, metric: str) -> Iterator[_Line]:
    found = next((row for row in rows if row["headline"] and is_whole(row)), None)
    if found is None or found["value"] is None:
        failure = next((row for row in rows if row["metric"] is None), found)
        reason = "no headline value among the results" if failure is None else failure["reason"]
        yield _Line(label, plain(metric), "—", reason=plain(reason or "failed without a reason"), failed=True)
        return
    companion = COMPANIONS.get(str(found["metric"]))
    beside = next((row for row in rows if row["metric"] == companion and is_whole(row)), None)
    yield _short_line(found, label, plain(found["metric"]), beside)
    for row in rows:
        if row["metric"] == found["metric"] and not (is_whole(row) or variant(row)) and row["value"] is not None:
            yield _short_line(row, plain(row["split"]), "", None, indent=2)


def _short_line(row: Result, label: str, metric: str, beside: Result | None, *, indent: int = 0) -> _Line:
    text = ""
    if beside is not None:
        value = "—" if beside["value"] is None else f"{100 * beside['value']:.1f}"
        text = f"{_BESIDE.get(str(beside['metric']), plain(beside['metric']))} {value}"
    between = "–".join(f"{100 * end:.1f}" for end in row["ci95"]) if row["ci95"] else ""
    return _Line(
        label, metric, f"{100 * row['value']:.1f}", marks(row), "", between, str(row["n"]), text,
        indent=indent,
    )  # fmt: skip


def _everything(rows: Sequence[Result], names: Names) -> Iterator[_Block]:
    """One block a benchmark and model with a line a metric and split."""
    for benchmark, group in groupby(rows, key=lambda row: str(row["benchmark"] or "")):
        own = list(group)
        for key in _best_first(own):
            of_line = [row for row in own if line_key(row) == key]
            subtitle = names.get(key, plain(key[0])) if len(names) > 1 or not benchmark or key not in names else ""
            yield _Block(plain(benchmark) or "not started", subtitle, "metric", tuple(_full_lines(of_line)))


def _full_lines(rows: Sequence[Result]) -> Iterator[_Line]:
    above, said = None, ""
    for row in rows:
        metric, split = metric_name(row), "" if is_whole(row) else plain(row["split"])
        below = bool(split) and metric == above
        above = metric
        reason = "" if row["value"] is not None or row["reason"] == said else plain(row["reason"] or "no reason given")
        said = row["reason"] or said
        label = split if below else ", ".join(filter(None, [plain(metric) or "failed", split]))
        if row["value"] is None:
            yield _Line(label, value="—", n=str(row["n"]) if metric else "", indent=2 * below, reason=reason,
                        failed=not metric)  # fmt: skip
            continue
        between = "–".join(number(end, metric) for end in row["ci95"]) if row["ci95"] else ""
        chance = chance_of(row)
        yield _Line(
            label, "", number(row["value"], metric), marks(row), unit(metric), between, str(row["n"]),
            f"chance {chance}" if chance else "", indent=2 * below,
        )  # fmt: skip


def _show_block(block: _Block, console: Console, beside: Iterable[_Line], *, header: bool) -> None:
    """`beside` are the lines whose columns stand under one another with these."""
    from rich.padding import Padding
    from rich.text import Text

    deeper = 2 if block.title else 0
    widths = _widths(tuple(beside), block.first, console.width, deeper)
    if header and block.first != "metric":
        _show_line(_header(block.first), console, widths, 0, style="dim")
    if block.title:
        subtitle = f"  {block.subtitle}" if block.subtitle else ""
        console.print(Text(block.title, style="bold").append(subtitle, style="not bold"))
    if header and block.first == "metric" and any(line.value != "—" for line in block.lines):
        _show_line(_header(""), console, widths, deeper, style="dim")
    for line in block.lines:
        _show_line(line, console, widths, deeper, style="red" if line.failed else "")
        if line.beside and "beside" not in widths:
            console.print(Padding(Text(line.beside, style="dim"), (0, 0, 0, deeper + line.indent + 2)))
        if line.reason:
            text = Text(line.reason, style="red" if line.failed else "dim")
            console.print(Padding(text, (0, 0, 0, deeper + line.indent + 2)))


def _header(first: str) -> _Line:
    value = "value %" if first in ("model", "benchmark") else "value"
    return _Line(first, metric="metric", value=value, between="95 % CI", n="n", beside="beside")


def _cell(line: _Line, column: str, marks_width: int) -> str:
    text = str(getattr(line, column))
    return text + line.marks.ljust(marks_width) if column == "value" else text


def _widths(lines: Sequence[_Line], first: str, width: int, deeper: int) -> dict[str, int]:
    """The width of each column that has content; the first takes what the others leave, up to its longest label."""
    from rich.cells import cell_len

    marks_width = max((len(line.marks) for line in lines), default=0)
    every = [*lines, _header(first)]
    widths = {}
    for column in _COLUMNS:
        if any(getattr(line, column) for line in lines) and (column != "metric" or first == "benchmark"):
            widths[column] = max(cell_len(_cell(line, column, marks_width)) for line in every)
    left = width - deeper - sum(widths.values()) - _GAP * len(widths)
    if left < _NAME and "beside" in widths:
        left += widths.pop("beside") + _GAP
    longest = max(cell_len(line.label) + line.indent for line in every)
    return {"label": max(1, min(longest, left)), **widths, "marks": marks_width}


def _show_line(line: _Line, console: Console, widths: dict[str, int], deeper: int, *, style: str) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    cells = []
    for column, wide in widths.items():
        if column == "marks":
            continue
        table.add_column(width=wide, justify="right" if column in _RIGHT else "left", overflow="fold")
        text = Text(_cell(line, column, widths["marks"]), style=_STYLES.get(column, "") if not style else "")
        cells.append(Padding(text, (0, 0, 0, line.indent)) if column == "label" else text)
    table.add_row(*cells, style=style)
    console.print(Padding(table, (0, 0, 0, deeper)))


def _show_notes(rows: Sequence[Result], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    said = remarks(rows)
    texts = [*legend(rows), *said]
    if not texts:
        return
    console.print()
    for text in texts:
        lead, _, rest = text.partition(" ") if text not in said else ("-", "", text)
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column()
        grid.add_column(overflow="fold")
        grid.add_row(Text(lead, style="yellow"), Text(rest))
        console.print(grid)
