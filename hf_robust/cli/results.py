"""Commands that read stored predictions: score, report."""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import CHANCE_HELP, DATA_HELP, command, console_of, folder, print_rows

if TYPE_CHECKING:
    from ..benchmarks import Benchmark
    from ..benchmarks.derived import Derived
    from ..scoring import Correction
    from ..scoring.compare import Comparison

_CURVE = (0.25, 0.5, 0.75, 1.0)  # strengths of the trade-off, beside 0, which is the model as it is
_COMPARED = (
    "p: exact McNemar test for accuracies, paired bootstrap for the rest; * headline metric, adjusted over the "
    "benchmarks (Holm). find: the true difference that this many pictures find in 80 of 100 cases; — where so few "
    "pictures cannot tell. † see the lines that begin with -."
)


def add_score(commands: Any) -> None:
    """Declare the command."""
    text = "all numbers again from stored predictions, without a model"
    parser = command(commands, "score", score, text, "hf-robust score RUNS --metric aupr")
    parser.add_argument("runs", type=folder, metavar="RUNS")
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
        "--spufix-strength", type=float, nargs="+", metavar="X", help="from 0 to 1, several at will (1)"
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
    parser.add_argument("runs", type=folder, metavar="RUNS")
    parser.add_argument("--out", type=folder, required=True, metavar="DIR")
    parser.add_argument("--no-images", action="store_true", help="no thumbnails of the worst failures")
    parser.add_argument("--imagenet-val", type=folder, metavar="FOLDER", help="where thumbnails are taken from")
    parser.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    parser.add_argument(
        "--spufix", type=Path, metavar="FILE", help="before and after this correction, and the trade-off"
    )
    parser.add_argument("--spufix-strength", type=float, nargs="+", metavar="X", help="from 0 to 1 (0.25 0.5 0.75 1)")
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)


def add_compare(commands: Any) -> None:
    """Declare the command."""
    text = "two runs on the same pictures: paired differences, intervals, p-values"
    parser = command(commands, "compare", compare, text, "hf-robust compare RUNS/timm-resnet50-1a2b RUNS/timm-vit-3c4d")
    parser.add_argument("first", type=folder, metavar="RUN_A", help="a run's folder, or a folder that holds one run")
    parser.add_argument("second", type=folder, metavar="RUN_B")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")


def score(options: argparse.Namespace) -> int:
    """Score stored predictions and print them."""
    from ..scoring import failed

    _check_combination(options)
    correction = _correction(options, (1.0,))
    results = scored(options.runs, options, correction=correction)
    _check_correction(results, correction)
    if options.conventions:
        return _conventions(options, results)
    if options.benchmark:
        _check_benchmarks(options, results)
        results = [r for r in results if r["benchmark"] in {None, *options.benchmark}]
    _check_scores(options, results)
    if options.metric:
        _check_metrics(options, results)
        results = [r for r in results if r["metric"] in {None, *options.metric}]
    print_results(results, options.json, everything=True)
    return 1 if failed(results) or _lacks_value(options, results) else 0


def _correction(options: argparse.Namespace, strengths: Sequence[float]) -> Correction | None:
    """The correction that was asked for at the strengths that were, `strengths` where none was named."""
    from ..scoring import correction_of

    if options.spufix_strength is not None and options.spufix is None:
        raise ValueError("expected --spufix FILE with --spufix-strength, got none: name the correction")
    return correction_of(options.spufix, tuple(dict.fromkeys(options.spufix_strength or strengths)))


