"""Features of any pictures: a data set or a folder through the runner, so that they are resumable and stored."""

from __future__ import annotations

from pathlib import Path

from ..benchmarks.spec import MODEL
from ..data import Rows
from ..predictions.parts import cut, source_folder
from ..runner import Meter, Need, Needs, RunOptions, World, evaluate
from .features import FeatureSet, open_features


def forward_features(
    rows: Rows, model: str, runs: Path, *, options: RunOptions, world: World, meter: Meter
) -> FeatureSet:
    """The features of these rows under the model's own preprocessing, forwarded where they are not in `runs` yet.

    options  must ask for features. Errors as those of `runner.evaluate`, and those of `open_features`.
    """
    parts = cut(rows.table, by_class=rows.by_class)
    need = Need(rows.dataset, MODEL, rows, parts, parts, ())
    run = evaluate(model, (), Needs((need,), {}), runs, options=options, world=world, meter=meter)
    return open_features(source_folder(run, rows.dataset, MODEL.name))
