"""What is gained by answering only where the model is confident: response rate accuracy, risk and coverage.

confidence is (N,) and finite, and only its order matters; correct is (N,) bool or 0/1. Where confidences tie, every
function gives the expected value over all orderings of the tied examples, so that row order never matters. ValueError
for empty, non-finite or unequal input.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import checks


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve: one entry for answering the 1, 2, .. N most confident examples.

    coverage          float64 (N,): fraction answered, i / N.
    risk              float64 (N,): errors among the answered, as a fraction of the answered.
    generalized_risk  float64 (N,): errors among the answered, as a fraction of all N (arXiv 2407.01032).
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    generalized_risk: NDArray[np.float64]


def tie_starts(ordered: NDArray[np.float64]) -> NDArray[np.int64]:
    """First position of each run of equal values in a sorted, non-empty vector: int64 (groups,)."""
    return np.append(0, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


def harmonic(n: int) -> NDArray[np.float64]:
    """1/1 + .. + 1/i for i = 0 .. n: float64 (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])


def _expected_hits(confidence: ArrayLike, correct: ArrayLike) -> NDArray[np.float64]:
    """Expected number of correct examples among the i most confident, i = 1 .. N."""
    values = checks.vector(confidence, "confidence")
    right = checks.flags(correct, "correct", like=values)
    order = np.argsort(-values)
    start = tie_starts(values[order])
    size = np.diff(start, append=values.size)
    hits = np.add.reduceat(right[order].astype(np.int64), start)
    before = np.repeat(np.cumsum(hits) - hits, size)
    place = np.arange(values.size) - np.repeat(start, size) + 1
    return np.asarray(before + np.repeat(hits, size) * place / np.repeat(size, size), dtype=np.float64)


def response_rate_accuracy(confidence: ArrayLike, correct: ArrayLike) -> NDArray[np.float64]:
    """Accuracy on the i most confident examples for i = 1 .. N: float64 (N,), most confident first.

    The published definition (arXiv 1907.07174) where nothing ties. Input, ties and errors: see the module.

    >>> response_rate_accuracy([0.9, 0.8, 0.8], [True, True, False]).tolist()  # 1/1, 1.5/2, 2/3
    [1.0, 0.75, 0.6666666666666666]
    """
    expected = _expected_hits(confidence, correct)
    return np.asarray(expected / np.arange(1, expected.size + 1), dtype=np.float64)


def accuracy_at_response_rate(confidence: ArrayLike, correct: ArrayLike, *, rate: float) -> float:
    """Accuracy on the most confident fraction `rate` of the examples, rounded up to whole examples.

    ValueError unless 0 < rate <= 1; input, ties and other errors as in `response_rate_accuracy`.

    >>> accuracy_at_response_rate([0.9, 0.8, 0.7, 0.6], [True, True, False, False], rate=0.75)  # 2 of 3
    0.6666666666666666
    """
    if not 0 < rate <= 1:
        raise ValueError(f"expected rate in (0, 1], got {rate}: pass a fraction such as 0.8")
    accuracy = response_rate_accuracy(confidence, correct)
    answered = ceil(rate * accuracy.size - 1e-9)  # 0.07 * 100 is 7.000000000000001 in floats
    return float(accuracy[max(1, answered) - 1])


def aurra(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the response rate accuracy curve in [0, 1]: mean over i of the accuracy of the i most confident.

    Input, ties and errors as in `response_rate_accuracy`.

    >>> aurra([0.9, 0.8], [True, False])  # (1 + 1/2) / 2
    0.75
    """
    return float(response_rate_accuracy(confidence, correct).mean())


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Coverage, risk and generalised risk of answering the i most confident examples, i = 1 .. N.

    El-Yaniv and Wiener, JMLR 11 (2010), for coverage and risk. Input, ties and errors: see the module.

    >>> risk_coverage([0.9, 0.8], [False, True]).risk.tolist()
    [1.0, 0.5]
    """
    expected = _expected_hits(confidence, correct)
    answered = np.arange(1, expected.size + 1)
    errors = answered - expected
    return RiskCoverage(answered / expected.size, errors / answered, errors / expected.size)


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve in [0, 1], mean over i of the risk of the i most confident: 1 - AURRA.

    Geifman, Uziel and El-Yaniv, arXiv 1805.08206. Lower is better; it mixes accuracy and ranking, see `e_aurc`.

    >>> aurc([0.9, 0.8], [True, False])  # (0 + 1/2) / 2
    0.25
    """
    return float(risk_coverage(confidence, correct).risk.mean())


def e_aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """AURC in excess of the best ranking of the same errors (all of them last); 0 is perfect, lower is better.

    arXiv 1805.08206, where the best AURC is approximated by r + (1 - r) ln(1 - r) at error rate r; here it is exact.

    >>> e_aurc([0.9, 0.8], [False, True])  # (1 + 1/2) / 2 - (0 + 1/2) / 2
    0.5
    """
    flags = checks.flags(correct, "correct", like=checks.vector(confidence, "confidence"))
    return aurc(confidence, flags) - float(best_aurc(np.array(int(flags.sum())), np.array(flags.size)))


def best_aurc(n_correct: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.float64]:
    """AURC of n examples whose n_correct correct ones all come first: mean of max(0, i - n_correct) / i."""
    table = harmonic(int(n.max()))
    return np.asarray((n - n_correct - n_correct * (table[n] - table[n_correct])) / n)


def augrc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the generalised risk-coverage curve in [0, 1/2]: the risk of a silent failure; lower is better.

    Traub et al., arXiv 2407.01032: straight lines between the points from (0, 0) on, which equals
    (1 - AUROC) x accuracy x (1 - accuracy) + (1 - accuracy)^2 / 2, with AUROC that of confidence for correctness.

    >>> augrc([0.9, 0.8], [True, False])  # the error comes last: (0 + 0)/2 * 1/2 + (0 + 1/2)/2 * 1/2
    0.125
    """
    risk = risk_coverage(confidence, correct).generalized_risk
    return float((risk.sum() - risk[-1] / 2) / risk.size)
