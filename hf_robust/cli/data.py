"""Commands about data sets: list, build, remove."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .display import DATA_HELP, command, console_of, folder, print_rows, progress_of


def add_list(commands: Any) -> None:
    """Declare the command."""
    parser = command(commands, "list", list_names, "what there is", "hf-robust list benchmarks --installed")
    parser.add_argument("what", nargs="?", choices=("benchmarks", "metrics", "scores"), default="benchmarks")
    parser.add_argument("--installed", action="store_true", help="only the data sets that are built on this machine")
    parser.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def add_build(commands: Any) -> None:
    """Declare the command."""
    text = "build a benchmark's data set from its archive, so that load_dataset finds it on this machine"
    parser = command(commands, "build", build, text, "hf-robust build imagenet-a --source imagenet-a.tar")
    parser.add_argument("benchmark", help="imagenet-a, imagenet-o, spurious-imagenet, imagenet-d, imagenet-val")
    parser.add_argument("--source", required=True, help="archive (tar, tar.gz, zip), extracted folder, or URL")
    parser.add_argument("--devkit", type=Path, metavar="FILE", help="for imagenet-val from the flat tar")
    parser.add_argument("--allow-incomplete", action="store_true", help="build what is there and mark it as incomplete")
    parser.add_argument("--out", type=folder, metavar="DIR", help=DATA_HELP)


def add_remove(commands: Any) -> None:
    """Declare the command."""
    parser = command(commands, "remove", remove, "remove a built data set", "hf-robust remove imagenet-a")
    parser.add_argument("benchmark")
    parser.add_argument("--out", type=folder, metavar="DIR", help=DATA_HELP)


def list_names(options: argparse.Namespace) -> int:
    """Print the benchmarks, metrics or out-of-distribution scores."""
    rows = {"benchmarks": _benchmark_rows, "metrics": _metric_rows, "scores": _score_rows}[options.what](options)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        if rows:
            print_rows(rows)
        else:
            print("nothing is built here yet: hf-robust build NAME --source PATH")
    return 0


def _benchmark_rows(options: argparse.Namespace) -> list[dict[str, str]]:
    from .. import builders
    from ..benchmarks import benchmarks

    built = {b.name: b for b in reversed(builders.installed(out=options.data))}  # the newest of each name stays
    rows = []
    for benchmark in benchmarks().values():
        here = built.get(benchmark.name)
        if here is not None or not options.installed:
            state = "no" if here is None else f"{here.rows:,} pictures{'' if here.complete else ', incomplete'}"
            facts = {"headline": benchmark.headline, "built here": state, "what": benchmark.description}
            rows.append({"benchmark": benchmark.name, **facts})
    return rows


def _metric_rows(options: argparse.Namespace) -> list[dict[str, str]]:
    from ..benchmarks import benchmarks

    return [
        {"metric": m.__name__, "benchmark": benchmark.name, "what": (m.__doc__ or "").splitlines()[0]}
        for benchmark in benchmarks().values()
        for m in benchmark.measures
    ]


def _score_rows(options: argparse.Namespace) -> list[dict[str, str]]:
    from ..ood_scores import scores

    return [
        {"score": s.name, "reads": s.needs, "fit": "yes" if s.fit_needed else "no", "what": s.source}
        for s in scores().values()
    ]


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

    if options.benchmark not in {*builders.recipes(), *(b.name for b in builders.installed(out=options.out))}:
        raise LookupError(f"unknown data set {options.benchmark!r}; known: {', '.join(builders.recipes())}")
    removed = builders.remove(options.benchmark, out=options.out)
    print(
        f"{options.benchmark}: removed {removed} builds" if removed else f"{options.benchmark}: nothing was built here"
    )
    return 0
