"""The `evaluate` module of the l2 (root mean square) calibration error."""

from __future__ import annotations

import warnings

import evaluate

from hf_robust.hub.info import metric_info  # From: hf-robust
from hf_robust.metrics import calibration_error  # From: hf-robust
from hf_robust.metrics.columns import same_class  # From: hf-robust

DESCRIPTION = """\
Root mean square gap between confidence and accuracy over bins of 100 rows of similar confidence: the l2 calibration
error of ImageNet-A. Lower is better.
"""

INPUTS = """
Args:
    predictions: predicted class index a row.
    references: true class index a row.
    confidences: probability of the predicted class a row, in [0, 1] (for the published ImageNet-A numbers: the maximum
        softmax probability over the 200 classes).
    bin_size: rows a bin, the last bin takes the remainder; the published value, 100, unless told. Fewer rows than that
        make one bin of all, with a warning.
    released_code: True leaves the last, most confident bin uncounted, as the released code of Natural Adversarial
        Examples does; False, the default, counts every bin, as the paper's formula says.
Returns:
    l2_calibration_error: error in [0, 1].
"""


class L2CalibrationError(evaluate.Metric):
    """Root mean square calibration error over bins of equally many rows."""

    def _info(self) -> evaluate.MetricInfo:
        return metric_info(
            DESCRIPTION, INPUTS, columns=("predictions", "references", "confidences"), benchmark="imagenet-a"
        )

    def _compute(
        self,
        predictions: list[float],
        references: list[float],
        confidences: list[float],
        *,
        bin_size: int = 100,
        released_code: bool = False,
    ) -> dict[str, float]:
        correct = same_class(predictions, references)
        error = calibration_error(confidences, correct, bin_size=bin_size, released_code=released_code)
        if len(confidences) < bin_size:
            warnings.warn(
                f"{len(confidences)} rows are fewer than a bin of {bin_size}: all of them make one bin, and the error "
                "is only |mean confidence - accuracy|",
                stacklevel=2,
            )
        return {"l2_calibration_error": error}
