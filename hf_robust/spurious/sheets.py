"""A page and a contact sheet for each class: its components, the pictures that show them most, what the model sees.

And one page that leads to them all."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..labels import imagenet_1k, imagenet_1k_names, spurious_classes
from ..schema import Outputs
from .alpha_files import StoredPCA
from .training import Training

if TYPE_CHECKING:
    from PIL.Image import Image

    from .visualise import Visualisation

SHOWN = 10  # components a page, as on the published ones
EXAMPLES = 6
_TILE, _GAP, _WORDS, _TITLE = 160, 8, 200, 64  # pixels of the contact sheet
_INK, _MUTED, _PAPER, _TINT = "#1d1f23", "#555b64", "#ffffff", "#e6e9ed"
_QUALITY = 85

Read = Callable[[str, str | None], "Image | None"]
Visualise = Callable[[StoredPCA, Sequence[int]], "Sequence[Visualisation]"]
Locate = Callable[[StoredPCA, int, "Sequence[Image]"], "Sequence[Image]"]
INDEX = "index.html"


@dataclass(frozen=True)
class Example:
    """A training picture and its alpha; `picture` is None where it is not on this machine as it was evaluated.

    heat  the picture as the model sees it, with where it shows the component laid over it; None where not asked for.
    """

    id: str
    alpha: float
    picture: Image | None
    heat: Image | None = None


@dataclass(frozen=True)
class Component:
    """One component: its share of the variance of the class's weighted features, its examples, its visualisation."""

    number: int
    share: float
    examples: tuple[Example, ...]
    seen: Visualisation | None

    @property
    def words(self) -> tuple[str, ...]:
        """The figures as lines of text, the number first."""
        lines = (f"Component {self.number}", f"{100 * self.share:.1f} % of the variance")
        if self.seen is None:
            return lines
        return (*lines, f"alpha {self.seen.grey:.2f} to {self.seen.alpha:.2f}", f"p(class) {self.seen.probability:.3f}")


@dataclass(frozen=True)
class Sheet:
    """What is shown of a class. `pictures` training pictures; `tried` components were candidates for the page."""

    name: str
    model: str
    pictures: int
    tried: int
    components: tuple[Component, ...]

    @property
    def lacking(self) -> int:
        """Examples whose picture is not on this machine."""
        return sum(e.picture is None for c in self.components for e in c.examples)

    @property
    def located(self) -> bool:
        """Whether it is shown where in the pictures the components are."""
        return any(e.heat is not None for c in self.components for e in c.examples)


@dataclass(frozen=True)
class Entry:
    """A line of the index: the class, what it is known to be confused by ("" for no known feature), its two files."""

    index: int
    name: str
    wnid: str
    feature: str
    page: str
    picture: str


def classes_in(folder: Path) -> tuple[int, ...]:
    """The ImageNet-1k indices whose components lie in a folder; LookupError where there are none."""
    found = tuple(sorted(int(path.stem.removeprefix("class-")) for path in folder.glob("class-[0-9]*.safetensors")))
    if not found:
        raise LookupError(
            f"expected class-*.safetensors in {folder}, got none: hf-robust neural-pca fit --out {folder}"
        )
    return found


def nowhere(stored: StoredPCA, component: int, pictures: Sequence[Image]) -> Sequence[Image]:
    """No picture: what `sheet_of` takes where nobody asked where the components are."""
    return ()


def sheet_of(
    training: Training,
    stored: StoredPCA,
    candidates: Sequence[int],
    visualise: Visualise,
    read: Read,
    *,
    locate: Locate = nowhere,
) -> Sheet:
    """What to show of a class: up to ten components, with the training pictures of largest alpha.

    candidates  component numbers in order of eigenvalue.
    visualise   gives a visualisation of each of them, and the ten of highest probability of the class are shown; or
                gives none, and the first ten are.
    read        id and SHA-256 of a training picture -> the picture, or None.
    locate      a component and pictures -> each picture with where it shows the component; or none.
    ValueError where the components belong to another run.
    """
    index = int(stored.facts["class"])
    rows = training.of_class(index)
    refuse_other_run(training, stored, rows)
    hashes = dict(zip(rows.ids, rows.sha256 or (None,) * len(rows), strict=True))
    psi = training.features(rows).astype(np.float64) * stored.pca.weight
    variance = float(psi.var(axis=0, ddof=1).sum())
    seen = visualise(stored, candidates)
    by_number = {one.component: one for one in seen}
    shown = most_confident(seen) if seen else tuple(candidates[:SHOWN])

    def component(number: int) -> Component:
        examples = [Example(key, alpha, read(key, hashes[key])) for key, alpha in most_activating(stored, number)]
        heat = iter(locate(stored, number, [e.picture for e in examples if e.picture is not None]))
        examples = [e if e.picture is None else replace(e, heat=next(heat, None)) for e in examples]
        share = float(stored.pca.eigenvalues[number]) / variance if variance else 0.0
        return Component(number, share, tuple(examples), by_number.get(number))

    name = f"{index} {imagenet_1k_names()[index]} ({stored.facts['wnid']})"
    return Sheet(name, str(stored.facts["model"]), len(rows), len(candidates), tuple(map(component, shown)))


def refuse_other_run(training: Training, stored: StoredPCA, rows: Outputs) -> None:
    """Nothing where the components were fitted to this run; ValueError for another."""
    differ = sorted(name for name, value in training.provenance().items() if stored.facts.get(name) != value)
    if differ or set(stored.ids) != set(rows.ids):
        raise ValueError(
            f"expected the run that the components of class {stored.facts['class']} were fitted to, got "
            f"{training.folder} with another {', '.join(differ) or 'set of pictures'}: give that --run, or fit again"
        )


