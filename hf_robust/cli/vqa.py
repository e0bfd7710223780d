"""The command that asks vision-language models about the pictures of ImageNet-D."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, console_of, folder, progress_of, say_complaints
from .results import print_results

if TYPE_CHECKING:
    from ..runner import World
    from ..runner.answers import AskOptions
    from ..runner.questions import Ranking

RESULTS = "vqa"  # folder in RUNS: evaluate and score write theirs to "results"


def add_vqa(commands: Any) -> None:
    """Declare the command."""
    text = "ask vision-language models which of two categories a picture of ImageNet-D shows; resumable; then score"
    example = "hf-robust vqa --model hf-vqa/Qwen/Qwen2.5-VL-3B-Instruct --likelihood --out RUNS"
    parser = command(commands, "vqa", vqa, text, example)
    parser.add_argument(
        "--model", nargs="+", default=[], metavar="M",
        help="hf-vqa/REPO_OR_FOLDER of transformers; without: score the answers in RUNS again",
    )  # fmt: skip
    parser.add_argument("--benchmark", choices=("imagenet-d",), default="imagenet-d", help="%(default)s")
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
    runs, broken, rank = _ask(options) if options.model else ([], 0, 0)
    if rank != 0:
        return 0
    return _finish(options, runs, broken)


def _ask(options: argparse.Namespace) -> tuple[list[Path], int, int]:
    """The run folders, how many models failed, and this process's rank."""
    from ..models import model_names
    from ..runner.answers import MODEL_PREFIX
    from ..runner.questions import open_pictures, with_questions
    from ..runner.workers import workers

    names = model_names(options.model)
    strange = [name for name in names if not name.startswith(MODEL_PREFIX)]
    if strange:
        raise ValueError(f"expected models as {MODEL_PREFIX}REPO_OR_FOLDER, got {strange[0]!r}: `hf-robust evaluate` "
                         "runs classifiers")  # fmt: skip
    ask_options = _ask_options(options)
    ranking = _ranking(options)
    rows = with_questions(open_pictures(options.data, limit=options.limit, seed=options.seed), ranking)
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


def _ranking(options: argparse.Namespace) -> Ranking:
    from ..runner.questions import open_pictures, ranking_of_data_set, ranking_of_files, ranking_of_run
    from ..scoring.compare import run_of

    if options.questions:
        return ranking_of_files(options.questions, open_pictures(options.data))
    if options.confusing is not None:
        return ranking_of_run(run_of(options.confusing))
    return ranking_of_data_set(options.data)


def _world(options: argparse.Namespace) -> World:
    from ..runner import World, is_launched, join_world

    if is_launched():
        return join_world(options.device, options.processes if options.processes > 1 else None)
    return World(0, options.processes, join_world(options.device).device)


def _ask_models(
    names: Sequence[str], rows: Any, origin: str, out: Path, options: AskOptions, world: World
) -> tuple[list[Path], int]:
    """The run folders of the models that could be asked, and how many could not."""
    from ..models import ModelError
    from ..predictions.plan import PlanError
    from ..runner.answers import ask

    runs = []
    with progress_of(console_of(), silent=world.rank != 0) as meter_of:
        for name in names:
            try:
                runs.append(ask(name, rows, origin, out, options=options, world=world, meter=meter_of(name)))
            except (ModelError, PlanError) as error:
                print(f"hf-robust: error: {error}", file=sys.stderr)
    return runs, len(names) - len(runs)


def _finish(options: argparse.Namespace, runs: Sequence[Path], broken: int) -> int:
    from ..report import write
    from ..scoring.answers import score_answers

    if broken and not any(options.out.glob("*/questions.json")):
        return 1
    results = score_answers(options.out)
    write(results, options.out / RESULTS)
    mine = {run.name for run in runs} or {row["run"] for row in results}
    shown = [row for row in results if row["run"] in mine]
    print_results(shown, options.json, everything=True)
    if not options.json:
        print(f"\nResults: {options.out / RESULTS / 'table.md'}")
    return 1 if broken or any(row["metric"] is None for row in shown) else 0
