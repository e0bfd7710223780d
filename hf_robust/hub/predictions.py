"""The predictions of runs as a Hub data set: everything that `score` reads, so that anyone can score them again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..predictions.parts import RUN_FILE, is_source_folder, part_path, proof_of
from ..predictions.plan import (
    LOG_FILE,
    PLAN_FILE,
    REQUESTS,
    SOURCE_FILE,
    DamagedError,
    SourcePlan,
    canonical,
    read_json,
)
from ..predictions.read import HEADS_FOLDER, LABEL_SPACE_FILE, read_label_space
from ..report.tables import escape
from . import network
from .merging import Pending, metadata, with_entry, with_section
from .patience import check_repo_name

MANIFEST = "manifest.sha256"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
# Every file of a run that travels; nothing else is published or pulled, whatever lies beside it.
_FILES = re.compile(
    rf"{PLAN_FILE}|{LABEL_SPACE_FILE}|{LOG_FILE}|{REQUESTS}/{_NAME}\.json|{HEADS_FOLDER}/{_NAME}\.safetensors"
    rf"|{_NAME}/(?:{SOURCE_FILE}|{RUN_FILE}|part-\d{{5}}\.parquet)"
)
_RUN = re.compile(_NAME)
_PLACES = re.compile(r"(?<![\w.:/\\-])(?:/[\w.-]+/|~/|[A-Za-z]:\\)[^\s\"',]+")  # absolute paths in JSON text
_SHA256_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")

Content = network.Content


@dataclass(frozen=True)
class Part:
    """One source of a published run: its rows, the parts that are there and of how many, what its data set lacks."""

    name: str
    rows: int
    parts: int
    of: int
    complete: bool


@dataclass(frozen=True)
class Parcel:
    """One run as it travels: its folder's name, its model, its sources, and its files by their path in the folder."""

    name: str
    model: str
    sources: tuple[Part, ...]
    files: Mapping[str, Content]

    def places(self) -> tuple[str, ...]:
        """Folders of this machine that its records name, such as that of a local checkpoint."""
        texts = [_bytes(c).decode(errors="replace") for n, c in self.files.items() if n.endswith((".json", ".jsonl"))]
        return tuple(sorted({place for text in texts for place in _PLACES.findall(text)}))


@dataclass(frozen=True)
class Pulled:
    """A run that `pull` brought: its folder, and whether it stood there already, byte by byte the same."""

    folder: Path
    was_there: bool


def parcels(place: Path) -> tuple[Parcel, ...]:
    """The run at `place`, or every run in it, checked against its proof and ready to travel.

    The log loses the hosts; leftovers of processes and whatever is not of a run stay here.
    Raises LookupError where there is none and DamagedError where a run is not what its records say.
    """
    found = [place] if (place / PLAN_FILE).is_file() else sorted(p.parent for p in place.glob(f"*/{PLAN_FILE}"))
    if not found:
        raise LookupError(f"expected runs that `hf-robust evaluate --out` wrote in {place}, got none")
    return tuple(_parcel(run) for run in found)


def _parcel(run: Path) -> Parcel:
    sources = check_run(run)
    names = sorted(p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file() and not p.is_symlink())
    here = {name: run / name for name in names if _FILES.fullmatch(name)}
    for source in sources:  # a part of other rows or another plan is not among those that the proof counts
        counted = {part_path(Path(source.name), i).as_posix() for i in read_json(run / source.name / RUN_FILE)["parts"]}
        here = {n: p for n, p in here.items() if not n.startswith(f"{source.name}/part-") or n in counted}
    # small records as bytes, so that only predictions and heads are sent ahead of the commit
    files: dict[str, Content] = {n: p.read_bytes() if p.suffix == ".json" else p for n, p in here.items()}
    if LOG_FILE in files:
        files[LOG_FILE] = without_hosts((run / LOG_FILE).read_text(encoding="utf-8")).encode()
    return Parcel(run.name, str(read_json(run / PLAN_FILE)["model"]), sources, {**files, MANIFEST: _manifest(files)})


