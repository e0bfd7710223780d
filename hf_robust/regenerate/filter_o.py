"""Filtration as for ImageNet-O (arXiv 1907.07174, section 3): classes outside ImageNet-1k that a model is sure to know.

A candidate's class is one of ImageNet-22k, none of the 1,000, and neither above nor below one of them in WordNet; kept
is what the filter gives one of the 1,000 classes with high confidence. (The published set is less strict: it has
pictures of "puzzle", which lies above "jigsaw puzzle".)
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..data import PictureError
from ..labels import imagenet_1k, imagenet_1k_index, label_space
from ..metrics import probabilities
from .balance import dropped
from .crops import Mode, Viewer, class_logits, load_viewer, look_at
from .ledger import KEEP, REASON, Ledger
from .pictures import picture_columns, picture_of
from .stage import PartWise, Stage, StageError, Whole, Work, for_kept
from .wordnet import lemmas, read_hierarchy, relatives

NO_CLASS, KNOWN = "no WordNet id", "its class is in ImageNet-1k"
RELATED, UNLISTED = "its class is above or below one of ImageNet-1k", "its class is outside the list"
UNREAD, UNSURE = "the filter could not read it", "the filter is not sure enough"
RARE = "its predicted class is not among the most used"
INCLUDED, NONE = "included", "none"
IMAGENET_22K, ANY = "imagenet-22k", "any"
_WIDTH_22K = 21841

SCHEMA = pa.schema(
    [
        ("confused_with", pa.string()), ("confidence", pa.float64()), ("true_lemmas", pa.string()),
        ("filter_error", pa.string()), (KEEP, pa.bool_()), (REASON, pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class FilterOSettings:
    """How pictures of other classes are filtered.

    filter          the fixed model; the paper's is a ResNet-50, which one is our choice.
    min_confidence  its largest softmax probability over the 1,000 classes must reach this. The paper says "high"; the
                    published file names that we know begin at 0.968, the default is ours.
    classes         candidate classes: "imagenet-22k", "any", or a file of WordNet ids, one a line.
    hierarchy       what lies above or below the 1,000 classes: "included", the relatives among the classes of
                    ImageNet-22k by WordNet 3.0; a file, wordnet.is_a.txt or data.noun; "none" leaves that rule out.
    preprocessing   "paper" or "model".
    """

    filter: str = "timm/resnet50.tv_in1k"
    min_confidence: float = 0.95
    classes: str = IMAGENET_22K
    hierarchy: str = INCLUDED
    preprocessing: Mode = "paper"
    batch_size: int | None = None


@dataclass(frozen=True)
class ChooseClassesSettings:
    """How many predicted classes the set has; the paper's is 200."""

    classes: int = 200


def _start(settings: FilterOSettings, work: Work) -> PartWise:
    if not 0 < settings.min_confidence <= 1:
        raise StageError(f"expected min_confidence above 0 and at most 1, got {settings.min_confidence}")
    refuse, identity = class_rule(settings)
    mode, size = settings.preprocessing, settings.batch_size
    viewer = load_viewer(settings.filter, work.world, kind="one", mode=mode, batch_size=size)
    columns = (*picture_columns(work.ledger), "wnid")

    def make(rows: pa.Table) -> pa.Table:
        return for_kept(
            rows, lambda kept: _columns(kept.to_pylist(), viewer, refuse, settings.min_confidence, work.out)
        )

    return PartWise({"filter": viewer.facts, **identity}, make, columns)


def class_rule(settings: FilterOSettings) -> tuple[Callable[[str | None], str | None], dict[str, Any]]:
    """(WordNet id -> why no candidate of that class is taken, or None; what decides that, as JSON).

    StageError for files that are no such lists, and for classes="any" with the included hierarchy, which knows the
    classes of ImageNet-22k only.
    """
    if settings.hierarchy == INCLUDED and settings.classes == ANY:
        raise StageError(
            "expected a WordNet file in hierarchy for classes='any', got 'included', which knows the classes of "
            "ImageNet-22k only: give wordnet.is_a.txt of the ImageNet project, data.noun of WordNet 3.0, or 'none'"
        )
    listed, related = _listed(settings.classes), _related(settings.hierarchy)
    known = imagenet_1k_index()

    def refuse(wnid: str | None) -> str | None:
        if not wnid:
            return NO_CLASS
        if wnid in known:
            return KNOWN
        if listed is not None and wnid not in listed:
            return UNLISTED
        return RELATED if wnid in related else None

    return refuse, {"classes": None if listed is None else _hash(listed), "related": _hash(related)}


