"""Scores from heads that a network was trained with beside its classifier: float64 (N,), higher = more OOD."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .rows import Float, log_probabilities


def confidence_branch(confidence_logit: ArrayLike) -> Float:
    """Minus the learned confidence, -sigmoid(c): float64 (N,) in [-1, 0].

    confidence_logit  (N,), the branch's output before its sigmoid. DeVries and Taylor 2018 (arXiv 1802.04865);
    one of the detectors of the ImageNet-O paper.

    >>> confidence_branch([0.0]).tolist()
    [-0.5]
    """
    c = _finite(confidence_logit, "confidence_logit", "(N,)", (1,))
    # both forms of the sigmoid, so that neither exponential overflows
    small = np.exp(-np.abs(c))
    return np.asarray(-np.where(c >= 0, 1 / (1 + small), small / (1 + small)))


def rotation(rotation_logits: ArrayLike) -> Float:
    """How badly the rotation head sees which way up the picture is, a cross-entropy in nats: float64 (N,) >= 0.

    rotation_logits  (N, 4), the head's logits for 0, 90, 180 and 270 degrees on the picture as it is, which is what
                     one forward gives: -log softmax(z)_0. Or (N, 4, 4), where [:, r] are the logits on the picture
                     turned by r * 90 degrees: the mean over r of -log softmax(z_r)_r.
    Hendrycks et al., NeurIPS 2019 (arXiv 1906.12340): the mean over four turns is their rotation term; one
    pass gives its first part. They add -KL(uniform || class posterior) for classifiers; this is the rotation alone.

    >>> rotation([[0.0, 0.0, 0.0, 0.0]]).round(6).tolist()  # log 4
    [1.386294]
    """
    z = _finite(rotation_logits, "rotation_logits", "(N, 4) or (N, 4, 4)", (2, 3))
    if z.shape[1:] not in ((4,), (4, 4)):
        raise ValueError(
            f"expected rotation_logits of shape (N, 4) or (N, 4, 4), got {z.shape}: one logit for each quarter turn"
        )
    if z.ndim == 2:
        return np.asarray(-log_probabilities(z)[:, 0])
    turns = [-log_probabilities(z[:, r])[:, r] for r in range(4)]
    return np.asarray(np.mean(turns, axis=0))


def _finite(values: ArrayLike, name: str, shape: str, dimensions: tuple[int, ...]) -> Float:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected numbers in {name}, got {array.dtype}: pass the outputs of that head")
    if array.ndim not in dimensions or not array.size:
        raise ValueError(f"expected {name} of shape {shape}, N >= 1, got {array.shape}: pass one row for each image")
    result = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(result).reshape(len(result), -1).all(axis=1))
    if bad.size:
        raise ValueError(
            f"expected finite values in {name}, got one that is not at row {bad[0]}: run that image again in float32"
        )
    return result
