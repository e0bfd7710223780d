"""One look for every plot: sizes that stay readable on a phone, colours that colour-blind readers can tell apart."""

from __future__ import annotations

import atexit
import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .leaderboard import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LineKey = tuple[str, str, str]

FEATURED = 6  # models that a plot can tell apart
_WIDTH = 360 / 72  # inches: 360 points, about the width of a phone, so that a font of 11.5 stays above 11 px there
_FONT = 11.5
_LONGEST = 42  # characters of a model's name below a plot of that width

INK, MUTED, RULE, FIELD = "#1d1f23", "#555b64", "#d5d8dd", "#9aa3ae"
INSIDE, OUTSIDE = "#0072B2", "#D55E00"
_COLOURS = ("#0072B2", "#D55E00", "#00795A", "#A3457C", "#3a3a3a", "#8A6D00")  # after Okabe and Ito, darkened for white
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 1)), (0, (9, 2, 2, 2)))

_LOOK: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _FONT,
    "axes.titlesize": _FONT,
    "axes.titlelocation": "left",
    "axes.labelsize": _FONT,
    "xtick.labelsize": _FONT,
    "ytick.labelsize": _FONT,
    "legend.fontsize": _FONT,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a model may be called $x$
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hf-robust",
}


@dataclass(frozen=True)
class Series:
    """One model as every plot and table shows it: `number` is its identity on the page, not its rank."""

    key: LineKey
    number: int
    name: str
    colour: str
    dash: Any

    @property
    def label(self) -> str:
        """The number and a name that fits below a plot."""
        return f"{self.number}  {shortened(self.name, _LONGEST)}"


@dataclass(frozen=True)
class Plot:
    """A drawn plot, in both formats, with what it shows in words."""

    name: str
    title: str
    alt: str
    caption: str
    svg: bytes
    png: bytes


def series_of(names: dict[LineKey, str], featured: Sequence[LineKey]) -> tuple[Series, ...]:
    """The models that plots show, in the order of `names`, each with a colour and a dash of its own."""
    numbered = {key: number for number, key in enumerate(names, 1)}
    shown = [key for key in names if key in featured][:FEATURED]
    return tuple(Series(k, numbered[k], names[k], _COLOURS[i], _DASHES[i]) for i, k in enumerate(shown))


def shortened(name: str, longest: int) -> str:
    """`name` with its middle left out where it is longer than `longest` characters.

    >>> shortened("abcdefghij", 7)
    'abc…hij'
    """
    text = plain(name)
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - half]}…{text[-half:]}"


def draw(
    name: str, title: str, alt: str, caption: str, paint: Callable[[Figure], None], *, height: float = 3.4
) -> Plot:
    """The plot that `paint` draws on an empty figure `height` inches high; equal input gives equal bytes."""
    with _look() as figures:
        figure = figures(figsize=(_WIDTH, height), layout="constrained")
        paint(figure)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", dpi=200, metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return Plot(name, title, alt, caption, svg.getvalue(), png.getvalue())


def _keep_cache_here() -> None:
    """Lets matplotlib write its font cache into a temporary folder of this process, unless the user named one."""
    if "MPLCONFIGDIR" not in os.environ and "matplotlib" not in sys.modules:
        folder = tempfile.mkdtemp(prefix="hf-robust-matplotlib-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["MPLCONFIGDIR"] = folder


@contextmanager
def _look() -> Iterator[Any]:
    _keep_cache_here()
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('the plots of the report need matplotlib: pip install "hf-robust[report]"') from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a user's own settings must not change the page
        look: Any = matplotlib.rcParams
        look.update(_LOOK)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in scripts that the font lacks
        yield Figure


def key_below(figure: Figure, shown: Sequence[Series]) -> None:
    """Which line is which model, below the plot; nothing where there is only one."""
    from matplotlib.lines import Line2D

    if len(shown) > 1:
        handles = [Line2D([], [], color=s.colour, linestyle=s.dash, label=s.label) for s in shown]
        figure.legend(handles=handles, loc="outside lower left", handlelength=2.4, labelspacing=0.25, borderpad=0)


def tagged(axes: Axes, x: float, y: float, series: Series) -> None:
    """A point with the number of its model in it."""
    axes.plot([x], [y], "o", color=series.colour, markersize=14, markeredgecolor="white", zorder=5, clip_on=False)
    axes.annotate(
        str(series.number), (x, y), ha="center", va="center_baseline", color="white", weight="bold", zorder=6,
        annotation_clip=False,
    )  # fmt: skip


def key_below_tags(figure: Figure, shown: Sequence[Series]) -> None:
    """Which number is which model, below the plot."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=s.colour, marker="o", linestyle="", markersize=8, label=s.label) for s in shown]
    if len(shown) > 1:
        figure.legend(handles=handles, loc="outside lower left", handlelength=1, labelspacing=0.25, borderpad=0)


def key_height(shown: Sequence[Series]) -> float:
    """Inches that the key below a plot takes."""
    return 0.23 * len(shown) if len(shown) > 1 else 0.0


def in_per_cent(*axes_sides: Any) -> None:
    """Ticks of fractions as per cent."""
    from matplotlib.ticker import FuncFormatter

    for side in axes_sides:
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.10g} %"))


def panels(figure: Figure, shown: Sequence[Series]) -> list[Axes]:
    """Small panels, two a row, one a model, under its number and name; unused ones are left out."""
    if len(shown) == 1:
        return [figure.subplots()]
    grid = figure.subplots((len(shown) + 1) // 2, 2, sharex=True, sharey=True, squeeze=False).flatten()
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    for place, (axes, series) in enumerate(zip(grid, shown, strict=False)):
        if place + 2 >= len(shown):  # nothing below it
            axes.tick_params(labelbottom=True)
        axes.set_title(f"{series.number}  {shortened(series.name, 17)}", color=series.colour)
    return list(grid[: len(shown)])


def label_panels(figure: Figure, x: str, y: str) -> None:
    """Axis names at the outer panels only."""
    shown = [axes for axes in figure.axes if axes.axison]
    for axes in shown[-2:]:
        axes.set_xlabel(x)
    for axes in shown[::2]:
        axes.set_ylabel(y)


def panels_height(shown: Sequence[Series]) -> float:
    """Inches for `panels`."""
    return 3.4 if len(shown) == 1 else 0.6 + 2.0 * ((len(shown) + 1) // 2)
