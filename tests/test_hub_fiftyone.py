"""The FiftyOne export: what each sample says, against an independent computation; and FiftyOne's own loader."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folder import scored
from scipy.special import softmax
from tiny_runs import Sets, make_sets
from tiny_runs import run as evaluate_tiny

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.cli import main
from hf_robust.hub.fiftyone import asked_in, export_fiftyone
from hf_robust.labels import imagenet_1k_names
from hf_robust.predictions.parts import source_folder
from hf_robust.predictions.read import read_source
from hf_robust.report import Places

NAMES = ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d")
CLASSES = imagenet_1k_names()


@dataclass(frozen=True)
class World:
    sets: Sets
    run: Path
    zero_shot: Path

    @property
    def places(self) -> Places:
        return Places(self.sets.data, self.sets.validation)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    sets = make_sets(folder / "sets", a=17, o=30)
    run = evaluate_tiny(sets, folder / "runs", "plain", *NAMES)
    return World(sets, run, evaluate_tiny(sets, folder / "zero", "zero_shot", "imagenet-d"))


@pytest.fixture(scope="module")
def exports(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    for name in NAMES:
        export_fiftyone(asked_in(world.run, benchmarks(), name, None), folder / name, places=world.places)
    asked = asked_in(world.zero_shot, benchmarks(), None, None)
    export_fiftyone(asked, folder / "zero-shot", places=world.places)
    return folder


def samples(folder: Path, role: str | None = None) -> list[dict[str, Any]]:
    found = json.loads((folder / "samples.json").read_text())["samples"]
    return [sample for sample in found if role in (None, sample["role"])]


def vector(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    packed = base64.b64decode(value["$binary"]["base64"])
    return np.load(io.BytesIO(zlib.decompress(packed)), allow_pickle=False)


def test_a_labelled_picture_has_logits_confidence_hardness_and_correctness(world: World, exports: Path) -> None:
    outputs = read_source(source_folder(world.run, "imagenet-a", "model")).outputs
    mask = list(benchmark("imagenet-a").mask or ())
    own = {s["image_id"]: s for s in samples(exports / "imagenet-a", "test")}
    assert len(own) == len(outputs) == 17
    for i, key in enumerate(outputs.ids):
        sample, probability = own[key], softmax(outputs.logits[i, mask].astype(np.float64))
        truth = mask.index(outputs.labels[i, 0])
        np.testing.assert_array_equal(vector(sample["prediction"]["logits"]), outputs.logits[i, mask])
        assert sample["ground_truth"]["label"] == CLASSES[outputs.labels[i, 0]]
        assert sample["prediction"]["label"] == CLASSES[mask[probability.argmax()]]
        assert sample["prediction"]["confidence"] == pytest.approx(probability.max(), abs=1e-12)
        assert sample["hardness"] == pytest.approx(1 - probability[truth], abs=1e-12)
        assert sample["correct"] == (probability.argmax() == truth)


@pytest.mark.parametrize(("name", "role", "metric"), [
    ("imagenet-a", "test", "top1_accuracy"), ("imagenet-a", "control", "control_top1_accuracy"),
    ("imagenet-o", "inside", "id_accuracy"), ("spurious-imagenet", "validation", "validation_top1_accuracy"),
    ("imagenet-d", "test", "top1_accuracy"), ("imagenet-d", "control", "control_top1_accuracy"),
])  # fmt: skip
def test_the_share_of_correct_samples_is_the_published_accuracy(
    world: World, exports: Path, name: str, role: str, metric: str
) -> None:
    results = scored(world.run.parent, allow_chance=True)
    (row,) = [r for r in results if (r["benchmark"], r["metric"]) == (name, metric) and r["split"] in (None, "all")]
    own = [sample["correct"] for sample in samples(exports / name, role)]
    assert (sum(own) / len(own), len(own)) == (row["value"], row["n"])


def test_a_picture_outside_the_classes_has_no_label_and_is_hard_when_confident(world: World, exports: Path) -> None:
    outputs = read_source(source_folder(world.run, "imagenet-o", "model")).outputs
    mask = list(benchmark("imagenet-o").mask or ())
    own = samples(exports / "imagenet-o", "outside")
    expected = softmax(outputs.logits[:, mask].astype(np.float64), axis=1).max(axis=1)
    np.testing.assert_allclose([s["hardness"] for s in own], expected, atol=1e-12)
    assert {(s["ground_truth"], s["correct"]) for s in own} == {(None, None)}
    assert {s["confused_with"] for s in own} <= {CLASSES[k] for k in mask}


def test_a_spurious_picture_is_hard_when_its_class_is_probable(world: World, exports: Path) -> None:
    outputs = read_source(source_folder(world.run, "spurious-imagenet", "spurious-image")).outputs
    index = outputs.groups["spurious_class"]
    probability = softmax(outputs.logits.astype(np.float64), axis=1)
    own = samples(exports / "spurious-imagenet", "spurious")
    np.testing.assert_allclose([s["hardness"] for s in own], probability[np.arange(len(index)), index], atol=1e-12)
    assert [s["correct"] for s in own] == [bool(k) for k in outputs.logits.argmax(axis=1) != index]
    assert [s["spurious_class"] for s in own] == [CLASSES[k] for k in index]


def test_a_zero_shot_run_is_exported_over_its_categories(exports: Path) -> None:
    own = samples(exports / "zero-shot", "test")
    metadata = json.loads((exports / "zero-shot" / "metadata.json").read_text())
    assert {vector(s["prediction"]["logits"]).shape for s in own} == {(113,)}
    assert [s["ground_truth"]["label"] for s in own] == [s["category"] for s in own]
    assert len(metadata["default_classes"]) == 113


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_copied_byte_by_byte_under_a_name_of_its_own(exports: Path, name: str) -> None:
    own = samples(exports / name)
    files = [exports / name / s["filepath"] for s in own]
    assert [hashlib.sha256(f.read_bytes()).hexdigest() for f in files] == [s["image_sha256"] for s in own]
    assert len(set(files)) == len(files)
    assert {s["filepath"].split("/")[0] for s in own} == {"data"}


@pytest.mark.parametrize("name", [*NAMES, "zero-shot"])
def test_the_fields_of_the_samples_are_those_that_are_declared(exports: Path, name: str) -> None:
    document = json.loads((exports / name / "metadata.json").read_text())
    declared = {field["db_field"] for field in document["sample_fields"]}
    written = {key for sample in samples(exports / name) for key in sample}
    assert written == declared - {"_dataset_id", "created_at", "last_modified_at"}  # these are set when it is read
    assert len({s["_id"]["$oid"] for s in samples(exports / name)}) == len(samples(exports / name))


def test_exporting_twice_gives_the_same_bytes(world: World, exports: Path, tmp_path: Path) -> None:
    asked = asked_in(world.run, benchmarks(), "imagenet-d", None)
    export_fiftyone(asked, tmp_path / "again", places=world.places)
    for name in ("metadata.json", "samples.json"):
        assert (tmp_path / "again" / name).read_bytes() == (exports / "imagenet-d" / name).read_bytes()


def test_a_picture_with_other_bytes_is_left_out_and_the_command_says_so(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(world.sets.validation, tmp_path / "validation")
    next((tmp_path / "validation").glob("*/ILSVRC2012_val_00000001.JPEG")).write_bytes(b"other")
    places = ["--data", str(world.sets.data), "--imagenet-val", str(tmp_path / "validation")]
    given = [str(world.run), "--benchmark", "imagenet-a", "--out", str(tmp_path / "out"), *places]
    assert main(["export", "fiftyone", *given]) == 1
    said = capsys.readouterr()
    assert "wrote 25 samples of imagenet-a" in said.out  # 17 + 3 classes x 3 - 1
    assert "1 pictures are not on this machine with the bytes that were evaluated: left out" in said.err


def test_a_folder_that_holds_something_is_refused_and_left_alone(world: World, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    asked = asked_in(world.run, benchmarks(), "imagenet-d", None)
    with pytest.raises(FileExistsError, match=r"expected a new or empty folder, got .*, which holds files"):
        export_fiftyone(asked, tmp_path, places=world.places)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_several_benchmarks_are_refused_with_the_choice(world: World) -> None:
    expected = (
        r"expected one benchmark of .*, got 4: choose by --benchmark, --preprocessing; there: imagenet-a \(model\)"
    )
    with pytest.raises(LookupError, match=expected):
        asked_in(world.run, benchmarks(), None, None)
