"""SpuFix over stored runs: the file, whom it refuses, corrected rows beside the others, the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from run_folder import Source, write_run
from scipy.special import softmax
from sklearn.metrics import average_precision_score

from hf_robust.benchmarks import benchmarks
from hf_robust.cli import main
from hf_robust.labels import LabelSpace, imagenet_1k
from hf_robust.predictions.read import HeadWeights
from hf_robust.report import write
from hf_robust.scoring import correction_of, score
from hf_robust.spurious.alpha_files import own_alphas
from hf_robust.spurious.neural_pca import fit
from hf_robust.spurious.spufix import SpuFix, fit_class
from hf_robust.spurious.spufix_files import fit_spufix, read_spufix, write_spufix
from hf_robust.spurious.training import open_training

CLASSES = (94, 746, 908)  # of the 100 of Spurious ImageNet
COMPONENTS = {94: (0,), 746: (2, 0), 908: (1,)}
DIM, TRAIN, HELD_OUT, SPURIOUS = 12, 30, 10, 14


class Made:
    """A made-up model and its run: a head, features, and the output of each ImageNet-1k class (`columns`)."""

    def __init__(self, runs: Path, *, seed: int = 0, space: LabelSpace | None = None, **plan: Any) -> None:
        rng = np.random.default_rng(seed)
        self.space = space or imagenet_1k()
        self.columns = self.space.imagenet_1k_columns()
        width = len(self.space)
        self.head = HeadWeights(rng.normal(size=(width, DIM)).astype(np.float32), np.zeros(width, np.float32))
        self.train = self.features(rng, TRAIN)
        self.inside, self.outside = self.features(rng, HELD_OUT, lift=0.6), self.features(rng, SPURIOUS, lift=0.3)
        sources = [
            self.source("imagenet-train", [[k] for k in np.repeat(CLASSES, TRAIN)], self.train),
            self.source("imagenet-val", [[k] for k in np.repeat(CLASSES, HELD_OUT)], self.inside),
            self.source(
                "spurious-imagenet", [[]] * len(self.outside), self.outside, rule="spurious-image",
                groups={"spurious_class": np.repeat(CLASSES, SPURIOUS).tolist(), "component": [0] * len(self.outside)},
            ),
        ]  # fmt: skip
        asked = ["spurious-imagenet", "imagenet-val", "imagenet-train"]
        heads = {"classifier": self.head}
        self.run = write_run(runs, asked, sources, heads=heads, space=self.space, features=True, **plan)

    def features(self, rng: np.random.Generator, each: int, lift: float = 0.5) -> NDArray[np.float32]:
        """Rows that lean towards the head's row of their class."""
        rows = [np.abs(rng.normal(size=(each, DIM))) + lift * self.head.weight[self.columns[k]] for k in CLASSES]
        return np.concatenate(rows).astype(np.float32)

    def source(self, name: str, labels: Any, features: NDArray[np.float32], **more: Any) -> Source:
        return Source(name, [[int(k) for k in row] for row in labels], self.logits(features), features=features, **more)

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(features @ self.head.weight.T + self.head.bias)

    def fitted(self, file: Path) -> Path:
        training = open_training(self.run)
        write_spufix(file, fit_spufix(training, own_alphas(training), COMPONENTS))
        return file

    def by_hand(self) -> SpuFix:
        fixes = {}
        for n, k in enumerate(CLASSES):
            phi, row = self.train[n * TRAIN : (n + 1) * TRAIN], self.head.weight[self.columns[k]]
            fixes[int(self.columns[k])] = fit_class(phi, row, fit(phi, row).alphas(phi)[:, list(COMPONENTS[k])])
        return SpuFix.of(fixes, width=len(self.space))

    def expected(self, strength: float) -> tuple[float, float]:
        """Spurious score and accuracy on the validation rows, by other libraries."""
        fix, scores = self.by_hand(), []
        inside = fix.correct(self.logits(self.inside), self.inside, strength=strength)
        outside = fix.correct(self.logits(self.outside), self.outside, strength=strength)
        for n, k in enumerate(CLASSES):
            halves = inside[n * HELD_OUT : (n + 1) * HELD_OUT], outside[n * SPURIOUS : (n + 1) * SPURIOUS]
            p = softmax(np.concatenate(halves).astype(float), axis=1)[:, self.columns[k]]
            scores.append(average_precision_score([1] * HELD_OUT + [0] * SPURIOUS, p))
        right = inside[:, self.columns].argmax(axis=1) == np.repeat(CLASSES, HELD_OUT)
        return float(np.mean(scores)), float(right.mean())


def rows_of(results: list[dict[str, Any]], strength: float | None) -> dict[tuple[str, str], dict[str, Any]]:
    chosen = [r for r in results if (None if r["spufix"] is None else r["spufix"]["strength"]) == strength]
    return {(r["benchmark"], r["metric"]): r for r in chosen}


