"""Commands about sets of pictures: how far apart two are, and how sound one is."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, console_of, folder, print_rows, progress_of
from .results import known_benchmarks

if TYPE_CHECKING:
    from ..data import Rows
    from ..distance import Distance, FeatureSet
    from ..health import Answers
    from ..runner import Meter, World

_PLACES = "RUNS/<run>/<dataset>.<rule> with stored features; with --model also a data set or a folder of pictures"


def add_distance(commands: Any) -> None:
    """Declare the command."""
    text = "how far apart two sets of pictures are, in the features of a model: Fréchet and kernel distance"
    example = "hf-robust distance imagenet-a my-pictures/ --model timm/resnet50 --runs RUNS"
    parser = command(commands, "distance", distance, text, example)
    parser.add_argument("first", metavar="A", help=_PLACES)
    parser.add_argument("second", metavar="B", help="the same")
    model = parser.add_argument_group("features that are not stored yet")
    model.add_argument("--model", metavar="M", help="any model of `evaluate`")
    model.add_argument("--checkpoint", type=Path, metavar="FILE", help="its weights, where they are not the published")
    model.add_argument("--runs", type=folder, metavar="RUNS", help="folder for its features; what is there is kept")
    model.add_argument("--batch-size", type=int, metavar="N", help="pictures a forward pass (CPU 8, GPU 64)")
    model.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, mps (default: what accelerate finds)")
    _data_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the groups and subsets (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the distances as JSON")


def _data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    parser.add_argument("--imagenet-val", metavar="FOLDER_OR_REPO", help="where imagenet-val is, if it is not built")
    parser.add_argument("--imagenet-train", metavar="FOLDER_OR_REPO", help="the same of imagenet-train")


def add_health(commands: Any) -> None:
    """Declare the command."""
    text = "duplicates, leaks, broken files, class balance; with stored predictions solved pictures and doubtful labels"
    example = "hf-robust health imagenet-a --reference imagenet-val --runs RUNS --out health"
    parser = command(commands, "health", health, text, example)
    parser.add_argument("name", metavar="NAME", help="a data set, or a folder of pictures")
    parser.add_argument(
        "--reference",
        nargs="+",
        default=[],
        metavar="NAME",
        help="sets or folders that it must not share pictures with",
    )
    _data_options(parser)
    parser.add_argument(
        "--radius", type=int, default=None, metavar="BITS", help="of 256, up to which two pictures are alike (64)"
    )
    seen = parser.add_argument_group("stored predictions")
    seen.add_argument("--runs", type=folder, metavar="RUNS", help="what `evaluate --out` wrote")
    seen.add_argument("--years", type=Path, metavar="FILE", help="CSV of model,year lines: accuracy over the years")
    seen.add_argument(
        "--agreement", type=float, default=None, metavar="X", help="share of strong models against a label (0.8)"
    )
    page = parser.add_argument_group("output")
    page.add_argument("--out", type=folder, metavar="DIR", help="write health.html and health.json")
    page.add_argument("--no-images", action="store_true", help="no thumbnails of flagged pictures on the page")
    page.add_argument("--json", action="store_true", help="print everything as JSON")


def distance(options: argparse.Namespace) -> int:
    """Print how far apart two sets are."""
    from ..distance import distance as distance_of
    from ..runner import join_world

    if (options.model is None) != (options.runs is None):
        raise ValueError("expected --model M and --runs RUNS together, got one: the model, and where its features go")
    world = None if options.model is None else join_world(options.device)
    with progress_of(console_of(), silent=world is not None and world.rank != 0) as meter_of:
        one, other = (_features(place, options, world, meter_of) for place in (options.first, options.second))
    if world is not None and world.rank != 0:
        return 0
    found = distance_of(one, other, seed=options.seed)
    if options.json:
        print(json.dumps(asdict(found), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print_distance(found, options)
    return 0


def _features(
    place: str, options: argparse.Namespace, world: World | None, meter_of: Callable[[str], Meter]
) -> FeatureSet:
    from ..distance import forward_features, open_features
    from ..predictions.parts import is_source_folder
    from ..runner import RunOptions

    if world is None or is_source_folder(Path(place)):
        return open_features(Path(place))
    asked = RunOptions(checkpoint=options.checkpoint, features=True, micro_batch=options.batch_size, on_error="record")
    rows = _rows(place, options)
    return forward_features(
        rows, options.model, options.runs, options=asked, world=world, meter=meter_of(f"{options.model} {place}")
    )


def _rows(place: str, options: argparse.Namespace) -> Rows:
    """The data set of that name, or the pictures of that folder."""
    from .. import builders
    from ..data import FLAGS, MissingDataError, open_folder, open_rows

    if not place.strip():
        raise ValueError("expected a data set or a folder of pictures, got an empty name")
    own = {"imagenet-val": options.imagenet_val, "imagenet-train": options.imagenet_train}.get(place)
    built = {b.name for b in builders.installed(out=options.data)}
    if place in FLAGS or place in built or place in builders.recipes():
        return open_rows(place, built=options.data, place=own)
    if Path(place).is_dir():
        return open_folder(Path(place))
    if Path(place).name != place or Path(place).exists():  # no data set's name has a slash
        there = "a file" if Path(place).exists() else "no such folder"
        raise MissingDataError(f"expected a data set or a folder of pictures, got {there} at {place}: check the path")
    return open_rows(place, built=options.data)


def _print_distance(found: Distance, options: argparse.Namespace) -> None:
    frechet, kernel = found.frechet, found.kernel
    print(f"A = {options.first}, {found.counts[0]:,} pictures\nB = {options.second}, {found.counts[1]:,} pictures\n")
    interval = "" if frechet.ci95 is None else f"  95 % CI {frechet.ci95[0]:.6g} to {frechet.ci95[1]:.6g}"
    print(f"{found.title}: {frechet.value:.6g}{interval}")
    if frechet.extrapolated is not None:
        print(f"  extrapolated to endless pictures, linear in 1/N: {frechet.extrapolated:.6g}")
    print(
        f"Kernel distance (cubic polynomial, {kernel.subsets} subsets of {kernel.subset_size}): "
        f"{kernel.value:.6g}, standard deviation {kernel.std:.2g}"
    )
    print(f"{found.dimensions} dimensions. The Fréchet distance of finitely many pictures is too high, by about 1/N.")
    for note in found.notes:
        print(textwrap.fill(f"- {note}", 80, subsequent_indent="  ", break_on_hyphens=False))


def health(options: argparse.Namespace) -> int:
    """Print what is found in a set, and write its page."""
    from ..health import RADIUS, check_radius, health_of, look_at, record, summary, write_page

    radius = RADIUS if options.radius is None else options.radius
    check_radius(radius)
    rows = _rows(options.name, options)
    references = [_rows(place, options) for place in options.reference]
    answers = _answers(rows, options)
    with progress_of(console_of()) as meter_of:
        looks = look_at(rows, meter_of(rows.dataset))
        seen = [(other, look_at(other, meter_of(other.dataset))) for other in references]
    found = health_of(rows, looks, seen, answers, radius=radius)
    values = record(found, rows, references)
    if options.json:
        print(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print_rows(summary(found))
        for note in () if answers is None else answers.notes:
            print(textwrap.fill(f"- {note}", 80, subsequent_indent="  ", break_on_hyphens=False))
    if options.out is not None:
        page = write_page(found, rows, references, values, options.out, images=not options.no_images)
        print(f"wrote {page}", file=sys.stderr if options.json else sys.stdout)
    return 0


def _answers(rows: Rows, options: argparse.Namespace) -> Answers | None:
    from ..health import AGREEMENT, answers_of, read_years

    if options.runs is None:
        alone = {"--years": options.years, "--agreement": options.agreement}
        for name in (name for name, value in alone.items() if value is not None):
            raise ValueError(f"expected --runs RUNS with {name}, got none: it is about stored predictions")
        return None
    return answers_of(
        rows,
        options.runs,
        known_benchmarks(),
        years={} if options.years is None else read_years(options.years),
        agreement=AGREEMENT if options.agreement is None else options.agreement,
    )
