"""Model + sources -> predictions on disk, in fixed parts, resumable, by any number of processes."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from ..benchmarks import Benchmark, Mode
from ..data import Exif
from ..machine import cores
from ..models import ImageClassifier, ModelError, load_model, transform_for
from ..models.base import Transform, weights_hash
from ..models.preprocessing import blocks
from ..predictions.parts import finish, source_folder
from ..predictions.plan import LOG_FILE, PLAN_FILE, REQUESTS, SOURCE_FILE, Plan, SourcePlan, settle, write_json
from ..predictions.read import HEADS_FOLDER, HeadWeights, has_head, label_space_hash, write_heads, write_label_space
from ..predictions.temporary import remove_leftovers
from ..spurious.spufix import check_strength
from ..spurious.spufix_files import read_spufix
from .compiling import compiled
from .loop import Job, MemoryRanOutError, OnError, forward_parts
from .needs import DataPlaces, Need, Needs, gather
from .pixels import pixels_of
from .probe import described, remember_smaller, settle_execution, usual_micro_batch
from .world import World, WorldError, is_launched, join_world

__all__ = [
    "DataPlaces", "Need", "Needs", "RunOptions", "World", "WorldError",
    "evaluate", "gather", "is_launched", "join_world", "record_failure", "request_file",
]  # fmt: skip

if TYPE_CHECKING:
    import torch

Meter = Callable[[int, int], None]  # called with pictures done so far, by all processes, and pictures in all
_SAME = 1e-2  # of the largest output: far above rounding, far below what a layer in training mode does
_TURNED = "EXIF orientation applied to the pictures; the published evaluations leave them as they are stored"
_MOST_THREADS = 1024  # more may end the process inside OpenMP


@dataclass(frozen=True)
class RunOptions:
    """How a model is loaded and run; None means that the plan decides."""

    mode: Mode = "model"
    checkpoint: Path | None = None
    prompts: Path | None = None
    class_names: Path | None = None
    features: bool = False
    limit: int | None = None
    seed: int = 0
    micro_batch: int | None = None
    threads: int | None = None
    dtype: str = "float32"
    compile: bool = False
    on_error: OnError = "raise"
    trust_remote_code: bool = False
    spufix: Path | None = None
    spufix_strength: float = 1.0
    exif: Exif = "ignore"

    def __post_init__(self) -> None:
        check_strength(self.spufix_strength)
        for name in ("limit", "micro_batch", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = {"micro_batch": "batch-size"}.get(name, name)
                raise ValueError(f"expected --{option} of at least 1, got {value}: leave it out for the usual value")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ValueError(
                f"expected --threads of at most {_MOST_THREADS}, got {self.threads}: give the cores at most"
            )


def make_plan(model: ImageClassifier, options: RunOptions, device: str) -> Plan:
    """The plan of this model under these options, with the usual values where they leave it open.

    On a CPU one thread a process and small batches, whose activations stay in the cache; more processes, not more
    threads, use more cores, so that the bytes do not depend on the number of cores.
    """
    kind = device.split(":")[0]
    layout = model.layout if kind in ("cpu", "cuda") else "contiguous"
    return Plan(
        model=model.name,
        weights=weights_hash(model.module),
        label_space=label_space_hash(model.label_space),
        prompts=model.prompts,
        dtype=options.dtype,
        device=kind,
        layout=layout,
        batch_norm_folded=False,
        micro_batch=options.micro_batch or usual_micro_batch(kind, layout),
        threads=options.threads or 1,
        features=options.features,
        limit=options.limit,
        seed=options.seed,
        code=model.code,
        spufix=None if options.spufix is None else read_spufix(options.spufix).sha256,
        spufix_strength=None if options.spufix is None else options.spufix_strength,
        exif=options.exif,
        compiled=options.compile,
    )


def evaluate(
    name: str,
    benchmarks: Sequence[Benchmark],
    needs: Needs,
    runs: Path,
    *,
    options: RunOptions,
    world: World,
    meter: Meter,
    zero_shot_heads: Collection[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Forward every part that `needs` names and is not on disk yet; returns the run's folder.

    zero_shot_heads  class lists whose heads a zero-shot model stores beside those of the benchmarks.
    tell             is told in words how the model is run, once that is decided.

    Raises ModelError where the model cannot be loaded or run at all, PlanError where predictions would be mixed,
    PictureFailedError where a picture cannot be read and options.on_error is "raise". A benchmark that this model
    cannot take leaves its reason in its request file.
    """
    import torch

    torch.set_num_threads(options.threads or 1)  # loading too: processes that each use every core only wait
    model = _loaded(name, options)
    plan = settle_execution(
        make_plan(model, options, world.device), model, runs,
        auto_batch=options.micro_batch is None, device=world.device, pictures=needs.pictures,
    )  # fmt: skip
    if tell is not None:
        tell(described(plan, world.size))
    run = plan.folder(runs)
    settle(plan, run / PLAN_FILE)
    for folder in (run, run / REQUESTS, run / HEADS_FOLDER):
        remove_leftovers(folder)
    write_label_space(run, model.label_space)
    prepare(model, plan, world)
    if world.rank == 0:
        _write_heads(run, plan, model, {*zero_shot_heads, *_zero_shot_heads(benchmarks)})
    failures = dict(needs.absent)
    jobs = []
    for need in needs.needs:
        try:
            jobs.append(_job(need, model, plan, run, options, world))
        except ModelError as error:
            failures.update(dict.fromkeys(need.users, str(error)))
    if plan.compiled and jobs:
        fast = compiled(model, plan, world.device)
        jobs = [replace(job, model=fast) for job in jobs]
    notes = [*model.notes, *([_TURNED] if plan.exif == "apply" else [])]
    _remember(run, benchmarks, options.mode, failures, notes)
    try:
        _forward(jobs, run, world, meter, [request_file(run, b.name, options.mode).stem for b in benchmarks])
    except MemoryRanOutError as error:
        _try_smaller(error, plan, run, options, world)
        return evaluate(
            name, benchmarks, needs, runs, options=options, world=world, meter=meter,
            zero_shot_heads=zero_shot_heads, tell=tell,
        )  # fmt: skip
    return run


