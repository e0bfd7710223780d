"""Stage `prompts`: every category with every nuisance, as prompt and seed; the rows of a generated benchmark."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from ..predictions.parts import PART_ROWS
from ..predictions.plan import canonical
from .pairs import KINDS, Nuisances, Subject, read_nuisances, read_subjects, read_templates
from .stage import ROW_ID, Source, Stage, StageError, Work, row_id, seed_of

Item = TypeVar("Item")
SCHEMA = pa.schema(
    [
        (ROW_ID, pa.string()),
        ("category", pa.string()),
        ("display_name", pa.string()),
        ("labels", pa.list_(pa.int32())),
        ("nuisance", pa.string()),
        ("nuisance_name", pa.string()),
        ("prompt", pa.string()),
        ("seed", pa.int64()),
        ("repeat", pa.int32()),
    ]
)


@dataclass(frozen=True)
class PromptSettings:
    """Which prompts: the published categories and nuisances unless files say otherwise.

    categories   CSV file with the columns folder, display_name, imagenet_1k (indices or WordNet ids, blanks between);
                 None: the 113 categories of ImageNet-D.
    backgrounds, textures, materials   text files, a name a line; None: the 468, 47 and 32 names of ImageNet-D.
    nuisances    the kinds that are used, of background, texture, material.
    templates    CSV file with the columns kind, template ({c} the category, {n} the nuisance); several a kind are taken
                 in turn by the images of a pair. None: ours, since the published wording is not known.
    images       images of each pair of a category and a nuisance.
    limit        number of prompts in all, evenly over kinds, categories and nuisances, drawn by `seed`; None: all.
    part_rows    rows of a part: what a killed process loses at most, and what one process takes at a time.
    """

    categories: str | None = None
    backgrounds: str | None = None
    textures: str | None = None
    materials: str | None = None
    nuisances: tuple[str, ...] = KINDS
    templates: str | None = None
    images: int = 1
    seed: int = 0
    limit: int | None = None
    part_rows: int = PART_ROWS


@dataclass(frozen=True)
class Grid:
    """Categories × nuisances of each kind × images, and how many of each kind are wanted.

    The order is drawn by the seed so that the first rows of a kind are spread evenly over categories and nuisances; a
    limit takes the first rows of each kind, so that a small set is part of every larger one.
    """

    subjects: tuple[Subject, ...]
    nuisances: tuple[Nuisances, ...]
    counts: tuple[int, ...]
    seed: int

    def __len__(self) -> int:
        return sum(self.counts)

    def row(self, index: int) -> dict[str, object]:
        """The columns of one row, without any other row being made."""
        kind, m = 0, index
        while m >= self.counts[kind]:
            m -= self.counts[kind]
            kind += 1
        nuisances = self.nuisances[kind]
        start = kind * -(-len(self.subjects) // len(self.nuisances))  # so that few rows a kind meet other categories
        subject, name, repeat = pair(m, len(self.subjects), len(nuisances.names))
        subject = (subject + start) % len(self.subjects)
        return self._columns(self.subjects[subject], nuisances, nuisances.names[name], repeat)

    def _columns(self, subject: Subject, nuisances: Nuisances, name: str, repeat: int) -> dict[str, object]:
        template = nuisances.templates[repeat % len(nuisances.templates)]
        lineage = {
            "category": subject.folder,
            "nuisance": nuisances.kind,
            "nuisance_name": name,
            "repeat": repeat,
            "prompt": template.format(c=subject.prompt_name, n=name),
            "seed": seed_of(self.seed, subject.folder, nuisances.kind, name, repeat),
        }
        shown = {"display_name": subject.display_name, "labels": list(subject.labels)}
        return {ROW_ID: row_id(lineage), **lineage, **shown}


def pair(m: int, first: int, second: int) -> tuple[int, int, int]:
    """The m-th of first × second pairs, and how often all pairs were through before.

    Both indices go round, so that the first few pairs already are spread over all of both.

    >>> [pair(m, 2, 2) for m in range(5)]
    [(0, 0, 0), (1, 1, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)]
    """
    repeat, p = divmod(m, first * second)
    return p % first, (p + p // math.lcm(first, second)) % second, repeat


def grid(settings: PromptSettings) -> Grid:
    """The rows that the settings ask for; StageError says what is wrong with a setting or a file."""
    _check(settings)
    subjects = _shuffled(read_subjects(settings.categories), settings.seed, lambda subject: subject.folder)
    templates = read_templates(settings.templates)
    files = {"background": settings.backgrounds, "texture": settings.textures, "material": settings.materials}
    nuisances = []
    for kind in settings.nuisances:
        if kind not in templates:
            raise StageError(f"expected a template of kind {kind!r} in {settings.templates}, got none: add a line")
        names = _shuffled(read_nuisances(kind, files[kind]), settings.seed, str)
        nuisances.append(Nuisances(kind, names, templates[kind]))
    sizes = [len(subjects) * len(n.names) * settings.images for n in nuisances]
    return Grid(subjects, tuple(nuisances), shares(sizes, settings.limit), settings.seed)


def shares(sizes: Sequence[int], limit: int | None) -> tuple[int, ...]:
    """How many of each kind: `limit` in all as evenly as the sizes allow, the first kinds taking what is left over.

    >>> shares([50, 2, 50], 11), shares([3, 4], None)
    ((5, 2, 4), (3, 4))
    """
    if limit is None:
        return tuple(sizes)
    given, left = dict.fromkeys(range(len(sizes)), 0), min(limit, sum(sizes))
    waiting = sorted(given, key=lambda k: (sizes[k], -k))
    while waiting:
        kind = waiting.pop(0)
        given[kind] = min(sizes[kind], left // (len(waiting) + 1))
        left -= given[kind]
    return tuple(given[k] for k in range(len(sizes)))


def counts(settings: PromptSettings) -> dict[str, int]:
    """Number of rows of each kind of nuisance."""
    rows = grid(settings)
    return {n.kind: count for n, count in zip(rows.nuisances, rows.counts, strict=True)}


def _check(settings: PromptSettings) -> None:
    unknown = [kind for kind in settings.nuisances if kind not in KINDS]
    if unknown:
        raise StageError(f"unknown kind of nuisance {unknown[0]!r}; known: {', '.join(KINDS)}")
    if not settings.nuisances or len(set(settings.nuisances)) < len(settings.nuisances):
        raise StageError(f"expected kinds of nuisances, each once, got {list(settings.nuisances)}")
    for name in ("images", "limit", "part_rows"):
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise StageError(f"expected {name} of stage 'prompts' to be a whole number of at least 1, got {value!r}")


def _shuffled(items: Sequence[Item], seed: int, name: Callable[[Item], str]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: hashlib.sha256(f"{seed}:{name(item)}".encode()).hexdigest()))


def start(settings: PromptSettings, work: Work) -> Source:
    """The prompts as rows; a part is made from its row numbers alone."""
    rows = grid(settings)
    content = canonical(
        {
            "categories": [[s.folder, s.display_name, list(s.labels)] for s in rows.subjects],
            "nuisances": [[n.kind, list(n.names), list(n.templates)] for n in rows.nuisances],
        }
    )

    def make(index: int) -> pa.Table:
        first = index * settings.part_rows
        chosen = range(first, min(first + settings.part_rows, len(rows)))
        return pa.Table.from_pylist([rows.row(i) for i in chosen], schema=SCHEMA)

    parts = -(-len(rows) // settings.part_rows)
    return Source({"lists": hashlib.sha256(content.encode()).hexdigest()}, parts, make, len(rows))


PROMPTS = Stage("prompts", "every category with every nuisance, as prompt and seed", PromptSettings, start)
