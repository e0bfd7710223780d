"""The same page as a Space: its files, and the server that keeps the answers in a private data set of the Hub.

The Space holds nothing of the review: pictures, items and answers are in the data set, since anybody may read the
files of a public Space. A Space's disk is empty after a restart, so the answers are read back when it starts.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from .base import Answer, ReviewError
from .exchange import read_seconds
from .folder import ITEMS, REVIEW, TASKS, read_review
from .screens import Desk
from .serve import build_app, listen, run
from .store import Event, Store

if TYPE_CHECKING:
    from huggingface_hub import CommitScheduler

SALT, TOKEN = "REVIEW_SALT", "REVIEW_TOKEN"
SHORTEST_SALT = 16
REVIEW_FOLDER, ANSWERS_FOLDER = "review", "answers"
_REPO = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?/[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?")

_APP = '''"""Shows the review that lies in the private data set {repo} and keeps its answers there."""

from hf_robust.review.space import serve_space

serve_space("{repo}")
'''
_CARD = """---
title: {title}
emoji: 🔎
colorFrom: blue
colorTo: gray
sdk: gradio
app_file: app.py
pinned: false
tags:
- hf-robust
- image-review
---

# {heading}

People judge pictures here, one at a time. The pictures and the answers are in a private data set.

## To run it

Set these secrets in the Space's settings:

- `HF_TOKEN`: a token that may write to the data set `{repo}`, and to nothing else
- `{salt}`: {shortest} or more random characters; worker ids are hashed with it before an answer is kept, and
  it must stay the same as long as the review runs
- `{token}` (if not everybody may take part): the access token; people open the page with `?token=…`
"""


def space_files(folder: Path | str, repo_answers: str) -> dict[str, bytes]:
    """The files of the Space: app.py, requirements.txt, README.md.

    repo_answers  OWNER/NAME of the private data set that holds the review and gets the answers; what it must hold
                  before the Space starts is `answer_repo_files`.
    ReviewError for a folder that is no review, or a name that is none.
    """
    if not _REPO.fullmatch(repo_answers):
        raise ReviewError(f"expected OWNER/NAME of a data set on the Hub, got {repo_answers!r}")
    title = read_review(folder).mode.title
    card = _CARD.format(title=json.dumps(title), heading=escape(title), repo=repo_answers, salt=SALT, token=TOKEN,
                        shortest=SHORTEST_SALT)  # fmt: skip
    return {
        "app.py": _APP.format(repo=repo_answers).encode(),
        "requirements.txt": f"hf-robust[review]=={__version__}\n".encode(),
        "README.md": card.encode(),
    }


def answer_repo_files(folder: Path | str) -> dict[str, Path]:
    """Path in the private data set -> file: the review as the Space reads it; no answers, salt or worker ids."""
    review = read_review(folder)
    pictures = sorted({item.picture for item in review.items})
    files = {name: review.folder / name for name in (ITEMS, TASKS, REVIEW)}
    files |= {f"images/{name}": review.picture(name) for name in pictures}
    return {f"{REVIEW_FOLDER}/{name}": path for name, path in files.items()}


def serve_space(repo_answers: str, *, every_minutes: float = 1.0) -> None:
    """Serves the review of a private data set where the Hub expects a Space, until it is stopped.

    Answers are appended to a file of the data set and committed every so many minutes, when they are any, and once more
    when the Space is stopped. ReviewError in one sentence where a secret is missing or the data set is no review.
    """
    salt = _secret_salt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # else the last commit below would not be made
    home = _fetched(repo_answers)
    store = Store(home / REVIEW_FOLDER, salt=salt, keep_names=False)
    store.replay(read_events(home / ANSWERS_FOLDER))
    with _scheduler(repo_answers, home / "new", every_minutes) as scheduler:
        journal = Journal(store, home / "new", scheduler.lock)
        host, port = os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"), int(os.environ.get("GRADIO_SERVER_PORT", "7860"))
        app = build_app(KeptDesk(store, journal.write), token=os.environ.get(TOKEN) or None, hosts=None)
        with listen(host, port) as listening:
            run(app, listening)


def _secret_salt() -> str:
    salt = os.environ.get(SALT, "")
    if len(salt) < SHORTEST_SALT:
        raise ReviewError(
            f"expected {SHORTEST_SALT} or more random characters in the secret {SALT}, got {len(salt)}: set it in the "
            "Space's settings and restart it"
        )
    return salt


def _fetched(repo: str) -> Path:
    """A local copy of the data set; the review lies in `review`, earlier answers in `answers`."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    patterns = [f"{REVIEW_FOLDER}/*", f"{ANSWERS_FOLDER}/*.jsonl"]
    home = Path(os.environ.get("REVIEW_HOME", "review-data"))
    try:
        return Path(snapshot_download(repo, repo_type="dataset", allow_patterns=patterns, local_dir=home))
    except HfHubHTTPError as error:
        raise ReviewError(
            f"expected the review in the data set {repo}, got {type(error).__name__}: push it there and set HF_TOKEN"
        ) from error


def _scheduler(repo: str, folder: Path, every: float) -> CommitScheduler:
    from huggingface_hub import CommitScheduler

    folder.mkdir(exist_ok=True)
    return CommitScheduler(
        repo_id=repo, repo_type="dataset", private=True, folder_path=folder, path_in_repo=ANSWERS_FOLDER, every=every,
        allow_patterns=["*.jsonl"],
    )  # fmt: skip


class KeptDesk(Desk):
    """A desk that says when something was answered or taken back."""

    def __init__(self, store: Store, changed: Callable[[], None]) -> None:
        super().__init__(store)
        self._changed = changed

    def answer(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The next screen, after the answer was written down."""
        screen = super().answer(name, given)
        self._changed()
        return screen

    def undo(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The question again, after that was written down."""
        screen = super().undo(name, given)
        self._changed()
        return screen


class Journal:
    """A JSON Lines file of this start of the server: everything that the store's log got since then."""

    def __init__(self, store: Store, folder: Path, lock: Any) -> None:
        self._store, self._lock = store, lock
        self._written = max((event.number for event in store.events()), default=0)
        self.path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.jsonl"

    def write(self) -> None:
        """Appends what is new; `lock` keeps a commit from reading half a line."""
        with self._lock:
            events = self._store.events(after=self._written)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(_row(event), sort_keys=True) + "\n" for event in events)
            self._written = max([self._written, *(event.number for event in events)])


def _row(event: Event) -> dict[str, Any]:
    answer = event.answer
    return {
        "worker": answer.worker, "task": answer.task_id, "item": answer.item_id, "question": answer.question,
        "value": None if event.withdrawn else answer.value, "seconds": answer.seconds, "at": answer.at,
    }  # fmt: skip


def read_events(folder: Path | str) -> Iterator[Event]:
    """The events of all `*.jsonl` files of a folder in the order in which they were written, for `Store.replay`.

    ReviewError names the file and line that is not one of ours.
    """
    for path in sorted(Path(folder).glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                row = json.loads(line)
                names = [row[key] for key in ("worker", "task", "item", "question")]
                value, seconds, at = row["value"], row["seconds"], row["at"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ReviewError(f"expected an answer in line {number} of {path}, got {line[:80]!r}") from error
            timed = seconds is None or read_seconds(seconds) == seconds
            if not timed or not all(isinstance(text, str) for text in (*names, at, value or "")):
                raise ReviewError(f"expected an answer in line {number} of {path}, got {line[:80]!r}")
            worker, task, item, question = names
            yield Event(0, Answer(worker, task, item, question, value or "", seconds, at), value is None)
