"""Commands about data sets: list, build, remove."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .display import DATA_HELP, command, console_of, progress_of


def add_list(commands: Any) -> None:
    """Declare the command."""
    parser = command(commands, "list", list_names, "what there is", "hf-robust list benchmarks --installed")
    parser.add_argument("what", nargs="?", choices=("benchmarks", "metrics"), default="benchmarks")
    parser.add_argument("--installed", action="store_true", help="only the data sets that are built on this machine")
    parser.add_argument("--data", type=Path, metavar="DIR", help=DATA_HELP)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def add_build(commands: Any) -> None:
    """Declare the command."""
    text = "build a benchmark's data set from its archive, so that load_dataset finds it on this machine"
    parser = command(commands, "build", build, text, "hf-robust build imagenet-a --source imagenet-a.tar")
    parser.add_argument("benchmark", help="imagenet-a, imagenet-o, spurious-imagenet, imagenet-d, imagenet-val")
    parser.add_argument("--source", required=True, help="archive (tar, tar.gz, zip), extracted folder, or URL")
    parser.add_argument("--devkit", type=Path, metavar="FILE", help="for imagenet-val from the flat tar")
    parser.add_argument("--allow-incomplete", action="store_true", help="build what is there and mark it as incomplete")
    parser.add_argument("--out", type=Path, metavar="DIR", help=DATA_HELP)


def add_remove(commands: Any) -> None:
    """Declare the command."""
    parser = command(commands, "remove", remove, "remove a built data set", "hf-robust remove imagenet-a")
    parser.add_argument("benchmark")
    parser.add_argument("--out", type=Path, metavar="DIR", help=DATA_HELP)


def list_names(options: argparse.Namespace) -> int:
    """Print the benchmarks or metrics."""
    from .. import builders
    from ..benchmarks import benchmarks

    built = {b.name: b for b in builders.installed(out=options.data)}
    rows: list[dict[str, Any]] = []
    for benchmark in benchmarks().values():
        here = built.get(benchmark.name)
        if options.what == "metrics":
            rows += [
                {"metric": m.__name__, "benchmark": benchmark.name, "what": (m.__doc__ or "").splitlines()[0]}
                for m in benchmark.measures
            ]
        elif here is not None or not options.installed:
            state = "no" if here is None else f"{here.rows:,} pictures{'' if here.complete else ', incomplete'}"
            rows.append({
                "benchmark": benchmark.name, "headline": benchmark.headline, "built here": state,
                "what": benchmark.description,
            })  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_rows(rows)
    return 0


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    if not rows:
        print("nothing is built here yet: hf-robust build NAME --source PATH")
        return
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in rows[0]:
        table.add_column(name, overflow="fold", no_wrap=name != "what")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console_of(stderr=False).print(table)


def build(options: argparse.Namespace) -> int:
    """Build a data set and say where it is."""
    from .. import builders

    with progress_of(console_of()) as meter_of:
        built = builders.build(
            options.benchmark,
            options.source,
            allow_incomplete=options.allow_incomplete,
            out=options.out,
            devkit=options.devkit,
            progress=meter_of(f"build {options.benchmark}"),
        )
    for difference in built.differences:
        print(f"incomplete: {difference}", file=sys.stderr)
    state = "complete" if built.complete else f"INCOMPLETE ({len(built.differences)} differences)"
    print(f"{built.name}: {built.rows:,} pictures, {state}, fingerprint {built.fingerprint[:12]}, in {built.path}")
    if options.out is None:
        print(f'load it anywhere on this machine: load_dataset("hf_robust/{built.name}")')
    return 0


def remove(options: argparse.Namespace) -> int:
    """Remove a built data set."""
    from .. import builders

    removed = builders.remove(options.benchmark, out=options.out)
    print(
        f"{options.benchmark}: removed {removed} builds" if removed else f"{options.benchmark}: nothing was built here"
    )
    return 0
