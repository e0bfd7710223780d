"""What looks wrong about a model's input, as notes that stand beside every result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from .base import Preprocessing
from .first_layer import affine_before_first_layer

if TYPE_CHECKING:
    import torch

_DARKEST, _BRIGHTEST = 0.2, 0.8  # the mean of any large set of photos lies between, black 0 and white 1
_LEAST_GAIN = 0.9  # 1 where only the mean is taken off; a standard deviation is below 1
_ROUNDED = 1e-3  # constants of a normalisation are given with three or four digits


def normalisation_doubts(module: torch.nn.Module, preprocessing: Preprocessing) -> tuple[str, ...]:
    """What stands beside every result where the input seems to be normalised twice, not at all or otherwise.

    It does not refuse: a model may be made so.
    """
    affine = affine_before_first_layer(module, preprocessing.size)
    layered = any(
        layer.__class__.__name__.lower().startswith("normalize")
        or {"mean", "std"} <= {k for k, v in layer.named_buffers(recurse=False) if v is not None and v.numel() == 3}
        for layer in module.modules()
    )
    inside = layered if affine is None else _normalises(*affine)
    outside = preprocessing.mean != (0.0, 0.0, 0.0) or preprocessing.std != (1.0, 1.0, 1.0)
    found = {
        "the transform normalises and the model seems to do so again": inside and outside,
        "neither the transform nor the model seems to normalise (mean 0, std 1)": not inside and not outside,
        _other(module, preprocessing): outside and not inside and bool(_other(module, preprocessing)),
        "the transform gives the channels as blue, green, red": _is_blue_first(preprocessing),
    }
    return tuple(text for text, holds in found.items() if holds)


def _normalises(a: float, b: float) -> bool:
    """Whether a * picture + b is (picture - mean) / std for photos whose white is 1 or 255.

    Neither a change from one normalisation to another (torchvision's `transform_input`) nor one taken back is.
    """
    mean = -b / a
    return (a > _LEAST_GAIN and _DARKEST < mean < _BRIGHTEST) or _DARKEST < mean / 255 < _BRIGHTEST


def _other(module: torch.nn.Module, preprocessing: Preprocessing) -> str:
    """How the transform differs from the description that the module carries; empty where it does not."""
    told = getattr(module, "pretrained_cfg", None) or {}
    pairs = {"mean": preprocessing.mean, "std": preprocessing.std}
    others = [
        f"{name} {_words(made)} instead of {_words(told[name])}"
        for name, made in pairs.items()
        if told.get(name) and not _are_close(made, told[name])
    ]
    return f"the transform does not normalise as the model's pretrained_cfg says: {', '.join(others)}" if others else ""


def _words(values: Iterable[float]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _are_close(one: object, other: object) -> bool:
    values = [np.asarray(v, dtype=np.float64) for v in (one, other)]
    return values[0].shape == values[1].shape and bool(np.abs(values[0] - values[1]).max() < _ROUNDED)


def _is_blue_first(preprocessing: Preprocessing) -> bool:
    """Whether pure red comes out in the last channel."""
    from PIL import Image

    red = preprocessing.transform(Image.new("RGB", (640, 480), (255, 0, 0)))
    first, last = (float(red[k].mean()) * preprocessing.std[k] + preprocessing.mean[k] for k in (0, 2))
    return last > first
