"""The training pictures of a class as a run stored them: features, ids, and the head that reads the features."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..labels import imagenet_1k
from ..predictions.parts import is_source_folder, source_folder
from ..predictions.plan import PLAN_FILE, SourcePlan, read_json
from ..predictions.read import HeadWeights, read_head, read_label_space, read_source
from ..schema import EMBEDDINGS, FEATURES, Outputs

FIT_SOURCE = "imagenet-train"
_AGAIN = f"hf-robust evaluate --benchmark {FIT_SOURCE} --{FIT_SOURCE} FOLDER --features"


@dataclass(frozen=True)
class Training:
    """Stored features of training pictures, class by class, and the head of the model that gave them.

    columns  int64 (1000,): the head's row of each ImageNet-1k class, -1 where it has none.
    """

    folder: Path
    plan: Mapping[str, Any]
    source: SourcePlan
    head: HeadWeights
    columns: NDArray[np.int64]

    @property
    def column(self) -> str:
        """Where the run keeps the features: a zero-shot run's are its embeddings."""
        return feature_column(self.plan)

    def row_of(self, index: int) -> NDArray[np.float32]:
        """(D,): the head's row of an ImageNet-1k class; LookupError where it has none."""
        return np.asarray(self.head.weight[self.output_of(index)])

    def output_of(self, index: int) -> int:
        """The head's output for an ImageNet-1k class; LookupError where it has none."""
        if self.columns[index] < 0:
            raise LookupError(
                f"expected an output for class {index} ({imagenet_1k().wnids[index]}), got a head of "
                f"{len(self.columns):,} classes without it: leave the class out"
            )
        return int(self.columns[index])

    def classes(self) -> tuple[int, ...]:
        """ImageNet-1k indices that the data set has pictures of."""
        if self.source.cut == "class":
            return tuple(sorted(i for i, _, _ in self.source.parts))
        return tuple(sorted({int(k) for k in self._everything.labels.flat} - {-1}))

    def of_class(self, index: int) -> Outputs:
        """Rows of one class with their features; LookupError where there are none, or they have no features."""
        if self.source.cut == "class":
            rows = read_source(self.folder, [index], extra=(self.column,)).outputs
        else:
            rows = self._everything.select(np.asarray((self._everything.labels == index).any(axis=1)))
        if not len(rows):
            raise LookupError(
                f"expected predictions for pictures of class {index} ({imagenet_1k().wnids[index]}) in {self.folder}, "
                f"got none: {_AGAIN}"
            )
        if self.column not in rows.extra:
            raise LookupError(f"expected stored {self.column} in {self.folder}, got none: {_AGAIN}")
        return rows

    def features(self, rows: Outputs) -> NDArray[np.float32]:
        """(N, D): the features of rows that `of_class` gave."""
        return rows.extra[self.column]

    @cached_property
    def _everything(self) -> Outputs:
        return read_source(self.folder, extra=(self.column,)).outputs

    def provenance(self) -> dict[str, Any]:
        """The model, its weights and head, and the pictures: what a fit must be made from again to be equal."""
        return {
            "model": self.plan["model"],
            "weights": self.plan["weights"],
            "head": head_hash(self.head),
            "dtype": self.plan["dtype"],
            "data": {"set": self.source.dataset, "rule": self.source.rule, "fingerprint": self.source.fingerprint()},
        }


def open_training(place: Path, *, model: str | None = None) -> Training:
    """The training pictures at `place`: the folder of a source, of a run, or of runs of which one fits.

    model  the name that the run must have, where there are several. LookupError where there is not exactly one run
    with predictions of imagenet-train, or it stores no head.
    """
    folder = place if is_source_folder(place) else source_folder(_run_of(place, model), FIT_SOURCE, "model")
    if not is_source_folder(folder):
        raise LookupError(f"expected predictions of {FIT_SOURCE} in {folder.parent}, got none: {_AGAIN}")
    run = folder.parent
    plan = read_json(run / PLAN_FILE, ["model", "weights", "prompts", "dtype"])
    head = read_head(run, head_name(plan))
    if head is None:
        raise LookupError(f"expected the linear head in {run}, got none: {_AGAIN}")
    space = np.arange(1000) if plan["prompts"] is not None else read_label_space(run).imagenet_1k_columns()
    return Training(folder, plan, SourcePlan.read(folder), head, space)


def _run_of(place: Path, model: str | None) -> Path:
    if (place / PLAN_FILE).is_file():
        return place
    runs = sorted(path.parent for path in place.glob(f"*/{PLAN_FILE}"))
    fitting = [
        run
        for run in runs
        if is_source_folder(source_folder(run, FIT_SOURCE, "model"))
        and model in (None, read_json(run / PLAN_FILE, ["model"])["model"])
        and read_head(run, head_name(read_json(run / PLAN_FILE, ["prompts"]))) is not None
    ]
    if len(fitting) != 1:
        names = ", ".join(run.name for run in fitting) or "none"
        raise LookupError(
            f"expected one run with predictions of {FIT_SOURCE} and a head in {place}, got {names}: "
            f"{'name the folder of one' if fitting else _AGAIN}"
        )
    return fitting[0]


def feature_column(plan: Mapping[str, Any]) -> str:
    """The column that a run's features are in, by its plan."""
    return FEATURES if plan["prompts"] is None else EMBEDDINGS


def head_name(plan: Mapping[str, Any]) -> str:
    """The head that reads them."""
    return "classifier" if plan["prompts"] is None else "imagenet-1k"


def head_hash(head: Any) -> str:
    """SHA-256 of a head's `weight` and `bias` as float32: the same for a stored head and for the model's own."""
    digest = hashlib.sha256()
    for array in (head.weight, head.bias):
        values = np.ascontiguousarray(array, dtype=np.float32)
        digest.update(f"{values.shape}:".encode())
        digest.update(values.data)
    return digest.hexdigest()
