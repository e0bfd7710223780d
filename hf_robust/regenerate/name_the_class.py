"""Human accuracy: people name the class of a benchmark's pictures, choosing among a few names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from .. import builders
from ..benchmarks import Benchmark
from ..benchmarks.views import Classification
from ..data import VALIDATION, PictureError, Rows, decode, open_rows
from ..predictions.parts import RowTable, cut
from ..predictions.plan import SourcePlan
from ..review.base import IMAGE, NAME_THE_CLASS, Kind
from ..review.decisions import Rule
from ..review.folder import Review
from ..review.people import HumanAccuracy, human_accuracy
from ..review.reliability import Thresholds
from ..review.tasks import Candidate, make_review
from ..runner import DataPlaces
from ..schema import FILE_NAME, image_id
from ..scoring.people import FORMAT, PEOPLE
from .class_names import CATEGORY, Names, in_words
from .review import State, attend, facts_of, write_facts
from .stage import StageError, row_id, seed_of

QUESTION = NAME_THE_CLASS.questions[0].name
SUBJECT = "object"  # an item must not tell what it shows
STATED = {"imagenet-a": "the paper states about 90 % for ImageNet-A (arXiv 1907.07174)"}
WRONG_LABELS = ("wrong_label_1", "wrong_label_2", "top1_prediction", "top2_prediction")
_SHOWN_BY_BROWSERS = ("PNG", "JPEG", "WEBP")


@dataclass(frozen=True)
class NamingSettings:
    """How people are asked.

    choices         names offered for a picture, the right one among them.
    limit           pictures at most, evenly over the classes; None: all.
    workers         different people for every picture.
    images_a_task   pictures of one sitting, sentinels aside; sentinel_rate their share of a task.
    sentinels       clean pictures at most that show who answers with care.
    """

    choices: int = 5
    limit: int | None = None
    workers: int = 3
    images_a_task: int = 20
    sentinel_rate: float = 0.2
    sentinels: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.choices < 2 or self.sentinels < 0:
            raise StageError(f"expected 2 or more choices and 0 or more sentinels, got {self}")


@dataclass
class _Asked:
    """The pictures that are asked about, their right names and where their bytes are, by row id."""

    images: list[Candidate] = field(default_factory=list)
    truth: dict[str, list[str]] = field(default_factory=dict)
    content: dict[str, tuple[Rows, int]] = field(default_factory=dict)
    unreadable: int = 0


def make_naming(folder: Path, benchmark: Benchmark, places: DataPlaces, settings: NamingSettings) -> Review:
    """The review in `folder` that asks what the pictures of a benchmark show.

    StageError for a benchmark whose pictures have no right class and for too few names; MissingDataError where its
    pictures are not on this machine; ReviewError as in `make_review`.
    """
    whole = _rows(benchmark, places)
    names = Names.of(benchmark, whole.table)
    asked = _asked(whole, names, places, settings)
    sentinels = _sentinels(benchmark, places, names, settings)
    content = {**asked.content, **{one.row_id: place for one, place in sentinels}}
    review = make_review(
        folder, NAME_THE_CLASS, asked.images, [one for one, _ in sentinels],
        lambda candidate: _for_a_browser(_bytes(content[candidate.row_id])),
        workers=settings.workers, images_a_task=settings.images_a_task, sentinel_rate=settings.sentinel_rate,
        seed=settings.seed,
    )  # fmt: skip
    about = {
        "benchmark": benchmark.name,
        "pictures_of_the_set": len(whole.table),
        "unreadable": asked.unreadable,
        "set_is_official": whole.complete,
        "fingerprint": _fingerprint(whole),
        "clean_sentinels": bool(sentinels),
        "stated": STATED.get(whole.dataset, ""),
        "settings": asdict(settings),
    }
    write_facts(review, Rule(settings.workers, settings.workers), Thresholds(), about=about, truth=asked.truth)
    return review


def human_record(folder: Path) -> tuple[dict[str, Any], State]:
    """What people got right in the review of a folder, as `scoring.people.write_people` takes it, and where it stands.

    ReviewError where no answer counts.
    """
    facts = facts_of(folder, "about", "truth")
    state = attend(folder)
    about, settings = facts["about"], facts["about"]["settings"]
    found = human_accuracy(
        state.review.items, state.answers, state.review.mode, facts["truth"], trusted=state.trust.kept
    )
    offered = [len(item.options[QUESTION]) for item in state.review.items if item.kind == IMAGE]
    copied = ("benchmark", "pictures_of_the_set", "unreadable", "set_is_official", "fingerprint", "clean_sentinels")
    record = {
        "format": FORMAT,
        "kind": PEOPLE,
        **{name: about[name] for name in (*copied, "stated")},
        "asked": len(state.decisions),
        "short": len(state.needed.answers),
        "workers_a_picture": settings["workers"],
        "choices": max(offered),
        "chance": sum(1 / n for n in offered) / len(offered),
        "limit": settings["limit"],
        "seed": settings["seed"],
        "workers_dropped": len(state.trust.dropped),
        "review": facts["review"],
    }
    return record | _numbers(found), state


def _numbers(found: HumanAccuracy) -> dict[str, Any]:
    return {
        "answers": asdict(found.answers), "majority": asdict(found.majority), "ties": found.ties,
        "unanswered": found.unanswered, "workers": found.workers,
    }  # fmt: skip


def _rows(benchmark: Benchmark, places: DataPlaces) -> Rows:
    """The test pictures, whole."""
    if benchmark.view is not Classification:
        raise StageError(
            f"expected a benchmark whose pictures have a right class, got {benchmark.name}: people can name the class "
            "of imagenet-a, imagenet-d, imagenet-val or a set made like one of them"
        )
    dataset = next(source.dataset for source in benchmark.sources if source.role == "test")
    built = places.folder_of(dataset)
    return open_rows(dataset, built=built, place=places.own(dataset), repo=places.repo_of(dataset))


def _asked(whole: Rows, names: Names, places: DataPlaces, settings: NamingSettings) -> _Asked:
    rows = whole if settings.limit is None else whole.limited(settings.limit, settings.seed)
    wrong = _wrong_names(rows.dataset, places, names)
    asked = _Asked()
    for i, key in enumerate(rows.table.ids):
        if not _is_picture(rows.read(i)):
            asked.unreadable += 1
            continue
        right = _right(names, rows.table, i)
        one = _candidate(rows, i, right, wrong.get(key, ()), names, settings, IMAGE)
        asked.images.append(one)
        asked.truth[one.row_id] = list(right)
        asked.content[one.row_id] = (rows, i)
    return asked


def _right(names: Names, table: RowTable, i: int) -> tuple[str, ...]:
    right = (in_words(table.groups[CATEGORY][i]),) if CATEGORY in table.groups else names.right(table.labels[i])
    if not right:
        raise StageError(f"expected a class of the protocol for every picture, got none for {table.ids[i]!r}")
    return right


def _candidate(
    rows: Rows, i: int, right: Sequence[str], wrong: Sequence[str], names: Names, settings: NamingSettings, kind: Kind
) -> Candidate:
    """One picture with its options: a right name, the set's own wrong ones, names drawn for it, in an order drawn."""
    key = row_id({"dataset": rows.dataset, "id": rows.table.ids[i], "picture": rows.table.keys[i]})
    taken: frozenset[int] = frozenset().union(*(names.indices[name] for name in right))
    others = [name for name, own in names.indices.items() if not own & taken and name not in right]
    chosen = [right[0], *(name for name in dict.fromkeys(wrong) if name in others)][: settings.choices]
    left = [name for name in others if name not in chosen]
    while left and len(chosen) < settings.choices:
        chosen.append(left.pop(seed_of(settings.seed, "option", key, len(chosen)) % len(left)))
    if len(chosen) < 2:
        raise StageError(f"expected two or more classes to choose among, got only {right[0]!r}: name a larger set")
    options = tuple(sorted(chosen, key=lambda name: seed_of(settings.seed, "order", key, name)))
    expected = {} if kind == IMAGE else {QUESTION: (right[0],)}
    return Candidate(key, SUBJECT, kind, expected, {QUESTION: options})


