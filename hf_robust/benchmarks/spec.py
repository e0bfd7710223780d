"""What a benchmark is, as data: rules, sources, the benchmark, and the views that its measures look at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..schema import Outputs

Mode = Literal["model", "published"]
Role = Literal["test", "control", "inside", "outside", "validation", "spurious"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Rule:
    """How a picture becomes the input of a model. None means the model's own value.

    `resize` is "model" (the model's own transform, whole), "shorter" (shorter side to int(ratio * size), then a
    centre crop of `size`) or "exact" (both sides to `size`, no crop).
    """

    name: str
    resize: Literal["model", "shorter", "exact"] = "model"
    size: int | None = None
    ratio: float = 1.0
    interpolation: str | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


MODEL = Rule("model")
PAPER = Rule("paper", "shorter", 224, 256 / 224, "bilinear", IMAGENET_MEAN, IMAGENET_STD)
SPURIOUS_VAL = Rule("spurious-val", "shorter", None, 256 / 224, "bicubic")
SPURIOUS_IMAGE = Rule("spurious-image", "exact", None, 1.0, "bicubic")


@dataclass(frozen=True)
class Source:
    """The rows of one data set that a benchmark needs, and the rule for each preprocessing mode.

    `classes` are ImageNet-1k indices and keep the rows with such a label; None keeps all rows. `label_groups`: a label
    counts as every index of its group. An `optional` source may be absent: what needs it is then "not run".
    """

    role: Role
    dataset: str
    rule: Rule = MODEL
    published_rule: Rule = MODEL
    classes: tuple[int, ...] | None = None
    label_groups: tuple[tuple[int, ...], ...] | None = None
    optional: bool = False

    def rule_for(self, mode: Mode) -> Rule:
        """The rule of this source under a preprocessing mode."""
        return self.rule if mode == "model" else self.published_rule


@dataclass(frozen=True)
class Sampling:
    """How a value follows from its rows, for intervals and paired comparisons.

    statistic  row weights, int64 (R, n) -> values, float64 (R,); all ones give the value itself.
    strata     (n,) groups that keep their size when rows are drawn again; None for one group.
    correct    (n,) for a proportion: whether each row counts.
    biased     whether drawing rows again moves the value to one side, as it does a calibration error (never negative,
               and noisier bins) and the spurious score (average precision of few rows): its interval is then centred
               on the value, a fraction.
    """

    statistic: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    n: int
    strata: NDArray[np.int64] | None = None
    correct: NDArray[np.bool_] | None = None
    biased: bool = False


@dataclass(frozen=True)
class Value:
    """One number and what it stands on: `n` rows, of them `successes` for a proportion; None where undefined."""

    value: float | None
    n: int
    successes: int | None = None
    reason: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling | None = field(default=None, compare=False)


class View(Protocol):
    """The roles of a benchmark joined for its measures (see views.py)."""

    @classmethod
    def of(cls, roles: Mapping[Role, Outputs], mask: tuple[int, ...] | None) -> View:
        """The view of these roles under a class mask."""
        ...


Measure = Callable[[Any], Value]  # its __name__ is the metric's name
Measured = TypeVar("Measured", bound=Callable[..., Value])


def reads(*roles: Role) -> Callable[[Measured], Measured]:
    """Marks a measure that looks at these roles only, so that what other roles lack does not mark its value."""

    def mark(measure: Measured) -> Measured:
        measure.__dict__["roles"] = roles
        return measure

    return mark


def roles_of(measure: Measure, all_roles: Collection[Role]) -> tuple[Role, ...]:
    """The roles that a measure looks at: those it was marked with, else all."""
    marked: tuple[Role, ...] | None = measure.__dict__.get("roles")
    return tuple(all_roles) if marked is None else marked


@dataclass(frozen=True)
class Split:
    """Rows of the test source that are reported on their own: `column` equals each of `values`."""

    column: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class ZeroShot:
    """The head that a benchmark's own zero-shot protocol uses: `classes` in head order, as named in the group `column`.

    `label_groups` are the ImageNet-1k indices of each class, for rows (the control) that have no such column.
    """

    head: str
    column: str
    classes: tuple[str, ...]
    label_groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: where it lives, what it is made of, how it is scored, what may be said about it."""

    name: str
    title: str
    description: str
    repo_id: str | None
    homepage: str
    licence: str
    citation: str
    sources: tuple[Source, ...]
    view: type[View]
    measures: tuple[Measure, ...]
    headline: str
    protocol: Mapping[str, str]
    gate: Measure
    mask: tuple[int, ...] | None = None
    mask_name: str = "all classes of the model"
    split: Split | None = None
    zero_shot: ZeroShot | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    fit_only: bool = False  # its predictions serve fits; its numbers compare nothing, so `all` leaves it out
    picture_licence: str | None = None  # the Hub's id of the licence that the pictures carry; None: no grant known

    def measure(self, metric: str) -> Measure:
        """The measure of that name; KeyError with the reason where the protocol refuses it, or with the known names."""
        if metric in self.refused:
            raise KeyError(f"{metric} is not defined on {self.name}: {self.refused[metric]}")
        for measure in self.measures:
            if measure.__name__ == metric:
                return measure
        known = ", ".join(m.__name__ for m in self.measures)
        raise KeyError(f"unknown metric {metric!r} of {self.name}; known: {known}")
