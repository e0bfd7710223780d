"""The page of the metric: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

from pathlib import Path

from hf_robust.hub.app import DETECTION, Page, serve
from hf_robust.hub.curves import precision_recall
from hf_robust.metrics import aupr

PAGE = Page(
    card=Path(__file__).with_name("README.md"),
    result="AUPR",
    table=DETECTION,
    compute=aupr,
    curve=precision_recall,
)

if __name__ == "__main__":
    serve(PAGE)
