"""Reports from results alone: results.json, table.md, table.csv, the terminal, and published numbers beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..schema import RESULTS_SCHEMA_VERSION
from .leaderboard import REQUIRED, ordered
from .published import Baseline, published
from .tables import csv_text, markdown
from .terminal import show

__all__ = ["Baseline", "as_document", "published", "show", "write"]


def as_document(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of results.json: {"schema_version": 1, "results": [...]}, results in one fixed order.

    Raises KeyError for a result without one of its fields and ValueError for NaN or infinity, which JSON cannot hold:
    an undefined value is None with a reason.
    """
    for number, row in enumerate(results):
        _check(row, number)
    return {"schema_version": RESULTS_SCHEMA_VERSION, "results": [dict(row) for row in ordered(results)]}


def write(results: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """The folder `out` with results.json (fractions), table.md (for people) and table.csv (one row a result).

    The content depends on the results only, not on their order. Each file is written under a temporary name and then
    renamed, so a reader never sees half of one. Errors as in `as_document`, before anything is written.
    """
    document = as_document(results)
    rows = document["results"]
    texts = {
        "results.json": json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
        "table.md": markdown(rows),
        "table.csv": csv_text(rows),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        temporary = out / f".{name}.{os.getpid()}"
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(out / name)
    return out


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
