"""Plots of Spurious ImageNet: the worst classes, and the published field before and after SpuFix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..labels import imagenet_1k_names
from . import style
from .evidence import Pairs, feature_of
from .plots_answers import named
from .published import published
from .style import LineKey, Plot, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORST = 12


def worst_classes(evidence: Mapping[LineKey, Pairs], shown: Sequence[Series]) -> Plot | None:
    """Average precision of the classes that are told worst from their spurious feature; None without any class."""
    table = {s.key: {c.class_index: c.average_precision for c in evidence[s.key].per_class} for s in shown}
    classes = sorted({k for scores in table.values() for k in scores})
    if not classes:
        return None
    mean = {k: float(np.mean([scores[k] for scores in table.values() if k in scores])) for k in classes}
    worst = sorted(classes, key=lambda k: (mean[k], k))[:_WORST]
    names, features = imagenet_1k_names(), feature_of()
    counts = [(c.n_validation, c.n_validation + c.n_spurious) for p in evidence.values() for c in p.per_class]
    chance = float(np.mean([own / both for own, both in counts]))
    title = {k: f"{names[k]} ← {features[k]}" if k in features else names[k] for k in worst}
    values = {
        title[k]: [(table[s.key][k], None) if k in table[s.key] else None for s in shown] for k in worst
    }  # fmt: skip
    return named(
        "worst-classes", "Worst classes", f"Lowest average precision: {'; '.join(title[k] for k in worst[:3])}.",
        f"The {len(worst)} of {len(classes)} classes with the lowest average precision (mean over the models shown), "
        "each with the feature that it is confused by. Dashed: a guess, the share of a class's pictures that "
        f"show it ({100 * chance:.0f} %).",
        values, shown, label="average precision", chance=chance,
    )  # fmt: skip


def field(ours: Mapping[LineKey, tuple[float, float | None]], shown: Sequence[Series]) -> Plot:
    """Spurious score against ImageNet accuracy over the published table, with an arrow to each model after SpuFix.

    ours  model -> (score, ImageNet accuracy or None where it was not evaluated).
    """
    arrows = _published_arrows()

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for (x0, y0), (x1, y1) in arrows:
            axes.annotate(
                "", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": style.MUTED, "lw": 0.8, "shrinkA": 0,
                                                    "shrinkB": 0, "mutation_scale": 6},
            )  # fmt: skip
        axes.plot([a[0][0] for a in arrows], [a[0][1] for a in arrows], "o", color=style.FIELD, markersize=4.5,
                  markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
        left, right = axes.get_xlim()
        for series in shown:
            score, accuracy = ours[series.key]
            if accuracy is None:
                axes.axhline(score, color=series.colour, linewidth=1, linestyle=series.dash)
            style.tagged(axes, left if accuracy is None else accuracy, score, series)
        axes.set(xlabel="ImageNet top-1 accuracy", ylabel="spurious score")
        axes.set_xlim(min(left, *axes.get_xlim()), max(right, *axes.get_xlim()))
        style.in_per_cent(axes.xaxis)
        style.key_below_tags(figure, shown)

    told = "; ".join(f"{s.name} {ours[s.key][0]:.3f}" for s in shown)
    total = len(published("spurious-imagenet", "spurious_score"))
    return style.draw(
        "field", "Score and accuracy",
        f"Spurious score against accuracy of {len(arrows)} published models. Ours: {told}.",
        f"Grey: the {len(arrows)} of {total} published models whose ImageNet accuracy is published too, under the "
        "paper's preparation of the pictures; an arrow leads to the same model after SpuFix. Numbered: "
        "ours; a line where no ImageNet accuracy was measured.",
        paint, height=3.6 + style.key_height(shown),
    )  # fmt: skip


def _published_arrows() -> list[tuple[tuple[float, float], tuple[float, float]]]:
    names = ("imagenet_top1_accuracy", "spurious_score", "imagenet_top1_accuracy_spufix", "spurious_score_spufix")
    columns = [{b.model: b.value for b in published("spurious-imagenet", name)} for name in names]
    models = sorted(set(columns[0]).intersection(*columns[1:]))
    return [((columns[0][m], columns[1][m]), (columns[2][m], columns[3][m])) for m in models]
