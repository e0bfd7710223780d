"""The page of the metric: paste or upload a CSV file, see the number, a plot and the formula."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.figure import Figure

from hf_robust.metrics import aupr, curve

COLUMNS = ["score", "is_ood"]
EXAMPLE = """\
score,is_ood 0.97,1 0.91,0 0.88,1 0.83,1 0.74,0 0.66,1 0.52,0 0.45,0 0.37,0 0.21,1 0.14,0 0.05,0
""".replace(" ", "\n")
ABOUT = r"""# AUPR (out-of-distribution detection)
How cleanly one score a row (higher = more out-of-distribution) finds the out-of-distribution rows, the positive class.

$$\mathrm{AUPR} = \sum_t (R_t - R_{t-1})\, P_t$$

over the distinct scores from high to low, with precision `P_t` and recall `R_t` of the rows at or above `t`.
"""


def read(text: str, path: str | None) -> pd.DataFrame:
    """The columns of the uploaded file, or of the pasted text where there is none."""
    table = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)} in the first line, got none named {missing[0]!r}")
    return table


def score(text: str, path: str | None = None) -> tuple[str, Figure]:
    """The number as text, and the precision-recall curve."""
    table = read(text, path)
    value, counts = aupr(table["score"], table["is_ood"]), curve(table["score"], table["is_ood"])
    precision = counts.true_positives / (counts.true_positives + counts.false_positives)
    chance = counts.true_positives[-1] / len(table)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.step([0, *counts.true_positives / counts.true_positives[-1]], [precision[0], *precision], where="pre")
    axes.axhline(chance, linestyle=":", color="gray", label="chance")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()
    return f"## AUPR {value:.4f}\n{len(table):,} rows, chance {chance:.4f}", figure


def page() -> object:
    """The page, ready to launch."""
    import gradio as gr

    def answer(*inputs):
        try:
            return score(*inputs)
        except (TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    with gr.Blocks(title="AUPR (out-of-distribution detection)") as blocks:
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
