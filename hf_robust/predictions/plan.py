"""The plan of a run: everything that decides the bytes of its predictions, written down before the first forward."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

PLAN_FILE = "plan.json"
SOURCE_FILE = "source.json"

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
        values = json.loads((folder / SOURCE_FILE).read_text(encoding="utf-8"))
        values["differences"] = tuple(values["differences"])
        values["parts"] = tuple((int(i), int(n), str(f)) for i, n, f in values["parts"])
        return cls(**values)

    def fingerprint(self) -> str:
        """SHA-256 over the fingerprints of all parts: the identity of the data set."""
        return hashlib.sha256(canonical([list(part) for part in self.parts]).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON text that depends on the content only: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """The file appears whole or not at all: temporary name in the same folder, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def settle(record: Record, path: Path) -> None:
    """Write `record` to `path`, or obey what stands there: PlanError names each field that differs."""
    ours = json.loads(canonical(asdict(record)))
    if not path.exists():
        write_json(path, ours)
        return
    theirs = json.loads(path.read_text(encoding="utf-8"))
    for field in fields(record):
        if ours[field.name] != theirs.get(field.name):
            raise PlanError(
                f"expected {field.name} {_short(theirs.get(field.name))} as in {path}, got {_short(ours[field.name])}: "
                "the predictions there were made differently and are not mixed; give another --out, "
                f"or remove {path.parent}"
            )


def _short(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= 120 else f"{text[:80]}… (SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"
