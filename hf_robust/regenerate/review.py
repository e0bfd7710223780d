"""Stage `review`: what is left goes to people, and comes back with their decision (ImageNet-D, section 3.3).

The tasks lie in a folder of their own, beside the stages: answers arrive there for days. The stage is done when no
further answer could change a decision; its key holds the hash of the answers.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock

from ..data import decode
from ..predictions.plan import DamagedError, canonical, read_json, write_json
from ..review.agreement import agreement
from ..review.base import COMPONENT_LABELS, IMAGE, MODES, Answer, Mode
from ..review.decisions import Decision, Needed, Rule, decide, still_needed
from ..review.folder import REVIEW, Review, is_for_browsers
from ..review.reliability import Thresholds, Trust, reliability, trusted
from ..review.simulate import Worker, simulate
from ..review.store import Store
from ..review.tasks import Candidate, make_review
from .ledger import KEEP, REASON, ROW_ID
from .own_sentinels import OwnPictures, own_sentinels
from .pictures import Pictures
from .recipe_file import recipe_name
from .sentinels import POOLS, questions
from .stage import PartWise, Stage, StageError, Waiting, Work, for_kept, seed_of

FOLDER = "review-"
FACTS_FILE = "regeneration.json"  # in the review's folder: how its answers become decisions
ANSWER = pa.struct([("worker", pa.string()), ("question", pa.string()), ("value", pa.string()), ("counts", pa.bool_())])
PEOPLE = ("people", "simulated", "none")


@dataclass(frozen=True)
class ReviewSettings:
    """How people judge the pictures.

    people          "people": tasks for them; "simulated": workers who err at random, for rehearsals, and the set's card
                    says so; "none": no review, and the card says so.
    mode            which questions; "" for those of the recipe.
    workers         different people for every picture; fewest trusted answers that decide.
    tie             as many for as against: "drop", or "one more" worker is asked.
    images_a_task   pictures of one sitting, sentinels aside; sentinel_rate their share of a task.
    sentinels       pictures of each kind at most that are taken from the dropped candidates.
    own_sentinels   folder with positive/<what it shows>/<picture> and negative/<what it is asked about>/<picture>.
    positive, negative, consistent, fewest_sentinels, fewest_of_a_kind, fastest   whose answers count: least shares of
                    sentinels passed, sentinels that must be seen, and of one kind before it speaks alone, least median
                    of seconds. The numbers are ours, none are published.
    accuracy, spammers, good   of simulated workers: chance of the right answer, share who answer at random, and share
                    of pictures that truly are good.
    """

    people: str = "people"
    mode: str = ""
    workers: int = 3
    fewest: int = 2
    tie: str = "drop"
    images_a_task: int = 20
    sentinel_rate: float = 0.2
    sentinels: int = 100
    own_sentinels: str | None = None
    positive: float = 0.5
    negative: float = 0.5
    consistent: float = 0.5
    fewest_sentinels: int = 3
    fewest_of_a_kind: int = 2
    fastest: float = 0.4
    accuracy: float = 0.95
    spammers: float = 0.0
    good: float = 0.9
    seed: int = 0


def review_stage(mode: str) -> Stage:
    """The stage with the questions of that mode."""

    def start(settings: ReviewSettings, work: Work) -> PartWise:
        check_review(settings)
        if settings.people == "none":
            return PartWise({"reviewed": False}, lambda rows: rows.select([ROW_ID]), ())
        return _start(settings, MODES[settings.mode or mode], work)

    return Stage(
        "review", "people judge what is left, with pictures of known answers in between", ReviewSettings, start
    )


def check_review(settings: ReviewSettings) -> None:
    """StageError where a setting cannot be meant; settings that are not read without a review are not looked at."""
    if settings.people not in PEOPLE:
        raise StageError(f"expected people to be one of {', '.join(PEOPLE)}, got {settings.people!r}")
    if settings.people == "none":
        return
    known = [mode.name for mode in MODES.values() if decides(mode) and mode is not COMPONENT_LABELS]
    if settings.mode and settings.mode not in known:
        raise StageError(f"expected mode of stage 'review' to be one of {', '.join(known)}, got {settings.mode!r}")
    for name in ("positive", "negative", "consistent", "accuracy", "spammers", "good"):
        if not 0 <= getattr(settings, name) <= 1:
            raise StageError(f"expected {name} of stage 'review' from 0 to 1, got {getattr(settings, name)}")
    for name in ("sentinels", "fewest_sentinels", "fastest"):
        if getattr(settings, name) < 0:
            raise StageError(f"expected {name} of stage 'review' of 0 or more, got {getattr(settings, name)}")
    for name in ("workers", "images_a_task"):
        if getattr(settings, name) < 1:
            raise StageError(f"expected {name} of stage 'review' of at least 1, got {getattr(settings, name)}")
    if not 1 <= settings.fewest <= settings.workers:
        raise StageError(
            f"expected fewest of stage 'review' from 1 to the {settings.workers} workers, got {settings.fewest}"
        )
    if not 0 <= settings.sentinel_rate < 1:
        raise StageError(f"expected sentinel_rate of stage 'review' from 0 to below 1, got {settings.sentinel_rate}")
    rule_of(settings)
    thresholds_of(settings)
    own_sentinels(settings.own_sentinels)


def _start(settings: ReviewSettings, mode: Mode, work: Work) -> PartWise:
    review = _tasks(settings, mode, work)
    rehearsal = settings.people == "simulated"
    answers = simulated(review, settings) if rehearsal else Store(review.folder).answers()
    state = state_of(review, answers, rule_of(settings), thresholds_of(settings))
    if state.needed.answers and settings.people == "people":
        raise Waiting(state.sentence(work.out))
    return PartWise(state.facts(settings.people), lambda rows: for_kept(rows, state.columns), ())


def _tasks(settings: ReviewSettings, mode: Mode, work: Work) -> Review:
    """The review of the kept rows; made by one process, found by the others."""
    ledger = work.ledger
    asked = {name: getattr(settings, name) for name in _OF_TASKS}
    digest = hashlib.sha256(canonical([ledger.key, mode.name, asked]).encode()).hexdigest()
    folder = work.out / f"{FOLDER}{digest[:8]}"
    own = own_sentinels(settings.own_sentinels)
    images, sentinels, positions = questions(
        POOLS[recipe_name(work.out)], ledger, sentinels=settings.sentinels, seed=settings.seed
    )
    if not images:
        raise StageError("expected pictures to review, got none that is kept: see the reasons in the funnel")
    pictures = Pictures(ledger)
    with FileLock(work.out / f".{folder.name}.lock"):
        review = make_review(
            folder, mode, images, [*sentinels, *own.candidates], _reader(pictures, positions, own),
            workers=settings.workers, images_a_task=settings.images_a_task, sentinel_rate=settings.sentinel_rate,
            seed=settings.seed,
        )  # fmt: skip
        write_facts(review, rule_of(settings), thresholds_of(settings), ledger=ledger.key)
    return review


_OF_TASKS = ("workers", "images_a_task", "sentinel_rate", "sentinels", "own_sentinels", "seed")


def _reader(pictures: Pictures, positions: Mapping[str, int], own: OwnPictures) -> Any:
    def read(candidate: Candidate) -> bytes:
        if candidate.row_id in own.content:
            return shown(own.content[candidate.row_id].read_bytes())
        return shown(pictures.read(positions[candidate.row_id]))

    return read


def shown(content: bytes) -> bytes:
    """A picture for a browser: PNG, JPEG and WebP as they are, any other format (BMP, GIF, TIFF) as PNG."""
    if is_for_browsers(content):
        return content
    stream = io.BytesIO()
    decode(content).save(stream, "PNG")
    return stream.getvalue()


def rule_of(settings: ReviewSettings) -> Rule:
    """How answers become a decision."""
    if settings.tie not in ("drop", "one more"):
        raise StageError(f"expected tie to be 'drop' or 'one more', got {settings.tie!r}")
    return Rule(settings.workers, settings.fewest, "drop" if settings.tie == "drop" else "one more")


def thresholds_of(settings: ReviewSettings) -> Thresholds:
    """Whose answers count."""
    return Thresholds(
        settings.positive, settings.negative, settings.consistent, settings.fewest_sentinels,
        settings.fewest_of_a_kind, settings.fastest,
    )  # fmt: skip


def simulated(review: Review, settings: ReviewSettings) -> list[Answer]:
    """Answers of workers who err at random about pictures of which a known share is good."""
    truth = {
        item.row_id: _truth(review.mode, seed_of(settings.seed, "good", item.row_id) % 10_000 < 10_000 * settings.good)
        for item in review.items
        if item.kind == IMAGE
    }
    count = settings.workers + 2
    bad = round(count * settings.spammers)
    workers = [
        Worker(f"simulated-{i}", settings.accuracy, "random" if i < bad else "careful", settings.accuracy)
        for i in range(count)
    ]
    return simulate(review.items, review.tasks, truth, workers, review.mode, seed=settings.seed)


def _truth(mode: Mode, is_good: bool) -> dict[str, str]:
    """The right answer to each question about a picture that is good, or that is not."""
    return {
        question.name: next(c.value for c in question.choices if (c.value in question.accepts) == is_good)
        for question in mode.questions
    }


@dataclass(frozen=True)
class State:
    """Where a review stands: decisions so far, whose answers count, what is missing."""

    review: Review
    answers: tuple[Answer, ...]
    trust: Trust
    decisions: Mapping[str, Decision]
    needed: Needed

    def sentence(self, out: Path) -> str:
        """What people have to do, and how."""
        missing = sum(self.needed.answers.values())
        return (
            f"{len(self.needed.answers):,} of {len(self.decisions):,} pictures need {missing:,} more answers; "
            f"let people answer: hf-robust review serve {out}; where it stands: hf-robust review status {out}; "
            "then run this command again"
        )

    def facts(self, people: str) -> dict[str, Any]:
        """What decides the stage, and what a card says of it."""
        rows = sorted([a.worker, a.item_id, a.question, a.value] for a in self.answers)
        return {
            "reviewed": people,
            "answers": hashlib.sha256(json.dumps(rows).encode()).hexdigest(),
            "workers": len(self.trust.kept),
            "workers_dropped": len(self.trust.dropped),
            "agreement": self.agreement(),
        }

    def counts(self) -> dict[int, int]:
        """Answers that count, to the question with the fewest -> how many pictures have so many, the most first."""
        given = (min(sum(own.values()) for own in d.votes.values()) for d in self.decisions.values())
        return dict(sorted(Counter(given).items(), reverse=True))

    def agreement(self) -> dict[str, Any]:
        """By question: share of equal pairs of trusted answers, mean over images, and Krippendorff's alpha."""
        found = agreement(self.review.items, self.answers, self.review.mode, workers=self.trust.kept)
        return {
            name: {"pairwise": round_or_none(a.pairwise), "alpha": round_or_none(a.alpha)} for name, a in found.items()
        }

    def columns(self, rows: pa.Table) -> dict[str, pa.Array]:
        """accepted, every answer, KEEP and REASON of the rows that were asked about."""
        item_of = {item.row_id: item.item_id for item in self.review.items if item.kind == IMAGE}
        keys = [item_of[key] for key in rows[ROW_ID].to_pylist()]
        decided = [self.decisions[key] for key in keys]
        given: dict[str, list[dict[str, Any]]] = {}
        for a in self.answers:
            counts = a.worker in self.trust.kept
            given.setdefault(a.item_id, []).append(
                {"worker": a.worker[:16], "question": a.question, "value": a.value, "counts": counts}
            )
        accepted = [bool(d.accepted) for d in decided]
        return {
            "accepted": pa.array(accepted, pa.bool_()),
            "answers": pa.array([given.get(key, []) for key in keys], pa.list_(ANSWER)),
            KEEP: pa.array(accepted, pa.bool_()),
            REASON: pa.array([None if d.accepted else d.reason for d in decided], pa.string()),
        }


