"""Commands for reviews beside a regeneration: people name the class of a benchmark's pictures, or judge components."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import DATA_HELP, command, folder, print_rows

if TYPE_CHECKING:
    from ..benchmarks import Benchmark
    from ..regenerate.review import State
    from ..runner import DataPlaces

NAMING, LABELLING = "name-the-class", "component-labels"
_EXAMPLE = "hf-robust review make D --mode name-the-class --benchmark imagenet-a --imagenet-val VAL --limit 400"
# The options of one mode and their values where they are not given; with the other mode they are refused.
_OWN: dict[str, dict[str, Any]] = {
    NAMING: {"benchmark": None, "data": None, "imagenet_val": None, "limit": None, "choices": 5},
    LABELLING: {"sheets": None, "own_sentinels": None},
}


def add_make(kinds: Any) -> None:
    """Declare `review make`."""
    text = "make a review of a benchmark's pictures (human accuracy), or of the sheets of components"
    own = command(kinds, "make", make, text, _EXAMPLE)
    own.add_argument("dir", type=folder, metavar="DIR")
    own.add_argument("--mode", choices=tuple(_OWN), required=True)
    own.add_argument("--workers", type=int, default=3, metavar="K", help="people for every picture (%(default)s)")
    own.add_argument("--images-a-task", type=int, default=20, metavar="N", help="%(default)s")
    own.add_argument(
        "--sentinel-rate", type=float, default=0.2, metavar="X",
        help="share of a task that shows who answers with care (%(default)s)",
    )  # fmt: skip
    own.add_argument("--seed", type=int, default=0, help="of everything that is drawn (%(default)s)")
    naming = own.add_argument_group(NAMING)
    naming.add_argument("--benchmark", metavar="B", help="imagenet-a, imagenet-d, imagenet-val, or DIR/set")
    naming.add_argument("--data", type=folder, metavar="DIR", help=DATA_HELP)
    naming.add_argument(
        "--imagenet-val", metavar="FOLDER_OR_REPO", help="clean pictures of the same classes, as sentinels"
    )
    naming.add_argument("--limit", type=int, metavar="N", help="about N pictures, evenly over the classes")
    naming.add_argument("--choices", type=int, metavar="N", help="names offered for a picture (5)")
    labelling = own.add_argument_group(LABELLING)
    labelling.add_argument("--sheets", type=folder, metavar="FOLDER", help="what `neural-pca show --out` wrote")
    labelling.add_argument(
        "--own-sentinels", metavar="FOLDER", help="sheets of known answers in positive/CLASS/ and negative/CLASS/"
    )


def add_result(kinds: Any) -> None:
    """Declare `review result`."""
    text = "what people said: human accuracy, or the list of spurious components"
    own = command(kinds, "result", result, text, "hf-robust review result D --to RUNS")
    own.add_argument("dir", type=folder, metavar="DIR", help="folder of `review make`")
    own.add_argument(
        "--to", type=folder, metavar="RUNS", help=f"{NAMING}: show people beside the models of RUNS in every table"
    )
    own.add_argument("--out", type=Path, metavar="FILE", help=f"{LABELLING}: the list (DIR/components.json)")
    own.add_argument(
        "--allow-incomplete", action="store_true", help=f"{LABELLING}: write it while components are undecided"
    )


def review_folder(place: Path) -> Path:
    """The review's own folder: `place`, or the one below it that changed last; LookupError where there is none."""
    from ..review.folder import REVIEW

    if (place / REVIEW).is_file():
        return place
    found = sorted(place.glob(f"review-*/{REVIEW}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise LookupError(
            f"expected a review in {place}, got none: `hf-robust review make` makes one, and `hf-robust regenerate` "
            "once there is something to judge"
        )
    if len(found) > 1:
        print(f"hf-robust: of {len(found)} reviews the newest: {found[-1].parent}", file=sys.stderr)
    return found[-1].parent


def make(options: argparse.Namespace) -> int:
    """Make a review."""
    _check_options(options)
    review = (_make_naming if options.mode == NAMING else _make_labelling)(options)
    shown = sum(item.kind == "image" for item in review.items)
    known = sum(item.kind == "positive" or item.kind == "negative" for item in review.items)
    print(
        f"{shown:,} pictures × {options.workers} workers in {len(review.tasks):,} tasks, {known:,} pictures of known "
        f"answers: {options.dir}\nlet people answer: hf-robust review serve {options.dir}"
    )
    if options.mode == NAMING and not known:
        print("hf-robust: without --imagenet-val only repeated pictures show who answers with care", file=sys.stderr)
    return 0


def _check_options(options: argparse.Namespace) -> None:
    for mode, own in _OWN.items():
        for name, value in own.items():
            flag = f"--{name.replace('_', '-')}"
            if mode != options.mode and getattr(options, name) is not None:
                raise ValueError(f"expected {flag} with --mode {mode} only, got it with {options.mode}: leave it out")
            if getattr(options, name) is None:
                setattr(options, name, value)
    needed = "benchmark" if options.mode == NAMING else "sheets"
    if getattr(options, needed) is None:
        raise ValueError(f"expected --{needed} with --mode {options.mode}, got none: say what people are asked about")


def _make_naming(options: argparse.Namespace) -> Any:
    from ..regenerate.name_the_class import NamingSettings, make_naming

    settings = NamingSettings(
        options.choices, options.limit, options.workers, options.images_a_task, options.sentinel_rate,
        seed=options.seed,
    )  # fmt: skip
    benchmark, places = _asked(options)
    return make_naming(options.dir, benchmark, places, settings)


def _asked(options: argparse.Namespace) -> tuple[Benchmark, DataPlaces]:
    """The benchmark and where its pictures are."""
    from ..benchmarks.derived import derive
    from ..runner import DataPlaces
    from .results import known_benchmarks, own_sets

    own = own_sets([options.benchmark])
    known = {name: derive(what) for name, (what, _) in own.items()} or known_benchmarks()
    if options.benchmark not in known:
        raise LookupError(f"unknown benchmark {options.benchmark!r}; known: {', '.join(sorted(known))}")
    sets = {what.name: place for what, place in own.values()}
    return known[options.benchmark], DataPlaces(options.data, options.imagenet_val, None, sets)


def _make_labelling(options: argparse.Namespace) -> Any:
    from ..regenerate.component_labels import LabellingSettings, make_labelling

    settings = LabellingSettings(
        options.workers, options.images_a_task, options.sentinel_rate, options.own_sentinels, options.seed
    )
    return make_labelling(options.dir, options.sheets, settings)


def result(options: argparse.Namespace) -> int:
    """Print what people said and leave it where it is used."""
    from ..review.folder import read_review

    place = review_folder(options.dir)
    mode = read_review(place).mode.name
    if mode == NAMING and options.out is None and not options.allow_incomplete:
        return _human_accuracy(place, options.to)
    if mode == LABELLING and options.to is None:
        return _components(place, options.out or place / "components.json", options.allow_incomplete)
    if mode in _OWN:
        raise ValueError(f"expected the options of {mode}, got those of another mode: see --help")
    raise ValueError(f"expected a review of {' or '.join(_OWN)}, got {mode}: run `hf-robust regenerate` again instead")


def _human_accuracy(place: Path, runs: Path | None) -> int:
    from ..regenerate.name_the_class import human_record
    from ..scoring.people import write_people

    record, state = human_record(place)
    print(f"{record['benchmark']}: {record['asked']:,} pictures asked, of {record['pictures_of_the_set']:,}")
    named = ((f"majority of {record['workers_a_picture']}", "majority"), ("one answer", "answers"))
    print_rows([{"people": text, **_in_words(record[name])} for text, name in named])
    print(
        f"ties {record['ties']:,} (counted as wrong), without an answer {record['unanswered']:,}, unreadable "
        f"{record['unreadable']:,}; {record['workers']:,} people count, {record['workers_dropped']:,} do not\n"
        f"people chose among {record['choices']} names: a guess is right in {100 * record['chance']:.0f} %; the "
        "Wilson interval takes answers for independent, the bootstrap keeps those to one picture together"
    )
    if record["stated"]:
        print(record["stated"])
    if runs is not None:
        print(f"wrote {write_people(runs, record)}: `hf-robust score` and `report` show it beside the models")
    return _missing(state)


def _in_words(share: dict[str, Any]) -> dict[str, str]:
    low, high = share["bootstrap"]
    return {
        "right": f"{share['right']:,} of {share['n']:,}",
        "value %": f"{100 * share['value']:.1f}",
        "Wilson 95 %": "–".join(f"{100 * end:.1f}" for end in share["wilson"]),
        "bootstrap 95 %": f"{100 * low:.1f}–{100 * high:.1f}" if low < high else "—",  # all alike: no spread to see
    }


def _components(place: Path, out: Path, allow_incomplete: bool) -> int:
    from ..predictions.temporary import renamed
    from ..regenerate.component_labels import judged_components
    from ..review.people import component_json

    found, state = judged_components(place)
    spurious = sum(map(len, found.values()))
    print(f"{spurious:,} of {len(state.decisions):,} components judged spurious, of {len(found):,} classes")
    if state.needed.answers and not allow_incomplete:
        print("no list written while components are undecided: --allow-incomplete leaves those out")
    elif not spurious:
        print("no list written: it would be empty")
        return 1
    else:
        with renamed(out) as temporary:
            temporary.write_text(component_json(found), encoding="utf-8")
        print(f"wrote {out}; take them out: hf-robust spufix fit --components {out} --alphas DIR --run RUNS")
    return _missing(state)


def count_answers(state: State) -> str:
    """How many pictures have how many answers that count."""
    parts = [f"{pictures:,} have {answers}" for answers, pictures in state.counts().items()]
    return f"answers that count, of {len(state.decisions):,} pictures: {', '.join(parts)}"


def _missing(state: State) -> int:
    """The exit code: 1 while answers are missing, which is said."""
    if not state.needed.answers:
        return 0
    print(f"missing: {sum(state.needed.answers.values()):,} answers to {len(state.needed.answers):,} pictures")
    return 1
