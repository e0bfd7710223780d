"""Time and peak memory of the metrics against scikit-learn, torchmetrics and pytorch-ood, in one run.

python bench/metrics.py [--scores N] [--repeats N]

Each row is the best of some repetitions; memory is the peak above what was held before, of a child process that makes
one call (Linux). `times` is the row's time divided by ours: above 1 we are faster. The values are
compared as well: a row that agrees with none of ours is shown and says so, and does not count for the target.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from hf_robust.metrics import bootstrap, curve, spurious_score, weighted

NAMES = ("AUROC", "AP", "FPR95")
Call = Callable[[], tuple[float, ...]]


@dataclass(frozen=True)
class Row:
    who: str
    seconds: float | None
    peak_mb: float | None
    values: tuple[float, ...] = ()
    note: str = ""


def peak_of(call: Call) -> float:
    """Megabytes that a child process grows by at most while `call` runs in it, as the kernel counts them."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of a new child: what it holds now
        call()
        sender.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    child = context.Process(target=work)
    child.start()
    kilobytes = float(receiver.recv())
    child.join()
    return kilobytes / 1e3


def measure(calls: dict[str, Call], repeats: int, notes: dict[str, str]) -> list[Row]:
    """One row a call; repetitions in turns, so that a busy machine slows all of them alike."""
    peaks = {who: peak_of(call) for who, call in calls.items()}  # first: threads of torch do not survive a fork
    values = {who: call() for who, call in calls.items()}  # warm
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for who, call in calls.items():
            start = time.perf_counter()
            call()
            best[who] = min(best[who], time.perf_counter() - start)
    return [Row(who, best[who], peaks[who], values[who], notes.get(who, "")) for who in calls]


# one score a row, a million rows


def detection(n: int, repeats: int) -> list[Row]:
    rng = np.random.default_rng(0)
    is_ood = rng.random(n) < 0.2
    scores = rng.normal(size=n) + is_ood

    def ours() -> tuple[float, ...]:
        counts = curve(scores, is_ood)
        return counts.area(), counts.average_precision(), counts.false_positive_rate(0.95)

    def ours_trapezoid() -> tuple[float, ...]:
        counts = curve(scores, is_ood)
        return counts.area(), counts.trapezoid(), counts.false_positive_rate(0.95)

    def scikit_learn() -> tuple[float, ...]:
        fpr, tpr, _ = roc_curve(is_ood, scores, drop_intermediate=False)
        return (
            float(roc_auc_score(is_ood, scores)),
            float(average_precision_score(is_ood, scores)),
            float(fpr[tpr >= 0.95].min()),
        )

    calls: dict[str, Call] = {
        "hf_robust": ours,
        "hf_robust, trapezoid for AP": ours_trapezoid,
        "scikit-learn": scikit_learn,
    }
    missing = []
    for who, package, build in (
        ("torchmetrics", "torchmetrics", torchmetrics_calls),
        ("pytorch-ood", "pytorch_ood", pytorch_ood_calls),
    ):
        if find_spec(package) is None:
            missing.append(Row(who, None, None, note="not installed"))
        else:
            calls[who] = build(scores, is_ood)
    return measure(calls, repeats, {"hf_robust, trapezoid for AP": "what pytorch-ood computes"}) + missing


def torchmetrics_calls(scores: np.ndarray, is_ood: np.ndarray) -> Call:
    import torch
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

    # a monotone map into [0, 1], for its functions put a sigmoid over anything else, which takes time
    value, truth = torch.from_numpy(1 / (1 + np.exp(-scores))), torch.from_numpy(is_ood.astype(np.int64))

    def call() -> tuple[float, ...]:
        fpr, tpr, _ = binary_roc(value, truth, validate_args=False)
        return (
            float(binary_auroc(value, truth, validate_args=False)),
            float(binary_average_precision(value, truth, validate_args=False)),
            float(fpr[tpr >= 0.95].min()),
        )

    return call


def pytorch_ood_calls(scores: np.ndarray, is_ood: np.ndarray) -> Call:
    import torch
    from pytorch_ood.metrics import AUPR, AUROC, FPRAtTPR, MetricCollection

    # its labels are negative for out-of-distribution rows
    value, label = torch.from_numpy(scores), torch.from_numpy(np.where(is_ood, -1, 1))

    def call() -> tuple[float, ...]:
        metrics = MetricCollection([AUROC(), AUPR("ood"), FPRAtTPR(0.95)])
        metrics.update(scores=value, labels=label)
        result = metrics.compute()
        return result["AUROC"], result["AUPR-OUT"], result["FPR95TPR"]

    return call