def attend(folder: Path) -> State:
    """Where the review in a folder stands; tasks that no decision needs are closed, those needed again handed out."""
    store = Store(folder)
    rule, thresholds = _rules(folder)
    state = state_of(store.review, store.answers(), rule, thresholds)
    store.close(state.needed.stopped)
    store.release(sorted(set(state.needed.again)))
    return state


def write_facts(review: Review, rule: Rule, thresholds: Thresholds, **more: Any) -> None:
    """Writes beside a review how its answers are read, and what else must not stand where the page could show it."""
    sealed = hashlib.sha256((review.folder / REVIEW).read_bytes()).hexdigest()
    write_json(
        review.folder / FACTS_FILE,
        {"review": sealed, "rule": asdict(rule), "thresholds": asdict(thresholds), **more},
    )


def facts_of(folder: Path, *names: str) -> dict[str, Any]:
    """What `write_facts` wrote for the review in a folder, with the entries `names`; StageError for another review."""
    if not (folder / FACTS_FILE).is_file():
        raise StageError(
            f"expected a review made by `regenerate` or `review make`, got {folder} without {FACTS_FILE}: give the "
            "command that made it again"
        )
    try:
        found = read_json(folder / FACTS_FILE, ["review", "rule", "thresholds", *names])
    except DamagedError as error:  # its advice is to remove the folder, which holds people's answers
        raise StageError(
            f"expected how answers are read in {folder / FACTS_FILE}, got a damaged file: give the command that made "
            "the review again, which writes it anew"
        ) from error
    if found["review"] != hashlib.sha256((folder / REVIEW).read_bytes()).hexdigest():
        raise StageError(
            f"expected {folder / FACTS_FILE} of the review beside it, got that of another: give the command that made "
            "the review again"
        )
    return found


