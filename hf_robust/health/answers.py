"""What stored predictions say about the pictures of a set: solved ones, doubtful labels, accuracy over the years."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..benchmarks import Benchmark
from ..benchmarks.views import Classification, Scored
from ..data import Rows
from ..labels import imagenet_1k_names
from ..scoring import Asked, asked_of, view_of

AGREEMENT = 0.8  # of the strong models
FEWEST_STRONG = 2


@dataclass(frozen=True)
class Model:
    """One run over the set; `accuracy` over its `pictures`, under the benchmark's own protocol."""

    name: str
    run: str
    benchmark: str
    pictures: int
    accuracy: float
    year: int | None


@dataclass(frozen=True)
class Suspect:
    """A picture whose label strong models agree against: what they say, their share, their mean probability of it."""

    position: int
    label: str
    said: str
    share: float
    probability: float


@dataclass(frozen=True)
class Year:
    """The models of one year."""

    year: int
    models: int
    mean: float
    best: float


@dataclass(frozen=True)
class Answers:
    """All that predictions tell. `solved` and `never` hold positions that every model, or none, gets right."""

    models: tuple[Model, ...]
    strong: tuple[str, ...]
    solved: tuple[int, ...]
    never: tuple[int, ...]
    suspects: tuple[Suspect, ...]
    years: tuple[Year, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Votes:
    """One model's answer to every row of the set: -1 where it has none. `chosen` holds ImageNet-1k indices."""

    model: Model
    chosen: NDArray[np.int64]
    correct: NDArray[np.int8]
    probability: NDArray[np.float64]


def answers_of(
    rows: Rows,
    runs: Path,
    benchmarks: Mapping[str, Benchmark],
    *,
    years: Mapping[str, int],
    agreement: float = AGREEMENT,
) -> Answers:
    """What the runs in `runs` say about the rows, one benchmark a run.

    years      model name -> year.
    agreement  share of the strong models (those at or above the median accuracy) that must choose the same wrong class.
    Raises LookupError where no run has predictions of the set with labels, FileNotFoundError where there is no folder.
    """
    if not runs.is_dir():
        raise FileNotFoundError(f"expected a folder that `evaluate --out` wrote, got {str(runs)!r}: no folder")
    if not 0 < agreement <= 1:
        raise ValueError(f"expected an agreement above 0 and at most 1, got {agreement}: it is a share of models")
    notes: list[str] = []
    votes = list(_votes(rows, runs, benchmarks, years, notes))
    if not votes:
        why = notes[0] if notes else "no benchmark with labels was run on it"
        raise LookupError(f"expected predictions of {rows.dataset} in {runs}, got none ({why}): `evaluate` first")
    correct = np.stack([v.correct for v in votes])
    middle = float(np.median([v.model.accuracy for v in votes]))
    strong = [v for v in votes if v.model.accuracy >= middle]
    if len(strong) < FEWEST_STRONG:
        notes.append(f"doubtful labels need at least {FEWEST_STRONG} strong models, got {len(strong)}")
    return Answers(
        tuple(v.model for v in votes),
        tuple(v.model.name for v in strong),
        tuple(np.flatnonzero((correct == 1).all(axis=0)).tolist()),
        tuple(np.flatnonzero((correct == 0).all(axis=0)).tolist()),
        tuple(_suspects(rows, strong, agreement)) if len(strong) >= FEWEST_STRONG else (),
        tuple(_years([v.model for v in votes])),
        tuple(notes),
    )


def read_years(path: Path) -> dict[str, int]:
    """Model name -> year, from a CSV file of `model,year` lines; ValueError names a line that is not so."""
    found: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = list(csv.reader(stream))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"expected a CSV file of model,year lines, got {path} ({error})") from error
    for number, line in enumerate(lines, 1):
        if not line or line[0].startswith("#") or (number == 1 and line[1:2] == ["year"]):
            continue
        if len(line) != 2 or not line[1].strip().isdecimal():
            raise ValueError(f"expected model,year in line {number} of {path}, got {','.join(line)[:80]!r}")
        found[line[0].strip()] = int(line[1])
    return found


