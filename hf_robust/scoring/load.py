"""The roles of a benchmark from a run's sources, with everything that must be said beside its numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..benchmarks import Benchmark, Mode, Outputs, Role, Source
from ..labels import imagenet_1k_names
from ..predictions.parts import is_source_folder, source_folder
from ..predictions.read import Correct, SourceRead, has_head, read_label_space, read_source

VALIDATION_PICTURES_PER_CLASS = 50
_UNUSABLE = "have no predictions yet, or of another version: run the same `evaluate` again"


@dataclass(frozen=True)
class Loaded:
    """The roles of a benchmark as far as they are on disk, with everything that must be said beside its numbers."""

    roles: Mapping[Role, Outputs]
    reads: Mapping[Role, SourceRead]
    lacks: Mapping[Role, tuple[str, ...]]  # why a role is not the official whole
    notes: tuple[str, ...]
    zero_shot: bool


def load(
    run: Path, benchmark: Benchmark, mode: Mode, extra: Collection[str] = (), *, correct: Correct | None = None
) -> Loaded:
    """The roles of a benchmark; LookupError where one that it cannot do without has no predictions.

    extra    further output columns that are wanted, such as "features".
    correct  what becomes of the logits before anything else is made of them (see `read_source`).
    """
    zero_shot = benchmark.zero_shot is not None and has_head(run, benchmark.zero_shot.head)
    reads: dict[Role, SourceRead] = {}
    notes: list[str] = []
    for source in benchmark.sources:
        head = benchmark.zero_shot.head if zero_shot and benchmark.zero_shot is not None else None
        found = _read(run, source, mode, head, extra, correct)
        if found is not None and len(found.outputs) and not (source.optional and found.absent):
            reads[source.role] = found
        elif source.optional:
            notes.append(f"{source.role} not run: {_why_not(source, found)}")
        else:
            raise LookupError(
                f"no predictions of {source.dataset} under the rule {source.rule_for(mode).name!r} in {run}: "
                f"{_why_not(source, found)}"
            )
    roles = {
        s.role: _relabel(reads[s.role].outputs, s, benchmark, zero_shot) for s in benchmark.sources if s.role in reads
    }
    lacks = {s.role: tuple(_lacks(s, reads[s.role])) for s in benchmark.sources if s.role in reads}
    notes += _unmapped(run, benchmark, roles) if not zero_shot else []
    return Loaded(roles, reads, lacks, tuple(notes), zero_shot)


def _read(
    run: Path, source: Source, mode: Mode, head: str | None, extra: Collection[str], correct: Correct | None
) -> SourceRead | None:
    folder = source_folder(run, source.dataset, source.rule_for(mode).name)
    if not is_source_folder(folder):
        return None
    return read_source(folder, source.classes, head=head, extra=extra, correct=correct, on_disk=True)


def _why_not(source: Source, found: SourceRead | None) -> str:
    if found is None:
        return f"no {source.dataset} pictures were given"
    if not found.absent and not found.failed:
        return f"none of the needed classes has pictures in {source.dataset}"
    if not found.absent:
        return f"{len(found.failed)} pictures of its classes were given and none could be read"
    parts = "classes" if found.plan.cut == "class" else "parts"
    return f"{len(found.absent)} of its {len(found.absent) + len(found.rows_by_part)} {parts} {_UNUSABLE}"


def _relabel(outputs: Outputs, source: Source, benchmark: Benchmark, zero_shot: bool) -> Outputs:
    """Labels as the protocol counts them: the category of a zero-shot head, or every index of a label's group."""
    if zero_shot and benchmark.zero_shot is not None:
        own = benchmark.zero_shot
        if own.column in outputs.groups:
            position = {name: i for i, name in enumerate(own.classes)}
            categories = [position.get(name, -1) for name in outputs.groups[own.column]]
        else:
            position_of = {index: i for i, group in enumerate(own.label_groups) for index in group}
            categories = [position_of.get(int(label), -1) for label in outputs.labels[:, 0]]
        return replace(outputs, labels=np.array(categories, dtype=np.int64).reshape(-1, 1))
    if source.label_groups is None:
        return outputs
    width = max(len(group) for group in source.label_groups)
    counts = np.full((max(1000, int(outputs.labels.max(initial=0)) + 1) + 1, width), -1, dtype=np.int64)
    counts[:-1, 0] = np.arange(len(counts) - 1)  # a class of no group counts as itself; the last row is that of -1
    for group in source.label_groups:
        counts[list(group), : len(group)] = group
    return replace(outputs, labels=counts[outputs.labels[:, 0]])


def _lacks(source: Source, read: SourceRead) -> Iterator[str]:
    """What keeps this source from being the official whole."""
    if not read.plan.complete and read.plan.cut != "class":
        first, more = read.plan.differences[0], len(read.plan.differences) - 1
        yield f"{source.dataset} is not the official set: {first}{f' (and {more} more differences)' if more else ''}"
    if source.dataset == "imagenet-val" and read.plan.cut == "class":
        needed = source.classes if source.classes is not None else range(1000)
        short = [k for k in needed if read.rows_by_part.get(k, 0) < VALIDATION_PICTURES_PER_CLASS]
        if short:
            example = f"{short[0]} ({imagenet_1k_names()[short[0]]}): {read.rows_by_part.get(short[0], 0)}"
            yield (
                f"{len(short)} of {len(needed)} needed ImageNet classes have fewer than "
                f"{VALIDATION_PICTURES_PER_CLASS} {source.dataset} pictures, e.g. {example}"
            )
    if read.absent:
        parts = len(read.absent) + len(read.rows_by_part)
        yield f"{len(read.absent)} of {parts} parts of {source.dataset} {_UNUSABLE}"
    if read.failed:
        key, reason = read.failed[0]
        yield f"{len(read.failed)} pictures of {source.dataset} could not be read, the first {key!r} ({reason})"


def _unmapped(run: Path, benchmark: Benchmark, roles: Mapping[Role, Outputs]) -> list[str]:
    """Names the ImageNet-1k classes in play that the model has no output for."""
    missing = set(read_label_space(run).missing_imagenet_1k())
    in_play = (
        set(benchmark.mask or range(1000))
        if benchmark.mask
        else {int(k) for o in roles.values() for k in o.labels.flat}
    )
    names = imagenet_1k_names()
    gone = sorted(missing & in_play)
    return [f"no output of the model stands for: {', '.join(f'{k} {names[k]}' for k in gone)}"] if gone else []
