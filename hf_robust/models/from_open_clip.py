"""Zero-shot models of open_clip: by architecture and weights, from a folder, or from the Hub."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .base import ImageClassifier, ModelError, Request
from .preprocessing import measured
from .trouble import library_errors, require
from .zero_shot import zero_shot

if TYPE_CHECKING:
    import torch

_SCHEMAS = ("hf-hub:", "local-dir:")


def load_open_clip(request: Request) -> ImageClassifier:
    """`open_clip/<architecture>/<tag or file>`, `open_clip/<folder>` or `open_clip/hf-hub:<repository>`."""
    open_clip = require("open_clip", "clip", name=request.name)
    source, weights = _source(open_clip, request)
    quick = weights is not None and quick_gelu(open_clip, source, weights)
    with library_errors(request.name):
        module, transform = open_clip.create_model_from_pretrained(
            source, pretrained=weights, force_quick_gelu=quick, weights_only=True
        )
        tokenizer = open_clip.get_tokenizer(source)
    interpolation = module.visual.preprocess_cfg.get("interpolation")
    facts = {"interpolation": interpolation, "antialias": True, "settings": dict(module.visual.preprocess_cfg)}
    preprocessing = measured(transform, facts, name=request.name)

    def encode_text(texts: list[str]) -> torch.Tensor:
        embeddings: torch.Tensor = module.encode_text(tokenizer(texts).to(next(module.parameters()).device))
        return embeddings

    return zero_shot(request, module, preprocessing, encode_image=module.encode_image, encode_text=encode_text)


def _source(open_clip: Any, request: Request) -> tuple[str, str | None]:
    """What open_clip calls the model, and its weights: a tag or a file, None where the model's folder holds them."""
    argument, name = request.argument, request.name
    if argument.startswith(_SCHEMAS) or Path(argument).is_dir():
        if request.checkpoint is not None:
            raise ModelError(f"{name} brings its own weights, got the checkpoint {request.checkpoint} too: drop one")
        return argument if argument.startswith(_SCHEMAS) else f"local-dir:{argument}", None
    architecture, _, weights = argument.partition("/")
    known = open_clip.list_models()
    if architecture not in known:
        close = get_close_matches(architecture, known, n=3, cutoff=0.5)
        hint = f"close: {', '.join(close)}" if close else "open_clip.list_models() lists those it has"
        raise ModelError(f"unknown model {name!r}: open_clip has no architecture {architecture!r}; {hint}")
    if bool(weights) == (request.checkpoint is not None):
        got = "both a name and a checkpoint" if weights else "no weights"
        raise ModelError(f"{name}: expected one source of weights (open_clip/{architecture}/<tag or file>), got {got}")
    weights = weights or str(request.checkpoint)
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if weights not in tags and not Path(weights).is_file():
        raise ModelError(f"{name}: {weights!r} is no file and no weights tag; known tags: {', '.join(tags) or 'none'}")
    return architecture, weights


def quick_gelu(open_clip: Any, architecture: str, weights: str) -> bool:
    """Whether the weights want the sigmoid GELU; 27 published ones do under an architecture that has the exact one.

    open_clip only warns, and the numbers are some points too low.
    """
    of_weights = (open_clip.get_pretrained_cfg(architecture, weights) or {}).get("quick_gelu", False)
    return bool(of_weights or open_clip.get_model_config(architecture).get("quick_gelu", False))
