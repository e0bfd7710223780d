"""The headline table on a terminal: fits 80 columns, says why a number is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .leaderboard import Cell, Column, Leaderboard, Line, Result, leaderboard, marks, number, ordered, plain, unit

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_NAME, _NUMBER = 15, 11  # least width of the model column, width of a number with its interval
_SHORT = {"id_accuracy": "id acc", "spurious_auroc": "auroc"}


def show(results: Sequence[Result], console: Console, *, everything: bool = False) -> None:
    """Print the leaderboard of `results` in per cent, then failures in red, then what the marks mean.

    `everything` adds a table for each benchmark and model with every metric and split.
    """
    from rich.text import Text

    if not results:
        console.print(Text("No results."))
        return
    board = leaderboard(results)
    at_once = max(1, (console.width - _NAME) // (_NUMBER + 2))
    for first in range(0, max(1, len(board.columns)), at_once):
        console.print(_grid(board, slice(first, first + at_once)))
    headlines = ", ".join(f"{plain(c.benchmark)} {c.metric}" for c in board.columns if c.metric)
    if headlines:
        console.print(Text(f"Per cent, with 95 % interval where known: {headlines}.", style="dim"))
    for place, note in enumerate(board.footnotes, 1):
        console.print(Text(f"({place}) {note.text}", style="red" if note.failed else "dim"))
    for line in board.legend:
        console.print(Text(line, style="yellow"))
    if everything:
        _show_details(results, console)


def _show_details(results: Sequence[Result], console: Console) -> None:
    from rich.text import Text

    rows = [r for r in ordered(results) if r["benchmark"] and r["metric"]]
    keys = dict.fromkeys(_key(r) for r in rows)
    for key in sorted(keys):
        own = [r for r in rows if _key(r) == key]
        benchmark, model, preprocessing, run = map(plain, key)
        console.print(Text(f"\n{benchmark}: {model}, {preprocessing} preprocessing, {run}", style="bold"))
        console.print(_details(own))
        for row in own:
            if row["reason"]:
                console.print(Text(f"{plain(row['metric'])}: {plain(row['reason'])}", style="red"))


def _key(row: Result) -> tuple[str, str, str, str]:
    return str(row["benchmark"]), str(row["model"]), str(row["preprocessing"]), str(row["run"])


def _details(rows: Sequence[Result]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("metric", overflow="fold")
    table.add_column("split", overflow="fold")
    for name in ("value", "95 % interval", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        metric, interval = str(row["metric"]), row["ci95"]
        between = "–".join(number(end, metric) for end in interval) if interval else ""
        split = Text(plain(row["split"] or "all"))
        table.add_row(Text(plain(metric)), split, _value(row, metric), between, str(row["n"]))
    return table


def _value(row: Result, metric: str) -> Text:
    from rich.text import Text

    if row["value"] is None:
        return Text("—", style="red")
    kind = unit(metric)
    return Text(f"{number(row['value'], metric)}{'' if kind == '0–1' else ' %'}{marks(row)}")


def _grid(board: Leaderboard, part: slice) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, leading=1)
    table.add_column("model", overflow="fold", min_width=_NAME - 2)
    for column in board.columns[part]:
        table.add_column(Text(_header(column)), justify="right", no_wrap=True, max_width=_NUMBER)
    for line in board.lines:
        cells = (_cell(cell, column, board) for cell, column in zip(line.cells[part], board.columns[part], strict=True))
        table.add_row(_name(line, board), *cells)
    return table


def _header(column: Column) -> str:
    name = plain(column.benchmark)
    return name if len(name) <= _NUMBER else name.replace("-", "-\n", 1)


def _name(line: Line, board: Leaderboard) -> Text:
    """The model; what tells it from another line of the same model stands below."""
    from rich.text import Text

    name = Text(plain(line.model))
    same = [other for other in board.lines if other.model == line.model and other is not line]
    if any(other.preprocessing != line.preprocessing for other in same):
        name.append(f"\n{plain(line.preprocessing)} preprocessing", style="dim")
    if any(other.preprocessing == line.preprocessing for other in same):
        name.append(f"\n{plain(line.run)}", style="dim")
    return name


def _cell(cell: Cell, column: Column, board: Leaderboard) -> Text:
    from rich.text import Text

    if cell.value is None:
        failed = cell.footnote is not None and board.footnotes[cell.footnote - 1].failed
        return Text(f"— ({cell.footnote})", style="red" if failed else "dim")
    text = Text(f"{100 * cell.value:.1f}")
    text.append(cell.marks, style="yellow")
    if cell.interval:
        text.append(f"\n{100 * cell.interval[0]:.1f}–{100 * cell.interval[1]:.1f}", style="dim")
    if column.companion and cell.companion is not None:
        short = _SHORT.get(column.companion, column.companion)
        text.append(f"\n{short} {100 * cell.companion:.0f}", style="dim")
    return text
