"""What every `evaluate` module of ours says of itself, so that a module states only what is its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..benchmarks import benchmarks

if TYPE_CHECKING:
    import evaluate


def metric_info(description: str, inputs: str, *, columns: Sequence[str], benchmark: str) -> evaluate.MetricInfo:
    """The `MetricInfo` of a module whose input is one number a row in each of `columns`.

    inputs     the text under "Args:" and "Returns:" of `compute`.
    benchmark  the one that the metric comes from: its citation and addresses.
    Every column is float64: a bool or int column would turn 0.7 into True or class 0 without a word.
    """
    import datasets
    import evaluate

    origin = benchmarks()[benchmark]
    papers = [f"https://arxiv.org/abs/{number}" for number in re.findall(r"eprint = {([\d.]+)}", origin.citation)]
    return evaluate.MetricInfo(
        description=description,
        citation=origin.citation,
        inputs_description=inputs,
        features=datasets.Features({name: datasets.Value("float64") for name in columns}),
        reference_urls=[*papers, origin.homepage],
    )
