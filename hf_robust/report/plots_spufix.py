"""Plots of SpuFix: score against accuracy before and after, over the published field; the trade-off over strength."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import style
from .leaderboard import Result
from .published import published
from .spufix import OWN_ACCURACY, SCORE, Fixed
from .style import LineKey, Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Point = tuple[float, float | None]  # score, and ImageNet accuracy where it was evaluated
_STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def field(ours: Mapping[LineKey, Point], after: Mapping[LineKey, Point], shown: Sequence[Series]) -> Plot:
    """Spurious score against ImageNet accuracy over the published table, with an arrow to each model after SpuFix.

    ours, after  model -> (score, ImageNet accuracy or None where it was not evaluated), before and after SpuFix.
    """
    arrows = _published_arrows()

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for start, end in arrows:
            _arrow(axes, start, end, style.MUTED, 0.8)
        axes.plot([a[0][0] for a in arrows], [a[0][1] for a in arrows], "o", color=style.FIELD, markersize=4.5,
                  markeredgecolor="white", markeredgewidth=0.5)  # fmt: skip
        left, right = axes.get_xlim()
        for series in shown:
            score, accuracy = ours[series.key]
            at = left if accuracy is None else accuracy
            if accuracy is None:
                axes.axhline(score, color=series.colour, linewidth=1, linestyle=series.dash)
            if series.key in after:
                moved, clean = after[series.key]
                end = (at if clean is None else clean, moved)
                axes.plot(*end, "o", color="white", markeredgecolor=series.colour, markersize=7, markeredgewidth=1.8,
                          zorder=4, clip_on=False)  # fmt: skip
                _arrow(axes, (at, score), end, series.colour, 1.8)
            style.tagged(axes, at, score, series)
        axes.set(xlabel="ImageNet top-1 accuracy", ylabel="spurious score")
        axes.set_xlim(min(left, *axes.get_xlim()), max(right, *axes.get_xlim()))
        style.in_per_cent(axes.xaxis)
        style.key_below_tags(figure, shown)

    told = "; ".join(_told(s.name, ours[s.key][0], after.get(s.key)) for s in shown)
    total = len(published("spurious-imagenet", "spurious_score"))
    rings = ", a ring after SpuFix" if any(s.key in after for s in shown) else ""
    return style.draw(
        "field", "Score and accuracy",
        f"Spurious score against accuracy of {len(arrows)} published models. Ours: {told}.",
        f"Grey: the {len(arrows)} of {total} published models whose ImageNet accuracy is published too, under the "
        "paper's preparation of the pictures; an arrow leads to the same model after SpuFix. Numbered: "
        f"ours{rings}; a line where no ImageNet accuracy was measured.",
        paint, height=3.6 + style.key_height(shown),
    )  # fmt: skip


def _told(name: str, score: float, after: Point | None) -> str:
    return f"{name} {score:.3f}" + ("" if after is None else f", after SpuFix {after[0]:.3f}")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> None:
    look = {"arrowstyle": "->", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6 + width}
    axes.annotate("", end, start, arrowprops=look, annotation_clip=False)


def _published_arrows() -> list[tuple[tuple[float, float], tuple[float, float]]]:
    names = ("imagenet_top1_accuracy", "spurious_score", "imagenet_top1_accuracy_spufix", "spurious_score_spufix")
    columns = [{b.model: b.value for b in published("spurious-imagenet", name)} for name in names]
    models = sorted(set(columns[0]).intersection(*columns[1:]))
    return [((columns[0][m], columns[1][m]), (columns[2][m], columns[3][m])) for m in models]


def trade_off(fixed: Sequence[Fixed], shown: Sequence[Series]) -> Plot | None:
    """Score and accuracy over the strength of the correction, 0 the model as it is; None below three strengths.

    The accuracy is that on ImageNet where it was evaluated, else that on the benchmark's own clean pictures. Of several
    corrections of a model the one of most strengths is drawn, the first by name among equals.
    """
    clean = any(one.clean_after is not None for one in fixed)
    curves = {s.key: _curve(_one_file([one for one in fixed if one.key == s.key]), clean=clean) for s in shown}
    drawn = [s for s in shown if len(curves[s.key]) >= 3]
    if not drawn:
        return None

    def paint(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for series in drawn:
            for axes, side in zip(panels, (1, 2), strict=True):
                points = [(point[0], point[side]) for point in curves[series.key] if point[side] is not None]
                if points:
                    axes.plot(*zip(*points, strict=True), "o", linestyle=series.dash, color=series.colour, markersize=5,
                              markeredgecolor="white", markeredgewidth=0.5, clip_on=False)  # fmt: skip
        panels[0].set(ylabel="spurious score")
        if len(drawn) == 1 < len(shown):  # a single line has no key
            panels[0].set_title(drawn[0].label, color=drawn[0].colour)
        panels[1].set(ylabel="accuracy", xlabel="strength of the correction", xlim=(0, 1), xticks=_STRENGTHS)
        style.in_per_cent(panels[1].yaxis)
        style.key_below(figure, drawn)

    ends = "; ".join(
        f"{s.name} score {curves[s.key][0][1]:.3f} to {curves[s.key][-1][1]:.3f}{_accuracies(curves[s.key])}"
        for s in drawn
    )
    where = "on ImageNet validation" if clean else "on the validation pictures of the benchmark's classes"
    return style.draw(
        "trade-off", "What SpuFix gives and costs",
        f"Spurious score and accuracy over the correction's strength. {ends}.",
        f"From the model as it is (0) to the published correction (1). Accuracy: top-1 {where}. The axes show the "
        "range of the values, not 0 to 1: small steps look large.",
        paint, height=4.6 + style.key_height(drawn),
    )  # fmt: skip


def _accuracies(curve: Sequence[tuple[float, float, float | None]]) -> str:
    first, last = curve[0][2], curve[-1][2]
    return "" if first is None or last is None else f", accuracy {first:.1%} to {last:.1%}"


def _one_file(own: Sequence[Fixed]) -> list[Fixed]:
    files = sorted({one.file for one in own}, key=lambda file: (-sum(one.file == file for one in own), file))
    return [one for one in own if one.file == files[0]] if files else []


def _curve(own: Sequence[Fixed], *, clean: bool) -> list[tuple[float, float, float | None]]:
    """(strength, score, accuracy) from 0 on."""
    if not own:
        return []
    first = own[0].clean_before if clean else own[0].before.get(OWN_ACCURACY)
    found = {0.0: (own[0].before[SCORE], first)}
    for one in own:
        found[one.strength] = (one.after[SCORE], one.clean_after if clean else one.after.get(OWN_ACCURACY))
    points = [(strength, _value(score), _value(accuracy)) for strength, (score, accuracy) in sorted(found.items())]
    return [(strength, score, accuracy) for strength, score, accuracy in points if score is not None]


def _value(row: Result | None) -> float | None:
    return None if row is None else row["value"]
