"""The kept candidates as rows for the runner, and what models said about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..benchmarks import benchmarks
from ..benchmarks.spec import MODEL, Benchmark
from ..data import Rows
from ..predictions.parts import RowTable, cut, source_folder
from ..predictions.plan import SourcePlan
from ..predictions.read import read_head, read_source
from ..runner import Meter, Needs, RunOptions, evaluate
from ..runner.needs import Need
from ..schema import Outputs
from .ledger import KEEP, ROW_ID, Ledger
from .pictures import Pictures
from .stage import StageError, Work

RUNS = "runs"
_GROUPS = ("category", "nuisance", "wnid")


@dataclass(frozen=True)
class Said:
    """What one model said about the candidates of one part of its predictions.

    ids, error  row ids in order, and the reason of those whose picture could not be read (not in `outputs`).
    outputs     logits over the 1,000 classes, or over the classes of the zero-shot head.
    """

    outputs: Outputs
    failed: Mapping[str, str]


def candidate_rows(ledger: Ledger, *, only_kept: bool = True) -> Rows:
    """The candidates as rows of the runner, by row id; labels where a stage has made them."""
    names = [name for name in _GROUPS if name in ledger.columns]
    has_labels = "labels" in ledger.columns
    columns = ("image_sha256", *names, *(("labels",) if has_labels else ()))
    ids: list[str] = []
    keys: list[str] = []
    labels: list[tuple[int, ...]] = []
    positions: list[int] = []
    groups: dict[str, list[Any]] = {name: [] for name in names}
    for start, table in zip(_starts(ledger), ledger.tables(columns), strict=True):
        for i, row in enumerate(table.to_pylist()):
            if row[KEEP] or not only_kept:
                positions.append(start + i)
                ids.append(row[ROW_ID])
                keys.append(str(row["image_sha256"]))
                labels.append(tuple(row["labels"] or ()) if has_labels else ())
                for name in names:
                    groups[name].append(row[name] or "")
    pictures = Pictures(ledger)
    table = RowTable(tuple(ids), tuple(keys), tuple(labels), groups)
    return Rows(dataset_name(ledger), table, lambda i: pictures.read(positions[i]))


def dataset_name(ledger: Ledger) -> str:
    """What the candidates are called in the runs: named by what made them, so that other candidates never meet them."""
    return f"candidates-{ledger.key[:8]}"


def _starts(ledger: Ledger) -> list[int]:
    return list(accumulate(ledger.rows_of, initial=0))[:-1]


def forward(
    names: Sequence[str],
    rows: Rows,
    work: Work,
    *,
    options: RunOptions | None = None,
    zero_shot: Benchmark | None = None,
) -> dict[str, Path]:
    """Run models on candidates like on any data set: model name -> folder of its predictions, shared by all stages.

    zero_shot  benchmark whose class list a zero-shot model answers over; None: the 1,000 ImageNet classes.
    """
    if not len(rows.table):
        raise StageError("expected candidates to run models on, got none that is kept: see the reasons in the funnel")
    parts = cut(rows.table, by_class=False)
    needs = Needs((Need(rows.dataset, MODEL, rows, parts, parts, ()),), {})
    head = "imagenet-1k" if zero_shot is None or zero_shot.zero_shot is None else zero_shot.zero_shot.head
    found = {}
    for number, name in enumerate(names):
        run = evaluate(
            name, (), needs, work.out / RUNS, options=options or RunOptions(on_error="record"),
            world=work.world, meter=_share(work.meter, number, len(names)), zero_shot_heads=(head,),
        )  # fmt: skip
        found[name] = source_folder(run, rows.dataset, MODEL.name)
    return found


def _share(meter: Meter, number: int, models: int) -> Meter:
    """The meter of one of several models on the same pictures."""
    return lambda done, total: meter(number * total + done, models * total)


def said(folder: Path, *, zero_shot: Benchmark | None = None) -> Iterator[Said]:
    """What a model said, part by part; over the classes of `zero_shot` where the model is one of texts."""
    head = None
    if zero_shot is not None and zero_shot.zero_shot is not None and is_zero_shot(folder):
        head = zero_shot.zero_shot.head
    for index, *_ in SourcePlan.read(folder).parts:
        read = read_source(folder, parts=[index], head=head)
        if read.absent:
            raise StageError(f"expected part {index} of {folder}, got none: run the stage again")
        yield Said(read.outputs, dict(read.failed))


def is_zero_shot(folder: Path) -> bool:
    """Whether the predictions are of a model of texts and pictures."""
    return any(read_head(folder.parent, name) is not None for name in ("imagenet-1k", "imagenet-d"))


def imagenet_d() -> Benchmark:
    """The benchmark whose zero-shot protocol judges generated pictures."""
    return benchmarks()["imagenet-d"]


def softmax_top(logits: NDArray[np.floating[Any]], count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The `count` most probable columns of each row, (N, count), ties to the lower column, and their probabilities."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    return order, np.take_along_axis(exponentials, order, axis=1) / exponentials.sum(axis=1, keepdims=True)
