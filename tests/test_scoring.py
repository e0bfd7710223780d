"""From predictions on disk to results: every number against a second computation, and what is said beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plain_metrics as plain
import pytest
from run_folder import A, Source, row, scored, small_a, write_run
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, top_k_accuracy_score

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.labels import imagenet_d_categories, label_space, spurious_classes
from hf_robust.predictions.read import HeadWeights
from hf_robust.scoring import score

O = benchmark("imagenet-o").mask  # noqa: E741


def values(results: list[dict[str, Any]]) -> dict[tuple[str, str, str | None], Any]:
    return {(r["benchmark"], r["metric"], r["split"]): r["value"] for r in results}


def draw(seed: int, labels: list[int], *, right: float, width: int = 1000) -> np.ndarray:
    """Noise, plus a peak of random height at the label for a fraction `right` of the rows, else at any class.

    Rounded to quarters, so that equal logits occur.
    """
    rng = np.random.default_rng(seed)
    chosen = np.where(rng.random(len(labels)) < right, labels, rng.integers(0, width, len(labels)))
    logits = rng.normal(size=(len(labels), width))
    logits[np.arange(len(labels)), chosen] += rng.uniform(2, 9, len(labels))
    return (np.round(4 * logits) / 4).astype(np.float32)


# --- every number


def test_imagenet_a_against_scipy_and_plain_loops(tmp_path: Path) -> None:
    """USER_REPORTS 2, 18: both accuracies, 200-way confidence, the whole set at once."""
    labels = [A[i % 200] for i in range(450)]
    clean = [A[i % 200] for i in range(300)]
    test, control = draw(1, labels, right=0.4), draw(2, clean, right=0.9)
    test[420:450] = test[100:130]  # equal confidences, right and wrong
    write_run(
        tmp_path, ["imagenet-a"],
        [Source("imagenet-a", [[k] for k in labels], test), Source("imagenet-val", [[k] for k in clean], control)],
    )  # fmt: skip
    results = scored(tmp_path)
    p = plain.probabilities(test[:, list(A)])
    correct = np.array(A)[p.argmax(axis=1)] == labels
    confidence = p.max(axis=1)
    clean_correct = np.array(A)[control[:, list(A)].argmax(axis=1)] == clean
    expected = {
        "top1_accuracy": correct.mean(),
        "top1_accuracy_1000": (test.argmax(axis=1) == labels).mean(),
        "rms_calibration_error": plain.calibration(confidence, correct, skip_last=False),
        "aurra": plain.aurra(confidence, correct),
        "control_top1_accuracy": clean_correct.mean(),
        "accuracy_drop": clean_correct.mean() - correct.mean(),
    }
    found = values(results)
    assert {name: found["imagenet-a", name, None] for name in expected} == pytest.approx(expected, abs=1e-12)
    # ties at the fifth place are broken by column, which scikit-learn does the other way round: turn the columns
    positions = 199 - np.array([A.index(k) for k in labels])
    top5 = top_k_accuracy_score(positions, test[:, list(A)][:, ::-1], k=5, labels=range(200))
    assert found["imagenet-a", "top5_accuracy", None] == pytest.approx(top5, abs=1e-12)
    assert expected["top1_accuracy_1000"] < expected["top1_accuracy"]


def test_the_released_calibration_error_against_a_plain_loop(tmp_path: Path) -> None:
    labels = [A[i % 200] for i in range(350)]
    logits = np.random.default_rng(3).normal(scale=2, size=(350, 1000)).astype(np.float32)  # no ties
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[k] for k in labels], logits)])
    p = plain.probabilities(logits[:, list(A)])
    correct = np.array(A)[p.argmax(axis=1)] == labels
    for metric, skip_last in (("rms_calibration_error", False), ("rms_calibration_error_released_code", True)):
        expected = plain.calibration(p.max(axis=1), correct, skip_last=skip_last)
        assert row(scored(tmp_path), metric)["value"] == pytest.approx(expected, abs=1e-12)


def test_imagenet_o_against_scikit_learn(tmp_path: Path) -> None:
    """USER_REPORTS 1, 11, 12."""
    known = [O[i % 200] for i in range(300)]
    inside, outside = draw(4, known, right=0.95), draw(5, [7] * 90, right=0.3)
    inside[250:], outside[:30] = inside[:50], inside[60:90]  # equal scores within and across the halves
    write_run(
        tmp_path, ["imagenet-o"],
        [
            Source("imagenet-o", [[]] * 90, outside, {"confused_with": [i % 200 for i in range(90)]}),
            Source("imagenet-val", [[k] for k in known], inside),
        ],
    )  # fmt: skip
    results = scored(tmp_path)
    expected = {
        **plain.detection(inside[:, list(O)], outside[:, list(O)]),
        "id_accuracy": (np.array(O)[inside[:, list(O)].argmax(axis=1)] == known).mean(),
    }
    for metric, value in expected.items():
        assert row(results, metric)["value"] == pytest.approx(value, abs=1e-9)
    details = row(results, "aupr")["details"]
    assert (details["n_in"], details["n_out"], details["base_rate"]) == (300, 90, 90 / 390)
    protocol = row(results, "aupr")["protocol"]
    assert protocol["positive_class"] == "out-of-distribution"
    assert "200 classes of ImageNet-O" in protocol["class_mask"]
    assert "average precision" in details["estimator"]
    assert protocol["rows"] == {"outside": 90, "inside": 300}


def test_spurious_imagenet_against_scikit_learn(tmp_path: Path) -> None:
    classes = [c.index for c in spurious_classes()]
    own = [k for k in classes for _ in range(3)]
    shown = [k for k in classes for _ in range(4)]
    validation, pictures = draw(6, own, right=0.9), draw(7, shown, right=0.4)
    write_run(
        tmp_path, ["spurious-imagenet"],
        [
            Source("imagenet-val", [[k] for k in own], validation),
            Source(
                "spurious-imagenet", [[]] * 400, pictures,
                {"spurious_class": shown, "component": [None] * 400}, rule="spurious-image",
            ),
        ],
    )  # fmt: skip
    expected = {
        **plain.spurious(own, validation, shown, pictures),
        "validation_top1_accuracy": (validation.argmax(axis=1) == own).mean(),
    }
    results = scored(tmp_path)
    for metric, value in expected.items():
        assert row(results, metric)["value"] == pytest.approx(value, abs=1e-9)
    assert row(results, "spurious_score")["details"]["classes"] == 100


def test_imagenet_d_by_nuisance_with_any_index_of_a_category(tmp_path: Path) -> None:
    categories = imagenet_d_categories()
    rows = [(c, nuisance) for c in categories for nuisance in ("background", "texture", "material")]
    first = [c.indices[-1] for c, _ in rows]
    control_labels = [k for c in categories for k in c.indices]
    test, control = draw(8, first, right=0.5), draw(9, control_labels[1:] + control_labels[:1], right=0.9)
    write_run(
        tmp_path, ["imagenet-d"],
        [
            Source(
                "imagenet-d", [c.indices for c, _ in rows], test,
                {"category": [c.folder for c, _ in rows], "nuisance": [n for _, n in rows]},
            ),
            Source("imagenet-val", [[k] for k in control_labels], control),
        ],
    )  # fmt: skip
    results = scored(tmp_path)
    right = np.array([logits.argmax() in c.indices for logits, (c, _) in zip(test, rows, strict=True)])
    kinds = np.array([n for _, n in rows])
    group_of = {k: c.indices for c in categories for k in c.indices}
    order = np.argsort(control_labels, kind="stable")  # one part a class
    clean = np.mean([control[i].argmax() in group_of[control_labels[i]] for i in order])
    assert row(results, "top1_accuracy", "all")["value"] == right.mean()
    for nuisance in ("background", "texture", "material"):
        part = row(results, "top1_accuracy", nuisance)
        assert (part["value"], part["n"]) == (right[kinds == nuisance].mean(), 113)
        assert row(results, "accuracy_drop", nuisance)["value"] == pytest.approx(clean - part["value"])
    assert row(results, "control_top1_accuracy", "all")["value"] == pytest.approx(clean)
    single = np.mean([control[i].argmax() == control_labels[i] for i in order])
    assert single < clean  # a control counted by single index would be another number
    assert [r["headline"] for r in results if r["metric"] == "top1_accuracy"] == [True, False, False, False]


def test_imagenet_val_over_all_classes(tmp_path: Path) -> None:
    labels = [i % 1000 for i in range(400)]
    logits = draw(10, labels, right=0.7)
    write_run(tmp_path, ["imagenet-val"], [Source("imagenet-val", [[k] for k in labels], logits)])
    results = scored(tmp_path)
    p, correct = plain.probabilities(logits), logits.argmax(axis=1) == labels
    assert row(results, "top1_accuracy")["value"] == correct.mean()
    assert row(results, "aurra")["value"] == pytest.approx(plain.aurra(p.max(axis=1), correct))
    expected = plain.calibration(p.max(axis=1), correct, skip_last=False)
    assert row(results, "rms_calibration_error")["value"] == pytest.approx(expected)


def test_rows_of_one_source_in_another_order_give_the_same_numbers(tmp_path: Path) -> None:
    """Ties of logits and confidences are many here; no number may depend on the order of rows."""
    labels = np.array([A[i % 200] for i in range(300)])
    logits = draw(11, list(labels), right=0.5)
    logits[150:] = logits[:150]
    turn = np.random.default_rng(0).permutation(300)
    for name, order in (("there", np.arange(300)), ("turned", turn)):
        source = Source("imagenet-a", [[int(k)] for k in labels[order]], logits[order])
        write_run(tmp_path / name, ["imagenet-a"], [source])
    free = {k: v for k, v in values(scored(tmp_path / "there")).items() if "released" not in k[1]}
    again = {k: v for k, v in values(scored(tmp_path / "turned")).items() if "released" not in k[1]}
    assert {k: v for k, v in again.items() if v is not None} == pytest.approx(
        {k: v for k, v in free.items() if v is not None}, abs=1e-12
    )


def test_intervals_of_proportions_are_wilsons_and_others_are_resampled(tmp_path: Path) -> None:
    labels = [A[i % 200] for i in range(120)]
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[k] for k in labels], draw(12, labels, right=0.3))])
    results = scored(tmp_path)
    accuracy = row(results, "top1_accuracy")
    expected = binomtest(round(accuracy["value"] * 120), 120).proportion_ci(method="wilson")
    assert accuracy["ci95"] == pytest.approx([expected.low, expected.high], abs=1e-12)
    low, high = row(results, "aurra")["ci95"]
    assert low < row(results, "aurra")["value"] < high
    again = score(tmp_path, benchmarks())
    assert row(again, "aurra")["ci95"] == [low, high]
    assert row(score(tmp_path, benchmarks(), replicates=0), "aurra")["ci95"] is None


# --- edges


def test_one_row_only(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a(1)])
    results = scored(tmp_path)
    assert row(results, "top1_accuracy")["value"] == 1.0
    expected = binomtest(1, 1).proportion_ci(method="wilson")
    assert row(results, "top1_accuracy")["ci95"] == pytest.approx([expected.low, expected.high])
    confidence = np.exp(8) / (np.exp(8) + 199)
    assert row(results, "rms_calibration_error")["value"] == pytest.approx(1 - confidence)
    assert row(results, "rms_calibration_error_released_code")["value"] is None


def test_all_logits_equal_take_the_first_class_and_tie_every_confidence(tmp_path: Path) -> None:
    labels = [[A[0]], [A[1]], [A[0]], [A[2]]]
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", labels, np.zeros((4, 1000)))])
    results = scored(tmp_path)
    assert row(results, "top1_accuracy")["value"] == 2 / 4
    assert row(results, "aurra")["value"] == pytest.approx(2 / 4)  # any order: the expected accuracy is 2/4 throughout
    assert row(results, "rms_calibration_error")["value"] == pytest.approx(abs(1 / 200 - 2 / 4))


def test_an_unknown_benchmark_in_a_run_is_a_row_with_its_reason(tmp_path: Path) -> None:
    write_run(tmp_path, ["toy-set"], [])
    (only,) = scored(tmp_path)
    assert only["reason"].startswith("benchmark 'toy-set' is not known here; known: imagenet-a, ")


def test_a_folder_that_is_none_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"expected a folder that `hf-robust evaluate --out` wrote, got .*nowhere"
    ):
        scored(tmp_path / "nowhere")


# --- other heads


def test_a_21k_head_is_scored_through_wordnet_ids_and_names_the_class_it_lacks(tmp_path: Path) -> None:
    """USER_REPORTS 10: 21,841 outputs have none for 850, teddy, which is one of ImageNet-A's classes."""
    space = label_space(21841)
    columns = space.imagenet_1k_columns()
    labels = [A[i] for i in range(0, 200, 4)] + [850]
    rng = np.random.default_rng(13)
    logits = rng.normal(size=(51, 21841)).astype(np.float32)
    for i, k in enumerate(labels[:25]):
        logits[i, columns[k]] += 9
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[k] for k in labels], logits)], space=space)
    results = scored(tmp_path)
    known = [k for k in A if k != 850]
    best = [known[int(i)] for i in logits[:, columns[known]].argmax(axis=1)]
    expected = np.mean([b == k for b, k in zip(best, labels, strict=True)])
    assert row(results, "top1_accuracy")["value"] == pytest.approx(expected)
    assert "no output of the model stands for: 850 teddy" in row(results, "top1_accuracy")["notes"]
    assert "22k" in row(results, "top1_accuracy")["protocol"]["label_space"]


