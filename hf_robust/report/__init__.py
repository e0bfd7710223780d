"""Reports: results.json, tables, the terminal, plots and a page, with published numbers beside ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..benchmarks import Benchmark
from ..predictions.temporary import remove_leftovers, renamed
from ..schema import RESULTS_SCHEMA_VERSION
from ..scoring import score
from .gallery import Places
from .latex import latex
from .leaderboard import REQUIRED, ordered
from .published import Baseline, published
from .site import page_and_plots
from .tables import csv_text, markdown
from .terminal import show

__all__ = ["Baseline", "Places", "as_document", "published", "show", "write", "write_report"]

_NOT_IN_HTML = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "\ufffd")  # whatever a name holds


def as_document(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of results.json: {"schema_version": 1, "results": [...]}, results in one fixed order.

    Raises KeyError for a result without one of its fields and ValueError for NaN or infinity, which JSON cannot hold:
    an undefined value is None with a reason.
    """
    for number, row in enumerate(results):
        _check(row, number)
    return {"schema_version": RESULTS_SCHEMA_VERSION, "results": [dict(row) for row in ordered(results)]}


def write(results: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """The folder `out` with results.json (fractions), table.md (for people), table.csv (one row a result), table.tex.

    The content depends on the results only, not on their order. Each file is written under a temporary name and then
    renamed, so a reader never sees half of one. Errors as in `as_document`, before anything is written.
    """
    document = as_document(results)
    rows = document["results"]
    texts = {
        "results.json": json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
        "table.md": markdown(rows),
        "table.csv": csv_text(rows),
        "table.tex": latex(rows),
    }
    for name, text in texts.items():
        _put(out / name, text.encode())
    remove_leftovers(out)
    return out


def write_report(
    runs: Path,
    out: Path,
    *,
    benchmarks: Mapping[str, Benchmark],
    images: bool = True,
    places: Places | None = None,
    allow_chance: bool = False,
    results: Sequence[Mapping[str, Any]] | None = None,
) -> Path:
    """The folder `out` with everything of `write`, report.html (one self-contained page) and plots/*.svg and *.png.

    runs        folder that `hf-robust evaluate --out` wrote; its predictions feed the plots, no model is needed.
    images      thumbnails of the worst failures, from the data in `places` (None: the usual cache of this machine); a
                picture that is not there with the bytes that were evaluated is left out, and the page says so.
    results     of `scoring.score`, where they are at hand; else everything is scored, `allow_chance` as there.
    Equal input gives equal bytes. Plots of an earlier report in `out` are removed. Raises ImportError without the
    extra "report", and as `write` and `scoring.score` do, before anything is written.
    """
    found = score(runs, benchmarks, allow_chance=allow_chance) if results is None else results
    as_document(found)
    page, plots = page_and_plots(runs, benchmarks, found, images=images, places=places or Places())
    write(found, out)
    for old in (out / "plots").glob("*.*"):
        if old.suffix in (".svg", ".png") and old.name not in plots:
            old.unlink()
    for name, content in plots.items():
        _put(out / "plots" / name, content)
    _put(out / "report.html", page.translate(_NOT_IN_HTML).encode(errors="replace"))
    return out


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with renamed(path) as temporary:
        temporary.write_bytes(content)


def _check(row: Mapping[str, Any], number: int) -> None:
    missing = [field for field in REQUIRED if field not in row]
    if missing:
        raise KeyError(
            f"expected the fields {', '.join(REQUIRED)} in each result, result {number} lacks {', '.join(missing)}"
        )
    try:
        json.dumps(dict(row), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected plain finite values in each result, got {error} in {row['metric']} of {row['model']!r} on "
            f"{row['benchmark']} (result {number}): give None and a reason where a value is undefined"
        ) from error
