"""From an open archive to a built data set: select the pictures, compare with the official counts, write."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from .. import schema
from .ahead import Read, reading_ahead
from .archive import Archive, Member, is_noise
from .batches import FORMATS, Batch, Chosen, Look
from .errors import BuildError
from .recipe import Picture, Reading, Recipe

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

__all__ = [
    "FORMATS", "Chosen", "Progress", "Tally", "describe_build", "fingerprint", "refuse", "select", "write",
]  # fmt: skip

Progress = Callable[[int, int], None]

_SHOWN = 10


@dataclass
class Tally:
    """What is known only once every picture has been read."""

    recipe: Recipe
    total: int
    progress: Progress | None
    done: int = 0
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    columns: Any = field(default_factory=hashlib.sha256)

    def fingerprint(self) -> str:
        """SHA-256 over the sorted (file_name, sha256) pairs."""
        return fingerprint(self.pairs)


def fingerprint(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over the sorted (file_name, sha256) pairs: equal for equal pictures."""
    digest = hashlib.sha256()
    for name, sha256 in sorted(pairs):
        digest.update(f"{name}\0{sha256}\n".encode())
    return digest.hexdigest()


def select(recipe: Recipe, archive: Archive, reading: Reading) -> tuple[Chosen, list[str]]:
    """The usable pictures sorted by file name, and what differs from the official archive by the names alone."""
    differences = list(reading.differences)
    chosen: dict[str, tuple[Member, Picture]] = {}
    for member, file_name in _pictures(recipe, archive, reading, differences):
        picture = reading.describe(file_name)
        if isinstance(picture, str):
            differences.append(f"left out {member.path!r}: {picture}")
            continue
        if picture.file_name in chosen:
            raise BuildError(f"expected each picture once, got {picture.file_name!r} twice; take an intact archive")
        chosen[picture.file_name] = (member, picture)
        differences += [picture.problem] if picture.problem else []
    pictures = [chosen[name] for name in sorted(chosen)]
    return pictures, _counts(recipe, pictures) + differences


def _pictures(
    recipe: Recipe, archive: Archive, reading: Reading, differences: list[str]
) -> Iterator[tuple[Member, str]]:
    """Pictures with their path below the leading folders; everything else that is not known goes to `differences`."""
    deep = []
    for member in archive.members:
        if is_noise(member.path):
            continue
        if not member.is_image:
            differences += [] if _tolerated(recipe, member) else [f"a member that is no picture: {member.path!r}"]
        elif member.path.count("/") + 1 < reading.depth:
            differences.append(f"left out {member.path!r}: it does not lie in a class folder")
        else:
            deep.append(member)
    top = _top_folder(recipe, {_leading(m.path, reading.depth) for m in deep})
    for member in deep:
        if _leading(member.path, reading.depth) == top:
            yield member, member.path[len(top) + 1 :] if top else member.path


def _tolerated(recipe: Recipe, member: Member) -> bool:
    name = "/" + member.path
    return any(f"/{beginning.lower()}" in name.lower() for beginning in recipe.tolerated)


def _leading(path: str, depth: int) -> str:
    return "/".join(path.split("/")[:-depth])


def _top_folder(recipe: Recipe, found: set[str]) -> str:
    """The one folder that holds the class folders; among several only one with an official name is taken."""
    if len(found) > 1:
        named = {top for top in found if top.rpartition("/")[2] in recipe.top_folders}
        found = named if len(named) == 1 else found
    if len(found) > 1:
        raise BuildError(
            f"expected {recipe.name} in one folder as {recipe.layout}, got pictures below "
            f"{_few([repr(top or '.') for top in sorted(found)])}; give the folder that holds the class folders"
        )
    return found.pop() if found else ""


def _counts(recipe: Recipe, pictures: Chosen) -> list[str]:
    """Differences in the numbers of pictures: by split, class and ending."""
    differences = []
    splits = Counter(picture.split for _, picture in pictures)
    for split, official in recipe.splits.items():
        where = f" in {split!r}" if len(recipe.splits) > 1 else ""
        if splits[split] != official:
            differences.append(f"{splits[split]:,} pictures{where}, official {official:,}")
    groups = Counter(picture.group for _, picture in pictures)
    missing = [name for name in recipe.classes if name not in groups]
    if missing:
        differences.append(f"{len(missing):,} of {len(recipe.classes):,} classes are missing: {_few(missing)}")
    official_classes = set(recipe.classes)
    unknown = sorted(set(groups) - official_classes)
    differences += [f"class {name!r} is not one of the official {len(recipe.classes):,}" for name in unknown]
    if recipe.per_class is not None:
        wrong = [(g, n) for g, n in sorted(groups.items()) if n != recipe.per_class and g in official_classes]
        differences += [f"class {g!r} has {n:,} pictures, official {recipe.per_class:,}" for g, n in wrong]
    return differences + _suffix_counts(recipe, pictures)


