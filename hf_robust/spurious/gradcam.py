"""Where a picture shows a component: GradCAM of its alpha, by the package grad-cam.

The channels of the last feature map are weighted by the mean gradient of alpha over their positions and added up; what
is below 0 is cut off, the rest scaled to [0, 1] picture by picture (arXiv 1610.02391; arXiv 2212.04871, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..models import ImageClassifier, ModelError
from .alpha_files import StoredPCA
from .visualise import Objective, alpha_of, refuse_other_model

if TYPE_CHECKING:
    from PIL.Image import Image

_NEEDS = 'GradCAM needs the package grad-cam: pip install "hf-robust[gradcam]"'


@dataclass(frozen=True)
class FeatureMap:
    """The layer whose output GradCAM weighs: (B, C, H, W), or (B, H, W, C) where `channels_last`."""

    layer: torch.nn.Module
    channels_last: bool

    def channels_first(self, output: torch.Tensor) -> torch.Tensor:
        """A copy of the output as (B, C, H, W); later layers may write into the original."""
        return (output.permute(0, 3, 1, 2) if self.channels_last else output).clone()


class _Alphas(torch.nn.Module):
    """The alphas of a component as a module around the model's own, which is what the package takes."""

    def __init__(self, model: ImageClassifier, objective: Objective) -> None:
        super().__init__()
        self.model = model.module
        self._objective = objective

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self._objective(pictures)


def require_package() -> None:
    """Nothing where the package grad-cam is installed, ImportError with the command that installs it else."""
    try:
        import pytorch_grad_cam  # noqa: F401
    except ImportError as error:
        raise ImportError(_NEEDS) from error


def heat_maps(
    model: ImageClassifier, stored: StoredPCA, component: int, pictures: Sequence[Image]
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """The pictures as the model sees them, uint8 (N, side, side, 3), and the heat of each, float32 (N, side, side).

    Heat is in [0, 1], 1 at the position that raises the component's alpha most; all 0 where no position raises it.
    ModelError for another model than the one that the components were fitted to, and for one whose last feature map is
    no grid of positions (vision transformers). ImportError without the package.
    """
    require_package()
    from pytorch_grad_cam import GradCAM

    refuse_other_model(model, stored)
    device = next(model.module.parameters()).device
    seen = torch.stack([as_seen(model, picture) for picture in pictures]).to(device)
    alphas = _Alphas(model, alpha_of(model, stored.pca, [component] * len(pictures)))
    place = feature_map(model, alphas, seen)
    cam = GradCAM(alphas, [place.layer], reshape_transform=place.channels_first)
    try:  # the package's own context manager would swallow an IndexError
        heat = cam(seen.clone().requires_grad_(True), targets=[_itself] * len(pictures))
    finally:
        cam.activations_and_grads.release()
        alphas.zero_grad(set_to_none=True)
    pixels = (seen * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return pixels, np.asarray(heat, dtype=np.float32)


def overlays(model: ImageClassifier, stored: StoredPCA, component: int, pictures: Sequence[Image]) -> list[Image]:
    """Each picture as the model sees it, its heat laid over it from dark (none) to yellow; errors as `heat_maps`."""
    if not pictures:
        return []
    pixels, heat = heat_maps(model, stored, component, pictures)
    import cv2
    from PIL import Image
    from pytorch_grad_cam.utils.image import show_cam_on_image

    return [
        Image.fromarray(
            show_cam_on_image(picture.astype(np.float32) / 255, one, use_rgb=True, colormap=cv2.COLORMAP_INFERNO)
        )
        for picture, one in zip(pixels, heat, strict=True)
    ]


def as_seen(model: ImageClassifier, picture: Image) -> torch.Tensor:
    """The picture (3, side, side) in [0, 1] after the model's own transform, its normalisation taken back."""
    facts = model.preprocessing
    batch = facts.transform(picture)
    mean, std = (batch.new_tensor(values).view(3, 1, 1) for values in (facts.mean, facts.std))
    return (batch * std + mean).clamp(0.0, 1.0)


def feature_map(model: ImageClassifier, alphas: torch.nn.Module, pictures: torch.Tensor) -> FeatureMap:
    """The last layer that gives a grid of positions and runs once a forward; ModelError where there is none.

    Where what comes last is a row of tokens, as in a vision transformer, there is none: an earlier grid, such as that
    of the patch embedding, says little of what the model looks at.
    """
    outputs: list[tuple[torch.nn.Module, torch.Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, _, output: outputs.append((layer, output)))
        for layer in model.module.modules()
    ]
    try:
        with torch.enable_grad():
            alpha = alphas(pictures[:1].clone().requires_grad_(True))
    finally:
        for hook in hooks:
            hook.remove()
    if not alpha.requires_grad:
        raise ModelError(
            f"{model.name}: expected outputs that follow from the picture with gradients, got some without: its "
            "forward must not run under torch.no_grad()"
        )
    runs = [layer for layer, _ in outputs]
    many = [(layer, out) for layer, out in outputs if _positions(out) > 1 and sum(layer is one for one in runs) == 1]
    if not many or many[-1][1].ndim != 4:
        got = f"one of shape {tuple(many[-1][1].shape)}" if many else "none"
        raise ModelError(
            f"{model.name}: expected a last feature map that is a grid of positions, got {got}: GradCAM fits "
            "convolutional models only, leave out --gradcam"
        )
    layer, output = many[-1]
    shape = output.shape
    return FeatureMap(layer, channels_last=shape[1] == shape[2] != shape[3])


def _positions(output: object) -> int:
    """Positions of a feature map (square, as the pictures are) or of a row of tokens; 0 for what is neither."""
    if not isinstance(output, torch.Tensor) or output.ndim not in (3, 4):
        return 0
    if output.ndim == 3:
        return int(output.shape[1])
    return int(output.shape[2] * output.shape[3] if output.shape[2] == output.shape[3] else output.shape[1] ** 2)


def _itself(alpha: torch.Tensor) -> torch.Tensor:
    return alpha
