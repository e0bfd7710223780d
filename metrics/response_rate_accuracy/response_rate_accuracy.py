"""The `evaluate` module of the accuracy on the most confident rows, as a curve or at chosen response rates."""

from __future__ import annotations

import evaluate
import numpy as np

from hf_robust.hub.info import metric_info  # From: hf-robust
from hf_robust.metrics import response_rate_accuracy  # From: hf-robust
from hf_robust.metrics.columns import same_class  # From: hf-robust

DESCRIPTION = """\
Accuracy of a classifier that answers only where it is most confident: on the i most confident of N rows for each i, or
at chosen response rates.
"""

INPUTS = """
Args:
    predictions: predicted class index a row.
    references: true class index a row.
    confidences: one finite number a row, higher = more confident; only its order matters.
    response_rates: fractions of the rows to answer, each in (0, 1]; a rate r stands for the ceil(r N) most confident
        rows. Unless told, every rate that N rows allow: 1/N, 2/N .. 1.
Returns:
    response_rates: list of the rates.
    response_rate_accuracy: list of the accuracies in [0, 1], one a rate; where confidences tie, the expected value
        over the orderings of the tied rows.
"""


class ResponseRateAccuracy(evaluate.Metric):
    """Accuracy on the most confident rows."""

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
        response_rates: list[float] | None = None,
    ) -> dict[str, list[float]]:
        curve = response_rate_accuracy(confidences, same_class(predictions, references))
        every = np.arange(1, len(curve) + 1) / len(curve)
        rates = every if response_rates is None else _rates(response_rates)
        answered = np.maximum(1, np.ceil(rates * len(curve) - 1e-9).astype(int))  # 0.07 * 100 is 7.000000000000001
        return {"response_rates": rates.tolist(), "response_rate_accuracy": curve[answered - 1].tolist()}


def _rates(values: list[float]) -> np.ndarray:
    rates = np.atleast_1d(np.asarray(values, dtype=np.float64))
    wrong = rates[~((rates > 0) & (rates <= 1))]
    if wrong.size or not rates.size:
        got = f"{wrong[0]:g}" if wrong.size else "none"
        raise ValueError(f"expected response_rates in (0, 1], got {got}: pass fractions of the rows such as [0.5, 1.0]")
    return rates
