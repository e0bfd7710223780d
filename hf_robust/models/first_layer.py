"""What a model does to its pictures in plain arithmetic before its first layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

# Operations that compute each value from one value of the picture, move values, or make room for them.
_PLAIN = {
    "add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_", "neg", "neg_",
    "alias", "as_strided", "cat", "chunk", "clone", "constant_pad_nd", "copy_", "detach", "empty_like", "expand",
    "flip", "im2col", "index", "lift_fresh", "permute", "pixel_unshuffle", "reflection_pad2d", "select", "slice",
    "split", "squeeze", "stack", "t", "_to_copy", "transpose", "unbind", "unsafe_split", "_unsafe_view", "unsqueeze",
    "view", "view_as", "zeros_like",
    "upsample_nearest2d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d",
}  # fmt: skip
_LAYERS = {
    "addmm", "avg_pool2d", "baddbmm", "bmm", "convolution", "cudnn_batch_norm", "max_pool2d_with_indices",
    "mkldnn_convolution", "mm", "native_batch_norm", "_native_batch_norm_legit_no_training", "native_group_norm",
    "native_layer_norm",
}  # fmt: skip
_LOOKS = 3  # values at most; an operation that gives so few looks at the picture, such as its mean


class _Reached(BaseException):
    """Ends a forward at its first layer; not an Exception, which a forward might catch."""


def affine_before_first_layer(module: torch.nn.Module, size: int) -> tuple[float, float] | None:
    """(a, b) where the first layer gets a * picture + b: the median over its values; (1, 0) where nothing is done.

    None where that cannot be told: the forward fails before its first layer, or does something else to the picture.
    The forward is followed up to that layer only, with three even pictures of `size` pixels a side.
    """
    import torch

    like = next(module.parameters(), torch.empty(0))
    values = torch.tensor([0.0, 1.0, 2.0], device=like.device)
    following = _following(values[:, None, None, None].repeat(1, 3, size, size))
    try:
        with torch.no_grad(), following as first:
            module(first.batch)
    except _Reached:
        pass
    except (Exception, SystemExit):  # the model's own; what it is comes to light when it is run
        return None
    if following.reached is None or following.reached.numel() % len(values):
        return None
    zero, one, two = following.reached.double().cpu().numpy().reshape(len(values), -1)  # patches may be rows by now
    a, pictured = one - zero, one != zero  # where they are equal it was padded
    if not pictured.any() or not np.allclose(two - one, a, rtol=1e-2, atol=1e-3):
        return None
    return float(np.median(a[pictured])), float(np.median(zero[pictured]))


def _following(batch: torch.Tensor) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Following(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Follows the values of a batch; `reached` is what the first layer gets of them, None where that is unknown."""

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.batch = batch
            self.followed = {id(batch): batch}  # kept, so that no other tensor gets the same id
            self.reached: torch.Tensor | None = None

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = [t for t in _tensors(args) if id(t) in self.followed]
            name = func.overloadpacket.__name__
            if given and name in _LAYERS:
                self.reached = given[0]
                raise _Reached
            result = func(*args, **(kwargs or {}))
            if given and name in _PLAIN:
                self.followed |= {id(t): t for t in _tensors([result])}
            elif given and any(t.is_floating_point() and t.numel() > _LOOKS for t in _tensors([result])):
                raise _Reached
            return result

    return Following()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
