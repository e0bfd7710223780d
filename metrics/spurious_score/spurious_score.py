"""The `evaluate` module of the spurious score of Spurious ImageNet."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import evaluate

from hf_robust.hub.info import metric_info  # From: hf-robust
from hf_robust.metrics import spurious_score  # From: hf-robust
from hf_robust.metrics.columns import class_indices  # From: hf-robust

DESCRIPTION = """\
How well a class's own probability tells pictures of the class (positive) from pictures that show only its spurious
feature (negative): average precision a class, and its mean over the classes. Higher is better.
"""

INPUTS = """
Args:
    predictions: probability of the row's class, in [0, 1], softmax over all outputs of the model.
    references: class index a row; for a spurious picture, the class whose feature it shows.
    is_spurious: 1 or True for a picture that shows only the spurious feature, 0 or False for a validation picture.
Returns:
    spurious_score: mean over classes of average precision, as in the published table.
    spurious_auroc: mean over classes of the area under the ROC curve.
    joint_average_precision: average precision over the rows of all classes pooled.
    joint_auroc: area under the ROC curve over the rows of all classes pooled.
    per_class: list of one dictionary a class: class_index, average_precision, auroc, n_validation, n_spurious,
        mean_probability_validation, mean_probability_spurious.
"""


class SpuriousScore(evaluate.Metric):
    """Mean average precision of a class's probability against its spurious pictures."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            DESCRIPTION, INPUTS, columns=("predictions", "references", "is_spurious"), benchmark="spurious-imagenet"
        )

    def _compute(self, predictions: list[float], references: list[float], is_spurious: list[float]) -> dict[str, Any]:
        result = asdict(spurious_score(predictions, class_indices(references, "references"), is_spurious))
        # what the probability alone cannot tell (which class was predicted) stays out instead of being None
        result["per_class"] = [{k: v for k, v in row.items() if v is not None} for row in result["per_class"]]
        return result
