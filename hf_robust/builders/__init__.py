"""Data sets from the official archives: one module a benchmark, shared reading, checking and writing."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from . import base, imagenet_a, imagenet_d, imagenet_o, imagenet_val, spurious_imagenet
from .archive import Archive, open_archive
from .cache import Built, building, cache_root, damaged, find, install, installed, remove
from .checksum import Checksum
from .download import OFFICIAL, already_here, local_source
from .errors import BuildError
from .folder import image_folder
from .hub import SCHEME, hub_archive
from .recipe import Recipe
from .regenerated import build_regenerated
from .verify import MANIFEST, Verified, build_at, verify_build, verify_pictures

__all__ = [
    "MANIFEST", "NAMES", "OFFICIAL", "BuildError", "Built", "Verified", "build", "build_at", "build_regenerated",
    "damaged", "find", "image_folder", "installed", "remove", "verify_build", "verify_pictures",
]  # fmt: skip

# A new data set is one module with its recipe and one line here, or an entry point in the group hf_robust.builders.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        imagenet_a.RECIPE,
        imagenet_o.RECIPE,
        spurious_imagenet.RECIPE,
        imagenet_d.RECIPE,
        imagenet_val.VALIDATION,
        imagenet_val.TRAINING,
    )
}
NAMES = tuple(RECIPES)


@functools.cache
def recipes() -> Mapping[str, Recipe]:
    """Every data set that can be built: ours, then those of installed plug-ins."""
    plugins = {point.name: point.load() for point in entry_points(group="hf_robust.builders")}
    return {**plugins, **RECIPES}


def build(
    name: str,
    source: str | Path,
    *,
    allow_incomplete: bool = False,
    out: Path | None = None,
    devkit: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """The data set `name`, built from its archive; afterwards `load_dataset("hf_robust/<name>")` works offline.

    source            a tar, tar.gz, zip, an extracted folder, an http, https or file address, "official" (the official
                      address), or for imagenet-val and imagenet-train "hf://ILSVRC/imagenet-1k" (gated).
    allow_incomplete  build what is usable where the source differs from the official archive, and mark it.
    out               a folder to use in place of the cache of `datasets`.
    devkit            for the flat validation archive; by default the file of its official name beside it.
    progress          called with (pictures done, pictures in all) after each picture.
    BuildError lists the differences from the official archive (checksum, classes, counts, endings, names, unreadable
    or repeated pictures) or names the hostile member. A build of equal content returns the one that is there.
    """
    if name not in recipes():
        raise BuildError(f"unknown data set {name!r}; known: {', '.join(recipes())}")
    recipe = recipes()[name]
    with Checksum(recipe) as checksum:
        checksum.begin(already_here(source))  # importing `datasets` takes as long as the checksum of a gigabyte
        root = cache_root(out)
        with building(root, name) as work:
            path = _located(recipe, source, work)
            checksum.begin(path)
            with _opened(recipe, source, path, work) as archive:
                pictures, differences = _selected(recipe, archive, source, path, devkit, checksum)
                if differences and not allow_incomplete:
                    raise base.refuse(recipe, checksum.differences() + differences)
                watched = progress if allow_incomplete else _watched(progress, recipe, checksum)
                tally = base.write(recipe, archive, pictures, work / "staged", watched)
            differences = checksum.differences() + differences
            if differences and not allow_incomplete:
                raise base.refuse(recipe, differences)
            differences += tally.differences
            if differences and not allow_incomplete:
                raise base.refuse(recipe, differences)
            if not tally.pairs:
                raise BuildError(
                    f"expected pictures, got {len(pictures):,} unreadable files in {source}; check the source"
                )
            return _install(recipe, work / "staged", root, differences, tally, checksum.found())


def _located(recipe: Recipe, source: str | Path, work: Path) -> Path:
    return work if str(source).startswith(SCHEME) else local_source(source, work, addresses=recipe.addresses)


def _opened(recipe: Recipe, source: str | Path, path: Path, work: Path) -> Archive:
    text = str(source)
    if not text.startswith(SCHEME):
        return open_archive(path, scratch=work, nested=recipe.nested)
    if recipe.name not in ("imagenet-val", "imagenet-train"):
        raise BuildError(
            f"expected an archive, folder or address, got {text!r}; {recipe.name} is not built from the Hub"
        )
    return hub_archive(text, next(iter(recipe.splits)), work)


def _selected(
    recipe: Recipe, archive: Archive, source: str | Path, path: Path, devkit: Path | None, checksum: Checksum
) -> tuple[base.Chosen, list[str]]:
    """The pictures and what differs by the names; the checksum is given up where none is published for the layout."""
    reading = recipe.reader(archive, path, devkit)
    pictures, differences = base.select(recipe, archive, reading)
    if not pictures:
        found = f" ({differences[-1]})" if archive.members and differences else ""
        raise BuildError(f"expected pictures as {recipe.layout}, got none in {source}{found}; check the source")
    if not reading.as_published:
        checksum.forget()
    return pictures, differences


def _watched(progress: base.Progress | None, recipe: Recipe, checksum: Checksum) -> base.Progress:
    """The progress of a build that ends as soon as the archive's checksum is known to be wrong."""

    def tick(done: int, total: int) -> None:
        if differences := checksum.differences(wait=False):
            raise base.refuse(recipe, differences)
        if progress is not None:
            progress(done, total)

    return tick


def _install(
    recipe: Recipe, staged: Path, root: Path, differences: list[str], tally: base.Tally, digest: str | None
) -> Built:
    fingerprint, rows = tally.fingerprint(), len(tally.pairs)
    base.describe_build(staged, recipe, differences, {"pictures": f"{rows:,}", "fingerprint": fingerprint})
    record = {
        "name": recipe.name,
        "complete": not differences,
        "differences": differences,
        "notes": tally.notes,
        "archive": digest,
        "fingerprint": fingerprint,
        "rows": rows,
    }
    key = hashlib.sha256(json.dumps([tally.columns.hexdigest(), differences]).encode()).hexdigest()
    return install(staged, root, recipe.name, key, record)
