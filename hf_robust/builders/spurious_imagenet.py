"""Spurious ImageNet: 100 classes x 75 square pictures of the spurious feature without the class object.

Archive and layout: the spurious_imagenet release (arXiv 2212.04871): one folder a (class, component); the third field
of the folder's name is the ImageNet-1k index, the last one the component. No checksum is published.
"""

from __future__ import annotations

from functools import cache

from .. import labels
from .recipe import Picture, Recipe, by_path


@cache
def _features() -> dict[int, str]:
    return {c.index: c.feature for c in labels.spurious_classes()}


def describe(file_name: str) -> Picture | str:
    """The row of `<folder>/<name>`; a folder without a class index is left out, another class is a difference."""
    folder = file_name.partition("/")[0]
    fields = folder.split("_")
    if len(fields) < 3 or not fields[2].isdecimal() or int(fields[2]) >= 1000:
        return f"the third field of folder {folder!r} is not an ImageNet-1k index"
    index, component = int(fields[2]), int(fields[-1]) if len(fields) > 3 and fields[-1].isdecimal() else None
    wnid = labels.imagenet_1k().wnids[index]
    columns: dict[str, object] = {
        "spurious_class": wnid,
        "component": component,
        "feature": _features().get(index) or None,
        "imagenet_1k": [],
    }
    return Picture(file_name, "test", wnid, columns, f"no component in {folder!r}" if component is None else None)


RECIPE = Recipe(
    name="spurious-imagenet",
    title="Spurious ImageNet: pictures of the spurious features of 100 ImageNet classes, without the class object.",
    addresses=("https://nc.mlcloud.uni-tuebingen.de/index.php/s/xBtTG9jnACJDxSg/download",),
    digest=None,
    splits={"test": 7500},
    classes=tuple(c.wnid for c in labels.spurious_classes()),
    reader=by_path(describe),
    top_folders=("images",),
    layout="images/<field>_<field>_<class index>_…_<component>/<name>",
    per_class=75,
    names=labels.imagenet_1k().wnids,  # the number is then the ImageNet-1k index, and sets of other classes fit
    square=True,
)
