"""Features of a set as a run stored them, read part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..predictions.parts import is_source_folder, part_path, present_parts
from ..predictions.plan import PLAN_FILE, SourcePlan, read_json
from ..schema import EMBEDDINGS, ERROR, FEATURES, ID, IMAGE_SHA256

_SAME = ("model", "weights", "dtype", "code", "spufix", "spufix_strength")  # what features depend on, but for the rule


@dataclass(frozen=True)
class FeatureSet:
    """The features of one source of a run: `width` numbers for each of `count` pictures.

    column  "features", or "embeddings" of a zero-shot run.
    failed  pictures that could not be read and have none.
    absent  parts that are not there yet.
    """

    folder: Path
    plan: Mapping[str, Any]
    source: SourcePlan
    column: str
    parts: tuple[int, ...]
    sha256: tuple[str | None, ...]
    width: int
    failed: int
    absent: int

    @property
    def count(self) -> int:
        """Pictures that have features."""
        return len(self.sha256)

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """The features, (n, width), a part at a time; ValueError names a picture whose features are not finite."""
        for index in self.parts:
            table = _usable(pq.read_table(part_path(self.folder, index), columns=[ID, ERROR, self.column]))
            flat = np.asarray(table[self.column].combine_chunks().flatten(), dtype=np.float32)
            rows = flat.reshape(len(table), -1)
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if len(bad):
                raise ValueError(
                    f"expected finite {self.column}, got NaN or infinity for id {table[ID][int(bad[0])].as_py()!r} in "
                    f"{part_path(self.folder, index)}: check the checkpoint and run `evaluate` again"
                )
            if len(rows):
                yield rows


def open_features(folder: Path) -> FeatureSet:
    """The stored features in RUNS/<run>/<dataset>.<rule>; LookupError where there are none, with what to run."""
    if not is_source_folder(folder):
        raise LookupError(
            f"expected a folder of predictions such as RUNS/<run>/<dataset>.<rule>, got {folder}: name one, or give "
            "--model M and --runs RUNS to compute the features of a data set or folder of pictures"
        )
    source = SourcePlan.read(folder)
    plan = read_json(folder.parent / PLAN_FILE, ["model", "weights", "dtype", "prompts"])
    column = FEATURES if plan["prompts"] is None else EMBEDDINGS
    parts = present_parts(folder, source)
    sha256: list[str | None] = []
    rows, width = 0, 0
    for index in parts:
        path = part_path(folder, index)
        names = pq.read_schema(path).names
        errors = pq.read_table(path, columns=[ERROR])[ERROR]
        rows += len(errors)
        if column not in names and errors.null_count:
            raise LookupError(
                f"expected stored {column} in {folder}, got none: run `evaluate` again with --features, "
                "which makes another run"
            )
        if errors.null_count:
            table = _usable(pq.read_table(path, columns=[IMAGE_SHA256, ERROR, column]))
            sha256 += table[IMAGE_SHA256].to_pylist()
            width = len(table[column][0].as_py())
    if not sha256:
        raise LookupError(f"expected pictures with {column} in {folder}, got none: run the same `evaluate` again")
    absent = len(source.parts) - len(parts)
    return FeatureSet(folder, plan, source, column, parts, tuple(sha256), width, rows - len(sha256), absent)


def check_comparable(one: FeatureSet, other: FeatureSet) -> None:
    """ValueError names the field in which the features of two sets were made by different models."""
    for name in _SAME:
        first, second = one.plan.get(name), other.plan.get(name)
        if first != second:
            raise ValueError(
                f"expected features of one model, got {name} {first!r} in {one.folder} and {second!r} in "
                f"{other.folder}: compare sets that the same model saw"
            )
    if one.width != other.width:
        raise ValueError(
            f"expected features of one width, got {one.width} in {one.folder} and {other.width} in {other.folder}"
        )


def _usable(table: pa.Table) -> pa.Table:
    return table.filter(table[ERROR].is_null())
