"""Models of transformers: image classifiers, and zero-shot models of the CLIP and SigLIP families."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import labels
from .base import ImageClassifier, ModelError, Preprocessing, Request
from .checkpoints import load_checkpoint
from .classifier import classifier
from .doubts import normalisation_doubts
from .preprocessing import measured
from .trouble import library_errors, require
from .zero_shot import zero_shot

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

_WNID = re.compile(r"n\d{8}\b")
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def load_transformers(request: Request) -> ImageClassifier:
    """`hf/<repository or folder>`: an image classifier of transformers."""
    transformers = require("transformers", "transformers", name=request.name)
    options: dict[str, Any] = {"trust_remote_code": request.trust_remote_code}
    auto = transformers.AutoModelForImageClassification
    if request.checkpoint is None:
        module = pretrained(transformers, auto, request)
    else:
        with library_errors(request.name):
            config = transformers.AutoConfig.from_pretrained(request.argument, **options)
            module = auto.from_config(config, **options)
        load_checkpoint(module, request.checkpoint, name=request.name)
    preprocessing = _preprocessing(transformers, request)
    space = _space_from_wnids(module.config.id2label, request)
    loaded = classifier(request.name, module, preprocessing, label_space=space)
    _warn_about_order(module.config.id2label, request.name)
    return replace(loaded, notes=normalisation_doubts(module, preprocessing))


def load_transformers_clip(request: Request) -> ImageClassifier:
    """`hf-clip/<repository or folder>`: image and text towers of transformers (CLIP, SigLIP and kin)."""
    transformers = require("transformers", "transformers", name=request.name)
    if request.checkpoint is not None:
        raise ModelError(f"{request.name} takes no --checkpoint: give a folder that save_pretrained wrote")
    module = pretrained(transformers, transformers.AutoModel, request)
    if not all(hasattr(module, f"get_{tower}_features") for tower in ("image", "text")):
        raise ModelError(f"{request.name}: expected a model with image and text features, got {type(module).__name__}")
    preprocessing = _preprocessing(transformers, request)
    with library_errors(request.name):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            request.argument, trust_remote_code=request.trust_remote_code
        )
    # SigLIP was trained on texts padded to full length and reads the padding
    padding = "max_length" if "siglip" in module.config.model_type else True
    length = getattr(module.config.text_config, "max_position_embeddings", None)

    def encode_text(texts: list[str]) -> torch.Tensor:
        tokens = tokenizer(texts, padding=padding, truncation=True, max_length=length, return_tensors="pt")
        device = next(module.parameters()).device
        return _pooled(module.get_text_features(**{key: value.to(device) for key, value in tokens.items()}))

    def encode_image(batch: torch.Tensor) -> torch.Tensor:
        return _pooled(module.get_image_features(pixel_values=batch))

    return zero_shot(request, module, preprocessing, encode_image=encode_image, encode_text=encode_text)


def _pooled(output: Any) -> torch.Tensor:
    pooled: torch.Tensor = getattr(output, "pooler_output", output)  # transformers 4 gives the tensor itself
    return pooled


@contextmanager
def _no_bars(transformers: Any) -> Iterator[None]:
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def pretrained(transformers: Any, auto: Any, request: Request, *, dtype: Any = None) -> Any:
    """The module that one of transformers' Auto classes loads, complete; ModelError where weights are missing.

    dtype  of torch, for the weights; None: float32.
    """
    import torch

    with library_errors(request.name), _no_bars(transformers):
        module, info = auto.from_pretrained(
            request.argument,
            trust_remote_code=request.trust_remote_code,
            output_loading_info=True,
            dtype=dtype or torch.float32,
        )
    lacking = sorted({*map(str, info["missing_keys"]), *(str(key) for key in info["mismatched_keys"])})
    if lacking:  # the library only warns, and draws these weights at random
        raise ModelError(
            f"{request.name}: {len(lacking)} weights of {type(module).__name__} are missing in its files, the first "
            f"{lacking[0]}: this is no {'classifier' if 'Classif' in type(module).__name__ else 'complete model'}"
        )
    return module


@dataclass(frozen=True)
class ProcessorTransform:
    """A processor of transformers as a function of one picture."""

    processor: Any

    def __call__(self, picture: Image) -> torch.Tensor:
        """The pixel values of the picture."""
        pixels: torch.Tensor = self.processor(picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    def __repr__(self) -> str:
        return type(self.processor).__name__


def _preprocessing(transformers: Any, request: Request) -> Preprocessing:
    new = int(transformers.__version__.split(".")[0]) >= 5
    choice: dict[str, Any] = {"backend": "pil"} if new else {"use_fast": False}
    with library_errors(f"{request.name}: its image processor"):
        processor = transformers.AutoImageProcessor.from_pretrained(
            request.argument, trust_remote_code=request.trust_remote_code, **choice
        )
    settings = {k: v for k, v in json.loads(processor.to_json_string()).items() if v is not None}
    kinds = " ".join(cls.__name__ for cls in type(processor).__mro__)
    facts = {
        "backend": "torchvision" if "Torchvision" in kinds or "Fast" in kinds else "PIL",
        "interpolation": _RESAMPLING.get(settings.get("resample", -1)),
        "antialias": True,
        "crop_pct": settings.get("crop_pct"),
        "processor": type(processor).__name__,
        "settings": settings,
    }
    return measured(ProcessorTransform(processor), facts, name=request.name)


def _space_from_wnids(id2label: Mapping[int, str], request: Request) -> labels.LabelSpace | None:
    """The space that the model's own WordNet ids spell out, in the model's order; None where it has no such labels."""
    texts = [str(id2label[i]) for i in sorted(id2label)]
    found = [match.group() if (match := _WNID.match(text)) else None for text in texts]
    if not texts or sum(wnid is None for wnid in found) > 1:
        return None
    wnids = tuple(wnid or labels.BACKGROUND for wnid in found)
    if wnids == labels.imagenet_1k().wnids:
        return labels.imagenet_1k()
    if len(set(wnids)) != len(wnids):
        raise ModelError(f"{request.name}: expected each WordNet id once among its labels, got a repeated one")
    return labels.LabelSpace(f"hf:{request.argument}", wnids)


def _warn_about_order(id2label: Mapping[int, str], name: str) -> None:
    """Warns where most of 1,000 class names stand at another index than in ImageNet's order."""
    if len(id2label) != 1000:
        return
    index = {text.lower(): i for i, text in enumerate(labels.imagenet_1k_names())}
    where = {i: index.get(str(text).split(",")[0].strip().lower()) for i, text in id2label.items()}
    moved = sum(found is not None and found != int(i) for i, found in where.items())
    kept = sum(found is not None and found == int(i) for i, found in where.items())
    if moved > kept:
        warnings.warn(
            f"{name}: {moved} of its 1,000 class names stand at another index than ImageNet's order: its numbers will "
            "be wrong unless the names are",
            stacklevel=2,
        )
