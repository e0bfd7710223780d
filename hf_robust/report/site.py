"""The report folder: tables, plots and one page that explains itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..benchmarks import Benchmark
from ..benchmarks.miniatures import PREFIX as MINIATURE
from ..scoring.people import is_people
from .evidence import Evidence, gather
from .gallery import MAY_NOT_PASS_ON, Gallery, Places, Thumbnails, as_data
from .leaderboard import Result, is_whole, leaderboard, line_key, line_names, ordered
from .notes import legend, remarks
from .published import SOURCES
from .sections import Section, plots_of, section, tables_of
from .style import FEATURED, LineKey, Plot, Series, series_of
from .ties import EXPLAINED
from .verdict import verdict


def page_and_plots(
    runs: Path,
    benchmarks: Mapping[str, Benchmark],
    results: Sequence[Result],
    *,
    images: bool,
    places: Places,
) -> tuple[str, dict[str, bytes]]:
    """The page, and the content of each file of plots/ by name. Equal runs and results give equal bytes."""
    everyone = ordered(results)
    rows = [row for row in everyone if not is_people(row)]
    names: dict[LineKey, str] = line_names(rows)
    wanted = {(line_key(r), str(r["benchmark"])) for r in rows if r["metric"] is not None}
    evidence = gather(runs, benchmarks, wanted)
    featured = series_of(names, _best(rows, names))
    thumbnails = Thumbnails(places) if images else None
    sections: list[Section] = []
    plotted: dict[str, bytes] = {}
    for name in dict.fromkeys(str(r["benchmark"]) for r in rows if r["benchmark"]):
        own = [r for r in rows if r["benchmark"] == name]
        found = evidence.get(name, {})
        plots = plots_of(name, found, own, rows, featured)
        gallery = _gallery(own, found, names, thumbnails)
        people = [r for r in everyone if r["benchmark"] == name and is_people(r)]
        more = tables_of(name, found, rows, names, featured)
        sections.append(section(name, benchmarks.get(name), own, names, plots, gallery, people, more=more))
        plotted |= _files(name, plots)
    return render(everyone, names, sections, featured, images=images), plotted


def _best(rows: Sequence[Result], names: Mapping[LineKey, str]) -> list[LineKey]:
    """Models by their number of headline values, then by the mean of these: the ones that plots show first."""
    values: dict[LineKey, list[float]] = {key: [] for key in names}
    for row in rows:
        if row["headline"] and is_whole(row) and row["value"] is not None:
            values[line_key(row)].append(row["value"])
    key_of = {key: (-len(v), -sum(v) / max(1, len(v)), key) for key, v in values.items()}
    return sorted(key_of, key=lambda key: key_of[key])[:FEATURED]


def _gallery(
    rows: Sequence[Result],
    evidence: Mapping[LineKey, Evidence],
    names: Mapping[LineKey, str],
    thumbnails: Thumbnails | None,
) -> tuple[str, Gallery | None]:
    """The name of the best model of a benchmark and its worst failures."""
    head = [r for r in rows if r["headline"] and is_whole(r) and r["value"] is not None and line_key(r) in evidence]
    if not head:
        return "", None
    best = line_key(min(head, key=lambda r: (-r["value"], *line_key(r))))
    if thumbnails is None or not evidence[best].worst:
        return names[best], None
    return names[best], thumbnails.gallery(evidence[best].worst)


def _files(benchmark: str, plots: Sequence[Plot]) -> dict[str, bytes]:
    stem = re.sub(r"[^A-Za-z0-9-]+", "-", benchmark)
    return {f"{stem}-{p.name}.{kind}": getattr(p, kind) for p in plots for kind in ("svg", "png")}


def render(
    rows: Sequence[Result],
    names: Mapping[LineKey, str],
    sections: Sequence[Section],
    featured: Sequence[Series],
    *,
    images: bool,
) -> str:
    """The page as HTML. Every text is escaped; it holds no script and loads nothing."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup, escape
    except ImportError as error:
        raise ImportError('the page of the report needs jinja2: pip install "hf-robust[report]"') from error

    assets = files("hf_robust") / "assets"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["soft"] = lambda text: Markup(re.sub(r"([/_.])(?=[^/_.])", r"\1<wbr>", str(escape(text))))
    template = environment.from_string((assets / "report.html.jinja").read_text(encoding="utf-8"))
    board = leaderboard(rows)
    titles = {section.name: section.title for section in sections}
    content: dict[str, Any] = {
        "style": Markup((assets / "report.css").read_text(encoding="utf-8")),
        "board": board,
        "titles": titles,
        "numbered": [(n, name, key) for n, (key, name) in enumerate(names.items(), 1)],
        "name_of": {**line_names(rows), **names},
        "verdicts": [(n, name, verdict(_of(rows, key), titles)) for n, (key, name) in enumerate(names.items(), 1)],
        "failures": [(names[line_key(r)], r["reason"]) for r in rows if not r["benchmark"]],
        "sections": sections,
        "legend": legend(rows),
        "remarks": remarks(rows),
        "ties": EXPLAINED,
        "sources": SOURCES,
        "miniature": any(str(r["benchmark"]).startswith(MINIATURE) for r in rows),
        "not_plotted": max(0, len(names) - len(featured)),
        "images": images,
        "passing_on": MAY_NOT_PASS_ON,
        "picture": lambda plot: as_data(plot.svg, "image/svg+xml"),
        "share": _share,
    }
    return template.render(content) + "\n"


def _of(rows: Sequence[Result], key: LineKey) -> list[Result]:
    return [row for row in rows if line_key(row) == key]


def _share(value: float) -> str:
    return f"{100 * value:.1f}"
