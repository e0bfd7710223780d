"""What a hostile user or a broken disk does to stored results: a clear sentence, never a number without its mark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folder import Source, peaked, scored, small_a, write_run
from safetensors.numpy import save_file

from hf_robust.benchmarks import benchmarks
from hf_robust.builders.cache import RECORD, read_build
from hf_robust.builders.errors import BuildError
from hf_robust.cli import main
from hf_robust.models.base import ModelError
from hf_robust.models.checkpoints import read_tensor
from hf_robust.predictions.plan import DamagedError, SourcePlan
from hf_robust.predictions.read import HeadWeights, read_head, read_label_space, write_heads
from hf_robust.report.leaderboard import unit
from hf_robust.scoring import options_of
from hf_robust.scoring.compare import compare
from hf_robust.spurious.alpha_files import read_facts, write_tensors
from hf_robust.spurious.components import class_index, read_components
from hf_robust.spurious.spufix_files import read_spufix

TRUTH = [i % 10 for i in range(40)]


def val_run(runs: Path, chosen: list[int] | None = None, **plan: Any) -> Path:
    source = Source("imagenet-val", [[k] for k in TRUTH], peaked(TRUTH if chosen is None else chosen))
    return write_run(runs, ["imagenet-val"], [source], **plan)


def change(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


# --- records of another kind


@pytest.mark.parametrize("value", [None, 5, "text", [None]])
def test_differences_that_are_no_texts_are_a_damaged_record(tmp_path: Path, value: Any) -> None:
    folder = write_run(tmp_path, ["imagenet-a"], [small_a()]) / "imagenet-a.model"
    change(folder / "source.json", differences=value)
    with pytest.raises(DamagedError, match="got differences that are no list of texts"):
        SourcePlan.read(folder)


@pytest.mark.parametrize("entries", [{"wnids": None}, {"wnids": 5}, {"wnids": [None]}, {"name": []}])
def test_classes_of_another_kind_are_a_damaged_record(tmp_path: Path, entries: dict[str, Any]) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [small_a()])
    change(run / "label_space.json", **entries)
    with pytest.raises(DamagedError, match="expected a name and WordNet ids"):
        read_label_space(run)


@pytest.mark.parametrize(
    "entries", [{"benchmark": []}, {"mode": "other"}, {"mode": None}, {"notes": 5}, {"notes": "x"}, {"failure": 3}]
)
def test_a_request_of_another_kind_is_a_failed_row_and_no_result(tmp_path: Path, entries: dict[str, Any]) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [small_a()])
    change(run / "requests" / "imagenet-a.model.json", **entries)
    (row,) = scored(tmp_path)
    assert row["value"] is None
    assert "remove that folder and run `evaluate` again" in row["reason"]


# --- heads and corrections


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def without_bias(path: Path) -> None:
    save_file({"weight": np.zeros((3, 2), np.float32)}, path)


def other_shape(path: Path) -> None:
    save_file({"weight": np.zeros((3, 2), np.float32), "bias": np.zeros(2, np.float32)}, path)


def not_finite(path: Path) -> None:
    save_file({"weight": np.full((3, 2), np.nan, np.float32), "bias": np.zeros(3, np.float32)}, path)


@pytest.mark.parametrize("damage", [cut_short, without_bias, other_shape, not_finite])
def test_a_head_that_is_not_what_was_written_is_a_damaged_record(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write_heads(tmp_path, {"classifier": HeadWeights(np.ones((3, 2), np.float32), np.ones(3, np.float32))})
    damage(tmp_path / "heads" / "classifier.safetensors")
    with pytest.raises(DamagedError, match="expected the linear head that `evaluate` wrote"):
        read_head(tmp_path, "classifier")


FORM = "hf_robust SpuFix 1"
FACTS = {"form": FORM, "width": 4, "model": "toy", "weights": "0" * 64, "head": "1" * 64}
ARRAYS = {
    "outputs": np.array([3]),
    "components": np.array([0]),
    "matrix": np.ones((1, 2)),
    "offset": np.zeros(1),
    "directions": np.ones((1, 2)),
    "fit_ids": np.zeros(1, np.uint64),
    "fit_images": np.zeros(1, np.uint64),
}


def test_a_whole_correction_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "fix.safetensors", ARRAYS, FACTS)
    assert read_spufix(tmp_path / "fix.safetensors").fix.width == 4


@pytest.mark.parametrize(
    ("arrays", "facts", "what"),
    [
        ({"outputs": np.array([4])}, {}, "outputs"),
        ({"outputs": np.array([-1])}, {}, "outputs"),
        ({"matrix": np.full((1, 2), np.nan)}, {}, "matrix"),
        ({"directions": np.ones((1, 3))}, {}, "matrix and directions"),
        ({"offset": np.zeros(2)}, {}, "offset"),
        ({}, {"width": "x"}, "outputs"),
        ({}, {"weights": None}, "weights"),
        ({}, {"head": 5}, "head"),
    ],
)
def test_an_edited_correction_is_refused(
    tmp_path: Path, arrays: dict[str, Any], facts: dict[str, Any], what: str
) -> None:
    write_tensors(tmp_path / "fix.safetensors", {**ARRAYS, **arrays}, {**FACTS, **facts})
    with pytest.raises(ValueError, match=f"expected a whole correction in .*, got {what} that do not fit"):
        read_spufix(tmp_path / "fix.safetensors")


def test_a_correction_without_one_of_its_arrays_is_refused(tmp_path: Path) -> None:
    arrays = {name: array for name, array in ARRAYS.items() if name != "matrix"}
    write_tensors(tmp_path / "fix.safetensors", arrays, FACTS)
    with pytest.raises(ValueError, match=r"expected every array of a correction in .* matrix"):
        read_spufix(tmp_path / "fix.safetensors")


def test_a_header_that_is_no_object_is_another_form(tmp_path: Path) -> None:
    save_file({"x": np.zeros(1)}, tmp_path / "x.safetensors", metadata={"hf_robust": "[]"})
    with pytest.raises(ValueError, match=r"expected a file of the form .* got 'another'"):
        read_facts(tmp_path / "x.safetensors", FORM)


@pytest.mark.parametrize("content", [b"junk", b"", b"\x80\x04", bytes(50), b"PK\x03\x04"])
def test_bytes_that_are_no_tensor_are_refused_with_one_sentence(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("torch")
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ModelError, match="not a"):
        read_tensor(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["²", "٣", "-1", "1000", "", "1.0"])
def test_a_class_is_named_by_plain_digits_only(name: str) -> None:
    with pytest.raises(ValueError, match="expected an ImageNet-1k index or WordNet id"):
        class_index(name)


def test_a_folder_is_no_component_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a file with a component list, got the folder"):
        read_components(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", '{"name": "x"', '{"name": "x"}'])
def test_a_damaged_record_of_a_build_says_which_folder_to_remove(tmp_path: Path, content: str) -> None:
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(BuildError, match=r"expected the record of a build in .*, got a damaged one: remove "):
        read_build(tmp_path)


# --- commands


def test_a_metric_of_a_failed_benchmark_is_not_called_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(
        tmp_path, ["imagenet-a", "imagenet-o"], [small_a()], failures={"imagenet-o": "no pictures, whatever came"}
    )
    code, out, err = said(capsys, "score", str(tmp_path), "--metric", "top1_accuracy", "aupr")
    assert code == 1
    assert "no pictures, whatever came" in out
    assert "unknown" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spufix-strength", "0.5"], "expected --spufix FILE with --spufix-strength"),
        (["--fit-on", "nowhere"], "expected --ood-score with --fit-on"),
        (["--fit-on", "nowhere", "--ood-score", "energy"], "expected a folder of runs for --fit-on, got 'nowhere'"),
        (["--conventions", "--metric", "aupr"], "expected --conventions without --metric"),
        (["--conventions", "--benchmark", "imagenet-o"], "expected a benchmark with results"),
        (["--ood-score", "energy"], "expected a benchmark of detection for --ood-score"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a()])
    code, _, err = said(capsys, "score", str(tmp_path), *options)
    assert code == 1
    assert message in err


def test_conventions_name_what_was_left_out_and_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, ["imagenet-a", "imagenet-o"], [small_a()], failures={"imagenet-o": "no pictures"})
    code, out, err = said(capsys, "score", str(tmp_path), "--conventions")
    assert code == 1
    assert "left out: toy on imagenet-o: no pictures" in err
    assert max(map(len, out.splitlines())) <= 80


def test_conventions_of_a_subset_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a()], limit=20)
    _, out, _ = said(capsys, "score", str(tmp_path), "--conventions")
    assert "subset" in out
    _, out, _ = said(capsys, "score", str(tmp_path), "--conventions", "--json")
    assert {row["subset"] for row in json.loads(out)} == {True}


def test_the_folder_of_one_run_is_answered_with_the_folder_above(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [small_a()])
    code, _, err = said(capsys, "score", str(run))
    assert code == 1
    assert f"itself: give {tmp_path}" in err


def test_comparing_subsets_says_that_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (val_run(tmp_path / name, weights=name * 64, limit=40) for name in "12")
    code, out, _ = said(capsys, "compare", str(one), str(two))
    assert code == 0
    assert "- subset: --limit 40" in out
    assert "1.000†" in out
    assert max(map(len, out.splitlines())) <= 80


def test_comparing_a_model_near_chance_says_which(tmp_path: Path) -> None:
    one = val_run(tmp_path / "a", weights="1" * 64)
    two = val_run(tmp_path / "b", [999] * 40, weights="2" * 64)
    notes = {note for row in compare(one, two, benchmarks(), replicates=20) for note in row.notes}
    # 0 of 40 right: the Wilson upper bound is 1.96^2 / (40 + 1.96^2) = 0.088, above 0.05: too few to say
    assert not any("near chance" in note for note in notes)
    labels = [[i % 10] for i in range(100)]
    runs = [
        write_run(tmp_path / name, ["imagenet-val"], [Source("imagenet-val", labels, peaked([column] * 100))])
        for name, column in (("c", 0), ("d", 999))
    ]
    # 10 of 100 right, and 0 of 100 with the upper bound 1.96^2 / (100 + 1.96^2) = 0.037
    notes = {note for row in compare(*runs, benchmarks(), replicates=20) for note in row.notes}
    assert [note for note in notes if "near chance" in note] == [
        "B is near chance on clean pictures (0.0% of 100): its numbers say nothing"
    ]


def test_runs_under_other_preprocessing_are_told_apart(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", ["imagenet-a"], [small_a()])
    two = write_run(tmp_path / "b", ["imagenet-a"], [small_a(rule="paper")], mode="published")
    with pytest.raises(LookupError, match=r"imagenet-a \(model\) in .* and imagenet-a \(published\) in "):
        compare(one, two, benchmarks())


@pytest.mark.parametrize("what", ["nope", ""])
def test_verify_of_nothing_lists_the_data_sets(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "verify", what)
    assert code == 1
    assert f"expected a data set or a folder, got {what!r}; known data sets: imagenet-a" in err


def test_predictions_that_are_not_there_are_refused_before_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = said(capsys, "publish", "predictions", str(tmp_path), "--to", "me/x", "--dry-run")
    assert code == 1
    assert "expected runs that `hf-robust evaluate --out` wrote" in err


def test_results_link_only_to_a_repo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--to", "me/x", "--predictions", "nonsense", "--dry-run"]
    code, _, err = said(capsys, "publish", "results", str(tmp_path), *options)
    assert code == 1
    assert "expected a repo as OWNER/NAME, got 'nonsense'" in err


def test_a_place_that_cannot_be_written_is_named_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a()])
    (tmp_path / "results").write_text("a file")
    code, _, err = said(capsys, "score", str(tmp_path))
    assert code == 1
    assert f"expected a place to read or write at {str(tmp_path / 'results')!r}, got: File exists" in err


def test_a_corrected_difference_has_the_unit_of_the_plain_one() -> None:
    assert unit("accuracy_drop (SpuFix 1)") == unit("accuracy_drop") == "% points"


def test_no_name_of_a_list_is_broken_in_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = said(capsys, "list", "metrics")
    assert "rms_calibration_error_released_code " in out
    assert "never counted." in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_a_score_is_not_fitted_on_the_corrected_logits_of_a_model_that_is_scored_uncorrected(tmp_path: Path) -> None:
    mask = list(benchmarks()["imagenet-o"].mask or ())
    labels = [[k] for k in mask for _ in range(2)]
    noise = np.random.default_rng(0).normal(size=(len(labels), 1000)).astype(np.float32)
    outside = Source("imagenet-o", [[]] * 20, noise[:20] / 2, {"confused_with": list(range(20))})
    write_run(tmp_path / "plain", ["imagenet-o"], [Source("imagenet-val", labels, noise), outside])
    write_run(tmp_path / "fix", [], [Source("imagenet-train", labels, noise)], spufix="5" * 64, spufix_strength=1.0)
    rows = scored(tmp_path / "plain", allow_chance=True, ood=options_of(["kl_matching"], tmp_path / "fix"))
    (row,) = (r for r in rows if r["ood_score"] == "kl_matching" and r["metric"] == "aupr")
    assert row["value"] is None
    assert "expected predictions of imagenet-train by the same model" in row["reason"]


def test_an_empty_name_is_not_the_current_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a()])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["score", ""])
    assert "expected the name of a folder, got an empty one" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