def _try_smaller(error: MemoryRanOutError, plan: Plan, run: Path, options: RunOptions, world: World) -> None:
    """Remember half the micro-batch and clear the place for a run with it; raises the error where that is not ours."""
    if options.micro_batch is not None or plan.micro_batch == 1:
        raise error
    half = remember_smaller(plan, run.parent)
    if world.size > 1 or any(run.glob("*/part-*.parquet")):  # others may be at work here, or are done
        raise MemoryRanOutError(
            f"{error}. It is remembered: remove {run}, and the same command uses micro-batches of {half}"
        ) from error
    shutil.rmtree(run)  # no prediction is lost, and a run without any would stay in the table


def _loaded(name: str, options: RunOptions) -> ImageClassifier:
    """The model as it will be run: corrected and with features where asked."""
    model = load_model(
        name,
        checkpoint=options.checkpoint,
        prompts=options.prompts,
        class_names=options.class_names,
        trust_remote_code=options.trust_remote_code,
    )
    if options.spufix is not None:
        from ..spurious.spufix_module import correct_classifier

        model = correct_classifier(model, read_spufix(options.spufix), strength=options.spufix_strength)
    if options.features:
        return model.with_features()
    return model


def _remember(
    run: Path, benchmarks: Sequence[Benchmark], mode: Mode, failures: Mapping[str, str], notes: Sequence[str]
) -> None:
    """Which benchmarks were asked for, and why one cannot be run."""
    for benchmark in benchmarks:
        request = {"benchmark": benchmark.name, "mode": mode, "failure": failures.get(benchmark.name)}
        write_json(request_file(run, benchmark.name, mode), {**request, "notes": list(notes)})


def prepare(model: ImageClassifier, plan: Plan, world: World) -> None:
    """Threads, device, memory layout and arithmetic as the plan says."""
    import torch

    torch.set_num_threads(plan.threads)
    if plan.device == "cuda":  # TF32 keeps 10 bits of a float32, and some algorithms add up in any order
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    wanted = torch.channels_last if plan.layout == "channels_last" else torch.contiguous_format
    model.module.to(world.device).to(memory_format=wanted)


def _zero_shot_heads(benchmarks: Sequence[Benchmark]) -> set[str]:
    return {b.zero_shot.head if b.zero_shot is not None else "imagenet-1k" for b in benchmarks}


def _write_heads(run: Path, plan: Plan, model: ImageClassifier, zero_shot: Collection[str]) -> None:
    """The linear heads that will be read, by one process and once: a zero-shot head costs many texts."""
    if plan.prompts is None:
        zero_shot = {"classifier"} if plan.features else ()
    for name in sorted(zero_shot):
        if not has_head(run, name):
            write_heads(run, {name: HeadWeights(model.heads[name].weight, model.heads[name].bias)})


