"""The page of the metric: paste or upload a CSV file, see the number, a plot and the formula."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.figure import Figure

from hf_robust.metrics import aurra, response_rate_accuracy
from hf_robust.metrics.columns import same_class

COLUMNS = ["prediction", "reference", "confidence"]
EXAMPLE = """\
prediction,reference,confidence 3,3,0.99 8,8,0.97 1,1,0.95 5,5,0.92 2,7,0.9 4,4,0.86 9,9,0.81 6,1,0.77 3,3,0.7 8,2,0.64
0,0,0.6 7,5,0.55 1,9,0.48 4,4,0.41 5,0,0.36 2,6,0.3
""".replace(" ", "\n")
ABOUT = r"""# AURRA
The mean, over every response rate, of the accuracy on the most confident rows.

$$\mathrm{AURRA} = \frac{1}{N} \sum_{i=1}^{N} \frac{1}{i} \sum_{j=1}^{i} c_j$$

with the rows sorted by confidence and `c_j = 1` where row `j` is right.
"""


def read(text: str, path: str | None) -> pd.DataFrame:
    """The columns of the uploaded file, or of the pasted text where there is none."""
    table = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)} in the first line, got none named {missing[0]!r}")
    return table


def score(text: str, path: str | None = None) -> tuple[str, Figure]:
    """The number as text, and the curve it is the area of."""
    table = read(text, path)
    correct = same_class(table["prediction"], table["reference"])
    value, accuracy = aurra(table["confidence"], correct), response_rate_accuracy(table["confidence"], correct)
    rate = [(i + 1) / len(table) for i in range(len(table))]
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rate, accuracy)
    axes.fill_between(rate, accuracy, alpha=0.15)
    axes.axhline(accuracy[-1], linestyle=":", color="gray", label="accuracy")
    axes.set(xlabel="response rate", ylabel="accuracy on the most confident rows", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()
    return f"## AURRA {value:.4f}\n{len(table):,} rows, accuracy {accuracy[-1]:.4f}", figure


def page() -> object:
    """The page, ready to launch."""
    import gradio as gr

    def answer(*inputs):
        try:
            return score(*inputs)
        except (TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    with gr.Blocks(title="AURRA") as blocks:
        gr.Markdown(ABOUT)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(EXAMPLE, label="CSV with the columns " + ", ".join(COLUMNS), lines=10, max_lines=10)
                path = gr.File(label="or a CSV file", file_types=[".csv"], type="filepath", height=120)
                button = gr.Button("Compute", variant="primary")
            with gr.Column():
                number, plot = gr.Markdown(), gr.Plot(show_label=False)
        inputs = [text, path]
        button.click(answer, inputs, [number, plot])
        blocks.load(answer, inputs, [number, plot])
    return blocks


if __name__ == "__main__":
    page().launch()
