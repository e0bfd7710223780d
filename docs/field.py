"""Draws docs/imagenet-a-field.svg: published ImageNet-A accuracy against clean accuracy on the same 200 classes.

    python docs/field.py [FILE]

Needs the report extra. The same input gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hf_robust.report import published

TARGET = Path(__file__).with_name("imagenet-a-field.svg")
NAMED = {  # model, size: label, where it stands from its point (in points)
    ("tf_efficientnet_lite0.in1k", 224): ("EfficientNet-Lite0", (-12, 34), "right"),
    ("resnet50.a1_in1k", 288): ("ResNet-50 (A1, 288 px)", (-16, 40), "right"),
}
BLUE, RED, GREY = "#3b6ea8", "#c0392b", "#555555"


def points() -> dict[tuple[str, int | None], tuple[float, float]]:
    """(model, size) -> (clean accuracy, ImageNet-A accuracy) in per cent, of every model that timm lists with both."""
    rows = [b for b in published("imagenet-a") if b.source == "timm" and b.preprocessing == "model"]
    hard = {(b.model, b.size): 100 * b.value for b in rows if b.metric == "top1_accuracy"}
    clean = {(b.model, b.size): 100 * b.value for b in rows if b.metric == "control_top1_accuracy"}
    return {key: (clean[key], hard[key]) for key in sorted(hard, key=str) if key in clean}


def draw(target: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "imagenet-a-field", "svg.fonttype": "path", "font.size": 15})
    from matplotlib import pyplot

    found = points()
    figure, axes = pyplot.subplots(figsize=(7.2, 5.6), layout="constrained")
    figure.patch.set_facecolor("white")
    clean, hard = zip(*found.values(), strict=True)
    axes.scatter(clean, hard, s=10, color=BLUE, alpha=0.35, linewidths=0, rasterized=True)
    best = max(found, key=lambda key: found[key][1])
    for key, (label, offset, side) in {**NAMED, best: (f"best: {nice(best[0])}", (-18, -6), "right")}.items():
        _name(axes, found[key], f"{label}\n{found[key][0]:.0f} % → {found[key][1]:.0f} %", offset, side)
    axes.set(xlim=(80, 100), ylim=(-3, 100), xticks=range(80, 101, 5))
    axes.set_xlabel("clean accuracy, same 200 classes (%)", color=GREY)
    axes.set_ylabel("ImageNet-A accuracy (%)", color=GREY)
    axes.set_title(_sentence(found), fontsize=16, loc="left", weight="bold")
    axes.tick_params(colors=GREY, length=0)
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(
        target, format=target.suffix[1:], dpi=150, metadata={"Date": None} if target.suffix == ".svg" else {}
    )
    pyplot.close(figure)


def nice(model: str) -> str:
    """A timm name for people."""
    return "EVA-02 L" if model.startswith("eva02_large") else model.partition(".")[0]


def _sentence(found: dict[tuple[str, int | None], tuple[float, float]]) -> str:
    band = [hard for clean, hard in found.values() if 94 <= clean < 95]
    return f"Models with 94 to 95 % on clean photos\nget {min(band):.0f} to {max(band):.0f} % on ImageNet-A"


def _name(axes: Any, point: tuple[float, float], text: str, offset: tuple[int, int], side: str) -> None:
    axes.plot(*point, "o", color=RED, markersize=7, markeredgecolor="white")
    arrow = {"arrowstyle": "-", "color": RED, "linewidth": 1}
    axes.annotate(
        text, point, xytext=offset, textcoords="offset points", ha=side, va="center", color=RED, arrowprops=arrow
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
