"""A forward pass compiled by torch.compile, for `--compile`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..models import ImageClassifier, ModelError
from ..predictions.plan import Plan
from .probe import forward, noise

if TYPE_CHECKING:
    import torch

_SAME = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}  # of the largest output


def compiled(model: ImageClassifier, plan: Plan, device: str) -> ImageClassifier:
    """The classifier with its forward compiled, tried on a batch of noise.

    Each batch size is compiled for itself: a kernel for any size would be another one, and which of them a picture
    meets would depend on what ran before it. Raises ModelError where torch cannot compile it, or the compiled forward
    gives other outputs.
    """
    import torch

    fast = replace(model, forward=torch.compile(model.forward, dynamic=False))
    batch = noise(model, plan.micro_batch, plan.layout, device)
    try:
        outputs = {name: values.float() for name, values in forward(fast, batch, plan.dtype).items()}
    except Exception as error:  # a compiler is missing, or the forward is code that it cannot take
        first = (str(error).splitlines() or [repr(error)])[0]
        raise ModelError(f"{model.name} cannot be compiled: {first}; leave out --compile") from error
    for name, values in forward(model, batch, plan.dtype).items():
        if name not in outputs or not _is_close(values.float(), outputs[name], _SAME[plan.dtype]):
            raise ModelError(f"{model.name}: expected the same {name} compiled, got others: leave out --compile")
    return fast


def _is_close(one: torch.Tensor, other: torch.Tensor, share: float) -> bool:
    import torch

    return torch.allclose(one, other, rtol=0, atol=share * float(one.abs().max()), equal_nan=True)
