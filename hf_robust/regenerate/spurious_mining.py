"""Mining for Spurious ImageNet (arXiv 2212.04871, section 4): what a component makes a model take for a class.

A candidate counts for the class that the model predicts, and there for the component that raises the class's logit most
(its alpha). The highest of each component go on to people, who drop what shows the object.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..labels import imagenet_1k
from ..predictions.plan import PLAN_FILE, SourcePlan, read_json
from ..predictions.read import read_source
from ..runner import RunOptions
from ..schema import FEATURES, Outputs
from ..spurious.alpha_files import class_file, read_class
from ..spurious.components import Components, class_index, read_components
from ..spurious.neural_pca import NeuralPCA
from .candidates import candidate_rows, forward
from .ledger import KEEP, REASON, ROW_ID, Ledger
from .openimages import COLLECT_OPENIMAGES, OPENIMAGES_LABELS, file_hash
from .stage import Stage, StageError, Whole, Work

__all__ = ["COLLECT_OPENIMAGES", "MINE_SPURIOUS"]

UNREAD, OTHER = "the model could not read it", "not taken for a class with components"
SHOWN, LOW = "its labels say that it may show the object", "no component raises the logit of its class"
BEYOND = "not among the highest of its component"

SCHEMA = pa.schema(
    [
        ("predicted", pa.string()), ("spurious_class", pa.int32()), ("component", pa.int32()), ("alpha", pa.float64()),
        ("mining_error", pa.string()), (KEEP, pa.bool_()), (REASON, pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class MineSpuriousSettings:
    """How pictures are found for the components of a model.

    model, checkpoint  the model whose components were judged; the paper's is an adversarially robust ResNet-50.
    neural_pca         folder of its class-*.safetensors, as `hf-robust neural-pca fit` writes them.
    components         "published", or a JSON file {class: [component, …]}; the published numbers count the components
                       of the paper's model.
    class_labels       CSV with columns class (index or WordNet id) and label, a line a label, empty for a class without
                       any: pictures with such an OpenImages label may show the object. None: no such rule.
    top                pictures kept of each component; the published set has 75 a class after people chose.
    """

    model: str = "timm/resnet50"
    checkpoint: str | None = None
    neural_pca: str = ""
    components: str = "published"
    class_labels: str | None = None
    top: int = 200
    batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one kept row."""

    key: str
    predicted: str | None = None
    index: int | None = None
    component: int | None = None
    alpha: float | None = None
    error: str | None = None
    reason: str | None = None


def _start(settings: MineSpuriousSettings, work: Work) -> Whole:
    if settings.top < 1:
        raise StageError(f"expected top of at least 1, got {settings.top}: pictures kept of each component")
    wanted = _wanted(settings)
    shown = {} if settings.class_labels is None else object_labels(Path(settings.class_labels), wanted)
    if shown and OPENIMAGES_LABELS not in work.ledger.columns:
        raise StageError("expected labels of OpenImages for class_labels, got none: give the CSV files of labels")
    options = RunOptions(
        checkpoint=None if settings.checkpoint is None else Path(settings.checkpoint),
        features=True, on_error="record", micro_batch=settings.batch_size,
    )  # fmt: skip
    rows = candidate_rows(work.ledger)
    folder = forward([settings.model], rows, work, options=options)[settings.model]
    weights = read_json(folder.parent / PLAN_FILE, ["weights"])["weights"]
    pca = {index: chosen_part(Path(settings.neural_pca), index, which, weights) for index, which in wanted.items()}
    facts = {
        "run": folder.parent.name,  # holds the hash of its plan
        "components": {str(index): list(which) for index, which in wanted.items()},
        "neural_pca": {str(index): _hash(own) for index, own in pca.items()},
        "class_labels": None if settings.class_labels is None else file_hash(Path(settings.class_labels)),
    }
    judge = Judge(folder, pca, wanted, shown)
    return Whole(facts, lambda ledger: _tables(ledger, judge, settings.top))


def _wanted(settings: MineSpuriousSettings) -> Components:
    """The components that there is a neural PCA of their class for; StageError where there is none at all."""
    listed = read_components(settings.components)
    folder = Path(settings.neural_pca)
    found = {index: which for index, which in listed.items() if class_file(folder, index).is_file()}
    if not settings.neural_pca or not found:
        raise StageError(
            f"expected the neural PCA of a class of {settings.components!r} in neural_pca, got none in "
            f"{settings.neural_pca!r}: hf-robust neural-pca fit"
        )
    return found


def chosen_part(folder: Path, index: int, which: Sequence[int], weights: str) -> NeuralPCA:
    """The neural PCA of a class, of these components alone: `alphas` gives a column for each.

    StageError for a component that it lacks, and for one that was fitted to other weights than the model has.
    """
    stored = read_class(folder, index)
    if stored.facts.get("weights") != weights:
        raise StageError(
            f"expected the neural PCA of the model that ranks, got class {index} of {stored.facts.get('model')!r} with "
            f"other weights in {folder}: fit it to this model"
        )
    own = stored.pca
    beyond = [number for number in which if number >= len(own.components) - own.remainder]
    if beyond:
        raise StageError(
            f"expected components below {len(own.components) - own.remainder} of class {index}, got {beyond[0]}: "
            "the list counts the components of another model, or too few were kept"
        )
    numbers = list(which)
    return replace(own, eigenvalues=own.eigenvalues[numbers], components=own.components[numbers], remainder=False)