def _votes(
    rows: Rows, runs: Path, benchmarks: Mapping[str, Benchmark], years: Mapping[str, int], notes: list[str]
) -> Iterator[_Votes]:
    place = {key: i for i, key in enumerate(rows.table.ids)}
    seen: set[str] = set()
    for asked in sorted(asked_of(runs, benchmarks), key=lambda a: (a.run.name, a.mode != "model", a.benchmark.name)):
        tested = next((s.dataset for s in asked.benchmark.sources if s.role == "test"), None)
        if tested != rows.dataset or asked.run.name in seen:
            continue
        try:
            loaded, view = view_of(asked)
        except (LookupError, ValueError) as error:
            notes.append(f"{asked.plan['model']} ({asked.run.name}) is left out: {error.args[0]}")
            continue
        if loaded.zero_shot:
            notes.append(f"{asked.plan['model']} ({asked.run.name}) is left out: it chooses among other classes")
        elif isinstance(view, Classification):
            seen.add(asked.run.name)
            yield _vote(rows, asked, view.test, place, years, notes)


def _vote(
    rows: Rows, asked: Asked, scored: Scored, place: Mapping[str, int], years: Mapping[str, int], notes: list[str]
) -> _Votes:
    name, outputs = str(asked.plan["model"]), scored.outputs
    known = np.array([i in place for i in outputs.ids], dtype=bool)
    known &= np.array([_is_same(rows, place, i, s) for i, s in zip(outputs.ids, outputs.sha256, strict=True)])
    if not known.all():
        notes.append(f"{name} ({asked.run.name}) saw {int((~known).sum())} other pictures than are here now")
    at = np.array([place[i] for i, is_known in zip(outputs.ids, known, strict=True) if is_known], dtype=np.int64)
    columns = np.arange(outputs.logit_rows.shape[1]) if scored.mask is None else np.array(scored.mask)
    total = len(rows.table)
    chosen, correct, probability = np.full(total, -1), np.full(total, -1, np.int8), np.zeros(total)
    chosen[at] = columns[scored.predicted][known]
    correct[at] = scored.correct[known]
    probability[at] = scored.confidence[known]
    accuracy = float(scored.correct[known].mean()) if known.any() else 0.0
    model = Model(name, asked.run.name, asked.benchmark.name, len(at), accuracy, years.get(name))
    return _Votes(model, chosen, correct, probability)


def _is_same(rows: Rows, place: Mapping[str, int], key: str, sha256: str | None) -> bool:
    """Whether the run saw the bytes that are here; a folder read in place is known by sizes only, and is believed."""
    if key not in place:
        return False
    here = rows.table.keys[place[key]]
    return len(here) != 64 or here == sha256


def _suspects(rows: Rows, strong: Sequence[_Votes], agreement: float) -> Iterator[Suspect]:
    chosen = np.stack([v.chosen for v in strong])
    correct = np.stack([v.correct for v in strong])
    probability = np.stack([v.probability for v in strong])
    names = imagenet_1k_names()
    found = []
    for i in np.flatnonzero((correct == 0).sum(axis=0) >= agreement * len(strong)).tolist():
        wrong = Counter(chosen[correct[:, i] == 0, i].tolist())
        said, number = min(wrong.items(), key=lambda item: (-item[1], item[0]))
        if number >= agreement * len(strong):
            label = " or ".join(names[k] for k in rows.table.labels[i])
            sure = float(probability[chosen[:, i] == said, i].mean())
            found.append(Suspect(i, label, names[said], number / len(strong), sure))
    yield from sorted(found, key=lambda s: (-s.share, -s.probability, s.position))


def _years(models: Sequence[Model]) -> Iterator[Year]:
    by_year: dict[int, list[float]] = defaultdict(list)
    for model in models:
        if model.year is not None:
            by_year[model.year].append(model.accuracy)
    for year, values in sorted(by_year.items()):
        yield Year(year, len(values), float(np.mean(values)), max(values))
