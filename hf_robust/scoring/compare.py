"""Two runs on the same pictures: paired differences with intervals and p-values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..benchmarks import Benchmark, Role, Value
from ..metrics import holm, mcnemar, minimum_detectable_difference, paired_difference, paired_proportions
from ..predictions.plan import PLAN_FILE
from ..schema import Outputs
from . import asked_of_run, failures_of_run, is_near_chance, values_of
from .load import Loaded, load
from .rows import Asked

LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """One metric of one benchmark for two models on the same rows.

    difference  first minus second, with its 95 % interval: of Bonett and Price for a proportion, resampled else; None
                where every replicate gives the same difference.
    p_value     two-sided, of no difference: exact McNemar for a proportion, resampling of both together else.
    p_holm      adjusted over the headline metrics of all benchmarks; None for the other metrics.
    detectable  the true difference that this many rows would find in 80 of 100 cases; None without an interval.
    notes       what must be said beside it: rows that are a subset or not the official whole, a model near chance.
    """

    benchmark: str
    mode: str
    metric: str
    split: str | None
    n: int
    first: float
    second: float
    difference: float
    ci95: tuple[float, float] | None
    p_value: float
    test: str
    detectable: float | None
    headline: bool
    p_holm: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def decided(self) -> bool:
        """Whether the data support a ranking: the p-value, adjusted where it is a headline's, is below 0.05."""
        return (self.p_value if self.p_holm is None else self.p_holm) < LEVEL


def run_of(place: Path) -> Path:
    """The run at `place`: the folder itself, or the only run below it; LookupError where that is not one."""
    if (place / PLAN_FILE).is_file():
        return place
    runs = sorted(path.parent for path in place.glob(f"*/{PLAN_FILE}"))
    if len(runs) != 1:
        names = ", ".join(run.name for run in runs) or "none"
        raise LookupError(f"expected one run in {place}, got {names}: name the folder of one")
    return runs[0]


def compare(
    first: Path, second: Path, benchmarks: Mapping[str, Benchmark], *, replicates: int = 1000
) -> list[Comparison]:
    """Every metric that both runs have, benchmark by benchmark, on the same pictures.

    first, second  folders of two runs, see `run_of`.
    Raises LookupError where they share no benchmark, ValueError where their pictures are not the same.
    """
    others = {(asked.benchmark.name, asked.mode): asked for asked in asked_of_run(second, benchmarks)}
    pairs = [
        (asked, others[asked.benchmark.name, asked.mode])
        for asked in asked_of_run(first, benchmarks)
        if (asked.benchmark.name, asked.mode) in others
    ]
    if not pairs:
        theirs = (_asked_in(run, benchmarks) for run in (first, second))
        raise LookupError(
            "expected a benchmark that both runs were asked for under the same preprocessing, got none: "
            f"{' and '.join(f'{found} in {run}' for found, run in zip(theirs, (first, second), strict=True))}"
        )
    rows = [row for one, other in pairs for row in _compared(one, other, replicates)]
    headlines = [i for i, row in enumerate(rows) if row.headline]
    if headlines:
        for i, p in zip(headlines, holm([rows[i].p_value for i in headlines]), strict=True):
            rows[i] = replace(rows[i], p_holm=float(p))
    return rows


def left_out(first: Path, second: Path, benchmarks: Mapping[str, Benchmark]) -> list[str]:
    """A sentence for each benchmark that `compare` has no rows of, though one of the runs was asked for it."""
    runs = {"A": first, "B": second}
    failures = {letter: failures_of_run(run, benchmarks) for letter, run in runs.items()}
    scored = {
        letter: {(asked.benchmark.name, asked.mode) for asked in asked_of_run(run, benchmarks)}
        for letter, run in runs.items()
    }
    failed = [(name, mode, f"failed in {k}: {why}") for k, found in failures.items() for name, mode, why in found]
    known = {(name, mode) for name, mode, _ in failed}
    other = [
        (name, mode, f"{letter} was not asked for it")
        for letter, those in (("A", scored["B"]), ("B", scored["A"]))
        for name, mode in sorted(those - scored[letter] - known)
    ]
    return [f"{name} ({mode} preprocessing): {why}" for name, mode, why in (*failed, *other)]


