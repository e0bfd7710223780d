"""The `evaluate` module of the area under the response rate accuracy curve."""

from __future__ import annotations

import evaluate

from hf_robust.hub.info import metric_info  # From: hf-robust
from hf_robust.metrics import aurra  # From: hf-robust
from hf_robust.metrics.columns import same_class  # From: hf-robust

DESCRIPTION = """\
Area under the response rate accuracy curve: the mean, over i = 1 .. N, of the accuracy on the i most confident rows.
It rewards a classifier whose confidence puts its mistakes last.
"""

INPUTS = """
Args:
    predictions: predicted class index a row.
    references: true class index a row.
    confidences: one finite number a row, higher = more confident; only its order matters (for the published ImageNet-A
        numbers: the maximum softmax probability over the 200 classes).
Returns:
    aurra: area in [0, 1]; where confidences tie, the expected value over the orderings of the tied rows.
"""


class Aurra(evaluate.Metric):
    """Area under the response rate accuracy curve."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            DESCRIPTION, INPUTS, columns=("predictions", "references", "confidences"), benchmark="imagenet-a"
        )

    def _compute(self, predictions: list[float], references: list[float], confidences: list[float]) -> dict[str, float]:
        return {"aurra": aurra(confidences, same_class(predictions, references))}
