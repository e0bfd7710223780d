"""Commands that carry runs to the Hub and back, and to FiftyOne: publish results, publish predictions, pull, export."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, folder
from .results import known_benchmarks

if TYPE_CHECKING:
    from ..hub.merging import Pending

_DRY_RUN = "show what would change, send nothing"


def add_publish_results(kinds: Any) -> None:
    """Declare the command."""
    text = "a run's results in its model's repo: .eval_results, model-index, a section of the card"
    parser = command(
        kinds, "results", publish_results, text, "hf-robust publish results RUNS --to me/my-model --dry-run"
    )
    parser.add_argument("runs", type=folder, metavar="RUNS", help="a run's folder, or a folder that holds one run")
    parser.add_argument("--to", required=True, metavar="MODEL_REPO", help="OWNER/NAME on the Hub")
    parser.add_argument("--report", type=folder, metavar="DIR", help="folder of `hf-robust report`: its plots go along")
    parser.add_argument("--predictions", metavar="REPO", help="data set that `publish predictions` wrote, to link to")
    parser.add_argument(
        "--allow-incomplete", action="store_true", help="also failed, incomplete and --limit results, marked as such"
    )
    parser.add_argument("--dry-run", action="store_true", help=_DRY_RUN)


def add_publish_predictions(kinds: Any) -> None:
    """Declare the command."""
    text = "the predictions of runs as a data set that anyone can score again"
    example = "hf-robust publish predictions RUNS --to me/my-predictions --dry-run"
    parser = command(kinds, "predictions", publish_predictions, text, example)
    parser.add_argument("runs", type=folder, metavar="RUNS", help="a run's folder, or a folder of runs")
    parser.add_argument("--to", required=True, metavar="DATASET_REPO", help="OWNER/NAME on the Hub")
    parser.add_argument("--private", action="store_true", help="only you, or your organisation, can see the repo")
    parser.add_argument("--dry-run", action="store_true", help=_DRY_RUN)


def add_pull(commands: Any) -> None:
    """Declare the command."""
    text = "predictions from a data set on the Hub, checked, ready for `hf-robust score`"
    parser = command(commands, "pull", pull, text, "hf-robust pull me/my-predictions --out runs")
    parser.add_argument("repo", metavar="REPO", help="data set that `publish predictions` wrote")
    parser.add_argument("--out", type=folder, required=True, metavar="RUNS")


def add_export(commands: Any) -> None:
    """Declare the command and what it exports to, each a command of its own."""
    text = "write a run in the format of another tool"
    parser = commands.add_parser("export", help=text, description=text[0].upper() + text[1:] + ".")
    kinds = parser.add_subparsers(title="formats", required=True, metavar="FORMAT")
    text = "pictures, labels, predictions, logits and hardness as a FiftyOne data set on disk"
    own = command(
        kinds, "fiftyone", export_fiftyone, text, "hf-robust export fiftyone RUN --benchmark imagenet-a --out a51"
    )
    own.add_argument("runs", type=folder, metavar="RUN", help="a run's folder, or a folder that holds one run")
    own.add_argument("--out", type=folder, required=True, metavar="DIR", help="a new folder")
    own.add_argument("--benchmark", metavar="B", help="which, where the run was asked for several")
    own.add_argument("--preprocessing", choices=("model", "published"), help="which, where there are both")
    own.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    own.add_argument("--imagenet-val", type=folder, metavar="FOLDER", help="where validation pictures are copied from")


def publish_results(options: argparse.Namespace) -> int:
    """Publish the results of one run, or show what would change."""
    from ..hub import results

    benchmarks = known_benchmarks(options.runs)
    this = results.publication(
        options.runs,
        benchmarks,
        allow_incomplete=options.allow_incomplete,
        report=options.report,
        predictions=options.predictions,
    )
    return _carry_out(results.pending(this, benchmarks, options.to), options.dry_run, private=None)


def publish_predictions(options: argparse.Namespace) -> int:
    """Publish the predictions of runs, or show what would change."""
    from ..hub import predictions

    runs, pending = predictions.pending(options.runs, options.to)
    for run in runs:
        rows = sum(source.rows for source in run.sources)
        print(f"{run.name}: {rows:,} rows of {len(run.sources)} sources in {len(run.files):,} files")
        if run.places():
            _say(f"{run.name}: its records name places on this machine, which all can read: {', '.join(run.places())}")
    if (options.runs / "failures").is_dir():
        _say("models that failed have no predictions: they are not part of the data set")
    return _carry_out(pending, options.dry_run, private=True if options.private else None)


def _carry_out(pending: Pending, dry_run: bool, *, private: bool | None) -> int:
    if not dry_run:
        pushed = pending.push(private=private, say=_say)
        commit = f" (commit {pushed.head[:12]})" if pushed.changed and pushed.head else ", where nothing had to change"
        print(f"published {pushed.page}{commit}")
        return 0
    changes = pending.changes()
    for change in changes:
        print(f"{change.size:>12,} bytes  {change.state:8} {change.path}")
    difference = pending.difference()
    if difference:
        print(f"\n{difference}", end="")
    new = "" if pending.remote.exists else ", which would be created"
    count = sum(change.state != "same" for change in changes)
    print(f"\ndry run: {count} of {len(changes)} files would change in {pending.repo}{new}; nothing was sent")
    return 0


def pull(options: argparse.Namespace) -> int:
    """Bring published predictions."""
    from ..hub.predictions import pull as pull_runs

    for run in pull_runs(options.repo, options.out, say=_say):
        print(f"{run.folder}{': there already, the same' if run.was_there else ''}")
    print(f"score them: hf-robust score {options.out}")
    return 0


def export_fiftyone(options: argparse.Namespace) -> int:
    """Write a run as a FiftyOne data set."""
    from ..hub import fiftyone
    from ..report import Places
    from ..scoring.compare import run_of

    known = known_benchmarks(options.runs)
    asked = fiftyone.asked_in(run_of(options.runs), known, options.benchmark, options.preprocessing)
    places = Places(options.data, options.imagenet_val)
    done = fiftyone.export_fiftyone(asked, options.out, places=places)
    print(f"wrote {done.samples:,} samples of {asked.benchmark.name} to {done.folder}; look at them (extra fiftyone):")
    print(f'  fiftyone.Dataset.from_dir("{done.folder}", dataset_type=fiftyone.types.FiftyOneDataset)')
    _say(f"the folder holds copies of the pictures; before you pass it on: {asked.benchmark.licence}")
    if done.missing:
        _say(f"{done.missing:,} pictures are not on this machine with the bytes that were evaluated: left out")
    return 1 if done.missing else 0


def _say(text: str) -> None:
    print(f"hf-robust: {text}", file=sys.stderr)
