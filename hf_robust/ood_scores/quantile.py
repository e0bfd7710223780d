"""The exact quantile of a matrix that is read in chunks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schema import Rows
from .rows import feature_chunks

_DIGIT = 16  # bits a pass: 65,536 counters


def quantile(array: Rows, fraction: float) -> float:
    """The quantile of all entries of a float matrix, linear between neighbours (numpy's default), in bounded memory.

    The k-th smallest number is found digit by digit: floats keep their order as unsigned integers once the sign is
    treated, and each pass counts the next 16 bits of the entries that share the digits found so far.
    float32 takes two passes, float64 four, and twice that between two neighbours. Half precision is cast up.

    >>> quantile(np.array([[4.0, 1.0], [3.0, 2.0]]), 0.5)
    2.5
    """
    place = fraction * (array.size - 1)
    rank = math.floor(place)
    below = _order_statistic(array, rank)
    above = below if place == rank else _order_statistic(array, rank + 1)
    return below + (above - below) * (place - rank)


def _order_statistic(array: Rows, rank: int) -> float:
    bits = 64 if array.dtype.itemsize > 4 else 32
    found = 0
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(2**_DIGIT, dtype=np.int64)
        for where, _ in feature_chunks(array):
            keys = _keys(np.asarray(array[where]), bits)
            if shift < bits - _DIGIT:
                keys = keys[(keys >> keys.dtype.type(shift + _DIGIT)) == keys.dtype.type(found)]
            digits = (keys >> keys.dtype.type(shift)) & keys.dtype.type(2**_DIGIT - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=2**_DIGIT)
        cumulative = np.cumsum(counts)
        digit = int(np.searchsorted(cumulative, rank, side="right"))
        rank -= int(cumulative[digit - 1]) if digit else 0
        found = (found << _DIGIT) | digit
    return _value(found, bits)


def _keys(part: NDArray[np.floating[Any]], bits: int) -> NDArray[Any]:
    """Unsigned integers in the order of the floats: all bits flipped below zero, the sign bit set above."""
    kind = np.uint64 if bits == 64 else np.uint32
    raw: NDArray[Any] = np.ascontiguousarray(part, dtype=np.float64 if bits == 64 else np.float32).ravel().view(kind)
    sign: Any = kind(1 << (bits - 1))
    return np.where(raw & sign, ~raw, raw | sign)


def _value(key: int, bits: int) -> float:
    sign = 1 << (bits - 1)
    raw = key ^ sign if key & sign else key ^ (2**bits - 1)
    kind, number = (np.uint64, np.float64) if bits == 64 else (np.uint32, np.float32)
    return float(np.array([raw], dtype=kind).view(number)[0])
