"""Input checks of the metrics: clean vectors out, or one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# float32 softmax sums round; further outside [0, 1] is a mistake (logits, per cent), not rounding
PROBABILITY_SLACK = 1e-6


def vector(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """`values` as float64 of shape (N,), N >= 1, all finite; half and single precision are cast up, never down.

    Raises TypeError for what is no number, ValueError for another shape, no rows, or a NaN or infinite row.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" and array.size:
        raise TypeError(f"expected numbers in {name}, got {array.dtype}: pass a 1-d array of floats")
    if array.ndim != 1:
        raise ValueError(f"expected {name} of shape (N,), got {array.shape}: pass one value a row")
    if not array.size:
        raise ValueError(f"expected at least one row in {name}, got none: check that the run holds predictions")
    result = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(result))
    if bad.size:
        raise ValueError(
            f"expected finite values in {name}, got {bad.size} of {result.size} that are not, the first at row "
            f"{bad[0]} ({result[bad[0]]}): check that row's logits"
        )
    return result


def probabilities(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """`values` as float64 of shape (N,) in [0, 1]; ValueError names the first row that is outside."""
    result = vector(values, name)
    bad = np.flatnonzero((result < -PROBABILITY_SLACK) | (result > 1 + PROBABILITY_SLACK))
    if bad.size:
        raise ValueError(
            f"expected probabilities in [0, 1] in {name}, got {bad.size} of {result.size} outside, the first at row "
            f"{bad[0]} ({result[bad[0]]:g}): pass softmax outputs as fractions, not logits or per cent"
        )
    return result


def flags(values: ArrayLike, name: str, *, like: NDArray[Any]) -> NDArray[np.bool_]:
    """`values` as bool of shape (N,), N that of `like`; 0 and 1 count as flags, anything else is a ValueError."""
    array = np.asarray(values)
    same_length(array, name, like)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise TypeError(f"expected booleans in {name}, got {array.dtype}: pass True or False a row")
    bad = np.flatnonzero((array != 0) & (array != 1))
    if bad.size:
        raise ValueError(
            f"expected only 0 and 1 in {name}, got {array[bad[0]]} at row {bad[0]}: pass True or False a row"
        )
    return array.astype(np.bool_)


def integers(values: ArrayLike, name: str, *, like: NDArray[Any]) -> NDArray[np.int64]:
    """`values` as int64 of shape (N,), N that of `like`; TypeError for floats and text."""
    array = np.asarray(values)
    same_length(array, name, like)
    if array.dtype.kind not in "iu":
        raise TypeError(f"expected integers in {name}, got {array.dtype}: pass class indices")
    return array.astype(np.int64)


def same_length(array: NDArray[Any], name: str, like: NDArray[Any]) -> None:
    """ValueError unless `array` has the shape of the vector `like`."""
    if array.shape != like.shape:
        raise ValueError(f"expected {name} of shape {like.shape}, got {array.shape}: pass one value for each row")


def both_groups(positive: NDArray[np.bool_], name: str, *, yes: str, no: str) -> None:
    """ValueError unless there is at least one positive and one negative row; `yes` and `no` say what they are."""
    missing = no if positive.all() else yes if not positive.any() else None
    if missing:
        raise ValueError(
            f"expected both groups in {name}, got no {missing} row among {positive.size}: the quantity separates two "
            "groups, so give rows of both"
        )


def some_rows(array: NDArray[Any], name: str) -> None:
    """ValueError where an array has no row."""
    if not len(array):
        raise ValueError(f"expected at least one row in {name}, got none: check that the run holds predictions")


def level(value: float) -> None:
    """ValueError unless a confidence level is a fraction strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"expected level in (0, 1), got {value}: pass a fraction such as 0.95")


def no_nan_logits(logits: NDArray[Any], name: str, *, first_row: int = 0) -> None:
    """ValueError naming the first row of (N, K) logits that holds NaN or +inf; -inf (no such output) is allowed."""
    bad = np.flatnonzero((np.isnan(logits) | np.isposinf(logits)).any(axis=1))
    if bad.size:
        raise ValueError(
            f"expected {name} without NaN and +inf, got such a value at row {first_row + bad[0]}: run that image again "
            "in float32, a half-precision overflow is the usual cause"
        )
