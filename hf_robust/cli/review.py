"""Commands for the part that people do: serve the page, see where a review stands, exchange it with other tools."""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import command, folder, print_rows
from .review_make import add_make, add_result, count_answers, review_folder
from .review_space import add_space

if TYPE_CHECKING:
    from ..regenerate.review import State

_SECONDS_BETWEEN_LOOKS = 30


def add_review(commands: Any) -> None:
    """Declare the commands."""
    parser = commands.add_parser(
        "review",
        help="let people judge pictures: a web page, Mechanical Turk or Label Studio",
        description="Let people judge pictures: those of a regeneration, of a benchmark, or sheets of components.",
    )
    kinds = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_make(kinds)
    _add_serve(kinds)
    own = command(kinds, "status", status, "who has answered what, whose answers count, what is missing", "… status D")
    own.add_argument("dir", type=folder, metavar="DIR", help="folder of `regenerate` or `review make`")
    add_result(kinds)
    _add_exchange(kinds)
    _add_plan(kinds)
    add_space(kinds)


def _add_serve(kinds: Any) -> None:
    text = "serve the page on which people answer; Ctrl-C stops it, no answer is lost"
    own = command(kinds, "serve", serve, text, "hf-robust review serve D")
    own.add_argument("dir", type=folder, metavar="DIR", help="folder of `regenerate` or `review make`")
    own.add_argument("--host", default="127.0.0.1", help="%(default)s; others need --token")
    own.add_argument("--port", type=int, default=7861, help="%(default)s; 0 takes a free one")
    own.add_argument("--token", metavar="WORD", help="what the page asks for, 12 characters or more; auto makes one")


def _add_exchange(kinds: Any) -> None:
    text = "write the tasks for another tool"
    own = command(kinds, "export", export, text, "hf-robust review export D --to mturk --base-url URL --out TASKS")
    own.add_argument("dir", type=folder, metavar="DIR")
    own.add_argument("--to", choices=("mturk", "label-studio"), required=True)
    own.add_argument("--base-url", required=True, metavar="URL", help="where the files of DIR's images/ can be fetched")
    own.add_argument("--out", type=folder, required=True, metavar="FOLDER")
    own.add_argument("--open-only", action="store_true", help="only tasks that a decision still needs")
    text = "read the answers that another tool collected"
    own = command(kinds, "import", bring, text, "hf-robust review import D --from mturk --file Batch_results.csv")
    own.add_argument("dir", type=folder, metavar="DIR")
    own.add_argument("--from", dest="origin", choices=("mturk", "label-studio"), required=True)
    own.add_argument("--file", type=Path, required=True, metavar="FILE")


def _add_plan(kinds: Any) -> None:
    text = "what a review costs and yields, before it is made"
    own = command(kinds, "plan", plan, text, "hf-robust review plan --images 240 --workers 3")
    own.add_argument("--images", type=int, required=True, metavar="N")
    own.add_argument("--workers", type=int, default=3, metavar="K", help="people for every picture (%(default)s)")
    own.add_argument("--mode", default="image-validity", help="%(default)s")
    own.add_argument("--images-a-task", type=int, default=20, metavar="N", help="%(default)s")
    own.add_argument("--sentinel-rate", type=float, default=0.2, metavar="X", help="%(default)s")
    own.add_argument("--seconds", type=float, default=3.0, metavar="S", help="an answer takes (%(default)s)")


