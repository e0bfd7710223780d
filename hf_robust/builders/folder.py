"""Class folders that are read in place, without a build."""

from __future__ import annotations

import os
from pathlib import Path

from .. import labels
from .archive import IMAGE_SUFFIXES
from .errors import BuildError


def image_folder(path: Path) -> tuple[tuple[str, int, int], ...]:
    """(relative file name, ImageNet-1k index, size in bytes) of each picture in folders named by WordNet id, sorted.

    One more level (`val/` or `train/`) is looked through; hidden files and files that are no pictures are not pictures.
    BuildError names the folders that are none of the 1,000 classes, and says so where there is no class folder at all.
    """
    if not path.is_dir():
        raise BuildError(
            f"expected a folder with class folders such as n01440764, got nothing at {path}; check the path"
        )
    root = path
    names = _folders(root)
    if not set(names) & set(labels.imagenet_1k_index()) and len(names) == 1:
        root = path / names[0]
        names = _folders(root)
    unknown = [name for name in names if name not in labels.imagenet_1k_index()]
    if not names or unknown:
        got = f"{len(unknown)} other folders: {', '.join(unknown[:10])}" if unknown else "none"
        raise BuildError(
            f"expected folders named by the WordNet ids of ImageNet-1k, got {got} in {root}; rename or move them"
        )
    prefix = "" if root == path else f"{root.name}/"
    return tuple(
        (f"{prefix}{wnid}/{name}", labels.imagenet_1k_index()[wnid], size)
        for wnid in names
        for name, size in _pictures(root / wnid)
    )


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


def _pictures(folder: Path) -> list[tuple[str, int]]:
    return sorted(
        (entry.name, entry.stat().st_size)
        for entry in os.scandir(folder)
        if os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES
        and not entry.name.startswith(".")
        and entry.is_file()
    )
