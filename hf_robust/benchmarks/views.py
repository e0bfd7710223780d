"""The roles of a benchmark joined for its measures: classification, detection, spurious pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import hits, log_sum_exp
from ..metrics.softmax import chosen_logit, highest_logit, predicted
from ..schema import Outputs, Rows
from .spec import Role

Mask = tuple[int, ...] | None


@dataclass(frozen=True)
class Scored:
    """Outputs under a class mask: the logits of the other classes are removed before argmax and softmax.

    `mask` holds columns of the logits; None keeps all, and then the softmax is over all outputs of the model.
    """

    outputs: Outputs
    mask: Mask

    @cached_property
    def logit_rows(self) -> Rows:
        """(N, M) logits of the classes that take part: an array, or rows on disk, for what needs a few at a time."""
        return self.outputs.logit_rows if self.mask is None else self.outputs.logit_rows[:, list(self.mask)]

    @cached_property
    def logits(self) -> NDArray[np.floating[Any]]:
        """The same as an array, all of them in memory."""
        return np.asarray(self.logit_rows)

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N, L) acceptable columns of `logits`, padded with -1; ValueError names a row that has none."""
        labels = self.outputs.labels
        if self.mask is not None:
            column = np.full(self.outputs.logit_rows.shape[1] + 1, -1, dtype=np.int64)  # the last entry keeps -1 at -1
            column[list(self.mask)] = np.arange(len(self.mask))
            labels = column[labels]
        outside = np.flatnonzero((labels < 0).all(axis=1))
        if len(outside):
            raise ValueError(
                f"{len(outside)} of {len(labels)} labels are outside the {self.logit_rows.shape[1]} classes, the first "
                f"at id {self.outputs.ids[outside[0]]!r} (label {self.outputs.labels[outside[0]].max()}): "
                "check the data set's label order"
            )
        return labels

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(N,) the column of `logits` that is the most probable class."""
        return predicted(self.logit_rows)

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        """(N,) whether the most probable class is acceptable."""
        return hits(self.logit_rows, self.labels)

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """(N,) maximum softmax probability in float64."""
        return np.exp(highest_logit(self.logit_rows) - self.log_normaliser)

    @cached_property
    def log_normaliser(self) -> NDArray[np.float64]:
        """(N,) log-sum-exp over the classes that take part."""
        return self.outputs.log_normaliser if self.mask is None else log_sum_exp(self.logit_rows)

    def of_class(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        """(N,) softmax probability, over all outputs of the model, of class `index[i]` in row i."""
        return np.asarray(np.exp(chosen_logit(self.outputs.logit_rows, index) - self.outputs.log_normaliser))


@dataclass(frozen=True)
class Classification:
    """Labelled pictures and, where it was run, a control of clean pictures of the same classes."""

    test: Scored
    control: Scored | None
    everything: Scored  # the test rows without the mask

    @classmethod
    def of(cls, roles: Mapping[Role, Outputs], mask: Mask) -> Classification:
        """The roles "test" and, optionally, "control"."""
        control = Scored(roles["control"], mask) if "control" in roles else None
        return cls(Scored(roles["test"], mask), control, Scored(roles["test"], None))

    def split(self, column: str, value: str) -> Classification:
        """The test rows of one group; the control stays whole."""
        rows = self.test.outputs.select(self.test.outputs.groups[column] == value)
        return replace(self, test=Scored(rows, self.test.mask), everything=Scored(rows, None))


def minus_confidence(half: Scored) -> NDArray[np.float64]:
    """(N,) minus the maximum softmax probability: the anomaly score of arXiv 1907.07174."""
    return -half.confidence


@dataclass(frozen=True)
class Detection:
    """In-distribution and out-of-distribution pictures, and their anomaly score: the protocol's own unless replaced."""

    inside: Scored
    outside: Scored
    anomaly: Callable[[Scored], NDArray[np.float64]] = minus_confidence

    @classmethod
    def of(cls, roles: Mapping[Role, Outputs], mask: Mask) -> Detection:
        """The roles "inside" and "outside"."""
        return cls(Scored(roles["inside"], mask), Scored(roles["outside"], mask))

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """(N,) anomaly scores, higher = more out-of-distribution, in-distribution rows first."""
        return np.concatenate([self.anomaly(self.inside), self.anomaly(self.outside)])

    @cached_property
    def is_ood(self) -> NDArray[np.bool_]:
        """(N,) true for the out-of-distribution rows: the positive class."""
        return np.repeat([False, True], [len(self.inside.outputs), len(self.outside.outputs)])


@dataclass(frozen=True)
class SpuriousPairs:
    """For each class, its validation pictures (positive) and those that show only its spurious feature (negative)."""

    validation: Scored
    probability: NDArray[np.float64]
    class_index: NDArray[np.int64]
    is_spurious: NDArray[np.bool_]
    left_out: tuple[int, ...]  # classes without an output in the model, or with one half empty

    @classmethod
    def of(cls, roles: Mapping[Role, Outputs], mask: Mask) -> SpuriousPairs:
        """The roles "validation" and "spurious"; the latter has the group column spurious_class."""
        validation, spurious = Scored(roles["validation"], mask), Scored(roles["spurious"], mask)
        own = validation.outputs.labels[:, 0]
        other = np.asarray(spurious.outputs.groups["spurious_class"], dtype=np.int64)
        classes = np.concatenate([own, other])
        probability = np.concatenate([validation.of_class(own), spurious.of_class(other)])
        is_spurious = np.repeat([False, True], [len(own), len(other)])
        logits = np.concatenate([np.asarray(half.outputs.logit_rows[:1]) for half in (validation, spurious)])
        whole = {k for k in set(own) & set(other) if not np.isneginf(logits[:, k]).all()}
        keep = np.isin(classes, sorted(whole))
        left_out = tuple(sorted(int(k) for k in {*own, *other} - whole))
        return cls(validation, probability[keep], classes[keep], is_spurious[keep], left_out)
