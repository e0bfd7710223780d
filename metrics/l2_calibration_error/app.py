"""The page of the metric: paste or upload a table, see the number, its curve and the formula."""

from __future__ import annotations

from pathlib import Path

from hf_robust.hub.app import ANSWERS, Option, Page, serve
from hf_robust.hub.curves import reliability
from hf_robust.metrics import calibration_error

PAGE = Page(
    card=Path(__file__).with_name("README.md"),
    result="Calibration error",
    table=ANSWERS,
    compute=calibration_error,
    curve=reliability,
    options=(
        Option("bin_size", "rows a bin (published: 100; the example is small)", 4, lowest=1),
        Option("released_code", "leave out the last bin, as in the code released with the paper", False),
    ),
)

if __name__ == "__main__":
    serve(PAGE)
