"""Fits from logits: arrays by name, for scores in from_logits.py. Memory: rows.py, and what each function names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import Rows
from .rows import Float, class_labels, log_probabilities, logit_chunks, matrix

Arrays = dict[str, NDArray[Any]]

# inverse temperatures that the search stays within
_LOWEST, _HIGHEST = 1e-3, 1e3


def templates(logits: ArrayLike) -> Arrays:
    """The mean posterior of each class: "templates" float64 (C, K) and "classes" int64 (C,), for `kl_matching`.

    logits  (N, K). Rows are grouped by the class that is predicted, as in the paper, so no labels are needed; a class
    that is never predicted has no template. Memory: 8 K^2 bytes more (8 MB for 1,000 classes).
    """
    array = matrix(logits, "logits")
    n_classes = array.shape[1]
    sums, counts = np.zeros((n_classes, n_classes)), np.zeros(n_classes, dtype=np.int64)
    for _, part in logit_chunks(array):
        posterior = np.exp(log_probabilities(part))
        add_by_class(sums, counts, posterior, part.argmax(axis=1))
    classes = np.flatnonzero(counts)
    return {"templates": sums[classes] / counts[classes, None], "classes": classes}


def temperature(logits: ArrayLike, labels: ArrayLike) -> Arrays:
    """The temperature of least negative log-likelihood: "temperature" float64 (), for `temperature_scaled_msp`.

    logits  (N, K).   labels  int (N,), a column of the logits each.
    The likelihood is convex in 1 / T, so the root of its slope, mean(E_p[z] - z_y), is found by Newton steps inside
    a bracket. ValueError where T would leave 0.001 .. 1000: rows that are all right, or worse than chance.
    Guo et al., ICML 2017, section 4.2.
    """
    array = matrix(logits, "logits")
    index = class_labels(labels, len(array), n_classes=array.shape[1])
    _finite_labels(array, index)
    low, high = _LOWEST, _HIGHEST
    if _slope(array, index, low)[0] >= 0 or _slope(array, index, high)[0] <= 0:
        raise ValueError(
            "expected fit rows with a temperature between 0.001 and 1000, got rows that are all classified right or no "
            "better than chance: fit on more rows, or check the labels"
        )
    inverse = 1.0
    for _ in range(60):  # a Newton step squares the error; bisection alone needs fewer than 60, too
        slope, curvature = _slope(array, index, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else low
        step = step if low < step < high else float(np.sqrt(low * high))
        converged = abs(step - inverse) <= 1e-12 * inverse
        inverse = step
        if converged:
            break
    return {"temperature": np.array(1 / inverse)}


def _finite_labels(array: Rows, index: NDArray[np.int64]) -> None:
    own = np.concatenate([part[np.arange(len(part)), index[where]] for where, part in logit_chunks(array)])
    masked = np.flatnonzero(np.isneginf(own))
    if masked.size:
        raise ValueError(
            f"expected labels among the classes of the mask, got {index[masked[0]]} at row {masked[0]}, whose logit is "
            "-inf: fit on rows of the masked classes"
        )


def _slope(array: Rows, index: NDArray[np.int64], inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean negative log-likelihood in 1 / T."""
    slope = curvature = 0.0
    for where, part in logit_chunks(array):
        z = np.where(np.isneginf(part), 0.0, part)  # those columns have probability 0 below
        p = np.exp(log_probabilities(part * inverse))
        mean = (p * z).sum(axis=1)
        slope += float((mean - z[np.arange(len(z)), index[where]]).sum())
        curvature += float((p * (z - mean[:, None]) ** 2).sum())
    return slope / len(array), curvature / len(array)


def add_by_class(sums: Float, counts: NDArray[np.int64], rows: Float, classes: NDArray[np.int64]) -> None:
    """Adds each row to the sum of its class, and 1 to its count, in place and in a fixed order."""
    order = np.argsort(classes, kind="stable")
    present, starts, sizes = np.unique(classes[order], return_index=True, return_counts=True)
    sums[present] += np.add.reduceat(rows[order], starts, axis=0)
    counts[present] += sizes
