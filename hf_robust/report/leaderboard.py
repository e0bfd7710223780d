"""The headline numbers of all models in one grid, with the reason for every hole: what the tables print."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..scoring.people import is_people

Result = Mapping[str, Any]

REQUIRED = (
    "model", "benchmark", "metric", "split", "value", "n", "ci95", "protocol", "preprocessing", "run", "complete",
    "subset", "headline", "n_failed", "reason", "notes",
)  # fmt: skip
# Read in this order where they occur; others follow by name.
METRIC_ORDER = (
    "top1_accuracy", "top1_accuracy_1000", "top5_accuracy", "control_top1_accuracy", "accuracy_drop", "aupr", "auroc",
    "fpr95", "id_accuracy", "spurious_score", "spurious_auroc", "spurious_joint_ap", "validation_top1_accuracy",
    "rms_calibration_error", "rms_calibration_error_released_code", "aurra", "vqa_accuracy", "vqa_answered",
    "vqa_accuracy_of_all", "vqa_accuracy_words", "vqa_answered_words", "vqa_accuracy_swapped",
    "vqa_accuracy_both_orders", "vqa_order_changed", "vqa_likelihood_accuracy", "vqa_likelihood_per_token",
    "vqa_likelihood_both_orders",
)  # fmt: skip
SPLIT_ORDER = ("background", "texture", "material")  # as the paper of ImageNet-D prints them
# A headline that means little without a second number, which then stands beside it.
COMPANIONS = {
    "top1_accuracy": "control_top1_accuracy", "aupr": "id_accuracy", "spurious_score": "spurious_auroc",
    "vqa_accuracy": "vqa_answered",
}  # fmt: skip

INCOMPLETE, SUBSET, FAILED_IMAGES = "†", "‡", "§"
NOT_EVALUATED = "not evaluated"


@dataclass(frozen=True)
class Cell:
    """One number of the leaderboard; `value` None is a hole whose reason is footnote number `footnote`.

    Without a footnote nothing is missing: people were not asked about that benchmark.
    """

    value: float | None
    interval: tuple[float, float] | None = None
    marks: str = ""
    footnote: int | None = None
    companion: float | None = None


@dataclass(frozen=True)
class Line:
    """One model under one preprocessing in one run, with a cell for each column; or people, who are no model."""

    model: str
    preprocessing: str
    run: str
    cells: tuple[Cell, ...]
    people: bool = False


@dataclass(frozen=True)
class Column:
    """One benchmark with the name of its headline metric and of the companion shown beside it."""

    benchmark: str
    metric: str
    companion: str | None


@dataclass(frozen=True)
class Footnote:
    """Why a cell is empty; `failed` tells a failure from what was never asked for."""

    text: str
    failed: bool


@dataclass(frozen=True)
class Leaderboard:
    """Lines and columns in name order, people below the models, and numbered footnotes (from 1)."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    footnotes: tuple[Footnote, ...]


def plain(text: object) -> str:
    """`text` on one line without control and invisible characters, which could rewrite what a reader sees."""
    joined = " ".join(str(text).split())
    return "".join("\ufffd" if unicodedata.category(c) in {"Cc", "Cf", "Cs"} else c for c in joined)


def number(value: float, metric: str) -> str:
    """A value as the detailed tables print it: per cent with two digits for proportions, else 0–1 with four."""
    return f"{100 * value:.2f}" if is_proportion(metric) else f"{value:.4f}"


def unit(metric: str) -> str:
    """The unit that `number` prints in."""
    return "% points" if metric.partition(" ")[0].endswith("_drop") else "%" if is_proportion(metric) else "0–1"


def is_proportion(metric: str) -> bool:
    """Whether a metric is a fraction of images, which tables show in per cent."""
    return "accuracy" in metric or metric.startswith(("fpr", "vqa_"))


def ordered(results: Iterable[Result]) -> list[Result]:
    """The results in one fixed order: benchmark, models, headline, metric, split, model, preprocessing, run; people."""
    return sorted(results, key=_order)


def _order(row: Result) -> tuple[Any, ...]:
    metric, split = str(row["metric"] or ""), str(row["split"] or "")
    benchmark = str(row["benchmark"] or "")
    place = (_place(metric, METRIC_ORDER), metric, variant(row), not is_whole(row), _place(split, SPLIT_ORDER), split)
    return (not benchmark, benchmark, is_people(row), not metric, not row["headline"], *place, *line_key(row))


def _place(name: str, known: tuple[str, ...]) -> int:
    return known.index(name) if name in known else len(known)


