"""Fits from features: arrays by name, for scores in from_features.py.

Every function reads (N, D) features, rows on disk if they are many, in chunks (rows.py); what it holds beside one
chunk stands in its docstring, and none of it grows with N. The same rows give the same bytes again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import Rows
from .fit_logits import Arrays, add_by_class
from .head import Head, parts
from .quantile import quantile
from .rows import Float, class_labels, feature_chunks, matrix, same_width, within


def bank(features: ArrayLike, *, max_rows: int = 50_000, seed: int = 0) -> Arrays:
    """The rows that neighbours are looked for among: "bank" (at most max_rows, D) in their own precision, for `knn`.

    Where there are more than `max_rows`, that many are drawn without replacement by `seed` and keep their order.
    Memory: the bank, 4 * max_rows * D bytes in float32 (410 MB for 50,000 rows of 2,048).
    """
    array = matrix(features, "features")
    if max_rows < 1:
        raise ValueError(f"expected max_rows of 1 or more, got {max_rows!r}: it bounds the memory of the bank")
    for _ in feature_chunks(array):  # refuses rows that are not finite
        pass
    if len(array) <= max_rows:
        return {"bank": np.array(array)}
    chosen = np.sort(np.random.default_rng(seed).choice(len(array), size=max_rows, replace=False))
    return {"bank": np.array(array[chosen])}


def gaussians(features: ArrayLike, labels: ArrayLike, *, shrinkage: float = 0.0) -> Arrays:
    """One Gaussian a class with a shared covariance, for `mahalanobis`.

    features (N, D), labels int (N,), any non-negative classes; classes without a row have no Gaussian.
    "classes" int64 (C,); "centre" float64 (D,), the mean of all rows; "whitening" float64 (D, R), a square root of
    the inverse covariance; "means" float64 (C, R), the whitened class means.
    The covariance is sum_n (x_n - mean of its class)(...)^T / N, the paper's divisor (not N - 1, not N - C, not per
    class). `shrinkage` s mixes it with (trace / D) * identity, (1 - s) : s. At s = 0 directions without variance are
    left out (a pseudo-inverse): what differs only there is not seen, so shrink where N is below D.
    Memory: 16 C D + about 32 D^2 bytes (160 MB for 1,000 classes of 2,048 features). Lee et al., NeurIPS 2018, eq. 1.
    """
    array = matrix(features, "features")
    classes, means, group = _class_means(array, labels)
    centre = _mean(array)
    whitening = _whitening(_covariance(array, means, group), shrinkage)
    return {"classes": classes, "centre": centre, "whitening": whitening, "means": (means - centre) @ whitening}


def relative_gaussians(features: ArrayLike, labels: ArrayLike, *, shrinkage: float = 0.0) -> Arrays:
    """The arrays of `gaussians` and "background" float64 (D, R'), for `relative_mahalanobis`.

    "background" is the square root of the inverse of one covariance of all rows about their mean, also divided by N.
    Options, errors and memory as there. Ren et al. 2021 (arXiv 2106.09022).
    """
    array = matrix(features, "features")
    arrays = gaussians(array, labels, shrinkage=shrinkage)
    total = _covariance(array, arrays["centre"][None], np.zeros(len(array), dtype=np.int64))
    return {**arrays, "background": _whitening(total, shrinkage)}


def subspace(features: ArrayLike, head: Head, *, dimension: int | None = None) -> Arrays:
    """The origin and the space that features hardly leave, for `residual` and `vim`.

    features (N, D), head (K, D).
    "origin" float64 (D,) = -pinv(W) b; "residual" float64 (D, D - dimension), eigenvectors of the smallest
    eigenvalues of sum_n (x_n - origin)(...)^T / N; "alpha" float64 (), mean highest logit over mean residual length.
    `dimension` of the principal space: by default the paper's 1,000 where D > 1,500 and 512 below, and D // 2 where D
    is 512 or less. ValueError where it is not in 1 .. D - 1, or there are fewer rows than it: the space is undefined.
    Memory: 8 K D for the head and about 32 D^2 bytes. Wang et al., CVPR 2022.
    """
    array = matrix(features, "features")
    weight, bias = parts(head)
    same_width(array, weight.shape[1], "the head")
    width = array.shape[1]
    size = _dimension(width) if dimension is None else dimension
    if not 1 <= size < width or len(array) < size:
        raise ValueError(
            f"expected a principal space of 1 .. {width - 1} dimensions and at least as many fit rows, got "
            f"{size} dimensions and {len(array)} rows: fit on more rows or pass a smaller dimension"
        )
    origin = -np.linalg.pinv(weight) @ bias
    scatter = _covariance(array, origin[None], np.zeros(len(array), dtype=np.int64))
    residual = np.ascontiguousarray(np.linalg.eigh(scatter)[1][:, : width - size])
    logits = lengths = 0.0
    for _, part in feature_chunks(array, width=len(weight)):
        logits += float((part @ weight.T + bias).max(axis=1).sum())
        lengths += float(np.linalg.norm((part - origin) @ residual, axis=1).sum())
    if lengths <= 0:
        raise ValueError("expected fit rows that leave the principal space, got none: pass a smaller dimension")
    return {"origin": origin, "residual": residual, "alpha": np.array(logits / lengths)}


def clip(features: ArrayLike, *, percentile: float = 90.0) -> Arrays:
    """The activation above which ReAct clips: "threshold" float64 (), for `react`.

    The `percentile` of all N * D activations together, exact, linear between neighbours; 90 is the paper's.
    Memory: one chunk, two to eight passes over the rows. Sun et al., NeurIPS 2021 (arXiv 2111.12797).
    """
    fraction = within(percentile, "percentile", 0, 100) / 100
    return {"threshold": np.array(quantile(matrix(features, "features"), fraction))}


def mean_feature(features: ArrayLike) -> Arrays:
    """The mean activation of each unit: "mean" float64 (D,), for `dice`. Memory: 8 D bytes. Sun and Li, ECCV 2022."""
    return {"mean": _mean(matrix(features, "features"))}


def patterns(features: ArrayLike, head: Head, labels: ArrayLike) -> Arrays:
    """The mean feature of the correctly classified rows of each class: "patterns" float64 (K, D), for `she`.

    features (N, D), head (K, D), labels int (N,), a row of the head each. ValueError names the first class without a
    correctly classified row. Memory: 24 K D bytes. Zhang et al., ICLR 2023.
    """
    array = matrix(features, "features")
    weight, bias = parts(head)
    same_width(array, weight.shape[1], "the head")
    index = class_labels(labels, len(array), n_classes=len(weight))
    sums, counts = np.zeros_like(weight), np.zeros(len(weight), dtype=np.int64)
    for where, part in feature_chunks(array, width=len(weight)):
        right = (part @ weight.T + bias).argmax(axis=1) == index[where]
        if right.any():
            add_by_class(sums, counts, part[right], index[where][right])
    missing = np.flatnonzero(counts == 0)
    if missing.size:
        raise ValueError(
            f"expected a correctly classified fit row of each of {len(weight)} classes, got none of {missing.size}, "
            f"the first class {missing[0]}: fit on more rows, or restrict the head to the classes that are scored"
        )
    return {"patterns": sums / counts[:, None]}


def _dimension(width: int) -> int:
    return 1000 if width > 1500 else 512 if width > 512 else width // 2


def _mean(array: Rows) -> Float:
    total = np.zeros(array.shape[1])
    for _, part in feature_chunks(array):
        total += part.sum(axis=0)
    return np.asarray(total / len(array))


def _class_means(array: Rows, labels: ArrayLike) -> tuple[NDArray[np.int64], Float, NDArray[np.int64]]:
    """The classes that occur, their means (C, D), and for each row the place of its class among them."""
    classes, group = np.unique(class_labels(labels, len(array)), return_inverse=True)
    sums, counts = np.zeros((len(classes), array.shape[1])), np.zeros(len(classes), dtype=np.int64)
    for where, part in feature_chunks(array):
        add_by_class(sums, counts, part, group[where])
    return classes, sums / counts[:, None], group


def _covariance(array: Rows, means: Float, group: NDArray[np.int64]) -> Float:
    """sum_n (x_n - means[group_n])(...)^T / N, in a second pass, so that large means cost no digits."""
    total = np.zeros((array.shape[1], array.shape[1]))
    for where, part in feature_chunks(array):
        part -= means[group[where]]
        total += part.T @ part
    return np.asarray(total / len(array))


def _whitening(covariance: Float, shrinkage: float) -> Float:
    """A (D, R) with A A^T = (pseudo-)inverse of the shrunk covariance."""
    s, width = within(shrinkage, "shrinkage", 0, 1), len(covariance)
    values, vectors = np.linalg.eigh((1 - s) * covariance + s * np.trace(covariance) / width * np.eye(width))
    keep = values > max(values[-1], 0.0) * width * np.finfo(np.float64).eps
    if not keep.any():
        raise ValueError(
            "expected fit rows that vary within their classes, got no variance in any direction: fit on more than one "
            "row a class"
        )
    return np.asarray(vectors[:, keep] / np.sqrt(values[keep]))
