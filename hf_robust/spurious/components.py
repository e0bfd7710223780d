"""Which components of which class are spurious: the list that people made, and lists in its format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..labels import imagenet_1k_index

PUBLISHED = "published"
Components = Mapping[int, tuple[int, ...]]  # ImageNet-1k index -> component numbers from 0, largest eigenvalue first


def published_components() -> Components:
    """The 322 components of 233 ImageNet classes that people judged spurious (arXiv 2212.04871).

    The numbers count the components of the adversarially robust ResNet-50 of that paper, so they go with its alphas.

    >>> len(published_components()), sum(map(len, published_components().values()))
    (233, 322)
    """
    text = (files("hf_robust") / "assets" / "spurious_components.json").read_text(encoding="utf-8")
    return _checked(json.loads(text), "the published list")


def read_components(place: str | Path) -> Components:
    """The list in a JSON file, {class: [component, …]}, or the published one for "published".

    A class is an ImageNet-1k index or a WordNet id. ValueError names what is no such list.
    """
    if str(place) == PUBLISHED:
        return published_components()
    path = Path(place)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"expected a component list, or {PUBLISHED!r}, got no file at {str(path)!r}: check --components"
        ) from error
    except IsADirectoryError as error:
        raise ValueError(f"expected a file with a component list, got the folder {str(path)!r}: name the file") from (
            error
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in {path}, got something else ({error}): write it as {{class: [0, 2]}}") from (
            error
        )
    return _checked(content, str(path))


def class_index(name: str) -> int:
    """The ImageNet-1k index of a class named by index or WordNet id; ValueError for neither.

    >>> class_index("n01440764"), class_index("850")
    (0, 850)
    """
    known = imagenet_1k_index()
    if name in known:
        return known[name]
    if name.isascii() and name.isdigit() and int(name) < len(known):
        return int(name)
    raise ValueError(f"expected an ImageNet-1k index or WordNet id, got {name!r}: such as 850 or n04399382")


def _checked(content: Any, source: str) -> Components:
    good = isinstance(content, dict) and content
    lists = content.values() if good else ()
    if not good or not all(isinstance(row, list) and row and all(_is_number(c) for c in row) for row in lists):
        raise ValueError(f"expected an object {{class: [component, …]}} with numbers from 0 in {source}, got another")
    found = {class_index(str(name)): tuple(row) for name, row in content.items()}
    twice = [name for name, row in found.items() if len(set(row)) != len(row)]
    if twice or len(found) != len(content):
        what = f"a component twice for class {twice[0]}" if twice else "a class twice"
        raise ValueError(f"expected each class and component once in {source}, got {what}: remove one")
    return dict(sorted(found.items()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