def test_what_is_written_is_read_back_and_has_the_same_bytes_again(tmp_path: Path) -> None:
    made = Made(tmp_path / "runs")
    one, two = made.fitted(tmp_path / "one.safetensors"), made.fitted(tmp_path / "two.safetensors")
    assert one.read_bytes() == two.read_bytes()
    fitted, hand = read_spufix(one), made.by_hand()
    for name in ("outputs", "components", "matrix", "offset", "directions"):
        np.testing.assert_allclose(getattr(fitted.fix, name), getattr(hand, name) if name != "components" else
                                   [0, 2, 0, 1], atol=1e-12)  # fmt: skip
    assert fitted.facts["alphas"] == {"model": "toy", "own": True}
    assert fitted.facts["pictures"] == 3 * TRAIN
    assert fitted.facts["classes"][imagenet_1k().wnids[746]]["components"] == [2, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.safetensors", "runs", "two.safetensors"]


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_corrected_values_stand_beside_the_others_and_equal_another_computation(
    tmp_path: Path, strength: float
) -> None:
    made = Made(tmp_path / "runs")
    correction = correction_of(made.fitted(tmp_path / "fix.safetensors"), [strength])
    results = score(tmp_path / "runs", benchmarks(), allow_chance=True, correction=correction, replicates=0)
    plain, corrected = rows_of(results, None), rows_of(results, strength)
    for rows, given in ((plain, 0.0), (corrected, strength)):
        spurious, accuracy = made.expected(given)
        assert rows["spurious-imagenet", "spurious_score"]["value"] == pytest.approx(spurious, abs=1e-9)
        assert rows["imagenet-val", "top1_accuracy"]["value"] == pytest.approx(accuracy, abs=1e-9)
    assert (
        plain["spurious-imagenet", "spurious_score"]["value"]
        != corrected["spurious-imagenet", "spurious_score"]["value"]
    )
    assert set(corrected) == {key for key in plain if key[0] != "imagenet-train"}
    assert not any(row["headline"] for row in corrected.values())
    assert corrected["imagenet-val", "top1_accuracy"]["spufix"] == {
        "sha256": correction.fitted.sha256, "strength": strength
    }  # fmt: skip


def test_strength_0_changes_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path / "runs")
    correction = correction_of(made.fitted(tmp_path / "fix.safetensors"), [0.0])
    results = score(tmp_path / "runs", benchmarks(), allow_chance=True, correction=correction, replicates=0)
    plain, corrected = rows_of(results, None), rows_of(results, 0.0)
    assert all(row["value"] == plain[key]["value"] for key, row in corrected.items())


def test_softmax_is_over_all_corrected_outputs_of_a_larger_head(tmp_path: Path) -> None:
    """The normaliser changes with the corrected logits, in outputs that stand for no ImageNet-1k class as well."""
    others = tuple(f"n9{i:07d}" for i in range(200))
    space = LabelSpace("larger", (*others, *reversed(imagenet_1k().wnids)))
    made = Made(tmp_path / "runs", space=space)
    correction = correction_of(made.fitted(tmp_path / "fix.safetensors"))
    results = score(tmp_path / "runs", benchmarks(), allow_chance=True, correction=correction, replicates=0)
    found = rows_of(results, 1.0)["spurious-imagenet", "spurious_score"]
    assert found["value"] == pytest.approx(made.expected(1.0)[0], abs=1e-9)


def test_a_class_without_an_output_is_left_out_by_name(tmp_path: Path) -> None:
    space = LabelSpace("fewer", tuple(w for i, w in enumerate(imagenet_1k().wnids) if i != 746))
    training = open_training(Made(tmp_path, space=LabelSpace("all", imagenet_1k().wnids)).run)
    columns = space.imagenet_1k_columns()
    object.__setattr__(training, "columns", columns)
    fitted = fit_spufix(training, own_alphas(training), COMPONENTS)
    assert list(fitted.facts["left_out"]) == ["746"]
    assert "expected an output for class 746 (n04019541), got a head" in fitted.facts["left_out"]["746"]
    assert len(fitted.fix.columns) == 2


def test_another_model_is_refused_in_a_row_with_the_reason(tmp_path: Path) -> None:
    made = Made(tmp_path / "runs")
    Made(tmp_path / "runs", seed=1, model="other", weights="1" * 64)
    correction = correction_of(made.fitted(tmp_path / "fix.safetensors"))
    results = score(tmp_path / "runs", benchmarks(), allow_chance=True, correction=correction, replicates=0)
    rows = [r for r in results if r["model"] == "other" and r["spufix"] is not None]
    assert {r["metric"] for r in rows} == {"spurious_score", "top1_accuracy"}
    assert all(r["value"] is None for r in rows)
    expected = "expected the model that the correction was fitted to, toy with weights 000000000000, got other with"
    assert all(expected in r["reason"] for r in rows)


def test_another_head_over_the_same_weights_is_refused(tmp_path: Path) -> None:
    fix = Made(tmp_path / "runs").fitted(tmp_path / "fix.safetensors")
    Made(tmp_path / "others", seed=1)
    results = score(tmp_path / "others", benchmarks(), allow_chance=True, correction=correction_of(fix), replicates=0)
    assert any("toy with head" in str(r["reason"]) for r in results if r["spufix"] is not None)


