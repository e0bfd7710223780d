"""What SpuFix changed: each corrected value beside the one that it corrects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..benchmarks.miniatures import PREFIX as MINIATURE
from .leaderboard import Result, is_whole, line_key
from .style import LineKey

SCORE, AUROC, OWN_ACCURACY = "spurious_score", "spurious_auroc", "validation_top1_accuracy"
_SAME = ("weights", "limit", "seed", "dtype")  # of the plan: what a run and the run of its corrected model share


@dataclass(frozen=True)
class Fixed:
    """One model under one correction and strength.

    key     the line of the uncorrected model.   file  SHA-256 of the correction.
    before, after  metric -> result on one benchmark.
    clean_before, clean_after  ImageNet top-1 accuracy; None where it was not evaluated.
    """

    key: LineKey
    file: str
    strength: float
    before: Mapping[str, Result]
    after: Mapping[str, Result]
    clean_before: Result | None
    clean_after: Result | None


def fixed_of(benchmark: str, rows: Sequence[Result]) -> tuple[Fixed, ...]:
    """Every correction that `rows` hold of a spurious benchmark, by model, file and strength.

    rows  of all benchmarks: corrected values of stored features, and runs of a corrected model beside the run of the
          same weights without a correction. Where both are there, the stored features speak.
    """
    clean = f"{MINIATURE if benchmark.startswith(MINIATURE) else ''}imagenet-val"
    plain: dict[LineKey, dict[tuple[str, str], Result]] = {}
    corrected: dict[tuple[LineKey, str, float], dict[tuple[str, str], Result]] = {}
    for row in _of_runs_last(rows):
        if row["benchmark"] not in (benchmark, clean) or not is_whole(row) or not row["metric"] or row.get("ood_score"):
            continue
        place = (str(row["benchmark"]), str(row["metric"]))
        key, correction = _whose(row, rows)
        if key is not None and correction is None:
            plain.setdefault(key, {}).setdefault(place, row)
        elif key is not None and correction is not None:
            corrected.setdefault((key, *correction), {}).setdefault(place, row)
    found = []
    for (key, file, strength), after in sorted(corrected.items()):
        before = plain.get(key, {})
        if (benchmark, SCORE) in after and (benchmark, SCORE) in before:
            accuracy = (clean, "top1_accuracy")
            two = _of_benchmark(before, benchmark), _of_benchmark(after, benchmark)
            found.append(Fixed(key, file, strength, *two, before.get(accuracy), after.get(accuracy)))
    return tuple(found)


def _of_benchmark(found: Mapping[tuple[str, str], Result], benchmark: str) -> dict[str, Result]:
    return {metric: row for (name, metric), row in found.items() if name == benchmark}


def strongest(fixed: Sequence[Fixed]) -> Iterator[Fixed]:
    """Of each model the correction of largest strength with a value: what is drawn and compared as "after"."""
    best: dict[LineKey, Fixed] = {}
    for one in fixed:
        if one.after[SCORE]["value"] is not None and one.strength >= getattr(best.get(one.key), "strength", 0.0):
            best[one.key] = one
    yield from best.values()


def _of_runs_last(rows: Sequence[Result]) -> list[Result]:
    return sorted(rows, key=lambda row: _plan(row).get("spufix") is not None)


def _whose(row: Result, rows: Sequence[Result]) -> tuple[LineKey | None, tuple[str, float] | None]:
    """The line of the uncorrected model, and the correction (file, strength); no line where it has none."""
    plan = _plan(row)
    if plan.get("spufix") is None:
        own = row.get("spufix")
        return line_key(row), None if own is None else (str(own["sha256"]), float(own["strength"]))
    if row.get("spufix") is not None:  # a second correction, which was refused
        return None, None
    others = [
        other
        for other in rows
        if (other["model"], other["preprocessing"]) == (row["model"], row["preprocessing"])
        and _plan(other)
        and _plan(other).get("spufix") is None
        and all(_plan(other).get(name) == plan.get(name) for name in _SAME)
    ]
    key = min((line_key(other) for other in others), default=None)
    return key, (str(plan["spufix"]), float(plan.get("spufix_strength") or 1.0))


def _plan(row: Result) -> Mapping[str, Any]:
    plan = row.get("plan")
    return plan if isinstance(plan, Mapping) else {}
