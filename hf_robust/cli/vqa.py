"""The command that asks vision-language models about the pictures of ImageNet-D, or of a set in its manner."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, console_of, folder, progress_of, say_complaints
from .results import own_sets, print_results

if TYPE_CHECKING:
    from ..data import Rows
    from ..runner import DataPlaces, World
    from ..runner.answers import AskOptions
    from ..runner.questions import Ranking

DATASET = "imagenet-d"


def add_vqa(commands: Any) -> None:
    """Declare the command."""
    text = "ask vision-language models which of two categories a picture of ImageNet-D shows; resumable; then score"
    example = "hf-robust vqa --model hf-vqa/Qwen/Qwen2.5-VL-3B-Instruct --likelihood --out RUNS"
    parser = command(commands, "vqa", vqa, text, example)
    parser.add_argument(
        "--model", nargs="+", default=[], metavar="M",
        help="hf-vqa/REPO_OR_FOLDER of transformers; without: score the answers in RUNS again",
    )  # fmt: skip
    parser.add_argument(
        "--benchmark", default=DATASET, metavar="B",
        help="imagenet-d, or a set regenerated in its manner: DIR/set, or OWNER/NAME on the Hub (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--out", type=folder, required=True, metavar="RUNS", help="folder for answers and results")
    asked = parser.add_argument_group("questions")
    asked.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    asked.add_argument(
        "--questions", nargs="+", type=Path, metavar="FILE",
        help="questions/*.csv as released: image_dir, top1_pred_cate, top2_pred_cate (default: those of the data set)",
    )  # fmt: skip
    asked.add_argument(
        "--confusing", type=folder, metavar="RUN", help="take the confusing categories from this zero-shot run instead"
    )
    asked.add_argument(
        "--orders", choices=("both", "published"), default="both",
        help="ask with the true option first and again with it second, or first only, as published (%(default)s)",
    )  # fmt: skip
    asked.add_argument("--likelihood", action="store_true", help="also which option is the likelier answer")
    asked.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="of an answer (%(default)s)")
    asked.add_argument("--limit", type=int, metavar="N", help="about N pictures, stratified; marked subset")
    asked.add_argument("--seed", type=int, default=0, help="of --limit (%(default)s)")
    asked.add_argument(
        "--on-error", choices=("raise", "record"), default="raise",
        help="a picture that cannot be read: stop, or count it in every result (%(default)s)",
    )  # fmt: skip
    speed = parser.add_argument_group("execution; other values make another run, never a mixed one")
    speed.add_argument("--batch-size", type=int, metavar="N", help="pictures at once (CPU 4, GPU 16)")
    speed.add_argument("--threads", type=int, metavar="N", help="CPU threads of each process (1)")
    speed.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="%(default)s")
    speed.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: what accelerate finds)")
    speed.add_argument("--processes", type=int, default=1, metavar="N", help="on this machine (%(default)s)")
    speed.add_argument("--trust-remote-code", action="store_true", help="run Python code that a Hub repo brings along")
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def vqa(options: argparse.Namespace) -> int:
    """Ask the models, score their answers, print every value."""
    if options.processes < 1:
        raise ValueError(f"expected --processes of at least 1, got {options.processes}: leave it out for one")
    if options.questions and options.confusing:
        raise ValueError("expected --questions FILE or --confusing RUN, got both: leave one out")
    runs, broken, rank = _ask(options) if options.model else ([], (), 0)
    if rank != 0:
        return 0
    return _finish(options, runs, broken)


def _ask(options: argparse.Namespace) -> tuple[list[Path], Sequence[str], int]:
    """The run folders, the models that failed, and this process's rank."""
    from ..models import model_names
    from ..runner.answers import MODEL_PREFIX
    from ..runner.questions import with_questions
    from ..runner.workers import workers

    names = model_names(options.model)
    strange = [name for name in names if not name.startswith(MODEL_PREFIX)]
    if strange:
        raise ValueError(f"expected models as {MODEL_PREFIX}REPO_OR_FOLDER, got {strange[0]!r}: `hf-robust evaluate` "
                         "runs classifiers")  # fmt: skip
    ask_options = _ask_options(options)
    rows, ranking = _pictures(options)
    rows = with_questions(rows if options.limit is None else rows.limited(options.limit, options.seed), ranking)
    world = _world(options)
    with workers(options.given, world, threads=options.threads) as complaints:
        runs, broken = _ask_models(names, rows, ranking.origin, options.out, ask_options, world)
    say_complaints(complaints)
    return runs, broken, world.rank


