"""The parts of the page as plain data: what the template prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..benchmarks import Benchmark
from ..benchmarks.miniatures import PREFIX as MINIATURE
from . import plots_answers, plots_detection, plots_field, plots_spufix, plots_spurious, tables_spurious
from .baselines import Rung, comparable, ladder, standing, why_none
from .cells import Number, Row, Table, number
from .evidence import Answers, Detected, Evidence, Pairs
from .gallery import Gallery
from .leaderboard import METRIC_ORDER, SPLIT_ORDER, Result, is_whole, line_key, plain, variant
from .notes import details_of, protocol_lines, shared_notes
from .spufix import SCORE, fixed_of, strongest
from .style import LineKey, Plot, Series
from .ties import ranks


@dataclass(frozen=True)
class Section:
    """All of one benchmark."""

    anchor: str
    name: str
    title: str
    description: str
    caveats: tuple[str, ...]
    failures: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    estimators: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    protocol: tuple[str, ...]
    standings: tuple[tuple[str, str], ...]
    rungs: tuple[Rung, ...]
    no_rungs: str
    plots: tuple[Plot, ...]
    gallery_of: str
    gallery: Gallery | None
    licence: str


def section(
    name: str,
    benchmark: Benchmark | None,
    rows: Sequence[Result],
    names: dict[LineKey, str],
    plots: Sequence[Plot],
    gallery: tuple[str, Gallery | None],
    people: Sequence[Result] = (),
    *,
    more: Sequence[Table] = (),
) -> Section:
    """The section of one benchmark from its results `rows`, with what people got right on it below its models.

    more  tables that stand below its own.
    """
    numbered = {key: i for i, key in enumerate(names, 1)}
    head = [r for r in rows if r["headline"] and is_whole(r) and r["value"] is not None]
    rungs = ladder([r for r in head if comparable(r)], names)
    failures = [r for r in rows if r["metric"] is None]
    places = [(names[line_key(r)], standing(r)) for r in head]
    return Section(
        anchor="".join(c if c.isalnum() else "-" for c in name),
        name=plain(name),
        title=benchmark.title if benchmark else plain(name),
        description=benchmark.description if benchmark and not name.startswith(MINIATURE) else "",
        caveats=benchmark.caveats if benchmark else (),
        failures=tuple((names[line_key(r)], plain(r["reason"] or "failed without a reason")) for r in failures),
        tables=(*_tables(rows, names, numbered, people), *more),
        estimators=tuple(_estimators(rows)),
        notes=(*shared_notes(rows)[0], *(f"People: {note}" for note in shared_notes(people)[0])),
        protocol=tuple(protocol_lines(rows)),
        standings=tuple((who, text) for who, text in places if text),
        rungs=tuple(rungs),
        no_rungs="" if rungs or not head else _no_rungs(benchmark, head),
        plots=tuple(plots),
        gallery_of=gallery[0],
        gallery=gallery[1],
        licence=benchmark.licence if benchmark else "",
    )


def _no_rungs(benchmark: Benchmark | None, head: Sequence[Result]) -> str:
    own_rule = benchmark is not None and any(s.rule != s.published_rule for s in benchmark.sources)
    return why_none(next((r for r in head if not comparable(r)), head[0]), has_published_rule=own_rule)


def _tables(
    rows: Sequence[Result], names: dict[LineKey, str], numbered: Mapping[LineKey, int], people: Sequence[Result]
) -> list[Table]:
    own = [r for r in rows if r["metric"] and not variant(r)]
    keys = [key for key in names if any(line_key(r) == key for r in own)]
    if not keys:
        return []
    order = ranks(rows)
    metrics = _in_order({str(r["metric"]) for r in own if is_whole(r)}, METRIC_ORDER)
    headline = [m for m in metrics if any(r["headline"] and r["metric"] == m for r in own)]
    metrics = [*headline, *(m for m in metrics if m not in headline)]
    whole = {(line_key(r), str(r["metric"])): r for r in own if is_whole(r)}
    body = [
        Row(numbered[k], names[k], order.get(k, ""), tuple(number(whole.get((k, m))) for m in metrics)) for k in keys
    ]
    tables = [
        Table(
            "All pictures",
            tuple(m.replace("_", " ") for m in metrics),
            (*_best_first(body, keys, whole, metrics), *_people(people, len(metrics))),
            bool(order),
        )
    ]
    splits = _in_order({str(r["split"]) for r in own if not is_whole(r)}, SPLIT_ORDER)
    if splits and headline:
        part = {(line_key(r), str(r["split"])): r for r in own if not is_whole(r) and r["metric"] == headline[0]}
        lines = [Row(numbered[k], names[k], "", tuple(number(part.get((k, s))) for s in splits)) for k in keys]
        tables.append(
            Table(f"{headline[0].replace('_', ' ')} by split", tuple(map(plain, splits)), tuple(lines), False)
        )
    return [*tables, *_other_scores(rows, names, numbered)]


def _people(people: Sequence[Result], columns: int) -> list[Row]:
    """What people got right, in the column of the headline."""
    return [Row(0, plain(r["model"]), "", (number(r), *[Number("")] * (columns - 1))) for r in people]


def _other_scores(rows: Sequence[Result], names: dict[LineKey, str], numbered: Mapping[LineKey, int]) -> list[Table]:
    """The anomaly scores beside the protocol's own, a line a model and score."""
    found = {(line_key(r), str(r["ood_score"]), str(r["metric"])): r for r in rows if r.get("ood_score")}
    metrics = _in_order({metric for _, _, metric in found}, METRIC_ORDER)
    pairs = list(dict.fromkeys((key, score) for key in names for k, score, _ in sorted(found) if k == key))
    lines = [
        Row(numbered[k], f"{names[k]}: {plain(s)}", "", tuple(number(found.get((k, s, m))) for m in metrics))
        for k, s in pairs
    ]
    return [Table("Other out-of-distribution scores", tuple(metrics), tuple(lines), False)] if lines else []


