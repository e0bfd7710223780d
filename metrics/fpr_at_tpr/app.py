"""The page of the metric: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

from pathlib import Path

from hf_robust.hub.app import DETECTION, Option, Page, serve
from hf_robust.hub.curves import roc
from hf_robust.metrics import fpr_at_tpr

PAGE = Page(
    card=Path(__file__).with_name("README.md"),
    result="False positive rate",
    table=DETECTION,
    compute=fpr_at_tpr,
    curve=roc,
    options=(
        Option("tpr", "true positive rate to reach", 0.95, lowest=0.05, highest=1.0),
        Option("released_code", "nearest true positive rate, as in the code released with the paper", False),
    ),
)

if __name__ == "__main__":
    serve(PAGE)