# many classes


def spurious(repeats: int) -> list[Row]:
    rng = np.random.default_rng(1)
    index = np.repeat(np.arange(100), 125)
    is_spurious = np.tile(np.arange(125) >= 50, 100)
    probability = rng.random(index.size)

    def ours() -> tuple[float, ...]:
        result = spurious_score(probability, index, is_spurious)
        return result.spurious_score, result.spurious_auroc

    def loop() -> tuple[float, ...]:
        own = [index == k for k in range(100)]
        precision = [average_precision_score(~is_spurious[rows], probability[rows]) for rows in own]
        area = [roc_auc_score(~is_spurious[rows], probability[rows]) for rows in own]
        return float(np.mean(precision)), float(np.mean(area))

    calls: dict[str, Call] = {"hf_robust": ours, "scikit-learn loop": loop}
    return measure(calls, repeats, {"hf_robust": "with joint scores and class means"})


# resampling


def intervals(replicates: int, repeats: int) -> list[Row]:
    rng = np.random.default_rng(2)
    is_ood = np.arange(12_000) < 2_000
    scores = rng.normal(size=12_000) + 0.3 * is_ood

    def ours() -> tuple[float, ...]:
        return bootstrap(weighted.aupr(scores, is_ood), scores.size, replicates=replicates, strata=is_ood)

    def loop() -> tuple[float, ...]:
        draw = np.random.default_rng(3)
        values = []
        for _ in range(replicates):
            rows = np.concatenate([draw.integers(0, 2_000, 2_000), draw.integers(2_000, 12_000, 10_000)])
            values.append(average_precision_score(is_ood[rows], scores[rows]))
        low, high = np.quantile(values, [0.025, 0.975])
        return float(low), float(high)

    return measure({"hf_robust": ours, "resampling loop over scikit-learn": loop}, repeats, {})


def show(title: str, rows: list[Row], names: tuple[str, ...], *, target: float, tolerance: float) -> bool:
    """Print one table; whether the fastest other that computes the same thing is at least `target` times slower."""
    ours, fastest = [row for row in rows if row.who.startswith("hf_robust")], float("inf")
    print(f"\n{title}")
    print(f"  {'':34}{'ms':>9}{'MB':>9}{'times':>8}  {', '.join(names)}")
    for row in rows:
        if row.seconds is None or row.peak_mb is None:
            print(f"  {row.who:34}{'-':>9}{'-':>9}{'-':>8}  {row.note}")
            continue
        agree = [mine for mine in ours if np.allclose(row.values, mine.values, atol=tolerance, rtol=0)]
        times = row.seconds / (agree or ours)[0].seconds
        if agree and row not in ours:
            fastest = min(fastest, times)
        note = row.note if agree else "not the same values"
        figures = " ".join(f"{v:.6f}" for v in row.values)
        print(f"  {row.who:34}{row.seconds * 1e3:9.1f}{row.peak_mb:9.1f}{times:8.1f}  {figures}  {note}")
    met = fastest >= target
    print(
        f"  fastest of the others that agree: {fastest:.1f} times ours; target {target:g}: {'met' if met else 'MISSED'}"
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=int, default=1_000_000, help="rows of the detection bench")
    parser.add_argument("--replicates", type=int, default=1_000, help="of the interval bench")
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="repetitions a row, the best counts (the first table takes three times as many, the last two)",
    )
    given = parser.parse_args()
    met = [
        show(
            f"AUROC + AP + FPR95 on {given.scores:,} scores",
            detection(given.scores, 3 * given.repeats),
            NAMES,
            target=2.5,
            tolerance=1e-6,
        ),
        show(
            "spurious score and AUROC over 100 classes of 125 pictures",
            spurious(given.repeats),
            ("AP", "AUROC"),
            target=5,
            tolerance=1e-9,
        ),
        show(
            f"bootstrap interval of AUPR, {given.replicates:,} replicates on 12,000 scores",
            intervals(given.replicates, 2),
            ("low", "high"),
            target=10,
            tolerance=5e-3,  # two different draws
        ),
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
