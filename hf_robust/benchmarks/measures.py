"""The published quantities, each a function of a view; the function's name is the metric's name in every result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..labels import imagenet_1k_names
from ..metrics import detection, selective, weighted
from ..metrics import hits as top_hits
from ..metrics import spurious_score as score_pairs
from ..metrics.calibration import calibration_error
from .spec import Sampling, Value, reads
from .views import Classification, Detection, Scored, SpuriousPairs

Statistic = Callable[[NDArray[np.int64]], NDArray[np.float64]]
Metric = Callable[[NDArray[np.float64], NDArray[np.bool_]], float]
Weighted = Callable[[NDArray[np.float64], NDArray[np.bool_]], Statistic]

BIN = 100  # of the adaptive bins of arXiv 1907.07174
NO_CONTROL = "control not run"


def _proportion(correct: NDArray[np.bool_]) -> Value:
    if not len(correct):
        return Value(None, 0, reason="no picture to score")
    sampling = Sampling(weighted.mean(correct), len(correct), correct=correct)
    return Value(float(correct.mean()), len(correct), successes=int(correct.sum()), sampling=sampling)


@reads("test")
def top1_accuracy(view: Classification) -> Value:
    """Fraction of pictures whose most probable class, among the protocol's classes, is acceptable."""
    return _proportion(view.test.correct)


@reads("test")
def top1_accuracy_1000(view: Classification) -> Value:
    """The same with the argmax over all 1,000 classes: a different, lower number, shown beside."""
    return _proportion(view.everything.correct)


@reads("test")
def top5_accuracy(view: Classification) -> Value:
    """Fraction of pictures with any acceptable class among the five most probable of the protocol's classes."""
    classes = view.test.logit_rows.shape[1]
    if classes < 5:
        return Value(None, len(view.test.outputs), reason=f"needs at least five classes, the protocol has {classes}")
    return _proportion(top_hits(view.test.logit_rows, view.test.labels, k=5))


def _calibration(scored: Scored, *, released_code: bool) -> Value:
    n = len(scored.outputs)
    try:
        value = calibration_error(scored.confidence, scored.correct, released_code=released_code)
    except ValueError as error:
        undefined = f"the released code is not defined below {BIN} pictures"
        return Value(None, n, reason=undefined if released_code and n < BIN else str(error))
    statistic = weighted.calibration_error(scored.confidence, scored.correct)
    sampling = None if released_code else Sampling(statistic, n, biased=True)
    few = {"bins": f"one bin of all: fewer than {BIN} examples"} if n < BIN else {}
    details = {"estimator": f"adaptive bins of {BIN}, last bin takes the remainder", **few}
    return Value(value, n, details=details, sampling=sampling)


@reads("test")
def rms_calibration_error(view: Classification) -> Value:
    """Root mean square calibration error of the maximum softmax probability, every bin counted (arXiv 1907.07174)."""
    return _calibration(view.test, released_code=False)


@reads("test")
def rms_calibration_error_released_code(view: Classification) -> Value:
    """The same as the authors' released function computes it: the most confident bin is never counted."""
    return _calibration(view.test, released_code=True)


@reads("test")
def aurra(view: Classification) -> Value:
    """Area under the response rate accuracy curve: mean over i of the accuracy of the i most confident pictures."""
    if not len(view.test.outputs):
        return Value(None, 0, reason="no picture to score")
    confidence, correct = view.test.confidence, view.test.correct
    sampling = Sampling(weighted.aurra(confidence, correct), len(correct))
    return Value(selective.aurra(confidence, correct), len(correct), sampling=sampling)


@reads("control")
def control_top1_accuracy(view: Classification) -> Value:
    """Top-1 accuracy, same classes and rule, on ImageNet validation pictures."""
    return _proportion(view.control.correct) if view.control is not None else Value(None, 0, reason=NO_CONTROL)


@reads("control")
def control_top1_accuracy_1000(view: Classification) -> Value:
    """The same without the class mask: where labels are shifted by one, a mask may leave a similar class in reach."""
    if view.control is None:
        return Value(None, 0, reason=NO_CONTROL)
    return _proportion(Scored(view.control.outputs, None).correct)


def accuracy_drop(view: Classification) -> Value:
    """Control accuracy minus accuracy on the benchmark."""
    control, test = control_top1_accuracy(view), top1_accuracy(view)
    if control.value is None or test.value is None:
        return Value(None, test.n, reason=control.reason or test.reason)
    sampling = _drop(view) if view.control is not None else None
    return Value(control.value - test.value, test.n, details={"n_control": control.n}, sampling=sampling)


def _drop(view: Classification) -> Sampling:
    clean, hard = view.control.correct if view.control is not None else np.zeros(0, bool), view.test.correct
    first, second, n = weighted.mean(clean), weighted.mean(hard), len(clean)
    strata = np.repeat([0, 1], [n, len(hard)])
    return Sampling(lambda weights: first(weights[:, :n]) - second(weights[:, n:]), n + len(hard), strata)