def test_the_spurious_probability_of_a_21k_head_is_over_all_its_outputs(tmp_path: Path) -> None:
    space = label_space(21841)
    columns = space.imagenet_1k_columns()
    rng = np.random.default_rng(14)
    logits = rng.normal(scale=2, size=(40, 21841)).astype(np.float32)
    logits[::2] += np.where(np.isin(np.arange(21841), columns), 0, 3).astype(np.float32)  # mass outside ImageNet-1k
    write_run(
        tmp_path, ["spurious-imagenet"],
        [
            Source("imagenet-val", [[0]] * 20, logits[:20]),
            Source(
                "spurious-imagenet", [[]] * 20, logits[20:], {"spurious_class": [0] * 20, "component": [1] * 20},
                rule="spurious-image",
            ),
        ],
        space=space,
    )  # fmt: skip
    p = plain.probabilities(logits)[:, columns[0]]
    expected = average_precision_score(np.repeat([1, 0], 20), p)
    over_1k = plain.probabilities(logits[:, columns[columns >= 0]])[:, 0]
    assert expected != pytest.approx(average_precision_score(np.repeat([1, 0], 20), over_1k))
    assert row(scored(tmp_path), "spurious_score")["value"] == pytest.approx(expected, abs=1e-9)


def test_a_zero_shot_model_is_scored_113_ways_on_imagenet_d_and_1000_ways_elsewhere(tmp_path: Path) -> None:
    categories = imagenet_d_categories()
    rng = np.random.default_rng(15)
    heads = {
        name: HeadWeights(rng.normal(size=(n, 16)).astype(np.float32), np.zeros(n, np.float32))
        for name, n in (("imagenet-1k", 1000), ("imagenet-d", 113))
    }
    chosen = [5, 0, 112, 40, 7, 7]
    test = heads["imagenet-d"].weight[chosen] + rng.normal(scale=0.9, size=(6, 16)).astype(np.float32)
    control_labels = [categories[0].indices[1], categories[5].indices[0], categories[112].indices[0]]
    control = heads["imagenet-d"].weight[[0, 5, 3]].copy()
    nuisances = ["background", "texture", "material", "background", "texture", "texture"]
    write_run(
        tmp_path, ["imagenet-d", "imagenet-val"],
        [
            Source(
                "imagenet-d", [categories[i].indices for i in chosen], test,
                {"category": [categories[i].folder for i in chosen], "nuisance": nuisances}, column="embeddings",
            ),
            Source("imagenet-val", [[k] for k in control_labels], control, column="embeddings"),
        ],
        heads=heads, prompts="0" * 64,
    )  # fmt: skip
    results = [r for r in scored(tmp_path) if r["benchmark"] == "imagenet-d"]
    logits = test @ heads["imagenet-d"].weight.T
    assert row(results, "top1_accuracy", "all")["value"] == pytest.approx((logits.argmax(axis=1) == chosen).mean())
    among_five = [c in np.argsort(-v)[:5] for v, c in zip(logits, chosen, strict=True)]
    assert row(results, "top5_accuracy", "all")["value"] == pytest.approx(np.mean(among_five))
    ours = {categories[0].indices[1]: 0, categories[5].indices[0]: 5, categories[112].indices[0]: 112}
    best = {k: int((v @ heads["imagenet-d"].weight.T).argmax()) for k, v in zip(control_labels, control, strict=True)}
    clean = np.mean([best[k] == ours[k] for k in control_labels])
    assert row(results, "control_top1_accuracy", "all")["value"] == pytest.approx(clean)
    assert "113 zero-shot classes" in row(results, "top1_accuracy", "all")["protocol"]["class_mask"]
    whole = row([r for r in scored(tmp_path) if r["benchmark"] == "imagenet-val"], "top1_accuracy")
    thousand = (control @ heads["imagenet-1k"].weight.T).argmax(axis=1)
    assert whole["value"] == pytest.approx((thousand == control_labels).mean())
