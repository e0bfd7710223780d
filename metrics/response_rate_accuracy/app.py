"""The page of the metric: paste or upload a CSV file, see the number, a plot and the formula."""

from __future__ import annotations

import io
import math

import pandas as pd
from matplotlib.figure import Figure

from hf_robust.metrics import response_rate_accuracy
from hf_robust.metrics.columns import same_class

COLUMNS = ["prediction", "reference", "confidence"]
EXAMPLE = """\
prediction,reference,confidence 3,3,0.99 8,8,0.97 1,1,0.95 5,5,0.92 2,7,0.9 4,4,0.86 9,9,0.81 6,1,0.77 3,3,0.7 8,2,0.64
0,0,0.6 7,5,0.55 1,9,0.48 4,4,0.41 5,0,0.36 2,6,0.3
""".replace(" ", "\n")
ABOUT = r"""# Response rate accuracy
The accuracy when only the most confident share `r` of the rows is answered.

$$\mathrm{accuracy}(r) = \frac{1}{i} \sum_{j=1}^{i} c_j$$

with `i = ceil(r N)`, the rows sorted by confidence and `c_j = 1` where row `j` is right.
"""


def read(text: str, path: str | None) -> pd.DataFrame:
    """The columns of the uploaded file, or of the pasted text where there is none."""
    table = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)} in the first line, got none named {missing[0]!r}")
    return table


def score(text: str, path: str | None = None, rate: float = 0.5) -> tuple[str, Figure]:
    """The accuracy at the rate as text, and the whole curve."""
    table = read(text, path)
    accuracy = response_rate_accuracy(table["confidence"], same_class(table["prediction"], table["reference"]))
    answered = max(1, math.ceil(rate * len(table) - 1e-9))  # 0.07 * 100 is 7.000000000000001
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([(i + 1) / len(table) for i in range(len(table))], accuracy)
    axes.plot(answered / len(table), accuracy[answered - 1], "o", color="tab:red", label=f"{answered:,} rows answered")
    axes.axhline(accuracy[-1], linestyle=":", color="gray", label="accuracy of all rows")
    axes.set(xlabel="response rate", ylabel="accuracy on the most confident rows", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend()
    return f"## Accuracy {accuracy[answered - 1]:.4f}\n{answered:,} of {len(table):,} rows answered", figure


def page() -> object:
    """The page, ready to launch."""
    import gradio as gr

    def answer(*inputs):
        try:
            return score(*inputs)
        except (TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    with gr.Blocks(title="Response rate accuracy") as blocks:
        gr.Markdown(ABOUT)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(EXAMPLE, label="CSV with the columns " + ", ".join(COLUMNS), lines=10, max_lines=10)
                path = gr.File(label="or a CSV file", file_types=[".csv"], type="filepath", height=120)
                rate = gr.Slider(0.01, 1.0, 0.5, step=0.01, label="response rate")
                button = gr.Button("Compute", variant="primary")
            with gr.Column():
                number, plot = gr.Markdown(), gr.Plot(show_label=False)
        inputs = [text, path, rate]
        button.click(answer, inputs, [number, plot])
        blocks.load(answer, inputs, [number, plot])
    return blocks


if __name__ == "__main__":
    page().launch()