def _suffix_counts(recipe: Recipe, pictures: Chosen) -> list[str]:
    if not recipe.suffixes:
        return []
    found = Counter(member.suffix for member, _ in pictures)
    return [
        f"{found[suffix]:,} files end in {suffix}, official {recipe.suffixes.get(suffix, 0):,}"
        for suffix in sorted({*found, *recipe.suffixes})
        if found[suffix] != recipe.suffixes.get(suffix, 0)
    ]


def refuse(recipe: Recipe, differences: Sequence[str]) -> BuildError:
    """The error that lists the differences."""
    number = f"{len(differences):,} difference{'s' if len(differences) > 1 else ''}"
    return BuildError(
        f"expected the official {recipe.name}, got {number}: {_few(differences, '; ')}. "
        "Take the official archive, or pass allow_incomplete=True (--allow-incomplete) to build what is usable, "
        "marked as incomplete"
    )


def _few(items: Sequence[str], separator: str = ", ") -> str:
    more = f"{separator}… and {len(items) - _SHOWN:,} more" if len(items) > _SHOWN else ""
    return separator.join(items[:_SHOWN]) + more


def write(recipe: Recipe, archive: Archive, pictures: Chosen, folder: Path, progress: Progress | None) -> Tally:
    """Writes the rows below `folder`; returns what the pictures' bytes told."""
    from .arrow import write_data_set

    tally, features = Tally(recipe, len(pictures), progress), recipe.features()
    present = [s for s in recipe.splits if any(picture.split == s for _, picture in pictures)]
    with _too_large_raises(), reading_ahead(archive) as read:
        splits = {s: _tables(read, [p for p in pictures if p[1].split == s], features, tally) for s in present}
        write_data_set(folder, recipe.name, features, splits)
    return tally


def _tables(read: Read, pictures: Chosen, features: datasets.Features, tally: Tally) -> Iterator[pa.Table]:
    from .arrow import ROWS_IN_TABLE

    types = features.arrow_schema  # made anew, with all class names, whenever it is asked for
    for batch in read(pictures, ROWS_IN_TABLE):
        for picture, look in batch.seen:
            _count(picture, look, tally)
            tally.done += 1
            if tally.progress is not None:
                tally.progress(tally.done, tally.total)
        if len(batch.content):
            yield _table(batch, features, types)


def _count(picture: Picture, look: Look, tally: Tally) -> None:
    name = picture.file_name
    if look.unreadable is not None:
        tally.differences.append(f"left out {name!r}: unreadable ({look.unreadable})")
        return
    width, height = look.size
    if tally.recipe.square and width != height:
        tally.differences.append(f"{name!r} is {width} x {height}, official pictures are square")
    _record(picture, look.sha256, tally)


def _table(batch: Batch, features: datasets.Features, types: pa.Schema) -> pa.Table:
    """The rows of the pictures that can be read; their bytes are not copied."""
    import pyarrow as pa

    rows = [
        {schema.FILE_NAME: picture.file_name, schema.SHA256: look.sha256, **picture.columns}
        for picture, look in batch.seen
        if look.unreadable is None
    ]
    columns = {
        name: pa.array(_encoded(name, features[name], [row[name] for row in rows]), types.field(name).type)
        for name in features
        if name != schema.IMAGE
    }
    columns[schema.IMAGE] = pa.StructArray.from_arrays([batch.content, columns[schema.FILE_NAME]], ["bytes", "path"])
    return pa.table([columns[name] for name in features], schema=types)


def _encoded(name: str, feature: Any, values: list[Any]) -> list[Any]:
    from datasets import Features, Value

    if isinstance(feature, Value):  # Arrow takes these as they are, and encoding each costs more than all the rest
        return values
    return list(Features({name: feature}).encode_batch({name: values})[name])


def _record(picture: Picture, sha256: str, tally: Tally) -> None:
    tally.pairs.append((picture.file_name, sha256))
    tally.columns.update(json.dumps([picture.file_name, picture.split, sha256, picture.columns]).encode())
    twin = tally.seen.setdefault(sha256, picture.file_name)
    if twin != picture.file_name:  # noted, no difference: official archives may hold a picture twice
        tally.notes.append(f"the same bytes twice: {twin!r} and {picture.file_name!r}")


def describe_build(folder: Path, recipe: Recipe, differences: Sequence[str], facts: Mapping[str, str]) -> None:
    """Puts the description into the data set's own info, headed by INCOMPLETE where something differs."""
    from datasets import DatasetInfo

    info = DatasetInfo.from_directory(str(folder))
    incomplete = f"INCOMPLETE: {len(differences)} differences from the official archive: {_few(differences, '; ')}.\n\n"
    lines = "\n".join(f"{key}: {value}" for key, value in facts.items())
    info.description = f"{incomplete if differences else ''}{recipe.title}\n\n{lines}"
    info.write_to_directory(str(folder))


@contextmanager
def _too_large_raises() -> Iterator[None]:
    """A picture with too many pixels is an error, not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