def _best_first(
    body: Sequence[Row], keys: Sequence[LineKey], whole: Mapping[Any, Result], metrics: Sequence[str]
) -> list[Row]:
    def place(pair: tuple[Row, LineKey]) -> tuple[float, int]:
        row = whole.get((pair[1], metrics[0]))
        return (-row["value"] if row is not None and row["value"] is not None else 9.0), pair[0].number or 0

    return [row for row, _ in sorted(zip(body, keys, strict=True), key=place)]


def _in_order(found: set[str], known: Sequence[str]) -> list[str]:
    return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))


def _estimators(rows: Sequence[Result]) -> list[tuple[str, str]]:
    """How each metric was estimated, where all models agree; the counts of each model stay in the tables' files."""
    texts: dict[str, set[str]] = {}
    for row in rows:
        if row["metric"] and is_whole(row) and not variant(row):
            texts.setdefault(str(row["metric"]).replace("_", " "), set()).add(
                f"{row['n']:,} pictures. {details_of(row)}"
            )
    return [(metric, next(iter(said)).rstrip(". ")) for metric, said in texts.items() if len(said) == 1]


def plots_of(
    name: str,
    evidence: Mapping[LineKey, Evidence],
    rows: Sequence[Result],
    everything: Sequence[Result],
    featured: Sequence[Series],
) -> list[Plot]:
    """Every plot that the evidence of one benchmark supports."""
    answers = {k: e for k, e in evidence.items() if isinstance(e, Answers) and len(e.confidence)}
    detected = {k: e for k, e in evidence.items() if isinstance(e, Detected) and len(set(e.is_ood.tolist())) == 2}
    pairs = {k: e for k, e in evidence.items() if isinstance(e, Pairs)}
    shown = [s for s in featured if s.key in answers]
    plots: list[Plot | None] = []
    if shown:
        plots += [plots_answers.splits(rows, shown), plots_answers.categories(answers, shown)]
        plots += [plots_answers.reliability(answers, shown), plots_answers.response_rate(answers, shown)]
        plots += _field_of_a(rows, shown) if name == "imagenet-a" else []
    shown = [s for s in featured if s.key in detected]
    if shown:
        plots += [plots_detection.precision_recall(detected, shown), plots_detection.roc(detected, shown)]
        plots += [plots_detection.histograms(detected, shown)]
    shown = [s for s in featured if s.key in pairs]
    if shown:
        plots += _spurious_field(rows, everything, shown) if name == "spurious-imagenet" else []
        plots += [plots_spufix.trade_off(fixed_of(name, everything), shown)]
        plots += [plots_spurious.worst_classes(pairs, shown)]
    return [plot for plot in plots if plot is not None]


def _values(rows: Sequence[Result], metric: str) -> dict[LineKey, float]:
    own = [r for r in rows if r["metric"] == metric and is_whole(r) and not variant(r)]
    return {line_key(r): r["value"] for r in own if r["value"] is not None}


def _field_of_a(rows: Sequence[Result], shown: Sequence[Series]) -> list[Plot | None]:
    top, clean = _values(rows, "top1_accuracy"), _values(rows, "control_top1_accuracy")
    plots: list[Plot | None] = []
    for mode in ("model", "published"):
        own = {k: (clean[k], top[k]) for k in top if k in clean and k[1] == mode}
        plots.append(plots_field.against_clean(own, shown, mode))
    return [*plots, plots_field.against_size({k: v for k, v in top.items() if k[1] == "model"}, shown)]


def _spurious_field(rows: Sequence[Result], everything: Sequence[Result], shown: Sequence[Series]) -> list[Plot | None]:
    score = _values(rows, SCORE)
    clean = _values([r for r in everything if r["benchmark"] == "imagenet-val"], "top1_accuracy")
    own = [s for s in shown if s.key in score]
    after = {
        one.key: (one.after[SCORE]["value"], None if one.clean_after is None else one.clean_after["value"])
        for one in strongest(fixed_of(str(rows[0]["benchmark"]), everything))
    }
    return [plots_spufix.field({k: (v, clean.get(k)) for k, v in score.items()}, after, own)] if own else []


def tables_of(
    name: str,
    evidence: Mapping[LineKey, Evidence],
    everything: Sequence[Result],
    names: Mapping[LineKey, str],
    featured: Sequence[Series],
) -> list[Table]:
    """Tables that only some benchmarks have: before and after SpuFix beside published models, and class by class."""
    fixed = fixed_of(name, everything)
    pairs = {k: e for k, e in evidence.items() if isinstance(e, Pairs)}
    tables = [
        tables_spurious.before_and_after(fixed, names),
        tables_spurious.beside_published(fixed, names) if name == "spurious-imagenet" else None,
        tables_spurious.by_class(pairs, [s for s in featured if s.key in pairs]),
    ]
    return [table for table in tables if table is not None]
