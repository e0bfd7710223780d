"""SpuFix inside a model: its linear head, corrected, under the same parameter names, and a folder that loads again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..models import ImageClassifier, ModelError, load_model, weights_hash
from ..predictions.plan import DamagedError, read_json, write_json
from .spufix import SpuFix, check_strength
from .spufix_files import FittedSpuFix, read_spufix
from .training import head_hash

CONFIG, WEIGHTS, CORRECTION = "config.json", "model.safetensors", "spufix.safetensors"
_FORMAT = "hf_robust corrected model 1"
_OWN_WEIGHTS = ("timm-random/", "open_clip/", "hf-clip/")  # sources that take no checkpoint


class CorrectedLinear(torch.nn.Linear):
    """A linear head whose logits lack their spurious part; the parameters are those of the head it is made from.

    What it adds are buffers that no state dict holds, so that checkpoints of the base model still fit. Any batch size;
    in half precision the correction is computed in float32.
    """

    spufix_matrix: torch.Tensor
    spufix_offset: torch.Tensor
    spufix_member: torch.Tensor
    spufix_columns: torch.Tensor

    def __init__(self, linear: torch.nn.Linear, fix: SpuFix, *, strength: float = 1.0) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.strength = strength
        member = (fix.outputs[:, None] == fix.columns).astype(np.float64)
        arrays = {"matrix": fix.matrix, "offset": fix.offset, "member": strength * member}
        for name, array in arrays.items():
            self.register_buffer(f"spufix_{name}", _float32(array, linear), persistent=False)
        columns = torch.from_numpy(fix.columns).to(linear.weight.device)
        self.register_buffer("spufix_columns", columns, persistent=False)
        self.train(linear.training)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(…, outputs) corrected logits of (…, D) features."""
        logits = super().forward(features)
        with torch.autocast(features.device.type, enabled=False):
            beta = features.float() @ self.spufix_matrix.float().T - self.spufix_offset.float()
            taken = beta.clamp_min(0.0) @ self.spufix_member.float()
            # a product instead of index_add, whose order of summands a GPU does not keep
            after = logits[..., self.spufix_columns].float() - taken
        return logits.index_copy(-1, self.spufix_columns, after.to(logits.dtype))

    def extra_repr(self) -> str:
        """The line that print(module) shows."""
        return f"{super().extra_repr()}, spufix of {len(self.spufix_columns)} classes, strength={self.strength:g}"


def _float32(array: NDArray[Any], linear: torch.nn.Linear) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(linear.weight.device)


def correct_module(
    module: torch.nn.Module, linear: torch.nn.Linear, fix: SpuFix, *, strength: float = 1.0
) -> CorrectedLinear:
    """The corrected head, which from now on stands in `module` in place of its layer `linear`.

    ValueError where `linear` is no layer of the module, or of another shape than the head that was fitted.
    """
    check_strength(strength)
    if (linear.out_features, linear.in_features) != (fix.width, fix.matrix.shape[1]):
        raise ValueError(
            f"expected a head of shape ({fix.width}, {fix.matrix.shape[1]}), as the correction was fitted to, got "
            f"({linear.out_features}, {linear.in_features}): another model?"
        )
    places = [path for path, layer in module.named_modules(remove_duplicate=False) if layer is linear and path]
    if not places:
        raise ValueError("expected the head among the layers of the module, got a layer that it does not contain")
    corrected = CorrectedLinear(linear, fix, strength=strength)
    for path in places:
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, corrected)
    return corrected


def correct_classifier(model: ImageClassifier, fitted: FittedSpuFix, *, strength: float = 1.0) -> ImageClassifier:
    """The classifier with corrected logits; its module is changed in place, its state dict stays as it was.

    ModelError for a model without a linear head, and for another model than the one that was fitted.
    """
    if model.prompts is not None and "classifier" not in model.heads:
        raise ModelError(
            f"{model.name}: expected a model with a linear layer over its classes, got a zero-shot one, which gives "
            "embeddings: evaluate it as it is, then `hf-robust score RUNS --spufix FILE`"
        )
    if model.linear is None or "classifier" not in model.heads:
        raise ModelError(
            f"{model.name}: expected logits that are one linear layer over one vector a picture, got a model where no "
            "such layer was found: SpuFix is not available for it"
        )
    try:
        head = head_hash(model.heads["classifier"])
        fitted.refuse_other(weights=weights_hash(model.module), head=head, model=model.name)
        corrected = correct_module(model.module, model.linear, fitted.fix, strength=strength)
    except ValueError as error:
        raise ModelError(f"{model.name}: {error}") from error
    note = f"SpuFix of {len(fitted.fix.columns)} classes, strength {strength:g}, file {fitted.sha256[:12]}"
    return replace(model, linear=corrected, notes=(*model.notes, note))


def export(name: str, file: Path, out: Path, *, checkpoint: Path | None = None, strength: float = 1.0) -> Path:
    """Write the corrected model `name` into the folder `out`, for `load_corrected`; returns the folder.

    file  what `spufix fit` wrote for this very model. The folder holds config.json, spufix.safetensors and, where the
    model's source can load weights from a file, model.safetensors: the base model's own state dict.
    """
    from safetensors.torch import save_file

    _refuse_other_folder(out)
    fitted = read_spufix(file)
    model = correct_classifier(load_model(name, checkpoint=checkpoint), fitted, strength=strength)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, out / CORRECTION)
    takes_weights = not name.startswith(_OWN_WEIGHTS) and (checkpoint is not None or ".py:" not in name)
    if takes_weights:
        state = {key: value.detach().clone().contiguous() for key, value in model.module.state_dict().items()}
        save_file(state, out / WEIGHTS)
    config = {"form": _FORMAT, "model": name, "strength": strength, "spufix": fitted.sha256}
    write_json(out / CONFIG, {**config, "checkpoint": WEIGHTS if takes_weights else None})
    return out


def _refuse_other_folder(out: Path) -> None:
    """Nothing for a new or empty folder, or one that holds an earlier export; FileExistsError for any other."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = read_json(out / CONFIG, ["form"])["form"] == _FORMAT
    except (DamagedError, NotADirectoryError):
        ours = False
    if not ours:
        raise FileExistsError(
            f"expected a new folder, or one that `spufix export` wrote, for --out, got {str(out)!r}, which holds other "
            "files: give another folder"
        )


def load_corrected(folder: str | Path) -> ImageClassifier:
    """The corrected model that `hf-robust spufix export` wrote, ready to use: `.module`, `.preprocessing`, `.forward`.

    ModelError where the model's source now gives other weights, ValueError where the folder is not what was exported.
    """
    place = Path(folder)
    config = read_json(place / CONFIG, ["form", "model", "strength", "spufix", "checkpoint"])
    fitted = read_spufix(place / CORRECTION)
    if config["form"] != _FORMAT or fitted.sha256 != config["spufix"]:
        raise ValueError(
            f"expected in {place} what `spufix export` wrote, got another {CORRECTION} or {CONFIG}: export again"
        )
    checkpoint = None if config["checkpoint"] is None else place / config["checkpoint"]
    model = load_model(config["model"], checkpoint=checkpoint)
    return correct_classifier(model, fitted, strength=config["strength"])
