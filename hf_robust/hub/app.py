"""The page of a metric's Space: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..metrics.columns import class_indices, same_class

if TYPE_CHECKING:
    import gradio as gr
    from matplotlib.figure import Figure

Column = NDArray[np.float64]
LARGEST_FILE = "64mb"


@dataclass(frozen=True)
class Table:
    """The input of a page: a CSV file with these columns of numbers.

    example    a few rows, blanks between them.
    arguments  the columns, float64 (N,), in this order -> what `compute` and `curve` of a page take.
    """

    columns: tuple[str, ...]
    example: str
    arguments: Callable[..., tuple[Any, ...]] = lambda *columns: columns

    def csv(self) -> str:
        """The example with its heading, one row a line."""
        return "\n".join([",".join(self.columns), *self.example.split()])


DETECTION = Table(
    ("score", "is_ood"),
    "0.97,1 0.91,0 0.88,1 0.83,1 0.74,0 0.66,1 0.52,0 0.45,0 0.37,0 0.21,1 0.14,0 0.05,0",
)
ANSWERS = Table(
    ("prediction", "reference", "confidence"),
    "3,3,0.99 8,8,0.97 1,1,0.95 5,5,0.92 2,7,0.9 4,4,0.86 9,9,0.81 6,1,0.77 "
    "3,3,0.7 8,2,0.64 0,0,0.6 7,5,0.55 1,9,0.48 4,4,0.41 5,0,0.36 2,6,0.3",
    lambda prediction, reference, confidence: (confidence, same_class(prediction, reference)),
)
PAIRS = Table(
    ("probability", "class_index", "is_spurious"),
    "0.93,7,0 0.81,7,0 0.64,7,0 0.88,7,1 0.35,7,1 0.12,7,1 0.9,94,0 0.77,94,0 0.58,94,0 "
    "0.31,94,1 0.22,94,1 0.05,94,1 0.85,400,0 0.42,400,0 0.28,400,0 0.66,400,1 0.51,400,1 0.19,400,1",
    lambda probability, class_index, is_spurious: (
        probability,
        class_indices(class_index, "class_index"),
        is_spurious,
    ),
)


@dataclass(frozen=True)
class Option:
    """An option of `compute` that the reader sets: a tick for a bool, a whole number for an int, a slider for a float.

    name    its name as an argument of `compute` and `curve`.
    lowest  of a number, like `highest`, which an int may lack.
    """

    name: str
    label: str
    value: float
    lowest: float = 0.0
    highest: float | None = None


@dataclass(frozen=True)
class Page:
    """What one metric's page shows.

    card     the README.md beside the page: its heading, first paragraph and formula stand above the table.
    result   what the number is called.
    compute  (*arguments of the table, **options) -> the number.
    curve    (figure, *arguments of the table, **options) draws what the number summarises.
    """

    card: Path
    result: str
    table: Table
    compute: Callable[..., float]
    curve: Callable[..., None]
    options: tuple[Option, ...] = ()

    def about(self) -> str:
        """The card down to its formula, without the front matter."""
        return re.split(r"^---\n|^## Inputs$", self.card.read_text(encoding="utf-8"), flags=re.M)[2].strip()

    def title(self) -> str:
        """The heading of the card."""
        return self.about().splitlines()[0].removeprefix("# ")


def read(table: Table, text: str, path: str | None = None) -> list[Column]:
    """The columns of the uploaded file, or of the pasted text where there is none; ValueError says what is missing."""
    import pandas as pd

    found = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in table.columns if name not in found]
    if missing:
        wanted = ", ".join(table.columns)
        raise ValueError(f"expected the columns {wanted} in the first line, got none named {missing[0]!r}")
    columns = []
    for name in table.columns:
        numbers = pd.to_numeric(found[name], errors="coerce").to_numpy(dtype=np.float64)
        wrong = np.flatnonzero(np.isnan(numbers))
        if wrong.size:
            cell = found[name].iloc[wrong[0]]
            got = "an empty cell" if pd.isna(cell) else repr(cell)
            raise ValueError(f"expected numbers in the column {name!r}, got {got} in row {wrong[0] + 1}")
        columns.append(numbers)
    return columns


def score(page: Page, text: str, path: str | None = None, *values: float) -> tuple[str, Figure]:
    """The number as Markdown, and its curve; `values` are those of the page's options, in order."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('the page of a metric needs matplotlib: pip install "hf-robust[report]"') from error
    options = {o.name: _checked(o, value) for o, value in zip(page.options, values, strict=True)}
    columns = read(page.table, text, path)
    arguments = page.table.arguments(*columns)
    value = page.compute(*arguments, **options)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    page.curve(figure, *arguments, **options)
    return f"## {page.result} {value:.4f}\n{len(columns[0]):,} rows", figure


def _checked(option: Option, value: float | None) -> float:
    if value is None:
        raise ValueError(f"expected a number for {option.label!r}, got an empty box")
    return type(option.value)(value)


def build(page: Page) -> gr.Blocks:
    """The page as gradio shows it; ImportError names what to install. `build(page).launch()` serves it."""
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError('the page of a metric needs gradio: pip install "hf-robust[review]"') from error

    def compute(text: str, path: str | None, *values: float) -> tuple[str, Figure | None]:
        try:
            return score(page, text, path, *values)
        except (TypeError, ValueError) as error:  # in place of the number, so that none of an earlier table stays
            return f"### No number\n{error}", None

    columns = ", ".join(page.table.columns)
    with gr.Blocks(title=page.title()) as blocks:
        gr.Markdown(page.about())
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(page.table.csv(), label=f"CSV with the columns {columns}", lines=10, max_lines=10)
                path = gr.File(label="or a CSV file", file_types=[".csv"], type="filepath", height=120)
                inputs = [text, path, *(_component(option) for option in page.options)]
                button = gr.Button("Compute", variant="primary")
            with gr.Column():
                outputs = [gr.Markdown(), gr.Plot(show_label=False)]
        button.click(compute, inputs, outputs, api_name="compute")
        blocks.load(compute, inputs, outputs, api_name=False)
    return blocks


def _component(option: Option) -> gr.components.Component:
    import gradio as gr

    if isinstance(option.value, bool):
        return gr.Checkbox(option.value, label=option.label)
    if isinstance(option.value, int):
        return gr.Number(option.value, label=option.label, precision=0, minimum=option.lowest, maximum=option.highest)
    return gr.Slider(option.lowest, option.highest or 1.0, option.value, step=0.01, label=option.label)


def serve(page: Page) -> None:
    """Show the page in the browser, as the Space does; returns when the server stops."""
    build(page).launch(max_file_size=LARGEST_FILE)
