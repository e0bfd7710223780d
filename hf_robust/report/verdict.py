"""The headline numbers of one model in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from .leaderboard import Result, is_whole, plain
from .notes import chance_of

_MINIATURE = "mini-"


def verdict(rows: Sequence[Result]) -> str:
    """One sentence on a model from its results on all benchmarks, its failures named."""
    clauses, failed = [], []
    for benchmark in dict.fromkeys(str(r["benchmark"]) for r in rows if r["benchmark"]):
        whole = {r["metric"]: r for r in rows if r["benchmark"] == benchmark and is_whole(r)}
        headline = next((r for r in whole.values() if r["headline"] and r["value"] is not None), None)
        if headline is None:
            failed.append(plain(benchmark))
        else:
            clauses.append(_clause(benchmark, headline, whole))
    if failed:
        clauses.append(f"has no result on {', '.join(failed)}")
    if not clauses:
        return "could not be evaluated"
    return "; ".join(clauses)


def _clause(benchmark: str, row: Result, whole: dict[str | None, Result]) -> str:
    name, metric, value = plain(benchmark), row["metric"], row["value"]
    short = "" if row["complete"] and not row["subset"] else ", of a part of the pictures"
    if metric == "top1_accuracy":
        clean = whole.get("control_top1_accuracy")
        against = f", against {clean['value']:.1%} on clean ones" if clean and clean["value"] is not None else ""
        return f"gets {value:.1%} of the pictures of {name} right{against}{short}".replace("%", " %")
    if metric == "aupr":
        inside = whole.get("id_accuracy")
        right = f" while {inside['value']:.1%} of the known ones are named right" if inside and inside["value"] else ""
        told = f"finds pictures of no known class ({name}) with an AUPR of {value:.1%}{_chance(row)}{right}"
        return f"{told}{short}".replace("%", " %")
    if metric == "spurious_score":
        what = "tells classes from their spurious features" if name.startswith((_MINIATURE, "spurious")) else name
        return f"{what} with a score of {value:.3f} of 1 ({name}{_guess(row)}){short}"
    return f"reaches {plain(metric)} {value:.4g} on {name}{short}"


def _chance(row: Result) -> str:
    chance = chance_of(row)
    return f" (a guess has {float(chance):.1%})" if chance else ""


def _guess(row: Result) -> str:
    details = row.get("details") or {}
    if not details.get("n_spurious"):
        return ""
    return f"; a guess has about {(row['n'] - details['n_spurious']) / row['n']:.2f}"
