"""A picture of its own for each component, and the list of them by class: what people are asked about one by one."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..labels import imagenet_1k_names
from ..predictions.plan import DamagedError, read_json, write_json
from .sheets import Component, Sheet

if TYPE_CHECKING:
    from PIL.Image import Image

_LIST = "class-[0-9]*.json"
_SHEET = re.compile(r"class-\d+/component-\d+\.png")
_TILE, _GAP, _ACROSS = 224, 8, 3  # pixels, pixels, tiles: on a phone a tile is still 120 pixels wide


@dataclass(frozen=True)
class ListedSheet:
    """The sheet of one component: its ImageNet-1k class, its number from 0, what the class is called, its picture."""

    index: int
    component: int
    subject: str
    model: str
    picture: Path


def write_component_sheets(folder: Path, index: int, sheet: Sheet) -> Path:
    """The file folder/class-<index>.json, which names a picture for each component of the sheet. Same bytes again.

    A component of which no picture is on this machine is left out: there is nothing to judge.
    """
    stem = f"class-{index:04d}"
    (folder / stem).mkdir(parents=True, exist_ok=True)
    sheets = {}
    for component in sheet.components:
        tiles = _tiles(component)
        if not tiles:
            continue
        name = f"{stem}/component-{component.number:03d}.png"
        (folder / name).write_bytes(_grid(tiles))
        sheets[str(component.number)] = name
    path = folder / f"{stem}.json"
    subject = imagenet_1k_names()[index]
    write_json(path, {"class": index, "subject": subject, "model": sheet.model, "components": sheets})
    return path


def _tiles(component: Component) -> list[Image]:
    """The visualisation, the examples, then where they show the component, as far as there is each; no words."""
    from PIL import Image

    seen = [] if component.seen is None else [Image.fromarray(component.seen.pixels)]
    shown = [e.picture for e in component.examples if e.picture is not None]
    return [*seen, *shown, *(e.heat for e in component.examples if e.heat is not None)]


def _grid(tiles: list[Image]) -> bytes:
    from PIL import Image, ImageOps

    across = min(_ACROSS, len(tiles))
    down = -(-len(tiles) // across)
    step = _TILE + _GAP
    canvas = Image.new("RGB", (across * step + _GAP, down * step + _GAP), "#ffffff")
    for place, tile in enumerate(tiles):
        corner = (_GAP + place % across * step, _GAP + place // across * step)
        canvas.paste(ImageOps.pad(tile.convert("RGB"), (_TILE, _TILE), color="#e6e9ed"), corner)
    stream = io.BytesIO()
    canvas.save(stream, format="PNG")
    return stream.getvalue()


def read_component_sheets(folder: Path) -> tuple[ListedSheet, ...]:
    """Every sheet that is listed in a folder, by class and component.

    LookupError where no list lies there; ValueError names a list that is damaged, or a picture that is not there.
    """
    paths = sorted(folder.glob(_LIST))
    if not paths:
        raise LookupError(
            f"expected the sheets of components that `hf-robust neural-pca show --out` wrote in {folder}, got no "
            "class-*.json: run it first"
        )
    return tuple(sheet for path in paths for sheet in _read(path))


def _read(path: Path) -> list[ListedSheet]:
    try:
        values = read_json(path, ["class", "subject", "model", "components"])
    except DamagedError as error:
        raise _wrong(path, "no such object") from error
    index, sheets = values["class"], values["components"]
    good = isinstance(index, int) and 0 <= index < len(imagenet_1k_names()) and isinstance(sheets, dict)
    if not good or not all(n.isascii() and n.isdigit() and _SHEET.fullmatch(str(name)) for n, name in sheets.items()):
        raise _wrong(path, json.dumps(values)[:100])
    if not sheets:
        raise _wrong(path, "one without a sheet: give --imagenet-train, so that there are pictures to show;")
    missing = [name for name in sheets.values() if not (path.parent / name).is_file()]
    if missing:
        raise _wrong(path, f"one that names {missing[0]}, which is not there")
    return [
        ListedSheet(index, int(n), str(values["subject"]), str(values["model"]), path.parent / sheets[n])
        for n in sorted(sheets, key=int)
    ]


def _wrong(path: Path, got: str) -> ValueError:
    return ValueError(f"expected a list of sheets in {path}, got {got}: run `hf-robust neural-pca show` again")