def _job(need: Need, model: ImageClassifier, plan: Plan, run: Path, options: RunOptions, world: World) -> Job:
    transform, description = transform_for(need.rule, model.preprocessing)
    folder = source_folder(run, need.dataset, need.rule.name)
    job = Job(
        folder, need.rows, need.wanted, pixels_of(transform), model, plan, world.device, options.on_error,
        shapes=_probe(need, model, transform, world.device),
        exif=options.exif,
        decode_threads=1 if plan.device == "cpu" else min(8, cores()),
    )  # fmt: skip
    source = SourcePlan(
        dataset=need.dataset,
        rule=need.rule.name,
        preprocessing={**description, "exif": plan.exif},
        cut="class" if need.rows.by_class else "rows",
        complete=need.rows.complete,
        differences=need.rows.differences,
        parts=tuple((part.index, len(part.rows), part.fingerprint) for part in need.parts),
    )
    settle(source, folder / SOURCE_FILE)
    remove_leftovers(folder)
    return job


def _probe(need: Need, model: ImageClassifier, transform: Transform, device: str) -> dict[str, tuple[int, ...]]:
    """The shape of each output for one picture; a size that the model cannot take is found before any work."""
    import torch

    # for one even colour all features may be near zero, and Dropout then changes nothing
    pixels = transform(blocks(300, 300)).unsqueeze(0).to(device)
    try:
        with torch.inference_mode():
            alone = model.forward(pixels)
            beside = _beside_others(model, pixels)
    except (Exception, SystemExit) as error:  # a forward is anybody's code
        first = (str(error).splitlines() or [repr(error)])[0]
        said = first if isinstance(error, RuntimeError | ModelError) else f"{type(error).__name__}: {first}"
        raise ModelError(
            f"{model.name} cannot take the pictures of {need.dataset} under the rule {need.rule.name!r} "
            f"({'x'.join(map(str, pixels.shape[2:]))} pixels): {said}"
        ) from error
    for name, values in alone.items():
        if name in beside and not _is_close(values, beside[name]):
            raise ModelError(
                f"{model.name}: expected the same {name} for a picture alone and beside another, got others: its "
                "BatchNorm or Dropout is in training mode, or its forward draws random numbers; let it obey eval()"
            )
    return {name: tuple(values.shape[1:]) for name, values in alone.items()}


def _beside_others(model: ImageClassifier, pixels: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """The outputs for the last of four pictures; none where the model cannot take four, which its batches will tell."""
    import torch

    other = pixels.flip(1) + torch.linspace(-1, 1, pixels.shape[-1]).to(pixels)
    try:
        four = model.forward(torch.cat([other, pixels.flip(2), pixels.flip(3), pixels]))
    except (Exception, SystemExit):  # a forward is anybody's code
        return {}
    return {name: values[-1:] for name, values in four.items() if len(values) == 4}


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    one, other = one.float(), other.float()
    scale = float(one[one.isfinite()].abs().max()) if bool(one.isfinite().any()) else 1.0
    return torch.allclose(one, other, rtol=0, atol=_SAME * scale, equal_nan=True)


def _forward(jobs: Sequence[Job], run: Path, world: World, meter: Meter, asked: Sequence[str]) -> None:
    started, pending = time.monotonic(), 0
    sizes = [(job.folder / part.file_name, len(part.rows)) for job in jobs for part in job.parts]
    total, seen, last = sum(n for _, n in sizes), 0, 0.0

    def progress(done: int) -> None:
        nonlocal pending, seen, last
        pending += done
        if done < 0 or time.monotonic() - last > 0.5:  # other processes' parts are seen on disk
            seen, last = sum(n for path, n in sizes if path.exists()), time.monotonic()
        meter(min(seen + pending, total), total)

    progress(0)
    for job in jobs:
        forward_parts(job, world.rank, world.size, progress)
        finish(job.folder)
    meter(total, total)
    seconds = round(time.monotonic() - started, 1)
    _log(run, {"rank": world.rank, "world": world.size, "seconds": seconds, "pictures": total, "asked": list(asked)})


def _log(run: Path, entry: dict[str, object]) -> None:
    """Times, hosts and versions: what may differ between two runs of one plan."""
    libraries = {name: _version(name) for name in ("hf-robust", "torch", "torchvision", "timm", "pillow", "pyarrow")}
    facts = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "host": socket.gethostname()}
    with (run / LOG_FILE).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**facts, **entry, "python": platform.python_version(), "versions": libraries}) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout, or a model source that does not need it
        return None


def request_file(run: Path, benchmark: str, mode: Mode) -> Path:
    """Where a run remembers that a benchmark was asked for, and why it could not be run."""
    return run / REQUESTS / f"{benchmark}.{mode}.json"


def record_failure(runs: Path, model: str, reason: str | None) -> None:
    """Remember that a model could not be run at all, or forget it (None): a failed model stays a row of the table."""
    path = runs / "failures" / f"{hashlib.sha256(model.encode()).hexdigest()[:12]}.json"
    if reason is None:
        path.unlink(missing_ok=True)
    else:
        write_json(path, {"model": model, "reason": reason})
