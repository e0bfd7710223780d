"""SpuFix: how much of a logit comes from spurious directions, and the logits without it. Arrays in, arrays out.

For each spurious class a few directions in the space of psi(x) = w * phi(x) (see neural_pca.py); what a picture has of
them beyond the mean is taken off the class's logit (arXiv 2212.04871, section 5). Everything but the clamp at 0 is
linear in the features, so all classes together cost one matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .neural_pca import Float, feature_rows

_NO_LENGTH = 1e-12  # of the covariance between alpha and psi, against the size of both
_WORST_CONDITION = 1e10  # of the directions' inner products: beyond it their coordinates are rounding


@dataclass(frozen=True)
class ClassFix:
    """The spurious directions of one class: weight (D,), mean of psi (D,), unit directions (m, D), their components."""

    weight: Float
    mean: Float
    directions: Float
    components: tuple[int, ...]


def fit_class(
    features: ArrayLike, weight: ArrayLike, alphas: ArrayLike, *, components: Sequence[int] | None = None
) -> ClassFix:
    """The directions of one class: of maximum covariance between psi and the alphas of each spurious component.

    features  (N, D) of this model for the training pictures of the class; weight (D,), its head's row.
    alphas    (N, m) of the same pictures, from this model or, so that its components carry over, from another.
    components  the number of each column, for reports; None counts them.
    d_l is the sum over pictures of alpha_l (psi - mean), normalised. ValueError for shapes that do not fit and for an
    alpha that does not vary with psi. Source: arXiv 2212.04871, section 5.

    >>> fit_class([[0.0, 1.0], [2.0, 1.0]], [1.0, 1.0], [[-1.0], [1.0]]).directions.tolist()
    [[1.0, 0.0]]
    """
    row = np.asarray(weight, dtype=np.float64)
    psi = feature_rows(features, width=len(row)) * row
    parts = np.asarray(alphas, dtype=np.float64)
    if parts.ndim != 2 or len(parts) != len(psi) or not parts.shape[1] or len(psi) < 2:
        raise ValueError(
            f"expected alphas of shape (N, m) for N >= 2 training pictures, got {parts.shape} for {len(psi)} pictures: "
            "use the alphas of the same pictures"
        )
    if not np.isfinite(parts).all():
        raise ValueError("expected finite alphas, got NaN or infinite ones: check the file that they come from")
    names = tuple(range(parts.shape[1])) if components is None else tuple(components)
    if len(names) != parts.shape[1]:
        raise ValueError(f"expected one component a column of alphas, got {len(names)} for {parts.shape[1]} columns")
    mean = psi.mean(axis=0)
    centred = psi - mean
    along = parts.T @ centred
    length = np.linalg.norm(along, axis=1, keepdims=True)
    flat = np.flatnonzero(length[:, 0] <= _NO_LENGTH * np.linalg.norm(parts, axis=0) * np.linalg.norm(centred))
    if len(flat):
        raise ValueError(
            f"expected alphas that vary with the features, got component {names[flat[0]]} without any covariance: it "
            "has no direction in this model, leave it out"
        )
    return ClassFix(row, mean, along / length, names)


@dataclass(frozen=True)
class SpuFix:
    """The correction of all spurious classes of one model, ready to be applied.

    outputs     int64 (L,): the output column that each direction corrects, ascending.
    components  int64 (L,): the component that it stands for.
    matrix      float64 (L, D), offset (L,): beta = features @ matrix.T - offset, before the clamp.
    directions  float64 (L, D): unit directions in the space of psi.
    width       outputs of the head that it belongs to.
    """

    outputs: NDArray[np.int64]
    components: NDArray[np.int64]
    matrix: Float
    offset: Float
    directions: Float
    width: int

    @classmethod
    def of(cls, classes: Mapping[int, ClassFix], *, width: int) -> SpuFix:
        """The correction made of one ClassFix an output column.

        ValueError for an empty mapping, for a column outside the head, and for directions of one class that are so
        close to each other that a picture has no coordinates along them.
        """
        if not classes:
            raise ValueError("expected at least one class to correct, got none: check the component list")
        columns = sorted(classes)
        if columns[0] < 0 or columns[-1] >= width:
            raise ValueError(f"expected output columns below {width}, got {columns[0]} to {columns[-1]}: another head?")
        pieces = [_linear(classes[k], k) for k in columns]
        counts = [len(classes[k].components) for k in columns]
        return cls(
            outputs=np.repeat(np.array(columns, dtype=np.int64), counts),
            components=np.array([c for k in columns for c in classes[k].components], dtype=np.int64),
            matrix=np.concatenate([matrix for matrix, _ in pieces]),
            offset=np.concatenate([offset for _, offset in pieces]),
            directions=np.concatenate([classes[k].directions for k in columns]),
            width=width,
        )

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """(C,): the corrected output columns, each once, ascending."""
        return np.unique(self.outputs)

    @cached_property
    def _starts(self) -> NDArray[np.intp]:
        return np.searchsorted(self.outputs, self.columns)

    def correction(self, features: ArrayLike) -> Float:
        """(N, C): what each of `columns` has from spurious directions, >= 0; `features` (N, D)."""
        rows = feature_rows(features, width=self.matrix.shape[1])
        beta = rows @ self.matrix.T - self.offset
        return np.asarray(np.add.reduceat(np.maximum(beta, 0.0), self._starts, axis=1))

    def correct(self, logits: ArrayLike, features: ArrayLike, *, strength: float = 1.0) -> NDArray[np.floating[Any]]:
        """(N, K) logits without the spurious part, in the logits' precision.

        logits (N, K) over all outputs of the model; features (N, D); strength from 0 (nothing) to 1 (as published).
        ValueError for another width or number of rows, and for a strength outside that range.
        """
        check_strength(strength)
        before = np.asarray(logits)
        before = before if np.issubdtype(before.dtype, np.floating) else before.astype(np.float64)
        taken = self.correction(features)
        if before.shape != (len(taken), self.width):
            raise ValueError(
                f"expected logits of shape ({len(taken)}, {self.width}), as the features and the head that was fitted, "
                f"got {before.shape}: take both from one run, with all outputs"
            )
        after = before.copy()
        after[:, self.columns] = before[:, self.columns] - strength * taken
        return after


def check_strength(strength: float) -> None:
    """Nothing for a number in [0, 1], ValueError for another."""
    if not 0.0 <= strength <= 1.0:
        raise ValueError(f"expected a strength of correction from 0 to 1, got {strength}: 1 is the published one")


def _linear(fix: ClassFix, column: int) -> tuple[Float, Float]:
    """(m, D) and (m,): coordinates in the basis of the directions, which need not be orthogonal, times their sums."""
    gram = fix.directions @ fix.directions.T
    if np.linalg.cond(gram) > _WORST_CONDITION:
        raise ValueError(
            f"expected spurious directions that differ, got nearly the same ones for components {fix.components} of "
            f"output {column}: leave one of them out"
        )
    dual = np.linalg.solve(gram, fix.directions) * fix.directions.sum(axis=1, keepdims=True)
    return dual * fix.weight, dual @ fix.mean
