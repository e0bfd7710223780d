"""The answers of a review in SQLite: who does which task, what was answered, what was taken back.

Nothing is ever changed or removed: an answer, and taking one back, are rows of a log, and the last row about a question
counts. A row is on the disk before the call returns (write-ahead log, synchronous=FULL), so a kill loses nothing; the
same answer sent again adds no row. Several processes may use one folder, as long as it is not on a network drive.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import unicodedata
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .base import Answer, ReviewError, Task
from .folder import REVIEW, Review, read_review
from .salt import read_salt

ANSWERS = "answers.sqlite"
LONGEST_NAME, LONGEST_SECONDS = 100, 86_400.0
_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS review (sha256 TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS workers (worker TEXT PRIMARY KEY, name TEXT);
CREATE TABLE IF NOT EXISTS seats (
  task_id TEXT NOT NULL, worker TEXT NOT NULL, since TEXT NOT NULL, seen TEXT NOT NULL,
  holds INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (task_id, worker));
CREATE UNIQUE INDEX IF NOT EXISTS one_holder ON seats (task_id) WHERE holds;
CREATE TABLE IF NOT EXISTS log (
  number INTEGER PRIMARY KEY AUTOINCREMENT, worker TEXT NOT NULL, task_id TEXT NOT NULL, item_id TEXT NOT NULL,
  question TEXT NOT NULL, value TEXT, seconds REAL, at TEXT);
CREATE INDEX IF NOT EXISTS of_task ON log (task_id, worker, item_id, question);
CREATE TABLE IF NOT EXISTS closed (task_id TEXT PRIMARY KEY);
"""
_FINAL = """
SELECT worker, task_id, item_id, question, value, seconds, at, max(number) FROM log {where}
GROUP BY worker, task_id, item_id, question HAVING value IS NOT NULL ORDER BY max(number)
"""  # SQLite takes the other columns from the row that holds the maximum


@dataclass(frozen=True)
class Event:
    """One row of the log: an answer, or that it was taken back (`answer.value` is then empty)."""

    number: int
    answer: Answer
    withdrawn: bool


@dataclass(frozen=True)
class Progress:
    """Where a worker stands.

    finished  tasks done.  left  tasks that could still be given to this worker, the unfinished one included.
    """

    finished: int
    left: int


def answered_review(folder: Path) -> str | None:
    """SHA-256 of the `review.json` that the answers in a folder are to; None where nothing was ever answered."""
    if not (folder / ANSWERS).exists():
        return None
    try:
        with closing(_open(folder / ANSWERS)) as db:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'log'").fetchone()
            if made is None or db.execute("SELECT 1 FROM log LIMIT 1").fetchone() is None:
                return None
            return str(db.execute("SELECT sha256 FROM review").fetchone()[0])
    except (sqlite3.Error, TypeError) as error:
        raise ReviewError(
            f"expected the answers of a review in {folder / ANSWERS}, got a damaged file ({error}): put back a copy"
        ) from error


def forget_empty_store(folder: Path) -> None:
    """Removes the reservations of a review that is being replaced; ReviewError where there are answers.

    A server that still shows the replaced review is refused from then on.
    """
    if not (folder / ANSWERS).exists():
        return
    with closing(_open(folder / ANSWERS)) as db:
        db.execute("BEGIN IMMEDIATE")
        with db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if "log" in tables and db.execute("SELECT 1 FROM log LIMIT 1").fetchone():
                raise ReviewError(f"expected no answers in {folder / ANSWERS}, got some: they are kept")
            for table in {"review", "workers", "seats", "closed"} & set(tables):
                db.execute(f"DELETE FROM {table}")


def normal_name(name: str) -> str:
    """A worker id as it is compared: spaces and case folded; ReviewError for an empty, long or unprintable one."""
    folded = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    if not folded or len(folded) > LONGEST_NAME or not folded.isprintable():
        raise ReviewError(f"expected a worker id of 1 to {LONGEST_NAME} printable characters, got {name[:120]!r}")
    return folded


def _open(path: Path) -> sqlite3.Connection:
    try:
        db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error as error:
        raise ReviewError(
            f"expected the answers of a review in {path}, got a file that SQLite cannot open ({error})"
        ) from error
    return db


