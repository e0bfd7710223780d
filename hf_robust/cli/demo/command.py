"""The demonstration command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..display import command, console_of, folder, progress_of


def add_demo(commands: Any) -> None:
    """Declare the command."""
    text = "a real classifier on miniature versions of the benchmarks: offline, under two minutes, touches no cache"
    parser = command(commands, "demo", demo, text, "hf-robust demo --out demo-output")
    parser.add_argument("--out", type=folder, default=Path("demo-output"), help="folder for everything (%(default)s)")


def demo(options: argparse.Namespace) -> int:
    """Run the demonstration and print its table."""
    from ...report import show
    from .flow import REMARK, run_demo

    with progress_of(console_of()) as meter_of:
        outcome = run_demo(options.out, meter_of)
    show(outcome.results, console_of(stderr=False))
    print(f"\n{REMARK}\n\nReport: {outcome.report / 'report.html'}")
    print("Next: hf-robust evaluate --help; which data it needs: hf-robust list")
    return 1 if outcome.failed else 0