def _detected(view: Detection, metric: Metric, weighted_metric: Weighted, estimator: str) -> Value:
    n_in, n_out = len(view.inside.outputs), len(view.outside.outputs)
    if not n_in or not n_out:
        return Value(None, n_in + n_out, reason=f"needs both halves, got {n_in} in- and {n_out} out-of-distribution")
    counts = {"n_in": n_in, "n_out": n_out, "base_rate": n_out / (n_in + n_out)}
    sampling = Sampling(weighted_metric(view.scores, view.is_ood), n_in + n_out, view.is_ood.astype(np.int64))
    value = metric(view.scores, view.is_ood)
    return Value(value, n_in + n_out, details={"estimator": estimator, **counts}, sampling=sampling)


def aupr(view: Detection) -> Value:
    """Area under the precision-recall curve as average precision; out-of-distribution is the positive class."""
    estimator = "average precision (step-wise, ties grouped); chance = base_rate"
    return _detected(view, detection.aupr, weighted.aupr, estimator)


def auroc(view: Detection) -> Value:
    """Area under the receiver operating characteristic; ties count one half."""
    return _detected(view, detection.auroc, weighted.auroc, "ties count one half; chance 0.5")


def fpr95(view: Detection) -> Value:
    """Smallest false positive rate at which at least 95 % of the out-of-distribution pictures are detected."""
    estimator = "smallest false positive rate with true positive rate >= 0.95"
    return _detected(view, detection.fpr_at_tpr, weighted.fpr_at_tpr, estimator)


@reads("inside")
def id_accuracy(view: Detection) -> Value:
    """Top-1 accuracy, over the protocol's classes, on the in-distribution pictures; low, and the rest says nothing."""
    return _proportion(view.inside.correct)


@reads("inside")
def id_accuracy_1000(view: Detection) -> Value:
    """The same without the class mask, as `control_top1_accuracy_1000`."""
    return _proportion(Scored(view.inside.outputs, None).correct)


def _paired(view: SpuriousPairs, field: str, statistic: Statistic | None, estimator: str) -> Value:
    n = len(view.probability)
    if not n or statistic is None:
        return Value(None, 0, reason="no class has both validation and spurious pictures")
    scores = score_pairs(view.probability, view.class_index, view.is_spurious)
    names = imagenet_1k_names()
    left_out = {"left_out": ", ".join(f"{k} {names[k]}" for k in view.left_out)} if view.left_out else {}
    genuine = [float((~view.is_spurious[view.class_index == k]).mean()) for k in np.unique(view.class_index)]
    counts = {
        "classes": len(genuine),
        "n_spurious": int(view.is_spurious.sum()),
        "base_rate": float(np.mean(genuine)),
    }
    # drawing 50 of 50 again repeats rows, which lifts the average precision of a class: by 0.01, more than the spread
    # of the mean over 100 classes
    sampling = Sampling(statistic, n, 2 * view.class_index + view.is_spurious, biased=field == "spurious_score")
    details = {"estimator": estimator, **counts, **left_out}
    return Value(float(getattr(scores, field)), n, details=details, sampling=sampling)


def _pair_statistic(view: SpuriousPairs, area: Literal["average_precision", "auroc"]) -> Statistic | None:
    if not len(view.probability):
        return None
    return weighted.spurious_score(view.probability, view.class_index, view.is_spurious, area=area)


def spurious_score(view: SpuriousPairs) -> Value:
    """Mean over classes of the average precision that separates validation from spurious pictures (arXiv 2212.04871).

    The paper's text says AUC; its released code, hence every published number, uses average precision.
    """
    estimator = "mean over classes of average precision, validation pictures positive"
    return _paired(view, "spurious_score", _pair_statistic(view, "average_precision"), estimator)


def spurious_auroc(view: SpuriousPairs) -> Value:
    """Mean over classes of the area under the ROC curve: what the paper's text names, beside the published quantity."""
    estimator = "mean over classes of AUROC, validation pictures positive"
    return _paired(view, "spurious_auroc", _pair_statistic(view, "auroc"), estimator)


def spurious_joint_ap(view: SpuriousPairs) -> Value:
    """Average precision over all pairs pooled."""
    estimator = "average precision over all classes pooled"
    pooled = weighted.aupr(view.probability, ~view.is_spurious) if len(view.probability) else None
    return _paired(view, "joint_average_precision", pooled, estimator)


@reads("validation")
def validation_top1_accuracy(view: SpuriousPairs) -> Value:
    """Top-1 accuracy on the validation pictures of the same classes, over all outputs of the protocol."""
    return _proportion(view.validation.correct)
