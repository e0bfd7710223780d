"""Are the pictures the ones that they are said to be: every SHA-256 computed again, and the fingerprint."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..schema import FILE_NAME, IMAGE, SHA256
from .archive import READ_ERRORS, is_noise, open_archive
from .base import fingerprint
from .cache import INFO, RECORD, Built, read_build
from .errors import BuildError

MANIFEST = "manifest.sha256"
Progress = Callable[[int, int], None]
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True)
class Verified:
    """What was found to be whole: how many pictures, and the fingerprint computed from their bytes."""

    place: Path
    pictures: int
    fingerprint: str


def verify_build(built: Built, *, progress: Progress | None = None) -> Verified:
    """The build, once every picture's bytes have their SHA-256 and all together the fingerprint of the record.

    BuildError names the first picture that differs and says how many do.
    """
    from datasets import Image

    said: dict[str, str] = {}
    rows = []
    for split in built.load().values():
        plain = split.cast_column(IMAGE, Image(decode=False))
        said |= dict(zip(plain[FILE_NAME][:], plain[SHA256][:], strict=True))
        rows.append((row[FILE_NAME], row[IMAGE]["bytes"]) for row in plain)
    found = _compare(said, (pair for part in rows for pair in part), built.path, progress)
    if found != built.fingerprint or len(said) != built.rows:
        raise BuildError(
            f"expected {built.rows:,} pictures with the fingerprint {built.fingerprint[:12]} of {RECORD}, got "
            f"{len(said):,} with {found[:12]} in {built.path}; build {built.name} again"
        )
    return Verified(built.path, len(said), found)


def verify_pictures(source: Path, manifest: Path, *, progress: Progress | None = None) -> Verified:
    """The folder, archive or downloaded repo, once it holds exactly the pictures of the manifest, with their bytes.

    source    pictures in a folder, tar, tar.gz or zip, below a leading folder or not; or a folder with data/*.parquet.
    manifest  lines of SHA-256, two blanks and file name, as in a published repo.
    BuildError names the first picture that is missing, has other bytes, or is not in the manifest.
    """
    said = _read_manifest(manifest)
    shards = sorted((source / "data").glob("*.parquet")) if source.is_dir() else []
    if shards:
        _same_names(said, [n for shard in shards for n in _column(shard)], source)
        found = _compare(said, (pair for shard in shards for pair in _stored(shard)), source, progress)
        return Verified(source, len(said), found)
    with tempfile.TemporaryDirectory() as scratch, open_archive(source, scratch=Path(scratch)) as archive:
        members = {m.path: m for m in archive.members if m.is_image and not is_noise(m.path)}
        top = _leading(members, said)
        _same_names(said, [path.removeprefix(top) for path in members], source)
        pairs = ((path.removeprefix(top), archive.read(member)) for path, member in members.items())
        return Verified(source, len(said), _compare(said, pairs, source, progress))


def build_at(folder: Path) -> Built | None:
    """The build whose own folder this is, None where it is none."""
    if not (folder / RECORD).is_file() or not (folder / INFO).is_file():
        return None
    return read_build(folder)


def _read_manifest(manifest: Path) -> dict[str, str]:
    if not manifest.is_file():
        raise BuildError(f"expected a manifest at {manifest}, got none; name it with --manifest FILE")
    lines = manifest.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    said = {match[2]: match[1] for match in found if match is not None}
    if not said or len(said) != len(lines):
        wrong = next((n for n, match in enumerate(found, start=1) if match is None), len(lines))
        raise BuildError(
            f"expected each line of {manifest} as SHA-256, two blanks and one file name, got others at line {wrong}"
        )
    return said


def _leading(paths: Iterable[str], names: Collection[str]) -> str:
    """The folder in front of the names, "" where there is none: the one in front of most of them."""
    by_name = defaultdict(list)
    for path in paths:
        by_name[os.path.basename(path)].append(path)
    tops = Counter(
        path.removesuffix(name)
        for name in names
        for path in by_name[os.path.basename(name)]
        if path == name or path.endswith(f"/{name}")
    )
    return tops.most_common(1)[0][0] if tops else ""


def _same_names(said: Mapping[str, str], found: Collection[str], source: Path) -> None:
    there = Counter(found)
    wrong = [(name, "is missing") for name in said if name not in there]
    wrong += [(name, "is not in the manifest") for name in there if name not in said]
    wrong += [(name, f"is there {n} times") for name, n in there.items() if n > 1]
    if wrong:
        name, what = min(wrong)
        raise BuildError(
            f"expected the {len(said):,} pictures of the manifest, got {len(wrong):,} differences in {source}, the "
            f"first: {name!r} {what}"
        )


def _compare(
    said: Mapping[str, str], pairs: Iterator[tuple[str, bytes]], source: Path, progress: Progress | None
) -> str:
    """The fingerprint of these bytes; BuildError where a SHA-256 is not the one that is said."""
    found, wrong = [], []
    try:
        for name, content in pairs:
            found.append((name, hashlib.sha256(content).hexdigest()))
            wrong += [] if found[-1][1] == said[name] else [name]
            if progress is not None:
                progress(len(found), len(said))
    except READ_ERRORS as error:
        raise BuildError(
            f"expected to read {len(said):,} pictures, got {type(error).__name__} after {len(found):,} in {source}"
        ) from error
    if wrong:
        first = min(wrong)
        got = dict(found)[first]
        raise BuildError(
            f"expected the bytes of {len(said):,} pictures, got others for {len(wrong):,} of them in {source}, the "
            f"first: {first!r} has SHA-256 {got} instead of {said[first]}"
        )
    return fingerprint(found)


def _column(shard: Path) -> list[str]:
    import pyarrow.parquet as pq

    return [str(name) for name in pq.read_table(shard, columns=[FILE_NAME]).column(FILE_NAME).to_pylist()]


def _stored(shard: Path) -> Iterator[tuple[str, bytes]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(shard).iter_batches(100, columns=[FILE_NAME, IMAGE]):
        yield from ((row[FILE_NAME], row[IMAGE]["bytes"]) for row in batch.to_pylist())
