"""Scores from penultimate features: float64 (N,), higher = more out-of-distribution.

Every function takes (N, D) features, finite, all from one model; `head` is that model's last layer, or its rows for a
class mask (LinearHead.masked), and `fitted` the arrays of the fit that is named (fit_features.py).
Errors, everywhere: ValueError naming the row for what is not finite, and for a wrong shape, width or no row; TypeError
for what is no number. Memory: rows.py; a head is held in float64, 8 K D bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .head import Head, parts
from .rows import Float, chunks, each_feature_row, log_sum_exp, matrix, same_width, within

Arrays = Mapping[str, NDArray[Any]]


def knn(features: ArrayLike, fitted: Arrays, *, k: int = 50) -> Float:
    """Distance to the k-th nearest fit row, both scaled to length 1: float64 (N,) in [0, 2].

    fitted  "bank" of `bank`. Sun et al., ICML 2022: k = 1,000 for all of ImageNet's training images and 10 for 1 % of
    them; 50 goes with the default bank of 50,000 rows. ValueError where the bank holds fewer than k.
    Time: N * bank * D multiply-adds. Memory: rows.py, however large the bank.
    """
    array, rows = matrix(features, "features"), fitted["bank"]
    same_width(array, rows.shape[1], "the fit")
    if not 1 <= k <= len(rows):
        raise ValueError(f"expected k in 1 .. {len(rows)}, the rows of the bank, got {k!r}: fit on more rows")

    blocks = list(chunks(len(rows), 4 * rows.shape[1]))  # a quarter, for its copies stand beside those of the rows

    def kth_distance(part: Float) -> Float:
        part = _unit(part)
        nearest = np.full((len(part), k), np.inf)
        for where in blocks:
            squares = _squared_distances(part, _unit(rows[where].astype(np.float64)))
            both = np.concatenate([nearest, squares], axis=1)
            nearest = np.partition(both, k - 1, axis=1)[:, :k]
        return np.asarray(np.sqrt(nearest.max(axis=1)))

    return each_feature_row(array, kth_distance, width=blocks[0].stop + k)


def mahalanobis(features: ArrayLike, fitted: Arrays) -> Float:
    """Squared Mahalanobis distance to the nearest class, min_c (x - m_c)^T S^-1 (x - m_c): float64 (N,) >= 0.

    fitted  the arrays of `gaussians`. Lee et al., NeurIPS 2018, equation 2.
    """
    array, means = matrix(features, "features"), fitted["means"]
    same_width(array, len(fitted["centre"]), "the fit")

    def nearest(part: Float) -> Float:
        return np.asarray(_squared_distances((part - fitted["centre"]) @ fitted["whitening"], means).min(axis=1))

    return each_feature_row(array, nearest, width=len(means))


def relative_mahalanobis(features: ArrayLike, fitted: Arrays) -> Float:
    """`mahalanobis` less the squared distance to one Gaussian of all rows, min_c d_c(x) - d_0(x): float64 (N,).

    fitted  the arrays of `relative_gaussians`. Ren et al. 2021 (arXiv 2106.09022).
    """
    array = matrix(features, "features")
    own = mahalanobis(array, fitted)

    def background(part: Float) -> Float:
        return np.asarray((((part - fitted["centre"]) @ fitted["background"]) ** 2).sum(axis=1))

    return np.asarray(own - each_feature_row(array, background))


def residual(features: ArrayLike, fitted: Arrays) -> Float:
    """Length of what leaves the principal space, ||R^T (x - origin)||: float64 (N,) >= 0.

    fitted  "origin" and "residual" of `subspace`. Wang et al., CVPR 2022 (arXiv 2203.10807).
    """
    array = matrix(features, "features")
    same_width(array, len(fitted["origin"]), "the fit")
    return each_feature_row(
        array, lambda x: np.asarray(np.linalg.norm((x - fitted["origin"]) @ fitted["residual"], axis=1))
    )


def vim(features: ArrayLike, head: Head, fitted: Arrays) -> Float:
    """The virtual logit against the real ones, alpha ||R^T (x - origin)|| - log sum_k exp(z_k): float64 (N,).

    fitted  the arrays of `subspace`, made with the same head (the same mask). Wang et al., CVPR 2022: the probability
    of the virtual class is monotone in it.
    """
    array = matrix(features, "features")
    return np.asarray(float(fitted["alpha"]) * residual(array, fitted) + _energy(array, head))


def react(features: ArrayLike, head: Head, fitted: Arrays) -> Float:
    """The energy after clipping activations from above, -log sum_k exp((W min(x, c) + b)_k): float64 (N,).

    fitted  "threshold" c of `clip`. Sun et al., NeurIPS 2021 (arXiv 2111.12797).
    """
    threshold = float(fitted["threshold"])
    return _energy(features, head, lambda x: np.minimum(x, threshold))


def ash(features: ArrayLike, head: Head, *, variant: Literal["s", "b", "p"] = "s", percentile: float = 90.0) -> Float:
    """The energy after activation shaping: float64 (N,).

    Of each row the D - round(D * percentile / 100) highest activations stay (at ties the first), the rest become 0.
    "p" leaves it there; "b" sets each that stays to (sum of all) / (how many stay); "s" multiplies by
    exp(sum of all / sum of those that stay). The paper's percentiles for ImageNet: 90 for s, 65 for b, 60 for p.
    Made for non-negative activations; "s" raises ValueError naming the row where those that stay do not sum to more
    than 0. Djurisic et al., ICLR 2023 (arXiv 2209.09858).
    """
    if variant not in ("s", "b", "p"):
        raise ValueError(f"expected the variant s, b or p, got {variant!r}: they are ASH-S, ASH-B and ASH-P")
    within(percentile, "percentile", 0, 100)

    def shaped(x: Float) -> Float:
        kept = _kept(x.shape[1], percentile)
        columns = np.argsort(-x, axis=1, kind="stable")[:, :kept]
        values = np.take_along_axis(x, columns, axis=1)
        if variant == "b":
            values = np.broadcast_to(x.sum(axis=1, keepdims=True) / kept, values.shape)
        elif variant == "s":
            values = values * _stretch(x, values)[:, None]
        result = np.zeros_like(x)
        np.put_along_axis(result, columns, values, axis=1)
        return result

    return _energy(features, head, shaped)


def scale(features: ArrayLike, head: Head, *, percentile: float = 85.0) -> Float:
    """The energy after scaling each row by exp(sum of all / sum of its highest activations): float64 (N,).

    The highest are the D - round(D * percentile / 100) largest of the row; nothing is set to 0. 85 is the paper's.
    Made for non-negative activations; ValueError as in `ash`. Xu et al., ICLR 2024 (arXiv 2310.00227).
    """
    within(percentile, "percentile", 0, 100)

    def scaled(x: Float) -> Float:
        kept = _kept(x.shape[1], percentile)
        highest = np.sort(x, axis=1)[:, x.shape[1] - kept :]
        return np.asarray(x * _stretch(x, highest)[:, None])

    return _energy(features, head, scaled)


def dice(features: ArrayLike, head: Head, fitted: Arrays, *, percentile: float = 70.0) -> Float:
    """The energy over the weights that matter on fit rows: float64 (N,).

    Weights whose contribution (mean activation * weight) is at most the `percentile` of all K * D contributions
    become 0; over the head that is given, so a mask counts its own classes alone. 70 is the paper's for ImageNet.
    fitted  "mean" of `mean_feature`. Sun and Li, ECCV 2022 (arXiv 2111.09805).
    """
    fraction = within(percentile, "percentile", 0, 100) / 100
    weight, bias = parts(head)
    array = matrix(features, "features")
    same_width(array, weight.shape[1], "the head")
    same_width(array, len(fitted["mean"]), "the fit")
    contribution = weight * fitted["mean"]
    sparse = np.where(contribution > np.quantile(contribution, fraction), weight, 0.0)
    return each_feature_row(array, lambda x: -log_sum_exp(x @ sparse.T + bias), width=len(weight))


def she(features: ArrayLike, head: Head, fitted: Arrays) -> Float:
    """Minus the inner product with the pattern of the predicted class, -<x, s_k>: float64 (N,).

    fitted  "patterns" (K, D) of `patterns`, made with the same head. Zhang et al., ICLR 2023.
    """
    array = matrix(features, "features")
    weight, bias = parts(head)
    stored = fitted["patterns"]
    if stored.shape != weight.shape:
        raise ValueError(
            f"expected a head of shape {stored.shape}, that of the fit, got {weight.shape}: use one class mask for both"
        )
    same_width(array, weight.shape[1], "the head")
    return each_feature_row(
        array, lambda x: -(x * stored[(x @ weight.T + bias).argmax(axis=1)]).sum(axis=1), width=len(weight)
    )


def _energy(features: ArrayLike, head: Head, shape: Any = None) -> Float:
    """-log sum_k exp((W shape(x) + b)_k): `shape` maps float64 chunks (n, D) to the same shape."""
    array = matrix(features, "features")
    weight, bias = parts(head)
    same_width(array, weight.shape[1], "the head")
    return each_feature_row(
        array, lambda x: -log_sum_exp((x if shape is None else shape(x)) @ weight.T + bias), width=len(weight)
    )


def _kept(width: int, percentile: float) -> int:
    return max(1, width - round(width * percentile / 100))


def _stretch(rows: Float, kept: Float) -> Float:
    """exp(sum of a row / sum of what is kept of it); 1 for a row of zeros, which no factor changes."""
    total, part = rows.sum(axis=1), kept.sum(axis=1)
    zero = ~rows.any(axis=1)
    # an exponent beyond 700 overflows; it needs activations far from the non-negative ones that this is made for
    bad = np.flatnonzero(~zero & ((part <= 0) | (total > 700 * part)))
    if bad.size:
        raise ValueError(
            "expected activations whose highest sum to more than 0, as after a ReLU, got a row whose highest sum to "
            f"{part[bad[0]]:g} and all to {total[bad[0]]:g}: ASH-S and SCALE are not defined for this model's features"
        )
    return np.exp(np.where(zero, 0.0, total / np.where(zero, 1.0, part)))


def _unit(rows: Float) -> Float:
    """Rows at length 1; a row of zeros stays one."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(length > 0, length, 1.0))


def _squared_distances(rows: Float, others: Float) -> Float:
    """(n, m) squared Euclidean distances; rounding below 0 is cut off."""
    squares = (rows**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * (rows @ others.T)
    return np.asarray(np.maximum(squares, 0.0))
