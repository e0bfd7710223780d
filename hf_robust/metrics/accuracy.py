"""Top-k accuracy where an image may have several acceptable labels, over all classes or a mask of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import Rows
from . import checks
from .softmax import chunks, matrix


def hits(logits: ArrayLike, labels: ArrayLike, *, k: int = 1) -> NDArray[np.bool_]:
    """Whether any acceptable label is among the k highest logits: bool (N,).

    logits  (N, K); -inf in a column that the model has no output for, which is never a hit.
    labels  int (N, L), every acceptable column, padded with -1; or (N,) where each image has one.
    Equal logits rank by column, the lower first, so that k = 1 is the argmax and nothing depends on the order of rows.
    Several acceptable labels in the top k are one hit (the released ImageNet-D code counts each).
    Raises ValueError, naming the row, for NaN and +inf logits, labels outside -1 .. K - 1 and rows without a label.

    >>> hits([[0.1, 0.9, 0.5], [0.7, 0.7, 0.0]], [[1, 2], [1, -1]]).tolist()
    [True, False]
    """
    array = matrix(logits)
    acceptable = label_columns(labels, array)
    if not 1 <= k <= array.shape[1]:
        raise ValueError(
            f"expected k in 1 .. {array.shape[1]} (the number of classes), got {k}: choose a smaller top-k"
        )
    result = np.zeros(len(array), dtype=np.bool_)
    for rows in chunks(array):
        part = np.asarray(array[rows])
        checks.no_nan_logits(part, "logits", first_row=rows.start)
        for column in acceptable[rows].T:
            result[rows] |= (column >= 0) & (_rank(part, column) < k)
    return result


def _rank(logits: NDArray[Any], column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Columns that stand before `column[i]` in row i; K for a column that is -inf, or -1."""
    own = np.take_along_axis(logits, np.maximum(column, 0)[:, None], axis=1)
    earlier = np.arange(logits.shape[1]) < column[:, None]
    rank = ((logits > own) | ((logits == own) & earlier)).sum(axis=1)
    return np.asarray(np.where(np.isneginf(own[:, 0]), logits.shape[1], rank), dtype=np.int64)


def label_columns(labels: ArrayLike, logits: Rows) -> NDArray[np.int64]:
    """`labels` as int64 (N, L), padded with -1; ValueError unless each row has one and all are columns of `logits`."""
    array = np.asarray(labels)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"expected integers in labels, got {array.dtype}: pass class columns padded with -1")
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or len(array) != len(logits):
        raise ValueError(f"expected labels of shape ({len(logits)}, L), got {array.shape}: pass one row for each image")
    bad = np.flatnonzero(((array < -1) | (array >= logits.shape[1])).any(axis=1))
    if bad.size:
        raise ValueError(
            f"expected labels in -1 .. {logits.shape[1] - 1}, got {array[bad[0]].tolist()} at row {bad[0]}: check that "
            "labels and logits use the same classes"
        )
    bare = np.flatnonzero((array < 0).all(axis=1))
    if bare.size:
        raise ValueError(
            f"expected an acceptable label in each row, got none at row {bare[0]}: accuracy is not defined for images "
            "without a class, leave them out"
        )
    return array.astype(np.int64)


def restrict(
    logits: ArrayLike, labels: ArrayLike, classes: ArrayLike
) -> tuple[NDArray[np.floating[Any]], NDArray[np.int64]]:
    """Logits (N, C) of the columns `classes` alone, and the labels as columns of those; before argmax and softmax.

    logits  (N, K).   labels  int (N,) or (N, L), padded with -1.   classes  int (C,), distinct columns, in any order.
    A label outside the mask becomes -1; a row without any label left is what `hits` names: drop it first. ValueError
    for an empty mask, a repeated class, and a class or label that is no column.

    >>> logits, labels = restrict([[9.0, 1.0, 2.0]], [2], [2, 1])
    >>> logits.tolist(), labels.tolist()
    ([[2.0, 1.0]], [[0]])
    """
    array = np.asarray(matrix(logits))
    columns = label_columns(labels, array)
    mask = np.asarray(classes)
    if mask.ndim != 1 or not mask.size or mask.dtype.kind not in "iu":
        raise ValueError(
            f"expected class columns of shape (C,), C >= 1, got {mask.dtype} {mask.shape}: pass their indices, "
            "np.flatnonzero of a boolean mask"
        )
    repeated = np.unique(mask).size < mask.size
    if repeated or mask.min() < 0 or mask.max() >= array.shape[1]:
        raise ValueError(
            f"expected distinct classes in 0 .. {array.shape[1] - 1}, got {mask.min()} .. {mask.max()}"
            f"{' with repeats' if repeated else ''}: check the label space"
        )
    place = np.full(array.shape[1] + 1, -1, dtype=np.int64)  # the last entry answers for the padding
    place[mask] = np.arange(mask.size)
    return array[:, mask], place[columns]


def accuracy(correct: ArrayLike) -> float:
    """Fraction of true entries of (N,) bool or 0/1 flags; ValueError where there are none.

    >>> accuracy([True, True, False, True])
    0.75
    """
    values = checks.vector(correct, "correct")
    return float(checks.flags(correct, "correct", like=values).mean())
