"""The `evaluate` modules: where they lie, and how they get where `evaluate.load("<name>")` looks without a network.

`evaluate` falls back to `<modules cache>/evaluate_modules/metrics/evaluate-metric--<name>/<64 characters>/<name>.py`;
the newest counts. A registration is one such folder, moved into place whole, with a record of its version.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from .. import __version__

RECORD = "hf-robust.json"
_KIND = "evaluate-metric--"
_STAGED = ".hf-robust-"


@dataclass(frozen=True)
class Registered:
    """One module that `evaluate.load(name)` finds on this machine, and the version of hf-robust that it came with."""

    name: str
    version: str
    folder: Path


def metric_module_folders() -> Mapping[str, Path]:
    """The folder of each `evaluate` module by its name, sorted: `<folder>/<name>.py`, its card, page and requirements.

    An installed wheel carries them inside the package, a checkout at its top. Pass one as text to `evaluate.load`.
    Raises FileNotFoundError where neither place has them.
    """
    package = Path(str(files("hf_robust")))
    places = (package / "metric_modules", package.parent / "metrics")
    for place in places:
        scripts = sorted(place.glob("*/*.py"))
        folders = {script.stem: script.parent for script in scripts if script.stem == script.parent.name}
        if folders:
            return MappingProxyType(folders)
    raise FileNotFoundError(
        f"expected the evaluate modules of hf_robust in {places[0]} or {places[1]}, found them in neither: install "
        "hf-robust again, or run from a checkout"
    )


def modules_cache() -> Path:
    """The folder of dynamic modules that `evaluate` reads, from the same variables, without its slow import."""
    caches = os.getenv("XDG_CACHE_HOME", "~/.cache")
    home = os.path.expanduser(os.getenv("HF_HOME", os.path.join(caches, "huggingface")))
    return Path(os.getenv("HF_MODULES_CACHE", os.path.join(home, "modules")))


def register_metric_modules(*, version: str = __version__) -> tuple[Registered, ...]:
    """What is registered afterwards, one entry a module: this version, or a newer one that was there and stays.

    Any number of processes may do this at once and again; older registrations go.
    """
    place = _place_of_modules()
    return tuple(_register(place, name, folder, version) for name, folder in metric_module_folders().items())


def remove_metric_modules() -> tuple[Registered, ...]:
    """What was registered and now is not, of every version; modules that others put there stay."""
    place, removed = _place_of_modules(), []
    for parent in sorted(place.glob(f"{_KIND}*")):
        for own in _registrations(parent):
            with _staging(parent) as staged:
                _move(own.folder, staged / "old")
            removed.append(own)
        for left in parent.glob(f"{_STAGED}*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with suppress(OSError):
            parent.rmdir()  # only where it is empty
    for empty in (place, place.parent, place.parent.parent):
        with suppress(OSError):
            empty.rmdir()
    return tuple(removed)


def _place_of_modules() -> Path:
    return modules_cache() / "evaluate_modules" / "metrics"


def _register(place: Path, name: str, folder: Path, version: str) -> Registered:
    script = (folder / f"{name}.py").read_bytes()
    record = json.dumps({"name": name, "version": version}).encode()
    wanted = {f"{name}.py": script, RECORD: record}
    parent = place / f"{_KIND}{name}"
    parent.mkdir(parents=True, exist_ok=True)
    final = parent / hashlib.sha256(record + script).hexdigest()
    if not _holds(final, wanted):
        with _staging(parent) as staged:
            _put(final, wanted, staged)
    with suppress(FileNotFoundError):  # another process put a newer version there and took this one away
        _make_newest(final / f"{name}.py")
    return _keep_the_newest(parent)


def _holds(folder: Path, wanted: Mapping[str, bytes]) -> bool:
    return all((folder / name).is_file() and (folder / name).read_bytes() == wanted[name] for name in wanted)


def _put(final: Path, wanted: Mapping[str, bytes], staged: Path) -> None:
    new = staged / "new"
    new.mkdir()
    for name, content in wanted.items():
        (new / name).write_bytes(content)
    try:
        new.rename(final)
    except OSError:
        if not _holds(final, wanted):  # else another process was faster
            _move(final, staged / "damaged")
            new.rename(final)


def _make_newest(script: Path) -> None:
    """Give the script a time after that of every other one under this name, since `evaluate` takes the newest."""
    others = [p.stat().st_mtime for p in script.parent.parent.glob(f"*/{script.name}") if p != script]
    newest = max([time.time(), *(t + 1 for t in others)])
    os.utime(script, (newest, newest))


def _keep_the_newest(parent: Path) -> Registered:
    """The one of our registrations that stays: of the highest version, then the latest; every process picks the same.

    Each process looks after it put its own there, so the later of two sees both: an old version cannot win.
    """
    *older, newest = _registrations(parent)
    with _staging(parent) as staged:
        for i, own in enumerate(older):
            _move(own.folder, staged / f"old-{i}")
    return newest


def _registrations(parent: Path) -> list[Registered]:
    """Ours below `parent`, the one that counts last; a folder without a readable record of ours is somebody else's."""
    from packaging.version import Version

    found = []
    for record in parent.glob(f"{'?' * 64}/{RECORD}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads(record.read_bytes())
            own = Registered(facts["name"], facts["version"], record.parent)
            changed = (own.folder / f"{own.name}.py").stat().st_mtime_ns
            found.append(((Version(own.version), changed, own.folder.name), own))
    return [own for _, own in sorted(found, key=lambda pair: pair[0])]


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A folder beside the registrations that `evaluate` does not look at; gone afterwards."""
    staged = Path(tempfile.mkdtemp(prefix=_STAGED, dir=parent))
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _move(folder: Path, to: Path) -> None:
    with suppress(FileNotFoundError):  # it is not there, or another process took it
        folder.rename(to)
