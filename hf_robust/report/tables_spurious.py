"""Tables of a spurious benchmark: each class with its feature, and scores before and after SpuFix beside published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..labels import imagenet_1k_names
from ..metrics import ClassScore
from .baselines import comparable
from .cells import Number, Row, Table, number
from .evidence import Pairs, feature_of
from .leaderboard import Result, plain
from .published import published
from .spufix import OWN_ACCURACY, SCORE, Fixed, strongest
from .style import LineKey, Series

_PUBLISHED = (SCORE, f"{SCORE}_spufix", "imagenet_top1_accuracy", "imagenet_top1_accuracy_spufix")
_CLEAN = "ImageNet accuracy"


def by_class(evidence: Mapping[LineKey, Pairs], shown: Sequence[Series]) -> Table | None:
    """Every class with its spurious feature and average precision a model, worst first; None without any class.

    One model has its AUROC and its mean probabilities too.
    """
    found = {s.key: {c.class_index: c for c in evidence[s.key].per_class} for s in shown}
    classes = sorted({k for scores in found.values() for k in scores})
    if not classes:
        return None
    names, features = imagenet_1k_names(), feature_of()
    having = {k: [scores[k] for scores in found.values() if k in scores] for k in classes}
    order = sorted(classes, key=lambda k: (np.mean([c.average_precision for c in having[k]]), k))
    alone = len(shown) == 1
    heads = ("average precision", "AUROC", "p of the class, its pictures", "p of the class, spurious pictures")
    rows = []
    for k in order:
        own = _detailed(having[k][0]) if alone else tuple(_precision(found[s.key].get(k)) for s in shown)
        name = f"{k} {names[k]}{f' ← {features[k]}' if k in features else ''}"
        rows.append(Row(None, name, "", (Number(_counts(having[k])), *own)))
    return Table(
        f"By class: {len(classes)}, worst first",
        ("pictures", *(heads if alone else (f"{s.number} {s.name}" for s in shown))),
        tuple(rows), ranked=False, first="Class ← spurious feature", folded=True,
        note="Average precision with the class's own pictures positive. Pictures: of the class + spurious ones.",
    )  # fmt: skip


def _detailed(found: ClassScore) -> tuple[Number, ...]:
    values = (found.average_precision, found.auroc, found.mean_probability_validation, found.mean_probability_spurious)
    return tuple(Number(f"{value:.3f}") for value in values)


def _precision(found: ClassScore | None) -> Number:
    return Number("—") if found is None else Number(f"{found.average_precision:.3f}")


def _counts(found: Sequence[ClassScore]) -> str:
    counts = dict.fromkeys(f"{c.n_validation} + {c.n_spurious}" for c in found)
    return ", ".join(counts)


def before_and_after(fixed: Sequence[Fixed], names: Mapping[LineKey, str]) -> Table | None:
    """Spurious score and accuracy before and after each correction; None where nothing was corrected."""
    if not fixed:
        return None
    numbered = {key: i for i, key in enumerate(names, 1)}
    several = {one.key for one in fixed if len({other.file for other in fixed if other.key == one.key}) > 1}
    named = {
        id(one): names[one.key] + (f", file {plain(one.file[:12])}" if one.key in several else "") for one in fixed
    }
    clean = any(one.clean_before is not None for one in fixed)
    told = _told_once(fixed)
    refused = [
        f" {named[id(one)]} was not corrected: {plain(one.after[SCORE]['reason'] or 'no reason was given')}."
        for one in told
        if not _has_value(one)
    ]
    what = _CLEAN if clean else "accuracy on its classes"
    return Table(
        "Before and after SpuFix",
        ("strength", f"{SCORE.replace('_', ' ')} before", "after", "change", f"{what} before", "after", "change"),
        tuple(Row(numbered[one.key], named[id(one)], "", _before_and_after(one, clean=clean)) for one in told),
        ranked=False,
        note="SpuFix takes what a logit has from spurious directions off it, without labels or training; strength 1 is "
        f"the published one. A change of a few pictures is noise: see the intervals.{''.join(refused)}",
    )  # fmt: skip


def _before_and_after(one: Fixed, *, clean: bool) -> tuple[Number, ...]:
    accuracy = (one.clean_before, one.clean_after) if clean else _own(one)
    cells = (*_change(one.before[SCORE], one.after[SCORE]), *_change(*accuracy))
    if _has_value(one):
        return (Number(f"{one.strength:g}"), *cells)
    return (Number("—"), *(replace(cell, why="") for cell in cells))  # the reason stands below the table


def _has_value(one: Fixed) -> bool:
    return one.after[SCORE]["value"] is not None


def _told_once(fixed: Sequence[Fixed]) -> list[Fixed]:
    """Without the repetitions of a model that could not be corrected at any strength."""
    valued = {(one.key, one.file) for one in fixed if _has_value(one)}
    seen: dict[tuple[LineKey, str], None] = {}
    kept = []
    for one in fixed:
        place = (one.key, one.file)
        if place in valued or place not in seen:
            kept.append(one)
        seen[place] = None
    return kept


def _own(one: Fixed) -> tuple[Result | None, Result | None]:
    return one.before.get(OWN_ACCURACY), one.after.get(OWN_ACCURACY)


def _change(before: Result | None, after: Result | None) -> tuple[Number, Number, Number]:
    two = [None if row is None else row["value"] for row in (before, after)]
    if two[0] is None or two[1] is None:
        return number(before), number(after), Number("—")
    points = str((before or {})["metric"]).endswith("accuracy")
    return number(before), number(after), Number(_signed(two[1] - two[0], points=points))


def _signed(difference: float, *, points: bool) -> str:
    text = f"{100 * difference:+.1f}" if points else f"{difference:+.3f}"
    if not text.strip("+-0."):
        text = text[1:]  # rounded to nothing: no sign
    return text.replace("-", "\N{MINUS SIGN}") + (" points" if points else "")


def beside_published(fixed: Sequence[Fixed], names: Mapping[LineKey, str]) -> Table | None:
    """The published models before and after SpuFix, ours of the same preparation among them, by the score after."""
    theirs = [{b.model: b.value for b in published("spurious-imagenet", name)} for name in _PUBLISHED]
    if not fixed or not theirs[0]:
        return None
    numbered = {key: i for i, key in enumerate(names, 1)}
    ours = [one for one in strongest(fixed) if comparable(one.before[SCORE])]
    lines = [(-one.after[SCORE]["value"], Row(
        numbered[one.key], f"{names[one.key]}, strength {one.strength:g}", "",
        (*_change(one.before[SCORE], one.after[SCORE]), *_change(one.clean_before, one.clean_after)),
    )) for one in ours]  # fmt: skip
    for model in theirs[1]:
        before, after, clean, clean_after = (values.get(model) for values in theirs)
        cells = (*_published_cells(before, after, points=False), *_published_cells(clean, clean_after, points=True))
        lines.append((-theirs[1][model], Row(None, model, "", cells, ours=False)))
    missing = (
        "" if ours else " Ours were prepared otherwise and are not among them: evaluate --preprocessing published."
    )
    return Table(
        f"The {len(theirs[1])} published models before and after SpuFix",
        (f"{SCORE.replace('_', ' ')} before", "after", "change", f"{_CLEAN} before", "after", "change"),
        tuple(row for _, row in sorted(lines, key=lambda pair: (pair[0], pair[1].name))), ranked=False, folded=True,
        note=f"By the score after; from arXiv 2212.04871.{missing}",
    )  # fmt: skip


def _published_cells(before: float | None, after: float | None, *, points: bool) -> tuple[Number, Number, Number]:
    def text(value: float | None) -> Number:
        return Number("—" if value is None else f"{100 * value:.1f} %" if points else f"{value:.3f}")

    change = "—" if before is None or after is None else _signed(after - before, points=points)
    return text(before), text(after), Number(change)
