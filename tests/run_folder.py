"""Run folders as the runner leaves them, written from logits that a test makes up."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.labels import LabelSpace, imagenet_1k
from hf_robust.predictions.parts import RowTable, cut, finish, part_table, source_folder, write_part
from hf_robust.predictions.plan import PLAN_FILE, SOURCE_FILE, Plan, SourcePlan, settle, write_json
from hf_robust.predictions.read import HeadWeights, label_space_hash, write_heads, write_label_space
from hf_robust.scoring import score

A = benchmark("imagenet-a").mask

PLAN = Plan(
    model="toy",
    weights="0" * 64,
    label_space="0" * 64,
    prompts=None,
    dtype="float32",
    device="cpu",
    layout="contiguous",
    batch_norm_folded=False,
    micro_batch=8,
    threads=1,
    features=False,
    limit=None,
    seed=0,
)


@dataclass(frozen=True)
class Source:
    """Predictions of one data set: a label (or several, or none) and a row of outputs for each picture."""

    dataset: str
    labels: Sequence[Collection[int]]
    outputs: NDArray[np.float32]
    groups: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    rule: str = "model"
    column: str = "logits"
    complete: bool = True
    differences: tuple[str, ...] = ()
    errors: Mapping[int, str] = field(default_factory=dict)  # row -> why its picture could not be read
    lost: Collection[int] = ()  # parts that are not there yet
    features: NDArray[np.float32] | None = None

    @property
    def by_class(self) -> bool:
        return self.dataset in ("imagenet-val", "imagenet-train")

    @property
    def table(self) -> RowTable:
        ids = tuple(f"{self.dataset}/{i}.png" for i in range(len(self.labels)))
        return RowTable(ids, ids, tuple(tuple(row) for row in self.labels), self.groups)


def write_source(run: Path, source: Source) -> None:
    table, folder = source.table, source_folder(run, source.dataset, source.rule)
    parts = cut(table, by_class=source.by_class)
    plan = SourcePlan(
        dataset=source.dataset,
        rule=source.rule,
        preprocessing={"rule": source.rule},
        cut="class" if source.by_class else "rows",
        complete=source.complete,
        differences=source.differences,
        parts=tuple((part.index, len(part.rows), part.fingerprint) for part in parts),
    )
    settle(plan, folder / SOURCE_FILE)
    for part in parts:
        if part.index not in source.lost:
            rows = list(part.rows)
            errors = [source.errors.get(i) for i in rows]
            outputs = np.asarray(source.outputs, np.float32)[rows]
            hashes = [hashlib.sha256(table.ids[i].encode()).hexdigest() for i in rows]
            columns = {source.column: outputs}
            if source.features is not None:
                columns["features"] = source.features[rows]
            write_part(folder, part, part_table(table, part, hashes, errors, columns))
    finish(folder)


def write_run(
    runs: Path,
    benchmarks: Sequence[str],
    sources: Sequence[Source],
    *,
    mode: str = "model",
    space: LabelSpace | None = None,
    heads: Mapping[str, HeadWeights] | None = None,
    failures: Mapping[str, str] | None = None,
    **plan: Any,
) -> Path:
    """The folder of one run; `plan` replaces fields of PLAN."""
    space = space or imagenet_1k()
    record = replace(PLAN, **{"label_space": label_space_hash(space), **plan})
    run = record.folder(runs)
    settle(record, run / PLAN_FILE)
    write_label_space(run, space)
    if heads:
        write_heads(run, heads)
    for source in sources:
        write_source(run, source)
    for name in benchmarks:
        failure = (failures or {}).get(name)
        write_json(run / "requests" / f"{name}.{mode}.json", {"benchmark": name, "mode": mode, "failure": failure})
    return run


def peaked(chosen: Sequence[int], *, width: int = 1000, height: float = 8.0) -> NDArray[np.float32]:
    """Logits of 0 with `height` at the chosen column of each row."""
    logits = np.zeros((len(chosen), width), np.float32)
    logits[np.arange(len(chosen)), list(chosen)] = height
    return logits


def plan_fields() -> set[str]:
    return set(asdict(PLAN))


def small_a(n: int = 20, **changes: Any) -> Source:
    labels = [[A[i % 200]] for i in range(n)]
    return Source("imagenet-a", labels, peaked([k for (k,) in labels]), **changes)


def scored(runs: Path, **options: Any) -> list[dict[str, Any]]:
    return score(runs, benchmarks(), **options)


def row(results: list[dict[str, Any]], metric: str, split: str | None = None) -> dict[str, Any]:
    found = [r for r in results if r["metric"] == metric and r["split"] == split]
    assert len(found) == 1
    return found[0]
