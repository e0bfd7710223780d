"""Class-wise neural PCA: what the logit of a class is made of, from stored features and the linear head.

The features phi(x) of a picture, weighted by the head's row w of the class, are psi(x) = w * phi(x); their sum is the
logit, but for the bias. The principal components of psi over the training pictures of the class cut that sum into parts
that belong to one direction each (arXiv 2212.04871, section 3). Everything is float64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

_NO_SUM = 1e-12  # an eigenvector whose entries add up to less has no side that raises the logit


@dataclass(frozen=True)
class NeuralPCA:
    """The neural PCA of one class.

    weight       (D,): the head's row of the class.   mean  (D,): of psi over the training pictures.
    eigenvalues  (M,): variance of psi along each component, divisor N - 1, largest first.
    components   (M, D): orthonormal rows; each points to where the logit rises (its entries add up to >= 0; where they
                 add up to 0, its entry of largest size is positive).
    remainder    whether the last row is no principal component but everything that the rows before it leave of the
                 logit; its eigenvalue is the variance along it, out of order.
    rows         training pictures.
    """

    weight: Float
    mean: Float
    eigenvalues: Float
    components: Float
    remainder: bool
    rows: int

    @property
    def sums(self) -> Float:
        """(M,): the sum of each component's entries, the factor between coordinate and alpha."""
        return np.asarray(self.components.sum(axis=1))

    def coordinates(self, features: ArrayLike) -> Float:
        """(N, M): the coordinate of each picture along each component, <v, psi - mean>; `features` (N, D)."""
        rows = feature_rows(features, width=len(self.weight))
        return np.asarray(rows @ (self.components * self.weight).T - self.components @ self.mean)

    def alphas(self, features: ArrayLike) -> Float:
        """(N, M): the part of the logit that each component gives, <1, v> <v, psi - mean>; `features` (N, D).

        A row adds up to the logit of the class minus the mean logit of its training pictures.
        """
        return self.coordinates(features) * self.sums


class Moments:
    """Mean and covariance of rows that come in pieces: memory for one (D, D) matrix, whatever the number of rows."""

    def __init__(self, width: int) -> None:
        self.rows = 0
        self.mean: Float = np.zeros(width)
        self._scatter: Float = np.zeros((width, width))

    def add(self, piece: Float) -> None:
        """Take (n, D) further rows in."""
        n = len(piece)
        if not n:
            return
        mean = piece.mean(axis=0)
        centred, apart = piece - mean, mean - self.mean
        self._scatter += centred.T @ centred + np.outer(apart, apart) * (self.rows * n / (self.rows + n))
        self.mean = self.mean + apart * (n / (self.rows + n))
        self.rows += n

    def covariance(self) -> Float:
        """(D, D), divisor rows - 1; ValueError below two rows."""
        _enough(self.rows)
        return np.asarray(self._scatter / (self.rows - 1))


def fit(features: ArrayLike, weight: ArrayLike, *, keep: int | None = None) -> NeuralPCA:
    """The neural PCA of a class from the features of its training pictures.

    features (N, D), N >= 2; weight (D,), the head's row of the class.
    keep  at most so many components, the others summed up in the remainder; None keeps all: D of them, or N - 1 and a
          remainder where there are fewer pictures than that.
    A thin decomposition is used where there are fewer pictures than features. ValueError for shapes that do not fit.
    Source: arXiv 2212.04871, section 3.

    >>> pca = fit([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]], [1.0, 1.0])
    >>> [round(float(row.sum()), 9) for row in pca.alphas([[5.0, 5.0]])]  # 10, minus the mean logit (1 + 3 + 8) / 3
    [6.0]
    """
    row = _weight(weight)
    psi = feature_rows(features, width=len(row)) * row
    _enough(len(psi))
    if len(psi) > len(row):
        moments = Moments(len(row))
        moments.add(psi)
        return _from_moments(moments, row, keep)
    mean = psi.mean(axis=0)
    _, singular, right = np.linalg.svd(psi - mean, full_matrices=False)
    rank = len(psi) - 1  # the rows add up to zero, so the last direction is rounding
    values = singular[:rank] ** 2 / (len(psi) - 1)
    return _finished(row, mean, values, right[:rank], len(psi), keep)


def fit_pieces(pieces: Iterable[ArrayLike], weight: ArrayLike, *, keep: int | None = None) -> NeuralPCA:
    """The same from features that come in pieces of (n, D): bounded memory for any number of pictures."""
    row = _weight(weight)
    moments = Moments(len(row))
    for piece in pieces:
        moments.add(feature_rows(piece, width=len(row)) * row)
    _enough(moments.rows)
    return _from_moments(moments, row, keep)


def feature_rows(features: ArrayLike, *, width: int) -> Float:
    """(N, D) float64; ValueError for another shape or numbers that are not finite."""
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(
            f"expected features of shape (N, {width}), as wide as the head, got {rows.shape}: take features and head "
            "from one run"
        )
    if not np.isfinite(rows).all():
        raise ValueError("expected finite features, got NaN or infinite ones: check the run that stored them")
    return rows


def _weight(weight: ArrayLike) -> Float:
    row = np.asarray(weight, dtype=np.float64)
    if row.ndim != 1 or not np.isfinite(row).all():
        raise ValueError(
            f"expected the head's row of one class, finite and of shape (D,), got {row.shape}: pass head.weight[column]"
        )
    return row


def _enough(rows: int) -> None:
    if rows < 2:
        raise ValueError(f"expected at least 2 training pictures of the class, got {rows}: a variance needs two")


def _from_moments(moments: Moments, weight: Float, keep: int | None) -> NeuralPCA:
    values, vectors = np.linalg.eigh(moments.covariance())
    order = np.argsort(-values, kind="stable")
    largest = np.maximum(values[order], 0.0)
    components = np.ascontiguousarray(vectors.T[order])
    return _finished(weight, moments.mean, largest, components, moments.rows, keep)


def _finished(
    weight: Float, mean: Float, eigenvalues: Float, components: Float, rows: int, keep: int | None
) -> NeuralPCA:
    if keep is not None and keep < 1:
        raise ValueError(f"expected to keep at least 1 component, got {keep}: leave it out to keep all")
    kept = _towards_the_logit(components[:keep])
    dropped, dropped_values = components[keep or len(components) :], eigenvalues[keep or len(components) :]
    values = eigenvalues[: len(kept)]
    # what the kept rows leave of the all-ones vector: its inner product with psi is what they leave of the logit
    rest = 1.0 - kept.T @ kept.sum(axis=1)
    rest -= kept.T @ (kept @ rest)  # once more, against rounding
    size = float(np.linalg.norm(rest))
    if size <= _NO_SUM * np.sqrt(len(weight)) or len(kept) == len(weight):
        return NeuralPCA(weight, mean, values, kept, False, rows)
    direction = rest / size
    variance = float(dropped_values @ (dropped @ direction) ** 2) if len(dropped) else 0.0
    return NeuralPCA(weight, mean, np.append(values, variance), np.vstack([kept, direction]), True, rows)


def _towards_the_logit(components: Float) -> Float:
    sums = components.sum(axis=1)
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    signs = np.sign(np.where(np.abs(sums) > _NO_SUM, sums, largest))
    return np.asarray(components * signs[:, None])