def _rules(folder: Path) -> tuple[Rule, Thresholds]:
    found = facts_of(folder)
    try:
        return Rule(**found["rule"]), Thresholds(**found["thresholds"])
    except TypeError as error:
        raise StageError(
            f"expected how answers are read in {folder / FACTS_FILE}, got other entries ({error}): give the command "
            "that made the review again"
        ) from error


def state_of(review: Review, answers: Sequence[Answer], rule: Rule, thresholds: Thresholds) -> State:
    """Where a review stands by these answers."""
    trust = trusted(reliability(review.items, answers, review.mode), thresholds)
    mode = _decidable(review)
    decisions = decide(review.items, answers, mode, trusted=trust.kept, rule=rule)
    needed = still_needed(review.items, review.tasks, answers, mode, trusted=trust.kept, rule=rule)
    return State(review, tuple(answers), trust, decisions, needed)


def decides(mode: Mode) -> bool:
    """Whether the answers of a mode keep or drop a picture; else (name the class) they are only collected."""
    return all(question.accepts for question in mode.questions)


def _decidable(review: Review) -> Mode:
    """The mode, with every answer accepted where none is: a picture is then done once it has its number of answers."""
    if decides(review.mode):
        return review.mode
    offered = {q.name: {v for item in review.items for v in review.values(item, q)} for q in review.mode.questions}
    questions = tuple(replace(q, accepts=q.accepts or tuple(sorted(offered[q.name]))) for q in review.mode.questions)
    return replace(review.mode, questions=questions)


def round_or_none(value: float | None) -> float | None:
    """A statistic to six digits, so that its text is the same on every machine."""
    return None if value is None or value != value else round(float(value), 6)
