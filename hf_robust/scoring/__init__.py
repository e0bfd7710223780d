"""Predictions on disk -> named values with intervals. No model, no pictures; everything may be scored at any time."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from ..benchmarks import Benchmark, Mode, Value
from ..benchmarks.spec import roles_of
from ..benchmarks.views import Detection
from ..metrics import wilson
from ..predictions.plan import LOG_FILE, PLAN_FILE, REQUESTS, DamagedError, Plan, is_texts, read_json
from .load import Loaded, load
from .ood import OodOptions, columns_of, detected, options_of
from .people import people_rows
from .rows import REPLICATES, Asked, Named, Result, failed, failure, protocol, result
from .spufix import Correction, correction_of

__all__ = [
    "CHANCE_BELOW", "Asked", "Correction", "OodOptions", "Result",
    "asked_of", "asked_of_run", "correction_of", "failed", "failures_of_run", "is_near_chance", "options_of",
    "results_of_run", "score", "score_run", "values_of", "view_of",
]  # fmt: skip

CHANCE_BELOW = 0.05
NO_MORE = OodOptions()


def score(
    runs: Path,
    benchmarks: Mapping[str, Benchmark],
    *,
    allow_chance: bool = False,
    ood: OodOptions = NO_MORE,
    correction: Correction | None = None,
    replicates: int = REPLICATES,
) -> list[Result]:
    """One result a model, benchmark, metric and split, of everything that was asked for in `runs`.

    correction  adds every value again with corrected logits, none of them a headline.
    A model or benchmark that failed is one result whose metric and value are None and whose reason says why. What
    people got right (RUNS/people) follows after the models, in rows of the kind "people".
    """
    if not runs.is_dir():
        raise FileNotFoundError(
            f"expected a folder that `hf-robust evaluate --out` wrote, got {str(runs)!r}: no folder"
        )
    failures = [
        failure(f["model"], None, None, "", f["reason"]) for f in _records(runs / "failures", ["model", "reason"])
    ]
    found = sorted(path for path in runs.iterdir() if (path / REQUESTS).is_dir() or (path / PLAN_FILE).exists())
    scored = [
        row
        for run in found
        for row in _score_asked(
            run, benchmarks, allow_chance=allow_chance, ood=ood, correction=correction, replicates=replicates
        )
    ]
    if not failures and not found:
        if (runs / PLAN_FILE).is_file():
            raise LookupError(f"expected a folder of runs, got the run {runs} itself: give {runs.absolute().parent}")
        raise LookupError(f"expected runs in {runs}, got none: `hf-robust evaluate --out {runs}` writes them")
    models = failures + scored
    return models + people_rows(runs, models)


def results_of_run(run: Path, benchmarks: Mapping[str, Benchmark], *, allow_chance: bool = False) -> list[Result]:
    """The same for the folder of one run, whatever else lies beside it."""
    return list(_score_asked(run, benchmarks, allow_chance=allow_chance, ood=NO_MORE, replicates=REPLICATES))


def _score_asked(run: Path, benchmarks: Mapping[str, Benchmark], **options: Any) -> Iterator[Result]:
    """Every result of one run; a run whose own records are damaged is one failure."""
    try:
        plan = _plan(run)
        requests = _requests(run)
    except (OSError, ValueError) as error:
        yield failure(run.name, None, None, run.name, str(error))
        return
    for request in requests:
        name, reason = request["benchmark"], _why_failed(request, benchmarks)
        if reason is not None:
            yield failure(plan["model"], name, request["mode"], run.name, reason)
        elif not benchmarks[name].fit_only:
            yield from score_run(_asked(run, plan, benchmarks[name], request), **options)
    for name, mode, reason in _forgotten(run, requests, benchmarks):
        yield failure(plan["model"], name, mode, run.name, reason)


def failures_of_run(run: Path, benchmarks: Mapping[str, Benchmark]) -> list[tuple[str, str, str]]:
    """(benchmark, mode, reason) of what was asked of a run and cannot be scored whatever its predictions are."""
    requests = _requests(run)
    reasons = [(request, _why_failed(request, benchmarks)) for request in requests]
    failures = [(request["benchmark"], request["mode"], reason) for request, reason in reasons if reason is not None]
    return [*failures, *_forgotten(run, requests, benchmarks)]


def _why_failed(request: Mapping[str, Any], benchmarks: Mapping[str, Benchmark]) -> str | None:
    if request["failure"] is not None:
        return str(request["failure"])
    if request["benchmark"] not in benchmarks:
        return f"benchmark {request['benchmark']!r} is not known here; known: {', '.join(sorted(benchmarks))}"
    return None


def _forgotten(
    run: Path, requests: Sequence[Mapping[str, Any]], benchmarks: Mapping[str, Benchmark]
) -> list[tuple[str, str, str]]:
    """What the log says was asked and no request tells any more: a benchmark must not leave the table in silence."""
    there = {(request["benchmark"], request["mode"]) for request in requests}
    fits = {name for name, benchmark in benchmarks.items() if benchmark.fit_only}
    return [
        (name, mode, f"expected {run / REQUESTS / f'{name}.{mode}.json'}, got nothing: run the same `evaluate` again")
        for name, mode in _logged(run)
        if (name, mode) not in there and name not in fits
    ]


def _logged(run: Path) -> list[tuple[str, str]]:
    """Every (benchmark, mode) that the log names, once; lines that cannot be read, or of older versions, name none."""
    found: dict[tuple[str, str], None] = {}
    try:
        lines = (run / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            asked = json.loads(line)["asked"]
            found |= {(str(name).rpartition(".")[0], str(name).rpartition(".")[2]): None for name in asked}
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
    return list(found)


def _asked(run: Path, plan: Mapping[str, Any], benchmark: Benchmark, request: Mapping[str, Any]) -> Asked:
    return Asked(run, plan, benchmark, request["mode"], tuple(request.get("notes", ())))


def _plan(run: Path) -> dict[str, Any]:
    younger = {field.name: field.default for field in fields(Plan) if field.default is not MISSING}  # of later versions
    return {**younger, **read_json(run / PLAN_FILE, [f.name for f in fields(Plan) if f.name not in younger])}


def _records(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    return [read_json(path, names) for path in sorted(folder.glob("*.json"))]


def _requests(run: Path) -> list[dict[str, Any]]:
    """What was asked of a run; DamagedError where an entry is not of its kind."""
    requests = _records(run / REQUESTS, ["benchmark", "mode", "failure"])
    for request in requests:
        texts = isinstance(request["benchmark"], str) and isinstance(request["failure"], str | None)
        if not texts or request["mode"] not in get_args(Mode) or not is_texts(request.get("notes", [])):
            raise DamagedError(
                f"expected requests that `evaluate` wrote in {run / REQUESTS}, got one with benchmark "
                f"{request['benchmark']!r} and mode {request['mode']!r}: remove that folder and run `evaluate` again"
            )
    return requests


def asked_of(runs: Path, benchmarks: Mapping[str, Benchmark]) -> Iterator[Asked]:
    """Every benchmark that was asked for in `runs`, run by run, but for those that failed and sources of fits."""
    for run in sorted(path.parent for path in runs.glob(f"*/{PLAN_FILE}")):
        yield from asked_of_run(run, benchmarks)


def asked_of_run(run: Path, benchmarks: Mapping[str, Benchmark]) -> Iterator[Asked]:
    """The same for one run."""
    plan = _plan(run)
    for request in _requests(run):
        known = benchmarks.get(request["benchmark"])
        if known is not None and not known.fit_only and request["failure"] is None:
            yield _asked(run, plan, known, request)


def values_of(asked: Asked, loaded: Loaded) -> list[Named]:
    """Every value of a benchmark over these roles, splits included."""
    view = asked.benchmark.view.of(loaded.roles, None if loaded.zero_shot else asked.benchmark.mask)
    return list(_values(asked.benchmark, view))


def view_of(asked: Asked, extra: Collection[str] = ()) -> tuple[Loaded, Any]:
    """What is on disk for a benchmark, and the view that its measures look at.

    Raises LookupError where a role has no predictions and ValueError where labels and classes do not fit.
    """
    loaded = load(asked.run, asked.benchmark, asked.mode, extra)
    mask = None if loaded.zero_shot else asked.benchmark.mask
    return loaded, asked.benchmark.view.of(loaded.roles, mask)


def score_run(
    asked: Asked,
    *,
    allow_chance: bool = False,
    ood: OodOptions = NO_MORE,
    correction: Correction | None = None,
    replicates: int = REPLICATES,
) -> list[Result]:
    """Every value of one benchmark from one run's predictions."""
    benchmark, model = asked.benchmark, str(asked.plan["model"])
    try:
        wanted = ood if benchmark.view is Detection else NO_MORE
        loaded, view = view_of(asked, columns_of(asked, wanted.scores))
        gate = benchmark.gate(view)
        if not allow_chance and is_near_chance(gate):
            return [failure(model, benchmark.name, asked.mode, asked.run.name, _near_chance(benchmark, gate))]
        shared = protocol(asked, loaded)
        values = chain(_values(benchmark, view), detected(asked, view, loaded, wanted), _corrected(asked, correction))
        return [result(asked, loaded, shared, named, replicates=replicates) for named in values]  # one held at a time
    except (LookupError, ValueError) as error:
        reason = str(error.args[0] if error.args else error)
        return [failure(model, benchmark.name, asked.mode, asked.run.name, reason)]


