"""From any module with logits to an ImageClassifier: one trial picture checks outputs, label space and linear head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import labels, schema
from .base import Head, ImageClassifier, ModelError, Preprocessing
from .trouble import library_errors

if TYPE_CHECKING:
    import torch

    Outputs = Mapping[str, torch.Tensor]

_TOLERANCE = 1e-4
_MANY_CONVOLUTIONS = 4  # a patch embedding alone gains nothing from channels-last memory


def classifier(
    name: str,
    module: torch.nn.Module,
    preprocessing: Preprocessing,
    *,
    label_space: labels.LabelSpace | None = None,
) -> ImageClassifier:
    """The classifier around a module that gives logits as a tensor, as `.logits`, or in a dict of output columns.

    The module is put into evaluation mode, float32. `label_space` None: found by the exact output width. Raises
    ModelError where the module fails on one picture, its outputs are of another kind, or their width is unknown.
    """
    module = module.float().eval().requires_grad_(False)
    forward = _named_outputs(module, name)
    layout, outputs, linears = _trial(module, forward, preprocessing.size, name=name)
    width = outputs["logits"].shape[1]
    space = label_space or _space_of(width, name=name)
    if len(space) != width:
        raise ModelError(f"{name}: expected one class for each of {width:,} outputs, got {len(space):,} ({space.name})")
    if not (space.imagenet_1k_columns() >= 0).any():
        raise ModelError(
            f"{name}: expected outputs for ImageNet-1k classes, got none among the {width:,} of {space.name}: "
            "name them by WordNet id, such as n01440764"
        )
    linear = _linear_head(outputs["logits"], linears)
    return ImageClassifier(
        name=name,
        module=module,
        preprocessing=preprocessing,
        label_space=space,
        forward=forward,
        heads={} if linear is None else {"classifier": _head(linear, space)},
        layout=layout,
        linear=linear,
    )


def _named_outputs(module: torch.nn.Module, name: str) -> Callable[[torch.Tensor], Outputs]:
    import torch

    def forward(batch: torch.Tensor) -> Outputs:
        try:
            raw: Any = module(batch)
        except SystemExit as error:  # a forward is anybody's code, and no caller expects that one
            raise ModelError(f"{name}: expected outputs, got SystemExit: {error}; let its forward give them") from error
        if not isinstance(raw, torch.Tensor | Mapping) or (isinstance(raw, Mapping) and schema.LOGITS not in raw):
            raw = getattr(raw, schema.LOGITS, raw)
        if isinstance(raw, torch.Tensor):
            return {schema.LOGITS: raw}
        if not isinstance(raw, Mapping) or schema.LOGITS not in raw:
            got = f"the keys {sorted(map(str, raw))}" if isinstance(raw, Mapping) else type(raw).__name__
            raise ModelError(f"{name}: expected logits, an object with .logits or a dict with 'logits', got {got}")
        columns = (schema.LOGITS, schema.CONFIDENCE_LOGIT, schema.ROTATION_LOGITS)
        outputs = {column: raw[column] for column in columns if column in raw}
        if schema.CONFIDENCE_LOGIT in outputs:
            outputs[schema.CONFIDENCE_LOGIT] = outputs[schema.CONFIDENCE_LOGIT].reshape(len(batch))
        return outputs

    return forward


def _trial(
    module: torch.nn.Module, forward: Callable[[torch.Tensor], Outputs], size: int, *, name: str
) -> tuple[str, Outputs, list[tuple[torch.nn.Linear, torch.Tensor]]]:
    """Memory layout, outputs for one noise picture, and each linear layer with its input, in running order."""
    import torch

    seen: list[tuple[torch.nn.Linear, torch.Tensor]] = []
    hooks = [
        layer.register_forward_pre_hook(lambda m, inputs: seen.append((m, inputs[0])) if inputs else None)
        for layer in module.modules()
        if isinstance(layer, torch.nn.Linear)
    ]
    picture = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    convolutions = sum(isinstance(layer, torch.nn.Conv2d) for layer in module.modules())
    try:
        with torch.no_grad(), library_errors(f"{name}: it failed on one picture of {size} x {size} pixels"):
            layout, outputs = _in_best_layout(forward, picture, convolutions)
            for values in outputs.values():
                if values.is_floating_point():
                    values.float().cpu().numpy()  # as they will be stored; sparse ones and those of no memory fail
    finally:
        for hook in hooks:
            hook.remove()
    _check(outputs, name=name)
    return layout, outputs, seen


def _in_best_layout(
    forward: Callable[[torch.Tensor], Outputs], picture: torch.Tensor, convolutions: int
) -> tuple[str, Outputs]:
    import torch

    if convolutions > _MANY_CONVOLUTIONS:
        try:
            return "channels_last", forward(picture.contiguous(memory_format=torch.channels_last))
        except RuntimeError:  # a .view() that wants contiguous memory; what else is wrong shows below
            pass
    return "contiguous", forward(picture)


def _check(outputs: Outputs, *, name: str) -> None:
    logits = outputs[schema.LOGITS]
    if logits.ndim != 2 or len(logits) != 1:
        raise ModelError(f"{name}: expected logits of shape (1, outputs) for one picture, got {tuple(logits.shape)}")
    if not logits.is_floating_point():
        raise ModelError(f"{name}: expected floating-point logits, got {logits.dtype}: give the scores of the classes")
    rotation = outputs.get(schema.ROTATION_LOGITS)
    if rotation is not None and rotation.shape != (1, 4):
        raise ModelError(f"{name}: expected rotation_logits of shape (1, 4), got {tuple(rotation.shape)}")


def _space_of(width: int, *, name: str) -> labels.LabelSpace:
    try:
        return labels.label_space(width)
    except (ValueError, ImportError) as error:
        raise ModelError(f"{name}: {error}") from error


def _linear_head(logits: torch.Tensor, linears: list[tuple[torch.nn.Linear, torch.Tensor]]) -> torch.nn.Linear | None:
    """The layer that the logits are the output of: the last of their width, if its input is one vector a picture."""
    import torch

    for layer, features in reversed(linears):
        if layer.out_features == logits.shape[1]:
            if features.shape != (1, layer.in_features):
                return None
            again = torch.nn.functional.linear(features, layer.weight, layer.bias)
            return layer if torch.allclose(again.float(), logits.float(), rtol=_TOLERANCE, atol=_TOLERANCE) else None
    return None


def _head(linear: torch.nn.Linear, space: labels.LabelSpace) -> Head:
    import torch

    bias = torch.zeros(linear.out_features) if linear.bias is None else linear.bias
    weight = linear.weight.detach()
    return Head(weight.float().numpy().copy(), bias.detach().float().numpy().copy(), space)
