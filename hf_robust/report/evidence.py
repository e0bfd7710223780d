"""What the plots and the gallery need of stored predictions, reduced run by run so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..benchmarks import Benchmark
from ..benchmarks.views import Classification, Detection, Scored, SpuriousPairs
from ..labels import imagenet_1k_names, imagenet_d_categories
from ..metrics import ClassScore, spurious_score
from ..scoring import Asked, asked_of, view_of
from ..scoring.load import Loaded
from .style import LineKey

WORST = 12  # pictures of a gallery


@dataclass(frozen=True)
class Failure:
    """One picture that a model got badly wrong: what it said, with which probability, and what is there."""

    dataset: str
    id: str
    sha256: str | None
    predicted: str
    actual: str
    probability: float


@dataclass(frozen=True)
class Answers:
    """Of a labelled benchmark: confidence and correctness a picture; `groups`: category -> (right, pictures)."""

    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    groups: Mapping[str, tuple[int, int]]
    worst: tuple[Failure, ...]


@dataclass(frozen=True)
class Detected:
    """Of an out-of-distribution benchmark: anomaly scores, higher = more out-of-distribution."""

    scores: NDArray[np.float64]
    is_ood: NDArray[np.bool_]
    worst: tuple[Failure, ...]


@dataclass(frozen=True)
class Pairs:
    """Of a spurious benchmark: the measures of each class."""

    per_class: tuple[ClassScore, ...]
    worst: tuple[Failure, ...]


Evidence = Answers | Detected | Pairs


def gather(
    runs: Path, benchmarks: Mapping[str, Benchmark], wanted: Collection[tuple[LineKey, str]]
) -> dict[str, dict[LineKey, Evidence]]:
    """Benchmark -> model -> evidence, of the (model, benchmark) pairs in `wanted`; other views are left out."""
    found: dict[str, dict[LineKey, Evidence]] = {}
    for asked in asked_of(runs, benchmarks):
        key = (str(asked.plan["model"]), str(asked.mode), asked.run.name)
        if (key, asked.benchmark.name) in wanted:
            loaded, view = view_of(asked)
            evidence = evidence_of(asked, loaded, view)
            if evidence is not None:
                found.setdefault(asked.benchmark.name, {})[key] = evidence
    return found


def evidence_of(asked: Asked, loaded: Loaded, view: Any) -> Evidence | None:
    """The evidence of one benchmark and run; None for a view of another kind."""
    if isinstance(view, Classification):
        return _answers(asked.benchmark, loaded, view)
    if isinstance(view, Detection):
        return _detected(asked.benchmark, loaded, view)
    return _pairs(asked.benchmark, loaded, view) if isinstance(view, SpuriousPairs) else None


def _answers(benchmark: Benchmark, loaded: Loaded, view: Classification) -> Answers:
    test = view.test
    names = class_names(benchmark, loaded)
    category = test.outputs.groups.get("category")
    known = category_names()
    groups = {}
    for name in sorted(set(category.tolist())) if category is not None else ():
        right = test.correct[category == name]
        groups[known.get(name, name)] = (int(right.sum()), len(right))
    worst = _highest(np.where(test.correct, -1.0, test.confidence))
    said = _said(test, names)
    actual = [_true_names(benchmark, loaded, test, names, i) for i in worst]
    return Answers(
        test.confidence, test.correct, groups, _failures(benchmark, "test", test, worst, said, actual, test.confidence)
    )


def _detected(benchmark: Benchmark, loaded: Loaded, view: Detection) -> Detected:
    outside = view.outside
    worst = _highest(outside.confidence)
    actual = [lemmas_of(outside.outputs.ids[i]) for i in worst]
    said = _said(outside, class_names(benchmark, loaded))
    failures = _failures(benchmark, "outside", outside, worst, said, actual, outside.confidence)
    return Detected(view.scores, view.is_ood, failures)


def _pairs(benchmark: Benchmark, loaded: Loaded, view: SpuriousPairs) -> Pairs:
    spurious = Scored(loaded.roles["spurious"], None)
    classes = np.asarray(spurious.outputs.groups["spurious_class"], dtype=np.int64)
    probability = spurious.of_class(classes)
    names, fooled = imagenet_1k_names(), spurious.predicted == classes  # only those say the class
    worst = _highest(np.where(fooled, probability, -1.0))
    features = feature_of()
    actual = [features.get(int(classes[i]), "a spurious feature only") for i in worst]
    said = {i: names[int(classes[i])] for i in worst}
    scores = spurious_score(view.probability, view.class_index, view.is_spurious) if len(view.probability) else None
    failures = _failures(benchmark, "spurious", spurious, worst, said, actual, probability)
    return Pairs(scores.per_class if scores else (), failures)


def feature_of() -> dict[int, str]:
    """ImageNet-1k index -> the spurious feature of the class, for the official 100."""
    from ..labels import spurious_classes

    return {c.index: c.feature for c in spurious_classes()}


def class_names(benchmark: Benchmark, loaded: Loaded) -> Sequence[str]:
    """Display names of the columns of the logits."""
    if loaded.zero_shot and benchmark.zero_shot is not None:
        known = category_names()
        return [known.get(name, name) for name in benchmark.zero_shot.classes]
    return imagenet_1k_names()


def lemmas_of(identity: str) -> str:
    """What an ImageNet-O picture shows, from its file name.

    >>> lemmas_of("n01498041/garlic_bread_0.93.JPEG")
    'garlic bread'
    """
    stem = identity.rsplit("/", 1)[-1].rsplit(".", 1)[0]
    return stem.rsplit("_", 1)[0].replace("_", " ")


def _highest(values: NDArray[np.float64]) -> list[int]:
    """Positions of the highest values, at most WORST; negative ones do not count, the first of equal ones leads."""
    order = np.argsort(-values, kind="stable")[:WORST]
    return [int(i) for i in order if values[i] >= 0]


def category_names() -> dict[str, str]:
    """Folder of an ImageNet-D category -> its name as people write it."""
    return {c.folder: c.display_name.replace("_", " ") for c in imagenet_d_categories()}


def _said(scored: Scored, names: Sequence[str]) -> dict[int, str]:
    mask = scored.mask
    return {i: names[mask[c] if mask is not None else c] for i, c in enumerate(scored.predicted.tolist())}


def _true_names(benchmark: Benchmark, loaded: Loaded, test: Scored, names: Sequence[str], i: int) -> str:
    category = test.outputs.groups.get("category")
    if category is not None:
        known = category_names()
        return known.get(str(category[i]), str(category[i]))
    return " or ".join(names[int(k)] for k in test.outputs.labels[i] if k >= 0)


def _failures(
    benchmark: Benchmark,
    role: str,
    scored: Scored,
    worst: Sequence[int],
    said: Mapping[int, str],
    actual: Sequence[str],
    probability: NDArray[np.float64],
) -> tuple[Failure, ...]:
    dataset = next(s.dataset for s in benchmark.sources if s.role == role)
    ids, hashes = scored.outputs.ids, scored.outputs.sha256 or (None,) * len(scored.outputs)
    return tuple(
        Failure(dataset, ids[i], hashes[i], said[i], name, float(probability[i]))
        for i, name in zip(worst, actual, strict=True)
    )
