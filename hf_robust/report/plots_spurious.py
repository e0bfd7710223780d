"""Plots of Spurious ImageNet: the worst classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..labels import imagenet_1k_names
from .evidence import Pairs, feature_of
from .plots_answers import named
from .style import LineKey, Plot, Series

_WORST = 12


def worst_classes(evidence: Mapping[LineKey, Pairs], shown: Sequence[Series]) -> Plot | None:
    """Average precision of the classes that are told worst from their spurious feature; None without any class."""
    table = {s.key: {c.class_index: c.average_precision for c in evidence[s.key].per_class} for s in shown}
    classes = sorted({k for scores in table.values() for k in scores})
    if not classes:
        return None
    mean = {k: float(np.mean([scores[k] for scores in table.values() if k in scores])) for k in classes}
    worst = sorted(classes, key=lambda k: (mean[k], k))[:_WORST]
    names, features = imagenet_1k_names(), feature_of()
    counts = [(c.n_validation, c.n_validation + c.n_spurious) for p in evidence.values() for c in p.per_class]
    chance = float(np.mean([own / both for own, both in counts]))
    title = {k: f"{names[k]} ← {features[k]}" if k in features else names[k] for k in worst}
    values = {
        title[k]: [(table[s.key][k], None) if k in table[s.key] else None for s in shown] for k in worst
    }  # fmt: skip
    return named(
        "worst-classes", "Worst classes", f"Lowest average precision: {'; '.join(title[k] for k in worst[:3])}.",
        f"The {len(worst)} of {len(classes)} classes with the lowest average precision (mean over the models shown), "
        "each with the feature that it is confused by. Dashed: a guess, the share of a class's pictures that "
        f"show it ({100 * chance:.0f} %).",
        values, shown, label="average precision", chance=chance,
    )  # fmt: skip