class Store:
    """The answers of the review in a folder.

    idle_minutes  how long a task waits for the worker who has it before it may be given to another.
    salt          what worker ids are hashed with; None = a random one, kept in the folder's `salt`, never exported.
    keep_names    False: not even the local table holds a worker id as it was typed.
    """

    def __init__(
        self, folder: Path | str, *, idle_minutes: float = 60, salt: str | None = None, keep_names: bool = True
    ) -> None:
        self.review: Review = read_review(folder)
        self.folder = Path(folder)
        self._idle, self._keep_names = timedelta(minutes=idle_minutes), keep_names
        self._salt = read_salt(self.folder) if salt is None else salt
        self._needed = {t.task_id: len(t.items) * len(self.review.mode.questions) for t in self.review.tasks}
        self._sha256 = hashlib.sha256((self.folder / REVIEW).read_bytes()).hexdigest()
        self._lock, self._db = threading.Lock(), _open(self.folder / ANSWERS)
        weakref.finalize(self, self._db.close)
        with self._begun() as db:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            if db.execute("SELECT 1 FROM review").fetchone() is None:
                db.execute("INSERT INTO review VALUES (?)", (self._sha256,))
            self._check_owner(db)

    def _check_owner(self, db: sqlite3.Connection) -> None:
        if db.execute("SELECT sha256 FROM review").fetchone() != (self._sha256,):
            raise ReviewError(
                f"expected the answers of this review in {self.folder / ANSWERS}, got those of another: if the review "
                "was made anew, serve it again"
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._begun() as db:
            self._check_owner(db)
            yield db

    @contextmanager
    def _begun(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                self._db.execute("BEGIN IMMEDIATE")  # one writer at a time: what is read here holds until the commit
                with self._db:
                    yield self._db
        except sqlite3.Error as error:
            raise ReviewError(
                f"expected to read and write {self.folder / ANSWERS}, got {error}: nothing was changed"
            ) from error

    def enter(self, name: str) -> str:
        """The salted SHA-256 that stands for a worker id everywhere; the id itself stays in a local table."""
        folded = normal_name(name)
        worker = hashlib.sha256(f"{self._salt}:{folded}".encode()).hexdigest()
        if self._keep_names:
            with self._transaction() as db:
                db.execute("INSERT OR IGNORE INTO workers VALUES (?, ?)", (worker, folded))
        return worker

    def names(self) -> dict[str, str]:
        """Salted hash -> worker id, for this machine only (to pay or to thank people)."""
        with self._transaction() as db:
            return dict(db.execute("SELECT worker, name FROM workers ORDER BY name"))

    def join(self, worker: str, now: datetime) -> Task | None:
        """The worker's unfinished task, else a free one, else one left idle, else None.

        A worker never gets two tasks of one block, nor one that was closed.
        """
        with self._transaction() as db:
            own = "SELECT task_id FROM seats WHERE worker = ? AND holds AND NOT done ORDER BY since, task_id LIMIT 1"
            found = db.execute(own, (worker,)).fetchone()
            task_id = found[0] if found else next(self._open_tasks(db, worker, now), None)
            if task_id is None:
                return None
            self._seat(db, worker, task_id, now)
            return self.review.task[task_id]

    def _open_tasks(self, db: sqlite3.Connection, worker: str, now: datetime) -> Iterator[str]:
        """What could be given to the worker: free tasks in order, then those idle for too long, the longest first."""
        closed = {task_id for (task_id,) in db.execute("SELECT task_id FROM closed")}
        had = {
            self.review.task[t].block for (t,) in db.execute("SELECT task_id FROM seats WHERE worker = ?", (worker,))
        }
        held = {t: (seen, done) for t, seen, done in db.execute("SELECT task_id, seen, done FROM seats WHERE holds")}
        able = [t for t in self.review.tasks if t.block not in had and t.task_id not in closed]
        yield from (t.task_id for t in able if t.task_id not in held)
        before = _text(now - self._idle)
        idle = [(held[t.task_id][0], t.task_id) for t in able if t.task_id in held and not held[t.task_id][1]]
        yield from (task_id for seen, task_id in sorted(idle) if seen < before)

    def _seat(self, db: sqlite3.Connection, worker: str, task_id: str, now: datetime) -> None:
        db.execute("UPDATE seats SET holds = 0 WHERE task_id = ? AND worker != ?", (task_id, worker))
        db.execute(
            "INSERT INTO seats VALUES (?, ?, ?, ?, 1, 0) "
            "ON CONFLICT (task_id, worker) DO UPDATE SET seen = excluded.seen, holds = 1",
            (task_id, worker, _text(now), _text(now)),
        )

    def answer(self, answer: Answer) -> None:
        """Keeps an answer; the last one to a question counts, the same one sent again changes nothing.

        `at` is set to now where it is missing. ReviewError for a task the worker never had, or what cannot be answered.
        """
        answer = self._checked(answer)
        with self._transaction() as db:
            if not db.execute("SELECT 1 FROM seats WHERE task_id = ? AND worker = ?", _seat_of(answer)).fetchone():
                raise ReviewError(
                    f"expected an answer by a worker who has task {answer.task_id!r}, got another: start it"
                )
            self._log(db, answer)
            self._touch(db, answer)

    def undo(self, answer: Answer) -> None:
        """Takes back the answer to that question, whatever its value; doing it again changes nothing."""
        at = answer.at or _text(datetime.now(UTC))
        with self._transaction() as db:
            self._withdraw(db, replace(answer, at=at))
            self._touch(db, replace(answer, at=at))

    def _log(self, db: sqlite3.Connection, answer: Answer) -> bool:
        """Whether the log grew: not by an answer that already counts."""
        if _current(db, answer) == answer.value:
            return False
        row = (*_key(answer), answer.value, answer.seconds, answer.at)
        db.execute(f"INSERT INTO log {_COLUMNS} VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return True

    def _withdraw(self, db: sqlite3.Connection, answer: Answer) -> bool:
        if _current(db, answer) is None:
            return False
        row = (*_key(answer), answer.at)
        db.execute(f"INSERT INTO log {_COLUMNS} VALUES (?, ?, ?, ?, NULL, NULL, ?)", row)
        return True

    def _touch(self, db: sqlite3.Connection, answer: Answer) -> None:
        """Keeps the worker's seat warm, and whether the task is done."""
        count = len(db.execute(_OF_SEAT, _seat_of(answer)).fetchall())
        done = count == self._needed[answer.task_id]
        values = (done, answer.at, *_seat_of(answer))
        db.execute("UPDATE seats SET done = ?, seen = max(seen, ?) WHERE task_id = ? AND worker = ?", values)

    def _checked(self, answer: Answer) -> Answer:
        review, where = self.review, f"task {answer.task_id!r}, item {answer.item_id!r}, question {answer.question!r}"
        task, question = review.task.get(answer.task_id), review.question.get(answer.question)
        if task is None or question is None or answer.item_id not in task.items:
            raise ReviewError(f"expected a question of this review, got {where}")
        values = review.values(review.item[answer.item_id], question)
        if answer.value not in values:
            raise ReviewError(f"expected one of {', '.join(values)} for {where}, got {answer.value!r}")
        seconds = answer.seconds
        if seconds is not None and not 0 <= seconds <= LONGEST_SECONDS:  # a clock that was set, a page left open
            seconds = None
        return replace(answer, seconds=seconds, at=answer.at or _text(datetime.now(UTC)))

    def answered(self, worker: str, task_id: str) -> list[Answer]:
        """The worker's answers in a task that count, in the order they were given."""
        with self._transaction() as db:
            return [Answer(*row[:7]) for row in db.execute(_OF_SEAT, (task_id, worker))]

    def answers(self) -> list[Answer]:
        """All answers that count, in the order they were given; workers are salted hashes."""
        with self._transaction() as db:
            return [Answer(*row[:7]) for row in db.execute(_FINAL.format(where=""))]

    def progress(self, worker: str, now: datetime) -> Progress:
        """What the worker has done and what is left."""
        with self._transaction() as db:
            rows = db.execute("SELECT holds, done FROM seats WHERE worker = ?", (worker,)).fetchall()
            finished = sum(done for _, done in rows)
            unfinished = sum(bool(holds) and not done for holds, done in rows)
            blocks = {self.review.task[task_id].block for task_id in self._open_tasks(db, worker, now)}
            return Progress(finished, unfinished + len(blocks))

    def close(self, task_ids: Collection[str]) -> None:
        """Hands these tasks out no more: their images are decided."""
        self._known(task_ids)
        with self._transaction() as db:
            db.executemany("INSERT OR IGNORE INTO closed VALUES (?)", [(task_id,) for task_id in task_ids])

    def release(self, task_ids: Collection[str]) -> None:
        """Hands these tasks out again, to workers who had none of their blocks: who did them was dropped."""
        self._known(task_ids)
        with self._transaction() as db:
            for task_id in task_ids:
                db.execute("DELETE FROM closed WHERE task_id = ?", (task_id,))
                db.execute("UPDATE seats SET holds = 0 WHERE task_id = ?", (task_id,))

    def _known(self, task_ids: Collection[str]) -> None:
        unknown = [task_id for task_id in task_ids if task_id not in self.review.task]
        if unknown:
            raise ReviewError(f"expected tasks of {self.folder}, got {unknown[0]!r}")

    def events(self, after: int = 0) -> list[Event]:
        """The rows of the log beyond a number: what another place needs to have the same answers."""
        rows = "SELECT worker, task_id, item_id, question, value, seconds, at, number FROM log WHERE number > ?"
        with self._transaction() as db:
            found = db.execute(f"{rows} ORDER BY number", (after,)).fetchall()
        return [Event(number, Answer(w, t, i, q, v or "", s, at), v is None) for w, t, i, q, v, s, at, number in found]

    def replay(self, events: Iterable[Event]) -> int:
        """Brings in events of another place, in order; how many rows were new: none the second time. All or nothing.

        A worker who answered in a task has had it; where nobody holds it, it is theirs.
        """
        with self._transaction() as db:
            return sum(self._replayed(db, event) for event in events)

    def _replayed(self, db: sqlite3.Connection, event: Event) -> bool:
        known = event.answer.task_id in self.review.task
        answer = event.answer if event.withdrawn and known else self._checked(event.answer)
        if _is_there(db, answer, event.withdrawn):
            return False
        values = (*_seat_of(answer), answer.at, answer.at, answer.task_id)
        db.execute(
            "INSERT OR IGNORE INTO seats SELECT ?, ?, ?, ?, "
            "NOT EXISTS (SELECT 1 FROM seats WHERE task_id = ? AND holds), 0",
            values,
        )
        grew = self._withdraw(db, answer) if event.withdrawn else self._log(db, answer)
        self._touch(db, answer)
        return grew

    def import_answers(self, answers: Iterable[Answer]) -> int:
        """Brings in answers collected elsewhere, whose workers are hashes already; how many were new."""
        return self.replay([Event(0, answer, False) for answer in answers])  # whole, before the store is locked


_COLUMNS = "(worker, task_id, item_id, question, value, seconds, at)"
_OF_SEAT = _FINAL.format(where="WHERE task_id = ? AND worker = ?")


def _key(answer: Answer) -> tuple[str, str, str, str]:
    return answer.worker, answer.task_id, answer.item_id, answer.question


def _seat_of(answer: Answer) -> tuple[str, str]:
    return answer.task_id, answer.worker


def _current(db: sqlite3.Connection, answer: Answer) -> str | None:
    same = "worker = ? AND task_id = ? AND item_id = ? AND question = ?"
    row = db.execute(f"SELECT value FROM log WHERE {same} ORDER BY number DESC LIMIT 1", _key(answer)).fetchone()
    return None if row is None else row[0]


def _is_there(db: sqlite3.Connection, answer: Answer, withdrawn: bool) -> bool:
    same = "worker = ? AND task_id = ? AND item_id = ? AND question = ? AND value IS ? AND at = ?"
    row = (*_key(answer), None if withdrawn else answer.value, answer.at)
    return db.execute(f"SELECT 1 FROM log WHERE {same} LIMIT 1", row).fetchone() is not None


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
