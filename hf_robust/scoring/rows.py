"""Rows of results.json: a value with everything that it depends on, or a failure with its reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..benchmarks import Benchmark, Mode, Role, Value
from ..metrics import percentile, resample, wilson
from ..predictions.plan import LOG_FILE
from ..predictions.read import read_label_space
from .load import Loaded

Result = dict[str, Any]

REPLICATES = 1000


@dataclass(frozen=True)
class Asked:
    """One benchmark under one preprocessing mode, as asked of one run; `plan` is the run's plan.json."""

    run: Path
    plan: Mapping[str, Any]
    benchmark: Benchmark
    mode: Mode
    notes: tuple[str, ...] = ()  # doubts about the model


@dataclass(frozen=True)
class Named:
    """A value with its names: the metric, the split (None for a benchmark without splits) and the anomaly score.

    roles     what it was computed from.   ood_score  None for the protocol's own.
    protocol  what differs from the benchmark's.   spufix  the correction of the logits; None for the model's own.
    """

    metric: str
    split: str | None
    value: Value
    roles: tuple[Role, ...]
    ood_score: str | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    spufix: Mapping[str, Any] | None = None


def protocol(asked: Asked, loaded: Loaded) -> dict[str, Any]:
    """Everything that the values of a benchmark depend on, but for what differs from value to value."""
    benchmark, mask = asked.benchmark, asked.benchmark.mask_name
    if loaded.zero_shot and benchmark.zero_shot is not None:
        mask = f"the {len(benchmark.zero_shot.classes)} zero-shot classes of {benchmark.name}"
    return {
        "class_mask": mask,
        "label_space": read_label_space(asked.run).name,
        "softmax": "float64 from float32 logits",
        "preprocessing_mode": asked.mode,
        "preprocessing": {role: read.plan.preprocessing for role, read in loaded.reads.items()},
        "rules": {role: read.plan.rule for role, read in loaded.reads.items()},
        "rows": {role: len(outputs) for role, outputs in loaded.roles.items()},
        "data_fingerprints": {role: read.plan.fingerprint() for role, read in loaded.reads.items()},
        "software": versions(asked.run),
        "data_differences": {role: list(read.plan.differences) for role, read in loaded.reads.items()},
        **benchmark.protocol,
    }


def interval(value: Value, *, replicates: int) -> list[float] | None:
    """95 % interval: Wilson for a proportion, stratified percentile bootstrap else; None where there is no value.

    None as well where every replicate gives the same value (one row; groups that do not overlap at all): such rows say
    nothing about the spread, and an interval without width would look like certainty.

    replicates  of the bootstrap; 0 leaves those intervals out.
    """
    if value.value is None:
        return None
    if value.successes is not None:
        return list(wilson(value.successes, value.n))
    if value.sampling is None or not replicates:
        return None
    sampling = value.sampling
    drawn = resample([sampling.statistic], sampling.n, replicates=replicates, strata=sampling.strata)[0]
    if sampling.biased:
        drawn = np.clip(drawn - (drawn.mean() - value.value), 0.0, 1.0)  # fractions
    low, high = percentile(drawn)
    return [low, high] if low < high else None


def versions(run: Path) -> dict[str, str]:
    """Versions of the libraries that made the predictions, as the run's log first names them; empty without a log."""
    try:
        first = json.loads((run / LOG_FILE).read_text(encoding="utf-8").splitlines()[0])
        return {str(name): str(version) for name, version in first["versions"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def result(
    asked: Asked, loaded: Loaded, protocol: Mapping[str, Any], named: Named, *, replicates: int = REPLICATES
) -> Result:
    """The row of one value; replicates: see `interval`."""
    value, limit = named.value, asked.plan["limit"]
    left_out = value.details.get("left_out")
    lacks = [text for role in named.roles for text in loaded.lacks.get(role, ())]
    lacks += [f"left out, no pair of halves or no output: {left_out}"] if left_out else []
    own = named.ood_score is None and named.spufix is None
    headline = own and named.metric == asked.benchmark.headline and named.split in (None, "all")
    return {
        "model": asked.plan["model"],
        "benchmark": asked.benchmark.name,
        "metric": named.metric,
        "split": named.split,
        "ood_score": named.ood_score,
        "spufix": None if named.spufix is None else dict(named.spufix),
        "value": value.value,
        "n": value.n,
        "ci95": interval(value, replicates=replicates),
        "protocol": {**protocol, **named.protocol},
        "preprocessing": asked.mode,
        "run": asked.run.name,
        "plan": {name: value for name, value in asked.plan.items() if name not in ("model", "label_space")},
        "complete": not lacks and value.value is not None,
        "subset": limit is not None,
        "headline": headline,
        "n_failed": sum(len(loaded.reads[role].failed) for role in named.roles if role in loaded.reads),
        "reason": value.reason,
        "notes": [*lacks, *loaded.notes, *asked.notes],
        "details": dict(value.details),
    }


def failure(model: str, benchmark: str | None, mode: str | None, run: str, reason: str) -> Result:
    """The row of a model or benchmark that could not be run or scored."""
    return {
        "model": model, "benchmark": benchmark, "metric": None, "split": None, "ood_score": None, "spufix": None,
        "value": None, "n": 0,
        "ci95": None, "protocol": {}, "preprocessing": mode, "run": run, "plan": {}, "complete": False, "subset": False,
        "headline": False, "n_failed": 0, "reason": reason, "notes": [], "details": {},
    }  # fmt: skip


def failed(results: Sequence[Result]) -> list[Result]:
    """The results of models and benchmarks that could not be run or scored, and headlines without a value."""
    return [r for r in results if r["metric"] is None or (r["headline"] and r["value"] is None)]
