"""Zero-shot classifiers: class weights from texts, one head a class list, and the files that change the texts."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import labels
from .base import Head, ImageClassifier, ModelError, Preprocessing, Request
from .trouble import library_errors

if TYPE_CHECKING:
    import torch

    Encoder = Callable[..., torch.Tensor]

IMAGENET_1K, IMAGENET_D = "imagenet-1k", "imagenet-d"
IMAGENET_D_TEMPLATES = ("A photo of a {c}",)
IMAGENET_D_SCALE = 100.0
SIMPLE_TEMPLATES = ("a photo of a {c}.",)
_TEXTS_AT_ONCE = 256


@dataclass(frozen=True)
class PromptSet:
    """The texts of one head: every template with every class name; `scale` None is the model's own."""

    templates: tuple[str, ...]
    names: tuple[str, ...]
    label_space: labels.LabelSpace
    scale: float | None = None

    def texts(self, start: int, stop: int) -> list[str]:
        """The texts of the classes from `start` to `stop`, all templates of a class together."""
        return [template.replace("{c}", name) for name in self.names[start:stop] for template in self.templates]


def imagenet_d_prompt_name(display_name: str) -> str:
    """A category's name as it stands in the prompt of ImageNet-D's zero-shot protocol.

    >>> imagenet_d_prompt_name("coffee/french press"), imagenet_d_prompt_name("t-shirt")
    ('coffee or french press', 't shirt')
    """
    return display_name.replace("_", " ").replace("-", " ").replace("/", " or ").lower()


@cache
def imagenet_templates() -> tuple[str, ...]:
    """The 80 ImageNet templates that open_clip carries; one plain template where open_clip is not installed."""
    if find_spec("open_clip") is None:
        return SIMPLE_TEMPLATES
    from open_clip import OPENAI_IMAGENET_TEMPLATES

    return tuple(template("{c}") for template in OPENAI_IMAGENET_TEMPLATES)


def read_templates(path: Path) -> tuple[str, ...]:
    """The templates of a file, one a line, blank lines skipped; ModelError names the first line without {c}."""
    lines = [line.strip() for line in _text(path, "--prompts").splitlines()]
    for number, line in enumerate(lines, 1):
        if line and line.count("{c}") != 1:
            raise ModelError(f"{path}, line {number}: expected a template with {{c}} once for the class, got {line!r}")
    templates = tuple(line for line in lines if line)
    if not templates:
        raise ModelError(f"{path}: expected a template a line, such as 'a photo of a {{c}}.', got an empty file")
    if len(set(templates)) != len(templates):
        raise ModelError(f"{path}: expected each template once, got one repeated")
    return templates


def read_class_names(path: Path) -> tuple[str, ...]:
    """The 1,000 class names in ImageNet's order: from lines in that order, or from a CSV file of wnid,name in any.

    Raises ModelError unless there are exactly 1,000, none empty, no two equal.
    """
    lines = [line.strip() for line in _text(path, "--class-names").rstrip().splitlines()]
    if lines and lines[0].replace(" ", "").lower().startswith("wnid,name"):
        names = _names_by_wnid(path, lines[1:])
    elif lines and lines[0][:9] in labels.imagenet_1k_index() and lines[0][9:10] == ",":
        names = _names_by_wnid(path, lines)
    else:
        names = tuple(lines)
    if len(names) != 1000:
        raise ModelError(f"{path}: expected 1,000 class names, got {len(names):,}")
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name:
            raise ModelError(f"{path}: expected a name for every class, got none for class {index}")
        if name in first:
            raise ModelError(f"{path}: expected unique names, got {name!r} for the classes {first[name]} and {index}")
        first[name] = index
    return names


def _names_by_wnid(path: Path, lines: Sequence[str]) -> tuple[str, ...]:
    names: dict[str, str] = {}
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:
        raise ModelError(f"{path}: expected lines of wnid,name, got {error}") from error
    for row in rows:
        wnid = row[0].strip() if row else ""
        if len(row) != 2 or wnid not in labels.imagenet_1k_index() or wnid in names:
            raise ModelError(f"{path}: expected wnid,name with each ImageNet wnid once, got {','.join(row)!r}")
        names[wnid] = row[1].strip()
    return tuple(names[wnid] for wnid in labels.imagenet_1k().wnids if wnid in names)


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{option} {path}: expected a UTF-8 text file, got {error}") from error


