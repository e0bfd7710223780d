"""Forward the parts of a source: decode, batch, run, write. No collectives; a part is whole or absent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..data import Exif, PictureError, Rows, decode
from ..models import ImageClassifier, ModelError
from ..models.base import Transform
from ..predictions.parts import Part, is_present, part_table, work_list, write_part
from ..predictions.plan import Plan

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

OnError = Literal["raise", "record"]
# Called with the number of pictures that were just done, and with minus that number once their part is on disk.
Progress = Callable[[int], None]


class PictureFailedError(ValueError):
    """A picture that cannot be read, in a run that must not go on without it."""


@dataclass(frozen=True)
class Picture:
    """A picture ready for the model, or the reason why it is not."""

    sha256: str | None
    pixels: torch.Tensor | None
    error: str | None


@dataclass(frozen=True)
class Job:
    """One source to be forwarded: rows, the parts that are wanted, the transform, and where the parts go."""

    folder: Path
    rows: Rows
    parts: tuple[Part, ...]
    transform: Transform
    model: ImageClassifier
    plan: Plan
    device: str
    on_error: OnError
    shapes: Mapping[str, tuple[int, ...]]  # of each output for one picture
    exif: Exif = "ignore"
    decode_threads: int = 1


def forward_parts(job: Job, rank: int, size: int, progress: Progress) -> None:
    """Write every part of the job that is not there yet, this process's own first, then any still missing."""
    for part in work_list(job.parts, rank, size):
        if not is_present(job.folder, part):
            write_part(job.folder, part, _forward_part(job, part, progress))
            progress(-len(part.rows))


def _forward_part(job: Job, part: Part, progress: Progress) -> Any:
    pictures: list[Picture] = []
    outputs: list[dict[str, NDArray[np.float32]]] = []
    for batch in _prefetched(job, part):
        pictures += batch
        tensors = [p.pixels for p in batch if p.pixels is not None]
        outputs.append(_run(job, tensors) if tensors else {})
        progress(len(batch))
    columns = _gather(job, pictures, outputs)
    _check_finite(job, part, pictures, columns)
    return part_table(job.rows.table, part, [p.sha256 for p in pictures], [p.error for p in pictures], columns)


def _prefetched(job: Job, part: Part) -> Iterator[list[Picture]]:
    """Micro-batches of decoded pictures; the next is decoded while the model works on this one."""
    size = job.plan.micro_batch
    batches = [part.rows[start : start + size] for start in range(0, len(part.rows), size)]
    with ThreadPoolExecutor(job.decode_threads) as pool:
        ahead = [pool.submit(_picture, job, row) for row in batches[0]]
        for following in (*batches[1:], ()):
            ready, ahead = ahead, [pool.submit(_picture, job, row) for row in following]
            yield [future.result() for future in ready]


def _picture(job: Job, row: int) -> Picture:
    name = f"id {job.rows.table.ids[row]!r} of {job.rows.dataset}"
    try:
        data = job.rows.read(row)
    except OSError as error:  # the disk, not the picture: nothing to be recorded as the picture's fault
        raise PictureFailedError(f"expected to read {name}, got {error}: is the data still where it was?") from error
    sha256 = hashlib.sha256(data).hexdigest()
    try:
        return Picture(sha256, _pixels(job, decode(data, exif=job.exif)), None)
    except PictureError as error:
        if job.on_error == "raise":
            raise PictureFailedError(
                f"expected a picture at {name}, got {error}: "
                "repair it, or run with --on-error record to go on and have it counted in every result"
            ) from error
        return Picture(sha256, None, str(error))


def _pixels(job: Job, picture: Image) -> torch.Tensor:
    try:
        return job.transform(picture)
    except Exception as error:  # a transform may be anybody's code, and some pictures are one pixel wide
        raise PictureError(f"{type(error).__name__} in the transform: {error}") from error


def _run(job: Job, tensors: Sequence[torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    """The outputs of one micro-batch; ModelError where the model fails or does not give one row a picture."""
    try:
        outputs = _forward(job, tensors)
    except ModelError:
        raise
    except Exception as error:  # out of memory most of all, but a forward is anybody's code
        first = (str(error).splitlines() or [repr(error)])[0]
        said = first if isinstance(error, RuntimeError) else f"{type(error).__name__}: {first}"
        raise ModelError(
            f"{job.model.name} failed on a batch of {len(tensors)} pictures of {job.rows.dataset}: {said}; "
            "if memory ran out, give a smaller --batch-size"
        ) from error
    for name, values in outputs.items():
        if values.shape != (len(tensors), *job.shapes[name]):
            raise ModelError(
                f"{job.model.name}: expected {name} of shape {(len(tensors), *job.shapes[name])}, one row a picture, "
                f"got {values.shape}: its forward must treat the pictures of a batch one by one"
            )
    return outputs


def _forward(job: Job, tensors: Sequence[torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    import torch

    batch = torch.stack(list(tensors)).to(job.device)
    if job.plan.layout == "channels_last":
        batch = batch.contiguous(memory_format=torch.channels_last)
    dtype = getattr(torch, job.plan.dtype)
    mixed = torch.autocast(job.device.split(":")[0], dtype=dtype, enabled=dtype != torch.float32)
    with torch.inference_mode(), mixed:
        outputs = job.model.forward(batch)
    return {name: values.float().cpu().numpy() for name, values in outputs.items()}


def _gather(
    job: Job, pictures: Sequence[Picture], outputs: Iterable[dict[str, NDArray[np.float32]]]
) -> dict[str, NDArray[np.float32]]:
    """One array a column with a row for every picture; rows that failed hold zeros and are nulled when written."""
    filled = [o for o in outputs if o]
    good = np.array([p.error is None for p in pictures])
    columns = {name: np.zeros((len(pictures), *shape), np.float32) for name, shape in job.shapes.items()}
    for name in columns if filled else ():
        columns[name][good] = np.concatenate([o[name] for o in filled])
    return columns


def _check_finite(job: Job, part: Part, pictures: Sequence[Picture], columns: dict[str, NDArray[np.float32]]) -> None:
    for name, values in columns.items():
        bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(bad):
            raise ModelError(
                f"{job.model.name} gave {name} that are not finite for id {job.rows.table.ids[part.rows[bad[0]]]!r} of "
                f"{job.rows.dataset}: check the checkpoint, or run with --dtype float32"
            )