def check_run(run: Path) -> tuple[Part, ...]:
    """The sources of a run, each with its proof made again from its parts.

    Raises DamagedError where the folder's name is not that of its plan, the classes of the outputs are others, or the
    parts are not the ones that run.json proves: every value, plan, id and row is covered.
    """
    # of the record as it stands: a plan that an older version wrote lacks fields of this one
    digest = hashlib.sha256(canonical(read_json(run / PLAN_FILE)).encode()).hexdigest()[:12]
    if not run.name.endswith(f"-{digest}"):
        raise DamagedError(
            f"expected a folder whose name ends in -{digest}, by its {PLAN_FILE}, got {run.name!r}: the plan was "
            "edited or the folder renamed; give it that ending again if its predictions are of this plan"
        )
    read_label_space(run)
    sources = tuple(_checked(path) for path in sorted(run.iterdir()) if is_source_folder(path))
    if not sources:
        raise LookupError(f"expected predictions in {run}, got none yet: run the same `evaluate` again")
    return sources


def _checked(folder: Path) -> Part:
    said, found = read_json(folder / RUN_FILE), proof_of(folder)
    wrong = [name for name in found if said.get(name) != found[name]]
    if wrong:
        raise DamagedError(
            f"expected the parts of {folder} to be those that its {RUN_FILE} proves, got other {', '.join(wrong)}: "
            "a part is missing or damaged; the same `evaluate` makes it again"
        )
    rows, complete = found["proof"]["rows"], SourcePlan.read(folder).complete
    return Part(folder.name, rows, len(found["parts"]), found["parts_of_dataset"], complete)


def without_hosts(log: str) -> str:
    """The log of a run without the names of the machines; lines that are no records are left out.

    >>> without_hosts('{"time": "2026-01-01", "host": "my-laptop", "rank": 0}\\n')
    '{"time": "2026-01-01", "rank": 0}\\n'
    """
    kept = []
    for line in log.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            kept.append(json.dumps({name: value for name, value in entry.items() if name != "host"}) + "\n")
    return "".join(kept)


def _bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _manifest(files: Mapping[str, Content]) -> bytes:
    lines = [f"{hashlib.sha256(_bytes(content)).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    return "".join(lines).encode()


def card(old: str | None, runs: Sequence[Parcel], *, repo: str) -> str:
    """The card of the data set: metadata with a config for each source, and a section for each run.

    old  the card that is there; its other entries and sections stay, those of these runs are replaced.
    """
    text = old if old is not None else _HEAD.replace("THIS_REPO", repo)
    names = {run.name for run in runs}
    kept = [c for c in metadata(text).get("configs") or [] if not _is_of(c, names)]
    configs = [_config(run, source) for run in runs for source in run.sources]
    text = with_entry(text, "configs", [*kept, *configs])
    tags = metadata(text).get("tags") or []
    missing = [tag for tag in ("hf_robust", "predictions") if tag not in tags]
    text = with_entry(text, "tags", [*([tags] if isinstance(tags, str) else tags), *missing]) if missing else text
    for run in runs:
        text = with_section(text, f"run {run.name}", _section(run))
    return text


_HEAD = """---
pretty_name: Predictions of image classifiers
task_categories:
- image-classification
---

# Predictions of image classifiers on robustness benchmarks

Logits of each picture, without the pictures: a row holds the picture's id and SHA-256, the acceptable ImageNet-1k
indices, its groups and the model's outputs. Written by `hf-robust publish predictions`; every number can be computed
again from them, without the model:

```bash
pip install hf-robust
hf-robust pull THIS_REPO --out runs
hf-robust score runs
```
"""


def _config(run: Parcel, source: Part) -> dict[str, Any]:
    files = [{"split": "test", "path": f"{run.name}/{source.name}/part-*.parquet"}]
    return {"config_name": f"{run.name}.{source.name}", "data_files": files}


def _is_of(config: Any, runs: Collection[str]) -> bool:
    name = config.get("config_name") if isinstance(config, dict) else None
    return isinstance(name, str) and any(name.startswith(f"{run}.") for run in runs)


def _section(run: Parcel) -> str:
    rows = [
        f"| {escape(s.name)} | {s.rows:,} | {s.parts:,} of {s.of:,} | {'yes' if s.complete else 'no'} |"
        for s in run.sources
    ]
    table = ["| predictions of | rows | parts | official data set |", "|---|---:|---:|---|", *rows]
    return "\n".join([f"## {escape(run.model)}", "", f"Run `{run.name}`.", "", *table])


def pending(place: Path, repo: str) -> tuple[tuple[Parcel, ...], Pending]:
    """The runs at `place`, and the push that puts them into the data set `repo`.

    Files of these runs that are on the Hub and not here any more go; other runs in the repo stay.
    Errors as in `parcels`, and HubError where the repo cannot be looked at.
    """
    check_repo_name(repo)
    runs = parcels(place)  # before the network: what is wrong here needs no Hub
    remote = network.look(repo, repo_type="dataset")
    old = None
    if "README.md" in remote.files:
        old = network.read_file(repo, "README.md", repo_type="dataset", revision=remote.head).decode("utf-8-sig")
    files: dict[str, Content] = {f"{run.name}/{name}": c for run in runs for name, c in sorted(run.files.items())}
    names = {run.name for run in runs}
    gone = tuple(sorted(p for p in remote.files if p.split("/")[0] in names and _travels(p) and p not in files))
    files["README.md"] = card(old, runs, repo=repo).encode()
    texts = {} if old is None else {"README.md": old}
    message = f"Predictions of {', '.join(run.name for run in runs)}"
    return runs, Pending(repo, "dataset", remote, files, message, texts, gone)


def pull(repo: str, out: Path, *, say: network.Say | None = None) -> tuple[Pulled, ...]:
    """Every run of the data set `repo`, as folders of the same names in `out`, byte by byte as published.

    Nothing is put in its place before every file fits its SHA-256 and every run its proof. A run that is there
    already, the same, is left alone. Raises FileExistsError where another stands under its name, DamagedError where the
    repo holds something else than was published, LookupError where it holds no run, HubError where the Hub refuses.
    """
    remote = network.look(repo, repo_type="dataset", revision="main", say=say)  # mirrors know no other head
    runs = sorted({path.split("/")[0] for path in remote.files if _travels(path) and path.endswith(f"/{PLAN_FILE}")})
    if not remote.exists or not runs:
        found = "one without" if remote.exists else "none that you may see"
        raise LookupError(
            f"expected a data set with runs at {network.page(repo, 'dataset')}, got {found}: check the name; "
            "`hf-robust publish predictions` writes one"
        )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=out) as work:
        _download(repo, remote, runs, Path(work), say)
        for run in runs:
            _check_files(Path(work) / run)
            check_run(Path(work) / run)
        there = {run for run in runs if (out / run).exists() and _is_same(Path(work) / run, out / run)}
        for run in sorted(set(runs) - there):
            os.replace(Path(work) / run, out / run)
    return tuple(Pulled(out / run, run in there) for run in runs)


