"""Predictions on disk -> named values with intervals. No model, no pictures; everything may be scored at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .benchmarks import Benchmark, Mode, Outputs, Role, Source, Value
from .labels import imagenet_1k_names
from .metrics import wilson
from .predictions.parts import is_source_folder, source_folder
from .predictions.plan import PLAN_FILE
from .predictions.read import SourceRead, has_head, read_label_space, read_source

CHANCE_BELOW = 0.05
VALIDATION_PICTURES_PER_CLASS = 50
_PLAN_FIELDS = ("weights", "dtype", "device", "prompts", "limit", "seed", "micro_batch")

Result = dict[str, Any]


@dataclass(frozen=True)
class Loaded:
    """The roles of a benchmark as far as they are on disk, with everything that must be said beside its numbers."""

    roles: Mapping[Role, Outputs]
    reads: Mapping[Role, SourceRead]
    lacks: tuple[str, ...]  # why the row is not the whole benchmark
    notes: tuple[str, ...]
    zero_shot: bool


def score(runs: Path, benchmarks: Mapping[str, Benchmark], *, allow_chance: bool = False) -> list[Result]:
    """One result a model, benchmark, metric and split, of everything that was asked for in `runs`.

    A model or benchmark that failed is one result whose metric and value are None and whose reason says why.
    """
    if not runs.is_dir():
        raise FileNotFoundError(
            f"expected a folder that `hf-robust evaluate --out` wrote, got {str(runs)!r}, which is none"
        )
    results = [_failure(f["model"], None, None, "", f["reason"]) for f in _read_all(runs / "failures")]
    for run in sorted(path.parent for path in runs.glob(f"*/{PLAN_FILE}")):
        plan = json.loads((run / PLAN_FILE).read_text(encoding="utf-8"))
        for request in _read_all(run / "requests"):
            benchmark = benchmarks.get(request["benchmark"])
            reason = request["failure"]
            if benchmark is None:
                reason = f"benchmark {request['benchmark']!r} is not known here; known: {', '.join(sorted(benchmarks))}"
            if reason is not None or benchmark is None:
                results.append(_failure(plan["model"], request["benchmark"], request["mode"], run.name, str(reason)))
            else:
                results += score_run(run, benchmark, request["mode"], plan, allow_chance=allow_chance)
    return results


def _read_all(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def score_run(
    run: Path, benchmark: Benchmark, mode: Mode, plan: Mapping[str, Any], *, allow_chance: bool = False
) -> list[Result]:
    """Every value of one benchmark from one run's predictions."""
    try:
        loaded = _load(run, benchmark, mode)
        view: Any = benchmark.view.of(loaded.roles, None if loaded.zero_shot else benchmark.mask)
        values = list(_values(benchmark, view))
        gate = benchmark.gate(view)
    except (LookupError, ValueError) as error:
        return [_failure(plan["model"], benchmark.name, mode, run.name, str(error.args[0] if error.args else error))]
    if not allow_chance and is_near_chance(gate):
        reason = (
            f"{benchmark.gate.__name__} is {gate.value:.1%} of {gate.n} clean pictures, near chance: probably a wrong "
            "label order, normalisation or checkpoint. The predictions are kept; --allow-chance reports the numbers"
        )
        return [_failure(plan["model"], benchmark.name, mode, run.name, reason)]
    head = _protocol(run, benchmark, mode, loaded)
    return [_result(plan, run, benchmark, mode, loaded, head, name, split, value) for name, split, value in values]


def is_near_chance(gate: Value) -> bool:
    """Whether the 95 % Wilson upper bound of a control's accuracy is below 0.05."""
    return gate.successes is not None and wilson(gate.successes, gate.n)[1] < CHANCE_BELOW


def _values(benchmark: Benchmark, view: Any) -> Iterator[tuple[str, str | None, Value]]:
    whole = None if benchmark.split is None else "all"
    for measure in benchmark.measures:
        yield measure.__name__, whole, measure(view)
    if benchmark.split is not None:
        for value in benchmark.split.values:
            part = view.split(benchmark.split.column, value)
            for measure in benchmark.measures:
                if not measure.__name__.startswith("control_"):
                    yield measure.__name__, value, measure(part)


