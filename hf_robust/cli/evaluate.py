"""The command that runs models on benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import CHANCE_HELP, DATA_HELP, command, console_of, progress_of
from .results import benchmarks_of, print_results, scored

if TYPE_CHECKING:
    from ..benchmarks import Benchmark
    from ..runner import Needs, RunOptions, World

_MODELS = (
    "timm/NAME or a bare timm name, timm-random/NAME (no weights), hf/REPO_OR_FOLDER, open_clip/ARCH/PRETRAINED, "
    "hf-clip/REPO_OR_FOLDER, offline/efficientnet_lite0|1|2, FILE.py:FACTORY, or @FILE with one name a line"
)


def add_evaluate(commands: Any) -> None:
    """Declare the command."""
    text = "run models on benchmarks: one forward pass a picture, resumable, any number of processes; then score"
    example = "hf-robust evaluate --model timm/resnet50 --benchmark imagenet-a imagenet-o --imagenet-val VAL --out RUNS"
    parser = command(commands, "evaluate", evaluate, text, example)
    parser.add_argument("--model", nargs="+", required=True, metavar="M", help=_MODELS)
    parser.add_argument("--benchmark", nargs="+", required=True, metavar="B", help="see `hf-robust list`; or `all`")
    parser.add_argument("--out", type=Path, required=True, metavar="RUNS", help="folder for predictions and results")
    data = parser.add_argument_group("data")
    data.add_argument("--imagenet-val", metavar="FOLDER_OR_REPO", help="folders named by WordNet id, read in place")
    data.add_argument("--data", type=Path, metavar="DIR", help=DATA_HELP)
    data.add_argument(
        "--preprocessing", choices=("model", "published"), default="model",
        help="the model's own transform, or the one of each paper (%(default)s); named in every result",
    )  # fmt: skip
    data.add_argument("--limit", type=int, metavar="N", help="about N pictures a set, stratified; marked subset")
    data.add_argument("--seed", type=int, default=0, help="of --limit (%(default)s)")
    data.add_argument(
        "--on-error", choices=("raise", "record"), default="raise",
        help="a picture that cannot be read: stop, or count it in every result (%(default)s)",
    )  # fmt: skip
    model = parser.add_argument_group("model")
    model.add_argument("--checkpoint", type=Path, metavar="FILE", help="weights: safetensors, or pickled tensors only")
    model.add_argument("--prompts", type=Path, metavar="FILE", help="zero-shot: one template with {c} a line")
    model.add_argument("--class-names", type=Path, metavar="FILE", help="zero-shot: the 1,000 class names")
    model.add_argument("--features", action="store_true", help="store penultimate features and the linear head too")
    model.add_argument("--trust-remote-code", action="store_true", help="run Python code that a Hub repo brings along")
    speed = parser.add_argument_group("execution; other values make another run, never a mixed one")
    speed.add_argument("--batch-size", type=int, metavar="N", help="pictures a forward pass (CPU 8, GPU 64)")
    speed.add_argument("--threads", type=int, metavar="N", help="CPU threads of each process (1)")
    speed.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="%(default)s")
    speed.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: what accelerate finds)")
    speed.add_argument("--processes", default="auto", metavar="N", help="on this machine; auto: one a core on CPUs")
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def evaluate(options: argparse.Namespace) -> int:
    """Run models on benchmarks, score them, print the table."""
    from ..models import model_names
    from ..runner import DataPlaces, gather
    from ..runner.workers import workers

    wanted = benchmarks_of(options.benchmark)
    names = model_names(options.model)
    needs = gather(
        wanted,
        options.preprocessing,
        DataPlaces(options.data, options.imagenet_val),
        limit=options.limit,
        seed=options.seed,
    )
    if not needs.needs:
        raise LookupError("; ".join(f"{name}: {reason}" for name, reason in needs.absent.items()))
    world = _world(options, needs)
    with workers(options.given, world.size if _starts_workers(options) else 1) as complaints:
        runs, broken = _run_models(options, names, wanted, needs, world)
    for complaint in complaints:
        print(f"hf-robust: a worker process failed, its work was done by the others: {complaint}", file=sys.stderr)
    if world.rank != 0:
        return 1 if broken else 0
    return _finish(options, runs, broken)


def _world(options: argparse.Namespace, needs: Needs) -> World:
    from ..runner import World, is_launched, join_world
    from ..runner.workers import auto_processes

    asked = None if options.processes == "auto" else int(options.processes)
    if is_launched():
        return join_world(options.device, asked)
    alone = join_world(options.device)
    if asked is None and alone.device == "cpu":
        asked = auto_processes(needs.pictures)
    options.processes = asked or 1
    return World(0, options.processes, alone.device)


def _starts_workers(options: argparse.Namespace) -> bool:
    from ..runner import is_launched

    return not is_launched() and options.processes > 1


def _run_models(
    options: argparse.Namespace, names: Sequence[str], wanted: Sequence[Benchmark], needs: Needs, world: World
) -> tuple[list[Path], int]:
    from ..models import ModelError
    from ..runner import evaluate as run_model
    from ..runner import record_failure

    runs, broken = [], 0
    with progress_of(console_of(), silent=world.rank != 0) as meter:
        for name in names:
            try:
                runs.append(
                    run_model(
                        name, wanted, needs, options.out, options=_run_options(options), world=world, meter=meter(name)
                    )
                )
            except ModelError as error:
                broken += 1
                record_failure(options.out, name, str(error))
            else:
                record_failure(options.out, name, None)
    return runs, broken


def _run_options(options: argparse.Namespace) -> RunOptions:
    from ..runner import RunOptions

    return RunOptions(
        mode=options.preprocessing,
        checkpoint=options.checkpoint,
        prompts=options.prompts,
        class_names=options.class_names,
        features=options.features,
        limit=options.limit,
        seed=options.seed,
        micro_batch=options.batch_size,
        threads=options.threads,
        dtype=options.dtype,
        on_error=options.on_error,
        trust_remote_code=options.trust_remote_code,
    )


def _finish(options: argparse.Namespace, runs: Sequence[Path], broken: int) -> int:
    from ..scoring import failed

    results = scored(options.out, options)
    print_results(results, options.json)
    mine = [r for r in failed(results) if r["run"] in {run.name for run in runs}]
    return 1 if broken or mine else 0
