"""Label spaces: which class each output of a model stands for, joined everywhere by WordNet id."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BACKGROUND = "background"

# Exact output width -> file of timm's class lists; a width that is not here is never guessed.
_TIMM_LISTS = {
    10450: "imagenet21k_miil_w21_synsets.txt",
    11221: "imagenet21k_miil_synsets.txt",
    11821: "imagenet12k_synsets.txt",
    21841: "imagenet22k_synsets.txt",
    21842: "imagenet22k_ms_synsets.txt",
    21843: "imagenet21k_goog_synsets.txt",
}


@dataclass(frozen=True)
class LabelSpace:
    """The classes of a model's outputs, in output order, as WordNet ids."""

    name: str
    wnids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.wnids)

    def imagenet_1k_columns(self) -> NDArray[np.int64]:
        """Output column of each ImageNet-1k class: int64 of shape (1000,), -1 where the space has no counterpart."""
        column = {wnid: i for i, wnid in enumerate(self.wnids)}
        return np.array([column.get(wnid, -1) for wnid in imagenet_1k().wnids], dtype=np.int64)

    def missing_imagenet_1k(self) -> tuple[int, ...]:
        """ImageNet-1k indices that no output of this space stands for."""
        return tuple(int(i) for i in np.flatnonzero(self.imagenet_1k_columns() < 0))


@dataclass(frozen=True)
class SpuriousClass:
    """One of the 100 classes of Spurious ImageNet and what its pictures show instead of the object."""

    index: int
    wnid: str
    feature: str


@dataclass(frozen=True)
class Category:
    """One of the 113 categories of ImageNet-D with every ImageNet-1k index that counts as right."""

    folder: str
    display_name: str
    indices: tuple[int, ...]


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((files("hf_robust") / "assets" / name).read_text(encoding="utf-8").splitlines()))


def _lines(name: str) -> tuple[str, ...]:
    return tuple((files("hf_robust") / "assets" / name).read_text(encoding="utf-8").split())


@cache
def imagenet_1k() -> LabelSpace:
    """The 1,000 ImageNet classes in the official order.

    >>> imagenet_1k().wnids[0], len(imagenet_1k())
    ('n01440764', 1000)
    """
    return LabelSpace("imagenet-1k", tuple(row["wnid"] for row in _rows("imagenet_1k.csv")))


@cache
def imagenet_1k_names() -> tuple[str, ...]:
    """A display name for each of the 1,000 classes; no two are equal, not even in lower case.

    >>> imagenet_1k_names()[134], imagenet_1k_names()[517]
    ('crane (bird)', 'crane (machine)')
    """
    return tuple(row["name"] for row in _rows("imagenet_1k.csv"))


@cache
def imagenet_1k_index() -> dict[str, int]:
    """WordNet id -> ImageNet-1k index."""
    return {wnid: i for i, wnid in enumerate(imagenet_1k().wnids)}


@cache
def imagenet_a_wnids() -> tuple[str, ...]:
    """The 200 WordNet ids of ImageNet-A, sorted."""
    return _lines("imagenet_a.txt")


@cache
def imagenet_o_wnids() -> tuple[str, ...]:
    """The 200 WordNet ids of ImageNet-O, sorted; 59 of them are also ImageNet-A's."""
    return _lines("imagenet_o.txt")


@cache
def spurious_classes() -> tuple[SpuriousClass, ...]:
    """The 100 classes of Spurious ImageNet, by index."""
    return tuple(SpuriousClass(int(r["index"]), r["wnid"], r["feature"]) for r in _rows("spurious_imagenet.csv"))


@cache
def imagenet_d_categories() -> tuple[Category, ...]:
    """The 113 categories of ImageNet-D, in the order of the released code."""
    return tuple(
        Category(r["folder"], r["display_name"], tuple(int(i) for i in r["imagenet_1k"].split()))
        for r in _rows("imagenet_d.csv")
    )


def indices_of(wnids: tuple[str, ...]) -> tuple[int, ...]:
    """ImageNet-1k indices of WordNet ids, in the order given; KeyError names the first that is not one of the 1,000."""
    known = imagenet_1k_index()
    for wnid in wnids:
        if wnid not in known:
            raise KeyError(f"{wnid!r} is not one of the 1,000 ImageNet classes")
    return tuple(known[wnid] for wnid in wnids)


@cache
def label_space(width: int) -> LabelSpace:
    """The label space of a model with exactly `width` outputs.

    1,000 is ImageNet-1k and 1,001 ImageNet-1k behind a background class; the 21k family is read from timm's lists.
    Raises ValueError for any other width and ImportError where timm is needed and missing.
    """
    if width == 1000:
        return imagenet_1k()
    if width == 1001:
        return LabelSpace("imagenet-1k-background", (BACKGROUND, *imagenet_1k().wnids))
    if width not in _TIMM_LISTS:
        known = ", ".join(f"{w:,}" for w in (1000, 1001, *_TIMM_LISTS))
        raise ValueError(
            f"expected a model with one of {known} outputs, got {width:,}: no label space is known for that width; "
            "set `wnids`, the WordNet id of each output, on the module that file.py:function gives"
        )
    return LabelSpace(f"timm:{_TIMM_LISTS[width].removesuffix('_synsets.txt')}", _timm_list(_TIMM_LISTS[width]))


def _timm_list(name: str) -> tuple[str, ...]:
    spec = find_spec("timm")  # the folder only: importing timm would import torch
    if spec is None or not spec.submodule_search_locations:
        raise ImportError('a head of the 21k family needs timm\'s class lists: pip install "hf-robust[run]"')
    return tuple(Path(spec.submodule_search_locations[0], "data", "_info", name).read_text(encoding="utf-8").split())