def _load(run: Path, benchmark: Benchmark, mode: Mode) -> Loaded:
    zero_shot = benchmark.zero_shot is not None and has_head(run, benchmark.zero_shot.head)
    reads: dict[Role, SourceRead] = {}
    notes: list[str] = []
    for source in benchmark.sources:
        head = benchmark.zero_shot.head if zero_shot and benchmark.zero_shot is not None else None
        found = _read(run, source, mode, head)
        if found is not None and len(found.outputs) and not (source.optional and found.absent):
            reads[source.role] = found
        elif source.optional:
            notes.append(f"{source.role} not run: {_why_not(source, found)}")
        else:
            raise LookupError(
                f"no predictions of {source.dataset} under the rule {source.rule_for(mode).name!r} in {run}: "
                f"{_why_not(source, found)}"
            )
    roles = {
        s.role: _relabel(reads[s.role].outputs, s, benchmark, zero_shot) for s in benchmark.sources if s.role in reads
    }
    lacks = [text for s in benchmark.sources if s.role in reads for text in _lacks(s, reads[s.role])]
    notes += _unmapped(run, benchmark, roles) if not zero_shot else []
    return Loaded(roles, reads, tuple(lacks), tuple(notes), zero_shot)


def _read(run: Path, source: Source, mode: Mode, head: str | None) -> SourceRead | None:
    folder = source_folder(run, source.dataset, source.rule_for(mode).name)
    return read_source(folder, source.classes, head=head) if is_source_folder(folder) else None


def _why_not(source: Source, found: SourceRead | None) -> str:
    if found is None:
        return f"no {source.dataset} pictures were given"
    if not found.absent and not found.failed:
        return f"none of the needed classes has pictures in {source.dataset}"
    if not found.absent:
        return f"{len(found.failed)} pictures of its classes were given and none could be read"
    parts = "classes" if found.plan.cut == "class" else "parts"
    return f"{len(found.absent)} of its {len(found.absent) + len(found.rows_by_part)} {parts} have no predictions yet"


def _relabel(outputs: Outputs, source: Source, benchmark: Benchmark, zero_shot: bool) -> Outputs:
    """Labels as the protocol counts them: the category of a zero-shot head, or every index of a label's group."""
    if zero_shot and benchmark.zero_shot is not None:
        own = benchmark.zero_shot
        if own.column in outputs.groups:
            position = {name: i for i, name in enumerate(own.classes)}
            categories = [position.get(name, -1) for name in outputs.groups[own.column]]
        else:
            position_of = {index: i for i, group in enumerate(own.label_groups) for index in group}
            categories = [position_of.get(int(label), -1) for label in outputs.labels[:, 0]]
        return replace(outputs, labels=np.array(categories, dtype=np.int64).reshape(-1, 1))
    if source.label_groups is None:
        return outputs
    width = max(len(group) for group in source.label_groups)
    padded = {index: [*group, *[-1] * (width - len(group))] for group in source.label_groups for index in group}
    single = [[int(k), *[-1] * (width - 1)] for k in outputs.labels[:, 0]]  # a class of no group counts as itself
    labels = np.array([padded.get(row[0], row) for row in single], dtype=np.int64).reshape(-1, width)
    return replace(outputs, labels=labels)


def _lacks(source: Source, read: SourceRead) -> Iterator[str]:
    """What keeps this source from being the official whole."""
    if not read.plan.complete and read.plan.cut != "class":
        first, more = read.plan.differences[0], len(read.plan.differences) - 1
        yield f"{source.dataset} is not the official set: {first}{f' (and {more} more differences)' if more else ''}"
    if read.plan.cut == "class":
        needed = source.classes if source.classes is not None else range(1000)
        short = [k for k in needed if read.rows_by_part.get(k, 0) < VALIDATION_PICTURES_PER_CLASS]
        if short:
            yield (
                f"{len(short)} of {len(needed)} needed classes have fewer than {VALIDATION_PICTURES_PER_CLASS} "
                f"{source.dataset} pictures, e.g. {short[0]} ({imagenet_1k_names()[short[0]]}): "
                f"{read.rows_by_part.get(short[0], 0)}"
            )
    if read.absent:
        parts = len(read.absent) + len(read.rows_by_part)
        yield f"{len(read.absent)} of {parts} parts of {source.dataset} have no predictions yet"
    if read.failed:
        key, reason = read.failed[0]
        yield f"{len(read.failed)} pictures of {source.dataset} could not be read, the first {key!r} ({reason})"


