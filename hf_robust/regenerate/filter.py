"""Adversarial filtration as for ImageNet-A (arXiv 1907.07174, section 3): keep what fixed models never get right.

The paper says 10-crop, two ResNet-50s, and that the true class must get less than 15 % probability; not how ten crops
become one verdict. Our reading: right in any crop of any filter drops the picture, and the true class's probability is
the largest over crops and filters, softmax over the recipe's classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..data import PictureError
from ..labels import imagenet_1k, imagenet_1k_index, imagenet_1k_names
from ..metrics import probabilities
from .crops import Mode, Viewer, class_logits, load_viewer, look_at
from .ledger import KEEP, REASON, Ledger
from .pictures import picture_columns, picture_of
from .stage import PartWise, Stage, StageError, Work, for_kept

NO_LABEL, NOT_1K = "no label", "its class is outside ImageNet-1k"
OUTSIDE, UNREAD = "its class is outside the list", "a filter could not read it"
RIGHT, LIKELY = "a filter is right", "the true class is too likely"
RECIPE, ALL = "recipe", "all"

SCHEMA = pa.schema(
    [
        ("true_probability", pa.float64()), ("wrong_label_1", pa.string()), ("wrong_label_2", pa.string()),
        ("wrong_confidence", pa.float64()), ("right_crops", pa.int16()), ("filters_asked", pa.int16()),
        ("filter_error", pa.string()), (KEEP, pa.bool_()), (REASON, pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class FilterASettings:
    """How pictures are filtered.

    filters          the fixed models; the paper's are two ResNet-50s, which two is our choice.
    classes          the softmax runs over "recipe": the classes of the candidates; "all" 1,000; or those in a file of
                     WordNet ids, one a line.
    max_probability  the true class must get less than this in every crop of every filter.
    preprocessing    "paper": shorter side 256 bilinear, crops of 224, ImageNet mean and std; "model": the model's own.
    batch_size       inputs of a micro-batch, ten a picture; None: one picture on a CPU, six on a GPU.
    """

    filters: tuple[str, ...] = ("timm/resnet50.tv_in1k", "timm/resnet50.gluon_in1k")
    classes: str = RECIPE
    max_probability: float = 0.15
    preprocessing: Mode = "paper"
    batch_size: int | None = None


@dataclass
class Verdict:
    """What the filters asked so far say about one picture.

    true_probability  largest over crops and filters; with several acceptable classes, of their sum.
    wrong             (display name, probability) a filter: its most probable wrong class over its ten crops.
    right_crops       crops in which an acceptable class has the highest logit, shared or not.
    reason            why it is dropped; None while it is kept.
    """

    reason: str | None = None
    true_probability: float | None = None
    wrong: list[tuple[str, float]] = field(default_factory=list)
    right_crops: int = 0
    asked: int = 0
    error: str | None = None


def _start(settings: FilterASettings, work: Work) -> PartWise:
    if not settings.filters or len(set(settings.filters)) != len(settings.filters):
        raise StageError(f"expected each filter once and at least one, got {', '.join(settings.filters) or 'none'}")
    if not 0 < settings.max_probability <= 1:
        raise StageError(f"expected max_probability above 0 and at most 1, got {settings.max_probability}")
    classes = mask_of(settings.classes, work.ledger)
    viewers = [
        load_viewer(name, work.world, kind="ten", mode=settings.preprocessing, batch_size=settings.batch_size)
        for name in settings.filters
    ]
    facts = {"classes": list(classes), "filters": [viewer.facts for viewer in viewers]}
    known = ("wnid",) if "wnid" in work.ledger.columns else ()
    columns = (*picture_columns(work.ledger), "labels", *known)

    def make(rows: pa.Table) -> pa.Table:
        return for_kept(rows, lambda kept: _columns(verdicts(kept.to_pylist(), viewers, classes, settings, work.out)))

    return PartWise(facts, make, columns)


def mask_of(choice: str, ledger: Ledger) -> tuple[int, ...]:
    """ImageNet-1k indices, sorted, that a softmax runs over: "recipe", "all" or a file of WordNet ids.

    StageError for fewer than two, and for a line of the file that is none of the 1,000.
    """
    if choice == ALL:
        return tuple(range(len(imagenet_1k())))
    found = _in_ledger(ledger) if choice == RECIPE else _in_file(Path(choice))
    if not found and not ledger.kept():
        raise StageError("expected candidates to filter, got none that is kept: see the reasons in the funnel")
    if len(found) < 2:
        raise StageError(
            f"expected at least 2 classes of ImageNet-1k for classes={choice!r}, got {len(found)}: a softmax over one "
            "is always 1; look at the candidates' labels (collect.label_by), or give 'all' or a file of WordNet ids"
        )
    return found


def _in_ledger(ledger: Ledger) -> tuple[int, ...]:
    found: set[int] = set()
    for table in ledger.tables(("labels",)):
        found.update(k for labels in table.filter(table[KEEP])["labels"].to_pylist() for k in labels or ())
    return tuple(sorted(found))


def _in_file(path: Path) -> tuple[int, ...]:
    try:
        wnids = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(
            f"expected classes to be '{RECIPE}', '{ALL}' or a file of WordNet ids, got {str(path)!r}: {error}"
        ) from error
    known = imagenet_1k_index()
    unknown = [wnid for wnid in wnids if wnid not in known]
    if unknown:
        raise StageError(f"expected WordNet ids of ImageNet-1k in {path}, got {unknown[0]!r}: one id a line")
    return tuple(sorted({known[wnid] for wnid in wnids}))


def verdicts(
    rows: Sequence[Mapping[str, Any]],
    viewers: Sequence[Viewer],
    classes: Sequence[int],
    settings: FilterASettings,
    out: Path,
) -> list[Verdict]:
    """A verdict for each row, which has `labels`, its picture and, where a pool says so, `wnid`.

    A filter is asked only about pictures that no filter before it dropped: the first one decides most of them.
    """
    column = {index: place for place, index in enumerate(classes)}
    own = [[column[k] for k in row["labels"] or () if k in column] for row in rows]
    found = [Verdict(_without_class(row, places)) for row, places in zip(rows, own, strict=True)]
    names = [imagenet_1k_names()[index] for index in classes]
    for viewer in viewers:
        left = [i for i, verdict in enumerate(found) if verdict.reason is None]
        for i, said in zip(left, look_at(viewer, (picture_of(rows[i], out) for i in left)), strict=True):
            if isinstance(said, PictureError):
                found[i].reason, found[i].error = UNREAD, str(said)
            else:
                _judge(found[i], class_logits(viewer, said, classes), own[i], names, settings.max_probability)
    return found


def _without_class(row: Mapping[str, Any], places: Sequence[int]) -> str | None:
    if places:
        return None
    if row["labels"]:
        return OUTSIDE
    return NOT_1K if row.get("wnid") else NO_LABEL


def _judge(verdict: Verdict, logits: Any, own: Sequence[int], names: Sequence[str], max_probability: float) -> None:
    """Take in what one filter says: logits (crops, classes)."""
    verdict.asked += 1
    right = logits[:, own].max(axis=1) >= logits.max(axis=1)
    verdict.right_crops += int(right.sum())
    chances = probabilities(logits)
    true = float(chances[:, own].sum(axis=1).max())
    verdict.true_probability = max(true, verdict.true_probability or 0.0)
    wrong = np.delete(chances.max(axis=0), own)
    if wrong.size:
        others = np.delete(np.arange(len(names)), own)
        best = int(wrong.argmax())
        verdict.wrong.append((names[others[best]], float(wrong[best])))
    if right.any():
        verdict.reason = RIGHT
    elif true >= max_probability:
        verdict.reason = LIKELY


def _columns(found: Sequence[Verdict]) -> dict[str, pa.Array]:
    labels = [[name for name, _ in v.wrong[:2]] + [None, None] for v in found]
    rows: dict[str, list[Any]] = {
        "true_probability": [v.true_probability for v in found],
        "wrong_label_1": [first for first, *_ in labels],
        "wrong_label_2": [second for _, second, *_ in labels],
        "wrong_confidence": [max((p for _, p in v.wrong[:2]), default=None) for v in found],
        "right_crops": [v.right_crops if v.asked else None for v in found],
        "filters_asked": [v.asked for v in found],
        "filter_error": [v.error for v in found],
        KEEP: [v.reason is None for v in found],
        REASON: [v.reason for v in found],
    }
    return {name: pa.array(rows[name], SCHEMA.field(name).type) for name in SCHEMA.names}


FILTER_A = Stage("filter_a", "keep what every crop of every filter gets wrong", FilterASettings, _start)
