"""The page of the metric: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

from pathlib import Path

from hf_robust.hub.app import ANSWERS, Option, Page, serve
from hf_robust.hub.curves import response_rate
from hf_robust.metrics import accuracy_at_response_rate

PAGE = Page(
    card=Path(__file__).with_name("README.md"),
    result="Accuracy",
    table=ANSWERS,
    compute=accuracy_at_response_rate,
    curve=response_rate,
    options=(Option("rate", "response rate", 0.5, lowest=0.01, highest=1.0),),
)

if __name__ == "__main__":
    serve(PAGE)
