"""A small world with an inside and an outside: features of five classes after a ReLU, their head, and every other input
of the out-of-distribution scores. Inside rows light up their class's units; outside rows are dim there and bright in
some of the units that no class uses. One inside label in twenty is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_robust.ood_scores import SCORES, Fit, LinearHead, fit

CLASSES, PER_CLASS, SPARE = 5, 10, 20
WIDTH = CLASSES * PER_CLASS + SPARE
SCALE = 20.0  # of the zero-shot head

_rng = np.random.default_rng(0)
_weight = np.zeros((CLASSES, WIDTH))
for _k in range(CLASSES):
    _weight[_k, _k * PER_CLASS : (_k + 1) * PER_CLASS] = 1.0
HEAD = LinearHead((_weight + 0.02 * _rng.normal(size=_weight.shape)).astype(np.float32), np.zeros(CLASSES, np.float32))
TEXTS = LinearHead(
    (SCALE * _weight / np.linalg.norm(_weight, axis=1, keepdims=True)).astype(np.float32),
    np.zeros(CLASSES, np.float32),
)


@dataclass(frozen=True)
class Rows:
    features: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def logits(self) -> NDArray[Any]:
        return self.features @ HEAD.weight.T + HEAD.bias

    @property
    def cosines(self) -> NDArray[Any]:
        return self.features / np.linalg.norm(self.features, axis=1, keepdims=True) @ TEXTS.weight.T

    def inputs(self, name: str) -> Mapping[str, Any]:
        """The keyword inputs of one score."""
        if name == "mcm":
            return {"logits": self.cosines, "head": TEXTS}
        confident = self.logits.max(axis=1)
        columns = {
            "logits": self.logits,
            "features": self.features,
            "confidence_logit": confident - 5.0,
            "rotation_logits": np.stack([confident, *3 * [np.full(len(confident), 3.0)]], axis=1),
        }
        needs = SCORES[name].needs
        return {needs: columns[needs], "head": HEAD}


def inside(n: int, *, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    features = 0.2 * rng.normal(size=(n, WIDTH)) + 2.0 * (_weight[labels] > 0)
    wrong = rng.random(n) < 0.05
    return Rows(np.maximum(features, 0).astype(np.float32), np.where(wrong, rng.integers(CLASSES, size=n), labels))


def outside(n: int, *, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    features = 0.2 * rng.normal(size=(n, WIDTH)) + 0.1
    bright = rng.random((n, SPARE)).argsort(axis=1) < 8
    features[:, CLASSES * PER_CLASS :] += 2.0 * bright
    return Rows(np.maximum(features, 0).astype(np.float32), np.full(n, -1))


def fitted(name: str, rows: Rows, **options: Any) -> Fit | None:
    """The fit of one score on these rows; None for a score without one."""
    if SCORES[name].fitter is None:
        return None
    return fit(name, **rows.inputs(name), labels=rows.labels, **options)
