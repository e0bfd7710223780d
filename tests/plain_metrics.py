"""The published quantities once more, as plainly as possible: scipy, scikit-learn and loops, to check ours against."""

from __future__ import annotations

import numpy as np
from scipy.special import log_softmax
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row in float64."""
    return np.exp(log_softmax(logits.astype(np.float64), axis=1))


def in_top(logits: np.ndarray, acceptable: list[list[int]], k: int) -> np.ndarray:
    """Whether any acceptable column is among the first k of each row; equal logits by column."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return np.array([bool({*right} & {*map(int, top)}) for right, top in zip(acceptable, order, strict=True)])


def calibration(confidence: np.ndarray, correct: np.ndarray, *, skip_last: bool) -> float:
    """Bins of 100 by rising confidence, the last takes the remainder; equal confidences share their mean accuracy."""
    if not skip_last:
        correct = np.array([correct[confidence == c].mean() for c in confidence])
    order = np.argsort(confidence)
    n, bins = len(order), max(1, len(order) // 100)
    total = 0.0
    for b in range(bins - 1 if skip_last else bins):
        rows = order[100 * b : 100 * (b + 1) if b < bins - 1 else n]
        total += len(rows) / n * (confidence[rows].mean() - correct[rows].mean()) ** 2
    return float(np.sqrt(total))


def aurra(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Mean over i of the accuracy of the i most confident; equal confidences share their mean accuracy."""
    correct = np.array([correct[confidence == c].mean() for c in confidence])
    order = np.argsort(-confidence)
    return float(np.mean([correct[order[: i + 1]].mean() for i in range(len(order))]))


def fpr95(is_ood: np.ndarray, anomaly: np.ndarray) -> float:
    """Smallest false positive rate among the thresholds that find at least 95 % of the out-of-distribution rows."""
    fpr, tpr, _ = roc_curve(is_ood, anomaly, drop_intermediate=False)
    return float(fpr[tpr >= 0.95].min())


def detection(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """AUPR, AUROC and FPR95 of minus the maximum probability; out-of-distribution is positive."""
    anomaly = -np.concatenate([probabilities(inside).max(axis=1), probabilities(outside).max(axis=1)])
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    return {
        "aupr": float(average_precision_score(is_ood, anomaly)),
        "auroc": float(roc_auc_score(is_ood, anomaly)),
        "fpr95": fpr95(is_ood, anomaly),
    }


def spurious(own: list[int], validation: np.ndarray, shown: list[int], pictures: np.ndarray) -> dict[str, float]:
    """Mean average precision and AUROC over the classes with both halves, and the pooled average precision."""
    mine = np.concatenate([
        probabilities(validation)[np.arange(len(own)), own],
        probabilities(pictures)[np.arange(len(shown)), shown],
    ])  # fmt: skip
    classes, positive = np.array([*own, *shown]), np.repeat([1, 0], [len(own), len(shown)])
    whole = sorted({*own} & {*shown})
    pooled = np.isin(classes, whole)
    each = [classes == k for k in whole]
    return {
        "spurious_score": float(np.mean([average_precision_score(positive[g], mine[g]) for g in each])),
        "spurious_auroc": float(np.mean([roc_auc_score(positive[g], mine[g]) for g in each])),
        "spurious_joint_ap": float(average_precision_score(positive[pooled], mine[pooled])),
    }


def wilson(successes: int, n: int) -> list[float]:
    """The 95 % interval of scipy."""
    interval = binomtest(successes, n).proportion_ci(method="wilson")
    return [float(interval.low), float(interval.high)]
