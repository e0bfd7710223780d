"""Where built data sets lie, which there are, and how a new one becomes one of them."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    own_set      what a regenerated set is (benchmarks.derived.Derived); None for the published ones.
    """

    name: str
    path: Path
    complete: bool
    differences: tuple[str, ...]
    fingerprint: str
    rows: int
    own_set: Mapping[str, Any] | None = None

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
    """Every built data set below `out` (None: the cache of `datasets`), by name, the newest first; no damaged one."""
    root = cache_root(out)
    broken = {path for _, path, _ in damaged(out=out)}
    return tuple(built for name in _names(root) for built in _newest_first(root, name, but=broken))


def damaged(*, out: Path | None = None) -> tuple[tuple[str, Path, str], ...]:
    """(name, folder, what is wrong) of every build whose own record cannot be read."""
    root = cache_root(out)
    found = []
    for name in _names(root):
        for folder in _folders(root, name):
            try:
                _read(folder, name)
            except BuildError as error:
                found.append((name, folder, str(error)))
    return tuple(found)


def _names(root: Path) -> list[str]:
    return sorted(folder.name.removeprefix(_PREFIX) for folder in root.glob(f"{_PREFIX}*") if folder.is_dir())


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
    builds = [folder for folder in _folders(root, name) if (folder / RECORD).is_file() and (folder / INFO).is_file()]
    with building(root, name) as work:
        for number, folder in enumerate(builds):
            folder.rename(work / str(number))  # out of sight at once, so that a kill leaves no half of a data set
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
    now = _later_than_any(root, name)
    if not _is_whole(target, name):
        write_record(staged, record, now)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(staged.with_name("broken"))
        staged.rename(target)
    write_record(target, record, now)
    os.utime(target, (now, now))  # load_dataset takes the folder that changed last
    built = _read(target, name)
    if built is None:
        raise LookupError(f"expected the new build at {target}, got nothing; was it removed meanwhile? build again")
    return built


def _is_whole(folder: Path, name: str) -> bool:
    try:
        return _read(folder, name) is not None
    except BuildError:
        return False


def _later_than_any(root: Path, name: str) -> float:
    """The time; a little after the newest build where a clock was wrong: the last build must be the newest."""
    times = [os.stat(folder).st_mtime for folder in _folders(root, name)]
    times += [_built_at(folder) for folder in _folders(root, name) if _is_whole(folder, name)]
    return max([time.time(), *(before + 1 for before in times)])


def write_record(folder: Path, record: dict[str, Any], built_at: float) -> None:
    """Writes hf-robust.json by rename, with the time of the build."""
    partial = folder / (RECORD + ".part")
    partial.write_text(json.dumps({**record, "built_at": built_at}, indent=1), encoding="utf-8")
    partial.replace(folder / RECORD)


def _versions(root: Path, name: str) -> Path:
    return root / f"{_PREFIX}{name}" / "default" / "1.0.0"


def _folders(root: Path, name: str) -> list[Path]:
    return sorted(_versions(root, name).glob("*")) if _versions(root, name).is_dir() else []


def _newest_first(root: Path, name: str, *, but: Collection[Path] = ()) -> Sequence[Built]:
    folders = [folder for folder in _folders(root, name) if folder not in but]
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
    return Built(
        record["name"], folder, not differences, differences, record["fingerprint"], record["rows"], record.get("set")
    )


def _record(folder: Path) -> dict[str, Any]:
    """What `write_record` wrote; BuildError for anything else."""
    kinds = {"name": str, "differences": list, "fingerprint": str, "rows": int, "built_at": int | float}
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        whole = isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in kinds.items())
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise BuildError(
            f"expected the record of a build in {folder / RECORD}, got a damaged one: remove {folder}, or "
            "run `hf-robust remove` and build again"
        )
    return dict(record)
