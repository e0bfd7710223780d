"""From predictions on disk to results: every number against a second computation, and what is said beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plain_metrics as plain
import pytest
from run_folder import Source, peaked, plan_fields, write_run
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, top_k_accuracy_score

from hf_robust.benchmarks import Value, benchmark, benchmarks
from hf_robust.labels import imagenet_1k_names, imagenet_d_categories, label_space, spurious_classes
from hf_robust.predictions.read import HeadWeights
from hf_robust.scoring import failed, is_near_chance, score

A, O = benchmark("imagenet-a").mask, benchmark("imagenet-o").mask  # noqa: E741
FIELDS = {
    "model", "benchmark", "metric", "split", "value", "n", "ci95", "protocol", "preprocessing", "run", "plan",
    "complete", "subset", "headline", "n_failed", "reason", "notes", "details",
}  # fmt: skip


def scored(runs: Path, **options: Any) -> list[dict[str, Any]]:
    return score(runs, benchmarks(), **options)


def values(results: list[dict[str, Any]]) -> dict[tuple[str, str, str | None], Any]:
    return {(r["benchmark"], r["metric"], r["split"]): r["value"] for r in results}


def row(results: list[dict[str, Any]], metric: str, split: str | None = None) -> dict[str, Any]:
    found = [r for r in results if r["metric"] == metric and r["split"] == split]
    assert len(found) == 1
    return found[0]


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


def test_intervals_of_proportions_are_wilsons_and_other_numbers_have_none(tmp_path: Path) -> None:
    labels = [A[i % 200] for i in range(120)]
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[k] for k in labels], draw(12, labels, right=0.3))])
    results = scored(tmp_path)
    accuracy = row(results, "top1_accuracy")
    expected = binomtest(round(accuracy["value"] * 120), 120).proportion_ci(method="wilson")
    assert accuracy["ci95"] == pytest.approx([expected.low, expected.high], abs=1e-12)
    assert row(results, "aurra")["ci95"] is None


# --- what stands beside the numbers


def small_a(n: int = 20, **changes: Any) -> Source:
    labels = [[A[i % 200]] for i in range(n)]
    return Source("imagenet-a", labels, peaked([k for (k,) in labels]), **changes)


def validation(classes: Sequence[int], each: int = 1, *, right: bool = True, **changes: Any) -> Source:
    labels = [k for k in classes for _ in range(each)]
    wrong = dict(zip(classes, [*classes[1:], classes[0]], strict=True))
    chosen = labels if right else [wrong[k] for k in labels]
    return Source("imagenet-val", [[k] for k in labels], peaked(chosen), **changes)


def small_o(n: int = 20, **changes: Any) -> Source:
    return Source(
        "imagenet-o", [[]] * n, np.zeros((n, 1000)), {"confused_with": [i % 200 for i in range(n)]}, **changes
    )


def test_every_result_has_the_fields_of_the_contract_and_is_plain_json(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a", "imagenet-o"], [small_a(), validation(sorted({*A, *O})), small_o()])
    write_run(tmp_path, ["imagenet-a"], [], model="broken", failures={"imagenet-a": "no such size"})
    results = scored(tmp_path)
    assert all(set(r) == FIELDS for r in results)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    good = [r for r in results if r["metric"]]
    assert {r["benchmark"] for r in good} == {"imagenet-a", "imagenet-o"}
    assert sum(r["headline"] for r in good) == 2
    assert all(set(r["plan"]) <= plan_fields() for r in good)
    for r in good:
        assert {"class_mask", "preprocessing", "preprocessing_mode", "rules", "rows", "label_space"} <= set(
            r["protocol"]
        )


def test_a_failed_model_and_a_failed_benchmark_stay_as_rows_with_their_reason(tmp_path: Path) -> None:
    """USER_REPORTS 31."""
    write_run(tmp_path, ["imagenet-a", "imagenet-d"], [small_a()], failures={"imagenet-d": "not built here"})
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "x.json").write_text('{"model": "timm/nothing", "reason": "no such architecture"}')
    lost = failed(scored(tmp_path))
    assert [(r["model"], r["benchmark"], r["reason"]) for r in lost] == [
        ("timm/nothing", None, "no such architecture"),
        ("toy", "imagenet-d", "not built here"),
    ]
    assert all((r["value"], r["n"], r["complete"]) == (None, 0, False) for r in lost)


def test_the_official_whole_is_complete_without_a_note(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a(200), validation(A, 50)])
    results = scored(tmp_path)
    assert {(r["complete"], r["subset"], tuple(r["notes"]), r["n_failed"]) for r in results} == {(True, False, (), 0)}
    assert row(results, "control_top1_accuracy")["n"] == 200 * 50


def test_an_incomplete_build_marks_every_row_and_says_what_differs(tmp_path: Path) -> None:
    """USER_REPORTS 4."""
    write_run(tmp_path, ["imagenet-a"], [small_a(complete=False, differences=("20 pictures, official 7,500",))])
    results = scored(tmp_path)
    assert not any(r["complete"] for r in results)
    assert all(
        any("imagenet-a" in note and "20 pictures, official 7,500" in note for note in r["notes"]) for r in results
    )


def test_fewer_than_50_validation_pictures_in_one_class_are_incomplete_and_named(tmp_path: Path) -> None:
    source = validation(A, 50)
    keep = [i for i, (k,) in enumerate(source.labels) if k != A[3] or i % 50 < 49]
    less = Source("imagenet-val", [source.labels[i] for i in keep], source.outputs[keep])
    write_run(tmp_path, ["imagenet-a"], [small_a(), less])
    accuracy = row(scored(tmp_path), "top1_accuracy")
    name = imagenet_1k_names()[A[3]]
    assert accuracy["complete"] is False
    assert accuracy["notes"] == [
        f"1 of 200 needed classes have fewer than 50 imagenet-val pictures, e.g. {A[3]} ({name}): 49"
    ]


def test_validation_pictures_of_other_classes_take_no_part(tmp_path: Path) -> None:
    other = sorted(set(range(1000)) - {*A})[:5]
    write_run(tmp_path, ["imagenet-a"], [small_a(), validation([*A, *other])])
    assert row(scored(tmp_path), "control_top1_accuracy")["n"] == 200


def test_a_run_that_was_killed_is_scored_as_far_as_it_got(tmp_path: Path) -> None:
    """USER_REPORTS 22: 250 rows are parts of 100, 100, 50; the middle one is missing."""
    write_run(tmp_path, ["imagenet-a"], [small_a(250, lost=[1])])
    accuracy = row(scored(tmp_path), "top1_accuracy")
    assert (accuracy["n"], accuracy["complete"]) == (100 + 50, False)
    assert "1 of 3 parts of imagenet-a have no predictions yet" in accuracy["notes"]


def test_a_control_that_was_killed_is_not_run_rather_than_half(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a(), validation(A, lost=[A[0], A[1]])])
    results = scored(tmp_path)
    assert row(results, "control_top1_accuracy")["value"] is None
    assert "control not run: 2 of its 200 classes have no predictions yet" in row(results, "top1_accuracy")["notes"]


def test_a_limit_marks_every_row_as_subset_with_size_and_seed(tmp_path: Path) -> None:
    """USER_REPORTS 33."""
    write_run(tmp_path, ["imagenet-a"], [small_a()], limit=20, seed=7)
    results = scored(tmp_path)
    assert {r["subset"] for r in results} == {True}
    assert {(r["plan"]["limit"], r["plan"]["seed"]) for r in results} == {(20, 7)}


def test_pictures_that_failed_are_counted_named_and_out_of_the_denominator(tmp_path: Path) -> None:
    """USER_REPORTS 24."""
    broken = {3: "OSError: image file is truncated", 9: "no picture"}
    write_run(tmp_path, ["imagenet-a"], [small_a(20, errors=broken), validation(A)])
    accuracy = row(scored(tmp_path), "top1_accuracy")
    assert (accuracy["n"], accuracy["n_failed"], accuracy["value"], accuracy["complete"]) == (18, 2, 1.0, False)
    assert any(
        note
        == "2 pictures of imagenet-a could not be read, the first 'imagenet-a/3.png' (OSError: image file is truncated)"
        for note in accuracy["notes"]
    )


def test_a_part_in_which_every_picture_failed_changes_nothing_else(tmp_path: Path) -> None:
    broken = dict.fromkeys(range(100, 200), "no picture")
    write_run(tmp_path, ["imagenet-a"], [small_a(250, errors=broken)])
    accuracy = row(scored(tmp_path), "top1_accuracy")
    assert (accuracy["n"], accuracy["n_failed"], accuracy["value"]) == (150, 100, 1.0)


def test_without_validation_a_is_scored_and_its_control_is_not_run(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a()])
    results = scored(tmp_path)
    assert failed(results) == []
    assert row(results, "top1_accuracy")["value"] == 1.0
    assert row(results, "accuracy_drop")["value"] is None
    assert "--imagenet-val" in row(results, "accuracy_drop")["reason"]
    assert row(results, "top1_accuracy")["notes"] == ["control not run: no imagenet-val pictures were given"]


@pytest.mark.parametrize("name", ["imagenet-o", "spurious-imagenet"])
def test_without_validation_o_and_spurious_are_failures_with_that_reason(tmp_path: Path, name: str) -> None:
    pictures = {
        "imagenet-o": small_o(),
        "spurious-imagenet": Source(
            "spurious-imagenet",
            [[]],
            np.zeros((1, 1000)),
            {"spurious_class": [0], "component": [1]},
            rule="spurious-image",
        ),
    }
    write_run(tmp_path, [name], [pictures[name]])
    (only,) = scored(tmp_path)
    assert (only["metric"], only["benchmark"]) == (None, name)
    assert "no predictions of imagenet-val under the rule 'model'" in only["reason"]


def test_validation_without_one_of_os_classes_is_a_failure_and_not_a_row_of_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-o"], [small_o(), validation(sorted(set(range(1000)) - {*O})[:3])])
    (only,) = scored(tmp_path)
    assert only["metric"] is None
    assert "no predictions of imagenet-val" in only["reason"]
    assert "0 pictures of its classes were given" in only["reason"]


def test_a_source_of_which_nothing_could_be_read_is_a_failure_that_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a(3, errors=dict.fromkeys(range(3), "no picture"))])
    (only,) = scored(tmp_path)
    assert only["reason"].endswith("3 pictures of its classes were given and none could be read")


def test_predictions_under_the_other_rule_are_not_taken(tmp_path: Path) -> None:
    """A run with --preprocessing published lies beside one with the model's own and is never mixed in."""
    write_run(tmp_path, ["imagenet-a"], [small_a(), validation(A, rule="paper")])
    assert row(scored(tmp_path), "control_top1_accuracy")["value"] is None


