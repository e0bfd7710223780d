"""What stands beside the numbers: completeness, notes, failures, and the gate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folder import A, Source, peaked, plan_fields, row, scored, small_a, write_run
from scipy.stats import binomtest

from hf_robust.benchmarks import Value, benchmark
from hf_robust.labels import imagenet_1k_names, spurious_classes
from hf_robust.predictions.parts import source_folder
from hf_robust.predictions.read import read_source
from hf_robust.scoring import failed, is_near_chance

O = benchmark("imagenet-o").mask  # noqa: E741
FIELDS = {
    "model", "benchmark", "metric", "split", "ood_score", "spufix", "value", "n", "ci95", "protocol", "preprocessing",
    "run", "plan", "complete", "subset", "headline", "n_failed", "reason", "notes", "details",
}  # fmt: skip


# --- what stands beside the numbers


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
        any("imagenet-a" in note and "20 pictures, official 7,500" in note for note in r["notes"])
        for r in results
        if r["metric"] != "control_top1_accuracy"
    )


def test_fewer_than_50_validation_pictures_in_one_class_are_incomplete_and_named(tmp_path: Path) -> None:
    source = validation(A, 50)
    keep = [i for i, (k,) in enumerate(source.labels) if k != A[3] or i % 50 < 49]
    less = Source("imagenet-val", [source.labels[i] for i in keep], source.outputs[keep])
    write_run(tmp_path, ["imagenet-a"], [small_a(), less])
    results = scored(tmp_path)
    assert row(results, "top1_accuracy")["complete"] is True  # what the control lacks is the control's
    name = imagenet_1k_names()[A[3]]
    control = row(results, "control_top1_accuracy")
    assert control["complete"] is row(results, "accuracy_drop")["complete"] is False
    assert control["notes"] == [
        f"1 of 200 needed ImageNet classes have fewer than 50 imagenet-val pictures, e.g. {A[3]} ({name}): 49"
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
    assert any(note.startswith("1 of 3 parts of imagenet-a have no predictions yet") for note in accuracy["notes"])


def test_a_control_that_was_killed_is_not_run_rather_than_half(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a(), validation(A, lost=[A[0], A[1]])])
    results = scored(tmp_path)
    assert row(results, "control_top1_accuracy")["value"] is None
    (note,) = row(results, "top1_accuracy")["notes"]
    assert note.startswith("control not run: 2 of its 200 classes have no predictions yet")


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
    assert row(results, "accuracy_drop")["reason"] == "control not run"
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
    assert "none of the needed classes has pictures in imagenet-val" in only["reason"]


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
    assert "control_top1_accuracy_1000 is 0.0% of 200 clean pictures, near chance" in only["reason"]
    assert "label order, normalisation or checkpoint" in only["reason"]
    assert "--allow-chance" in only["reason"]


def test_labels_shifted_by_one_are_refused_though_the_class_mask_hides_the_class_that_they_name(tmp_path: Path) -> None:
    outside = next(k for k in range(1000) if k not in A)  # the class that always wins, followed by the right one
    control = validation(A)
    logits = control.outputs + peaked([outside] * len(A), height=9.0)
    write_run(tmp_path, ["imagenet-a"], [small_a(), replace(control, outputs=logits)])
    (only,) = scored(tmp_path)
    assert "control_top1_accuracy_1000 is 0.0% of 200 clean pictures, near chance" in only["reason"]
    assert row(scored(tmp_path, allow_chance=True), "control_top1_accuracy")["value"] == 1.0


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


def test_a_class_filter_on_a_set_cut_by_rows_keeps_the_rows_of_those_classes(tmp_path: Path) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [Source("imagenet-a", [[6], [11], [6]], peaked([6, 11, 6]))])
    read = read_source(source_folder(run, "imagenet-a", "model"), [6])
    assert read.outputs.labels[:, 0].tolist() == [6, 6]
    assert read.absent == ()
