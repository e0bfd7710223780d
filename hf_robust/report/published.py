"""Published numbers of the benchmarks, to be shown apart from our own."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

SOURCES = MappingProxyType(
    {
        "timm": "pytorch-image-models, results of timm models on ImageNet-A and on validation pictures of its classes",
        "testbed": "Taori et al., Measuring Robustness to Natural Distribution Shifts, NeurIPS 2020, arXiv 2007.00644",
        "natural-adversarial": "Hendrycks et al., Natural Adversarial Examples, CVPR 2021, arXiv 1907.07174",
        "spufix": "Neuhaus et al., Spurious Features Everywhere, ICCV 2023, arXiv 2212.04871",
    }
)


@dataclass(frozen=True)
class Baseline:
    """One published number: a fraction in [0, 1] under the name its source gives the model.

    preprocessing  "model" for the model's own transform, "published" for the paper's.
    source         key of SOURCES.
    size           side of the input in pixels where the source tells; one model may stand at several sizes.
    parameters     of the model, in millions, where the source tells.
    """

    benchmark: str
    metric: str
    model: str
    value: float
    preprocessing: str
    source: str
    size: int | None = None
    note: str = ""
    parameters: float | None = None


@cache
def published(benchmark: str, metric: str | None = None) -> tuple[Baseline, ...]:
    """The published numbers of a benchmark, of one metric or of all; empty where none are known.

    >>> [b.value for b in published("imagenet-o", "aupr") if b.model == "DeiT-B"]
    [0.246]
    """
    return tuple(b for b in _all() if b.benchmark == benchmark and metric in (None, b.metric))


@cache
def _all() -> tuple[Baseline, ...]:
    lines = (files("hf_robust") / "assets" / "published.csv").read_text(encoding="utf-8").splitlines()
    return tuple(_baseline(row) for row in csv.DictReader(lines))


def _baseline(row: dict[str, str]) -> Baseline:
    size = int(row["size"]) if row["size"] else None
    fixed = {name: row[name] for name in ("benchmark", "metric", "model", "preprocessing", "source", "note")}
    parameters = float(row["parameters"]) if row["parameters"] else None
    return Baseline(value=float(row["value"]), size=size, parameters=parameters, **fixed)
