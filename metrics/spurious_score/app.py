"""The page of the metric: paste or upload a CSV file, see the number, a plot and the formula."""

from __future__ import annotations

import io

import pandas as pd
from matplotlib.figure import Figure

from hf_robust.metrics import spurious_score
from hf_robust.metrics.columns import class_indices

COLUMNS = ["probability", "class_index", "is_spurious"]
EXAMPLE = """\
probability,class_index,is_spurious 0.93,7,0 0.81,7,0 0.64,7,0 0.88,7,1 0.35,7,1 0.12,7,1 0.9,94,0 0.77,94,0 0.58,94,0
0.31,94,1 0.22,94,1 0.05,94,1 0.85,400,0 0.42,400,0 0.28,400,0 0.66,400,1 0.51,400,1 0.19,400,1
""".replace(" ", "\n")
ABOUT = r"""# Spurious score
How well a class's probability tells its own pictures (positive) from pictures of only its spurious feature.

$$\mathrm{score} = \frac{1}{K} \sum_{k=1}^{K} \mathrm{AP}_k$$
$$\mathrm{AP} = \sum_t (R_t - R_{t-1})\, P_t$$
"""


def read(text: str, path: str | None) -> pd.DataFrame:
    """The columns of the uploaded file, or of the pasted text where there is none."""
    table = pd.read_csv(path or io.StringIO(text.strip()), skipinitialspace=True)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)} in the first line, got none named {missing[0]!r}")
    return table


def score(text: str, path: str | None = None) -> tuple[str, Figure]:
    """The numbers as text, and a bar a class."""
    table = read(text, path)
    classes = class_indices(table["class_index"], "class_index")
    result = spurious_score(table["probability"], classes, table["is_spurious"])
    each = sorted(result.per_class, key=lambda row: row.average_precision)
    figure = Figure(figsize=(6, min(20.0, 1.5 + 0.3 * len(each))), layout="constrained")
    axes = figure.subplots()
    names = [str(row.class_index) for row in each]
    axes.barh(names, [row.average_precision for row in each], color="tab:green", alpha=0.6)
    chance = [row.n_validation / (row.n_validation + row.n_spurious) for row in each]
    axes.plot(chance, names, "|", markersize=14, color="black", label="chance")
    axes.set(xlabel="average precision", ylabel="class", xlim=(0, 1.02))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    about = f"\n{len(table):,} rows of {len(each):,} classes, mean AUROC {result.spurious_auroc:.4f}"
    return f"## Spurious score {result.spurious_score:.4f}{about}", figure


def page() -> object:
    """The page, ready to launch."""
    import gradio as gr

    def answer(*inputs):
        try:
            return score(*inputs)
        except (TypeError, ValueError) as error:
            raise gr.Error(str(error), duration=None, print_exception=False) from error

    with gr.Blocks(title="Spurious score") as blocks:
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