def _asked_in(run: Path, benchmarks: Mapping[str, Benchmark]) -> str:
    return ", ".join(f"{a.benchmark.name} ({a.mode})" for a in asked_of_run(run, benchmarks)) or "nothing to score"


def _compared(one: Asked, other: Asked, replicates: int) -> Iterator[Comparison]:
    left, right = (load(asked.run, asked.benchmark, asked.mode) for asked in (one, other))
    roles = {role: _aligned(outputs, right, role) for role, outputs in left.roles.items() if role in right.roles}
    left = replace(left, roles={role: left.roles[role] for role in roles})
    right = replace(right, roles=roles)
    notes = tuple(dict.fromkeys((*_notes(one, left, "A"), *_notes(other, right, "B"))))
    for first, second in zip(values_of(one, left), values_of(other, right), strict=True):
        if first.value.sampling is not None and second.value.sampling is not None:
            row = _difference(first.value, second.value, replicates)
            headline = first.metric == one.benchmark.headline and first.split in (None, "all")
            yield Comparison(
                one.benchmark.name,
                one.mode,
                first.metric,
                first.split,
                first.value.n,
                headline=headline,
                notes=notes,
                **row,
            )


def _notes(asked: Asked, loaded: Loaded, letter: str) -> Iterator[str]:
    """What holds for the rows stands once for both runs; what holds for a model says which."""
    if asked.plan["limit"] is not None:
        yield f"subset: --limit {asked.plan['limit']}"
    if asked.plan["exif"] == "apply":
        yield f"{letter} was given pictures turned by their EXIF orientation"
    for texts in loaded.lacks.values():
        yield from texts
    gate = asked.benchmark.gate(
        asked.benchmark.view.of(loaded.roles, None if loaded.zero_shot else asked.benchmark.mask)
    )
    if is_near_chance(gate):
        yield f"{letter} is near chance on clean pictures ({gate.value:.1%} of {gate.n}): its numbers say nothing"


def _aligned(outputs: Outputs, other: Loaded, role: Role) -> Outputs:
    """The other run's rows in this run's order; ValueError where the pictures differ."""
    theirs = other.roles[role]
    position = {key: i for i, key in enumerate(theirs.ids)}
    if set(position) != set(outputs.ids):
        raise ValueError(
            f"expected the same pictures in both runs, got {len(set(outputs.ids) ^ set(position))} ids of {role} rows "
            "that only one has: evaluate both on the same data, with the same --limit and --seed"
        )
    order = np.array([position[key] for key in outputs.ids], dtype=np.int64)
    aligned = theirs.take(order)
    if outputs.sha256 and aligned.sha256 != outputs.sha256:
        raise ValueError(f"expected the same pictures in both runs, got other bytes under the same ids of {role} rows")
    return aligned


def _difference(first: Value, second: Value, replicates: int) -> dict[str, Any]:
    one, other = first.sampling, second.sampling
    if one is None or other is None or first.value is None or second.value is None or one.n != other.n:
        raise ValueError(
            "expected the same rows under both models, got a class that only one of them has an output for"
        )
    if one.correct is not None and other.correct is not None:
        answers = mcnemar(one.correct, other.correct)
        apart, test = paired_proportions(answers.only_first, answers.only_second, one.n), "exact McNemar"
    else:
        centred, test = one.biased or other.biased, f"paired bootstrap, {replicates:,} replicates"
        apart = paired_difference(
            one.statistic, other.statistic, one.n, strata=one.strata, replicates=replicates, centred=centred
        )
    known = apart.low < apart.high
    return {
        "first": first.value,
        "second": second.value,
        "difference": apart.value,
        "ci95": (apart.low, apart.high) if known else None,
        "p_value": apart.p_value,
        "test": test,
        "detectable": minimum_detectable_difference(apart.standard_error) if known else None,
    }
