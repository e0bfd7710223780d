"""Commands that read stored predictions: score, report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import CHANCE_HELP, DATA_HELP, command, console_of, folder, print_rows

if TYPE_CHECKING:
    from ..benchmarks import Benchmark
    from ..scoring import Correction
    from ..scoring.compare import Comparison


def add_score(commands: Any) -> None:
    """Declare the command."""
    text = "all numbers again from stored predictions, without a model"
    parser = command(commands, "score", score, text, "hf-robust score RUNS --metric aupr")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--metric", nargs="+", metavar="NAME", help="only these; see `hf-robust list metrics`")
    parser.add_argument("--benchmark", nargs="+", metavar="B", help="only these")
    parser.add_argument(
        "--ood-score",
        nargs="+",
        default=[],
        metavar="S",
        help="detection by these scores too; see `hf-robust list scores`",
    )
    parser.add_argument(
        "--fit-on", type=folder, metavar="RUN", help="runs that hold the training pictures for scores with a fit (RUNS)"
    )
    parser.add_argument("--spufix", type=Path, metavar="FILE", help="every value with corrected logits too")
    parser.add_argument(
        "--spufix-strength", type=float, nargs="+", default=[1.0], metavar="X", help="from 0 to 1, several at will (1)"
    )
    parser.add_argument(
        "--conventions", action="store_true", help="the same quantities as other conventions compute them, and why"
    )
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def add_report(commands: Any) -> None:
    """Declare the command."""
    text = "score what is stored and write report.html, plots, and the tables as Markdown, CSV, LaTeX and JSON"
    parser = command(commands, "report", report, text, "hf-robust report RUNS --out report --imagenet-val VAL")
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR")
    parser.add_argument("--no-images", action="store_true", help="no thumbnails of the worst failures")
    parser.add_argument("--imagenet-val", type=folder, metavar="FOLDER", help="where thumbnails are taken from")
    parser.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)


def add_compare(commands: Any) -> None:
    """Declare the command."""
    text = "two runs on the same pictures: paired differences, intervals, p-values"
    parser = command(commands, "compare", compare, text, "hf-robust compare RUNS/timm-resnet50-1a2b RUNS/timm-vit-3c4d")
    parser.add_argument("first", type=Path, metavar="RUN_A", help="a run's folder, or a folder that holds one run")
    parser.add_argument("second", type=Path, metavar="RUN_B")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def score(options: argparse.Namespace) -> int:
    """Score stored predictions and print them."""
    from ..scoring import correction_of, failed

    correction = correction_of(options.spufix, options.spufix_strength)
    results = scored(options.runs, options, correction=correction)
    _check_correction(results, correction)
    if options.conventions:
        return _conventions(options)
    if options.benchmark:
        _check_benchmarks(options, results)
        results = [r for r in results if r["benchmark"] in {None, *options.benchmark}]
    if options.metric:
        _check_metrics(options, results)
        results = [r for r in results if r["metric"] in {None, *options.metric}]
    print_results(results, options.json, everything=True)
    return 1 if failed(results) else 0


def _conventions(options: argparse.Namespace) -> int:
    from ..scoring.conventions import conventions

    rows = conventions(options.runs, known_benchmarks(), allow_chance=options.allow_chance)
    rows = [row for row in rows if not options.benchmark or row["benchmark"] in options.benchmark]
    if options.json:
        print(json.dumps(rows, indent=2, allow_nan=False))
        return 0
    for place in dict.fromkeys((row["model"], row["run"], row["benchmark"], row["mode"]) for row in rows):
        print(f"\n{place[2]}, {place[0]}, {place[3]} preprocessing")
        for row in rows:
            if (row["model"], row["run"], row["benchmark"], row["mode"]) == place:
                value = "—" if row["value"] is None else f"{row['value']:.4f}"
                mark = " (ours)" if row["ours"] else ""
                print(f"  {row['quantity']:18} {value:>7}  {row['convention']}{mark}\n{'':30}{row['why']}")
    return 0


def report(options: argparse.Namespace) -> int:
    """Score stored predictions and write the report folder."""
    from ..report import Places, write_report
    from ..scoring import failed

    results = scored(options.runs, options)
    out = write_report(
        options.runs,
        options.out,
        benchmarks=known_benchmarks(),
        images=not options.no_images,
        places=Places(options.data, options.imagenet_val),
        allow_chance=options.allow_chance,
        results=results,
    )
    print(f"wrote {out / 'report.html'}")
    return 1 if failed(results) else 0


def compare(options: argparse.Namespace) -> int:
    """Compare two runs and print the differences."""
    from ..scoring.compare import compare as compare_runs
    from ..scoring.compare import run_of

    first, second = run_of(options.first), run_of(options.second)
    rows = compare_runs(first, second, known_benchmarks())
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2, allow_nan=False))
        return 0
    print(f"A = {first.name}\nB = {second.name}")
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        print(f"\n{benchmark}")
        print_rows([_compared(row) for row in rows if row.benchmark == benchmark], gap=1)
    print(
        "\np: exact McNemar test for accuracies, paired bootstrap for the rest; * headline metric, adjusted over the\n"
        "benchmarks (Holm). find: the true difference that this many pictures find in 80 of 100 cases; — where so few\n"
        "pictures cannot tell."
    )
    return 0


def _compared(row: Comparison) -> dict[str, str]:
    p_value = f"{row.p_value:.2g}" if row.p_holm is None else f"{row.p_holm:.2g}*"
    return {
        "metric": row.metric if row.split in (None, "all") else f"  {row.split} {row.metric}",
        "A": f"{row.first:.3f}",
        "B": f"{row.second:.3f}",
        "A - B": f"{row.difference:+.3f}",
        "95 % CI": "—" if row.ci95 is None else f"{row.ci95[0]:+.3f} to {row.ci95[1]:+.3f}",
        "p": p_value,
        "find": "—" if row.detectable is None or row.detectable > 1 else f"{row.detectable:.3f}",
    }


def _check_benchmarks(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    here = {r["benchmark"] for r in results} - {None}
    for name in options.benchmark:
        if name not in here:
            raise LookupError(
                f"expected a benchmark with results in {options.runs}, got {name!r}; there: {_list(here)}"
            )


def _check_correction(results: Sequence[dict[str, Any]], correction: Correction | None) -> None:
    """A correction that fits none of the runs is an error with its first reason, not a table without it."""
    corrected = [r for r in results if r["spufix"] is not None]
    if correction is not None and not any(r["value"] is not None for r in corrected):
        reasons = [str(r["reason"]) for r in [*corrected, *results] if r["reason"]]
        raise LookupError(f"expected values with corrected logits, got none: {[*reasons, 'no benchmark'][0]}")


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _check_metrics(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    """A metric must be defined on a benchmark at hand, and on each that was named; the protocol's refusals count."""
    names = options.benchmark or sorted({r["benchmark"] for r in results if r["metric"]})
    for metric in options.metric:
        refusals = []
        for benchmark in (known_benchmarks()[name] for name in names if name in known_benchmarks()):
            try:
                benchmark.measure(metric)
            except KeyError as error:
                refusals.append(error)
        if refusals and (options.benchmark or len(refusals) == len(names)):
            raise refusals[0]


