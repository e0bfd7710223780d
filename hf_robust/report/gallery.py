"""Thumbnails of the pictures that a model got most wrong, from the data on this machine."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data import VALIDATION, MissingDataError, PictureError, Rows, decode, open_rows
from .evidence import Failure

_SIDE = 168  # pixels: a phone shows two side by side
_QUALITY = 72

MAY_NOT_PASS_ON = (
    "The pictures are shown from the data on this machine. Their licences differ or are unknown: do not publish this "
    "page with them; hf-robust report --no-images leaves them out."
)


@dataclass(frozen=True)
class Places:
    """Where data sets lie: the folder that `build --out` wrote to (None: the usual cache), the validation folder."""

    built: Path | None = None
    validation: Path | None = None


@dataclass(frozen=True)
class Shown:
    """One failure with its thumbnail as a data address."""

    failure: Failure
    source: str


@dataclass(frozen=True)
class Gallery:
    """The failures that could be shown, and why others could not; `lacking` is "" where all are there."""

    shown: tuple[Shown, ...]
    lacking: str


class Thumbnails:
    """Thumbnails by failure; each data set is opened once."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._opened: dict[str, tuple[Rows, Mapping[str, int]] | None] = {}

    def gallery(self, failures: Sequence[Failure]) -> Gallery:
        """What can be shown of `failures`: only pictures with the very bytes that were evaluated."""
        found = [(failure, self._bytes(failure)) for failure in failures]
        sources = [(f, _thumbnail(data)) for f, data in found if data is not None]
        shown = tuple(Shown(f, source) for f, source in sources if source is not None)
        missing = len(failures) - len(shown)
        if not missing:
            return Gallery(shown, "")
        return Gallery(
            shown,
            f"{missing} of {len(failures)} pictures are not on this machine as they were evaluated "
            f"(data set {failures[0].dataset}): give its folder with --data, or --imagenet-val.",
        )

    def _bytes(self, failure: Failure) -> bytes | None:
        opened = self._rows(failure.dataset)
        if opened is None or failure.id not in opened[1]:
            return None
        data = opened[0].read(opened[1][failure.id])
        return data if hashlib.sha256(data).hexdigest() == failure.sha256 else None

    def _rows(self, dataset: str) -> tuple[Rows, Mapping[str, int]] | None:
        if dataset not in self._opened:
            folder = self._places.validation if dataset == VALIDATION else None
            try:
                rows = open_rows(dataset, built=self._places.built, place=str(folder) if folder else None)
                self._opened[dataset] = rows, {identity: i for i, identity in enumerate(rows.table.ids)}
            except MissingDataError:
                self._opened[dataset] = None
        return self._opened[dataset]


def _thumbnail(data: bytes) -> str | None:
    """A small JPEG as a data address; None for bytes that are no picture."""
    try:
        picture = decode(data)
    except PictureError:
        return None
    picture.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    picture.save(stream, format="JPEG", quality=_QUALITY)
    return as_data(stream.getvalue(), "image/jpeg")


def as_data(content: bytes, kind: str) -> str:
    """A data address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
