"""Pictures of known answers that the maker of a set brings along."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..builders.archive import IMAGE_SUFFIXES
from ..review.base import Kind
from ..review.tasks import Candidate
from .stage import StageError

_KINDS: tuple[Kind, ...] = ("positive", "negative")


@dataclass(frozen=True)
class OwnPictures:
    """Sentinels from a folder, and where the picture of each lies."""

    candidates: tuple[Candidate, ...]
    content: Mapping[str, Path]


def own_sentinels(folder: str | None) -> OwnPictures:
    """The pictures of positive/<subject>/ and negative/<subject>/; StageError where the folder holds none."""
    if folder is None:
        return OwnPictures((), {})
    root = Path(folder)
    found: list[Candidate] = []
    content: dict[str, Path] = {}
    for kind in _KINDS:
        for path in sorted((root / kind).glob("*/*")):
            if path.suffix.lower() in IMAGE_SUFFIXES:
                digest = hashlib.sha256(f"{kind}/{path.parent.name}/".encode() + path.read_bytes()).hexdigest()
                content[f"own-{digest[:28]}"] = path
                found.append(Candidate(f"own-{digest[:28]}", path.parent.name.replace("_", " "), kind))
    if not found:
        raise StageError(
            f"expected pictures in positive/<what it shows>/ or negative/<what is asked>/ of {folder}, got none"
        )
    return OwnPictures(tuple(found), content)
