"""The same quantity under other conventions, against plain computations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_folder import A, Source, write_run
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_curve

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.metrics import fpr_at_tpr
from hf_robust.scoring.conventions import _fpr95_of_corners, conventions

O = benchmark("imagenet-o").mask  # noqa: E741


def found(runs: Path, *, allow_chance: bool = False) -> dict[tuple[str, str], float | None]:
    rows = conventions(runs, benchmarks(), allow_chance=allow_chance)
    return {(row["quantity"], row["convention"]): row["value"] for row in rows}


def test_detection_conventions_equal_scikit_learns(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    inside, outside = generator.normal(0, 3, (200, 1000)), generator.normal(0, 2, (80, 1000))
    sources = [
        Source("imagenet-val", [[k] for k in O], inside.astype(np.float32)),
        Source("imagenet-o", [[]] * 80, outside.astype(np.float32), {"confused_with": [0] * 80}),
    ]
    write_run(tmp_path, ["imagenet-o"], sources)
    logits = np.concatenate([inside, outside]).astype(np.float32)[:, list(O)].astype(float)
    confidence = (np.exp(logits - logits.max(1, keepdims=True))).sum(1) ** -1.0
    truth = np.repeat([0, 1], [200, 80])
    assert found(tmp_path) == {}  # no class is known: the chance gate
    values = found(tmp_path, allow_chance=True)
    assert values["id_accuracy", "argmax over the protocol's classes"] == pytest.approx(
        (logits[:200].argmax(1) == np.arange(200)).mean()
    )
    assert values["aupr", "average precision, out-of-distribution positive"] == pytest.approx(
        average_precision_score(truth, -confidence)
    )
    precision, recall, _ = precision_recall_curve(truth, -confidence)
    assert values["aupr", "trapezoid, out-of-distribution positive"] == pytest.approx(auc(recall, precision))
    assert values["aupr", "average precision, in-distribution positive"] == pytest.approx(
        average_precision_score(1 - truth, confidence)
    )
    precision, recall, _ = precision_recall_curve(1 - truth, confidence)
    assert values["aupr", "trapezoid, in-distribution positive"] == pytest.approx(auc(recall, precision))
    false, true, _ = roc_curve(truth, -confidence)  # OpenOOD 1.5 takes its first point with a rate of 0.95
    assert values["fpr95", "scikit-learn's roc_curve"] == pytest.approx(false[np.argmax(true >= 0.95)])
    false, true, _ = roc_curve(1 - truth, confidence, drop_intermediate=False)
    assert values["fpr95", "in-distribution positive"] == pytest.approx(false[true >= 0.95].min())


def test_fpr95_of_scikit_learn_skips_points_on_a_line_where_scores_tie() -> None:
    # at each of twenty thresholds one picture of either half: the curve is one line, and only its end is kept
    scores, ood = np.repeat(np.arange(20.0), 2), np.tile([True, False], 20)
    false, true, _ = roc_curve(ood, scores)
    assert _fpr95_of_corners(scores, ood) == false[np.argmax(true >= 0.95)] == 1.0
    assert fpr_at_tpr(scores, ood) == 19 / 20


def test_top5_of_the_released_code_can_exceed_one(tmp_path: Path) -> None:
    """FACTS 3: one hit for each acceptable index. Two acceptable classes, both on top: 2 hits for 1 picture."""
    logits = np.zeros((1, 1000), np.float32)
    logits[0, [409, 530]] = 9
    groups = {"category": ["alarm_clock"], "nuisance": ["background"]}
    write_run(tmp_path, ["imagenet-d"], [Source("imagenet-d", [[409, 530]], logits, groups)])
    values = found(tmp_path)
    assert values["top5_accuracy", "any acceptable index"] == 1
    assert values["top5_accuracy", "released code"] == 2


def test_the_released_calibration_error_is_none_below_100_pictures_and_ours_is_marked(tmp_path: Path) -> None:
    logits = np.random.default_rng(1).normal(0, 2, (30, 1000)).astype(np.float32)
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[A[i]] for i in range(30)], logits)])
    values = found(tmp_path)
    assert values["calibration_error", "RMS, released code"] is None
    rows = conventions(tmp_path, benchmarks())
    ours = [row["quantity"] for row in rows if row["ours"]]
    assert sorted(ours) == ["aurra", "calibration_error", "top1_accuracy"]