def metric_name(row: Result) -> str:
    """The metric, with what sets it apart from the protocol's own value in brackets."""
    other = variant(row)
    return f"{plain(row['metric'] or '')} ({plain(other)})" if other else plain(row["metric"] or "")


def variant(row: Result) -> str:
    """The anomaly score or the correction that a value has instead of the protocol's own; empty for the own one."""
    spufix = row.get("spufix")
    return f"SpuFix {spufix['strength']:g}" if spufix else str(row.get("ood_score") or "")


def is_whole(row: Result) -> bool:
    """Whether a result is of all pictures of its benchmark, not of one split."""
    return row["split"] in (None, "all")


def line_key(row: Result) -> tuple[str, str, str]:
    """What a line of the tables stands for: model, preprocessing, run."""
    return str(row["model"]), str(row["preprocessing"] or ""), str(row["run"] or "")


def line_names(rows: Iterable[Result]) -> dict[tuple[str, str, str], str]:
    """A name for each line: the model, and of preprocessing and run what tells it from another line of that model."""
    keys = sorted({line_key(row) for row in rows})
    names = {}
    for key in keys:
        others = [other for other in keys if other[0] == key[0] and other != key]
        rule = f"{key[1]} preprocessing" if key[1] and any(other[1] != key[1] for other in others) else ""
        run = key[2] if any(other[1] == key[1] for other in others) else ""
        names[key] = ", ".join(plain(part) for part in (key[0], rule, run) if part)
    return names


def leaderboard(results: Sequence[Result]) -> Leaderboard:
    """The grid of headline values over all models and benchmarks of `results`."""
    rows = [row for row in ordered(results) if not is_people(row)]
    columns = tuple(column_of(name, rows) for name in sorted({str(r["benchmark"]) for r in rows if r["benchmark"]}))
    reasons: dict[Footnote, int] = {}
    lines = []
    for key in sorted({line_key(r) for r in rows}):
        own = [r for r in rows if line_key(r) == key]
        lines.append(Line(*key, tuple(_cell(column, own, reasons) for column in columns)))
    people = [row for row in ordered(results) if is_people(row)]
    for key in dict.fromkeys(line_key(r) for r in people):
        own = [r for r in people if line_key(r) == key]
        lines.append(Line(*key, tuple(_people_cell(column, own) for column in columns), people=True))
    return Leaderboard(columns, tuple(lines), tuple(reasons))


def column_of(benchmark: str, rows: Sequence[Result]) -> Column:
    """The headline metric of a benchmark, with the companion that `rows` hold for it."""
    headlines = [r for r in rows if r["benchmark"] == benchmark and r["headline"] and r["metric"]]
    metric = " / ".join(dict.fromkeys(str(r["metric"]) for r in headlines))
    companion = COMPANIONS.get(metric)
    present = any(r["benchmark"] == benchmark and r["metric"] == companion for r in rows)
    return Column(benchmark, metric, companion if present else None)


def _cell(column: Column, own: Sequence[Result], reasons: dict[Footnote, int]) -> Cell:
    rows = [r for r in own if r["benchmark"] == column.benchmark]
    whole = [r for r in rows if is_whole(r)]
    found = next((r for r in whole if r["headline"] and r["value"] is not None), None)
    if found is None:
        return Cell(None, footnote=reasons.setdefault(_why(rows, own), len(reasons) + 1))
    beside = (r["value"] for r in whole if column.companion and r["metric"] == column.companion)
    return Cell(
        value=found["value"],
        interval=_ends(found),
        marks=marks(found),
        companion=next(beside, None),
    )


def _people_cell(column: Column, own: Sequence[Result]) -> Cell:
    found = next((r for r in own if r["benchmark"] == column.benchmark), None)
    return Cell(None) if found is None else Cell(found["value"], _ends(found), marks(found))


def _ends(row: Result) -> tuple[float, float] | None:
    return (row["ci95"][0], row["ci95"][1]) if row["ci95"] else None


def _why(rows: Sequence[Result], own: Sequence[Result]) -> Footnote:
    failures = [r for r in rows if r["metric"] is None or r["headline"]] or [r for r in own if not r["benchmark"]]
    if not failures:
        return Footnote(NOT_EVALUATED, failed=False)
    row = next((r for r in failures if r["metric"] is None), failures[0])
    return Footnote(plain(f"{row['model']}: {row['reason'] or 'failed without a reason'}"), failed=True)


def marks(row: Result) -> str:
    """The marks of a result: † incomplete, ‡ subset, § with images that could not be read."""
    pairs = ((INCOMPLETE, not row["complete"]), (SUBSET, row["subset"]), (FAILED_IMAGES, row["n_failed"]))
    return "".join(mark for mark, present in pairs if present)
