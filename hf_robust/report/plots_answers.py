"""Plots of a labelled benchmark: reliability, response rate, splits, and what is named (categories, classes)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..metrics import adaptive_bins, response_rate_accuracy
from . import style
from .evidence import Answers
from .leaderboard import Result, line_key, variant
from .style import LineKey, Plot, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 400  # of a curve: more cannot be seen


def reliability(evidence: Mapping[LineKey, Answers], shown: Sequence[Series]) -> Plot:
    """Accuracy against confidence in adaptive bins of 100 pictures, a panel a model."""

    def paint(figure: Figure) -> None:
        axes_of = style.panels(figure, shown)
        for axes, series in zip(axes_of, shown, strict=True):
            bins = adaptive_bins(evidence[series.key].confidence, evidence[series.key].correct)
            axes.plot([0, 1], [0, 1], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
            many = len(bins.size) > 120
            if not many:
                axes.vlines(bins.confidence, bins.accuracy, bins.confidence, color=series.colour, alpha=0.25)
            axes.plot(bins.confidence, bins.accuracy, "o", color=series.colour, markersize=1.8 if many else 3.5)
            axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
            style.in_per_cent(axes.xaxis, axes.yaxis)
        style.label_panels(figure, "confidence", "accuracy")

    gaps = [
        f"{s.name}: mean confidence {own.confidence.mean():.0%}, accuracy {own.correct.mean():.0%}"
        for s in shown
        for own in [evidence[s.key]]
    ]
    return style.draw(
        "reliability", "Is confidence honest?", f"Reliability diagram. {'; '.join(gaps)}.",
        "Each point is a bin of 100 pictures of similar confidence (fewer pictures make one bin). On the dashed line "
        "confidence equals accuracy; below it the model is overconfident.",
        paint, height=style.panels_height(shown),
    )  # fmt: skip


def response_rate(evidence: Mapping[LineKey, Answers], shown: Sequence[Series]) -> Plot:
    """Accuracy on the most confident fraction of the pictures, against that fraction."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for series in shown:
            accuracy = response_rate_accuracy(evidence[series.key].confidence, evidence[series.key].correct)
            n = len(accuracy)
            at = np.unique(np.linspace(max(0, min(n - 1, n // 100)), n - 1, _POINTS).round().astype(int))
            axes.plot((at + 1) / n, accuracy[at], color=series.colour, linestyle=series.dash)
        axes.set(
            xlim=(0, 1), ylim=(0, None), xlabel="answered, most confident first", ylabel="accuracy of the answered"
        )
        axes.set_ylim(0, min(1.0, axes.get_ylim()[1]))
        style.in_per_cent(axes.xaxis, axes.yaxis)
        style.key_below(figure, shown)

    ends = [f"{s.name} {evidence[s.key].correct.mean():.1%}" for s in shown]
    return style.draw(
        "response-rate", "What if it may abstain?",
        f"Accuracy against response rate. When all are answered: {'; '.join(ends)}.",
        "A useful confidence puts its errors last: the curve starts high and falls to the accuracy on all pictures. "
        "Its mean is AURRA. The first hundredth is left out.",
        paint, height=3.4 + style.key_height(shown),
    )  # fmt: skip


def splits(rows: Sequence[Result], shown: Sequence[Series]) -> Plot | None:
    """Accuracy with its interval on each split and on the clean control; None where there are no splits."""
    wanted = {s.key: s for s in shown}
    own = [r for r in rows if line_key(r) in wanted and r["value"] is not None and not variant(r)]
    names = list(dict.fromkeys(str(r["split"]) for r in own if r["metric"] == "top1_accuracy" and r["split"]))
    if len(names) < 2:
        return None
    table = {n: {line_key(r): r for r in own if r["metric"] == "top1_accuracy" and r["split"] == n} for n in names}
    control = {line_key(r): r for r in own if r["metric"] == "control_top1_accuracy"}
    if control:
        table = {"clean control": control, **table}
    table = {"all pictures" if n == "all" else n: found for n, found in table.items()}
    values = {n: [(found[s.key]["value"], found[s.key]["ci95"]) if s.key in found else None for s in shown]
              for n, found in table.items()}  # fmt: skip
    told = [f"{n}: " + ", ".join(f"{s.name} {v[0]:.1%}" for s, v in zip(shown, values[n], strict=True) if v)
            for n in values]  # fmt: skip
    return named(
        "splits", "By what was changed", f"Top-1 accuracy by split. {'; '.join(told)}.",
        "Top-1 accuracy with its 95 % interval; the control is clean pictures of the same classes.",
        values, shown,
    )  # fmt: skip


def categories(evidence: Mapping[LineKey, Answers], shown: Sequence[Series]) -> Plot | None:
    """Accuracy on the worst and the best categories; None where the benchmark has none."""
    every = sorted({name for s in shown for name in evidence[s.key].groups})
    if len(every) < 2:
        return None
    rate = {name: [_rate(evidence[s.key].groups.get(name)) for s in shown] for name in every}
    order = sorted(every, key=lambda name: (np.mean([v for v in rate[name] if v is not None]), name))
    chosen = order if len(order) <= 15 else [*order[:10], *order[-5:]]
    cut = f"the ten worst and the five best of {len(order)} categories" if len(order) > 15 else "all categories"
    values = {name: [None if v is None else (v, None) for v in rate[name]] for name in chosen}
    return named(
        "categories", "By category", f"Top-1 accuracy by category: worst {', '.join(order[:3])}; best {order[-1]}.",
        f"Top-1 accuracy on {cut}, by the mean over the models shown, worst first.", values, shown,
    )  # fmt: skip


def _rate(count: tuple[int, int] | None) -> float | None:
    return count[0] / count[1] if count and count[1] else None


def named(
    name: str,
    title: str,
    alt: str,
    caption: str,
    values: Mapping[str, Sequence[tuple[float, Sequence[float] | None] | None]],
    shown: Sequence[Series],
    *,
    label: str = "top-1 accuracy",
    chance: float | None = None,
) -> Plot:
    """A track a name, with the value of each model on it; names stand above their track, so that long ones fit.

    values  name -> for each of `shown` (value, interval or None), or None where there is none.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (text, found) in enumerate(values.items()):
            y = -float(place)
            axes.plot([0, 1], [y, y], color=style.RULE, linewidth=5, solid_capstyle="butt", zorder=1)
            axes.text(0, y + 0.27, style.shortened(text, 58), va="bottom")
            for i, (series, pair) in enumerate(zip(shown, found, strict=True)):
                if pair is not None:
                    height = y + 0.07 * (i - (len(shown) - 1) / 2)
                    if pair[1] is not None:
                        axes.plot(pair[1], [height, height], color=series.colour, linewidth=1.6, zorder=3)
                    axes.plot([pair[0]], [height], "o", color=series.colour, markersize=6, zorder=4, clip_on=False,
                              markeredgecolor="white", markeredgewidth=0.6)  # fmt: skip
        if chance is not None:
            axes.axvline(chance, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlim=(0, 1), ylim=(-len(values) + 0.6, 0.9), yticks=[], xlabel=label)
        axes.spines["left"].set_visible(False)
        style.in_per_cent(axes.xaxis)
        style.key_below_tags(figure, shown)

    height = 0.75 + 0.47 * len(values) + style.key_height(shown)
    return style.draw(name, title, alt, caption, paint, height=height)
