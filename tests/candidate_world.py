"""Candidates with known pictures: a first stage for the tests of mining and filtering, and models that judge them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from toy_world import FACTORY, draw

from hf_robust.labels import imagenet_d_categories
from hf_robust.regenerate.ledger import Ledger
from hf_robust.regenerate.stage import Source, Stage, Work, row_id, run_stage
from hf_robust.runner import World

NUISANCES = ("background", "texture", "material")
PART = 10


@dataclass(frozen=True)
class DrawnSettings:
    """How many pictures, of the first categories of ImageNet-D; strangeness blends in another class."""

    rows: int = 30
    strangeness: float = 0.9
    broken: int | None = None  # the position of a picture that cannot be read


def silent(done: int, total: int) -> None:
    pass


def work_in(out: Path, rows: Ledger | None = None, world: World | None = None) -> Work:
    return Work(out, world or World(0, 1, "cpu"), silent, rows)


def drawn_row(n: int, settings: DrawnSettings) -> dict[str, Any]:
    category = imagenet_d_categories()[n % 5]
    rng = np.random.default_rng(n)
    content = draw(int(rng.choice(category.indices)), rng, kind="PNG", strangeness=settings.strangeness)
    content = b"no picture" if n == settings.broken else content
    return {
        "row_id": row_id({"n": n}),
        "category": category.folder,
        "display_name": category.display_name,
        "labels": list(category.indices),
        "nuisance": NUISANCES[n % 3],
        "nuisance_name": f"place {n % 7}",
        "prompt": f"a {category.display_name}",
        "seed": n,
        "image": content,
        "image_sha256": hashlib.sha256(content).hexdigest(),
    }


def _start(settings: DrawnSettings, work: Work) -> Source:
    def make(part: int) -> pa.Table:
        rows = range(PART * part, min(PART * (part + 1), settings.rows))
        return pa.Table.from_pylist([drawn_row(n, settings) for n in rows])

    return Source({}, -(-settings.rows // PART), make, settings.rows)


DRAWN = Stage("drawn", "pictures of known classes", DrawnSettings, _start)


def drawn(out: Path, settings: DrawnSettings | None = None) -> Ledger:
    """The first stage: pictures, a colour grid a class, of the first five categories."""
    return run_stage(DRAWN, settings or DrawnSettings(), work_in(out))


def judges(folder: Path, noise: Sequence[float]) -> tuple[str, ...]:
    """Model sources that know the grids, each with so much noise on its weights."""
    names = []
    for i, level in enumerate(noise):
        path = folder / f"judge{i}.py"
        shaken = f"\n    torch.manual_seed({i})\n    m = Grids()\n    w = m.fc.weight.data\n"
        shaken += f"    m.fc.weight.data = w + {level} * torch.randn_like(w)\n    return m\n"
        path.write_text(FACTORY.replace("\n    return Grids()\n", shaken))
        names.append(f"{path}:build")
    return tuple(names)


def pixels(content: bytes) -> Image.Image:
    """The picture of those bytes."""
    return Image.open(io.BytesIO(content)).convert("RGB")
