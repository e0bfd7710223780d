"""SpuFix inside models of timm and transformers: same state dict, one picture, half precision, a folder that loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_robust.cli import main
from hf_robust.models import ImageClassifier, ModelError, load_model, weights_hash
from hf_robust.spurious.spufix import SpuFix, fit_class
from hf_robust.spurious.spufix_files import FittedSpuFix, write_spufix
from hf_robust.spurious.spufix_module import CONFIG, CorrectedLinear, correct_classifier, correct_module, load_corrected
from hf_robust.spurious.training import head_hash

TINY = ["timm-random/test_vit", "timm-random/test_efficientnet", "timm-random/test_resnet"]
CLASSES = {3: 1, 500: 3, 999: 2}  # output -> number of directions


def pictures(n: int = 3, size: int = 160) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(3))


def fix_of(weight: np.ndarray[Any, Any], mean: np.ndarray[Any, Any]) -> SpuFix:
    """A correction from made-up training features around `mean`, some of whose values are not clamped."""
    rng = np.random.default_rng(0)
    fixes = {}
    for k, m in CLASSES.items():
        train = 0.5 * mean + np.abs(mean).mean() * 0.2 * rng.normal(size=(50, len(mean)))
        fixes[k] = fit_class(train, weight[k], rng.normal(size=(50, m)))
    return SpuFix.of(fixes, width=len(weight))


def fitted_to(model: ImageClassifier, features: np.ndarray[Any, Any] | None = None) -> FittedSpuFix:
    head = model.heads["classifier"]
    if features is None:
        with torch.no_grad():
            features = model.with_features().forward(pictures())["features"].numpy()
    facts = {"model": model.name, "weights": weights_hash(model.module), "head": head_hash(head)}
    none = np.zeros(0, np.uint64)
    fix = fix_of(head.weight, features.mean(axis=0))
    facts |= {"form": "hf_robust SpuFix 1", "width": fix.width}
    return FittedSpuFix(fix, facts, none, none, "f" * 64)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_the_corrected_model_gives_the_corrected_logits(name: str, strength: float) -> None:
    model = load_model(name)
    with torch.no_grad():
        before = model.with_features().forward(pictures())
        fitted = fitted_to(model)
        corrected = correct_classifier(model, fitted, strength=strength)
        after = corrected.with_features().forward(pictures())
    logits, features = before["logits"].numpy(), before["features"].numpy()
    expected = fitted.fix.correct(logits.astype(np.float64), features, strength=strength)
    assert (expected[:, list(CLASSES)] < logits[:, list(CLASSES)]).any()
    np.testing.assert_allclose(after["logits"].numpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(after["features"].numpy(), features)


@pytest.mark.parametrize("name", TINY)
def test_state_dict_and_weights_hash_stay_those_of_the_base_model(name: str) -> None:
    base, model = load_model(name), load_model(name)
    corrected = correct_classifier(model, fitted_to(model)).module
    assert list(corrected.state_dict()) == list(base.module.state_dict())
    assert weights_hash(corrected) == weights_hash(base.module)
    corrected.load_state_dict(base.module.state_dict(), strict=True)


def test_a_picture_alone_is_corrected_as_in_a_batch() -> None:
    model = load_model(TINY[0])
    corrected = correct_classifier(model, fitted_to(model))
    with torch.no_grad():
        together = corrected.forward(pictures())["logits"]
        for n in range(3):
            alone = corrected.forward(pictures()[n : n + 1])["logits"]
            torch.testing.assert_close(alone[0], together[n], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs_and_comes_near(dtype: torch.dtype) -> None:
    linear = torch.nn.Linear(16, 1000)
    features = torch.rand(5, 16, generator=torch.Generator().manual_seed(0))
    fix = fix_of(linear.weight.detach().numpy(), features.numpy().mean(axis=0))
    corrected = CorrectedLinear(linear, fix)
    with torch.no_grad():
        exact = corrected(features)
        with torch.autocast("cpu", dtype=dtype):
            mixed = corrected(features)
        half = corrected.to(dtype)(features.to(dtype))
    assert mixed.dtype == half.dtype == dtype
    for values in (mixed, half):
        torch.testing.assert_close(values.float(), exact, atol=0.05, rtol=0.02)


def test_the_correction_lets_gradients_through() -> None:
    linear = torch.nn.Linear(8, 1000)
    features = torch.rand(2, 8, requires_grad=True)
    fix = fix_of(linear.weight.detach().numpy(), np.ones(8))
    CorrectedLinear(linear, fix)(features).sum().backward()
    assert features.grad is not None
    assert linear.weight.grad is not None


def test_any_module_with_a_linear_layer_can_be_corrected_in_every_place_of_it() -> None:
    linear = torch.nn.Linear(8, 1000)
    module = torch.nn.ModuleDict({"one": linear, "two": torch.nn.Sequential(torch.nn.ReLU(), linear)})
    corrected = correct_module(module, linear, fix_of(linear.weight.detach().numpy(), np.ones(8)))
    assert module["one"] is module["two"][1] is corrected
    assert "spufix of 3 classes, strength=1" in repr(module)


def test_a_head_of_another_shape_or_place_is_refused() -> None:
    linear = torch.nn.Linear(8, 1000)
    fix = fix_of(linear.weight.detach().numpy(), np.ones(8))
    with pytest.raises(ValueError, match=r"expected a head of shape \(1000, 8\).*got \(1000, 9\)"):
        correct_module(torch.nn.Sequential(torch.nn.Linear(9, 1000)), torch.nn.Linear(9, 1000), fix)
    with pytest.raises(ValueError, match="expected the head among the layers of the module"):
        correct_module(torch.nn.Sequential(torch.nn.ReLU()), linear, fix)


def test_another_model_and_a_model_without_a_linear_head_are_refused() -> None:
    fitted = fitted_to(load_model(TINY[0]))
    with pytest.raises(ModelError, match="test_resnet: expected the model that the correction was fitted to, timm-ran"):
        correct_classifier(load_model(TINY[2]), fitted)
    with pytest.raises(ModelError, match="expected logits that are one linear layer over one vector a picture"):
        correct_classifier(load_model("timm-random/deit_tiny_distilled_patch16_224"), fitted)


def test_a_transformers_model_is_corrected_too(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16,
        num_labels=1000,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    model = load_model(f"hf/{tmp_path / 'vit'}")
    with torch.no_grad():
        before = model.with_features().forward(pictures(size=32))
        fitted = fitted_to(model, before["features"].numpy())
        after = correct_classifier(model, fitted).forward(pictures(size=32))["logits"].numpy()
    expected = fitted.fix.correct(before["logits"].numpy(), before["features"].numpy())
    np.testing.assert_allclose(after, expected, atol=1e-5)


# --- export


def exported(tmp_path: Path, name: str, *options: str) -> tuple[FittedSpuFix, Path]:
    fitted = fitted_to(load_model(name))
    write_spufix(tmp_path / "fix.safetensors", fitted)
    told = ["--spufix", str(tmp_path / "fix.safetensors"), "--model", name, "--out", str(tmp_path / "out"), *options]
    assert main(["spufix", "export", *told]) == 0
    return fitted, tmp_path / "out"


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_an_exported_model_loads_in_two_lines(tmp_path: Path, strength: float, capsys: Any) -> None:
    fitted, out = exported(tmp_path, TINY[2], "--spufix-strength", str(strength))
    assert "model = load_corrected(" in capsys.readouterr().out
    model = load_corrected(out)
    base = load_model(TINY[2])
    with torch.no_grad():
        before = base.with_features().forward(pictures())
        after = model.module(pictures()).numpy()
    expected = fitted.fix.correct(before["logits"].numpy(), before["features"].numpy(), strength=strength)
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert any(note.startswith(f"SpuFix of 3 classes, strength {strength:g}") for note in model.notes)


def test_an_exported_model_with_weights_of_its_own_needs_nothing_else(tmp_path: Path) -> None:
    """The weights that a checkpoint gave travel along, and still load into the base model."""
    from safetensors.torch import load_file, save_file

    base = load_model(TINY[2])
    save_file(base.module.state_dict(), tmp_path / "base.safetensors")
    name = "timm/test_resnet"
    model = load_model(name, checkpoint=tmp_path / "base.safetensors")
    write_spufix(tmp_path / "fix.safetensors", fitted_to(model))
    told = ["--spufix", str(tmp_path / "fix.safetensors"), "--model", name, "--out", str(tmp_path / "out")]
    assert main(["spufix", "export", *told, "--checkpoint", str(tmp_path / "base.safetensors")]) == 0
    (tmp_path / "base.safetensors").unlink()
    assert weights_hash(load_corrected(tmp_path / "out").module) == weights_hash(base.module)
    base.module.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"), strict=True)


def test_a_folder_whose_parts_do_not_belong_together_is_refused(tmp_path: Path) -> None:
    _, out = exported(tmp_path, TINY[2])
    write_spufix(out / "spufix.safetensors", fitted_to(load_model(TINY[0])))
    with pytest.raises(ValueError, match=r"expected in .* what `spufix export` wrote, got another"):
        load_corrected(out)
    (out / CONFIG).unlink()
    with pytest.raises(ValueError, match="expected the record"):
        load_corrected(out)


def test_a_correction_for_another_model_is_not_exported(tmp_path: Path, capsys: Any) -> None:
    write_spufix(tmp_path / "fix.safetensors", fitted_to(load_model(TINY[0])))
    told = ["--spufix", str(tmp_path / "fix.safetensors"), "--model", TINY[2], "--out", str(tmp_path / "out")]
    assert main(["spufix", "export", *told]) == 1
    assert "expected the model that the correction was fitted to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