def _hash(pca: NeuralPCA) -> str:
    digest = hashlib.sha256()
    for values in (pca.weight, pca.mean, pca.components):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def object_labels(path: Path, classes: Sequence[int] | Components) -> dict[int, frozenset[str]]:
    """ImageNet-1k index -> OpenImages labels of pictures that may show it, from a CSV with columns class and label.

    StageError where a class is not in the file, since pictures of its object would then pass.
    """
    found: dict[int, set[str]] = defaultdict(set)
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
        for line in lines:
            found[class_index(line["class"].strip())].update({line["label"].strip()} - {""})
    except (OSError, csv.Error, KeyError, ValueError, AttributeError) as error:
        raise StageError(f"expected a CSV with columns class and label at {path}, got {error}") from error
    missing = [index for index in classes if index not in found]
    if missing:
        raise StageError(
            f"expected a line for each of {len(list(classes))} classes in {path}, got none for {missing[0]} "
            f"({imagenet_1k().wnids[missing[0]]}): add one, with an empty label if OpenImages has none"
        )
    return {index: frozenset(names) for index, names in found.items()}


def _tables(ledger: Ledger, judge: Judge, top: int) -> Iterator[pa.Table]:
    """Two passes, so that memory holds what is ranked and not every row."""
    kept = _highest((row for _, rows in judge.parts(ledger) for row in rows if row is not None), top)
    for ids, rows in judge.parts(ledger):
        own = [_columns(row, kept) if row is not None else {} for row in rows]
        columns = {name: pa.array([row.get(name) for row in own], SCHEMA.field(name).type) for name in SCHEMA.names}
        yield pa.table({ROW_ID: ids, **columns})


@dataclass(frozen=True)
class Judge:
    """What the stored predictions say about the candidates.

    folder  predictions of the model.   pca  class -> its wanted components.   wanted  their numbers.
    shown   class -> labels of pictures that may show it; empty where that rule is left out.
    """

    folder: Path
    pca: Mapping[int, NeuralPCA]
    wanted: Components
    shown: Mapping[int, frozenset[str]]

    def parts(self, ledger: Ledger) -> Iterator[tuple[pa.ChunkedArray, list[_Found | None]]]:
        """Row ids of each part of the ledger with what is found of each row; None for rows dropped before."""
        ahead = self._predictions()
        waiting: dict[str, _Found] = {}
        for table in ledger.tables((OPENIMAGES_LABELS,) if self.shown else ()):
            rows: list[_Found | None] = []
            for row in table.to_pylist():
                while row[KEEP] and row[ROW_ID] not in waiting:
                    waiting |= next(ahead)
                found = waiting.pop(row[ROW_ID]) if row[KEEP] else None
                rows.append(None if found is None else self._checked(found, row.get(OPENIMAGES_LABELS)))
            yield table[ROW_ID], rows

    def _checked(self, own: _Found, labels: Sequence[str] | None) -> _Found:
        may_show = own.index is not None and self.shown.get(own.index, frozenset()) & set(labels or ())
        return replace(own, reason=SHOWN) if may_show else own

    def _predictions(self) -> Iterator[dict[str, _Found]]:
        """Part by part, in the order of the kept rows."""
        for index, *_ in SourcePlan.read(self.folder).parts:
            read = read_source(self.folder, parts=[index], extra=(FEATURES,))
            if read.absent:
                raise StageError(f"expected part {index} of {self.folder}, got none: run the stage again")
            failed = {key: _Found(key, error=error, reason=UNREAD) for key, error in read.failed}
            yield failed | {row.key: row for row in _measured(read.outputs, self.pca, self.wanted)}


def _measured(outputs: Outputs, pca: Mapping[int, NeuralPCA], wanted: Components) -> list[_Found]:
    predicted = outputs.logits.argmax(axis=1) if len(outputs) else np.zeros(0, np.int64)
    wnids = imagenet_1k().wnids
    found = [_Found(key, wnids[k], reason=OTHER) for key, k in zip(outputs.ids, predicted, strict=True)]
    for index in sorted(set(predicted.tolist()) & set(pca)):
        where = np.flatnonzero(predicted == index)
        alphas = pca[index].alphas(outputs.extra[FEATURES][where])
        for row, own in zip(where, alphas, strict=True):
            best = int(own.argmax())
            found[row] = _ranked(found[row], index, wanted[index][best], float(own[best]))
    return found


def _ranked(found: _Found, index: int, component: int, alpha: float) -> _Found:
    return replace(found, index=index, component=component, alpha=alpha, reason=None if alpha > 0 else LOW)


def _highest(rows: Iterable[_Found], top: int) -> frozenset[str]:
    """Ids of the `top` of each class and component; ties to the lower row id."""
    ranks: dict[tuple[int | None, int | None], list[tuple[float, str]]] = defaultdict(list)
    for row in rows:
        if row.reason is None and row.alpha is not None:
            ranks[(row.index, row.component)].append((-row.alpha, row.key))
    return frozenset(key for ranked in ranks.values() for _, key in sorted(ranked)[:top])


def _columns(row: _Found, kept: frozenset[str]) -> dict[str, Any]:
    reason = row.reason or (None if row.key in kept else BEYOND)
    values = (row.predicted, row.index, row.component, row.alpha, row.error, reason is None, reason)
    return dict(zip(SCHEMA.names, values, strict=True))


MINE_SPURIOUS = Stage(
    "mine_spurious", "keep what a component makes the model take for its class", MineSpuriousSettings, _start
)
