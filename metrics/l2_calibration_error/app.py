"""The page of the metric: paste or upload a CSV file, see the number, a plot and the formula."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.figure import Figure

from hf_robust.metrics import adaptive_bins, calibration_error
from hf_robust.metrics.columns import same_class

COLUMNS = ["prediction", "reference", "confidence"]
EXAMPLE = """\
prediction,reference,confidence 3,3,0.99 8,8,0.97 1,1,0.95 5,5,0.92 2,7,0.9 4,4,0.86 9,9,0.81 6,1,0.77 3,3,0.7 8,2,0.64
0,0,0.6 7,5,0.55 1,9,0.48 4,4,0.41 5,0,0.36 2,6,0.3
""".replace(" ", "\n")
ABOUT = r"""# ℓ2 calibration error
The root mean square gap between confidence and accuracy over bins of equally many rows.

$$\sqrt{\sum_b \frac{|B_b|}{N} \left(\mathrm{confidence}(B_b) - \mathrm{accuracy}(B_b)\right)^2}$$

The published bin size is 100; the small example needs a smaller one.
"""


def read(text: str, path: str | None) -> pd.DataFrame:
    """The columns of the uploaded file, or of the pasted text where there is none."""
    table = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)} in the first line, got none named {missing[0]!r}")
    return table


def score(text: str, path: str | None = None, bin_size: int = 100, released: bool = False) -> tuple[str, Figure]:
    """The number as text, and the reliability diagram."""
    table = read(text, path)
    correct = same_class(table["prediction"], table["reference"])
    value = calibration_error(table["confidence"], correct, bin_size=bin_size, released_code=released)
    bins = adaptive_bins(table["confidence"], correct, bin_size=bin_size)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle=":", color="gray", label="calibrated")
    axes.plot(bins.confidence, bins.accuracy, marker="o", label="bins")
    axes.vlines(bins.confidence, bins.accuracy, bins.confidence, color="tab:red", alpha=0.5, label="gaps")
    axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()
    return f"## Calibration error {value:.4f}\n{len(table):,} rows in {len(bins.size):,} bins", figure


def page() -> object:
    """The page, ready to launch."""
    import gradio as gr

    def answer(*inputs):
        try:
            return score(*inputs)
        except (TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    with gr.Blocks(title="ℓ2 calibration error") as blocks:
        gr.Markdown(ABOUT)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(EXAMPLE, label="CSV with the columns " + ", ".join(COLUMNS), lines=10, max_lines=10)
                path = gr.File(label="or a CSV file", file_types=[".csv"], type="filepath", height=120)
                bin_size = gr.Number(4, label="rows a bin", precision=0, minimum=1)
                released = gr.Checkbox(label="leave out the last bin, as in the code released with the paper")
                button = gr.Button("Compute", variant="primary")
            with gr.Column():
                number, plot = gr.Markdown(), gr.Plot(show_label=False)
        inputs = [text, path, bin_size, released]
        button.click(answer, inputs, [number, plot])
        blocks.load(answer, inputs, [number, plot])
    return blocks


if __name__ == "__main__":
    page().launch()
