"""The `evaluate` module of the false positive rate at a true positive rate of an out-of-distribution score."""

from __future__ import annotations

import evaluate

from hf_robust.hub.info import metric_info  # From: hf-robust
from hf_robust.metrics import fpr_at_tpr  # From: hf-robust

DESCRIPTION = """\
Fraction of in-distribution rows that are raised as out-of-distribution once a given fraction (95 % unless told) of the
out-of-distribution rows is found. Out-of-distribution is the positive class; lower is better.
"""

INPUTS = """
Args:
    predictions: one score a row, finite, higher = more out-of-distribution.
    references: 1 or True where the row is out-of-distribution, 0 or False where it is in-distribution.
    tpr: true positive rate to reach, in (0, 1]; 0.95 unless told.
    released_code: True takes the threshold whose true positive rate is nearest to `tpr`, as in the released code of
        Natural Adversarial Examples; False, the default, the smallest rate among those that reach `tpr`.
Returns:
    fpr_at_tpr: false positive rate in [0, 1].
"""


class FprAtTpr(evaluate.Metric):
    """False positive rate at a true positive rate, out-of-distribution positive."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(DESCRIPTION, INPUTS, columns=("predictions", "references"), benchmark="imagenet-o")

    def _compute(
        self, predictions: list[float], references: list[float], *, tpr: float = 0.95, released_code: bool = False
    ) -> dict[str, float]:
        return {"fpr_at_tpr": fpr_at_tpr(predictions, references, tpr=tpr, released_code=released_code)}
