"""Forward the parts of a source: decode, batch, run, write. No collectives; a part is whole or absent."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..data import Exif, PictureError, Rows, decode
from ..models import ImageClassifier, ModelError
from ..predictions.parts import Part, is_present, part_table, work_list, write_part
from ..predictions.plan import Plan
from .pixels import Pixels
from .probe import forward, is_out_of_memory

if TYPE_CHECKING:
    from PIL.Image import Image

OnError = Literal["raise", "record"]
# Called with the number of pictures that were just done, and with minus that number once their part is on disk.
Progress = Callable[[int], None]


class MemoryRanOutError(ModelError):
    """A micro-batch that does not fit into memory."""


class PictureFailedError(ValueError):
    """A picture that cannot be read, in a run that must not go on without it."""


@dataclass(frozen=True)
class Picture:
    """A picture ready for the model, or the reason why it is not."""

    sha256: str | None
    pixels: Any  # what Pixels.batch takes
    error: str | None


@dataclass(frozen=True)
class Job:
    """One source to be forwarded: rows, the parts that are wanted, the transform, and where the parts go."""

    folder: Path
    rows: Rows
    parts: tuple[Part, ...]
    transform: Pixels
    model: ImageClassifier
    plan: Plan
    device: str
    on_error: OnError
    shapes: Mapping[str, tuple[int, ...]]  # of each output for one picture
    exif: Exif = "ignore"
    decode_threads: int = 1


def forward_parts(job: Job, rank: int, size: int, progress: Progress) -> None:
    """Write every part of the job that is not there yet, this process's own first, then any still missing."""
    missing = (part for part in work_list(job.parts, rank, size) if not is_present(job.folder, part))
    pictures: list[Picture] = []
    outputs: list[dict[str, NDArray[np.float32]]] = []
    with ThreadPoolExecutor(job.decode_threads) as pool:
        for part, batch in _prefetched(job, missing, pool):
            pictures += batch
            tensors = [p.pixels for p in batch if p.pixels is not None]
            outputs.append(_run(job, tensors) if tensors else {})
            progress(len(batch))
            if len(pictures) == len(part.rows):
                write_part(job.folder, part, _table(job, part, pictures, outputs))
                progress(-len(part.rows))
                pictures, outputs = [], []


def _table(job: Job, part: Part, pictures: Sequence[Picture], outputs: Sequence[dict[str, NDArray[np.float32]]]) -> Any:
    columns = _gather(job, pictures, outputs)
    _check_finite(job, part, pictures, columns)
    return part_table(job.rows.table, part, [p.sha256 for p in pictures], [p.error for p in pictures], columns)


def _prefetched(job: Job, parts: Iterable[Part], pool: ThreadPoolExecutor) -> Iterator[tuple[Part, list[Picture]]]:
    """Micro-batches of decoded pictures; while the model works on one, the next is begun, across parts too."""
    size = job.plan.micro_batch
    waiting: deque[tuple[Part, list[Callable[[], Picture]]]] = deque()
    for part in parts:
        for start in range(0, len(part.rows), size):
            waiting.append((part, [_begun(job, row, pool) for row in part.rows[start : start + size]]))
            if len(waiting) > 1:
                yield _decoded(*waiting.popleft())
    while waiting:
        yield _decoded(*waiting.popleft())


def _decoded(part: Part, begun: Sequence[Callable[[], Picture]]) -> tuple[Part, list[Picture]]:
    return part, [picture() for picture in begun]


def _begun(job: Job, row: int, pool: ThreadPoolExecutor) -> Callable[[], Picture]:
    """What gives the picture. Its bytes are read ahead; it is decoded ahead only where the model runs elsewhere.

    On a CPU the model has this process's one core to itself; a thread that decodes would take it away in slices.
    """
    if job.plan.device == "cpu":
        return partial(_picture, job, row, pool.submit(job.rows.read, row).result)
    return pool.submit(_picture, job, row, partial(job.rows.read, row)).result


def _picture(job: Job, row: int, read: Callable[[], bytes]) -> Picture:
    name = f"id {job.rows.table.ids[row]!r} of {job.rows.dataset}"
    sha256 = None
    try:
        data = read()
        sha256 = hashlib.sha256(data).hexdigest()
        return Picture(sha256, _pixels(job, decode(data, exif=job.exif)), None)
    except OSError as error:  # the disk, not the picture: nothing to be recorded as the picture's fault
        raise PictureFailedError(f"expected to read {name}, got {error}: is the data still where it was?") from error
    except PictureError as error:
        if job.on_error == "raise":
            raise PictureFailedError(
                f"expected a picture at {name}, got {error}: "
                "repair it, or run with --on-error record to go on and have it counted in every result"
            ) from error
        return Picture(sha256, None, str(error))


def _pixels(job: Job, picture: Image) -> Any:
    try:
        return job.transform.of_picture(picture)
    except Exception as error:  # a transform may be anybody's code, and some pictures are one pixel wide
        raise PictureError(f"{type(error).__name__} in the transform: {error}") from error


def _run(job: Job, tensors: Sequence[Any]) -> dict[str, NDArray[np.float32]]:
    """The outputs of one micro-batch; ModelError where the model fails or does not give one row a picture."""
    try:
        outputs = _forward(job, tensors)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # out of memory most of all, but a forward is anybody's code
        first = (str(error).splitlines() or [repr(error)])[0]
        said = first if isinstance(error, RuntimeError) else f"{type(error).__name__}: {first}"
        kind = MemoryRanOutError if is_out_of_memory(error) else ModelError
        raise kind(
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


def _forward(job: Job, tensors: Sequence[Any]) -> dict[str, NDArray[np.float32]]:
    outputs = forward(job.model, job.transform.batch(tensors, job.device, job.plan.layout), job.plan.dtype)
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
