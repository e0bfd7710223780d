"""The command that runs models on benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import CHANCE_HELP, DATA_HELP, command, console_of, folder, progress_of, say_complaints
from .results import benchmarks_of, own_sets, print_results, scored

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
    parser.add_argument(
        "--benchmark",
        nargs="+",
        required=True,
        metavar="B",
        help="see `hf-robust list`; `all`; or a regenerated set: DIR/set, or OWNER/NAME on the Hub",
    )
    parser.add_argument("--out", type=folder, required=True, metavar="RUNS", help="folder for predictions and results")
    data = parser.add_argument_group("data")
    data.add_argument("--imagenet-val", metavar="FOLDER_OR_REPO", help="folders named by WordNet id, read in place")
    data.add_argument("--imagenet-train", metavar="FOLDER_OR_REPO", help="the same of training pictures, for fits")
    data.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    data.add_argument(
        "--preprocessing", choices=("model", "published"), default="model",
        help="the model's own transform, or the one of each paper (%(default)s); named in every result",
    )  # fmt: skip
    data.add_argument(
        "--exif", choices=("ignore", "apply"), default="ignore",
        help="turn pictures as their EXIF orientation says; published evaluations do not (%(default)s)",
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
    model.add_argument("--spufix", type=Path, metavar="FILE", help="correct the logits by what `spufix fit` wrote")
    model.add_argument("--spufix-strength", type=float, default=1.0, metavar="X", help="from 0 to 1 (%(default)g)")
    model.add_argument("--trust-remote-code", action="store_true", help="run Python code that a Hub repo brings along")
    speed = parser.add_argument_group("execution; other values make another run, never a mixed one")
    speed.add_argument("--batch-size", type=int, metavar="N", help="pictures a forward pass (default: found)")
    speed.add_argument("--threads", type=int, metavar="N", help="CPU threads of each process (1)")
    speed.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="%(default)s")
    speed.add_argument("--compile", action="store_true", help="torch.compile: minutes before the first picture")
    speed.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: what accelerate finds)")
    speed.add_argument(
        "--processes",
        type=_processes,
        metavar="N",
        help="on this machine (default: on CPUs, one a core and 100 pictures)",
    )
    parser.add_argument("--allow-chance", action="store_true", help=CHANCE_HELP)
    parser.add_argument("--json", action="store_true", help="print results as JSON")


def evaluate(options: argparse.Namespace) -> int:
    """Run models on benchmarks, score them, print the table."""
    from ..models import import_libraries, model_names
    from ..runner import DataPlaces, gather
    from ..runner.workers import workers

    wanted = benchmarks_of(options.benchmark)
    names = model_names(options.model)
    needs = gather(
        wanted,
        options.preprocessing,
        DataPlaces(options.data, options.imagenet_val, options.imagenet_train, _own_places(options)),
        limit=options.limit,
        seed=options.seed,
    )
    if not needs.needs:
        raise LookupError("; ".join(f"{name}: {reason}" for name, reason in needs.absent.items()))
    world = _world(options, needs)
    import_libraries(names)  # once, before there are workers
    with workers(options.given, world, threads=options.threads) as complaints:
        runs, broken = _run_models(options, names, wanted, needs, world)
    say_complaints(complaints)
    if world.rank != 0:
        return 0  # a launcher ends every process as soon as one fails: only the first says that a model did
    return _finish(options, runs, broken)


def _own_places(options: argparse.Namespace) -> dict[str, Path | str]:
    """Where the regenerated sets lie, by name; RUNS remembers what they are."""
    from ..benchmarks.derived import remember

    own = own_sets(options.benchmark)
    for what, _ in own.values():
        remember(options.out, what)
    return {what.name: place for what, place in own.values()}


def _processes(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of processes from 1, or auto, got {text!r}")
    return int(text)


def _world(options: argparse.Namespace, needs: Needs) -> World:
    from ..runner import World, is_launched, join_world
    from ..runner.workers import auto_processes

    if is_launched():
        return join_world(options.device, options.processes)
    alone = join_world(options.device)
    auto = auto_processes(needs.pictures, options.threads or 1) if alone.device == "cpu" else 1
    return World(0, options.processes or auto, alone.device)


def _run_models(
    options: argparse.Namespace, names: Sequence[str], wanted: Sequence[Benchmark], needs: Needs, world: World
) -> tuple[list[Path], int]:
    """The run folders of the models that could be run, and how many could not; each failure keeps its reason."""
    from ..models import ModelError
    from ..predictions.plan import PlanError
    from ..runner import evaluate as run_model
    from ..runner import record_failure

    runs: list[Path] = []
    reasons: dict[str, str | None] = {}
    console = console_of()

    def tell(name: str, text: str) -> None:
        if world.rank == 0:
            console.print(f"{name}: {text}", markup=False, highlight=False, soft_wrap=True)

    with progress_of(console, silent=world.rank != 0) as meter_of:
        for name in names:
            try:
                run = run_model(
                    name, wanted, needs, options.out, options=_run_options(options), world=world, meter=meter_of(name),
                    tell=partial(tell, name),
                )  # fmt: skip
            except ModelError as error:
                reasons[name] = str(error)
            except PlanError as error:  # nothing is wrong with the model: its earlier row stays as it is
                print(f"hf-robust: error: {name}: {error}", file=sys.stderr)
                continue
            else:
                reasons[name] = None
                runs.append(run)
    if world.rank == 0:
        for name, reason in reasons.items():
            record_failure(options.out, name, reason)
    return runs, len(names) - len(runs)


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
        compile=options.compile,
        on_error=options.on_error,
        trust_remote_code=options.trust_remote_code,
        spufix=options.spufix,
        spufix_strength=options.spufix_strength,
        exif=options.exif,
    )


def _finish(options: argparse.Namespace, runs: Sequence[Path], broken: int) -> int:
    from ..scoring import failed

    results = scored(options.out, options)
    print_results(results, options.json)
    if not options.json:
        print(f"\nResults: {options.out / 'results' / 'table.md'}")
    mine = [r for r in failed(results) if r["run"] in {run.name for run in runs}]
    return 1 if broken or mine else 0
