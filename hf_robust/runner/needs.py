"""What has to be forwarded: every (data set, rule) that the benchmarks need, once, however many need it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..benchmarks import Benchmark, Mode, Rule, Source, benchmarks
from ..data import TRAIN, VALIDATION, MissingDataError, Rows, open_rows
from ..predictions.parts import Part, cut


@dataclass(frozen=True)
class DataPlaces:
    """Where data sets are looked for.

    built       folder that `build --out` wrote to; None: the data sets' cache of this machine, then the Hub.
    validation  folder or Hub repo of the ImageNet validation pictures; None: a built imagenet-val.
    training    the same of the ImageNet training pictures, which only serve fits.
    own_sets    name of a regenerated set -> the folder that holds it, or the Hub repo as text.
    """

    built: Path | None = None
    validation: str | None = None
    training: str | None = None
    own_sets: Mapping[str, Path | str] = field(default_factory=dict)

    def folder_of(self, dataset: str) -> Path | None:
        """Where a build of that name is looked for; None: the data sets' cache of this machine."""
        own = self.own_sets.get(dataset, self.built)
        return own if isinstance(own, Path) else None

    def repo_of(self, dataset: str) -> str | None:
        """The Hub repo to take it from where it is not built here."""
        own, known = self.own_sets.get(dataset), benchmarks().get(dataset)
        if own is not None:
            return own if isinstance(own, str) else None
        return known.repo_id if known is not None else None

    def own(self, dataset: str) -> str | None:
        """The folder or repo given for one of ImageNet's own sets."""
        return {VALIDATION: self.validation, TRAIN: self.training}.get(dataset)


@dataclass(frozen=True)
class Need:
    """One data set under one rule: all its parts and those that some benchmark wants."""

    dataset: str
    rule: Rule
    rows: Rows
    parts: tuple[Part, ...]
    wanted: tuple[Part, ...]
    users: tuple[str, ...]  # names of the benchmarks


@dataclass(frozen=True)
class Needs:
    """The work of an evaluation, and the benchmarks that cannot be run with the reason of each."""

    needs: tuple[Need, ...]
    absent: Mapping[str, str]

    @property
    def pictures(self) -> int:
        """Forward passes that one model costs."""
        return sum(len(part.rows) for need in self.needs for part in need.wanted)


def gather(
    wanted: Sequence[Benchmark], mode: Mode, places: DataPlaces, *, limit: int | None = None, seed: int = 0
) -> Needs:
    """Open every data set once and work out which parts of it are needed under which rule."""
    datasets = dict.fromkeys(source.dataset for benchmark in wanted for source in benchmark.sources)
    opened: dict[str, tuple[Rows, tuple[Part, ...]]] = {}
    missing: dict[str, str] = {}
    for dataset in datasets:
        try:
            opened[dataset] = _open(dataset, places, limit, seed)
        except MissingDataError as error:
            if dataset == VALIDATION and places.validation is not None:
                raise  # a place that was named and is wrong is no option left out
            missing[dataset] = str(error)
    absent = {
        benchmark.name: missing[source.dataset]
        for benchmark in wanted
        for source in benchmark.sources
        if source.dataset in missing and not source.optional
    }
    pairs: dict[tuple[str, Rule], list[tuple[str, Source]]] = {}
    for benchmark in wanted:
        for source in benchmark.sources:
            if benchmark.name not in absent and source.dataset in opened:
                pairs.setdefault((source.dataset, source.rule_for(mode)), []).append((benchmark.name, source))
    needs = (_need(dataset, rule, *opened[dataset], users) for (dataset, rule), users in pairs.items())
    return Needs(tuple(needs), absent)


def _need(dataset: str, rule: Rule, rows: Rows, parts: tuple[Part, ...], users: Sequence[tuple[str, Source]]) -> Need:
    wanted = tuple(part for part in parts if any(_uses(source, rows, part) for _, source in users))
    return Need(dataset, rule, rows, parts, wanted, tuple(dict.fromkeys(name for name, _ in users)))


def _open(dataset: str, places: DataPlaces, limit: int | None, seed: int) -> tuple[Rows, tuple[Part, ...]]:
    rows = open_rows(dataset, built=places.folder_of(dataset), place=places.own(dataset), repo=places.repo_of(dataset))
    rows = rows if limit is None else rows.limited(limit, seed)
    return rows, cut(rows.table, by_class=rows.by_class)


def _uses(source: Source, rows: Rows, part: Part) -> bool:
    return source.classes is None or not rows.by_class or part.index in source.classes