def most_confident(seen: Sequence[Visualisation]) -> tuple[int, ...]:
    """The components whose visualisation the model calls the class with most confidence, at most ten, surest first."""
    return tuple(one.component for one in sorted(seen, key=lambda one: (-one.probability, one.component))[:SHOWN])


def most_activating(stored: StoredPCA, component: int) -> tuple[tuple[str, float], ...]:
    """Ids and alphas of the training pictures that a component speaks for most, largest first, above 0; ties by id."""
    alphas = stored.alphas[:, component]
    order = sorted(range(len(alphas)), key=lambda i: (-alphas[i], stored.ids[i]))
    return tuple((stored.ids[i], float(alphas[i])) for i in order[:EXAMPLES] if alphas[i] > 0)


def write_sheet(folder: Path, index: int, sheet: Sheet) -> tuple[Path, Path]:
    """Write the page and the contact sheet of a class; returns both paths. Equal sheets give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = (folder / f"class-{index:04d}.{kind}" for kind in ("html", "png"))
    page.write_text(render(sheet), encoding="utf-8")
    picture.write_bytes(contact_sheet(sheet))
    return page, picture


def write_index(folder: Path) -> Path:
    """Write the page that leads to the page of every class in `folder`, whenever that was written; returns its path."""
    features = {c.index: c.feature for c in spurious_classes()}
    names, wnids = imagenet_1k_names(), imagenet_1k().wnids
    numbers = sorted(int(path.stem.removeprefix("class-")) for path in folder.glob("class-[0-9][0-9][0-9][0-9].html"))
    entries = [
        Entry(k, names[k], wnids[k], features.get(k, ""), f"class-{k:04d}.html", f"class-{k:04d}.png")
        for k in numbers
        if k < len(names)
    ]
    path = folder / INDEX
    path.write_text(_filled("components_index.html.jinja", entries=entries), encoding="utf-8")
    return path


def render(sheet: Sheet) -> str:
    """The page as HTML. Every text is escaped; it holds no script and loads nothing."""
    return _filled("components.html.jinja", sheet=sheet, picture=_as_jpeg, pixels=_as_picture, index=INDEX)


def _filled(template: str, **content: Any) -> str:
    """A template of the package with its style sheet and content."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ImportError('the page of a class needs jinja2: pip install "hf-robust[report]"') from error

    assets = files("hf_robust") / "assets"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    text = (assets / template).read_text(encoding="utf-8")
    style = Markup((assets / "report.css").read_text(encoding="utf-8"))
    return environment.from_string(text).render(style=style, **content) + "\n"


def contact_sheet(sheet: Sheet) -> bytes:
    """The same as one PNG: a row a component, words, visualisation, examples; below an example where it shows it."""
    from PIL import Image, ImageDraw, ImageFont

    drawn = any(c.seen is not None for c in sheet.components)
    across = drawn + max((len(c.examples) for c in sheet.components), default=0)
    high = _TILE + 24 + _GAP + sheet.located * (_TILE + _GAP)
    size = (_WORDS + across * (_TILE + _GAP) + _GAP, _TITLE + len(sheet.components) * high)
    canvas = Image.new("RGB", (max(size[0], 480), size[1]), _PAPER)
    pen = ImageDraw.Draw(canvas)
    large, small = ImageFont.load_default(18), ImageFont.load_default(13)
    pen.text((_GAP, _GAP), _plain(sheet.name, 90), fill=_INK, font=large)
    pen.text((_GAP, 36), _plain(f"{sheet.model}, {sheet.pictures} training pictures", 120), fill=_MUTED, font=small)
    for row, component in enumerate(sheet.components):
        top = _TITLE + row * high
        for line, words in enumerate(component.words):
            pen.text((_GAP, top + 20 * line), words, fill=_MUTED if line else _INK, font=small)
        for place, (picture, words, heat) in enumerate(_tiles(component)):
            left = _WORDS + place * (_TILE + _GAP)
            canvas.paste(_tile(picture), (left, top))
            pen.text((left, top + _TILE + 3), words, fill=_MUTED, font=small)
            if heat is not None:
                canvas.paste(_tile(heat), (left, top + _TILE + 24))
    stream = io.BytesIO()
    canvas.save(stream, format="PNG")
    return stream.getvalue()


def _tiles(component: Component) -> list[tuple[Image | None, str, Image | None]]:
    """What stands in a component's row: picture, words below it, and below those where it is."""
    seen = [] if component.seen is None else [(_as_picture(component.seen.pixels), "visualisation", None)]
    return [*seen, *((e.picture, f"alpha {e.alpha:.2f}", e.heat) for e in component.examples)]


def _tile(picture: Image | None) -> Image:
    from PIL import Image, ImageOps

    if picture is None:
        return Image.new("RGB", (_TILE, _TILE), _TINT)
    return ImageOps.pad(picture, (_TILE, _TILE), color=_TINT)


def _as_picture(pixels: Any) -> Image:
    from PIL import Image

    return Image.fromarray(pixels)


def _as_jpeg(picture: Image) -> str:
    """A copy of at most 224 pixels a side, as a data address."""
    small = picture.copy()
    small.thumbnail((224, 224))
    stream = io.BytesIO()
    small.save(stream, format="JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def _plain(text: str, longest: int) -> str:
    """On one line, without control characters, cut to `longest`."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= longest else line[: longest - 1] + "…"
