"""What a candidate's bytes are: size, format and mode, or why they are no usable picture."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..builders.base import FORMATS
from ..data import STILL_WITH_FRAMES, PictureError, decode

if TYPE_CHECKING:
    from PIL.Image import Image

UNREADABLE, BOMB, ANIMATED = "unreadable", "decompression bomb", "animated"
TOO_SMALL, BLANK, DEEP = "too small", "blank", "more than 8 bits a channel"
_ORIENTATION = 0x0112
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_THUMBNAIL = 32
_BLANK_DEVIATION = 1.0  # grey levels of a thumbnail; the dullest of 400 photos has 4.8


@dataclass(frozen=True)
class Inspected:
    """What the header says, and the first thing that is wrong.

    exif_orientation  1 to 8 as the file says; pictures are never turned by it, as in the published protocols.
    trouble           a reason, the same text for the same cause.  detail  more about it.
    """

    width: int | None = None
    height: int | None = None
    format: str | None = None
    mode: str | None = None
    exif_orientation: int | None = None
    trouble: str | None = None
    detail: str | None = None


def inspect_picture(content: bytes, *, min_side: int) -> Inspected:
    """What these bytes are; decodes every pixel, since a file cut short has a good header.

    min_side  the shorter side must have at least this many pixels.
    16-bit and floating-point grey is refused: the conversion to RGB that every protocol makes would clip it to white.
    """
    with warnings.catch_warnings():  # of damaged EXIF data and the like: they must not decide, nor fill the terminal
        warnings.simplefilter("ignore")
        return _inspected(content, min_side)


def _inspected(content: bytes, min_side: int) -> Inspected:
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    try:
        with Pillow.open(io.BytesIO(content), formats=FORMATS) as image:
            found = _header(image)
            trouble = _trouble(image, min_side)
    except Pillow.DecompressionBombError as error:
        return Inspected(trouble=BOMB, detail=str(error))
    except Exception as error:  # Pillow's readers raise whatever a broken file makes them raise
        # the text of UnidentifiedImageError holds a memory address, other in every process
        known = f"{type(error).__name__}: {error}" if not isinstance(error, UnidentifiedImageError) else None
        return Inspected(trouble=UNREADABLE, detail=known or "no picture format that Pillow knows")
    if trouble is not None:
        return replace(found, trouble=trouble)
    try:
        blank = is_blank(decode(content))
    except PictureError as error:
        return replace(found, trouble=UNREADABLE, detail=str(error))
    return replace(found, trouble=BLANK if blank else None)


def _header(image: Image) -> Inspected:
    return Inspected(image.width, image.height, image.format, image.mode, _orientation(image))


def _orientation(image: Image) -> int | None:
    try:
        found = image.getexif().get(_ORIENTATION)
    except Exception:  # damaged EXIF data raises many things, and the pixels may be whole
        return None
    return found if found in range(1, 9) else None


def _trouble(image: Image, min_side: int) -> str | None:
    from PIL import Image as Pillow

    if Pillow.MAX_IMAGE_PIXELS is not None and image.width * image.height > Pillow.MAX_IMAGE_PIXELS:
        return BOMB
    if min(image.size) < min_side:
        return TOO_SMALL
    if getattr(image, "n_frames", 1) > 1 and image.format not in STILL_WITH_FRAMES:
        return ANIMATED
    return DEEP if image.mode in _DEEP_MODES else None


def is_blank(image: Image) -> bool:
    """Whether a thumbnail of an RGB picture varies by less than one grey level in every channel."""
    from PIL import Image as Pillow

    small = image.resize((_THUMBNAIL, _THUMBNAIL), Pillow.Resampling.BOX)
    return bool(np.asarray(small, dtype=np.float64).std(axis=(0, 1)).max() < _BLANK_DEVIATION)
