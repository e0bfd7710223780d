"""Generated pictures that show nothing, and the PNG bytes of the others."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

FLAGGED, NOT_FINITE, BLACK, BLANK = "flagged by the safety checker", "not finite", "black", "blank"
_STEPS = 2.0  # grey levels of 255: what rounding and a decoder's noise make of a constant picture


def why_unusable(pixels: NDArray[np.floating], *, flagged: bool = False) -> str | None:
    """Why a picture shows nothing, or None: flagged, not finite, black or blank, in this order.

    pixels: float (height, width, channels) in [0, 1]. Black: no value above 2 of 255. Blank: a standard deviation of at
    most 2 of 255 in each channel.

    >>> why_unusable(np.zeros((4, 4, 3))), why_unusable(np.full((4, 4, 3), 0.5))
    ('black', 'blank')
    """
    if flagged:
        return FLAGGED
    if not np.isfinite(pixels).all():
        return NOT_FINITE
    if pixels.max() * 255 <= _STEPS:
        return BLACK
    spread = pixels.reshape(-1, pixels.shape[-1]).std(axis=0, dtype=np.float64)
    return BLANK if spread.max() * 255 <= _STEPS else None


def to_png(pixels: NDArray[np.floating]) -> bytes:
    """The picture as PNG, without any text or date: equal pixels give equal bytes; what is not finite becomes 0."""
    from PIL import Image

    finite = np.nan_to_num(pixels, nan=0.0, posinf=0.0, neginf=0.0)
    stream = io.BytesIO()
    Image.fromarray((finite.clip(0, 1) * 255).round().astype(np.uint8)).save(stream, format="PNG")
    return stream.getvalue()
