"""Pictures to tensors: what a model's own transform does, and the transforms that the protocols prescribe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..benchmarks.spec import Rule
from .base import ModelError, Preprocessing, Transform

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

Triple = tuple[float, float, float]

_TRIALS = 7  # a flip of every second picture escapes once in 2 ** 7


def transform_for(rule: Rule, preprocessing: Preprocessing) -> tuple[Transform, dict[str, Any]]:
    """The transform of `rule` for a model, and a JSON-able description of everything in it that changes a pixel.

    "shorter" resizes the shorter side to int(ratio * size) and crops the centre; "exact" resizes both sides to `size`
    and crops nothing. Both work on the PIL picture, whose resizing always filters (antialias). What the rule leaves
    open is the model's own. Raises ValueError where neither names an interpolation.
    """
    if rule.resize == "model":
        return preprocessing.transform, {"rule": rule.name, **preprocessing.description}
    size = rule.size or preprocessing.size
    mean, std = rule.mean or preprocessing.mean, rule.std or preprocessing.std
    interpolation = rule.interpolation or preprocessing.description.get("interpolation")
    if interpolation is None:
        raise ValueError(f"rule {rule.name!r} names no interpolation and the model's own is unknown: name one")
    shorter = int(rule.ratio * size) if rule.resize == "shorter" else None
    transform = _resize_and_normalise(size, shorter, str(interpolation), mean, std)
    facts = {
        "rule": rule.name,
        "backend": "PIL",
        "input_size": [size, size],
        "resize": {"shorter_side": shorter} if shorter else {"height": size, "width": size},
        "crop": {"centre": size} if shorter else None,
        "interpolation": str(interpolation),
        "antialias": True,
        "mean": list(mean),
        "std": list(std),
        "transform": plain_repr(transform),
    }
    return transform, facts


def _resize_and_normalise(size: int, shorter: int | None, interpolation: str, mean: Triple, std: Triple) -> Any:
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

    try:
        mode = InterpolationMode(interpolation)
    except ValueError as error:
        known = ", ".join(m.value for m in InterpolationMode)
        raise ValueError(f"unknown interpolation {interpolation!r}; known: {known}") from error
    if shorter is None:
        steps = [Resize((size, size), interpolation=mode)]
    else:
        steps = [Resize(shorter, interpolation=mode), CenterCrop(size)]
    return Compose([*steps, ToTensor(), Normalize(mean, std)])


def to_bytes_first(transform: Any) -> tuple[Callable[[Image], Image], Triple, Triple] | None:
    """The steps before ToTensor and Normalize, their mean and std; None where those two are not the last ones.

    A whole batch of 8-bit pixels is turned into floats at once faster than picture by picture, with the same bits.
    """
    from torchvision.transforms import Compose, Normalize, ToTensor

    if type(transform) is not Compose or len(transform.transforms) < 2:
        return None
    *steps, to_tensor, normalize = transform.transforms
    known = isinstance(to_tensor, ToTensor) and type(to_tensor).__module__.split(".")[0] in ("torchvision", "timm")
    if not known or type(normalize) is not Normalize:
        return None
    mean, std = (tuple(float(v) for v in values) for values in (normalize.mean, normalize.std))
    return (Compose(steps), mean, std) if len(mean) == len(std) == 3 else None


def plain_repr(thing: object) -> str:
    """repr on one line and without memory addresses, so that it is equal in every process.

    >>> plain_repr([1,
    ...             2])
    '[1, 2]'
    """
    return re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", repr(thing)))


def measured(
    transform: Callable[..., Any], description: Mapping[str, Any], *, name: str, size: int | None = None
) -> Preprocessing:
    """The Preprocessing of any transform; input size, mean and std are found by looking at what it does.

    One black and one white picture give both constants of the normalisation: (0 - mean) / std and (1 - mean) / std.
    Raises ModelError where the transform does not give one float tensor (3, side, side), or draws random numbers.
    """
    black, white = (_tried(transform, _even(level), name=name) for level in (0, 255))
    _check_same(transform, name=name)
    height, width = black.shape[1:]
    if height != width:
        raise ModelError(f"{name}: expected a transform to a square input, got {height} x {width} pixels")
    low, high = (image[:, height // 2, width // 2].double() for image in (black, white))
    if not bool((high > low).all()):
        raise ModelError(f"{name}: expected a transform that keeps white brighter than black, got {low} and {high}")
    std = 1 / (high - low)
    mean = -low * std
    means, stds = ([round(float(v), 5) for v in values] for values in (mean, std))
    facts = {
        "backend": "PIL", "input_size": [height, width], "interpolation": None, "antialias": None, "mean": means,
        "std": stds, "crop_pct": None, "crop_mode": None, **description, "transform": plain_repr(transform),
    }  # fmt: skip
    return Preprocessing(transform, size or int(height), _triple(means), _triple(stds), facts)


def _even(level: int) -> Image:
    from PIL import Image as Pillow

    return Pillow.new("RGB", (640, 480), (level, level, level))


def _tried(transform: Callable[..., Any], picture: Image, *, name: str) -> torch.Tensor:
    import torch

    from .trouble import library_errors

    with library_errors(f"{name}: its transform failed on an RGB picture"):
        image = transform(picture)
    if not isinstance(image, torch.Tensor) or image.ndim != 3 or image.shape[0] != 3 or not image.is_floating_point():
        got = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, torch.Tensor) else type(image).__name__
        raise ModelError(f"{name}: expected a transform that gives a float tensor (3, height, width), got {got}")
    return image


def _check_same(transform: Callable[..., Any], *, name: str) -> None:
    """ModelError for a transform that draws random numbers, as those for training do."""
    import torch

    picture = blocks(640, 480)
    first = _tried(transform, picture, name=name)
    for _ in range(_TRIALS):
        again = _tried(transform, picture, name=name)
        if again.shape != first.shape or not torch.equal(again, first):
            raise ModelError(
                f"{name}: expected a transform that always makes the same of one picture, got different pixels: give "
                "the one for evaluation, without random crops, flips or colours"
            )


def blocks(width: int, height: int) -> Image:
    """A picture of blocks of many colours, always the same: no crop, flip or change of colour leaves it as it is."""
    from PIL import Image as Pillow

    colours = np.random.default_rng(0).integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
    return Pillow.fromarray(colours).resize((width, height), Pillow.Resampling.NEAREST)


def _triple(values: list[float]) -> Triple:
    return (values[0], values[1], values[2])
