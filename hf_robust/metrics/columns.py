"""Class columns as tables and `evaluate` hold them, where every number may have become a float."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks

LARGEST_EXACT = 2**53  # float64 holds every whole number up to here


def class_indices(values: ArrayLike, name: str) -> NDArray[np.int64]:
    """Class indices as int64 (N,) from whole numbers of any type; ValueError names the first that is none.

    A probability where a class belongs would otherwise be cut to class 0 without a word.

    >>> class_indices([3.0, 94.0], "references").tolist()
    [3, 94]
    """
    numbers = checks.vector(values, name)
    bad = np.flatnonzero((numbers != np.floor(numbers)) | (np.abs(numbers) > LARGEST_EXACT))
    if bad.size:
        raise ValueError(
            f"expected class indices in {name}, got {numbers[bad[0]]:g} at row {bad[0]}: pass the index of a class a "
            "row, not its probability"
        )
    return numbers.astype(np.int64)


def same_class(predictions: ArrayLike, references: ArrayLike) -> NDArray[np.bool_]:
    """Whether each predicted class is the reference class: bool (N,). Input and errors as in `class_indices`.

    >>> same_class([3, 5], [3.0, 4.0]).tolist()
    [True, False]
    """
    predicted, expected = class_indices(predictions, "predictions"), class_indices(references, "references")
    checks.same_length(expected, "references", predicted)
    return np.asarray(predicted == expected)
