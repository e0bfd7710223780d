"""Hard, or selected against these models? Accuracy of filters and of held-out models, on the set and on its pool.

A filtered set is hard for its filters by construction. What held-out models lose on it, against an unfiltered sample of
the same pool, is what it takes from any model; what the filters lose beyond that is the selection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, isnan, nan
from typing import Literal

import numpy as np

from ..data import Rows
from ..metrics import bootstrap, hits, restrict, weighted, wilson
from ..models import check_name
from ..predictions.parts import RowTable
from .candidates import candidate_rows, forward, said
from .filter import RECIPE, mask_of
from .ledger import Ledger
from .stage import StageError, Work

Side = Literal["filtered", "sample"]
Role = Literal["filter", "held-out"]
Correct = Mapping[str, bool]  # row id -> whether the model is right


@dataclass(frozen=True)
class SelectionSettings:
    """How "hard" and "selected against these models" are told apart.

    held_out  models without a say: they and the filters are run on the set and on a sample of the pool; none: neither.
    sample    pictures of the pool, drawn by `seed`.
    """

    held_out: tuple[str, ...] = ()
    sample: int = 1000
    seed: int = 0


@dataclass(frozen=True)
class ModelRow:
    """Top-1 accuracy of one model on one side, a fraction with its 95 % Wilson interval, without `unread` pictures."""

    model: str
    role: Role
    side: Side
    pictures: int
    correct: int
    accuracy: float
    low: float
    high: float
    unread: int


@dataclass(frozen=True)
class Gap:
    """Mean accuracy of the held-out models minus that of the filters, over the pictures that all of them read.

    side  "filtered" or "sample", with 95 % percentile bootstrap intervals over pictures; or "difference", the first
          minus the second: how much of what the filters fail on is selected against them.
    low, high  NaN where all pictures of a side are alike, as where every model fails: they tell nothing of the spread.
    """

    side: Literal["filtered", "sample", "difference"]
    value: float
    low: float
    high: float
    pictures: int


@dataclass(frozen=True)
class SelectionEffect:
    """A row for each model and side, and the three gaps."""

    rows: tuple[ModelRow, ...]
    gaps: tuple[Gap, ...]


def selection_effect(
    ledger: Ledger,
    work: Work,
    *,
    filters: Sequence[str],
    held_out: Sequence[str],
    since: str,
    classes: str = RECIPE,
    sample: int = 1000,
    seed: int = 0,
) -> SelectionEffect:
    """Accuracy of both groups of models on the kept rows of `ledger` and on a sample of what stage `since` was given.

    since    the stage that filtered: the pool is what was kept before it.
    classes  the logits are restricted to these, as for the filter; see `mask_of`.
    sample   pictures drawn from the pool by `seed` and row id, uniformly; all of them where it has fewer.
    One look a picture, the model's own preprocessing. Errors as `check_models`; StageError for an unknown stage.
    """
    check_models(filters, held_out, sample=sample)
    names = (*filters, *held_out)
    pool = before(ledger, since)
    mask = mask_of(classes, pool)
    sides: dict[Side, Rows] = {
        "filtered": candidate_rows(ledger), "sample": sampled(candidate_rows(pool), sample, seed),
    }  # fmt: skip
    rows: list[ModelRow] = []
    gaps: list[Gap] = []
    for side, pictures in sides.items():
        answers = _answers(pictures, names, mask, work)
        rows += [_row(name, "filter" if name in filters else "held-out", side, *answers[name]) for name in names]
        gaps.append(_gap(side, *([answers[n][0] for n in group] for group in (filters, held_out))))
    return SelectionEffect(tuple(rows), (*gaps, _difference(*gaps)))


def check_models(filters: Sequence[str], held_out: Sequence[str], *, sample: int) -> None:
    """StageError for a model in both groups, ModelError for one that there cannot be; nothing is loaded."""
    names = (*filters, *held_out)
    if not filters or not held_out or len(set(names)) != len(names):
        raise StageError(f"expected at least one filter and one held-out model, each once, got {', '.join(names)}")
    for name in held_out:
        check_name(name)
    _check_sample(sample)


def _check_sample(count: int) -> None:
    if count < 1:
        raise StageError(f"expected a sample of at least 1 picture, got {count}")


def before(ledger: Ledger, since: str) -> Ledger:
    """The ledger that stage `since` was given."""
    names = [stage.name for stage in ledger.stages]
    if since not in names[1:]:
        raise StageError(f"expected the name of a stage after the first, got {since!r}; stages: {', '.join(names)}")
    return Ledger(ledger.stages[: names.index(since)])


def sampled(rows: Rows, count: int, seed: int) -> Rows:
    """`count` rows drawn uniformly by `seed` and id, in their order; all of them where there are fewer."""
    _check_sample(count)
    draws = sorted((hashlib.sha256(f"{seed}:{key}".encode()).hexdigest(), i) for i, key in enumerate(rows.table.ids))
    where = sorted(i for _, i in draws[:count])
    table = RowTable(
        tuple(rows.table.ids[i] for i in where),
        tuple(rows.table.keys[i] for i in where),
        tuple(rows.table.labels[i] for i in where),
        {name: [values[i] for i in where] for name, values in rows.table.groups.items()},
    )
    name = f"{rows.dataset}-sample-{len(where)}-{seed}"
    return replace(rows, dataset=name, table=table, read=lambda i: rows.read(where[i]))


def _answers(rows: Rows, names: Sequence[str], mask: Sequence[int], work: Work) -> dict[str, tuple[Correct, int]]:
    """Model -> (whether it is right on each picture with a class of the mask, how many it could not read)."""
    found: dict[str, tuple[Correct, int]] = {}
    for name, folder in forward(names, rows, work).items():
        correct: dict[str, bool] = {}
        unread = 0
        for piece in said(folder):
            outputs = piece.outputs.select(np.asarray(np.isin(piece.outputs.labels, mask).any(axis=1)))
            if len(outputs):
                right = hits(*restrict(outputs.logits, outputs.labels, list(mask)))
                correct |= zip(outputs.ids, right.tolist(), strict=True)
            unread += len(piece.failed)
        found[name] = (correct, unread)
    return found


def _row(name: str, role: Role, side: Side, correct: Correct, unread: int) -> ModelRow:
    if not correct:
        raise StageError(f"expected pictures with a class on the side {side!r}, got none that {name} could read")
    right, n = sum(correct.values()), len(correct)
    return ModelRow(name, role, side, n, right, right / n, *wilson(right, n), unread)


def _gap(side: Side, filters: Sequence[Correct], held_out: Sequence[Correct]) -> Gap:
    keys = sorted(set.intersection(*(set(correct) for correct in (*filters, *held_out))))
    if not keys:
        raise StageError(f"expected pictures on the side {side!r} that every model read, got none")
    means = [np.mean([[c[key] for key in keys] for c in group], axis=0) for group in (held_out, filters)]
    apart = means[0] - means[1]
    low, high = bootstrap(weighted.mean(apart), len(keys)) if np.ptp(apart) else (nan, nan)
    return Gap(side, float(apart.mean()), low, high, len(keys))


def _difference(filtered: Gap, sample: Gap) -> Gap:
    """Of two independent values, from their intervals (Zou and Donner 2008): the widths add up as squares."""
    value = filtered.value - sample.value
    down = hypot(filtered.value - filtered.low, sample.high - sample.value)
    up = hypot(filtered.high - filtered.value, sample.value - sample.low)
    return Gap("difference", value, value - down, value + up, filtered.pictures + sample.pictures)


def selection_lines(effect: SelectionEffect) -> list[str]:
    """Models and gaps as Markdown tables, with 95 % intervals."""
    lines = ["| model | role | pictures | accuracy |", "|---|---|---|---|"]
    for row in effect.rows:
        where = "the set" if row.side == "filtered" else "a sample of the pool"
        share = f"{100 * row.accuracy:.1f} % [{100 * row.low:.1f}, {100 * row.high:.1f}]"
        lines.append(f"| `{row.model}` | {row.role} | {where} ({row.pictures:,}) | {share} |")
    lines += ["", "Held-out models minus filters, mean accuracy in points:", ""]
    lines += [f"- {gap.side}: {100 * gap.value:.1f} {_spread(gap)} ({gap.pictures:,} pictures)" for gap in effect.gaps]
    return lines


def _spread(gap: Gap) -> str:
    if isnan(gap.low):
        return "[no interval: all pictures of a side alike]"
    return f"[{100 * gap.low:.1f}, {100 * gap.high:.1f}]"
