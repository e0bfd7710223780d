"""Commands that read stored predictions: score, report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import CHANCE_HELP, command, console_of

if TYPE_CHECKING:
    from ..benchmarks import Benchmark


def add_score(commands: Any) -> None:
    """Declare the command."""
    text = "all numbers again from stored predictions, without a model"
    parser = command(commands, "score", score, text, "hf-robust score RUNS --metric aupr")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--metric", nargs="+", metavar="NAME", help="only these; see `hf-robust list metrics`")
    parser.add_argument("--benchmark", nargs="+", metavar="B", help="only these")
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def add_report(commands: Any) -> None:
    """Declare the command."""
    text = "score what is stored and write results.json, table.md and table.csv"
    parser = command(commands, "report", report, text, "hf-robust report RUNS --out report")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)


def score(options: argparse.Namespace) -> int:
    """Score stored predictions and print them."""
    from ..scoring import failed

    results = scored(options.runs, options)
    if options.benchmark:
        results = [r for r in results if r["benchmark"] in {None, *options.benchmark}]
    if options.metric:
        _check_metrics(options, results)
        results = [r for r in results if r["metric"] in {None, *options.metric}]
    print_results(results, options.json, everything=True)
    return 1 if failed(results) else 0


def report(options: argparse.Namespace) -> int:
    """Score stored predictions and write the report folder."""
    from ..report import write
    from ..scoring import failed

    results = scored(options.runs, options)
    print(f"wrote {write(results, options.out)}")
    return 1 if failed(results) else 0


def _check_metrics(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    """A metric must be defined on a benchmark at hand, and on each that was named; the protocol's refusals count."""
    names = options.benchmark or sorted({r["benchmark"] for r in results if r["metric"]})
    for metric in options.metric:
        refusals = []
        for benchmark in benchmarks_of(names):
            try:
                benchmark.measure(metric)
            except KeyError as error:
                refusals.append(error)
        if refusals and (options.benchmark or len(refusals) == len(names)):
            raise refusals[0]


def benchmarks_of(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """The benchmarks of these names; `all` stands for every one."""
    from ..benchmarks import benchmark, benchmarks

    if list(names) == ["all"]:
        return tuple(b for b in benchmarks().values() if not b.fit_only)
    return tuple(benchmark(name) for name in names)


def scored(runs: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Score all of `runs` again and leave the plain report in RUNS/results."""
    from ..benchmarks import benchmarks
    from ..benchmarks.miniatures import miniatures
    from ..report import write
    from ..scoring import score as score_runs

    results = score_runs(runs, {**benchmarks(), **miniatures()}, allow_chance=options.allow_chance)
    write(results, runs / "results")
    return results


def print_results(results: Sequence[dict[str, Any]], as_json: bool, *, everything: bool = False) -> None:
    """Results on the terminal: the headline table or every value, or JSON."""
    from ..report import as_document, show

    if as_json:
        print(json.dumps(as_document(results), indent=2, allow_nan=False))
    else:
        show(results, console_of(stderr=False), everything=everything)
