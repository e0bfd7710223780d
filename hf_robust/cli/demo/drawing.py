"""Patterns and scenes drawn with numpy: the same pixels on every call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Colour = tuple[int, int, int]
Field = NDArray[np.floating[Any]]


def _grid(side: int) -> tuple[Field, Field]:
    line = np.linspace(0.0, 1.0, side, dtype=np.float64)
    return np.meshgrid(line, line)


def ramp(field: Field, dark: Colour, light: Colour) -> Image.Image:
    """A picture from a field (side, side) of values in [0, 1]: 0 becomes `dark` and 1 becomes `light`."""
    mixed = np.asarray(dark) + field[..., None] * (np.asarray(light) - np.asarray(dark))
    return Image.fromarray(np.clip(np.rint(mixed), 0, 255).astype(np.uint8))


def clouds(side: int, *, seed: int, cells: int) -> Field:
    """Smooth noise in [0, 1], about `cells` blobs across, with two finer octaves."""
    draw = np.random.default_rng(seed)
    total = np.zeros((side, side))
    for octave in range(3):
        coarse = Image.fromarray(draw.random((cells * 2**octave,) * 2).astype(np.float32))
        total += np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC), dtype=np.float64) / 2**octave
    return np.asarray((total - total.min()) / (total.max() - total.min()))


def stripes(side: int, *, count: float, angle: float) -> Field:
    """`count` hard stripes across, turned by `angle` in degrees; 0 or 1."""
    x, y = _grid(side)
    turn = np.deg2rad(angle)
    return np.asarray((np.sin(2 * np.pi * count * (x * np.cos(turn) + y * np.sin(turn))) > 0), dtype=np.float64)


def dots(side: int, *, count: int) -> Field:
    """`count` × `count` round dots; 0 or 1."""
    x, y = _grid(side)
    return np.asarray((np.hypot((x * count) % 1 - 0.5, (y * count) % 1 - 0.5) < 0.3), dtype=np.float64)


def rings(side: int, *, count: float) -> Field:
    """Soft rings about the centre, in [0, 1]."""
    x, y = _grid(side)
    return np.asarray(0.5 + 0.5 * np.cos(2 * np.pi * count * np.hypot(x - 0.5, y - 0.5)))


def marble(side: int, *, seed: int) -> Field:
    """Veins: stripes bent by smooth noise, in [0, 1]."""
    x, y = _grid(side)
    return np.asarray(0.5 + 0.5 * np.sin(2 * np.pi * (3 * x + 2 * y + 3 * clouds(side, seed=seed, cells=3))))


def scene(side: int, *, seed: int, above: Colour, below: Colour) -> Image.Image:
    """A landscape without objects: mottled `above` over mottled `below`, with a soft horizon."""
    sky = np.asarray(ramp(0.7 + 0.3 * clouds(side, seed=seed, cells=3), (0, 0, 0), above), dtype=np.float64)
    ground = np.asarray(ramp(0.45 + 0.55 * clouds(side, seed=seed + 1, cells=24), (0, 0, 0), below), dtype=np.float64)
    edge = 1 / (1 + np.exp(-(_grid(side)[1] - 0.5) * 40))[..., None]
    return Image.fromarray(np.rint(sky + edge * (ground - sky)).astype(np.uint8))


def tinted(picture: Image.Image, dark: Colour, light: Colour) -> Image.Image:
    """The picture's brightness painted from `dark` to `light`."""
    return ramp(np.asarray(picture.convert("L"), dtype=np.float64) / 255, dark, light)
