"""`evaluate --spufix`: a run of its own whose logits are the corrected ones of the plain run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hf_robust.cli import main
from hf_robust.predictions.plan import read_json
from hf_robust.predictions.read import read_source
from hf_robust.spurious.spufix_files import read_spufix

MODEL = "timm-random/test_resnet"


@pytest.fixture
def fix(tmp_path: Path, picture: Callable[..., Image.Image]) -> Path:
    """A plain run below runs/ and a correction of two classes for its model."""
    for place, first in (("train", 0), ("val", 100)):
        for n, wnid in enumerate(("n01491361", "n01514668")):
            (tmp_path / place / wnid).mkdir(parents=True)
            for seed in range(5):
                picture(first + 10 * n + seed).save(tmp_path / place / wnid / f"{place}_{10 * n + seed}.png")
    (tmp_path / "list.json").write_text('{"3": [0, 1], "7": [0]}')
    told = ["--imagenet-train", str(tmp_path / "train"), "--features", *evaluated(tmp_path, "runs")]
    assert main(["evaluate", "--benchmark", "imagenet-val", "imagenet-train", *told]) == 0
    out = tmp_path / "fix.safetensors"
    told = ["--run", str(tmp_path / "runs"), "--alphas", "own", "--components", str(tmp_path / "list.json")]
    assert main(["spufix", "fit", *told, "--out", str(out)]) == 0
    return out


def evaluated(folder: Path, runs: str, model: str = MODEL) -> list[str]:
    chosen = ["--model", model, "--imagenet-val", str(folder / "val"), "--out", str(folder / runs)]
    return [*chosen, "--allow-chance", "--processes", "1"]


@pytest.mark.parametrize("strength", [1.0, 0.25])
def test_the_run_of_a_corrected_model_holds_the_corrected_logits(tmp_path: Path, fix: Path, strength: float) -> None:
    told = ["--spufix", str(fix), "--spufix-strength", str(strength), "--features"]
    assert main(["evaluate", "--benchmark", "imagenet-val", *evaluated(tmp_path, "runs"), *told]) == 0
    runs = {read_json(path)["spufix"]: path.parent for path in (tmp_path / "runs").glob("*/plan.json")}
    fitted = read_spufix(fix)
    assert set(runs) == {None, fitted.sha256}
    plain, corrected = (
        read_source(runs[key] / "imagenet-val.model", extra=("features",)).outputs for key in (None, fitted.sha256)
    )
    np.testing.assert_array_equal(corrected.extra["features"], plain.extra["features"])
    expected = fitted.fix.correct(plain.logits, plain.extra["features"], strength=strength)
    assert (expected != plain.logits).any()
    np.testing.assert_allclose(corrected.logits, expected, atol=1e-5)
    assert read_json(runs[fitted.sha256] / "plan.json")["spufix_strength"] == strength
    assert read_json(runs[fitted.sha256] / "plan.json")["weights"] == read_json(runs[None] / "plan.json")["weights"]
    rows = json.loads((tmp_path / "runs" / "results" / "results.json").read_text())["results"]
    assert any("SpuFix of 2 classes" in note for r in rows for note in r["notes"])


def test_another_model_is_a_row_with_the_reason(tmp_path: Path, fix: Path) -> None:
    told = evaluated(tmp_path, "other", "timm-random/test_efficientnet")
    assert main(["evaluate", "--benchmark", "imagenet-val", *told, "--spufix", str(fix)]) == 1
    rows = json.loads((tmp_path / "other" / "results" / "results.json").read_text())["results"]
    assert "expected the model that the correction was fitted to, timm-random/test_resnet" in rows[0]["reason"]


def test_a_missing_file_is_named(tmp_path: Path, fix: Path, capsys: Any) -> None:
    told = [*evaluated(tmp_path, "runs"), "--spufix", str(tmp_path / "none")]
    assert main(["evaluate", "--benchmark", "imagenet-val", *told]) == 1
    assert "expected a file that `hf-robust spufix fit` wrote, got" in capsys.readouterr().err