def test_rows_that_the_correction_was_fitted_on_are_not_scored_with_it(tmp_path: Path) -> None:
    made = Made(tmp_path / "runs")
    training = open_training(made.run / "imagenet-val.model")
    write_spufix(tmp_path / "fix.safetensors", fit_spufix(training, own_alphas(training), COMPONENTS))
    correction = correction_of(tmp_path / "fix.safetensors")
    results = score(tmp_path / "runs", benchmarks(), allow_chance=True, correction=correction, replicates=0)
    row = rows_of(results, 1.0)["imagenet-val", "top1_accuracy"]
    assert row["value"] is None
    assert "expected rows that the correction was not fitted on, got 30 of 30 that it was" in row["reason"]


def test_a_run_without_features_is_told_so(tmp_path: Path) -> None:
    made = Made(tmp_path / "runs")
    fix = made.fitted(tmp_path / "fix.safetensors")
    bare = Source("imagenet-val", [[94]] * 5, np.zeros((5, 1000), np.float32))
    write_run(tmp_path / "bare", ["imagenet-val"], [bare], heads={"classifier": made.head})
    results = score(tmp_path / "bare", benchmarks(), allow_chance=True, correction=correction_of(fix), replicates=0)
    row = rows_of(results, 1.0)["imagenet-val", "top1_accuracy"]
    assert "the run holds no features, which a correction reads: `evaluate` again with --features" in row["reason"]


def test_tables_name_corrected_values_and_keep_the_headline(tmp_path: Path) -> None:
    made = Made(tmp_path / "runs")
    correction = correction_of(made.fitted(tmp_path / "fix.safetensors"), [0.5, 1.0])
    results = score(tmp_path / "runs", benchmarks(), allow_chance=True, correction=correction, replicates=0)
    write(results, tmp_path / "results")
    table = (tmp_path / "results" / "table.md").read_text(encoding="utf-8")
    assert "spurious_score (SpuFix 0.5)" in table
    assert "spurious_score (SpuFix 1)" in table
    assert "SpuFix 0.5" in (tmp_path / "results" / "table.csv").read_text(encoding="utf-8")
    without = score(tmp_path / "runs", benchmarks(), allow_chance=True, replicates=0)
    write(without, tmp_path / "without")
    board = table.split("\n## ")[0]
    assert board == (tmp_path / "without" / "table.md").read_text(encoding="utf-8").split("\n## ")[0]


# --- the commands


def test_fit_and_score_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, listed = Made(tmp_path / "runs"), tmp_path / "list.json"
    listed.write_text(json.dumps({str(k): list(v) for k, v in COMPONENTS.items()}))
    fix = tmp_path / "fix.safetensors"
    told = ["--run", str(tmp_path / "runs"), "--alphas", "own", "--components", str(listed), "--out", str(fix)]
    assert main(["spufix", "fit", *told]) == 0
    assert "toy: 4 directions of 3 classes from 90 pictures" in capsys.readouterr().out
    told = ["--spufix", str(fix), "--spufix-strength", "0.5", "1", "--allow-chance", "--json"]
    assert main(["score", str(tmp_path / "runs"), *told]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    for strength in (0.5, 1.0):
        row = rows_of(results, strength)["spurious-imagenet", "spurious_score"]
        assert row["value"] == pytest.approx(made.expected(strength)[0], abs=1e-9)
    assert main(["score", str(tmp_path / "runs"), "--spufix", str(fix), "--allow-chance"]) == 0
    assert "spurious_score (SpuFix 1)" in capsys.readouterr().out


def test_a_correction_that_fits_no_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fix = Made(tmp_path / "runs").fitted(tmp_path / "fix.safetensors")
    Made(tmp_path / "others", seed=1, model="other", weights="1" * 64)
    assert main(["score", str(tmp_path / "others"), "--spufix", str(fix), "--allow-chance"]) == 1
    assert "expected values with corrected logits, got none: expected the model that the" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "expected a file that `hf-robust spufix fit` wrote, got"),
        ("text", b"no tensors", "got one that cannot be read"),
    ],
)
def test_what_is_no_correction_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, message: str
) -> None:
    Made(tmp_path / "runs")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["score", str(tmp_path / "runs"), "--spufix", str(tmp_path / name), "--allow-chance"]) == 1
    assert message in capsys.readouterr().err


def test_a_file_of_components_is_no_correction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Made(tmp_path / "runs")
    assert main(["neural-pca", "fit", "--run", str(tmp_path / "runs"), "--out", str(tmp_path / "pca")]) == 0
    file = tmp_path / "pca" / "class-0094.safetensors"
    assert main(["score", str(tmp_path / "runs"), "--spufix", str(file), "--allow-chance"]) == 1
    assert "expected a file of the form 'hf_robust SpuFix 1' at" in capsys.readouterr().err


def test_a_strength_out_of_range_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fix = Made(tmp_path / "runs").fitted(tmp_path / "fix.safetensors")
    assert main(["score", str(tmp_path / "runs"), "--spufix", str(fix), "--spufix-strength", "2"]) == 1
    assert "expected a strength of correction from 0 to 1, got 2" in capsys.readouterr().err
