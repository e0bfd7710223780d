"""What a component responds to: pictures made by ascent on its alpha, from grey, on the model that it belongs to.

APGD (Croce and Hein 2020, arXiv 2003.01690, algorithm 1) in an l2 ball, as in arXiv 2212.04871, section 3. Pixels
lie in [0, 1]; the model's normalisation is part of the objective. The same input gives the same bytes on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..labels import imagenet_1k
from ..models import Head, ImageClassifier, ModelError, weights_hash
from ..schema import EMBEDDINGS, FEATURES
from .alpha_files import Meter, StoredPCA
from .neural_pca import NeuralPCA

RADIUS, STEPS = 30.0, 200  # of the published pictures, at 224 x 224 pixels
GREY = 0.5
_TOGETHER = 8  # pictures a forward; the number is fixed, since it can change the last bits of an output
_FORWARD = 0.75  # weight of the gradient step against the last move
_FIRST, _SHRINK, _LEAST = 0.22, 0.03, 0.06  # the first check, then less and less far apart, as fractions of the steps
_RISING = 0.75  # fewer rises than that since the last check: the step is too long
_TINY = 1e-12

Objective = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Visualisation:
    """The picture that a component responds to most, as far as the ascent came.

    pixels       uint8 (side, side, 3).
    alpha        the part of the logit that the component gives on it; `grey` on the grey picture that it started from.
    probability  of the class on it: softmax over all outputs of the model.
    radius, steps  of the ascent.
    """

    component: int
    pixels: NDArray[np.uint8]
    alpha: float
    grey: float
    probability: float
    radius: float
    steps: int


def refuse_other_model(model: ImageClassifier, stored: StoredPCA) -> None:
    """Nothing for the model that the components were fitted to; ModelError for another."""
    found = weights_hash(model.module)
    if found != stored.facts["weights"]:
        raise ModelError(
            f"expected the model that the components belong to, {stored.facts['model']} with weights "
            f"{stored.facts['weights'][:12]}, got {model.name} with weights {found[:12]}: give that --model and "
            "--checkpoint, or fit the components of this one with hf-robust neural-pca fit"
        )


def visualise(
    model: ImageClassifier,
    stored: StoredPCA,
    components: Sequence[int],
    *,
    radius: float = RADIUS,
    steps: int = STEPS,
    meter: Meter | None = None,
) -> tuple[Visualisation, ...]:
    """A picture for each of the components, on the model that they belong to and the device that it lies on.

    ModelError for another model, or one without a linear head or without gradients; ValueError for a component that
    there is not.
    """
    refuse_other_model(model, stored)
    known = len(stored.pca.components) - stored.pca.remainder
    beyond = [c for c in components if not 0 <= c < known]
    if beyond:
        raise ValueError(f"expected components from 0 to {known - 1}, got {beyond[0]}: fit again with a larger --keep")
    head = _head(model)
    output = int(head.label_space.imagenet_1k_columns()[imagenet_1k().wnids.index(stored.facts["wnid"])])
    if not np.allclose(head.weight[output], stored.pca.weight, rtol=1e-4, atol=1e-5):
        raise ModelError(
            f"expected the head of {stored.facts['model']} that the components were fitted with, got another of "
            f"{model.name}: give the same model, and for a zero-shot one the same prompts"
        )
    found: list[Visualisation] = []
    for first in range(0, len(components), _TOGETHER):
        some = components[first : first + _TOGETHER]
        found += _pictures(model, stored.pca, head, output, some, radius=radius, steps=steps)
        if meter is not None:
            meter(len(found), len(components))
    return tuple(found)


def _pictures(
    model: ImageClassifier,
    pca: NeuralPCA,
    head: Head,
    output: int,
    components: Sequence[int],
    *,
    radius: float,
    steps: int,
) -> list[Visualisation]:
    objective, side = alpha_of(model, pca, components), model.preprocessing.size
    device = next(model.module.parameters()).device
    start = torch.full((len(components), 3, side, side), GREY, device=device)
    pictures, alphas = maximise(objective, start, radius=radius, steps=steps)
    with torch.no_grad():
        grey = objective(start).cpu().tolist()
        features = features_of(model)(pictures).double().cpu().numpy()
    logits = features @ head.weight.T.astype(np.float64) + head.bias
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = odds[:, output] / odds.sum(axis=1)
    pixels = (pictures * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    rows = zip(components, pixels, alphas.cpu().tolist(), grey, probability.tolist(), strict=True)
    return [Visualisation(*row, radius, steps) for row in rows]


def features_of(model: ImageClassifier) -> Objective:
    """A function from pictures (B, 3, side, side) in [0, 1] to the features (B, D) that the linear head reads."""
    forward, facts = model.with_features().forward, model.preprocessing
    channels_last = model.layout == "channels_last"

    def features(pictures: torch.Tensor) -> torch.Tensor:
        mean, std = (pictures.new_tensor(values).view(3, 1, 1) for values in (facts.mean, facts.std))
        batch = (pictures - mean) / std
        outputs = forward(batch.contiguous(memory_format=torch.channels_last) if channels_last else batch)
        return outputs[FEATURES] if FEATURES in outputs else outputs[EMBEDDINGS]

    return features


def alpha_of(model: ImageClassifier, pca: NeuralPCA, components: Sequence[int]) -> Objective:
    """A function from pictures (B, 3, side, side) in [0, 1] to alphas (B,): of picture i along components[i]."""
    features = features_of(model)
    chosen, sums = pca.components[list(components)], pca.sums[list(components)]
    slope, constant = chosen * pca.weight * sums[:, None], chosen @ pca.mean * sums

    def alphas(pictures: torch.Tensor) -> torch.Tensor:
        rows = features(pictures)
        weight, offset = (torch.as_tensor(a, dtype=rows.dtype, device=rows.device) for a in (slope, constant))
        return (rows * weight).sum(dim=1) - offset

    return alphas


def maximise(
    objective: Objective, start: torch.Tensor, *, radius: float, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best pictures within `radius` of `start` and in [0, 1], and the objective there, (B, …) and (B,).

    objective  (B, …) -> (B,), row by row. The step starts at twice the radius; at each check it is halved, and the
    ascent goes on from the best picture, where too few steps went up or nothing was gained.
    Source: arXiv 2003.01690, algorithm 1; after its projection onto the ball the picture is clipped.
    """
    if not (radius > 0 and steps >= 1):
        raise ValueError(f"expected a radius above 0 and at least 1 step, got {radius:g} and {steps}: such as 30, 200")
    checks, last = checkpoints(steps), 0
    at, before = start, start
    value, slope = _value_and_slope(objective, start)
    best, best_value, best_slope = at, value, slope
    step = torch.full_like(value, 2 * radius)
    rises, halved, checked_value = torch.zeros_like(value), torch.zeros_like(value, dtype=torch.bool), value
    for k in range(1, steps + 1):
        ahead = _inside(at + _wide(step, at) * slope, start, radius)
        share = 1.0 if k == 1 else _FORWARD
        at, before = _inside(at + share * (ahead - at) + (1 - share) * (at - before), start, radius), at
        now, slope = _value_and_slope(objective, at)
        rises += now > value
        value, gained = now, now > best_value
        best, best_slope = _where(gained, at, best), _where(gained, slope, best_slope)
        best_value = torch.where(gained, value, best_value)
        if k in checks:
            halved = (rises < _RISING * (k - last)) | (~halved & (checked_value >= best_value))
            step, value = torch.where(halved, step / 2, step), torch.where(halved, best_value, value)
            at, slope = _where(halved, best, at), _where(halved, best_slope, slope)
            rises, last, checked_value = torch.zeros_like(value), k, best_value
    return best, best_value