def _lacks_value(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> bool:
    """Whether an anomaly score or a correction that was asked for has no value on a benchmark: exit code 1."""
    headlines = {name: benchmark.headline for name, benchmark in known_benchmarks(options.runs).items()}
    return any(
        row["value"] is None
        and (row["ood_score"] or (row["spufix"] and row["metric"] == headlines.get(row["benchmark"])))
        for row in results
    )


def _check_scores(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    """A score that no benchmark at hand can take is an error, not a table without it."""
    from ..scoring import failed

    if options.ood_score and not failed(results) and not any(r["ood_score"] for r in results):
        here = _list({r["benchmark"] for r in results} - {None})
        raise LookupError(f"expected a benchmark of detection for --ood-score, such as imagenet-o, got {here}")


def _check_combination(options: argparse.Namespace) -> None:
    """Options that would be read and then change nothing are refused."""
    if options.fit_on is not None and not options.ood_score:
        raise ValueError("expected --ood-score with --fit-on, got none: name the scores that are fitted")
    if options.fit_on is not None and not options.fit_on.is_dir():
        raise FileNotFoundError(f"expected a folder of runs for --fit-on, got {str(options.fit_on)!r}: no folder")
    alone = {"--metric": options.metric, "--ood-score": options.ood_score, "--spufix": options.spufix}
    together = [name for name, value in alone.items() if value]
    if options.conventions and together:
        raise ValueError(
            f"expected --conventions without {together[0]}, got both: it shows all conventions as they are"
        )


def _conventions(options: argparse.Namespace, results: Sequence[dict[str, Any]]) -> int:
    from ..scoring import failed
    from ..scoring.conventions import conventions

    rows = conventions(options.runs, known_benchmarks(options.runs), allow_chance=options.allow_chance)
    if options.benchmark:
        _check_benchmarks(options, results)
        rows = [row for row in rows if row["benchmark"] in options.benchmark]
        results = [r for r in results if r["benchmark"] in {None, *options.benchmark}]
    state = {(r["run"], r["benchmark"], r["preprocessing"]): r for r in results if r["headline"]}
    for row in rows:
        whole = state.get((row["run"], row["benchmark"], row["mode"]))
        row |= {"complete": whole is not None and whole["complete"], "subset": whole is None or whole["subset"]}
    left_out = failed(results)
    for row in left_out:
        name = " on ".join(str(row[key]) for key in ("model", "benchmark") if row[key])
        print(f"hf-robust: left out: {name}: {row['reason']}", file=sys.stderr)
    _print_conventions(rows, options.json)
    return 1 if left_out else 0


def _print_conventions(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2, allow_nan=False))
        return
    for place in dict.fromkeys(_place(row) for row in rows):
        here = [row for row in rows if _place(row) == place]
        marks = [
            text for text, is_so in (("subset", here[0]["subset"]), ("incomplete", not here[0]["complete"])) if is_so
        ]
        print("\n" + _filled(", ".join((place[2], place[0], f"{place[3]} preprocessing", *marks)), 2))
        for row in here:
            value = "—" if row["value"] is None else f"{row['value']:.4f}"
            mark = " (ours)" if row["ours"] else ""
            print(_filled(f"  {row['quantity']:18} {value:>7}  {row['convention']}{mark}", 30))
            print(_filled(f"{'':30}{row['why']}", 30))


def _place(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return row["model"], row["run"], row["benchmark"], row["mode"]


def _filled(text: str, indent: int = 0) -> str:
    """Text in lines of at most 80 characters, those after the first indented."""
    lead = len(text) - len(text.lstrip())
    kept = re.sub(r" (?= )", "\xa0", text.lstrip())  # the blanks between columns are no place to break or shrink
    lines = textwrap.wrap(kept, 80 - max(lead, indent), break_long_words=False, break_on_hyphens=False)
    return " " * lead + f"\n{' ' * indent}".join(lines).replace("\xa0", " ")


def report(options: argparse.Namespace) -> int:
    """Score stored predictions and write the report folder."""
    from ..report import Places, write_report
    from ..scoring import failed

    correction = _correction(options, _CURVE)
    results = scored(options.runs, options, correction=correction)
    _check_correction(results, correction)
    out = write_report(
        options.runs,
        options.out,
        benchmarks=known_benchmarks(options.runs),
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
    from ..scoring.compare import left_out, run_of

    first, second = run_of(options.first), run_of(options.second)
    known = known_benchmarks(first) | known_benchmarks(second)
    rows, lacking = compare_runs(first, second, known), left_out(first, second, known)
    for sentence in lacking:
        print(f"hf-robust: left out: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2, allow_nan=False))
        return 1 if lacking else 0
    print(f"A = {first.name}\nB = {second.name}")
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        print(f"\n{benchmark}")
        print_rows([_compared(row) for row in rows if row.benchmark == benchmark], gap=1)
        for note in dict.fromkeys(note for row in rows if row.benchmark == benchmark for note in row.notes):
            print(_filled(f"- {note}", 2))
    print("\n" + _filled(_COMPARED))
    return 1 if lacking else 0


def _compared(row: Comparison) -> dict[str, str]:
    p_value = f"{row.p_value:.2g}" if row.p_holm is None else f"{row.p_holm:.2g}*"
    mark = "†" if row.notes else ""
    return {
        "metric": row.metric if row.split in (None, "all") else f"  {row.split} {row.metric}",
        "A": f"{row.first:.3f}{mark}",
        "B": f"{row.second:.3f}{mark}",
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
    names = options.benchmark or sorted({r["benchmark"] for r in results} - {None})
    for metric in options.metric:
        refusals = []
        known = known_benchmarks(options.runs)
        for benchmark in (known[name] for name in names if name in known):
            try:
                benchmark.measure(metric)
            except KeyError as error:
                refusals.append(error)
        if refusals and (options.benchmark or len(refusals) == len(names)):
            raise refusals[0]


def benchmarks_of(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """The benchmarks of these names; `all` stands for every one."""
    from ..benchmarks import benchmark, benchmarks
    from ..benchmarks.derived import derive

    if "all" in names and len(names) > 1:
        raise ValueError("expected `all` alone or the names of benchmarks, got both: leave one out")
    if list(names) == ["all"]:
        return tuple(b for b in benchmarks().values() if not b.fit_only)
    own = own_sets(names)
    return tuple(derive(own[name][0]) if name in own else benchmark(name) for name in names)


def own_sets(names: Sequence[str]) -> dict[str, tuple[Derived, Path | str]]:
    """Of the names that are folders or OWNER/NAME on the Hub: what the regenerated set in each is, and that place."""
    from .. import builders
    from ..benchmarks import benchmarks
    from ..benchmarks.derived import from_record

    found: dict[str, tuple[Derived, Path | str]] = {}
    for name in names:
        if name not in benchmarks() and not Path(name).is_dir() and name.count("/") == 1:
            found[name] = (_published_set(name), name)
        if name in benchmarks() or not Path(name).is_dir():
            continue
        sets = [built for built in builders.installed(out=Path(name)) if built.own_set is not None]
        if not sets:
            raise LookupError(f"expected a benchmark or the folder of a regenerated set, got {name!r} without one")
        newest = sets[0]  # of several, the one that was made last
        found[name] = (from_record(newest.own_set or {}), Path(name))
    return found


def _published_set(repo: str) -> Derived:
    from ..benchmarks.derived import from_record
    from ..builders.cache import RECORD
    from ..hub.network import read_file

    try:
        record = json.loads(read_file(repo, RECORD, repo_type="dataset"))
    except (FileNotFoundError, ValueError) as error:
        raise LookupError(f"expected a regenerated set in the data set {repo!r} of the Hub, got: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("set"), dict):
        raise LookupError(f"expected a regenerated set in {repo!r}, got {record!r:.80}: give the name of its benchmark")
    return from_record(record["set"])


def known_benchmarks(runs: Path | None = None) -> dict[str, Benchmark]:
    """Every benchmark whose predictions can be scored: the demo's miniatures and the regenerated sets of `runs` too."""
    from ..benchmarks import benchmarks
    from ..benchmarks.derived import remembered
    from ..benchmarks.miniatures import miniatures

    own = {} if runs is None else {**remembered(runs), **remembered(runs.parent)}  # RUNS, or one run below it
    return {**benchmarks(), **miniatures(), **own}


def scored(runs: Path, options: argparse.Namespace, *, correction: Correction | None = None) -> list[dict[str, Any]]:
    """Score all of `runs` again, with corrected logits too where asked, and leave the plain report in RUNS/results."""
    from ..report import write
    from ..scoring import options_of
    from ..scoring import score as score_runs

    ood = options_of(getattr(options, "ood_score", ()), getattr(options, "fit_on", None))
    results = score_runs(
        runs, known_benchmarks(runs), allow_chance=options.allow_chance, ood=ood, correction=correction
    )
    write(results, runs / "results")
    return results


def print_results(results: Sequence[dict[str, Any]], as_json: bool, *, everything: bool = False) -> None:
    """Results on the terminal: the headline table or every value, or JSON."""
    from ..report import as_document, show

    if as_json:
        print(json.dumps(as_document(results), indent=2, allow_nan=False))
    else:
        show(results, console_of(stderr=False), everything=everything)
