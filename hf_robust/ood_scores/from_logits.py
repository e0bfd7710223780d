"""Scores from logits: float64 (N,), higher = more out-of-distribution.

Every function takes (N, K) logits, all of a model's or those of a class mask: restricting the columns first and setting
the others to -inf give the same score, because a -inf column has probability 0 and takes part in nothing.
Errors, everywhere: ValueError naming the row for NaN, +inf or a row of -inf alone, and for a wrong shape or no row;
TypeError for what is no number. Memory: see rows.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .head import Head, parts
from .rows import Float, each_logit_row, log_probabilities, log_sum_exp, matrix


def msp(logits: ArrayLike) -> Float:
    """Minus the maximum softmax probability, -max_k p_k: float64 (N,) in [-1, 0).

    Hendrycks and Gimpel, ICLR 2017; the score of ImageNet-O's published numbers.

    >>> msp([[1.0, 1.0, 1.0, 1.0]]).round(12).tolist()
    [-0.25]
    """
    return each_logit_row(logits, lambda z: -np.exp(log_probabilities(z).max(axis=1)))


def max_logit(logits: ArrayLike) -> Float:
    """Minus the maximum logit, -max_k z_k: float64 (N,). Hendrycks et al., ICML 2022 (arXiv 1911.11132).

    >>> max_logit([[1.0, 3.0]]).tolist()
    [-3.0]
    """
    return each_logit_row(logits, lambda z: -z.max(axis=1))


def energy(logits: ArrayLike, *, temperature: float = 1.0) -> Float:
    """The free energy -T log sum_k exp(z_k / T): float64 (N,). Liu et al., NeurIPS 2020, equation 4; T = 1 there.

    >>> energy([[0.0, 0.0]]).round(6).tolist()  # -log 2
    [-0.693147]
    """
    t = _positive(temperature)
    return each_logit_row(logits, lambda z: -t * log_sum_exp(z / t))


def entropy(logits: ArrayLike) -> Float:
    """The Shannon entropy of the softmax, -sum_k p_k log p_k in nats: float64 (N,) in [0, log K].

    Zero probabilities add 0. Used for out-of-distribution detection by Chan et al., ICCV 2021.

    >>> entropy([[5.0, 5.0]]).round(6).tolist()  # log 2
    [0.693147]
    """
    return each_logit_row(logits, lambda z: -_expected(log_probabilities(z)))


def margin(logits: ArrayLike) -> Float:
    """Minus the gap between the two highest softmax probabilities, -(p_1 - p_2): float64 (N,) in [-1, 0].

    A single class has p_2 = 0. Scheffer et al., IDA 2001 (active learning's margin).

    >>> margin([[2.0, 2.0, 0.0]]).tolist() == [0.0]
    True
    """

    def gap(z: Float) -> Float:
        p = np.exp(log_probabilities(z))
        if p.shape[1] == 1:
            return -p[:, 0]
        top = np.partition(p, -2, axis=1)[:, -2:]
        return np.asarray(top[:, 0] - top[:, 1])

    return each_logit_row(logits, gap)


def gen(logits: ArrayLike, *, gamma: float = 0.1, top: int = 100) -> Float:
    """The generalised entropy sum p^gamma (1 - p)^gamma over the `top` highest probabilities: float64 (N,) >= 0.

    Liu, Lochman and Zach, CVPR 2023; gamma 0.1 and top 100 are theirs for ImageNet; fewer classes than
    `top` all take part. 1 - p of the highest class is summed over the other classes, so that confident rows do not
    all tie at 0. Memory: rows.py.

    >>> gen([[0.0, 0.0]], gamma=1.0).round(12).tolist()  # 2 * 0.5 * 0.5
    [0.5]
    """
    if gamma <= 0 or top < 1:
        raise ValueError(f"expected gamma > 0 and top >= 1, got {gamma!r} and {top!r}: the paper uses 0.1 and 100")

    def generalised(z: Float) -> Float:
        keep = min(top, z.shape[1])
        log_p = log_probabilities(np.partition(z, sorted({z.shape[1] - keep, z.shape[1] - 1}), axis=1))
        rest = np.exp(log_p[:, :-1]).sum(axis=1)
        p = np.exp(log_p[:, -keep:-1])
        return np.asarray(((p * (1 - p)) ** gamma).sum(axis=1) + (np.exp(log_p[:, -1]) * rest) ** gamma)

    return each_logit_row(logits, generalised)


def kl_matching(logits: ArrayLike, fitted: Mapping[str, NDArray[Any]]) -> Float:
    """The least divergence from a class's typical posterior, min_k KL(p || d_k): float64 (N,) >= 0.

    fitted  "templates" (C, K) of `fit_logits.templates`: d_k is the mean posterior of the fit rows predicted as k.
    Hendrycks et al., ICML 2022 (arXiv 1911.11132). Where a template has probability 0, log d counts as
    -1000 (below any positive double), so mask the fit and the scored logits alike.
    """
    array, templates = matrix(logits, "logits"), fitted["templates"]
    if array.shape[1] != templates.shape[1]:
        raise ValueError(
            f"expected logits of width {templates.shape[1]}, that of the fit, got {array.shape[1]}: use one class mask "
            "for the fit and the scored rows"
        )
    with np.errstate(divide="ignore"):
        log_d = np.maximum(np.log(templates), -1000.0)

    def divergence(z: Float) -> Float:
        log_p = log_probabilities(z)
        cross = np.exp(log_p) @ log_d.T
        # rounding can leave a tiny negative number where p equals a template
        return np.asarray(np.maximum(_expected(log_p) - cross.max(axis=1), 0.0))

    return each_logit_row(array, divergence, width=len(templates))


def temperature_scaled_msp(
    logits: ArrayLike, fitted: Mapping[str, NDArray[Any]] | None, *, temperature: float | None = None
) -> Float:
    """Minus the maximum softmax probability at a temperature, -max_k softmax(z / T)_k: float64 (N,) in [-1, 0).

    Give `temperature`, or the fit of `fit_logits.temperature` (minimum negative log-likelihood); not both.
    Guo et al., ICML 2017; as a detector in ODIN (Liang et al., ICLR 2018).

    >>> temperature_scaled_msp([[0.0, 2.0]], None, temperature=1e9).round(6).tolist()
    [-0.5]
    """
    if (temperature is None) == (fitted is None):
        raise ValueError(
            f"expected either a temperature or a fit, got {'neither' if fitted is None else 'both'}: pass "
            "temperature=T, or the fit of labelled rows"
        )
    t = _positive(float(fitted["temperature"]) if fitted is not None else temperature)
    return each_logit_row(logits, lambda z: -np.exp(log_probabilities(z / t).max(axis=1)))


def mcm(logits: ArrayLike, head: Head) -> Float:
    """Maximum concept matching of a zero-shot model, -max_k softmax(cosine)_k: float64 (N,) in [-1, 0).

    logits  (N, K) = scale * cosine(image, text k), as a zero-shot run stores them.
    head    the head they were made with: the length of its weight rows is the scale, which is divided out here.
    ValueError for a head whose rows differ in length or with a bias (an ordinary classifier), and for logits beyond
    the scale. Ming et al., NeurIPS 2022 (arXiv 2211.13445), at their temperature of 1.
    """
    weight, bias = parts(head)
    lengths = np.linalg.norm(weight, axis=1)
    scale = float(lengths.mean())
    if not scale or np.abs(lengths - scale).max() > 1e-3 * scale or bias.any():
        raise ValueError(
            "expected the head of a zero-shot model (weight rows of one length, no bias), got rows of length "
            f"{lengths.min():g} to {lengths.max():g}: mcm is not defined for other classifiers, use msp"
        )

    def matching(z: Float) -> Float:
        cosine = z / scale
        if np.abs(cosine[np.isfinite(cosine)]).max() > 1.01:  # half-precision embeddings are a little off unit length
            raise ValueError(
                f"expected logits within the head's scale {scale:g}, got {np.abs(z[np.isfinite(z)]).max():g}: pass the "
                "logits of this head over normalised embeddings"
            )
        return np.asarray(-np.exp(log_probabilities(cosine).max(axis=1)))

    return each_logit_row(logits, matching)


def _positive(temperature: float | None) -> float:
    if temperature is None or not 0 < temperature < np.inf:
        raise ValueError(f"expected a positive temperature, got {temperature!r}: 1 leaves the logits as they are")
    return float(temperature)


def _expected(log_p: Float) -> Float:
    """sum_k p_k log p_k of each row, 0 * log 0 = 0."""
    return np.asarray((np.exp(log_p) * np.where(np.isneginf(log_p), 0.0, log_p)).sum(axis=1))
