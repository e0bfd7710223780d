"""The `evaluate` module of the area under the response rate accuracy curve."""

from __future__ import annotations

import datasets
import evaluate

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

CITATION = """\
@inproceedings{hendrycks2021natural,
  title = {Natural Adversarial Examples},
  author = {Hendrycks, Dan and Zhao, Kevin and Basart, Steven and Steinhardt, Jacob and Song, Dawn},
  booktitle = {Conference on Computer Vision and Pattern Recognition (CVPR)},
  year = {2021},
}
"""


class Aurra(evaluate.Metric):
    """Area under the response rate accuracy curve."""

    def _info(self) -> evaluate.MetricInfo:
        # float64 for the classes: an int column would cut a probability passed by mistake to class 0 without a word
        number = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": number, "references": number, "confidences": number}),
            reference_urls=["https://arxiv.org/abs/1907.07174"],
        )

    def _compute(self, predictions: list[float], references: list[float], confidences: list[float]) -> dict[str, float]:
        return {"aurra": aurra(confidences, same_class(predictions, references))}
