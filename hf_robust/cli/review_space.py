"""The review page as a Space of the Hub, and its answers back on this machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .display import command, folder
from .review_make import review_folder

if TYPE_CHECKING:
    from ..hub.network import Content, HubError, Push


def add_space(kinds: Any) -> None:
    """Declare the commands."""
    text = "serve the page as a Space: pictures and answers go to a private data set, the page to a Space"
    example = "hf-robust review space D --to ME/SPACE --answers ME/ANSWERS --dry-run"
    own = command(kinds, "space", space, text, example)
    own.add_argument("dir", type=folder, metavar="DIR", help="folder of `regenerate` or `review make`")
    own.add_argument("--to", required=True, metavar="SPACE", help="OWNER/NAME of the Space")
    own.add_argument("--answers", required=True, metavar="REPO", help="OWNER/NAME of the data set; it is made private")
    own.add_argument("--dry-run", action="store_true", help="show the files of both; send nothing")
    text = "bring the answers that a Space collected"
    own = command(kinds, "pull", pull, text, "hf-robust review pull D --answers ME/ANSWERS")
    own.add_argument("dir", type=folder, metavar="DIR")
    own.add_argument("--answers", required=True, metavar="REPO")


def space(options: argparse.Namespace) -> int:
    """Push the review to its private data set, then the page to its Space."""
    from ..hub.network import HubError
    from ..hub.patience import status_of
    from ..review.space import SALT, TOKEN, answer_repo_files, space_files

    place = review_folder(options.dir)
    data, page = answer_repo_files(place), space_files(place, options.answers)
    try:
        sent = _pushed(options, data, page)
    except HubError as error:
        if not options.dry_run or status_of(error) is not None:
            raise
        _print_unseen({options.answers: data, options.to: page}, error)
    else:
        for done in sent:
            _print_push(done, dry_run=options.dry_run)
    print(
        f"then set the Space's secrets: HF_TOKEN (may write {options.answers}), {SALT} (16 characters or more, keep it "
        f"the same), and {TOKEN} where not everybody may answer"
    )
    return 0


def _pushed(options: argparse.Namespace, data: Mapping[str, Content], page: Mapping[str, Content]) -> tuple[Push, Push]:
    from ..hub.network import push

    first = push(
        options.answers, data, repo_type="dataset", message="The review: pictures, items, tasks", private=True,
        dry_run=options.dry_run, say=_say,
    )  # fmt: skip
    second = push(
        options.to, page, repo_type="space", message="The page of a review", sdk="gradio", dry_run=options.dry_run,
        say=_say,
    )  # fmt: skip
    return first, second


def _print_push(done: Push, *, dry_run: bool) -> None:
    for change in done.changes if dry_run else ():
        print(f"{change.state:8}{change.path}  {change.size:,} bytes")
    said = "dry run, nothing was sent:" if dry_run else "pushed:" if done.changed else "nothing to change:"
    print(f"{said} {done.page}")


def _print_unseen(repos: Mapping[str, Mapping[str, Content]], error: HubError) -> None:
    """The files of each repo where the Hub did not answer: which of them are there already is not known."""
    from ..hub.network import Upload

    for repo, files in repos.items():
        for path, content in files.items():
            print(f"{'?':8}{path}  {Upload(path, content).size:,} bytes")
        print(f"dry run, nothing was sent: {repo}")
    _say(f"what {' and '.join(repos)} hold is not known: {error}")


def pull(options: argparse.Namespace) -> int:
    """Bring answers; the same command again brings only what is new."""
    from ..hub.network import download, repo_files
    from ..review.space import ANSWERS_FOLDER, read_events
    from ..review.store import Store

    store = Store(review_folder(options.dir))
    paths = [p for p in repo_files(options.answers, repo_type="dataset") if p.startswith(f"{ANSWERS_FOLDER}/")]
    with tempfile.TemporaryDirectory() as scratch:
        download(options.answers, paths, Path(scratch), repo_type="dataset")
        new = store.replay(list(read_events(Path(scratch) / ANSWERS_FOLDER)))
    print(f"{len(paths):,} files of answers read, {new:,} answers new")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)