def _unmapped(run: Path, benchmark: Benchmark, roles: Mapping[Role, Outputs]) -> list[str]:
    """Names the ImageNet-1k classes in play that the model has no output for."""
    missing = set(read_label_space(run).missing_imagenet_1k())
    in_play = (
        set(benchmark.mask or range(1000))
        if benchmark.mask
        else {int(k) for o in roles.values() for k in o.labels.flat}
    )
    names = imagenet_1k_names()
    gone = sorted(missing & in_play)
    return [f"no output of the model stands for: {', '.join(f'{k} {names[k]}' for k in gone)}"] if gone else []


def _protocol(run: Path, benchmark: Benchmark, mode: Mode, loaded: Loaded) -> dict[str, Any]:
    mask = benchmark.mask_name
    if loaded.zero_shot and benchmark.zero_shot is not None:
        mask = f"the {len(benchmark.zero_shot.classes)} zero-shot classes of {benchmark.name}"
    return {
        "class_mask": mask,
        "label_space": read_label_space(run).name,
        "softmax": "float64 from float32 logits",
        "preprocessing_mode": mode,
        "preprocessing": {role: read.plan.preprocessing for role, read in loaded.reads.items()},
        "rules": {role: read.plan.rule for role, read in loaded.reads.items()},
        "rows": {role: len(outputs) for role, outputs in loaded.roles.items()},
        "data_fingerprints": {role: read.plan.fingerprint() for role, read in loaded.reads.items()},
        "data_differences": {role: list(read.plan.differences) for role, read in loaded.reads.items()},
        **benchmark.protocol,
    }


def _result(
    plan: Mapping[str, Any], run: Path, benchmark: Benchmark, mode: Mode, loaded: Loaded,
    protocol: Mapping[str, Any], metric: str, split: str | None, value: Value,
) -> Result:  # fmt: skip
    left_out = (
        [f"left out, no pair of halves or no output: {value.details['left_out']}"]
        if "left_out" in value.details
        else []
    )
    lacks = [*loaded.lacks, *left_out]
    return {
        "model": plan["model"],
        "benchmark": benchmark.name,
        "metric": metric,
        "split": split,
        "value": value.value,
        "n": value.n,
        "ci95": None if value.successes is None or value.value is None else list(wilson(value.successes, value.n)),
        "protocol": dict(protocol),
        "preprocessing": mode,
        "run": run.name,
        "plan": {
            name: plan[name] for name in ("weights", "dtype", "device", "prompts", "limit", "seed", "micro_batch")
        },
        "complete": not lacks,
        "subset": plan["limit"] is not None,
        "headline": metric == benchmark.headline and split in (None, "all"),
        "n_failed": sum(len(read.failed) for read in loaded.reads.values()),
        "reason": value.reason,
        "notes": [*lacks, *loaded.notes],
        "details": dict(value.details),
    }


def _failure(model: str, benchmark: str | None, mode: str | None, run: str, reason: str) -> Result:
    return {
        "model": model, "benchmark": benchmark, "metric": None, "split": None, "value": None, "n": 0, "ci95": None,
        "protocol": {}, "preprocessing": mode, "run": run, "plan": {}, "complete": False, "subset": False,
        "headline": False, "n_failed": 0, "reason": reason, "notes": [], "details": {},
    }  # fmt: skip


def failed(results: Sequence[Result]) -> list[Result]:
    """The results that stand for a model or benchmark that could not be run or scored."""
    return [r for r in results if r["metric"] is None]