def serve(options: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from ..regenerate.review import attend
    from ..review.serve import serve as serve_review

    place = review_folder(options.dir)
    stopped = threading.Event()

    def look_after() -> None:
        while not stopped.wait(_SECONDS_BETWEEN_LOOKS):
            attend(place)

    attend(place)
    watcher = threading.Thread(target=look_after, daemon=True)
    watcher.start()
    try:
        with suppress(KeyboardInterrupt):  # how people stop it
            serve_review(place, host=options.host, port=options.port, token=options.token, say=_say_address)
    finally:
        stopped.set()
    print("stopped; every answer is kept. Where it stands: hf-robust review status", options.dir)
    return 0


def _say_address(address: str) -> None:
    print(f"open {address} (Ctrl-C stops; answers are kept)", flush=True)


def status(options: argparse.Namespace) -> int:
    """Print where the review stands."""
    from ..regenerate.review import attend, decides, facts_of

    place = review_folder(options.dir)
    state = attend(place)
    _print_workers(state)
    if decides(state.review.mode):
        decided = [d for d in state.decisions.values() if d.final]
        accepted = sum(bool(d.accepted) for d in decided)
        print(f"{len(decided):,} of {len(state.decisions):,} pictures are decided, {accepted:,} of them accepted")
    else:
        print(count_answers(state))
    for question, found in state.agreement().items() if state.answers else ():
        alpha = "—" if found["alpha"] is None else f"{found['alpha']:.3f}"
        agreed = f"equal pairs of answers, mean over pictures {_per_cent(found['pairwise'])}"
        print(f"{question}: {agreed}, Krippendorff's alpha {alpha}")
    if state.needed.answers:
        print(f"missing: {sum(state.needed.answers.values()):,} answers to {len(state.needed.answers):,} pictures")
        return 1
    made = "ledger" in facts_of(place)
    print(f"nothing is missing: run `hf-robust {'regenerate` again' if made else f'review result {options.dir}`'}")
    return 0


def _per_cent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f} %"


def _print_workers(state: State) -> None:
    from ..review.reliability import reliability

    found = reliability(state.review.items, state.answers, state.review.mode)
    rows = [
        {
            "worker": name[:12],
            "answers": one.answers,
            "sentinels passed": f"{one.sentinels.passed} of {one.sentinels.seen}",
            "counts": "yes" if name in state.trust.kept else "no",
            "what": state.trust.dropped.get(name, ""),
        }
        for name, one in found.items()
    ]
    if rows:
        print_rows(rows)
    else:
        print("nobody has answered yet")


def export(options: argparse.Namespace) -> int:
    """Write tasks for another tool."""
    from ..regenerate.review import attend
    from ..review.exchange_labelstudio import export_label_studio
    from ..review.exchange_mturk import export_mturk

    state = attend(review_folder(options.dir))
    wanted = [*state.needed.open, *sorted(set(state.needed.again))] if options.open_only else None
    write = export_mturk if options.to == "mturk" else export_label_studio
    for path in write(state.review, options.out, base_url=options.base_url, task_ids=wanted):
        print(f"wrote {path}")
    return 0


def bring(options: argparse.Namespace) -> int:
    """Read answers of another tool."""
    from ..review.exchange_labelstudio import import_label_studio
    from ..review.exchange_mturk import import_mturk
    from ..review.store import Store

    store = Store(review_folder(options.dir))
    read = import_mturk if options.origin == "mturk" else import_label_studio
    found = read(store.review, options.file, enter=store.enter)
    new = store.import_answers(found.answers)
    for note in found.notes:
        print(f"hf-robust: {note}", file=sys.stderr)
    print(f"{len(found.answers):,} answers read, {new:,} of them new")
    return 0


def plan(options: argparse.Namespace) -> int:
    """Print cost and expected quality."""
    from ..review.base import MODES
    from ..review.decisions import Rule
    from ..review.simulate import plan_review

    if options.mode not in MODES:
        raise LookupError(f"unknown mode {options.mode!r}; known: {', '.join(MODES)}")
    found = plan_review(
        options.images,
        MODES[options.mode],
        rule=Rule(options.workers, min(2, options.workers)),
        images_a_task=options.images_a_task,
        sentinel_rate=options.sentinel_rate,
        seconds_an_answer=options.seconds,
    )
    print(
        f"{found.images:,} pictures × {found.workers} workers: {found.tasks:,} tasks of {found.minutes_a_task:.0f} "
        "minutes, "
        f"{found.shown:,} pictures shown, {found.answers:,} answers, {found.hours:.1f} hours in all"
    )
    print_rows(
        [
            {
                "answers right %": f"{100 * one.accuracy:.0f}",
                "decisions right %": _range(one.right),
                "accepted good %": _range(one.good),
                "ties %": _range(one.tied),
                "saved %": _range(one.saved),
            }
            for one in found.outcomes
        ],
        gap=1,
    )
    return 0


def _range(values: tuple[float, float, float]) -> str:
    mean, low, high = (100 * value for value in values)
    return f"{mean:.1f} [{low:.0f}–{high:.0f}]"
