"""What every model source gives: one object with its module, its own preprocessing, its label space and its outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..labels import LabelSpace

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

Transform = Callable[["Image"], "torch.Tensor"]


class ModelError(RuntimeError):
    """A model that cannot be loaded or run as asked: the row of the results table that names the reason."""


@dataclass(frozen=True)
class Request:
    """What a model source is asked for; every loader takes one and nothing else.

    name               as the user wrote it: it stands in every result and in every error.
    argument           the name without its prefix.
    checkpoint         weights to load instead of the published ones; a source that cannot refuses.
    prompts            file of templates, class_names  file of names: for zero-shot sources, the others have no text.
    trust_remote_code  whether code from a model's repository may run.
    """

    name: str
    argument: str
    checkpoint: Path | None = None
    prompts: Path | None = None
    class_names: Path | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Preprocessing:
    """A model's own evaluation transform and the facts that other rules are made from.

    transform    RGB picture -> float32 tensor (3, height, width), normalised.
    size         side of the square input in pixels: the test size where the model has one, else the input size.
    description  everything that changes a pixel (backend, steps, interpolation, mean, std), JSON; in every result.
    """

    transform: Transform
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    description: Mapping[str, Any]


@dataclass(frozen=True)
class Head:
    """A linear head: logits = features @ weight.T + bias; float32 (outputs, features) and (outputs,)."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    label_space: LabelSpace


@dataclass
class ImageClassifier:
    """A loaded classifier.

    forward      float32 batch (B, 3, H, W) on the module's device -> named outputs, float32 or the run's dtype:
                 "logits" (B, outputs), or "embeddings" (B, D; normalised, zero-shot models); where asked "features"
                 (B, D); for models that have them "confidence_logit" (B,) and "rotation_logits" (B, 4).
    label_space  classes of the logits' columns; for a zero-shot model those of its 1,000-way head.
    heads        name -> linear head. A classifier has at most one, "classifier"; a zero-shot model has one a class list
                 ("imagenet-1k", "imagenet-d"), with the scale inside the weight and a zero bias, computed on the
                 module's device when it is first read.
    prompts      SHA-256 of the prompt set and class names; None for models without text.
    layout       "channels_last" where the architecture gains from it and a trial accepted it, else "contiguous".
    linear       the layer of the module that heads["classifier"] was read from.
    notes        doubts about the model that stand beside every result.
    code         SHA-256 of the user's Python file that gives the model: its forward may change, its weights the same.
    """

    name: str
    module: torch.nn.Module
    preprocessing: Preprocessing
    label_space: LabelSpace
    forward: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
    heads: Mapping[str, Head] = field(default_factory=dict)
    prompts: str | None = None
    layout: str = "contiguous"
    linear: torch.nn.Linear | None = None
    notes: tuple[str, ...] = ()
    code: str | None = None

    def with_features(self) -> ImageClassifier:
        """The same classifier whose forward also gives "features", the input of its linear head.

        The embeddings of a zero-shot model are its features already: it comes back as it is. Raises ModelError for a
        model whose logits are not one linear layer over one vector a picture.
        """
        if "classifier" not in self.heads and self.prompts is not None:
            return self
        linear, forward = self.linear, self.forward
        if linear is None:
            raise ModelError(
                f"{self.name}: expected logits that are one linear layer over one vector a picture, got a model where "
                "no such layer was found: features and what is made from them are not available for it"
            )

        def forward_with_features(batch: torch.Tensor) -> Mapping[str, torch.Tensor]:
            seen: list[torch.Tensor] = []
            # a hook a call, so that copies and other users of the module never see it
            hook = linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            try:
                outputs = forward(batch)
            finally:
                hook.remove()
            return {**outputs, "features": seen[-1]}

        return replace(self, forward=forward_with_features)


def weights_hash(module: torch.nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of every parameter and buffer, in state-dict order."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
