"""Every score as data, and the two calls that use it: fit and score."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schema import CONFIDENCE_LOGIT, FEATURES, LOGITS, ROTATION_LOGITS, StoredRows
from . import fit_features, fit_logits, from_branches, from_features, from_logits
from .fits import Fit
from .head import Head
from .rows import Float

_COLUMNS = (LOGITS, FEATURES, CONFIDENCE_LOGIT, ROTATION_LOGITS)


@dataclass(frozen=True)
class Score:
    """One out-of-distribution score; higher = more out-of-distribution.

    needs       the column of the predictions table that it reads: "logits", "features" (for a zero-shot run its
                embeddings), "confidence_logit" or "rotation_logits".
    function    (rows[, head][, fitted arrays], **options) -> float64 (N,).
    source      the paper.
    head        whether `function` takes the linear head.
    fitter      (rows[, head][, labels], **options) -> arrays by name; None for a score without a fit.
    fit_head, fit_labels  what the fitter takes beside the rows.
    fit_optional          whether an option can stand in for the fit.
    """

    name: str
    needs: str
    function: Callable[..., Float]
    source: str
    head: bool = False
    fitter: Callable[..., Mapping[str, NDArray[Any]]] | None = None
    fit_head: bool = False
    fit_labels: bool = False
    fit_optional: bool = False

    def __post_init__(self) -> None:
        if self.needs not in _COLUMNS:
            raise ValueError(f"expected score {self.name!r} to need one of {', '.join(_COLUMNS)}, got {self.needs!r}")

    @property
    def fit_needed(self) -> bool:
        """Whether there is no score without a fit."""
        return self.fitter is not None and not self.fit_optional

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of `score` and their defaults: what a result must record."""
        return _options(self.function)

    @property
    def fit_options(self) -> Mapping[str, Any]:
        """Options of `fit` and their defaults."""
        return _options(self.fitter) if self.fitter else {}


_BUILT_IN = (
    Score("msp", LOGITS, from_logits.msp, "Hendrycks and Gimpel, ICLR 2017"),
    Score("max_logit", LOGITS, from_logits.max_logit, "Hendrycks et al., ICML 2022"),
    Score("energy", LOGITS, from_logits.energy, "Liu et al., NeurIPS 2020"),
    Score("entropy", LOGITS, from_logits.entropy, "Chan et al., ICCV 2021"),
    Score("margin", LOGITS, from_logits.margin, "Scheffer et al., IDA 2001"),
    Score("gen", LOGITS, from_logits.gen, "Liu et al., CVPR 2023"),
    Score(
        "kl_matching", LOGITS, from_logits.kl_matching, "Hendrycks et al., ICML 2022", fitter=fit_logits.templates
    ),
    Score(
        "temperature_scaled_msp", LOGITS, from_logits.temperature_scaled_msp, "Guo et al., ICML 2017",
        fitter=fit_logits.temperature, fit_labels=True, fit_optional=True,
    ),
    Score("mcm", LOGITS, from_logits.mcm, "Ming et al., NeurIPS 2022", head=True),
    Score("knn", FEATURES, from_features.knn, "Sun et al., ICML 2022", fitter=fit_features.bank),
    Score(
        "mahalanobis", FEATURES, from_features.mahalanobis, "Lee et al., NeurIPS 2018",
        fitter=fit_features.gaussians, fit_labels=True,
    ),
    Score(
        "relative_mahalanobis", FEATURES, from_features.relative_mahalanobis, "Ren et al., 2021, arXiv 2106.09022",
        fitter=fit_features.relative_gaussians, fit_labels=True,
    ),
    Score(
        "residual", FEATURES, from_features.residual, "Wang et al., CVPR 2022",
        fitter=fit_features.subspace, fit_head=True,
    ),
    Score(
        "vim", FEATURES, from_features.vim, "Wang et al., CVPR 2022",
        head=True, fitter=fit_features.subspace, fit_head=True,
    ),
    Score("react", FEATURES, from_features.react, "Sun et al., NeurIPS 2021", head=True, fitter=fit_features.clip),
    Score("ash", FEATURES, from_features.ash, "Djurisic et al., ICLR 2023", head=True),
    Score("scale", FEATURES, from_features.scale, "Xu et al., ICLR 2024", head=True),
    Score("dice", FEATURES, from_features.dice, "Sun and Li, ECCV 2022", head=True, fitter=fit_features.mean_feature),
    Score(
        "she", FEATURES, from_features.she, "Zhang et al., ICLR 2023",
        head=True, fitter=fit_features.patterns, fit_head=True, fit_labels=True,
    ),
    Score("confidence_branch", CONFIDENCE_LOGIT, from_branches.confidence_branch, "DeVries and Taylor, 2018"),
    Score("rotation", ROTATION_LOGITS, from_branches.rotation, "Hendrycks et al., NeurIPS 2019"),
)  # fmt: skip

SCORES: Mapping[str, Score] = MappingProxyType({s.name: s for s in _BUILT_IN})


@cache
def scores() -> Mapping[str, Score]:
    """Every score by name: ours, then those of plug-ins (entry points in the group hf_robust.scores, each a Score)."""
    known = dict(SCORES)
    for point in entry_points(group="hf_robust.scores"):
        plugin = point.load()
        if not isinstance(plugin, Score):
            raise TypeError(
                f"expected the plug-in {point.value} to be a Score, got {type(plugin).__name__}: point it at one"
            )
        known.setdefault(plugin.name, plugin)
    return MappingProxyType(known)


