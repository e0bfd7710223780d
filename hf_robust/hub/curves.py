"""The curves on the pages of the metrics: what each number summarises, drawn on an empty figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..metrics import (
    accuracy_at_response_rate,
    adaptive_bins,
    auroc,
    curve,
    fpr_at_tpr,
    response_rate_accuracy,
    spurious_score,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
Flags = NDArray[Any]


def precision_recall(figure: Figure, score: Numbers, is_ood: Flags) -> None:
    """Precision against recall of the out-of-distribution rows, and their share."""
    axes = figure.subplots()
    counts = curve(score, is_ood)
    tp, fp = counts.true_positives, counts.false_positives
    precision, chance = tp / (tp + fp), tp[-1] / len(score)
    axes.step([0, *tp / tp[-1]], [precision[0], *precision], where="pre")
    axes.axhline(chance, linestyle=":", color="gray", label=f"chance {chance:.4f}")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()


def roc(figure: Figure, score: Numbers, is_ood: Flags, *, tpr: float, released_code: bool) -> None:
    """True against false positive rate, and the point at the wanted true positive rate."""
    axes = figure.subplots()
    counts, value = curve(score, is_ood), fpr_at_tpr(score, is_ood, tpr=tpr, released_code=released_code)
    tp, fp = counts.true_positives, counts.false_positives
    axes.plot([0, *fp / fp[-1]], [0, *tp / tp[-1]], label=f"AUROC {auroc(score, is_ood):.4f}")
    axes.axhline(tpr, linestyle=":", color="gray", label=f"true positive rate {tpr:g}")
    axes.axvline(value, linestyle=":", color="tab:red", label=f"false positive rate {value:.4f}")
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.02, 1.02), ylim=(0, 1.02))
    axes.legend(loc="lower right")


def response_rate(figure: Figure, confidence: Numbers, correct: Flags, *, rate: float | None = None) -> None:
    """Accuracy on the most confident rows against their share; the point at `rate`, or the area without one."""
    axes = figure.subplots()
    accuracy = response_rate_accuracy(confidence, correct)
    rates = np.arange(1, len(accuracy) + 1) / len(accuracy)
    axes.plot(rates, accuracy)
    axes.axhline(accuracy[-1], linestyle=":", color="gray", label=f"accuracy of all rows {accuracy[-1]:.4f}")
    if rate is None:
        axes.fill_between(rates, accuracy, alpha=0.15)
    else:
        found = accuracy_at_response_rate(confidence, correct, rate=rate)
        axes.plot(rate, found, "o", color="tab:red", label=f"at response rate {rate:g}")
    axes.set(xlabel="response rate", ylabel="accuracy on the most confident rows", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend()


def reliability(figure: Figure, confidence: Numbers, correct: Flags, *, bin_size: int, released_code: bool) -> None:
    """Accuracy against mean confidence of each bin; where the released code is asked for, its uncounted bin hollow."""
    axes = figure.subplots()
    bins = adaptive_bins(confidence, correct, bin_size=bin_size)
    axes.plot([0, 1], [0, 1], linestyle=":", color="gray", label="calibrated")
    axes.plot(bins.confidence, bins.accuracy, marker="o", label=f"{len(bins.size):,} bins")
    axes.vlines(bins.confidence, bins.accuracy, bins.confidence, color="tab:red", alpha=0.5, label="gaps")
    if released_code:
        axes.plot(bins.confidence[-1:], bins.accuracy[-1:], "o", color="tab:blue", mfc="white", label="not counted")
    axes.set(xlabel="mean confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()


def classes(figure: Figure, probability: Numbers, class_index: NDArray[np.int64], is_spurious: Flags) -> None:
    """Average precision of each class, the worst at the bottom, and its chance level; the figure grows with them."""
    axes = figure.subplots()
    each = sorted(
        spurious_score(probability, class_index, is_spurious).per_class, key=lambda row: row.average_precision
    )
    names = [str(row.class_index) for row in each]
    chance = [row.n_validation / (row.n_validation + row.n_spurious) for row in each]
    figure.set_size_inches(6, min(20.0, 1.5 + 0.3 * len(each)))
    axes.barh(names, [row.average_precision for row in each], color="tab:green", alpha=0.6)
    axes.plot(chance, names, "|", markersize=14, color="black", label="chance")
    axes.set(xlabel="average precision", ylabel="class", xlim=(0, 1.02))
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
