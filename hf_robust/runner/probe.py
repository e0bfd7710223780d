"""What `auto` stands for: micro-batch, memory layout and folding, by a short probe, decided once for every process.

RUNS/auto/<hash>.json keeps the decision. The first process to write it decides; the others, and every later command
with the same model, weights and options, obey it, so that one command never makes two runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..models import ImageClassifier, ModelError
from ..models.folding import fold_batch_norm
from ..predictions.plan import DamagedError, Plan, canonical, read_json, write_json
from ..predictions.temporary import remove_leftovers, renamed, temporary_name

if TYPE_CHECKING:
    import torch

AUTO_FOLDER = "auto"
WORTH_A_PROBE = 1000  # forward passes; a probe costs about forty
_BETTER = 0.9  # of the usual time: less gain is noise, and would make two machines differ for nothing
_ROUNDS = 2  # batches of the largest size that each setting is timed with
_LAYOUTS = ("channels_last", "contiguous")
_FIELDS = {"micro_batch": int, "layout": str, "batch_norm_folded": bool}


@dataclass(frozen=True)
class Execution:
    """How a model is run: what a plan leaves to `auto`."""

    micro_batch: int
    layout: str
    batch_norm_folded: bool


def usual_micro_batch(device: str, layout: str) -> int:
    """Pictures a forward pass without a probe: on CPUs so few that the activations of a layer stay in the cache."""
    if device != "cpu":
        return 64
    return 4 if layout == "channels_last" else 8


def settle_execution(
    plan: Plan, model: ImageClassifier, runs: Path, *, auto_batch: bool, device: str, pictures: int
) -> Plan:
    """The plan with everything decided; the model's module is on the device, and folded where the plan says so.

    plan        as far as it is known: micro_batch is the asked one, or the usual one where `auto_batch`.
    pictures    forward passes that are to be made: a probe has to be worth it.
    Raises ModelError where not even one picture fits into memory.
    """
    import torch

    torch.set_num_threads(plan.threads)
    record = _record(plan, runs, auto_batch=auto_batch)
    folded = _fold(model, plan, wanted=_obeyed(record).batch_norm_folded if record.exists() else True)
    model.module.to(device)
    if not record.exists():
        _write_first(
            record, asdict(_probed(replace(plan, batch_norm_folded=folded), model, auto_batch, device, pictures))
        )
    chosen = _obeyed(record)
    if chosen.batch_norm_folded != folded:
        raise ModelError(
            f"{model.name}: expected that batch normalisation can be folded here as where {record} was written, got "
            f"{folded}: use the same versions of torch and timm everywhere, or another --out"
        )
    return replace(plan, **asdict(chosen))


def remember_smaller(plan: Plan, runs: Path) -> int:
    """Half the plan's micro-batch, which every later command with these options uses: memory ran out with the whole."""
    half = max(1, plan.micro_batch // 2)
    write_json(_record(plan, runs, auto_batch=True), asdict(Execution(half, plan.layout, plan.batch_norm_folded)))
    return half


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or in this process."""
    import torch

    said = str(error).lower()
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in said or "out of memory" in said


def _record(plan: Plan, runs: Path, *, auto_batch: bool) -> Path:
    """Where the decision for these model, weights and options stands."""
    asked = {**asdict(plan), "layout": None, "batch_norm_folded": None}
    if auto_batch:
        asked["micro_batch"] = None
    return runs / AUTO_FOLDER / f"{hashlib.sha256(canonical(asked).encode()).hexdigest()[:12]}.json"


def _obeyed(record: Path) -> Execution:
    values = read_json(record, list(_FIELDS))
    if any(type(values[name]) is not kind for name, kind in _FIELDS.items()) or values["micro_batch"] < 1:
        raise DamagedError(f"expected what a probe decided in {record}, got others: remove that file and run again")
    return Execution(**{name: values[name] for name in _FIELDS})


def _write_first(record: Path, values: dict[str, Any]) -> None:
    """Write the record unless another process has: linking a finished file is refused where the name is taken."""
    record.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(record.parent)
    mine = temporary_name(record)
    mine.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    try:
        os.link(mine, record)
    except FileExistsError:
        pass
    except OSError:  # a file system without links: the last of several that start at the same moment wins
        with renamed(record) as temporary:
            temporary.write_bytes(mine.read_bytes())
    finally:
        mine.unlink(missing_ok=True)


def _fold(model: ImageClassifier, plan: Plan, *, wanted: bool) -> bool:
    return wanted and plan.dtype == "float32" and fold_batch_norm(model)


def _probed(plan: Plan, model: ImageClassifier, auto_batch: bool, device: str, pictures: int) -> Execution:
    """The usual execution, as far as memory goes, or one that is clearly faster."""
    usual = Execution(plan.micro_batch, plan.layout, plan.batch_norm_folded)
    if auto_batch and device != "cpu":
        usual = replace(usual, micro_batch=_fitting(model, usual, device))
    if pictures < WORTH_A_PROBE:
        return usual
    times = {usual: _seconds(model, usual, device)}
    sizes = (usual.micro_batch * 2, usual.micro_batch // 2) if auto_batch else ()
    for size in (size for size in sizes if size):
        other = replace(usual, micro_batch=size)
        times[other] = _seconds(model, other, device)
    fastest = _fastest(times, usual)
    for layout in _LAYOUTS if model.layout == "channels_last" else ():  # where a trial accepted both
        other = replace(fastest, layout=layout)
        times[other] = times.get(other) or _seconds(model, other, device)
    return _fastest(times, fastest)


def _fastest(times: dict[Execution, float], usual: Execution) -> Execution:
    best = min(times, key=times.__getitem__)
    return best if times[best] < _BETTER * times[usual] else usual


def _fitting(model: ImageClassifier, usual: Execution, device: str) -> int:
    """The usual micro-batch, halved until one fits into memory."""
    size = usual.micro_batch
    while True:
        try:
            forward(model, noise(model, size, usual.layout, device))
            return size
        except Exception as error:
            if not is_out_of_memory(error):
                return size  # what else is wrong with the model is told where its pictures are tried
            if size == 1:
                raise ModelError(f"{model.name} needs more memory for one picture than there is: {error}") from error
        size //= 2


def _seconds(model: ImageClassifier, execution: Execution, device: str) -> float:
    """Seconds a picture; infinite where it fails. On CPUs time of the processor: what others take does not count."""
    import torch

    clock = time.process_time if device == "cpu" else time.perf_counter
    batch = noise(model, execution.micro_batch, execution.layout, device)
    if execution.layout != "contiguous":
        model.module.to(memory_format=torch.channels_last)
    else:
        model.module.to(memory_format=torch.contiguous_format)
    try:
        times = [_timed(lambda: forward(model, batch), clock, device) for _ in range(_ROUNDS)]
    except Exception:  # out of memory, or a model that takes no such batch
        return float("inf")
    return min(times) / execution.micro_batch


def _timed(call: Callable[[], object], clock: Callable[[], float], device: str) -> float:
    import torch

    started = clock()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return clock() - started


def noise(model: ImageClassifier, size: int, layout: str, device: str) -> torch.Tensor:
    """A batch of so many random pictures, always the same, in that memory layout."""
    import torch

    side = model.preprocessing.size
    batch = torch.randn(size, 3, side, side, generator=torch.Generator().manual_seed(0)).to(device)
    wanted = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    return batch.contiguous(memory_format=wanted)


def forward(model: ImageClassifier, batch: torch.Tensor, dtype: str = "float32") -> Mapping[str, torch.Tensor]:
    """The outputs for one batch, without gradients, in the arithmetic of the run."""
    import torch

    kind = getattr(torch, dtype)
    mixed = torch.autocast(batch.device.type, dtype=kind, enabled=kind != torch.float32)
    with torch.inference_mode(), mixed:
        return model.forward(batch)


def described(plan: Plan, processes: int) -> str:
    """How a model is run, in words.

    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(threads=1, micro_batch=4, layout="contiguous", batch_norm_folded=True, dtype="float32",
    ...                        compiled=False)
    >>> described(plan, 2)
    '2 processes of 1 thread, micro-batches of 4, contiguous, batch norm folded, float32'
    """
    words: Sequence[str] = (
        f"{processes} process{'es' if processes > 1 else ''} of {plan.threads} thread{'s' if plan.threads > 1 else ''}",
        f"micro-batches of {plan.micro_batch}",
        plan.layout,
        *(["batch norm folded"] if plan.batch_norm_folded else []),
        *(["compiled"] if plan.compiled else []),
        plan.dtype,
    )
    return ", ".join(words)
