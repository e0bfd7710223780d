"""What a forward does to its pictures before its first layer, whatever way it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.transforms import functional

from hf_robust.models.doubts import _normalises
from hf_robust.models.first_layer import affine_before_first_layer

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MIDDLE = (1 / 0.225, -0.456 / 0.224)  # of the gains of three channels that of blue, of the offsets that of green


def column(values: list[float]) -> torch.Tensor:
    return torch.tensor(values)[:, None, None]


def into_a_new_tensor(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(x)
    for k in range(3):
        made[:, k] = (x[:, k] - MEAN[k]) / STD[k]
    return made


def in_place(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x -= column(MEAN)
    x /= column(STD)
    return x


class Model(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], Any], first: nn.Module | None = None) -> None:
        super().__init__()
        self.change, self.first, self.layers = change, first or nn.Conv2d(3, 4, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(self.change(x))
        self.layers += 1
        return y.mean((2, 3))


def rows(x: torch.Tensor) -> torch.Tensor:
    """Patches of 4 x 4 pixels as rows, for a model whose first layer is linear."""
    return nn.functional.unfold(x, 4, stride=4).transpose(1, 2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x, (1, 0)),
        (lambda x: (x - column(MEAN)) / column(STD), MIDDLE),
        (lambda x: functional.normalize(x, MEAN, STD), MIDDLE),
        (lambda x: torch.stack([(x[:, k] - MEAN[k]) / STD[k] for k in range(3)], 1), MIDDLE),
        (into_a_new_tensor, MIDDLE),
        (in_place, MIDDLE),
        (lambda x: ((x.permute(0, 2, 3, 1) - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2), MIDDLE),
        (lambda x: nn.functional.pad(2 * x - 1, (9, 9, 9, 9)), (2, -1)),
        (lambda x: nn.functional.interpolate((x - 0.5) / 0.5, size=64, mode="bilinear"), (2, -1)),
        (lambda x: (x * 255 - 127.5) / 127.5, (2, -1)),
        (lambda x: (x - 127.5) / 127.5, (1 / 127.5, -1)),
        (lambda x: x - column(MEAN) if x.max() < 9 else x, (1, -0.456)),
        (lambda x: (x * column(STD) + column(MEAN) - column(MEAN)) / column(STD), (1, 0)),
    ],
)  # fmt: skip
def test_the_gain_and_offset_are_those_of_the_code(change: Any, expected: tuple[float, float]) -> None:
    model = Model(change).eval()
    assert affine_before_first_layer(model, 32) == pytest.approx(expected, abs=1e-5)
    assert model.layers == 0  # followed up to the first layer only


def test_a_first_layer_of_any_kind_is_one() -> None:
    twice = lambda x: 2 * x - 1  # noqa: E731
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.GroupNorm(1, 3)]
    for layer in layers:
        assert affine_before_first_layer(Model(twice, layer).eval(), 32) == pytest.approx((2, -1)), layer
    linear = Model(lambda x: rows(twice(x)), nn.Linear(48, 8))
    assert affine_before_first_layer(linear, 32) == pytest.approx((2, -1))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clamp(0, 1),
        lambda x: x**2,
        lambda x: x.sigmoid(),
        lambda x: x - x.mean((1, 2, 3), keepdim=True),
        lambda x: x[:1],
        lambda x: x @ "nonsense",
        lambda x: x * 0,
    ],
)
def test_what_is_no_gain_and_offset_is_unknown(change: Any) -> None:
    assert affine_before_first_layer(Model(change).eval(), 32) is None


def test_a_forward_that_reaches_no_layer_or_ends_the_process_is_unknown() -> None:
    class Leaves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise SystemExit(1)

    assert affine_before_first_layer(nn.Flatten(), 8) is None
    assert affine_before_first_layer(Leaves(), 8) is None


def test_a_change_from_one_normalisation_to_another_is_no_normalisation() -> None:
    inception = [(std / 0.5, (mean - 0.5) / 0.5) for mean, std in zip(MEAN, STD, strict=True)]  # of torchvision
    taken_back = [(std, mean) for mean, std in zip(MEAN, STD, strict=True)]
    assert not any(_normalises(a, b) for a, b in [*inception, *taken_back, (1, 0), (255, 0), (1 / 255, 0)])
    plain = [(1 / std, -mean / std) for mean, std in zip(MEAN, STD, strict=True)]
    of_255 = [(a / 255, b) for a, b in plain]
    assert all(_normalises(a, b) for a, b in [*plain, *of_255, (1, -0.456), (1, -123.7), (2, -1), (255, -127.5)])
