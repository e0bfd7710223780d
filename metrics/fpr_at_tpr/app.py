"""The page of the metric: paste or upload a CSV file, see the number, a plot and the formula."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.figure import Figure

from hf_robust.metrics import auroc, curve, fpr_at_tpr

COLUMNS = ["score", "is_ood"]
EXAMPLE = """\
score,is_ood 0.97,1 0.91,0 0.88,1 0.83,1 0.74,0 0.66,1 0.52,0 0.45,0 0.37,0 0.21,1 0.14,0 0.05,0
""".replace(" ", "\n")
ABOUT = r"""# FPR at a TPR (out-of-distribution detection)
The share of in-distribution rows above the threshold that finds the wanted share of the out-of-distribution rows.

$$\min_t \{\, P(s \ge t \mid \text{in}) : P(s \ge t \mid \text{out}) \ge \mathrm{tpr} \,\}$$
"""


def read(text: str, path: str | None) -> pd.DataFrame:
    """The columns of the uploaded file, or of the pasted text where there is none."""
    table = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)} in the first line, got none named {missing[0]!r}")
    return table


def score(text: str, path: str | None = None, tpr: float = 0.95, released: bool = False) -> tuple[str, Figure]:
    """The number as text, and the ROC curve with its point."""
    table = read(text, path)
    scores, is_ood = table["score"], table["is_ood"]
    value, counts = fpr_at_tpr(scores, is_ood, tpr=tpr, released_code=released), curve(scores, is_ood)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes = figure.subplots()
    found = counts.true_positives / counts.true_positives[-1]
    axes.plot([0, *counts.false_positives / counts.false_positives[-1]], [0, *found])
    axes.axhline(tpr, linestyle=":", color="gray")
    axes.axvline(value, linestyle=":", color="tab:red", label=f"false positive rate {value:.4f}")
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.02, 1.02), ylim=(0, 1.02))
    axes.legend(loc="lower right")
    return f"## FPR {value:.4f} at TPR {tpr:g}\n{len(table):,} rows, AUROC {auroc(scores, is_ood):.4f}", figure


def page() -> object:
    """The page, ready to launch."""
    import gradio as gr

    def answer(*inputs):
        try:
            return score(*inputs)
        except (TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    with gr.Blocks(title="FPR at a TPR (out-of-distribution detection)") as blocks:
        gr.Markdown(ABOUT)
        with gr.Row():
            with gr.Column():
                text = gr.Textbox(EXAMPLE, label="CSV with the columns " + ", ".join(COLUMNS), lines=10, max_lines=10)
                path = gr.File(label="or a CSV file", file_types=[".csv"], type="filepath", height=120)
                tpr = gr.Slider(0.05, 1.0, 0.95, step=0.01, label="true positive rate to reach")
                released = gr.Checkbox(label="nearest true positive rate, as in the code released with the paper")
                button = gr.Button("Compute", variant="primary")
            with gr.Column():
                number, plot = gr.Markdown(), gr.Plot(show_label=False)
        inputs = [text, path, tpr, released]
        button.click(answer, inputs, [number, plot])
        blocks.load(answer, inputs, [number, plot])
    return blocks


if __name__ == "__main__":
    page().launch()
