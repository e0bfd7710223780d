"""The headline numbers of one model in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .leaderboard import Result, is_whole, plain, variant
from .notes import chance_of


def verdict(rows: Sequence[Result], titles: Mapping[str, str]) -> str:
    """One sentence, without its subject, on a model from its results on all benchmarks; what failed is named.

    titles  benchmark -> how people call it.
    """
    right: list[str] = []
    clauses: list[str] = []
    failed: list[str] = []
    partial = all(_is_partial(r) for r in rows if r["value"] is not None)
    for benchmark in dict.fromkeys(str(r["benchmark"]) for r in rows if r["benchmark"]):
        title = titles.get(plain(benchmark), plain(benchmark)).replace("miniature", "the miniature")
        whole = {r["metric"]: r for r in rows if r["benchmark"] == benchmark and is_whole(r) and not variant(r)}
        headline = next((r for r in whole.values() if r["headline"] and r["value"] is not None), None)
        if headline is None:
            failed.append(title)
            continue
        part = " [of a part of the pictures]" if _is_partial(headline) and not partial else ""
        if headline["metric"] == "top1_accuracy":
            right.append(_accuracy(title, headline, whole.get("control_top1_accuracy")) + part)
        else:
            clauses.append(_clause(title, headline, whole.get("id_accuracy")) + part)
    if right:
        clauses.insert(0, f"gets {', '.join(right)} right")
    if clauses and partial:
        clauses.append("all on a part of the official pictures")
    if failed:
        clauses.append(f"has no result on {', '.join(failed)}")
    return "; ".join(clauses) or "could not be evaluated"


def _accuracy(title: str, row: Result, clean: Result | None) -> str:
    against = f" ({_share(clean['value'])} of clean ones)" if clean and clean["value"] is not None else ""
    return f"{_share(row['value'])} of the pictures of {title}{against}"


def _clause(title: str, row: Result, inside: Result | None) -> str:
    metric, value = row["metric"], row["value"]
    if metric == "aupr":
        chance = chance_of(row)
        known = [f"a guess: {_share(float(chance))}"] if chance else []
        known += (
            [f"known ones named right: {_share(inside['value'])}"] if inside and inside["value"] is not None else []
        )
        beside = f" ({'; '.join(known)})" if known else ""
        return f"spots pictures of unknown classes on {title} with an AUPR of {_share(value)}{beside}"
    if metric == "spurious_score":
        told = f"tells classes from their spurious features on {title} with a score of {value:.3f}"
        return f"{told}{_guess(row)}"
    return f"reaches {plain(metric)} {value:.4g} on {title}"


def _is_partial(row: Result) -> bool:
    return bool(row["subset"] or not row["complete"])


def _guess(row: Result) -> str:
    spurious = (row.get("details") or {}).get("n_spurious")
    return f" (1 is best, a guess about {(row['n'] - spurious) / row['n']:.2f})" if spurious else " (1 is best)"


def _share(value: float) -> str:
    return f"{100 * value:.1f}\u00a0%"
