"""From an open archive to a built data set: select the pictures, compare with the official counts, write."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from .. import schema
from .archive import READ_ERRORS, Archive, Member, is_noise
from .errors import BuildError
from .recipe import Picture, Reading, Recipe

Progress = Callable[[int, int], None]
Chosen = list[tuple[Member, Picture]]

_SHOWN = 10
# No format that starts another program (EPS) or holds no photo; JPEG covers MPO.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")


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


def checksum(recipe: Recipe, source: Path) -> tuple[str, list[str]]:
    """The archive's checksum as "algorithm:value", and one line where it is not the published one.

    SHA-256 where none is published, so that it can be compared from the first build on.
    """
    algorithm, official = recipe.digest or ("sha256", None)
    found = file_digest(source, algorithm)
    differs = official is not None and found != official
    return f"{algorithm}:{found}", [f"the archive's {algorithm} is {found}, official {official}"] if differs else []


def file_digest(path: Path, algorithm: str) -> str:
    """Hexadecimal digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


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
    from datasets.exceptions import DatasetGenerationError

    from .arrow import PictureBuilder

    tally = Tally(recipe, len(pictures), progress)
    present = [s for s in recipe.splits if any(picture.split == s for _, picture in pictures)]
    splits = {s: partial(_rows, archive, [p for p in pictures if p[1].split == s], tally) for s in present}
    with _quiet():
        builder = PictureBuilder(
            cache_dir=str(folder.parent / "unused"),
            dataset_name=recipe.name,
            hash="0" * 64,
            features=recipe.features(),
            splits=splits,
        )
        try:
            builder.download_and_prepare(str(folder))
        except DatasetGenerationError as error:  # it hides what happened: a full disk, a stopped progress
            raise error.__cause__ or error from None
    return tally


def _rows(archive: Archive, pictures: Chosen, tally: Tally) -> Iterator[dict[str, Any]]:
    for member, picture in pictures:
        row = _row(archive, member, picture, tally)
        tally.done += 1
        if tally.progress is not None:
            tally.progress(tally.done, tally.total)
        if row is not None:
            yield row


def _row(archive: Archive, member: Member, picture: Picture, tally: Tally) -> dict[str, Any] | None:
    """The row of a picture, None where it cannot be read; only the header is decoded."""
    try:
        content = archive.read(member)
        with Image.open(io.BytesIO(content), formats=FORMATS) as header:
            width, height = header.size
    except (
        *READ_ERRORS,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        tally.differences.append(f"left out {picture.file_name!r}: unreadable ({type(error).__name__})")
        return None
    if tally.recipe.square and width != height:
        tally.differences.append(f"{picture.file_name!r} is {width} x {height}, official pictures are square")
    sha256 = hashlib.sha256(content).hexdigest()
    _record(picture, sha256, tally)
    stored = {"bytes": content, "path": picture.file_name}
    return {schema.IMAGE: stored, schema.FILE_NAME: picture.file_name, schema.SHA256: sha256, **picture.columns}


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
def _quiet() -> Iterator[None]:
    """Without the progress bars of `datasets`; a picture with too many pixels raises."""
    from datasets.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    silent = are_progress_bars_disabled()
    if not silent:
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        if not silent:
            enable_progress_bars()
