"""Benchmarks made by `regenerate`: the protocol of a published one over other pictures, under another name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .catalog import PUBLISHED, benchmarks
from .miniatures import miniatures
from .spec import Benchmark, Source

SETS = "sets"  # folder of a runs folder that remembers the sets its predictions are of
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,80}")
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}")
_BASES = tuple(b.name for b in PUBLISHED if b.repo_id is not None)


@dataclass(frozen=True)
class Derived:
    """What a regenerated set is, as it stands in its record.

    base     the published benchmark whose protocol it takes.
    classes  ImageNet-1k indices: of the pictures; for a set like ImageNet-O those they are confused with.
    mask     ImageNet-1k indices that the logits are restricted to, where the protocol restricts them: those that the
             filter saw; none: `classes`.
    groups   for a set like ImageNet-D the indices of each category; categories the names of all it was made for.
    made     how it was made, in Markdown: it becomes a section of the card.
    licence  a sentence; picture_licence the Hub's id, or None.
    """

    base: str
    name: str
    title: str
    classes: tuple[int, ...]
    made: str
    licence: str
    picture_licence: str | None = None
    mask: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.base not in _BASES:
            raise ValueError(f"expected one of {', '.join(_BASES)} as the base of {self.name!r}, got {self.base!r}")
        if not _NAME.fullmatch(self.name) or self.name in benchmarks() or self.name in miniatures():
            raise ValueError(
                f"expected a new name of small letters, digits, '.', '_' and '-', got {self.name!r}: name the set "
                "otherwise"
            )
        if self.picture_licence is not None and not _LICENCE.fullmatch(self.picture_licence):
            raise ValueError(
                f"expected the Hub's id of a licence, such as cc-by-4.0, got {self.picture_licence!r}: say more in "
                "`licence`"
            )
        if not self.title.isprintable():
            raise ValueError(f"expected a title of one line, got {self.title!r}")

    def as_record(self) -> dict[str, Any]:
        """The same as JSON."""
        return dict(json.loads(json.dumps(asdict(self))))


def from_record(values: Mapping[str, Any]) -> Derived:
    """What `as_record` gave; ValueError for anything else."""
    try:
        known = {field.name: values[field.name] for field in fields(Derived)}
        groups = tuple(tuple(int(i) for i in group) for group in known["groups"])
        known |= {"classes": tuple(map(int, known["classes"])), "mask": tuple(map(int, known["mask"]))}
        known |= {"groups": groups}
        return Derived(**{**known, "categories": tuple(map(str, known["categories"]))})
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected the record of a regenerated set, got one without {error}: make it again") from error


def derive(own: Derived) -> Benchmark:
    """The benchmark of a regenerated set."""
    base = benchmarks()[own.base]
    classification = own.base == "imagenet-d"
    zero_shot, mask = base.zero_shot, own.mask or own.classes
    if zero_shot is not None and not set(own.categories) <= set(zero_shot.classes):
        zero_shot = None  # the head of texts knows only the published categories
    return replace(
        base,
        name=own.name,
        title=own.title,
        description=f"Made by `hf-robust regenerate {own.base}`; not the published {base.title}.",
        repo_id=None,
        sources=tuple(_source(source, own) for source in base.sources),
        mask=None if base.mask is None else mask,
        mask_name=base.mask_name if base.mask is None else f"the {len(mask)} classes of {own.name}",
        zero_shot=zero_shot if classification else base.zero_shot,
        protocol=MappingProxyType({**base.protocol, "set": f"regenerated: numbers are not those of {base.title}"}),
        licence=own.licence,
        picture_licence=own.picture_licence,
        caveats=(f"A regenerated set: no number of it compares with a published number of {base.title}.",),
    )


def _source(source: Source, own: Derived) -> Source:
    if source.dataset == own.base:
        return replace(source, dataset=own.name)
    return replace(source, classes=own.classes, label_groups=own.groups or source.label_groups)


def remember(runs: Path, own: Derived) -> None:
    """Write beside predictions what the set is, so that they can be scored without its pictures."""
    folder = runs / SETS
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{own.name}.part"
    partial.write_text(json.dumps(own.as_record(), indent=1), encoding="utf-8")
    partial.replace(folder / f"{own.name}.json")


def remembered(runs: Path) -> dict[str, Benchmark]:
    """The regenerated sets that predictions in `runs` are of."""
    found = {}
    for path in sorted((runs / SETS).glob("*.json")):
        try:
            benchmark = derive(from_record(json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"expected the record of a set in {path}, got: {error}") from error
        found[benchmark.name] = benchmark
    return found
