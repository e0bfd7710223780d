"""Does a class's own probability tell its pictures from pictures that show only its spurious feature?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .detection import curve


@dataclass(frozen=True)
class ClassScore:
    """One class: how well its validation pictures (positive) stand apart from its spurious ones (negative).

    The fractions classified as the class are None unless `classified` was given.
    """

    class_index: int
    average_precision: float
    auroc: float
    n_validation: int
    n_spurious: int
    mean_probability_validation: float
    mean_probability_spurious: float
    fraction_classified_validation: float | None = None
    fraction_classified_spurious: float | None = None


@dataclass(frozen=True)
class SpuriousScore:
    """The published score, what the paper's text names, and both over all pairs pooled; fractions, higher is better.

    spurious_score           mean over classes of average precision (released code, published tables; chance 0.40)
    spurious_auroc           mean over classes of the area under the ROC curve (chance 0.50)
    joint_average_precision  average precision over the pairs of all classes pooled
    joint_auroc              the same for the area under the ROC curve
    per_class                one entry a class, by class index
    """

    spurious_score: float
    spurious_auroc: float
    joint_average_precision: float
    joint_auroc: float
    per_class: tuple[ClassScore, ...]


def spurious_score(
    probability: ArrayLike, class_index: ArrayLike, is_spurious: ArrayLike, *, classified: ArrayLike | None = None
) -> SpuriousScore:
    """The spurious score of arXiv 2212.04871 and its sisters, from one probability a picture.

    probability  (N,) in [0, 1]: of the picture's class, softmax over all outputs of the model.
    class_index  int (N,): for a spurious picture, the class whose feature it shows.
    is_spurious  (N,) bool or 0/1: False for validation pictures, the positive class.
    classified   (N,) bool or 0/1, optional: whether the model's prediction is `class_index`.
    Raises ValueError, naming the class, where a class has only one half: drop its rows to score the others.

    >>> spurious_score([0.9, 0.5, 0.6], [7, 7, 7], [False, False, True]).spurious_score  # (1/1 + 2/3) / 2
    0.8333333333333333
    """
    values, classes, genuine = pairs(probability, class_index, is_spurious)
    named = None if classified is None else checks.flags(classified, "classified", like=values)
    order = np.argsort(classes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(classes[order])) + 1)
    each = tuple(_class(int(classes[g[0]]), values[g], genuine[g], None if named is None else named[g]) for g in groups)
    joint = curve(values, genuine)
    return SpuriousScore(
        spurious_score=float(np.mean([c.average_precision for c in each])),
        spurious_auroc=float(np.mean([c.auroc for c in each])),
        joint_average_precision=joint.average_precision(),
        joint_auroc=joint.area(),
        per_class=each,
    )


def pairs(
    probability: ArrayLike, class_index: ArrayLike, is_spurious: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """The checked input of `spurious_score`: probability, class, and whether a row is a validation picture."""
    values = checks.probabilities(probability, "probability")
    classes = checks.integers(class_index, "class_index", like=values)
    genuine = ~checks.flags(is_spurious, "is_spurious", like=values)
    _both_halves(classes, genuine)
    return values, classes, genuine


def _class(
    index: int, probability: NDArray[np.float64], genuine: NDArray[np.bool_], named: NDArray[np.bool_] | None
) -> ClassScore:
    counts = curve(probability, genuine)
    return ClassScore(
        class_index=index,
        average_precision=counts.average_precision(),
        auroc=counts.area(),
        n_validation=int(genuine.sum()),
        n_spurious=int((~genuine).sum()),
        mean_probability_validation=float(probability[genuine].mean()),
        mean_probability_spurious=float(probability[~genuine].mean()),
        fraction_classified_validation=None if named is None else float(named[genuine].mean()),
        fraction_classified_spurious=None if named is None else float(named[~genuine].mean()),
    )


def _both_halves(classes: NDArray[np.int64], genuine: NDArray[Any]) -> None:
    one_half = sorted(set(classes[genuine].tolist()) ^ set(classes[~genuine].tolist()))
    if one_half:
        half = "validation" if one_half[0] in classes[genuine] else "spurious"
        raise ValueError(
            f"expected validation and spurious rows of each class, got {len(one_half)} with one half, the first "
            f"class {one_half[0]} (only {half} rows): add the other half or drop those rows"
        )
