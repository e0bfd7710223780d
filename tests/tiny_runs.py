"""Small data sets and tiny models for the tests of the runner."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hf_robust import labels
from hf_robust.benchmarks import benchmark
from hf_robust.builders import build
from hf_robust.runner import DataPlaces, Needs, RunOptions, World, evaluate, gather

ALONE = World(0, 1, "cpu")
_WNIDS = labels.imagenet_1k().wnids
_A, _O = labels.imagenet_a_wnids(), labels.imagenet_o_wnids()
_D = labels.imagenet_d_categories()
A_AND_O = tuple(sorted(set(_A) & set(_O)))[:3]
SPURIOUS = tuple(c.wnid for c in labels.spurious_classes()[:2])
ONLY_D = tuple(_WNIDS[c.indices[0]] for c in _D if _WNIDS[c.indices[0]] not in (*_A, *_O, *SPURIOUS))[:2]
VALIDATION = (*A_AND_O, *SPURIOUS, *ONLY_D)
VALIDATION_PICTURES = 3  # of each class

FACTORIES = '''
import time
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from hf_robust.labels import LabelSpace, imagenet_1k
from hf_robust.models import Head, ImageClassifier
from hf_robust.models.preprocessing import measured

TRANSFORM = Compose([Resize((32, 32)), ToTensor(), Normalize((0.5,) * 3, (0.25,) * 3)])


class Tiny(torch.nn.Module):
    def __init__(self, outputs=1000):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.convolution = torch.nn.Conv2d(3, 8, 5, stride=4)
            self.head = torch.nn.Linear(8, outputs)

    def forward(self, batch):
        return self.head(self.convolution(batch).relu().mean((2, 3)))


class Counting(Tiny):
    def forward(self, batch):
        with Path(__file__).with_name("forwarded.txt").open("a") as stream:
            stream.write(f"{len(batch)}\\n")
        return super().forward(batch)


class Slow(Tiny):
    def forward(self, batch):
        time.sleep(0.1)
        return super().forward(batch)


class NotFiniteOnBlack(Tiny):
    def forward(self, batch):
        black = (batch.mean((1, 2, 3)) < -1.9).float()[:, None]
        return super().forward(batch) + 0 / (1 - black)


class OnlySmall(Tiny):
    def forward(self, batch):
        if batch.shape[-1] != 32:
            raise AssertionError(f"expected 32 pixels, got {batch.shape[-1]}")
        return super().forward(batch)


class OneRow(Tiny):
    def forward(self, batch):
        return super().forward(batch).mean(0, keepdim=True)


class OutOfMemory(Tiny):
    def forward(self, batch):
        if len(batch) > 1:
            raise RuntimeError("tried to allocate more than there is")
        return super().forward(batch)


def plain(): return Tiny(), TRANSFORM
def counting(): return Counting(), TRANSFORM
def slow(): return Slow(), TRANSFORM
def with_background(): return Tiny(1001), TRANSFORM
def of_21k(): return Tiny(21841), TRANSFORM
def not_finite_on_black(): return NotFiniteOnBlack(), TRANSFORM
def only_small(): return OnlySmall(), TRANSFORM
def one_row(): return OneRow(), TRANSFORM
def out_of_memory(): return OutOfMemory(), TRANSFORM


def fragile():
    """Its transform fails on pictures of one pixel."""
    def transform(picture):
        if picture.width == 1:
            raise IndexError("too narrow")
        return TRANSFORM(picture)
    return Tiny(), transform


def zero_shot():
    module = Tiny(6)
    weight = np.random.default_rng(0).normal(size=(1113, 6)).astype(np.float32)
    bias = np.zeros(1000, np.float32)
    categories = LabelSpace("imagenet-d", tuple(map(str, range(113))))
    return ImageClassifier(
        "zero-shot", module, measured(TRANSFORM, {}, name="zero-shot"), imagenet_1k(),
        lambda batch: {"embeddings": torch.nn.functional.normalize(module(batch), dim=-1)},
        {
            "imagenet-1k": Head(weight[:1000], bias, imagenet_1k()),
            "imagenet-d": Head(weight[1000:], bias[:113], categories),
        },
        prompts="of a test",
    )
'''


@dataclass(frozen=True)
class Sets:
    """Where the small sets lie: built ones in `data`, validation pictures in WordNet-id folders, model factories."""

    data: Path
    validation: Path
    factories: Path

    def model(self, name: str) -> str:
        return f"{self.factories}:{name}"


def picture(seed: int, *, kind: str = "PNG", size: tuple[int, int] = (16, 12)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_validation(folder: Path, wnids: Sequence[str] = VALIDATION, *, each: int = VALIDATION_PICTURES) -> Path:
    for k, wnid in enumerate(wnids):
        for i in range(each):
            number = 1 + k * each + i
            write(folder / wnid / f"ILSVRC2012_val_{number:08d}.JPEG", picture(50_000 + number, kind="JPEG"))
    return folder


def build_a(out: Path, work: Path, rows: int) -> None:
    for i in range(rows):
        name = f"imagenet-a/{A_AND_O[i % 3]}/0.{i + 1:06d}_bucket _ washbasin_0.5.jpg"
        write(work / name, picture(i, kind="JPEG"))
    build("imagenet-a", work / "imagenet-a", allow_incomplete=True, out=out)


def build_o(out: Path, work: Path, rows: int) -> None:
    for i in range(rows):
        write(work / f"imagenet-o/{A_AND_O[i % 3]}/thing_0.9{i + 1:06d}.JPEG", picture(1000 + i, kind="JPEG"))
    build("imagenet-o", work / "imagenet-o", allow_incomplete=True, out=out)


def make_sets(folder: Path, *, a: int = 17, o: int = 250) -> Sets:
    """ImageNet-A of `a` pictures, -O of `o`, Spurious of 4, -D of 6, validation pictures of seven classes."""
    data, work = folder / "data", folder / "work"
    build_a(data, work, a)
    build_o(data, work, o)
    for i in range(4):
        index = labels.imagenet_1k_index()[SPURIOUS[i % 2]]
        write(work / f"images/spurious_class_{index}_component_{i}/{i}.png", picture(2000 + i))
    build("spurious-imagenet", work / "images", allow_incomplete=True, out=data)
    for i, kind in enumerate(("background", "texture", "material") * 2):
        write(work / f"d/{kind}/{_D[i % 2].folder}/{i:021d}.png", picture(3000 + i))
    build("imagenet-d", work / "d", allow_incomplete=True, out=data)
    factories = write(folder / "factories.py", FACTORIES.encode())
    return Sets(data, write_validation(folder / "validation"), factories)


def needs_of(sets: Sets, *names: str, options: RunOptions | None = None) -> Needs:
    asked = options or RunOptions()
    places = DataPlaces(sets.data, str(sets.validation))
    return gather([benchmark(n) for n in names], asked.mode, places, limit=asked.limit, seed=asked.seed)


def run(sets: Sets, runs: Path, model: str, *names: str, world: World = ALONE, **options: Any) -> Path:
    """The run's folder after evaluating the factory `model` on the benchmarks in this process."""
    asked = RunOptions(**options)
    full_name = sets.model(model) if "/" not in model else model
    return evaluate(
        full_name, [benchmark(n) for n in names], needs_of(sets, *names, options=asked), runs,
        options=asked, world=world, meter=lambda done, total: None,
    )  # fmt: skip


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run that must not depend on who wrote it when: all but the log of times."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.name != "log.jsonl")
    return {str(path.relative_to(run)): path.read_bytes() for path in files}
