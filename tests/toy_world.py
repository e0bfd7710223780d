"""Drawn pictures of all five data sets in the official layouts, and a small classifier that knows their classes.

A class is a 4 x 4 grid of colours; a picture shows its class's grid blended with another one. The classifier averages
a picture to 4 x 4 and compares it with every grid: no training, and an accuracy between chance and one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from builder_archives import as_folder, as_tar, as_zip
from PIL import Image

from hf_robust.labels import imagenet_1k, imagenet_a_wnids, imagenet_d_categories, imagenet_o_wnids, spurious_classes

FACTORY = """
import numpy as np
import torch


class Grids(torch.nn.Module):
    pretrained_cfg = {
        "input_size": (3, 64, 64), "interpolation": "bicubic", "crop_pct": 0.95, "crop_mode": "center",
        "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5),
    }

    def __init__(self):
        super().__init__()
        grids = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (1000, 48)).astype(np.float32))
        self.pool, self.fc = torch.nn.AdaptiveAvgPool2d(4), torch.nn.Linear(48, 1000)
        self.fc.weight.data, self.fc.bias.data = grids, -grids.square().sum(1) / 2

    def forward(self, x):
        return self.fc(self.pool(x).flatten(1))


def build():
    return Grids()
"""
_GRIDS = np.random.default_rng(0).uniform(-1, 1, (1000, 48)).reshape(1000, 3, 4, 4)
_EXTENSIONS = ("jpg", "JPEG", "jpeg")
_A_NAMES = ("0.000116_digital clock _ digital clock", "0.25_jack-o'-lantern _ yellow lady's slipper")
_O_NAMES = ("chewing_gum_gum", "jello_Jell-O", "digital_audiotape_DAT")


@dataclass(frozen=True)
class Drawn:
    """One picture: its place in the archive, its bytes, and what the protocols need to know of it."""

    path: str
    content: bytes
    labels: tuple[int, ...] = ()
    shown: int | None = None  # the class whose spurious feature it shows
    nuisance: str | None = None


def draw(index: int, rng: np.random.Generator, *, kind: str, square: bool = False, strangeness: float = 0.7) -> bytes:
    """A picture of the class, blended with another class by up to `strangeness`."""
    blend = rng.uniform(0, strangeness)
    grid = (1 - blend) * _GRIDS[index] + blend * _GRIDS[rng.integers(1000)]
    width = int(rng.integers(60, 110))
    size = (width, width if square else int(rng.integers(60, 110)))
    colours = ((grid.transpose(1, 2, 0) + 1) * 127.5).round().astype(np.uint8)
    image = Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC)
    if rng.random() < 0.1:
        image = image.convert("L")  # grey pictures occur
    elif kind == "PNG" and rng.random() < 0.3:
        image.putalpha(200)
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return stream.getvalue()


def _classes() -> dict[str, list[int]]:
    of = {wnid: i for i, wnid in enumerate(imagenet_1k().wnids)}
    return {
        "a": [of[w] for w in imagenet_a_wnids()[5:200:20]],
        "o": [of[w] for w in imagenet_o_wnids()[3:200:20]],
        "spurious": [c.index for c in spurious_classes()[::12]],
        "d": [i for c in imagenet_d_categories()[:6] for i in c.indices],
    }


def imagenet_a(rng: np.random.Generator) -> Iterator[Drawn]:
    for n in range(220):
        index = _classes()["a"][n % 10]
        name = f"{_A_NAMES[n % 2]}_0.{100 + n}.{_EXTENSIONS[n % 3]}"
        yield Drawn(f"imagenet-a/{imagenet_1k().wnids[index]}/{name}", draw(index, rng, kind="JPEG"), (index,))


def imagenet_o(rng: np.random.Generator) -> Iterator[Drawn]:
    for n in range(60):
        folder, stranger = imagenet_o_wnids()[n % 200], int(rng.integers(1000))
        yield Drawn(f"imagenet-o/{folder}/{_O_NAMES[n % 3]}_0.{900 + n}.JPEG", draw(stranger, rng, kind="JPEG"))


def spurious_imagenet(rng: np.random.Generator) -> Iterator[Drawn]:
    for n in range(40):
        index = _classes()["spurious"][n % 8]  # the ninth has validation pictures only
        content = draw(index, rng, kind="PNG", square=True, strangeness=1.0)
        yield Drawn(f"images/spurious_class_{index}_component_{n % 3}/{n:04d}.png", content, shown=index)


def imagenet_d(rng: np.random.Generator) -> Iterator[Drawn]:
    for n, nuisance in enumerate(("background", "texture", "material") * 16):
        category = imagenet_d_categories()[n % 7 if nuisance == "background" else n % 5]
        index = int(rng.choice(category.indices))
        name = f"{nuisance}/{category.folder}/{n:022d}.png"
        yield Drawn(name, draw(index, rng, kind="PNG"), category.indices, nuisance=nuisance)


def imagenet_val(rng: np.random.Generator) -> Iterator[Drawn]:
    classes = sorted({index for indices in _classes().values() for index in indices})
    for n, index in enumerate(sorted(classes * 6)):
        name = f"{imagenet_1k().wnids[index]}/ILSVRC2012_val_{n + 1:08d}.JPEG"
        yield Drawn(name, draw(index, rng, kind="JPEG", strangeness=0.5), (index,))


SETS = {
    "imagenet-a": (imagenet_a, as_tar, "a.tar"),
    "imagenet-o": (imagenet_o, as_tar, "o.tar"),
    "spurious-imagenet": (spurious_imagenet, as_zip, "images_100_classes.zip"),
    "imagenet-d": (imagenet_d, as_folder, "ImageNet-D"),
    "imagenet-val": (imagenet_val, as_folder, "val"),
}


def draw_all(folder: Path) -> dict[str, list[Drawn]]:
    """Every set, written below `folder` as an archive or folder of its official layout."""
    world = {}
    for number, (name, (make, store, target)) in enumerate(SETS.items()):
        world[name] = list(make(np.random.default_rng(number + 1)))
        store(folder / target, {d.path: d.content for d in world[name]})
    return world
