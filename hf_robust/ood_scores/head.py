"""The linear head that features pass through on their way to logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .rows import Float


class Head(Protocol):
    """Anything with `weight` (K, D) and `bias` (K,): logits = features @ weight.T + bias."""

    @property
    def weight(self) -> NDArray[Any]:
        """(K, D)."""
        ...

    @property
    def bias(self) -> NDArray[Any]:
        """(K,)."""
        ...


@dataclass(frozen=True)
class LinearHead:
    """A head made of two arrays: `weight` (K, D) and `bias` (K,)."""

    weight: NDArray[Any]
    bias: NDArray[Any]

    @classmethod
    def masked(cls, head: Head, columns: Sequence[int]) -> LinearHead:
        """The head of these classes alone, in this order: a class mask for scores that read features.

        >>> LinearHead.masked(LinearHead(np.eye(3), np.arange(3.0)), [2, 0]).bias.tolist()
        [2.0, 0.0]
        """
        where = list(columns)
        return cls(head.weight[where], head.bias[where])


def parts(head: Head) -> tuple[Float, Float]:
    """Weight (K, D) and bias (K,) of a head in float64, checked: a copy where the head is of another precision."""
    weight, bias = np.asarray(head.weight, dtype=np.float64), np.asarray(head.bias, dtype=np.float64)
    if weight.ndim != 2 or not weight.size or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"expected a head with weight (K, D) and bias (K,), got {weight.shape} and {bias.shape}: read both from "
            "the head.safetensors of one run"
        )
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise ValueError("expected a head of finite numbers, got NaN or infinite ones: check the checkpoint")
    return weight, bias
