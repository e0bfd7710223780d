"""The demonstration command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .display import command, console_of, progress_of


def add_demo(commands: Any) -> None:
    """Declare the command."""
    text = "a real classifier on miniature versions of the benchmarks: offline, under two minutes, touches no cache"
    parser = command(commands, "demo", demo, text, "hf-robust demo --out demo-output")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for everything (%(default)s)")


def demo(options: argparse.Namespace) -> int:
    """Run the demonstration and print its table."""
    from ..demo import run_demo
    from ..report import show

    console = console_of()
    with progress_of(console) as meter:
        outcome = run_demo(options.out, meter)
    show(outcome.results, console)
    for line in outcome.remarks:
        console.print(line)
    return 1 if outcome.failed else 0
