"""Other anomaly scores over stored predictions: columns, masks, fits that never see a scored row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_folder import Source, write_run
from scipy.special import logsumexp
from sklearn.metrics import average_precision_score

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.predictions.read import HeadWeights
from hf_robust.scoring import options_of, score

O = benchmark("imagenet-o").mask  # noqa: E741
MASK = list(O)


def outputs(seed: int, n: int, scale: float) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, scale, (n, 1000)).astype(np.float32)


def run_with(tmp_path: Path, *more: Source, **options: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A run with 400 in- and 60 out-of-distribution rows, two validation pictures a class; their logits."""
    labels = [k for k in MASK for _ in range(2)]
    inside, outside = outputs(0, len(labels), 3.0), outputs(1, 60, 1.0)
    sources = [
        Source("imagenet-val", [[k] for k in labels], inside),
        Source("imagenet-o", [[]] * 60, outside, {"confused_with": [i % 200 for i in range(60)]}),
        *more,
    ]
    write_run(tmp_path, ["imagenet-o"], sources, **options)
    return inside, outside


def rows_of(results: list[dict[str, Any]], name: str | None) -> dict[str, dict[str, Any]]:
    return {r["metric"]: r for r in results if r["ood_score"] == name}


def test_energy_is_scored_over_the_protocols_classes_beside_the_published_score(tmp_path: Path) -> None:
    inside, outside = run_with(tmp_path)
    results = score(tmp_path, benchmarks(), allow_chance=True, ood=options_of(["energy"], None), replicates=0)
    anomaly = -logsumexp(np.concatenate([inside, outside])[:, MASK].astype(float), axis=1)
    expected = average_precision_score([0] * 400 + [1] * 60, anomaly)
    row = rows_of(results, "energy")["aupr"]
    assert row["value"] == pytest.approx(expected, abs=1e-9)
    assert row["protocol"]["anomaly_score"].startswith("energy (")
    assert not row["headline"]
    assert rows_of(results, None)["aupr"]["headline"]
    assert set(rows_of(results, "energy")) == {"aupr", "auroc", "fpr95"}


def test_a_score_whose_column_is_not_stored_is_a_row_with_its_reason_and_nothing_else_fails(tmp_path: Path) -> None:
    run_with(tmp_path)
    results = score(tmp_path, benchmarks(), allow_chance=True, ood=options_of(["knn", "energy"], None), replicates=0)
    assert rows_of(results, "energy")["aupr"]["value"] is not None
    missing = rows_of(results, "knn")["aupr"]
    assert missing["value"] is None
    assert "imagenet-train" in missing["reason"]


def test_a_fit_on_training_rows_is_named_with_its_source_rows_and_hash(tmp_path: Path) -> None:
    train = Source("imagenet-train", [[k] for k in MASK for _ in range(3)], outputs(2, 600, 3.0))
    run_with(tmp_path, train)
    options = options_of(["kl_matching"], None)
    row = rows_of(score(tmp_path, benchmarks(), allow_chance=True, ood=options, replicates=0), "kl_matching")["aupr"]
    assert row["reason"] is None
    fit = row["protocol"]["fit"]
    assert (fit["rows"], fit["source"].endswith("imagenet-train.model")) == (600, True)
    again = score(tmp_path, benchmarks(), allow_chance=True, ood=options, replicates=0)
    assert rows_of(again, "kl_matching")["aupr"]["protocol"]["fit"]["sha256"] == fit["sha256"]


def test_a_fit_source_that_shares_a_row_with_what_is_scored_is_refused(tmp_path: Path) -> None:
    """DESIGN: by id or by the bytes of the picture."""
    run_with(tmp_path)
    folder = next(tmp_path.glob("*/imagenet-val.model"))
    options = options_of(["kl_matching"], folder)
    row = rows_of(score(tmp_path, benchmarks(), allow_chance=True, ood=options, replicates=0), "kl_matching")["aupr"]
    assert row["value"] is None
    assert "expected fit rows that are not scored, got 400 of 400 scored rows" in row["reason"]


def test_an_unknown_score_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="unknown score 'enrgy'; known: msp, max_logit, energy"):
        options_of(["enrgy"], None)


def test_features_and_head_are_restricted_to_the_protocols_classes(tmp_path: Path) -> None:
    """ASH with nothing pruned away is the energy of the masked head over the features."""
    generator = np.random.default_rng(5)
    weight = generator.normal(0, 1, (1000, 8)).astype(np.float32)
    head = HeadWeights(weight, np.zeros(1000, np.float32))
    labels = [k for k in MASK for _ in range(2)]
    inside = np.abs(generator.normal(0, 2, (400, 8))).astype(np.float32)
    outside = np.abs(generator.normal(0, 1, (60, 8))).astype(np.float32)
    sources = [
        Source("imagenet-val", [[k] for k in labels], inside @ weight.T, features=inside),
        Source("imagenet-o", [[]] * 60, outside @ weight.T, {"confused_with": [0] * 60}, features=outside),
    ]
    write_run(tmp_path, ["imagenet-o"], sources, heads={"classifier": head}, features=True)
    results = score(tmp_path, benchmarks(), allow_chance=True, ood=options_of(["react", "scale"], None), replicates=0)
    assert "imagenet-train" in rows_of(results, "react")["aupr"]["reason"]
    assert 0 < rows_of(results, "scale")["aupr"]["value"] <= 1


def test_a_fit_source_without_the_protocols_classes_is_a_row_with_that_reason(tmp_path: Path) -> None:
    other = sorted(set(range(1000)) - set(MASK))[:5]
    run_with(tmp_path, Source("imagenet-train", [[k] for k in other], outputs(2, 5, 3.0)))
    options = options_of(["kl_matching"], None)
    row = rows_of(score(tmp_path, benchmarks(), allow_chance=True, ood=options, replicates=0), "kl_matching")["aupr"]
    assert "expected fit rows of the protocol's classes" in row["reason"]