def test_both_modes_of_one_run_are_rows_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a()])
    wrong = Source("imagenet-a", small_a().labels, peaked([0] * 20), rule="paper")
    write_run(tmp_path, ["imagenet-a"], [wrong], mode="published")
    found = {r["preprocessing"]: r["value"] for r in scored(tmp_path) if r["metric"] == "top1_accuracy"}
    assert found["model"] == 1.0
    assert found["published"] < 0.1


def test_a_label_outside_the_mask_fails_the_benchmark_with_the_id(tmp_path: Path) -> None:
    stranger = next(k for k in range(1000) if k not in A)
    write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[A[0]], [stranger]], peaked([0, 0]))])
    (only,) = scored(tmp_path)
    assert only["reason"].startswith("1 of 2 labels are outside the 200 classes, the first at id 'imagenet-a/1.png'")


def test_half_of_a_spurious_class_marks_the_row_incomplete_and_names_the_class(tmp_path: Path) -> None:
    classes = [c.index for c in spurious_classes()]
    shown = classes[:99]  # the last class has no spurious pictures
    write_run(
        tmp_path, ["spurious-imagenet"],
        [
            validation(classes, 50),
            Source(
                "spurious-imagenet", [[]] * 99, np.zeros((99, 1000)), {"spurious_class": shown, "component": [1] * 99},
                rule="spurious-image",
            ),
        ],
    )  # fmt: skip
    main = row(scored(tmp_path), "spurious_score")
    assert main["complete"] is False
    assert main["details"]["classes"] == 99
    assert any(f"{classes[99]} {imagenet_1k_names()[classes[99]]}" in note for note in main["notes"])


