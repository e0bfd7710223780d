"""What each picture of a set is as a file: whole or not, turned, moving, blank, and the hashes that find its likes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..builders.base import FORMATS
from ..data import STILL_WITH_FRAMES, PictureError, Rows, decode
from ..machine import cores

if TYPE_CHECKING:
    from PIL.Image import Image

BITS = 256  # of a perceptual hash
_ROOT = 16  # its side: 64 bits (side 8) do not tell a crop of two per cent from another photo
_ORIENTATION = 0x0112  # the EXIF tag
_BLANK = 2.0  # grey levels, of 255: below that standard deviation there is nothing to see
_AT_ONCE = 64

Meter = Callable[[int, int], None]
Bits = NDArray[np.uint8]  # eight a byte


@dataclass(frozen=True)
class Look:
    """One picture: `faults` in words; hash and mirror hash, uint8 (BITS / 8,), are None where it cannot be decoded."""

    sha256: str
    faults: tuple[str, ...]
    bits: Bits | None
    mirrored: Bits | None


@dataclass(frozen=True)
class Looks:
    """All pictures of a set, in its order.

    sha256          of each picture's bytes; empty where it has none that could be read.
    faults          (position, what is wrong).
    hashed          int64 (H,): positions of the pictures that have a hash.
    bits, mirrored  uint8 (H, BITS / 8): the hash of each, and of its mirror image.
    """

    sha256: tuple[str, ...]
    faults: tuple[tuple[int, str], ...]
    hashed: NDArray[np.int64]
    bits: Bits
    mirrored: Bits


def look_at(rows: Rows, meter: Meter) -> Looks:
    """Every picture of the set, read once; ImportError where imagehash is not installed."""
    seen: list[Look] = []
    with ThreadPoolExecutor(min(8, cores())) as pool:
        for contents in _batches(rows):
            seen += pool.map(_look, contents)
            meter(len(seen), len(rows.table))
    hashes = [(i, s.bits, s.mirrored) for i, s in enumerate(seen) if s.bits is not None and s.mirrored is not None]
    none = np.zeros((0, BITS // 8), dtype=np.uint8)
    return Looks(
        tuple(s.sha256 for s in seen),
        tuple((i, fault) for i, s in enumerate(seen) for fault in s.faults),
        np.array([i for i, _, _ in hashes], dtype=np.int64),
        np.stack([bits for _, bits, _ in hashes]) if hashes else none,
        np.stack([mirrored for _, _, mirrored in hashes]) if hashes else none,
    )


def _look(content: bytes | PictureError) -> Look:
    return look(content) if isinstance(content, bytes) else Look("", (f"unreadable: {content}",), None, None)


def look(content: bytes) -> Look:
    """What these bytes are."""
    from PIL import ImageOps

    sha256 = hashlib.sha256(content).hexdigest()
    try:
        picture = decode(content)
    except PictureError as error:
        return Look(sha256, (f"unreadable: {error}",), None, None)
    small = picture.convert("L").resize((4 * _ROOT, 4 * _ROOT), 1)  # Lanczos, as the hash itself would do
    faults = list(_faults_of_file(content))
    if np.asarray(small, dtype=np.float64).std() < _BLANK:
        faults.append("blank: one even colour")
    return Look(sha256, tuple(faults), _hash(small), _hash(ImageOps.mirror(small)))


def _faults_of_file(content: bytes) -> Iterator[str]:
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        try:
            orientation = picture.getexif().get(_ORIENTATION, 1)
        except Exception:  # a broken block of EXIF raises whatever it likes, and spoils no pixel
            orientation = 1
        if orientation in range(2, 9):
            yield f"EXIF orientation {orientation}: viewers turn it, models see it as stored"
        try:
            frames = 1 if picture.format in STILL_WITH_FRAMES else getattr(picture, "n_frames", 1)
        except Exception as error:  # so does a broken second frame
            yield f"animated: frames that cannot be read ({type(error).__name__}); models see the first"
        else:
            if frames > 1:
                yield f"animated: {frames} frames, of which models see the first"


def _hash(picture: Image) -> Bits:
    try:
        from imagehash import phash
    except ImportError as error:
        raise ImportError('near-duplicates need imagehash: pip install "hf-robust[health]"') from error
    return np.packbits(phash(picture, hash_size=_ROOT).hash)


def _batches(rows: Rows) -> Iterator[list[bytes | PictureError]]:
    for start in range(0, len(rows.table), _AT_ONCE):
        yield [_read(rows, i) for i in range(start, min(start + _AT_ONCE, len(rows.table)))]


def _read(rows: Rows, position: int) -> bytes | PictureError:
    try:
        return rows.read(position)
    except PictureError as error:
        return error