def find(name: str) -> Score:
    """The score of that name; KeyError lists the known ones."""
    if name in SCORES:  # without loading plug-ins, so that a broken one breaks nothing else
        return SCORES[name]
    if name not in scores():
        raise KeyError(f"unknown score {name!r}; known: {', '.join(scores())}")
    return scores()[name]


def fit(
    name: str,
    *,
    logits: ArrayLike | None = None,
    features: ArrayLike | None = None,
    head: Head | None = None,
    labels: ArrayLike | None = None,
    **options: Any,
) -> Fit:
    """What the score `name` learns from these rows, none of which may be scored (see `refuse_overlap`).

    logits (N, K) or features (N, D), whichever the score needs; head and labels int (N,) where it needs them; what it
    does not need is left alone. labels are columns of those logits or rows of that head, so under a class mask they
    count the classes of the mask; the Mahalanobis scores take any numbers.
    options: those of the fit (`find(name).fit_options`).
    Raises KeyError for an unknown name, ValueError for a score without a fit or for what is missing, TypeError for an
    unknown option; the fits themselves are in fit_logits.py and fit_features.py.
    """
    one = find(name)
    if one.fitter is None:
        raise ValueError(f"expected a score that is fitted, got {name!r}: it needs no fit, call score directly")
    _known_options(f"the fit of {name!r}", options, one.fit_options)
    rows = _rows(one, {LOGITS: logits, FEATURES: features}, "fit")
    extra = [_given(f"the fit of {name!r}", "head", head)] if one.fit_head else []
    extra += [_given(f"the fit of {name!r}", "labels", labels)] if one.fit_labels else []
    arrays = one.fitter(rows, *extra, **options)
    return Fit(name, np.shape(rows)[0], {**one.fit_options, **options}, arrays)


def score(
    name: str,
    *,
    logits: ArrayLike | None = None,
    features: ArrayLike | None = None,
    confidence_logit: ArrayLike | None = None,
    rotation_logits: ArrayLike | None = None,
    head: Head | None = None,
    fit: Fit | None = None,
    **options: Any,
) -> Float:
    """The score `name` of each row, float64 (N,), all finite; higher = more out-of-distribution.

    logits (N, K), features (N, D), confidence_logit (N,) or rotation_logits (N, 4): whichever the score needs; head
    and fit where it needs them; what it does not need is left alone. options: those of the score
    (`find(name).options`). A class mask: restrict the logits' columns, or the head by LinearHead.masked.
    Raises KeyError for an unknown name, ValueError for what is missing and for a fit of another score, TypeError for
    an unknown option; the formulas are in from_logits.py, from_features.py and from_branches.py.

    >>> score("max_logit", logits=[[1.0, 3.0]]).tolist()
    [-3.0]
    """
    one = find(name)
    _known_options(f"score {name!r}", options, one.options)
    columns = {
        LOGITS: logits, FEATURES: features, CONFIDENCE_LOGIT: confidence_logit, ROTATION_LOGITS: rotation_logits
    }  # fmt: skip
    rows = _rows(one, columns, "score")
    extra: list[Any] = [_given(f"score {name!r}", "head", head)] if one.head else []
    if one.fitter is not None:
        extra.append(_fitted(one, fit))
    return _checked(one.function(rows, *extra, **options), one, np.shape(rows)[0])


def _rows(one: Score, columns: Mapping[str, ArrayLike | None], what: str) -> ArrayLike:
    rows = columns.get(one.needs)
    if rows is None:
        given = ", ".join(name for name, values in columns.items() if values is not None) or "nothing"
        raise ValueError(
            f"expected {one.needs} for the {what} {one.name!r}, got {given}: pass {one.needs}=, from a run that stored "
            "that column"
        )
    own = one.name in SCORES  # a plug-in is given an array, whatever the rows are
    return rows if own or not isinstance(rows, StoredRows) else np.asarray(rows)


def _given(where: str, what: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"expected {what} for {where}, got none: pass {what}=")
    return value


def _fitted(one: Score, fitted: Fit | None) -> Mapping[str, NDArray[Any]] | None:
    if fitted is None:
        if one.fit_needed:
            raise ValueError(
                f"expected a fit for score {one.name!r}, got none: make one with fit({one.name!r}, …) from rows that "
                "are not scored"
            )
        return None
    if fitted.score != one.name:
        raise ValueError(
            f"expected a fit of {one.name!r}, got one of {fitted.score!r}: make one with fit({one.name!r}, …)"
        )
    return fitted.arrays


def _known_options(where: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(
            f"expected only the options {', '.join(known) or '(none)'} for {where}, got {', '.join(unknown)}: check "
            "the spelling, and whether it belongs to the fit or to the score"
        )


def _checked(values: Float, one: Score, n_rows: int) -> Float:
    result = np.asarray(values, dtype=np.float64)
    if result.shape != (n_rows,):
        raise ValueError(f"expected score {one.name!r} to give shape ({n_rows},), got {result.shape}")
    bad = np.flatnonzero(~np.isfinite(result))
    if bad.size:
        raise ValueError(
            f"expected finite values of score {one.name!r}, got {result[bad[0]]} at row {bad[0]}: check that row's "
            f"{one.needs}"
        )
    return result


def _options(function: Callable[..., Any]) -> Mapping[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
