"""The `evaluate` module of the area under the precision-recall curve of an out-of-distribution score."""

from __future__ import annotations

import evaluate

from hf_robust.hub.info import metric_info  # From: hf-robust
from hf_robust.metrics import aupr  # From: hf-robust

DESCRIPTION = """\
Area under the precision-recall curve (average precision) of a score that should be high on out-of-distribution rows,
which are the positive class: the AUPR of ImageNet-O.
"""

INPUTS = """
Args:
    predictions: one score a row, finite, higher = more out-of-distribution (for the published ImageNet-O numbers: minus
        the maximum softmax probability over the 200 classes).
    references: 1 or True where the row is out-of-distribution, 0 or False where it is in-distribution.
Returns:
    aupr: average precision in (0, 1], tied scores grouped; chance is the fraction of out-of-distribution rows.
"""


class Aupr(evaluate.Metric):
    """Average precision, out-of-distribution positive."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(DESCRIPTION, INPUTS, columns=("predictions", "references"), benchmark="imagenet-o")

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"aupr": aupr(predictions, references)}
