"""How far people agree on the images: pairwise agreement and Krippendorff's alpha, with intervals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..metrics.resampling import percentile, resampled_weights
from ..metrics.weighted import Statistic, Weights
from .base import Answer, Item, Mode
from .votes import cast, images

Counts = NDArray[np.float64]  # (images, values): how many people gave each value
MOST_ALIKE = 0.9  # of the answers: beyond it alpha is near 0 even where people agree
MOST_UNDEFINED = 0.05  # of the replicates: beyond it those that are left are no fair sample


@dataclass(frozen=True)
class Agreement:
    """Agreement on one question; fractions, None where undefined, with the reason in `note`.

    images    with at least two answers; only they say anything.   answers  to those images.
    pairwise  mean over images of the fraction of pairs of people who gave the same answer.
    alpha     Krippendorff's, nominal: 1 full agreement, 0 as by chance, below 0 worse than chance.
    """

    question: str
    images: int
    answers: int
    pairwise: float | None
    pairwise_interval: tuple[float, float] | None
    alpha: float | None
    alpha_interval: tuple[float, float] | None
    note: str


def agreement(
    items: Sequence[Item],
    answers: Sequence[Answer],
    mode: Mode,
    *,
    workers: Collection[str] | None = None,
    replicates: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Agreement]:
    """question -> Agreement over the images (sentinels left out); errors as in `votes.cast`.

    workers  whose answers count; None: everyone's.
    The intervals are percentiles over resampled images, each with all its answers. Replicates in which only one value
    is left have no alpha and are left out; with more than one in twenty of those there is no interval.
    """
    votes = cast(items, answers, mode, workers=workers)
    found = {}
    for question in mode.questions:
        given = [list(votes[item.item_id, question.name].values()) for item in images(items)]
        found[question.name] = _agreement(question.name, counts(given), replicates, seed, level)
    return found


def counts(given: Sequence[Sequence[str]]) -> Counts:
    """How often each value was given, from the answers to each image: float64 (images, distinct values, sorted).

    >>> counts([["yes", "yes", "no"], ["no"], []]).tolist()
    [[1.0, 2.0], [1.0, 0.0], [0.0, 0.0]]
    """
    column = {value: i for i, value in enumerate(sorted({value for own in given for value in own}))}
    table = np.zeros((len(given), len(column)))
    for row, own in zip(table, given, strict=True):
        for value in own:
            row[column[value]] += 1
    return table


def pairwise_agreement(counts: ArrayLike) -> float:
    """Mean over images of the fraction of pairs of answers that are equal; NaN where no image has two answers.

    counts (images, values) as from `counts`. With the same number of answers everywhere it is the observed agreement of
    Fleiss (Psychological Bulletin 76, 1971).

    >>> round(pairwise_agreement([[3, 0], [2, 1], [0, 1]]), 4)  # (3 / 3 + 1 / 3) / 2
    0.6667
    """
    table = np.asarray(counts, dtype=np.float64)
    return float(_pairwise(table)(np.ones((1, len(table)), dtype=np.int64))[0])


def krippendorff_alpha(counts: ArrayLike) -> float:
    """Krippendorff's alpha for nominal values and any number of answers an image; NaN where undefined.

    1 - (n - 1) · Σ_u (n_u² - Σ_c n_uc²) / (n_u - 1) / (n² - Σ_c n_c²) over images u with n_u ≥ 2 answers, n their sum
    (Krippendorff, Content Analysis, 2nd edition 2004, chapter 11). Undefined without such an image, and where all gave
    one value: then chance cannot disagree either. Needs images × values of memory, not × values².

    >>> krippendorff_alpha([[2, 0], [0, 2]]), krippendorff_alpha([[1, 1], [1, 1]])  # 1 - 3·(2 + 2)/(16 - 8)
    (1.0, -0.5)
    """
    table = np.asarray(counts, dtype=np.float64)
    return float(_alpha(table)(np.ones((1, len(table)), dtype=np.int64))[0])


def _alpha(table: Counts) -> Statistic:
    """Alpha as a function of image weights."""
    pairable = table * (table.sum(axis=1, keepdims=True) > 1)
    answers = pairable.sum(axis=1)
    disagreement = (answers**2 - (pairable**2).sum(axis=1)) / np.maximum(answers - 1, 1)

    def statistic(weights: Weights) -> NDArray[np.float64]:
        each = weights @ pairable
        n = each.sum(axis=1)
        expected = (n**2 - (each**2).sum(axis=1)) / np.maximum(n - 1, 1)
        return 1 - _ratio(weights @ disagreement, expected)

    return statistic


def _pairwise(table: Counts) -> Statistic:
    """Pairwise agreement as a function of image weights."""
    answers = table.sum(axis=1)
    pairs = answers * (answers - 1)
    equal = (table * (table - 1)).sum(axis=1) / np.maximum(pairs, 1)
    counted = (pairs > 0).astype(np.float64)
    return lambda weights: _ratio(weights @ (equal * counted), weights @ counted)


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def _agreement(question: str, table: Counts, replicates: int, seed: int, level: float) -> Agreement:
    table = table[table.sum(axis=1) > 1]
    if not len(table):
        return Agreement(question, 0, 0, None, None, None, None, "no image has two answers")
    alpha = krippendorff_alpha(table)
    pairwise_values, alpha_values = _resampled(table, replicates, seed)
    interval, note = _alpha_interval(alpha, alpha_values, level)
    common = table.sum(axis=0).max() / table.sum()
    if not np.isnan(alpha) and common > MOST_ALIKE:
        note = f"{common:.0%} of the answers are alike: alpha, which compares with chance, says little; {note}"
    return Agreement(
        question,
        len(table),
        int(table.sum()),
        pairwise_agreement(table),
        percentile(pairwise_values, level=level),
        None if np.isnan(alpha) else alpha,
        interval,
        note.removesuffix("; "),
    )


def _alpha_interval(
    alpha: float, resampled: NDArray[np.float64], level: float
) -> tuple[tuple[float, float] | None, str]:
    """The interval, and what there is to say about it."""
    if np.isnan(alpha):
        return None, "everyone gave the same answer everywhere: alpha is not defined"
    defined = resampled[~np.isnan(resampled)]
    missing = resampled.size - defined.size
    if missing > MOST_UNDEFINED * resampled.size:
        return None, f"alpha is not defined in {missing} of {resampled.size} resamples: no interval"
    note = f"interval of alpha from {defined.size} of {resampled.size} resamples" if missing else ""
    return percentile(defined, level=level), note


def _resampled(table: Counts, replicates: int, seed: int) -> NDArray[np.float64]:
    """Pairwise agreement and alpha of resampled images: float64 (2, replicates)."""
    statistics = (_pairwise(table), _alpha(table))
    chunks = [
        np.stack([statistic(weights) for statistic in statistics])
        for weights in resampled_weights(len(table), replicates=replicates, seed=seed)
    ]
    return np.concatenate(chunks, axis=1)
