"""What commands share: how a command is declared, the console, the progress display."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ..runner import Meter

DATA_HELP = "where `build --out` put the data sets (default: this machine's data set cache)"
CHANCE_HELP = "report numbers of a model whose control is near chance"


def command(commands: Any, name: str, run: Callable[..., int], text: str, example: str) -> argparse.ArgumentParser:
    """A command's parser, with what it does and one example in its help."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", epilog=f"Example: {example}"
    )
    parser.set_defaults(command=run)
    return parser


def console_of(*, stderr: bool = True) -> Console:
    """The terminal; progress and notes go to standard error, results to standard output."""
    from rich.console import Console

    return Console(stderr=stderr)


@contextmanager
def progress_of(console: Console, *, silent: bool = False) -> Iterator[Callable[[str], Meter]]:
    """A progress display; yields a function that gives each named piece of work its meter."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=silent) as progress:

        def meter_of(name: str) -> Meter:
            tasks: list[Any] = []

            def tick(done: int, total: int) -> None:
                if not tasks:
                    tasks.append(progress.add_task(name[-40:], rate="", total=total))
                speed = progress.tasks[tasks[0]].speed
                text = f"{speed:.1f} pictures/s" if speed else ""
                progress.update(tasks[0], completed=done, total=total, rate=text)

            return tick

        yield meter_of
