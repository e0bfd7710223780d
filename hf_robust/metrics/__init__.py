"""Metrics: numpy arrays in, floats out. Fractions in [0, 1]; no model, no torch."""

from __future__ import annotations

from .accuracy import accuracy, hits
from .calibration import Bins, adaptive_bins, calibration_error, l2_calibration_error, n_bins
from .detection import Curve, aupr, auroc, curve, fpr_at_tpr
from .intervals import wilson
from .selective import aurra, response_rate_accuracy
from .softmax import class_probability, log_sum_exp, max_probability
from .spurious import ClassScore, SpuriousScore, spurious_score

__all__ = [
    "Bins",
    "ClassScore",
    "Curve",
    "SpuriousScore",
    "accuracy",
    "adaptive_bins",
    "aupr",
    "auroc",
    "aurra",
    "calibration_error",
    "class_probability",
    "curve",
    "fpr_at_tpr",
    "hits",
    "l2_calibration_error",
    "log_sum_exp",
    "max_probability",
    "n_bins",
    "response_rate_accuracy",
    "spurious_score",
    "wilson",
]
