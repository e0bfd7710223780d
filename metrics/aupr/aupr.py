"""The `evaluate` module of the area under the precision-recall curve of an out-of-distribution score."""

from __future__ import annotations

import datasets
import evaluate

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

CITATION = """\
@inproceedings{hendrycks2021natural,
  title = {Natural Adversarial Examples},
  author = {Hendrycks, Dan and Zhao, Kevin and Basart, Steven and Steinhardt, Jacob and Song, Dawn},
  booktitle = {Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2021},
}
"""


class Aupr(evaluate.Metric):
    """Average precision, out-of-distribution positive."""

    def _info(self) -> evaluate.MetricInfo:
        # float64 for the flags: a bool or int column would turn 0.7 or 2 into a flag without a word
        features = {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(features),
            reference_urls=["https://arxiv.org/abs/1907.07174"],
        )

    def _compute(self, predictions: list[float], references: list[float]) -> dict[str, float]:
        return {"aupr": aupr(predictions, references)}
