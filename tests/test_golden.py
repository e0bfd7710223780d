"""EfficientNet-Lite0 on 400 real photos against values that were computed elsewhere; needs ../shared."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folder import Source, write_run

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.scoring import score

A, O = set(benchmark("imagenet-a").mask), set(benchmark("imagenet-o").mask)  # noqa: E741
BENCHMARKS = ["imagenet-a", "imagenet-o", "imagenet-val"]


@dataclass(frozen=True)
class Photos:
    """The photos with their labels, and the golden values of the classifier on them."""

    folder: Path
    names: tuple[str, ...]
    labels: tuple[int, ...]
    wnids: tuple[str, ...]
    golden: dict[str, Any]


@pytest.fixture(scope="module")
def photos(shared: Path) -> Photos:
    folder = shared / "data" / "nips2017"
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    golden = json.loads((folder / "golden_efficientnet_lite0.json").read_text(encoding="utf-8"))
    return Photos(
        folder,
        tuple(r["file_name"] for r in rows),
        tuple(int(r["imagenet_1k_index"]) for r in rows),
        tuple(r["wnid"] for r in rows),
        golden["values"],
    )


def check_golden(results: list[dict[str, Any]], golden: dict[str, Any]) -> None:
    """Every golden value to 1e-4, and the counts that it stands on."""
    found = {(r["benchmark"], r["metric"]): (r["value"], r["n"]) for r in results}
    a, o = golden["imagenet_a_classes"], golden["imagenet_o_protocol_standin"]
    n, n_both = golden["n"], o["n_in"] + o["n_out"]
    expected = {
        ("imagenet-val", "top1_accuracy"): (golden["top1"], n),
        ("imagenet-val", "top5_accuracy"): (golden["top5"], n),
        ("imagenet-val", "rms_calibration_error"): (golden["rms_calibration_error_all_bins"], n),
        ("imagenet-val", "rms_calibration_error_released_code"): (golden["rms_calibration_error_released_code"], n),
        ("imagenet-val", "aurra"): (golden["aurra"], n),
        ("imagenet-a", "top1_accuracy"): (a["top1_over_200_classes"], a["n"]),
        ("imagenet-a", "top1_accuracy_1000"): (a["top1_over_1000_classes"], a["n"]),
        ("imagenet-a", "control_top1_accuracy"): (a["top1_over_200_classes"], a["n"]),
        ("imagenet-a", "accuracy_drop"): (0.0, a["n"]),
        ("imagenet-o", "aupr"): (o["aupr"], n_both),
        ("imagenet-o", "auroc"): (o["auroc"], n_both),
        ("imagenet-o", "fpr95"): (o["fpr95"], n_both),
    }
    assert (a["n"], o["n_in"], o["n_out"]) == (117, 74, 326)
    for key, (value, count) in expected.items():
        assert found[key] == (pytest.approx(value, abs=1e-4), count), key


def test_stored_logits_of_the_photos_score_to_the_golden_values(photos: Photos, tmp_path: Path) -> None:
    """Scoring alone: the logits were computed elsewhere; A is its classes' photos, O's outside is all but O's."""
    with np.load(photos.folder / "efficientnet_lite0_logits.npz") as file:
        logits, names = file["logits"], file["file_name"]
    assert list(names) == list(photos.names)
    labels = photos.labels
    in_a = [i for i, k in enumerate(labels) if k in A]
    outside = [i for i, k in enumerate(labels) if k not in O]
    write_run(
        tmp_path, BENCHMARKS,
        [
            Source("imagenet-val", [[k] for k in labels], logits),
            Source("imagenet-a", [[labels[i]] for i in in_a], logits[in_a]),
            Source("imagenet-o", [[]] * len(outside), logits[outside], {"confused_with": [0] * len(outside)}),
        ],
    )  # fmt: skip
    check_golden(score(tmp_path, benchmarks()), photos.golden)


def command(*arguments: object) -> None:
    words = [sys.executable, "-m", "hf_robust", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr


def copy(target: Path, source: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


@pytest.mark.slow
def test_the_commands_on_the_photos_give_the_golden_values(photos: Photos, tmp_path: Path) -> None:
    """Photos in the three layouts, built, evaluated in one command, A's control on the same 117 photos."""
    stranger = "n02786058"  # a folder of ImageNet-O names what a picture is confused with, not what it shows
    for name, label, wnid in zip(photos.names, photos.labels, photos.wnids, strict=True):
        content, stem = photos.folder / "images" / name, Path(name).stem
        copy(tmp_path / "val" / wnid / name, content)
        if label in A:
            copy(tmp_path / "imagenet-a" / wnid / f"0.01_{stem} _ box turtle_0.5.jpg", content)
        if label not in O:
            copy(tmp_path / "imagenet-o" / stranger / f"{stem}_0.99.JPEG", content)
    for name in ("imagenet-a", "imagenet-o"):
        command("build", name, "--source", tmp_path / name, "--allow-incomplete", "--out", tmp_path / "data")
    command(
        "evaluate", "--model", "offline/efficientnet_lite0", "--benchmark", *BENCHMARKS, "--data", tmp_path / "data",
        "--imagenet-val", tmp_path / "val", "--out", tmp_path / "runs",
    )  # fmt: skip
    document = json.loads((tmp_path / "runs" / "results" / "results.json").read_text(encoding="utf-8"))
    check_golden(document["results"], photos.golden)
