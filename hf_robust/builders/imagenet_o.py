"""ImageNet-O: 2,000 photos of classes outside ImageNet-1k, in 200 folders.

The folder is the ImageNet class that a ResNet-50 confuses the picture with: it is not a label.
Archive and layout: the natural-adv-examples release (arXiv 1907.07174). A name is `<true lemmas>_<confidence>.JPEG`.
"""

from __future__ import annotations

import re

from .. import labels
from .recipe import Picture, Recipe, by_path

_STEM = re.compile(r"(.+)_(\d(?:\.\d+)?)")


def describe(file_name: str) -> Picture | str:
    """The row of `<wnid>/<name>`; a name outside the grammar keeps its picture and loses the two columns."""
    wnid, _, name = file_name.partition("/")
    if wnid not in labels.imagenet_o_wnids():
        return f"{wnid!r} is not one of the 200 classes of ImageNet-O"
    match = _STEM.fullmatch(name.rpartition(".")[0])
    columns: dict[str, object] = {
        "confused_with": wnid,
        "true_lemmas": match[1] if match else None,
        "confidence": float(match[2]) if match else None,
        "imagenet_1k": [],
    }
    return Picture(file_name, "test", wnid, columns, None if match else f"name outside the grammar: {file_name!r}")


RECIPE = Recipe(
    name="imagenet-o",
    title="ImageNet-O: photos of classes outside ImageNet-1k that ResNet-50 takes for one of 200 ImageNet classes.",
    addresses=("https://people.eecs.berkeley.edu/~hendrycks/imagenet-o.tar",),
    digest=("sha256", "0015fa5d33941be8e1187964e6dd494d1f5fe5fbb1b9dd53ff7463408a48acfb"),
    splits={"test": 2000},
    classes=labels.imagenet_o_wnids(),
    reader=by_path(describe),
    top_folders=("imagenet-o",),
    layout="n01443537/<name>.JPEG",
    suffixes={".JPEG": 2000},
)
