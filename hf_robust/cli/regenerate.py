"""The command that makes a new benchmark: recipes, their stages, the set that comes out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import command, console_of, folder, print_rows, progress_of, say_complaints

if TYPE_CHECKING:
    from ..builders import Built
    from ..regenerate.ledger import Ledger
    from ..regenerate.recipes import Recipe
    from ..runner import World

WAITING = 3  # exit code: everything that a machine can do is done, people have to act


def add_regenerate(commands: Any) -> None:
    """Declare the command."""
    text = "make a new benchmark in the manner of a published one, stage by stage, resumable"
    example = "hf-robust regenerate imagenet-d --out D --set prompts.limit=200 --set generate.model=FOLDER_OR_REPO"
    parser = command(commands, "regenerate", regenerate, text, example)
    parser.add_argument("recipe", help="imagenet-d, imagenet-a, imagenet-o, spurious-imagenet")
    parser.add_argument("--out", type=folder, metavar="DIR", help="folder of the stages, the review and the set")
    parser.add_argument(
        "--candidates", metavar="SOURCE", help="pool of pictures: folder, tar or Parquet shards, Hub set"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML, a section a stage; see --print-config")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="STAGE.NAME=VALUE",
        help="one setting; wins over --config",
    )
    parser.add_argument("--print-config", action="store_true", help="print every setting with its meaning, and stop")
    parser.add_argument("--until", metavar="STAGE", help="stop after this stage")
    parser.add_argument("--dry-run", action="store_true", help="stages, counts, estimated time and disk; make nothing")
    parser.add_argument("--processes", type=int, metavar="N", help="on this machine (1)")
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: what accelerate finds)")
    parser.add_argument("--json", action="store_true", help="print the funnel as JSON")


def regenerate(options: argparse.Namespace) -> int:
    """Run a recipe and say what came of every candidate."""
    from ..regenerate.recipes import as_toml, check, configure, recipe_of

    recipe = recipe_of(options.recipe)
    settings = configure(recipe, options.config, options.set)
    if options.print_config:
        print(as_toml(recipe, settings), end="")
        return 0
    if options.out is None:
        raise ValueError("expected --out DIR: where stages, review and set are kept")
    if options.until is not None:
        recipe.stage(options.until)
    if options.dry_run:
        check(recipe, settings)
        return _dry_run(options, recipe, settings)
    return _run(options, recipe, settings)


def _run(options: argparse.Namespace, recipe: Recipe, settings: Mapping[str, Any]) -> int:
    from ..regenerate.recipes import run
    from ..regenerate.stage import StageError, Waiting
    from ..runner.workers import workers

    world = _world(options)
    reached: list[Ledger] = []
    with (
        workers(options.given, world) as complaints,
        progress_of(console_of(), silent=world.rank != 0) as meter_of,
    ):
        try:
            ledger = run(
                recipe, settings, options.out, world=world, meter_of=meter_of, candidates=options.candidates,
                until=options.until, finished=reached.append,
            )  # fmt: skip
        except Waiting as waiting:
            return _wait(waiting, world, options, reached)
        except StageError:
            if world.rank == 0:
                _print_funnel(options, reached)  # what no stage kept is often the cause
            raise
    say_complaints(complaints)
    if world.rank != 0:
        return 0
    return _finish(options, recipe, settings, ledger)


def _world(options: argparse.Namespace) -> World:
    from ..runner import World, is_launched, join_world

    if options.processes is not None and options.processes < 1:
        raise ValueError(f"expected --processes of at least 1, got {options.processes}")
    if is_launched():
        return join_world(options.device, options.processes)
    return World(0, options.processes or 1, join_world(options.device).device)


def _wait(waiting: Exception, world: World, options: argparse.Namespace, reached: Sequence[Ledger]) -> int:
    if world.rank != 0:
        return 0
    _print_funnel(options, reached)
    print(f"hf-robust: waiting for people: {waiting}", file=sys.stderr)
    return WAITING


def _print_funnel(options: argparse.Namespace, reached: Sequence[Ledger]) -> None:
    """The funnel after the last of these; nothing where there is none."""
    funnel = reached[-1].funnel() if reached else []
    if options.json:
        print(json.dumps(funnel, indent=2))
    elif funnel:
        print_rows([_shown(row) for row in funnel])


def _finish(options: argparse.Namespace, recipe: Recipe, settings: Mapping[str, Any], ledger: Ledger) -> int:
    from ..regenerate.recipes import finish
    from ..regenerate.selection import selection_lines
    from ..runner import World

    _print_funnel(options, [ledger])
    if options.until is not None and options.until != recipe.stages[-1].name:
        return 0
    with progress_of(console_of()) as meter_of:
        world = World(0, 1, _world(options).device)
        built, effect = finish(recipe, settings, ledger, options.out, world=world, meter_of=meter_of)
    if not options.json:
        _say_what_next(options, built, ledger)
        for line in [] if effect is None else ["", *selection_lines(effect)]:
            print(line)
    return 0


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    why = "; ".join(f"{reason}: {n:,}" for reason, n in row["reasons"].items())
    return {"stage": row["stage"], **{n: f"{row[n]:,}" for n in ("rows", "dropped", "kept")}, "what": why}


def _say_what_next(options: argparse.Namespace, built: Built, ledger: Ledger) -> None:
    from ..regenerate.assemble import LEDGER_FILE, SET, votes
    from ..regenerate.mine import VOTES

    if VOTES in ledger.columns:
        print()
        print_rows([_vote(row) for row in votes(ledger)])
    place = options.out / SET
    print(f"\n{built.name}: {built.rows:,} pictures, fingerprint {built.fingerprint[:12]}, in {place}")
    print(f"every candidate, kept or not, with its reason: {options.out / LEDGER_FILE}")
    print(f"evaluate on it: hf-robust evaluate --model M --benchmark {place} --out RUNS")
    print(f"publish it:     hf-robust build {built.name} --out {place} --push-to-hub OWNER/NAME --dry-run")


def _vote(row: Mapping[str, Any]) -> dict[str, Any]:
    def share(right: int, n: int) -> str:
        return f"{100 * right / n:.1f} % of {n:,}" if n else "—"

    everything, kept = share(row["right"], row["candidates"]), share(row["right_of_kept"], row["kept"])
    return {"model": row["model"], "role": row["role"], "right on candidates": everything, "right on accepted": kept}


def _dry_run(options: argparse.Namespace, recipe: Recipe, settings: Mapping[str, Any]) -> int:
    rows: Sequence[dict[str, Any]] = [{"stage": stage.name, "what": stage.what} for stage in recipe.stages]
    print_rows(rows)
    print()
    for line in _estimates(options, recipe, settings):
        print(line)
    print(f"dry run: nothing was written to {options.out}")
    return 0


def _estimates(options: argparse.Namespace, recipe: Recipe, settings: Mapping[str, Any]) -> Sequence[str]:
    if recipe.needs_pool:
        from ..regenerate.collect import estimate as estimate_pool

        if options.candidates is None:
            return ["no --candidates given: the size of the pool is not known"]
        return estimate_pool(settings[recipe.stages[0].name], options.candidates)
    from ..regenerate.estimate import estimate

    world = _world(options)
    return estimate(settings["prompts"], settings["generate"], world.device, processes=world.size)
