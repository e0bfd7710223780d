"""From decoded pictures to the batch that a model takes, with the bits of the model's own transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..models.base import Transform
from ..models.preprocessing import to_bytes_first

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image


@dataclass(frozen=True)
class Pixels:
    """A transform in two steps: of one picture, in any thread, and of a batch.

    of_picture  RGB picture -> what `batch` takes: uint8 array (H, W, 3), or the transform's own tensor (3, H, W).
    constants   mean and std, three channels each, where the transform ends in ToTensor and Normalize; None: of_picture
                does everything.
    """

    of_picture: Callable[[Image], Any]
    constants: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def batch(self, pictures: Sequence[Any], device: str, layout: str) -> torch.Tensor:
        """Float tensor (B, 3, H, W) on the device, "channels_last" or "contiguous".

        8-bit pixels lie in memory as channels-last wants them and travel to the device as they are. The divisions are
        those of ToTensor and Normalize in their order, so the bits are theirs.
        """
        import torch

        if self.constants is None:
            batch = torch.stack(list(pictures))
            return _on(batch, device).contiguous(memory_format=_format(layout))
        stored = _on(torch.from_numpy(np.stack(pictures)), device).permute(0, 3, 1, 2)
        mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in self.constants)
        most = torch.tensor(255.0, device=device)  # on the device: CUDA multiplies by the inverse of a CPU's number
        floats = stored.contiguous(memory_format=_format(layout)).to(torch.float32)
        return floats.div_(most).sub_(mean).div_(std)


def pixels_of(transform: Transform) -> Pixels:
    """The transform in two steps where it can be cut in two, in one where not."""
    cut = to_bytes_first(transform)
    if cut is None:
        return Pixels(transform)
    before, mean, std = cut
    return Pixels(lambda picture: _bytes(before(picture)), (mean, std))


def _bytes(picture: Any) -> Any:
    values = np.asarray(picture)
    if values.dtype != np.uint8 or values.ndim != 3 or values.shape[2] != 3:
        raise TypeError(f"expected an RGB picture before ToTensor, got {values.dtype} of shape {values.shape}")
    return values


def _on(batch: torch.Tensor, device: str) -> torch.Tensor:
    """To a GPU from pinned memory, while this process goes on."""
    if not device.startswith("cuda"):
        return batch.to(device)
    return batch.pin_memory().to(device, non_blocking=True)


def _format(layout: str) -> torch.memory_format:
    import torch

    return torch.channels_last if layout == "channels_last" else torch.contiguous_format