def _wrong_names(dataset: str, places: DataPlaces, names: Names) -> dict[str, list[str]]:
    """Picture id -> the wrong names that the data set gives for it; of a set that is built here only."""
    try:
        splits = builders.find(dataset, out=places.folder_of(dataset)).load()
    except LookupError:
        return {}
    found: dict[str, list[str]] = {}
    for split in splits.values():
        columns = [name for name in WRONG_LABELS if name in split.column_names]
        for row in split.select_columns([FILE_NAME, *columns]):
            own = (names.known(row[name]) for name in columns)
            found[image_id(row[FILE_NAME])] = [name for name in own if name is not None]
    return found


def _sentinels(
    benchmark: Benchmark, places: DataPlaces, names: Names, settings: NamingSettings
) -> list[tuple[Candidate, tuple[Rows, int]]]:
    """Clean pictures of the same classes, one a class, and where their bytes are; none without validation pictures."""
    control = next((source for source in benchmark.sources if source.role == "control"), None)
    if control is None or places.validation is None:
        return []
    rows = open_rows(VALIDATION, built=places.built, place=places.validation)
    by_name: dict[str, list[int]] = {}
    for i, labels in enumerate(rows.table.labels):
        right = names.right(labels)
        if right and (control.classes is None or set(labels) & set(control.classes)):
            by_name.setdefault(right[0], []).append(i)
    found = []
    for name in sorted(by_name, key=lambda name: seed_of(settings.seed, "class", name))[: settings.sentinels]:
        i = min(by_name[name], key=lambda i: seed_of(settings.seed, "clean", rows.table.ids[i]))
        if _is_picture(rows.read(i)):
            found.append((_candidate(rows, i, (name,), (), names, settings, "positive"), (rows, i)))
    return found


def _bytes(place: tuple[Rows, int]) -> bytes:
    return place[0].read(place[1])


def _is_picture(content: bytes) -> bool:
    try:
        decode(content)
    except PictureError:
        return False
    return True


def _for_a_browser(content: bytes) -> bytes:
    """The bytes as they are where every browser shows them, else as PNG."""
    from PIL import Image

    with Image.open(BytesIO(content)) as picture:
        if picture.format in _SHOWN_BY_BROWSERS:
            return content
    stream = BytesIO()
    decode(content).save(stream, format="PNG")
    return stream.getvalue()


def _fingerprint(rows: Rows) -> str:
    """The identity of a set as the runs of models record it."""
    parts = tuple((part.index, len(part.rows), part.fingerprint) for part in cut(rows.table, by_class=rows.by_class))
    return SourcePlan(rows.dataset, "", {}, "", rows.complete, (), parts).fingerprint()
