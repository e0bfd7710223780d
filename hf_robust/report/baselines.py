"""Published numbers that may stand beside ours: same benchmark, same metric, same preparation of the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .leaderboard import Result, line_key, marks
from .published import Baseline, published
from .style import LineKey

_NEAR = 2  # published models above and below each of ours
_WELL_KNOWN = frozenset(
    {
        "resnet50.a1_in1k", "vgg16.tv_in1k", "deit_small_patch16_224.fb_in1k", "convnext_base.fb_in1k",
        "vit_base_patch16_224.augreg_in21k_ft_in1k", "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k",
        "alexnet", "densenet121", "resnet152", "efficientnet-l2-noisystudent",
        "ResNet-50", "ResNet-152", "DeiT-S", "DeiT-B", "Res2Net-152",
        "resnet50", "convnext_large.fb_in22k_ft_in1k",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """One line of the ladder: one of ours (`key` is set) or a published number (`source` is set)."""

    name: str
    value: float
    key: LineKey | None = None
    interval: tuple[float, float] | None = None
    marks: str = ""
    source: str = ""
    note: str = ""


def comparable(row: Result) -> tuple[Baseline, ...]:
    """The published numbers of the metric and preprocessing of one of our results."""
    rules = (row["protocol"].get("rules") or {}).values()
    if row["preprocessing"] == "published" and rules and set(rules) == {"model"}:
        return ()  # the benchmark has no published rule, so "published" numbers were made under another one
    every = published(str(row["benchmark"]), str(row["metric"]))
    # the filter of ImageNet-A scores 0 by construction
    return tuple(b for b in every if b.preprocessing == row["preprocessing"] and b.value > 0)


def ladder(rows: Sequence[Result], names: dict[LineKey, str]) -> list[Rung]:
    """Our headline rows among their nearest published neighbours and a few well-known models, best first."""
    chosen: dict[tuple[str, int | None, str], Baseline] = {}
    for row in rows:
        known = sorted(comparable(row), key=lambda b: (b.value, b.model, b.size or 0))
        place = sum(b.value < row["value"] for b in known)
        near = known[max(0, place - _NEAR) : place + _NEAR]
        for baseline in [*near, *(b for b in known if b.model in _WELL_KNOWN)]:
            chosen[baseline.model, baseline.size, baseline.source] = baseline
    theirs = [Rung(_named(b), b.value, source=b.source, note=b.note) for b in chosen.values()]
    ours = [
        Rung(names[line_key(r)], r["value"], line_key(r), tuple(r["ci95"]) if r["ci95"] else None, marks(r))
        for r in rows
    ]
    return sorted([*ours, *theirs], key=lambda r: (-r.value, r.key is None, r.name)) if theirs else []


def standing(row: Result) -> str:
    """How one of our results stands among all published ones, in words; "" where none may be compared.

    A value of other pictures than the official ones claims no place among values of all of them.
    """
    known = comparable(row)
    if not known or not row["complete"] or row["subset"]:
        return ""
    below = sum(b.value < row["value"] for b in known)
    return f"above {below:,} of {len(known):,} published numbers"


def why_none(row: Result, *, has_published_rule: bool) -> str:
    """Why no published numbers stand beside a result; `has_published_rule`: the benchmark has one of its own."""
    every = published(str(row["benchmark"]), str(row["metric"]))
    if not every:
        return "We know of no published numbers of this metric on this benchmark."
    if row["preprocessing"] == "model" and has_published_rule:
        return (
            "Published numbers exist for another preparation of the pictures and do not stand beside these: "
            "evaluate with --preprocessing published to compare."
        )
    return "Published numbers exist only for another preparation of the pictures and do not stand beside these."


def _named(baseline: Baseline) -> str:
    return f"{baseline.model}, {baseline.size} px" if baseline.size else baseline.model
