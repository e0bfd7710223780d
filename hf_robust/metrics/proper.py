"""Proper scores of whole probability vectors, and the temperature that makes them best.

labels are int (N,), or (N, L) padded with -1 where an image has several acceptable classes; those count as one event,
whose probability is their sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import Rows
from . import checks
from .accuracy import label_columns
from .softmax import chunks, log_sum_exp, matrix

# half-precision softmax over 1,000 classes is off by about 1e-2: refused, for the score would be too
SUM_SLACK = 1e-3
TEMPERATURES = (1e-3, 1e3)
NO_OUTPUT = -1e30  # stands for -inf where weights of 0 meet it: 0 times it is 0, not NaN


def _acceptable(labels: ArrayLike, array: Rows) -> NDArray[np.int64]:
    """The columns that are acceptable, int64 (N, L), each once however often a row repeats it, padded with -1."""
    columns = np.sort(label_columns(labels, array), axis=1)
    columns[:, 1:][columns[:, 1:] == columns[:, :-1]] = -1
    return columns


def _taken(part: NDArray[np.float64], columns: NDArray[np.int64], *, padding: float) -> NDArray[np.float64]:
    """Entries of the acceptable columns, (rows, L), `padding` where there is none."""
    return np.where(columns < 0, padding, np.take_along_axis(part, np.maximum(columns, 0), axis=1))


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Mean squared distance, in [0, 2], of the probabilities from the truth over all classes; lower is better.

    probabilities  (N, K) in [0, 1], rows sum to 1 (within 1e-3): see softmax.py.   labels: see the module.
    (1 - p)^2 + sum of the squares of all other classes, p the probability of the acceptable ones; with one label the
    score of Brier, Monthly Weather Review 78 (1950). ValueError names the first row that is no distribution.

    >>> round(brier_score([[0.8, 0.2]], [0]), 12)  # 0.2^2 + 0.2^2
    0.08
    >>> brier_score([[0.5, 0.25, 0.25]], [[0, 1]])  # (1 - 0.75)^2 + 0.25^2
    0.125
    """
    array = matrix(probabilities)
    columns = _acceptable(labels, array)
    checks.some_rows(columns, "probabilities")
    total = 0.0
    for rows in chunks(array):
        part = np.asarray(array[rows]).astype(np.float64)
        _distributions(part, first_row=rows.start)
        own = _taken(part, columns[rows], padding=0.0)
        others = (part**2).sum() - (own**2).sum()
        total += float(((1 - own.sum(axis=1)) ** 2).sum() + others)
    return total / len(array)


def _distributions(part: NDArray[np.float64], *, first_row: int) -> None:
    slack = checks.PROBABILITY_SLACK
    inside = ((part >= -slack) & (part <= 1 + slack)).all(axis=1)  # false for NaN
    bad = np.flatnonzero(~inside | (np.abs(part.sum(axis=1) - 1) > SUM_SLACK))
    if bad.size:
        raise ValueError(
            f"expected rows of probabilities in [0, 1] that sum to 1, got one with sum {part[bad[0]].sum():g} at row "
            f"{first_row + bad[0]}: pass softmax outputs in float32 or better, not logits or per cent"
        )


def negative_log_likelihood(logits: ArrayLike, labels: ArrayLike, *, temperature: float = 1.0) -> float:
    """Mean of -log(probability of the acceptable classes) in nats, >= 0; lower is better.

    logits  (N, K), divided by `temperature` before the softmax; log-probabilities do as well. -inf in a column that the
    model has no output for.   labels: see the module.
    ValueError where a row's acceptable classes all have -inf (the value would be infinite), for temperature <= 0, and
    for logits as in `log_sum_exp`.

    >>> round(negative_log_likelihood([[0.0, 0.0]], [1]), 6)  # log(2)
    0.693147
    """
    if not 0 < temperature < np.inf:
        raise ValueError(f"expected a positive temperature, got {temperature}: 1 leaves the logits as they are")
    array = matrix(logits)
    columns = _acceptable(labels, array)
    checks.some_rows(columns, "logits")
    total = 0.0
    for rows in chunks(array):
        part = np.asarray(array[rows]).astype(np.float64)
        checks.no_nan_logits(part, "logits", first_row=rows.start)
        part /= temperature
        own = _taken(part, columns[rows], padding=-np.inf)
        _possible(own, first_row=rows.start)
        total += float((log_sum_exp(part) - log_sum_exp(own)).sum())
    return max(0.0, total / len(array))


def _possible(own: NDArray[np.float64], *, first_row: int) -> None:
    bad = np.flatnonzero(np.isneginf(own).all(axis=1))
    if bad.size:
        raise ValueError(
            f"expected a finite logit for an acceptable class, got none at row {first_row + bad[0]}: the likelihood is "
            "zero there; leave out rows whose class the model has no output for"
        )


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """The temperature T whose softmax(logits / T) has the smallest negative log-likelihood of the labels.

    Guo et al., arXiv 1706.04599: T > 1 for an overconfident model. Newton's method on 1 / T inside a bracket; the
    minimum is unique with one label a row. Input as in `negative_log_likelihood`; fit on other rows than those that
    are scored. ValueError where no T in 1e-3 .. 1e3 is best: every row right (T would go to 0), or ranking no better
    than chance (T would grow without end).

    >>> round(fit_temperature([[np.log(9), 0]] * 4, [0, 0, 0, 1]), 6)  # 3 of 4 right: log(9) / T must be log(3)
    2.0
    """
    negative_log_likelihood(logits, labels)  # all checks
    array = matrix(logits)
    columns = _acceptable(labels, array)
    low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
    if _slope(array, columns, low)[0] >= 0 or _slope(array, columns, high)[0] <= 0:
        raise ValueError(
            f"expected logits with a best temperature in {TEMPERATURES[0]:g} .. {TEMPERATURES[1]:g}, got {len(array)} "
            "rows without one (all right, or no better than chance): fit on more rows, or check the labels"
        )
    beta = 1.0
    for _ in range(200):
        first, second = _slope(array, columns, beta)
        low, high = (beta, high) if first < 0 else (low, beta)
        step = beta - first / second if second > 0 else 0.0
        after = step if low < step < high else float(np.sqrt(low * high))
        if first == 0 or abs(after - beta) <= 1e-12 * beta:
            break
        beta = after
    return 1 / beta


def _slope(logits: Rows, columns: NDArray[np.int64], beta: float) -> tuple[float, float]:
    """First and second derivative of the summed negative log-likelihood in beta = 1 / T."""
    first = second = 0.0
    for rows in chunks(logits):
        part = np.asarray(logits[rows]).astype(np.float64)
        part -= part.max(axis=1, keepdims=True)
        np.maximum(part, NO_OUTPUT, out=part)
        own_mean, own_spread = _moments(_taken(part, columns[rows], padding=NO_OUTPUT), beta)
        mean, spread = _moments(part, beta)
        first += float((mean - own_mean).sum())
        second += float((spread - own_spread).sum())
    return first, second


def _moments(logits: NDArray[np.float64], beta: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of the logits of each row under softmax(beta x logits)."""
    weight = logits - logits.max(axis=1, keepdims=True)
    weight *= beta
    np.exp(weight, out=weight)
    total = weight.sum(axis=1)
    mean = np.einsum("ij,ij->i", weight, logits) / total
    weight *= logits
    return mean, np.einsum("ij,ij->i", weight, logits) / total - mean**2
