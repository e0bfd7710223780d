"""Batch normalisation folded into the convolution before it: the same logits up to rounding, one pass less a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..schema import EMBEDDINGS, LOGITS
from .base import ImageClassifier

if TYPE_CHECKING:
    import torch

_MOST = 3e-5  # largest change of an output for the trial pictures, times the largest output where that is below one:
# a third of what two plans may differ by
_CONVOLUTIONS = ("Conv2d", "Conv2dSame")  # other kinds change their weight before they use it
_NORMALISATIONS = ("BatchNorm2d", "BatchNormAct2d")


def fold_batch_norm(model: ImageClassifier) -> bool:
    """Whether the model now runs without batch normalisations that follow a convolution, with the same outputs.

    The module lies on the CPU and is changed in place; a trial on two noise pictures before and after decides, and what
    changes an output by more than 3e-5 is undone. Folding is computed in float64. Only layers that run exactly once a
    forward pass, one behind the other, in evaluation mode and without hooks are folded.
    """
    import torch

    if not any(_is_foldable_norm(layer) for layer in model.module.modules()):
        return False
    size = model.preprocessing.size
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        try:
            before, pairs = _traced(model, noise)
        except Exception:  # a forward is anybody's code; what is wrong with it is told where its pictures are tried
            return False
        undo = [_fold(model.module, convolution, norm) for convolution, norm in pairs]
        if undo and _is_same(model, noise, before):
            return True
    for step in undo:
        step()
    return False


def _traced(
    model: ImageClassifier, pictures: torch.Tensor
) -> tuple[torch.Tensor, list[tuple[torch.nn.Module, torch.nn.Module]]]:
    """The outputs for the pictures, and each convolution with the normalisation that its output went into."""
    runs: Counter[torch.nn.Module] = Counter()
    last: list[Any] = [None, None]  # the layer that ran last, and what it gave
    pairs: list[tuple[torch.nn.Module, torch.nn.Module]] = []

    def after_convolution(layer: torch.nn.Module, _: Any, output: Any) -> None:
        runs[layer] += 1
        last[:] = layer, output

    def before_norm(layer: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        runs[layer] += 1
        if inputs and inputs[0] is last[1]:
            pairs.append((last[0], layer))

    layers = [layer for layer in model.module.modules() if not _has_hooks(layer)]
    hooks = [layer.register_forward_hook(after_convolution) for layer in layers if _is(layer, _CONVOLUTIONS)]
    hooks += [layer.register_forward_pre_hook(before_norm) for layer in layers if _is_foldable_norm(layer)]
    try:
        outputs = _outputs(model, pictures)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, [(c, n) for c, n in pairs if runs[c] == runs[n] == 1]


def _is(layer: torch.nn.Module, kinds: Iterable[str]) -> bool:
    """By name: a subclass may do anything with its weight, and timm need not be imported to name its kinds."""
    return type(layer).__name__ in kinds and type(layer).__module__.split(".")[0] in ("torch", "timm")


def _is_foldable_norm(layer: Any) -> bool:
    return _is(layer, _NORMALISATIONS) and not layer.training and layer.running_mean is not None


def _has_hooks(layer: Any) -> bool:
    """Whether something runs with the layer that folding would leave out, such as a weight made anew at each call."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def _outputs(model: ImageClassifier, pictures: torch.Tensor) -> torch.Tensor:
    outputs = model.forward(pictures)
    return outputs[LOGITS if LOGITS in outputs else EMBEDDINGS].float()


def _is_same(model: ImageClassifier, pictures: torch.Tensor, before: torch.Tensor) -> bool:
    import torch

    try:
        most = _MOST * min(1.0, float(before.abs().max()))
        return torch.allclose(_outputs(model, pictures), before, rtol=0, atol=most)
    except Exception:  # such as of a forward that looks into the layer that is gone
        return False


def _fold(module: torch.nn.Module, convolution: Any, norm: Any) -> Callable[[], None]:
    """Fold one pair; what is returned undoes it."""
    import torch

    weight, bias = convolution.weight, convolution.bias
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.double()
    shift = -norm.running_mean.double() if bias is None else bias.double() - norm.running_mean.double()
    shift = shift * scale if norm.bias is None else shift * scale + norm.bias.double()
    folded = (weight.double() * scale[:, None, None, None]).to(weight)
    convolution.weight = torch.nn.Parameter(folded, requires_grad=False)
    convolution.bias = torch.nn.Parameter(shift.to(weight), requires_grad=False)
    path = next(name for name, layer in module.named_modules() if layer is norm)
    parent, _, last = path.rpartition(".")
    rest = [getattr(norm, name) for name in ("drop", "act") if hasattr(norm, name)]  # what timm's layer does after it
    setattr(module.get_submodule(parent), last, torch.nn.Sequential(*rest) if rest else torch.nn.Identity())

    def undo() -> None:
        convolution.weight, convolution.bias = weight, bias
        setattr(module.get_submodule(parent), last, norm)

    return undo
