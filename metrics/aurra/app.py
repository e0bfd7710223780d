"""The page of the metric: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

from pathlib import Path

from hf_robust.hub.app import ANSWERS, Page, serve
from hf_robust.hub.curves import response_rate
from hf_robust.metrics import aurra

PAGE = Page(
    card=Path(__file__).with_name("README.md"),
    result="AURRA",
    table=ANSWERS,
    compute=aurra,
    curve=response_rate,
)

if __name__ == "__main__":
    serve(PAGE)
