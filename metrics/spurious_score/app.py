"""The page of the metric: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

from pathlib import Path

from hf_robust.hub.app import PAIRS, Page, serve
from hf_robust.hub.curves import classes
from hf_robust.metrics import spurious_score

PAGE = Page(
    card=Path(__file__).with_name("README.md"),
    result="Spurious score",
    table=PAIRS,
    compute=lambda *rows: spurious_score(*rows).spurious_score,
    curve=classes,
)

if __name__ == "__main__":
    serve(PAGE)