def prompt_sets(*, prompts: Path | None = None, class_names: Path | None = None) -> dict[str, PromptSet]:
    """The texts of both heads; the files change ImageNet's, the protocol fixes ImageNet-D's."""
    categories = labels.imagenet_d_categories()
    return {
        IMAGENET_1K: PromptSet(
            imagenet_templates() if prompts is None else read_templates(prompts),
            labels.imagenet_1k_names() if class_names is None else read_class_names(class_names),
            labels.imagenet_1k(),
        ),
        IMAGENET_D: PromptSet(
            IMAGENET_D_TEMPLATES,
            tuple(imagenet_d_prompt_name(c.display_name) for c in categories),
            labels.LabelSpace(IMAGENET_D, tuple(c.folder for c in categories)),
            IMAGENET_D_SCALE,
        ),
    }


def prompts_hash(sets: Mapping[str, PromptSet]) -> str:
    """SHA-256 over the templates, class names and fixed scale of every head."""
    content = {name: [s.templates, s.names, s.scale] for name, s in sets.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class TextHeads(Mapping[str, Head]):
    """Heads computed from texts when first read, on the device where the module then is.

    80 templates of 1,000 classes are 80,000 texts: a process that does not write heads never encodes them.
    """

    def __init__(self, sets: Mapping[str, PromptSet], encode_text: Encoder, scale: Callable[[], float], name: str):
        self._sets, self._encode_text, self._scale, self._name = sets, encode_text, scale, name
        self._heads: dict[str, Head] = {}

    def __getitem__(self, name: str) -> Head:
        if name not in self._heads:
            prompt_set = self._sets[name]
            scale = self._scale() if prompt_set.scale is None else prompt_set.scale
            with library_errors(f"{self._name}: its text tower failed"):
                weight = scale * class_weights(prompt_set, self._encode_text)
            bias = np.zeros(len(weight), dtype=np.float32)
            self._heads[name] = Head(weight.astype(np.float32), bias, prompt_set.label_space)
        return self._heads[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)


def class_weights(prompt_set: PromptSet, encode_text: Encoder) -> Any:
    """float64 (classes, D): of each class the normalised mean over templates of its normalised text embeddings."""
    import torch

    step = max(1, _TEXTS_AT_ONCE // len(prompt_set.templates))
    rows = []
    with torch.no_grad():
        for start in range(0, len(prompt_set.names), step):
            texts = prompt_set.texts(start, start + step)
            embeddings = torch.nn.functional.normalize(encode_text(texts).double().cpu(), dim=-1)
            means = embeddings.reshape(-1, len(prompt_set.templates), embeddings.shape[-1]).mean(dim=1)
            rows.append(torch.nn.functional.normalize(means, dim=-1))
    return torch.cat(rows).numpy()


def zero_shot(
    request: Request,
    module: torch.nn.Module,
    preprocessing: Preprocessing,
    *,
    encode_image: Encoder,
    encode_text: Encoder,
) -> ImageClassifier:
    """The classifier that gives normalised image embeddings, and heads whose logits are scale x cosine."""
    import torch

    module = module.float().eval().requires_grad_(False)
    sets = prompt_sets(prompts=request.prompts, class_names=request.class_names)

    def forward(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"embeddings": torch.nn.functional.normalize(encode_image(batch).float(), dim=-1)}

    def scale() -> float:
        value: Any = getattr(module, "logit_scale", None)
        if value is None:
            raise ModelError(f"{request.name}: expected a model with a logit_scale, got {type(module).__name__}")
        return float(value.detach().double().exp())

    side = preprocessing.size
    with torch.no_grad(), library_errors(f"{request.name}: it failed on one picture of {side} x {side} pixels"):
        embeddings = forward(torch.zeros(1, 3, side, side))["embeddings"]
    if embeddings.ndim != 2:
        raise ModelError(f"{request.name}: expected one embedding a picture, got shape {tuple(embeddings.shape)}")
    return ImageClassifier(
        name=request.name,
        module=module,
        preprocessing=preprocessing,
        label_space=labels.imagenet_1k(),
        forward=forward,
        heads=TextHeads(sets, encode_text, scale, request.name),
        prompts=prompts_hash(sets),
    )
