"""What commands share: how a command is declared, the console, the progress display."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ..runner import Meter

DATA_HELP = "where `build --out` put the data sets (default: this machine's data set cache)"
SECONDS_BETWEEN_LINES = 10
CHANCE_HELP = "report numbers of a model whose control is near chance"


def command(commands: Any, name: str, run: Callable[..., int], text: str, example: str) -> argparse.ArgumentParser:
    """A command's parser, with what it does and one example in its help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"Example: {example}"
    )
    parser.set_defaults(command=run)
    return parser


def folder(text: str) -> Path:
    """The folder of an option; an empty name would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected the name of a folder, got an empty one")
    if Path(text).is_file():
        raise argparse.ArgumentTypeError(f"expected a folder, got the file {text!r}")
    return Path(text)


def console_of(*, stderr: bool = True) -> Console:
    """The terminal; progress and notes go to standard error, results to standard output."""
    from rich.console import Console

    return Console(stderr=stderr, emoji=False)  # a model of mine.py:leaves: is no picture of leaves


@contextmanager
def progress_of(console: Console, *, silent: bool = False) -> Iterator[Callable[[str], Meter]]:
    """A progress display; yields a function that gives each named piece of work its meter.

    Bars with rate and remaining time on a terminal; elsewhere (a log, a pipe) a line every SECONDS_BETWEEN_LINES.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    if silent or not console.is_terminal:
        yield lambda name: _lines(console, name, silent)
        return
    rate = TextColumn("{task.fields[rate]}", markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        rate,
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:

        def meter_of(name: str) -> Meter:
            task = progress.add_task(name[-40:], rate="", total=None)

            def tick(done: int, total: int) -> None:
                speed = progress.tasks[task].speed
                text = f"{speed:.1f} pictures/s" if speed else ""
                progress.update(task, completed=done, total=total, rate=text)

            return tick

        yield meter_of


def _lines(console: Console, name: str, silent: bool) -> Meter:
    began = said = time.monotonic()
    first: int | None = None
    told = 0

    def tick(done: int, total: int) -> None:
        nonlocal first, said, told
        first = done if first is None else first
        now = time.monotonic()
        finished = done == total > told and said > began  # a short piece of work needs no line at all
        if silent or (now - said < SECONDS_BETWEEN_LINES and not finished):
            return
        said, told, speed = now, done, (done - first) / (now - began)
        left = f", {(total - done) / speed / 60:.0f} min left" if speed and done < total else ""
        rate = f", {speed:.1f}/s" if speed else ""
        console.print(f"{name}: {done:,} of {total:,} pictures{rate}{left}", markup=False, highlight=False)

    return tick


def say_complaints(complaints: Sequence[str]) -> None:
    """Name the worker processes that failed; what they left was done by the others."""
    for complaint in complaints:
        print(f"hf-robust: a worker process failed, its work was done by the others: {complaint}", file=sys.stderr)


def print_rows(rows: Sequence[dict[str, Any]], *, gap: int = 2) -> None:
    """Rows as a plain table on standard output, `gap` blanks between columns; their keys are the headings."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", padding=(0, gap, 0, 0))
    folds = "what" if "what" in rows[0] else "metric"  # the one column that gives way on a narrow terminal
    for name in rows[0]:
        table.add_column(name, overflow="fold", no_wrap=name != folds)
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))  # a plain string would be read as markup
    console_of(stderr=False).print(table)
