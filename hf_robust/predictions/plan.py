"""The plan of a run: everything that decides the bytes of its predictions, written down before the first forward."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from .temporary import renamed

PLAN_FILE = "plan.json"
SOURCE_FILE = "source.json"
REQUESTS = "requests"
LOG_FILE = "log.jsonl"  # times, hosts and versions: what may differ between two runs of one plan

Record = TypeVar("Record", "Plan", "SourcePlan")


class PlanError(ValueError):
    """A run that would mix predictions made under different plans; the message names the field that differs."""


@dataclass(frozen=True)
class Plan:
    """What holds for every source of a run. Equal plans give equal bytes for any number of processes."""

    model: str
    weights: str  # SHA-256 of every parameter and buffer
    label_space: str  # SHA-256 of the classes of the outputs
    prompts: str | None  # SHA-256 of prompt templates and class names
    dtype: str
    device: str
    layout: str
    batch_norm_folded: bool
    micro_batch: int
    threads: int
    features: bool
    limit: int | None
    seed: int
    code: str | None = None  # SHA-256 of the user's own Python file that gives the model
    spufix: str | None = None  # SHA-256 of the file that corrects the logits
    spufix_strength: float | None = None
    exif: str = "ignore"  # or "apply": whether pictures are turned as their EXIF orientation says
    compiled: bool = False  # by torch.compile

    def digest(self) -> str:
        """SHA-256 of the plan."""
        return hashlib.sha256(canonical(asdict(self)).encode()).hexdigest()

    def folder(self, runs: Path) -> Path:
        """The run's folder below `runs`: readable model name, then the plan's hash."""
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", self.model.removesuffix(".py")).strip("-.")[-80:] or "model"
        return runs / f"{slug}-{self.digest()[:12]}"


@dataclass(frozen=True)
class SourcePlan:
    """What holds for one source of a run: its rule, the rows of the data set, and how they are cut into parts.

    parts          (index, rows, fingerprint) of every part of the whole data set, asked for or not; for a data set cut
                   by class the index is the ImageNet-1k class.
    preprocessing  everything that changes a pixel, as the model and the rule give it.
    complete       whether the data set is the official one; `differences` says what it lacks.
    """

    dataset: str
    rule: str
    preprocessing: Mapping[str, Any]
    cut: str
    complete: bool
    differences: tuple[str, ...]
    parts: tuple[tuple[int, int, str], ...]

    @classmethod
    def read(cls, folder: Path) -> SourcePlan:
        """The plan that stands in the source's folder."""
        values = read_json(folder / SOURCE_FILE, [field.name for field in fields(cls)])
        try:
            parts = tuple((int(i), int(n), str(f)) for i, n, f in values["parts"])
        except (TypeError, ValueError) as error:
            raise DamagedError(_damaged(folder / SOURCE_FILE, f"parts that cannot be read ({error})")) from error
        if not is_texts(values["differences"]):
            raise DamagedError(_damaged(folder / SOURCE_FILE, "differences that are no list of texts"))
        known = {field.name: values[field.name] for field in fields(cls)}
        return cls(**{**known, "differences": tuple(values["differences"]), "parts": parts})

    def fingerprint(self) -> str:
        """SHA-256 over the fingerprints of all parts: the identity of the data set."""
        return hashlib.sha256(canonical([list(part) for part in self.parts]).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON text that depends on the content only: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """The file appears whole or not at all: temporary name in the same folder, then rename."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with renamed(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class DamagedError(ValueError):
    """A record of a run that is not what was written there: cut short, edited, or of another program."""


def read_json(path: Path, names: Sequence[str] = ()) -> dict[str, Any]:
    """The object in `path`; DamagedError where it is none or lacks one of the entries `names`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedError(_damaged(path, "nothing")) from error
    except IsADirectoryError as error:
        raise DamagedError(_damaged(path, "a folder")) from error
    except (ValueError, RecursionError) as error:  # no JSON, or no text at all
        raise DamagedError(_damaged(path, f"no JSON ({error})")) from error
    if not isinstance(values, dict):
        raise DamagedError(_damaged(path, f"a {type(values).__name__}"))
    missing = [name for name in names if name not in values]
    if missing:
        raise DamagedError(_damaged(path, f"an object without {', '.join(missing)}"))
    return values


def is_texts(value: Any) -> bool:
    """Whether a value of a record is a list of texts."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _damaged(path: Path, got: str) -> str:
    return f"expected the record that `evaluate` wrote in {path}, got {got}: remove {path.parent} and run again"


def settle(record: Record, path: Path) -> None:
    """Write `record` to `path`, or obey what stands there: PlanError names each field that differs."""
    ours = json.loads(canonical(asdict(record)))
    if not path.exists():
        write_json(path, ours)
        return
    theirs = read_json(path)
    for field in fields(record):
        if ours[field.name] != theirs.get(field.name):
            if field.name == "parts":
                raise PlanError(_other_pictures(theirs["parts"], ours["parts"], path))
            raise PlanError(
                f"expected {field.name} {_short(theirs.get(field.name))} as in {path}, got {_short(ours[field.name])}: "
                "the predictions there were made differently and are not mixed; give another --out, "
                f"or remove {path.parent}"
            )


def _other_pictures(theirs: Sequence[Any], ours: Sequence[Any], path: Path) -> str:
    before, now = (f"{sum(part[1] for part in parts):,} pictures in {len(parts):,} parts" for parts in (theirs, ours))
    same = " (the same numbers, other pictures or names)" if before == now else ""
    return (
        f"expected the pictures that {path.parent.name} was begun with, {before}, got {now}{same}: the predictions in "
        f"{path.parent} are of other pictures and are not mixed; give another --out, or remove that folder"
    )


def _short(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= 120 else f"{text[:80]}… (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"