def benchmarks_of(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """The benchmarks of these names; `all` stands for every one."""
    from ..benchmarks import benchmark, benchmarks

    if "all" in names and len(names) > 1:
        raise ValueError("expected `all` alone or the names of benchmarks, got both: leave one out")
    if list(names) == ["all"]:
        return tuple(b for b in benchmarks().values() if not b.fit_only)
    return tuple(benchmark(name) for name in names)


def known_benchmarks() -> dict[str, Benchmark]:
    """Every benchmark whose predictions can be scored, the demo's miniatures among them."""
    from ..benchmarks import benchmarks
    from ..benchmarks.miniatures import miniatures

    return {**benchmarks(), **miniatures()}


def scored(runs: Path, options: argparse.Namespace, *, correction: Correction | None = None) -> list[dict[str, Any]]:
    """Score all of `runs` again, with corrected logits too where asked, and leave the plain report in RUNS/results."""
    from ..report import write
    from ..scoring import options_of
    from ..scoring import score as score_runs

    ood = options_of(getattr(options, "ood_score", ()), getattr(options, "fit_on", None))
    results = score_runs(runs, known_benchmarks(), allow_chance=options.allow_chance, ood=ood, correction=correction)
    write(results, runs / "results")
    return results


def print_results(results: Sequence[dict[str, Any]], as_json: bool, *, everything: bool = False) -> None:
    """Results on the terminal: the headline table or every value, or JSON."""
    from ..report import as_document, show

    if as_json:
        print(json.dumps(as_document(results), indent=2, allow_nan=False))
    else:
        show(results, console_of(stderr=False), everything=everything)