def _listed(classes: str) -> frozenset[str] | None:
    if classes == ANY:
        return None
    if classes == IMAGENET_22K:
        return frozenset(label_space(_WIDTH_22K).wnids)
    try:
        return frozenset(Path(classes).read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(
            f"expected classes to be '{IMAGENET_22K}', '{ANY}' or a file of WordNet ids, got {classes!r}: {error}"
        ) from error


def _related(hierarchy: str) -> frozenset[str]:
    if hierarchy == NONE:
        return frozenset()
    if hierarchy == INCLUDED:
        return relatives()
    tree, known = read_hierarchy(Path(hierarchy)), imagenet_1k().wnids
    absent = [wnid for wnid in known if wnid not in tree]
    if absent:
        raise StageError(
            f"expected all 1,000 ImageNet classes in {hierarchy}, got none of {', '.join(absent[:3])} and "
            f"{max(0, len(absent) - 3)} more: take the file of WordNet 3.0, whose ids ImageNet has"
        )
    return frozenset(tree.above(known) | tree.below(known))


def _hash(wnids: frozenset[str]) -> str:
    return hashlib.sha256("\n".join(sorted(wnids)).encode()).hexdigest()


def _columns(
    rows: Sequence[Mapping[str, Any]],
    viewer: Viewer,
    refuse: Callable[[str | None], str | None],
    min_confidence: float,
    out: Path,
) -> dict[str, pa.Array]:
    found: list[dict[str, Any]] = [{REASON: refuse(row["wnid"])} for row in rows]
    left = [i for i, row in enumerate(found) if row[REASON] is None]
    everything = range(len(imagenet_1k()))
    for i, said in zip(left, look_at(viewer, (picture_of(rows[i], out) for i in left)), strict=True):
        if isinstance(said, PictureError):
            found[i] = {REASON: UNREAD, "filter_error": str(said)}
            continue
        chances = probabilities(class_logits(viewer, said, everything))[0]
        best = int(chances.argmax())
        found[i] = {"confused_with": imagenet_1k().wnids[best], "confidence": float(chances[best])}
        found[i][REASON] = None if chances[best] >= min_confidence else UNSURE
    for row, values in zip(rows, found, strict=True):
        values["true_lemmas"] = lemmas().get(row["wnid"] or "", row["wnid"])
        values[KEEP] = values[REASON] is None
    return {name: pa.array([v.get(name) for v in found], SCHEMA.field(name).type) for name in SCHEMA.names}


def most_used(ledger: Ledger, count: int) -> tuple[str, ...]:
    """The `count` classes that most kept rows are taken for, by WordNet id, sorted; ties to the lower 1k index."""
    uses: Counter[str] = Counter()
    for table in ledger.tables(("confused_with",)):
        uses.update(table.filter(table[KEEP])["confused_with"].to_pylist())
    index = imagenet_1k_index()
    return tuple(sorted(sorted(uses, key=lambda wnid: (-uses[wnid], index[wnid]))[:count]))


def _choose(settings: ChooseClassesSettings, work: Work) -> Whole:
    if settings.classes < 1:
        raise StageError(f"expected at least 1 class, got {settings.classes}: the paper's number is 200")

    def make(ledger: Ledger) -> Any:
        return dropped(ledger, _outside(ledger, frozenset(most_used(ledger, settings.classes))))

    return Whole({}, make)


def _outside(ledger: Ledger, chosen: frozenset[str]) -> dict[int, str]:
    rows = (row for table in ledger.tables(("confused_with",)) for row in table.to_pylist())
    return {i: RARE for i, row in enumerate(rows) if row[KEEP] and row["confused_with"] not in chosen}


FILTER_O = Stage("filter_o", "keep other classes that the filter takes for one of the 1,000", FilterOSettings, _start)
CHOOSE_CLASSES = Stage("choose_classes", "keep the most used predicted classes", ChooseClassesSettings, _choose)
