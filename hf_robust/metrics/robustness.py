"""What a shift costs: the drop against a control, and how a model stands beside a field of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks
from .accuracy import accuracy


def accuracy_drop(control: ArrayLike, test: ArrayLike) -> float:
    """Accuracy on control pictures of the same classes minus accuracy on the benchmark, in [-1, 1]; lower is better.

    control  (M,) bool or 0/1: whether each control picture is right.   test  (N,): the same on the benchmark.
    ValueError where one is empty. For an interval see `newcombe`.

    >>> accuracy_drop([True, True, True, False], [True, False])  # 3/4 - 1/2
    0.25
    """
    return accuracy(control) - accuracy(test)


@dataclass(frozen=True)
class LogitLine:
    """A straight line through (logit of clean accuracy, logit of shifted accuracy) of n reference models.

    r_squared is the fraction of the variance of the shifted logits that the line explains (1 for two models).
    """

    slope: float
    intercept: float
    r_squared: float
    n: int

    def predict(self, clean: ArrayLike) -> NDArray[np.float64]:
        """Shifted accuracy that the field reaches at these clean accuracies (M,): float64 (M,), in (0, 1)."""
        return np.asarray(1 / (1 + np.exp(-(self.slope * _logit(clean, "clean") + self.intercept))))


def fit_logit_line(clean: ArrayLike, shifted: ArrayLike) -> LogitLine:
    """The least-squares line of a field of reference models (Taori et al., arXiv 2007.00644).

    clean, shifted  (M,) accuracies, fractions strictly between 0 and 1, one entry a model, M >= 2 with at least two
    different clean accuracies. A model at exactly 0 or 1 (a filter's own 0.000 on ImageNet-A) has no logit and is named
    in a ValueError: leave it out.
    """
    x, y = _logit(clean, "clean"), _logit(shifted, "shifted")
    checks.same_length(y, "shifted", x)
    spread = float(((x - x.mean()) ** 2).sum())
    if spread == 0:
        raise ValueError(
            f"expected at least two different clean accuracies, got {x.size} equal: a line needs more reference models"
        )
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    intercept = float(y.mean() - slope * x.mean())
    total = float(((y - y.mean()) ** 2).sum())
    left = float(((y - slope * x - intercept) ** 2).sum())
    return LogitLine(slope, intercept, 1 - left / total if total else 1.0, x.size)


def effective_robustness(clean: ArrayLike, shifted: ArrayLike, line: LogitLine) -> NDArray[np.float64]:
    """Shifted accuracy beyond what the field reaches at the same clean accuracy: float64 (M,); 0 is on the line.

    clean  (M,) in (0, 1).   shifted  (M,) in [0, 1].   Errors as in `fit_logit_line`. Section 2 of arXiv 2007.00644.

    >>> line = fit_logit_line([0.5, 0.9], [0.5, 0.9])
    >>> effective_robustness([0.8], [0.9], line).round(12).tolist()
    [0.1]
    """
    reached = checks.probabilities(shifted, "shifted")
    expected = line.predict(clean)
    checks.same_length(reached, "shifted", expected)
    return np.asarray(reached - expected)


def _logit(values: ArrayLike, name: str) -> NDArray[np.float64]:
    accuracies = checks.probabilities(values, name)
    bad = np.flatnonzero((accuracies <= 0) | (accuracies >= 1))
    if bad.size:
        raise ValueError(
            f"expected accuracies strictly between 0 and 1 in {name}, got {accuracies[bad[0]]:g} at row {bad[0]}: it "
            "has no logit, leave that model out"
        )
    return np.asarray(np.log(accuracies / (1 - accuracies)))