def _corrected(asked: Asked, correction: Correction | None) -> Iterator[Named]:
    """Every value with corrected logits; where they cannot be had, a null headline value with the reason."""
    benchmark = asked.benchmark
    if correction is None or benchmark.fit_only:
        return
    roles = tuple(source.role for source in benchmark.sources)
    for strength in correction.strengths:
        try:
            found = values_of(asked, correction.load(asked, strength))
        except (LookupError, ValueError) as error:
            whole = None if benchmark.split is None else "all"
            found = [Named(benchmark.headline, whole, Value(None, 0, reason=str(error.args[0])), roles)]
        yield from (replace(named, spufix=correction.facts(strength)) for named in found)


def _near_chance(benchmark: Benchmark, gate: Value) -> str:
    return (
        f"{benchmark.gate.__name__} is {gate.value:.1%} of {gate.n} clean pictures, near chance: probably a wrong "
        "label order, normalisation or checkpoint. The predictions are kept; --allow-chance reports the numbers"
    )


def is_near_chance(gate: Value) -> bool:
    """Whether the 95 % Wilson upper bound of a control's accuracy is below 0.05."""
    return gate.successes is not None and wilson(gate.successes, gate.n)[1] < CHANCE_BELOW


def _values(benchmark: Benchmark, view: Any) -> Iterator[Named]:
    whole = None if benchmark.split is None else "all"
    roles = tuple(source.role for source in benchmark.sources)
    for measure in benchmark.measures:
        yield Named(measure.__name__, whole, measure(view), roles_of(measure, roles))
    if benchmark.split is not None:
        for value in benchmark.split.values:
            part = view.split(benchmark.split.column, value)
            for measure in benchmark.measures:
                if not measure.__name__.startswith("control_"):
                    yield Named(measure.__name__, value, measure(part), roles_of(measure, roles))
