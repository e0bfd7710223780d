"""Metrics: numpy arrays in, floats out. Fractions in [0, 1]; no model, no torch.

`weighted` holds the same metrics as functions of row weights, for `bootstrap` and `paired_difference`.
"""

from __future__ import annotations

from . import weighted
from .accuracy import accuracy, hits, restrict
from .calibration import (
    Bins,
    adaptive_bins,
    calibration_error,
    equal_width_bins,
    l2_calibration_error,
    n_bins,
    soft_f1,
)
from .comparison import (
    Difference,
    McNemar,
    delong_difference,
    holm,
    mcnemar,
    minimum_detectable_difference,
    paired_difference,
    paired_proportions,
    sign_test,
)
from .detection import Curve, aupr, auroc, curve, fpr_at_tpr
from .intervals import auroc_variance, delong, newcombe, wilson
from .proper import brier_score, fit_temperature, negative_log_likelihood
from .resampling import bootstrap, percentile, resample
from .robustness import LogitLine, accuracy_drop, effective_robustness, fit_logit_line
from .selective import (
    RiskCoverage,
    accuracy_at_response_rate,
    augrc,
    aurc,
    aurra,
    e_aurc,
    response_rate_accuracy,
    risk_coverage,
)
from .softmax import class_probability, log_sum_exp, max_probability, probabilities
from .spurious import ClassScore, SpuriousScore, spurious_score

__all__ = [
    "Bins",
    "ClassScore",
    "Curve",
    "Difference",
    "LogitLine",
    "McNemar",
    "RiskCoverage",
    "SpuriousScore",
    "accuracy",
    "accuracy_at_response_rate",
    "accuracy_drop",
    "adaptive_bins",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "auroc_variance",
    "aurra",
    "bootstrap",
    "brier_score",
    "calibration_error",
    "class_probability",
    "curve",
    "delong",
    "delong_difference",
    "e_aurc",
    "effective_robustness",
    "equal_width_bins",
    "fit_logit_line",
    "fit_temperature",
    "fpr_at_tpr",
    "hits",
    "holm",
    "l2_calibration_error",
    "log_sum_exp",
    "max_probability",
    "mcnemar",
    "minimum_detectable_difference",
    "n_bins",
    "negative_log_likelihood",
    "newcombe",
    "paired_difference",
    "paired_proportions",
    "percentile",
    "probabilities",
    "resample",
    "response_rate_accuracy",
    "restrict",
    "risk_coverage",
    "sign_test",
    "soft_f1",
    "spurious_score",
    "weighted",
    "wilson",
]
