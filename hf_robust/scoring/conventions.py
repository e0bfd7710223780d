"""The same quantity under other conventions, with the reason for each difference: why two tools disagree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..benchmarks import Benchmark
from ..benchmarks.views import Classification, Detection, Scored, SpuriousPairs
from ..metrics import aupr, auroc, aurra, calibration_error, curve, fpr_at_tpr, spurious_score
from ..metrics.softmax import leading
from . import asked_of, is_near_chance, view_of


@dataclass(frozen=True)
class Convention:
    """A quantity as one convention computes it; `ours` marks the one that the headline rows use."""

    quantity: str
    convention: str
    value: float | None
    why: str
    ours: bool = False


def conventions(runs: Path, benchmarks: Mapping[str, Benchmark], *, allow_chance: bool = False) -> list[dict[str, Any]]:
    """Rows with model, run, benchmark, mode and the fields of Convention, for all that can be scored in `runs`.

    A benchmark that the chance gate refuses is left out, as one that cannot be scored; its reason is in the results.
    """
    rows = []
    for asked in asked_of(runs, benchmarks):
        try:
            _, view = view_of(asked)
            if not allow_chance and is_near_chance(asked.benchmark.gate(view)):
                continue
            found = list(of_view(view))
        except (LookupError, ValueError):
            continue
        place = {"model": asked.plan["model"], "run": asked.run.name, "benchmark": asked.benchmark.name}
        rows += [{**place, "mode": asked.mode, **vars(row)} for row in found]
    return rows


def of_view(view: Any) -> Iterator[Convention]:
    """The conventions that are in use for the quantities of this kind of benchmark."""
    if isinstance(view, Classification):
        yield from _classification(view)
    elif isinstance(view, Detection):
        yield from _detection(view)
    elif isinstance(view, SpuriousPairs):
        yield from _spurious(view)


def _classification(view: Classification) -> Iterator[Convention]:
    masked = view.test.mask is not None
    ours = "argmax over the protocol's classes" if masked else "argmax over all classes"
    yield Convention("top1_accuracy", ours, _mean(view.test.correct), "the published protocol", ours=True)
    if masked:
        why = "the other classes stay in, so they can win"
        yield Convention("top1_accuracy", "argmax over all 1,000 classes", _mean(view.everything.correct), why)
    if view.test.outputs.labels.shape[1] > 1 and view.test.logit_rows.shape[1] >= 5:
        yield from _top5(view.test)
    yield from _calibration(view.test)
    confidence, correct = view.test.confidence, view.test.correct
    yield Convention(
        "aurra", "mean over orderings of ties", aurra(confidence, correct), "does not depend on row order", True
    )
    order = np.argsort(confidence)[::-1]
    curve = np.cumsum(correct[order]) / np.arange(1, len(order) + 1)
    why = "released code: reversed unstable sort, so tied confidences depend on row order"
    yield Convention("aurra", "released code", float(curve.mean()), why)


def _top5(test: Scored) -> Iterator[Convention]:
    best = leading(test.logit_rows, 5)
    hits = (best[:, :, None] == test.labels[:, None, :]).any(axis=1) & (test.labels >= 0)
    yield Convention(
        "top5_accuracy", "any acceptable index", _mean(hits.any(axis=1)), "a picture counts once", ours=True
    )
    why = "released code: adds one hit for each acceptable index, so it can exceed 1"
    yield Convention("top5_accuracy", "released code", float(hits.sum() / len(hits)), why)


def _calibration(test: Scored) -> Iterator[Convention]:
    name, confidence, correct = "calibration_error", test.confidence, test.correct
    value = calibration_error(confidence, correct)
    yield Convention(name, "RMS, adaptive bins of 100", value, "the paper's text, every bin counted", ours=True)
    try:
        released = calibration_error(confidence, correct, released_code=True)
    except ValueError:
        released = None
    why = "the most confident bin is never counted; undefined below 100 examples"
    yield Convention(name, "RMS, released code", released, why)
    ece = calibration_error(confidence, correct, norm=1, binning="equal_width", bins=15)
    yield Convention(name, "ECE: mean gap, 15 equal-width bins", ece, "what most libraries call calibration error")
    debiased = calibration_error(confidence, correct, debiased=True)
    yield Convention(name, "RMS, debiased", debiased, "takes the sampling error of the bins off (arXiv 1909.10155)")


def _detection(view: Detection) -> Iterator[Convention]:
    scores, ood = view.scores, view.is_ood
    why = "if it is low, the rest says nothing"
    yield Convention("id_accuracy", "argmax over the protocol's classes", _mean(view.inside.correct), why, ours=True)
    name = "average precision, out-of-distribution positive"
    yield Convention("aupr", name, aupr(scores, ood), "the paper; scikit-learn's average_precision_score", ours=True)
    why = "OpenOOD's AUPR-OUT: joins the points by lines, lower without ties, too high with many"
    value = aupr(scores, ood, estimator="trapezoid")
    yield Convention("aupr", "trapezoid, out-of-distribution positive", value, why)
    why = "finds the known pictures instead: another question, whose chance is the share of those"
    yield Convention("aupr", "average precision, in-distribution positive", aupr(scores, ood, positive="id"), why)
    value = aupr(scores, ood, positive="id", estimator="trapezoid")
    yield Convention("aupr", "trapezoid, in-distribution positive", value, "OpenOOD's AUPR-IN")
    yield Convention("auroc", "any", auroc(scores, ood), "the same for either positive class", ours=True)
    yield from _fpr95(scores, ood)


def _fpr95(scores: NDArray[np.float64], ood: NDArray[np.bool_]) -> Iterator[Convention]:
    why = "smallest false positive rate with true positive rate >= 0.95"
    yield Convention("fpr95", "out-of-distribution positive", fpr_at_tpr(scores, ood), why, ours=True)
    why = "threshold whose true positive rate is nearest to 0.95, which may lie below it"
    yield Convention("fpr95", "released code", fpr_at_tpr(scores, ood, released_code=True), why)
    why = "OpenOOD 1.5; roc_curve drops points on a straight line, so with ties the next corner counts"
    yield Convention("fpr95", "scikit-learn's roc_curve", _fpr95_of_corners(scores, ood), why)
    why = "ODIN, energy, ReAct: share of outliers accepted where 95 % of the in-distribution pictures are"
    yield Convention("fpr95", "in-distribution positive", fpr_at_tpr(scores, ood, positive="id"), why)


def _fpr95_of_corners(scores: NDArray[np.float64], ood: NDArray[np.bool_]) -> float:
    """FPR95 over the thresholds that scikit-learn's roc_curve keeps by default (drop_intermediate)."""
    counts = curve(scores, ood)
    tp, fp = counts.true_positives, counts.false_positives
    bent = (np.diff(tp, 2) != 0) | (np.diff(fp, 2) != 0)
    kept = np.flatnonzero(np.concatenate([[True], bent, [True]])) if tp.size > 2 else np.arange(tp.size)
    first = kept[np.argmax(tp[kept] / tp[-1] >= 0.95)]
    return float(fp[first] / fp[-1])


def _spurious(view: SpuriousPairs) -> Iterator[Convention]:
    scores = spurious_score(view.probability, view.class_index, view.is_spurious)
    name = "spurious_score"
    yield Convention(
        name, "mean average precision", scores.spurious_score, "released code, every published number", True
    )
    yield Convention(name, "mean AUROC", scores.spurious_auroc, "what the paper's text says; chance 0.50, not 0.40")
    yield Convention(name, "joint average precision", scores.joint_average_precision, "all classes pooled")
    yield Convention(name, "joint AUROC", scores.joint_auroc, "all classes pooled")


def _mean(correct: NDArray[np.bool_]) -> float | None:
    return float(correct.mean()) if len(correct) else None
