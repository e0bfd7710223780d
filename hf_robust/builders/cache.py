"""Where built data sets lie, which there are, and how a new one becomes one of them."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import BuildError

if TYPE_CHECKING:
    import datasets

RECORD = "hf-robust.json"
_PREFIX = "hf_robust___"  # how `datasets` names the cache of the repo hf_robust/<name>
INFO = "dataset_info.json"


@dataclass(frozen=True)
class Built:
    """One built data set.

    path         its folder in the cache.
    complete     whether nothing differs from the official archive; `differences` says what does.
    fingerprint  SHA-256 over the (file_name, sha256) pairs, sorted: equal for equal pictures from any kind of source.
    rows         pictures, all splits together.
    """

    name: str
    path: Path
    complete: bool
    differences: tuple[str, ...]
    fingerprint: str
    rows: int

    def load(self) -> datasets.DatasetDict:
        """The data set, memory-mapped, by split; needs no network and no lookup."""
        try:
            return self._load()
        except (ValueError, TypeError, LookupError, OSError) as error:  # cut short, or other bytes
            raise BuildError(
                f"expected the files of a build in {self.path}, got some that cannot be read ({error}): "
                f"hf-robust remove {self.name}, then build it again"
            ) from error

    def _load(self) -> datasets.DatasetDict:
        from datasets import Dataset, DatasetDict, DatasetInfo, concatenate_datasets

        info = DatasetInfo.from_directory(str(self.path))
        splits = {}
        for split in info.splits:
            shards = sorted([*self.path.glob(f"*-{split}.arrow"), *self.path.glob(f"*-{split}-*-of-*.arrow")])
            parts = [Dataset.from_file(str(shard), info=info, split=split) for shard in shards]
            splits[split] = parts[0] if len(parts) == 1 else concatenate_datasets(parts, info=info, split=split)
        return DatasetDict(splits)


def installed(*, out: Path | None = None) -> tuple[Built, ...]:
    """Every built data set below `out` (None: the cache of `datasets`), by name, the newest first."""
    root = cache_root(out)
    names = sorted(folder.name.removeprefix(_PREFIX) for folder in root.glob(f"{_PREFIX}*") if folder.is_dir())
    return tuple(built for name in names for built in _newest_first(root, name))


def find(name: str, *, out: Path | None = None) -> Built:
    """The newest build of `name`; LookupError says how to build it where there is none."""
    builds = _newest_first(cache_root(out), name)
    if not builds:
        raise LookupError(
            f"expected a built {name!r}, got none in {cache_root(out)}; "
            f"build it with: hf-robust build {name} --source PATH_OR_URL"
        )
    return builds[0]


def remove(name: str, *, out: Path | None = None) -> int:
    """How many builds of `name` were deleted."""
    root = cache_root(out)
    builds = _newest_first(root, name)
    with building(root, name) as work:
        for number, built in enumerate(builds):
            built.path.rename(work / str(number))  # out of sight at once, so that a kill leaves no half of a data set
    for folder in (_versions(root, name), _versions(root, name).parent, _versions(root, name).parent.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return len(builds)


def cache_root(out: Path | None) -> Path:
    """The folder that holds the data sets."""
    if out is not None:
        return Path(out).expanduser().resolve()
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE).expanduser()


@contextmanager
def building(root: Path, name: str) -> Iterator[Path]:
    """An empty work folder on the same disk as the cache, held by one process at a time and deleted afterwards.

    It lies outside the folders that `load_dataset` looks through: its lookup fails on a half-written data set.
    """
    from filelock import FileLock

    root.mkdir(parents=True, exist_ok=True)
    work = root / f".hf_robust-{name}.building"
    with FileLock(root / f"{_PREFIX}{name}_builder.lock"):
        shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def install(staged: Path, root: Path, name: str, key: str, record: dict[str, Any]) -> Built:
    """The finished folder `staged` as the newest build of `name`; equal content keeps the folder that is there."""
    target = _versions(root, name) / key
    if _read(target, name) is None:
        write_record(staged, record)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(staged.with_name("broken"))
        staged.rename(target)
    write_record(target, record)
    os.utime(target)  # load_dataset takes the folder that changed last
    built = _read(target, name)
    if built is None:
        raise LookupError(f"expected the new build at {target}, got nothing; was it removed meanwhile? build again")
    return built


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Writes hf-robust.json by rename, with the time of the build."""
    partial = folder / (RECORD + ".part")
    partial.write_text(json.dumps({**record, "built_at": time.time()}, indent=1), encoding="utf-8")
    partial.replace(folder / RECORD)


def _versions(root: Path, name: str) -> Path:
    return root / f"{_PREFIX}{name}" / "default" / "1.0.0"


def _newest_first(root: Path, name: str) -> Sequence[Built]:
    folders = _versions(root, name).glob("*") if _versions(root, name).is_dir() else ()
    found = [(folder, built) for folder in folders if (built := _read(folder, name)) is not None]
    return [built for _, built in sorted(found, key=lambda pair: _built_at(pair[0]), reverse=True)]


def _built_at(folder: Path) -> float:
    return float(_record(folder)["built_at"])


def _read(folder: Path, name: str) -> Built | None:
    if not (folder / RECORD).is_file() or not (folder / INFO).is_file():
        return None
    return replace(read_build(folder), name=name)


def read_build(folder: Path) -> Built:
    """The build whose own folder this is."""
    record = _record(folder)
    differences = tuple(record["differences"])
    return Built(record["name"], folder, not differences, differences, record["fingerprint"], record["rows"])


def _record(folder: Path) -> dict[str, Any]:
    """What `write_record` wrote; BuildError for anything else."""
    kinds = {"name": str, "differences": list, "fingerprint": str, "rows": int, "built_at": int | float}
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        whole = isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in kinds.items())
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise BuildError(f"expected the record of a build in {folder / RECORD}, got a damaged one: remove {folder}")
    return dict(record)