def checkpoints(steps: int) -> tuple[int, ...]:
    """After which steps the ascent is checked.

    >>> checkpoints(100)  # 22 steps, then 19, 16, 13, 10, 7, 6, 6
    (22, 41, 57, 70, 80, 87, 93, 99)
    """
    at, apart = _FIRST, _FIRST
    found = []
    while at < 1:
        found.append(math.ceil(round(at * steps, 9)))
        apart = max(apart - _SHRINK, _LEAST)
        at += apart
    return tuple(dict.fromkeys(found))


def _value_and_slope(objective: Objective, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) the objective and (B, …) the direction of steepest ascent, of length 1 a row; 0 where it is flat."""
    with torch.enable_grad():
        leaf = pictures.detach().requires_grad_(True)
        value = objective(leaf)
        if not value.requires_grad:
            raise ModelError(
                "expected a model whose outputs follow from the picture with gradients, got one without them: its "
                "forward must not run under torch.no_grad()"
            )
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    if not (bool(value.isfinite().all()) and bool(slope.isfinite().all())):
        raise ModelError("expected finite alphas and gradients, got NaN or infinite ones: run the model in float32")
    return value.detach(), slope / _wide(_lengths(slope).clamp_min(_TINY), slope)


def _inside(pictures: torch.Tensor, centre: torch.Tensor, radius: float) -> torch.Tensor:
    apart = pictures - centre
    shrunk = (radius / _lengths(apart).clamp_min(_TINY)).clamp_max(1.0)
    return (centre + apart * _wide(shrunk, apart)).clamp(0.0, 1.0)


def _lengths(rows: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
    return lengths


def _wide(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B,) -> (B, 1, …), so that it multiplies `like`."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _where(rows: torch.Tensor, this: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(_wide(rows, this), this, other)


def _head(model: ImageClassifier) -> Head:
    """The linear head over ImageNet classes that reads the features; ModelError where there is none."""
    for name in ("classifier", "imagenet-1k"):
        if name in model.heads:
            return model.heads[name]
    raise ModelError(
        f"{model.name}: expected logits that are one linear layer over one vector a picture, got a model where no such "
        "layer was found: it has no components"
    )