def _ask_options(options: argparse.Namespace) -> AskOptions:
    from ..runner.answers import AskOptions

    return AskOptions(
        orders=options.orders,
        likelihood=options.likelihood,
        most_tokens=options.max_new_tokens,
        limit=options.limit,
        seed=options.seed,
        micro_batch=options.batch_size,
        threads=options.threads,
        dtype=options.dtype,
        on_error=options.on_error,
        trust_remote_code=options.trust_remote_code,
    )


def _pictures(options: argparse.Namespace) -> tuple[Rows, Ranking]:
    """All pictures of the set, and which categories they are confused with."""
    from ..runner.questions import open_pictures, ranking_of_files, ranking_of_run
    from ..scoring.compare import run_of

    dataset, places = _asked_set(options)
    rows, ranking = open_pictures(places.folder_of(dataset), dataset=dataset, repo=places.repo_of(dataset))
    if options.questions:
        return rows, ranking_of_files(options.questions, rows)
    if options.confusing is not None:
        return rows, ranking_of_run(run_of(options.confusing), dataset)
    return rows, ranking


def _asked_set(options: argparse.Namespace) -> tuple[str, DataPlaces]:
    """The name of the set and where it lies; ValueError for one that has no categories to choose between."""
    from ..runner import DataPlaces

    own = own_sets([options.benchmark])
    if not own and options.benchmark != DATASET:
        raise ValueError(f"expected {DATASET} or a set regenerated in its manner, got {options.benchmark!r}")
    for what, _ in own.values():
        if what.base != DATASET:
            raise ValueError(f"expected a set in the manner of {DATASET}, got {what.name}, which follows {what.base}")
    name = next((what.name for what, _ in own.values()), DATASET)
    return name, DataPlaces(options.data, None, None, {what.name: place for what, place in own.values()})


def _world(options: argparse.Namespace) -> World:
    from ..runner import World, is_launched, join_world

    if is_launched():
        return join_world(options.device, options.processes if options.processes > 1 else None)
    return World(0, options.processes, join_world(options.device).device)


def _ask_models(
    names: Sequence[str], rows: Rows, origin: str, out: Path, options: AskOptions, world: World
) -> tuple[list[Path], list[str]]:
    """The run folders of the models that could be asked, and those that could not; each failure keeps its reason."""
    from ..models import ModelError
    from ..predictions.plan import PlanError
    from ..runner import record_failure
    from ..runner.answers import ask
    from ..scoring.answers import RESULTS

    runs, refused = [], []
    reasons: dict[str, str | None] = {}
    with progress_of(console_of(), silent=world.rank != 0) as meter_of:
        for name in names:
            try:
                runs.append(ask(name, rows, origin, out, options=options, world=world, meter=meter_of(name)))
                reasons[name] = None
            except ModelError as error:
                reasons[name] = str(error)
            except PlanError as error:  # nothing is wrong with the model
                refused.append(name)
                print(f"hf-robust: error: {name}: {error}", file=sys.stderr)
    if world.rank == 0:
        for name, reason in reasons.items():
            record_failure(out / RESULTS, name, reason)
    return runs, [*refused, *(name for name, reason in reasons.items() if reason is not None)]


def _finish(options: argparse.Namespace, runs: Sequence[Path], broken: Sequence[str]) -> int:
    from ..report import write
    from ..scoring.answers import RESULTS, score_answers

    results = score_answers(options.out)
    write(results, options.out / RESULTS)
    mine = {run.name for run in runs}
    shown = [r for r in results if r["run"] in mine or (not r["run"] and r["model"] in broken)]
    shown = shown if options.model else results
    print_results(shown, options.json, everything=True)
    if not options.json:
        print(f"\nResults: {options.out / RESULTS / 'table.md'}")
    return 1 if broken or any(row["metric"] is None for row in shown) else 0