def _download(repo: str, remote: network.Remote, runs: Sequence[str], work: Path, say: network.Say | None) -> None:
    """The files of these runs as of one commit; whatever else lies in their folders is left out."""
    from huggingface_hub import snapshot_download

    wanted = [path for path in remote.files if path.split("/")[0] in runs and _travels(path)]

    def once() -> None:
        snapshot_download(repo, repo_type="dataset", revision=remote.head, local_dir=work, allow_patterns=wanted)

    network.patiently(once, repo, "dataset", say=say)


def _travels(path: str) -> bool:
    run, _, name = path.partition("/")
    return bool(_RUN.fullmatch(run)) and (name == MANIFEST or bool(_FILES.fullmatch(name)))


def _check_files(folder: Path) -> None:
    """Compare every file with the manifest, and remove that: it describes the copy on the Hub."""
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise DamagedError(f"expected {folder.name}/{MANIFEST} in the repo, got none: it was not published whole")
    lines = [_SHA256_LINE.fullmatch(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    said = {match[2]: match[1] for match in lines if match is not None}
    manifest.unlink()
    here = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    wrong = sorted(set(said) ^ set(here)) or sorted(
        name for name, path in here.items() if hashlib.sha256(path.read_bytes()).hexdigest() != said[name]
    )
    if wrong or None in lines:
        first = f"the first {wrong[0]!r}" if wrong else "its manifest cannot be read"
        raise DamagedError(
            f"expected the files of {folder.name} as its {MANIFEST} names them, got {len(wrong)} others, {first}: the "
            "repo was edited; ask its owner to publish the run again"
        )


def _is_same(pulled: Path, there: Path) -> bool:
    """True; FileExistsError where a file of the pulled run is not in `there` with the same bytes."""
    for path in sorted(p for p in pulled.rglob("*") if p.is_file()):
        name = path.relative_to(pulled).as_posix()
        other = there / name
        equal = other.is_file() and other.read_bytes() == path.read_bytes()
        if name == LOG_FILE and other.is_file():  # the one here may still hold the hosts
            equal = without_hosts(other.read_text(encoding="utf-8")).encode() == path.read_bytes()
        if not equal:
            raise FileExistsError(
                f"expected no other run in {there}, got one whose {name} differs from the published one: it is left "
                "as it is; give another --out"
            )
    return True
