"""ImageNet-A over the published field: against clean accuracy and against the size of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from . import style
from .published import Baseline, published
from .style import LineKey, Plot, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SOURCE = {"model": "timm", "published": "testbed"}
_SAME_WEIGHTS = {f"offline/efficientnet_lite{i}": f"tf_efficientnet_lite{i}.in1k" for i in range(3)}


def against_clean(
    ours: Mapping[LineKey, tuple[float, float]], shown: Sequence[Series], preprocessing: str
) -> Plot | None:
    """Accuracy on ImageNet-A against accuracy on clean pictures of its classes; None where no field is known.

    ours  model -> (clean accuracy, accuracy on ImageNet-A), all under `preprocessing`.
    """
    points = _pairs(preprocessing)
    own = [s for s in shown if s.key in ours]
    if not points or not own:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(*zip(*points, strict=True), "o", color=style.FIELD, markersize=2.6, alpha=0.6, markeredgewidth=0,
                  rasterized=True)  # fmt: skip
        for series in own:
            style.tagged(axes, *ours[series.key], series)
        axes.set(xlabel="clean pictures of the same classes", ylabel="ImageNet-A", ylim=(0, 1))
        style.in_per_cent(axes.xaxis, axes.yaxis)
        style.key_below_tags(figure, own)

    told = "; ".join(f"{s.name} {ours[s.key][0]:.1%} clean, {ours[s.key][1]:.1%} on ImageNet-A" for s in own)
    return style.draw(
        f"field-{preprocessing}", "Against clean accuracy",
        f"ImageNet-A accuracy against clean accuracy of {len(points)} published models. Ours: {told}.",
        f"Grey: {len(points):,} published models under {_whose(preprocessing)}. Numbered: ours, prepared the same way.",
        paint, height=3.6 + style.key_height(own),
    )  # fmt: skip


def against_size(ours: Mapping[LineKey, float], shown: Sequence[Series]) -> Plot | None:
    """Accuracy on ImageNet-A, own preprocessing, against parameters; None where ours is not evaluated so.

    ours  model -> accuracy. The size of ours is known for models of the published list; others are a line.
    """
    known = [b for b in published("imagenet-a", "top1_accuracy") if b.parameters]
    own = [s for s in shown if s.key in ours]
    if not known or not own:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([b.parameters or 0 for b in known], [b.value for b in known], "o", color=style.FIELD, markersize=2.6,
                  alpha=0.6, markeredgewidth=0, rasterized=True)  # fmt: skip
        axes.set_xscale("log")
        left = axes.get_xlim()
        for series in own:
            size, value = parameters_of(series.key[0], known), ours[series.key]
            if size is None:
                axes.axhline(value, color=series.colour, linewidth=1, linestyle=series.dash)
            style.tagged(axes, size or left[0], value, series)
        axes.set(xlabel="parameters", ylabel="ImageNet-A", ylim=(0, 1), xlim=left)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} M" if value < 1000 else f"{value / 1000:g} B")
        style.in_per_cent(axes.yaxis)
        style.key_below_tags(figure, own)

    told = "; ".join(f"{s.name} {ours[s.key]:.1%}" for s in own)
    return style.draw(
        "size", "Against the size of the model",
        f"ImageNet-A accuracy against parameters of {len(known)} published models. Ours: {told}.",
        f"Grey: {len(known):,} published models, each under its own preprocessing. Numbered: ours; a line where the "
        "number of parameters is not known.",
        paint, height=3.6 + style.key_height(own),
    )  # fmt: skip


def parameters_of(model: str, known: Sequence[Baseline]) -> float | None:
    """Parameters in millions of one of our models, from the published list; None where it is not in it."""
    name = _SAME_WEIGHTS.get(model, model.removeprefix("timm/"))
    return next((b.parameters for b in known if b.model == name or b.model.split(".")[0] == name), None)


def _pairs(preprocessing: str) -> list[tuple[float, float]]:
    """(clean, ImageNet-A) of the models that one source has both numbers of; the filter's 0 is left out."""
    source = _SOURCE.get(preprocessing)
    clean = {(b.model, b.size): b.value for b in published("imagenet-a", "control_top1_accuracy") if b.source == source}
    hard = [b for b in published("imagenet-a", "top1_accuracy") if b.source == source and b.value > 0]
    return sorted((clean[b.model, b.size], b.value) for b in hard if (b.model, b.size) in clean)


def _whose(preprocessing: str) -> str:
    return (
        "each model's own preprocessing (timm)" if preprocessing == "model" else "the paper's preprocessing (test bed)"
    )
