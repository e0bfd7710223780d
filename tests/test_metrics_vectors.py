"""The exact values that came with the project's facts; skipped where that folder is absent."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from hf_robust.labels import imagenet_a_wnids, imagenet_o_wnids, indices_of
from hf_robust.metrics import (
    accuracy,
    aupr,
    auroc,
    aurra,
    calibration_error,
    class_probability,
    fpr_at_tpr,
    hits,
    max_probability,
    soft_f1,
    spurious_score,
)

SHARED = Path(__file__).parents[2] / "shared"
VECTORS = SHARED / "reference" / "vectors"
needs_vectors = pytest.mark.skipif(not VECTORS.is_dir(), reason="../shared is absent")


def load(name, part=None):
    if not VECTORS.is_dir():
        return []
    content = json.loads((VECTORS / name).read_text())
    return content if part is None else content[part]


def inputs(kind, recipe):
    return runpy.run_path(str(VECTORS / "inputs.py"))[kind](recipe)


@needs_vectors
@pytest.mark.parametrize("case", load("calibration_and_ood.json", "calibration"), ids=lambda c: c["name"])
def test_calibration_vectors(case):
    confidence, correct = inputs("calibration", case["recipe"])
    for norm, name in ((2, "rms"), (1, "mad"), ("max", "max")):
        for released, suffix in ((True, "released_code"), (False, "all_bins")):
            value = calibration_error(confidence, correct, norm=norm, released_code=released)
            assert value == pytest.approx(case[f"{name}_calibration_error_{suffix}"], abs=1e-9)
    assert aurra(confidence, correct) == pytest.approx(case["aurra"], abs=1e-9)
    assert soft_f1(confidence, correct) == pytest.approx(case["soft_f1"], abs=1e-9)
    assert accuracy(correct) == pytest.approx(case["accuracy"], abs=1e-9)


@needs_vectors
@pytest.mark.parametrize("case", load("calibration_and_ood.json", "ood"), ids=lambda c: c["name"])
def test_detection_vectors(case):
    out, inside = inputs("ood", case["recipe"])
    scores, is_ood = np.concatenate([out, inside]), np.repeat([True, False], [len(out), len(inside)])
    assert aupr(scores, is_ood) == pytest.approx(case["aupr"], abs=1e-9)
    assert aupr(scores, is_ood, positive="id") == pytest.approx(case["aupr_in_positive"], abs=1e-9)
    assert auroc(scores, is_ood) == pytest.approx(case["auroc"], abs=1e-9)
    assert fpr_at_tpr(scores, is_ood) == pytest.approx(case["fpr95"], abs=1e-9)
    assert fpr_at_tpr(scores, is_ood, released_code=True) == pytest.approx(case["fpr95_released_code"], abs=1e-9)


@needs_vectors
@pytest.mark.parametrize("case", load("spurious_score.json"), ids=lambda c: c["name"])
def test_spurious_vectors(case):
    val, val_class, spur, spur_class = inputs("spurious", case["recipe"])
    logits, index = np.concatenate([val, spur]), np.concatenate([val_class, spur_class])
    is_spurious = np.repeat([False, True], [len(val), len(spur)])
    probability = class_probability(logits, index)
    result = spurious_score(probability, index, is_spurious, classified=hits(logits, index))
    released, area = case["released_code"], case["auroc"]
    assert result.spurious_score == pytest.approx(released["mean_average_precision"], abs=1e-9)
    assert result.joint_average_precision == pytest.approx(released["joint_average_precision"], abs=1e-9)
    assert (result.spurious_auroc, result.joint_auroc) == pytest.approx((area["mean"], area["joint"]), abs=1e-9)
    columns = {
        "average_precision": (released["class_average_precision"], 1e-9),
        "auroc": (area["per_class"], 1e-9),
        "mean_probability_validation": (released["class_in_mean_probability"], 1e-6),
        "mean_probability_spurious": (released["class_spurious_mean_probability"], 1e-6),
        "fraction_classified_validation": (released["class_in_fraction_classified_as"], 1e-6),
        "fraction_classified_spurious": (released["class_spurious_fraction_classified_as"], 1e-6),
    }
    assert [c.class_index for c in result.per_class] == case["class_index"]
    for field, (expected, tolerance) in columns.items():
        assert [getattr(c, field) for c in result.per_class] == pytest.approx(expected, abs=tolerance)


def stored_logits():
    """Real logits of 400 photos, their labels, and the golden values."""
    folder = SHARED / "data" / "nips2017"
    golden = json.loads((folder / "golden_efficientnet_lite0.json").read_text())["values"]
    stored = np.load(folder / "efficientnet_lite0_logits.npz")
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as stream:
        label = {row["file_name"]: int(row["imagenet_1k_index"]) for row in csv.DictReader(stream)}
    return stored["logits"], np.array([label[name] for name in stored["file_name"].tolist()]), golden


@needs_vectors
def test_golden_values_of_a_real_classifier_over_all_classes():
    logits, labels, golden = stored_logits()
    confidence, correct = max_probability(logits), hits(logits, labels)
    assert len(correct) == golden["n"]
    assert correct.mean() == pytest.approx(golden["top1"], abs=1e-4)
    assert hits(logits, labels, k=5).mean() == pytest.approx(golden["top5"], abs=1e-4)
    assert aurra(confidence, correct) == pytest.approx(golden["aurra"], abs=1e-4)
    for released, suffix in ((True, "released_code"), (False, "all_bins")):
        value = calibration_error(confidence, correct, released_code=released)
        assert value == pytest.approx(golden[f"rms_calibration_error_{suffix}"], abs=1e-4)


@needs_vectors
def test_golden_values_of_a_real_classifier_over_200_classes():
    logits, labels, golden = stored_logits()
    a, o = indices_of(imagenet_a_wnids()), indices_of(imagenet_o_wnids())
    rows = np.isin(labels, a)
    masked = hits(logits[np.ix_(rows, a)], np.searchsorted(a, labels[rows]))
    expected = golden["imagenet_a_classes"]
    assert (rows.sum(), masked.mean()) == (expected["n"], pytest.approx(expected["top1_over_200_classes"], abs=1e-4))
    assert hits(logits[rows], labels[rows]).mean() == pytest.approx(expected["top1_over_1000_classes"], abs=1e-4)
    scores, is_ood = -max_probability(logits[:, o]), ~np.isin(labels, o)
    expected = golden["imagenet_o_protocol_standin"]
    assert (is_ood.sum(), (~is_ood).sum()) == (expected["n_out"], expected["n_in"])
    for name, metric in (("auroc", auroc), ("aupr", aupr), ("fpr95", fpr_at_tpr)):
        assert metric(scores, is_ood) == pytest.approx(expected[name], abs=1e-4)
