"""Plots of an out-of-distribution benchmark: precision-recall, ROC, the scores of both halves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..metrics import curve
from . import style
from .evidence import Detected
from .style import LineKey, Plot, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 400


def precision_recall(evidence: Mapping[LineKey, Detected], shown: Sequence[Series]) -> Plot:
    """Precision against recall with out-of-distribution as the positive class, and the base rate."""
    rate = float(np.mean([evidence[s.key].is_ood.mean() for s in shown]))
    curves = {s.key: curve(evidence[s.key].scores, evidence[s.key].is_ood) for s in shown}

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for series in shown:
            counts = curves[series.key]
            tp, fp = counts.true_positives, counts.false_positives
            at = thinned(tp / tp[-1])
            axes.plot((tp / tp[-1])[at], (tp / (tp + fp))[at], color=series.colour, linestyle=series.dash,
                      drawstyle="steps-pre", linewidth=1.5)  # fmt: skip
        axes.axhline(rate, color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
        below = rate > 0.1
        axes.annotate(f"chance {rate:.1%}", (1, rate), (0, -3 if below else 3), textcoords="offset points", ha="right",
                      va="top" if below else "bottom", color=style.MUTED)  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="recall: outside pictures found", ylabel="precision")
        style.in_per_cent(axes.xaxis, axes.yaxis)
        style.key_below(figure, shown)

    areas = [f"{s.name} {curves[s.key].average_precision():.1%}" for s in shown]
    return style.draw(
        "precision-recall", "Precision and recall", f"Precision-recall curves, AUPR: {'; '.join(areas)}.",
        "Of the pictures that the score calls outside, how many are. The area, as average precision, is the headline "
        "AUPR; a guess has the base rate.",
        paint, height=3.4 + style.key_height(shown),
    )  # fmt: skip


def roc(evidence: Mapping[LineKey, Detected], shown: Sequence[Series]) -> Plot:
    """True against false positive rate, with the level at which FPR95 is read off."""
    curves = {s.key: curve(evidence[s.key].scores, evidence[s.key].is_ood) for s in shown}

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=style.MUTED, linewidth=1, linestyle=(0, (4, 3)))
        axes.axhline(0.95, color=style.MUTED, linewidth=0.8)
        axes.text(0.01, 0.95, "95 %", va="top", color=style.MUTED)
        for series in shown:
            tp, fp = curves[series.key].true_positives, curves[series.key].false_positives
            x, y = np.append(0, fp / fp[-1]), np.append(0, tp / tp[-1])
            at = thinned(x + y)
            axes.plot(x[at], y[at], color=series.colour, linestyle=series.dash)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="inside pictures called outside", ylabel="outside pictures found")
        style.in_per_cent(axes.xaxis, axes.yaxis)
        style.key_below(figure, shown)

    areas = [f"{s.name} {curves[s.key].area():.1%}" for s in shown]
    return style.draw(
        "roc", "Receiver operating characteristic", f"ROC curves, AUROC: {'; '.join(areas)}.",
        "The dashed diagonal is a guess. FPR95 is where a curve crosses the line at 95 %.",
        paint, height=3.4 + style.key_height(shown),
    )  # fmt: skip


def histograms(evidence: Mapping[LineKey, Detected], shown: Sequence[Series]) -> Plot:
    """How the anomaly scores of both halves lie, each half to the same area, a panel a model."""

    def paint(figure: Figure) -> None:
        edges = np.linspace(-1, 0, 26).tolist()
        for axes, series in zip(style.panels(figure, shown), shown, strict=True):
            own = evidence[series.key]
            for outside, colour in ((False, style.INSIDE), (True, style.OUTSIDE)):
                scores = own.scores[own.is_ood == outside]
                axes.hist(scores, edges, weights=np.full(len(scores), 1 / len(scores)), color=colour, alpha=0.3)
                axes.hist(scores, edges, weights=np.full(len(scores), 1 / len(scores)), color=colour, histtype="step",
                          linewidth=1.4, linestyle="--" if outside else "-")  # fmt: skip
            axes.set(xlim=(-1, 0), xticks=[-1, -0.5, 0])
            axes.grid(axis="x", visible=False)
            style.in_per_cent(axes.yaxis)
        style.label_panels(figure, "anomaly score", "pictures")
        _halves(figure)

    middles = [
        f"{s.name}: inside {np.median(own.scores[~own.is_ood]):.2f}, outside {np.median(own.scores[own.is_ood]):.2f}"
        for s in shown
        for own in [evidence[s.key]]
    ]
    return style.draw(
        "scores", "Scores of both halves", f"Histograms of the anomaly score. Medians: {'; '.join(middles)}.",
        "Minus the maximum softmax probability: the more the two halves overlap, the less the score can tell.",
        paint, height=style.panels_height(shown) + 0.3,
    )  # fmt: skip


def _halves(figure: Figure) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=style.INSIDE, alpha=0.6, label="inside"),
        Patch(facecolor=style.OUTSIDE, alpha=0.6, linestyle="--", edgecolor=style.OUTSIDE, label="outside"),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2, borderpad=0)


def thinned(along: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of at most some hundred points that lie evenly along a rising coordinate, both ends among them."""
    wanted = np.linspace(along[0], along[-1], _POINTS)
    return np.unique(np.append(np.searchsorted(along, wanted), [0, len(along) - 1])).clip(0, len(along) - 1)