# --- the gate


def near_chance(runs: Path) -> None:
    write_run(runs, ["imagenet-a"], [small_a(), validation(A, right=False)])  # 0 of 200: upper bound 1.9 %


def test_a_control_near_chance_is_one_failure_with_the_likely_cause(tmp_path: Path) -> None:
    """USER_REPORTS 3, 13."""
    near_chance(tmp_path)
    (only,) = scored(tmp_path)
    assert only["metric"] is None
    assert "control_top1_accuracy is 0.0% of 200 clean pictures, near chance" in only["reason"]
    assert "label order, normalisation or checkpoint" in only["reason"]
    assert "--allow-chance" in only["reason"]


def test_allow_chance_reports_the_numbers_all_the_same(tmp_path: Path) -> None:
    near_chance(tmp_path)
    results = scored(tmp_path, allow_chance=True)
    assert failed(results) == []
    assert row(results, "control_top1_accuracy")["value"] == 0.0


def test_a_bad_model_is_refused_on_each_benchmark_with_clean_pictures(tmp_path: Path) -> None:
    everything = sorted({*A, *O})
    write_run(
        tmp_path, ["imagenet-a", "imagenet-o", "imagenet-val"],
        [small_a(), small_o(), validation(everything, right=False)],
    )  # fmt: skip
    assert [(r["benchmark"], r["metric"]) for r in scored(tmp_path)] == [
        ("imagenet-a", None), ("imagenet-o", None), ("imagenet-val", None),
    ]  # fmt: skip


@pytest.mark.parametrize("n", [1, 20, 72, 73, 200])
def test_the_gate_is_the_wilson_bound_so_that_few_pictures_never_refuse(n: int) -> None:
    """0 of n: the upper bound is z2 / (n + z2) with z2 = 3.84, below 0.05 from n = 73 on."""
    upper = 1.959963984540054**2 / (n + 1.959963984540054**2)
    assert is_near_chance(Value(0.0, n, successes=0)) == (upper < 0.05) == (n >= 73)


@pytest.mark.parametrize(("right", "refused"), [(0, True), (3, True), (4, False), (9, False), (200, False)])
def test_the_gate_at_200_pictures(right: int, refused: bool) -> None:
    upper = binomtest(right, 200).proportion_ci(method="wilson").high
    assert is_near_chance(Value(right / 200, 200, successes=right)) == (upper < 0.05)
    assert (upper < 0.05) == refused


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
        FileNotFoundError, match="expected a folder that `hf-robust evaluate --out` wrote, got .*nowhere"
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
