"""ImageNet-A: 7,500 photos in 200 folders that are named after the true class.

Archive and layout: the natural-adv-examples release (arXiv 1907.07174). A name is
`<p of the true class>_<wrong label 1> _ <wrong label 2>_<confidence>.<ending>`.
"""

from __future__ import annotations

import re

from .. import labels
from .recipe import Picture, Recipe, by_path

_STEM = re.compile(r"(\d(?:\.\d+)?)_(.+?) _ (.+)_(\d(?:\.\d+)?)")


def describe(file_name: str) -> Picture | str:
    """The row of `<wnid>/<name>`; a name outside the grammar keeps its picture and loses the four columns."""
    wnid, _, name = file_name.partition("/")
    if wnid not in labels.imagenet_a_wnids():
        return f"{wnid!r} is not one of the 200 classes of ImageNet-A"
    match = _STEM.fullmatch(name.rpartition(".")[0])
    true, first, second, wrong = match.groups() if match else (None, None, None, None)
    columns = {
        "label": wnid,
        "true_class_probability": None if true is None else float(true),
        "wrong_label_1": first,
        "wrong_label_2": second,
        "wrong_label_confidence": None if wrong is None else float(wrong),
        "imagenet_1k": [labels.imagenet_1k_index()[wnid]],
    }
    return Picture(file_name, "test", wnid, columns, None if match else f"name outside the grammar: {file_name!r}")


RECIPE = Recipe(
    name="imagenet-a",
    title="ImageNet-A: natural photos that ResNet-50 gets wrong, from 200 ImageNet classes.",
    addresses=("https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",),
    digest=("sha256", "3bb3632277e6ba6392ea64c02ddbf4dd2266c9caffd6bc09c9656d28f012589e"),
    splits={"test": 7500},
    classes=labels.imagenet_a_wnids(),
    reader=by_path(describe),
    top_folders=("imagenet-a",),
    layout="n01498041/<name>.jpg",
    suffixes={".jpg": 7450, ".JPEG": 25, ".jpeg": 25},  # a *.jpg pattern silently loses 50
)
