"""ImageNet-D: 4,835 generated pictures, `<background|texture|material>/<category>/<name>.png`.

Archive and layout: the imagenet_d release (arXiv 2403.18775). `questions/<nuisance>.csv`, tab separated, holds the two
most likely categories of a zero-shot model. Categories are joined by folder name: their sorted position differs between
the three.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

from .. import labels
from .archive import READ_ERRORS, Archive, Member
from .recipe import Picture, Reading, Recipe

NUISANCES = ("background", "texture", "material")
_COLUMNS = ("image_dir", "top1_pred_cate", "top2_pred_cate")

# "<nuisance>/<category>/<name>" -> the two most likely categories
Predictions = dict[str, tuple[str, str]]


@cache
def _categories() -> dict[str, labels.Category]:
    return {c.folder: c for c in labels.imagenet_d_categories()}


def reader(archive: Archive, source: Path, devkit: Path | None) -> Reading:
    """Reads the questions first, since they complete the rows."""
    predictions: Predictions = {}
    differences = []
    for nuisance in NUISANCES:
        member = archive.named(f"questions/{nuisance}.csv")
        if member is not None:
            found = _questions(archive, member, nuisance)
            differences += [found] if isinstance(found, str) else []
            predictions |= {} if isinstance(found, str) else found
    return Reading(lambda file_name: describe(file_name, predictions), 3, tuple(differences))


def _questions(archive: Archive, member: Member, nuisance: str) -> Predictions | str:
    try:
        lines = archive.read(member).decode("utf-8-sig").splitlines()
        rows = list(csv.DictReader(lines, delimiter="\t"))
    except (*READ_ERRORS, UnicodeDecodeError, csv.Error) as error:
        return f"questions/{nuisance}.csv is unreadable ({type(error).__name__})"
    if not rows or any(rows[0].get(column) is None for column in _COLUMNS):
        return f"questions/{nuisance}.csv has no tab-separated columns {', '.join(_COLUMNS)}"
    return {
        "/".join([nuisance, *(row["image_dir"] or "").split("/")[-2:]]): (row["top1_pred_cate"], row["top2_pred_cate"])
        for row in rows
    }


def describe(file_name: str, predictions: Predictions) -> Picture | str:
    """The row of `<nuisance>/<category>/<name>`."""
    nuisance, category, _ = file_name.split("/")
    if nuisance not in NUISANCES:
        return f"folder {nuisance!r} is not one of {', '.join(NUISANCES)}"
    if category not in _categories():
        return f"{category!r} is not one of the 113 categories of ImageNet-D"
    top1, top2 = predictions.get(file_name, (None, None))
    columns = {
        "label": category,
        "category": category,
        "nuisance": nuisance,
        "top1_prediction": top1,
        "top2_prediction": top2,
        "imagenet_1k": list(_categories()[category].indices),
    }
    return Picture(file_name, nuisance, category, columns)


RECIPE = Recipe(
    name="imagenet-d",
    title="ImageNet-D: generated pictures of 113 categories with unusual backgrounds, textures and materials.",
    addresses=(),
    digest=None,
    splits={"background": 3764, "texture": 498, "material": 573},
    classes=tuple(c.folder for c in labels.imagenet_d_categories()),
    reader=reader,
    top_folders=("ImageNet-D", "imagenet-d"),
    layout="background/alarm_clock/<name>.png",
    suffixes={".png": 4835},
    tolerated=("README", "LICENSE", "questions/"),
)
