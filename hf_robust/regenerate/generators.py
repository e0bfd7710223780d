"""Text-to-image pipelines of diffusers: where one lies, which revision it is, and pictures from prompts and seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from ..models import ModelError
from ..models.trouble import library_errors
from .stage import StageError

DTYPES = ("float32", "float16", "bfloat16")
_INDEX = "model_index.json"
_MOST_THREADS = 1024  # with a hundred thousand torch ends the process without a word
_DECIDING = {".safetensors", ".json", ".txt", ".model"}  # weights, configurations and vocabularies


@dataclass(frozen=True)
class GenerateSettings:
    """How pictures are made; none of it is known of the published set but that it was a Stable Diffusion.

    model      repository on the Hub or local folder of any text-to-image pipeline of diffusers, weights as safetensors.
    revision   branch, tag or commit on the Hub; what it stands for is looked up once and recorded as a commit.
    scheduler  name of a scheduler class of diffusers; None: the pipeline's own.
    guidance, negative_prompt, height, width   None: not given to the pipeline, which takes its own; pixels.
    batch      pictures at a time; a batch never crosses a part, so that every picture has the same neighbours always.
    threads    threads a process on a CPU; more processes use more cores.
    """

    model: str = "stable-diffusion-v1-5/stable-diffusion-v1-5"
    revision: str | None = None
    scheduler: str | None = None
    steps: int = 50
    guidance: float | None = 7.5
    negative_prompt: str | None = None
    height: int | None = None
    width: int | None = None
    dtype: str = "float32"
    batch: int = 4
    threads: int = 1


@dataclass(frozen=True)
class Generator:
    """A pipeline on this disk: readable name, folder, revision, and the settings of its scheduler, before it is loaded.

    revision  commit on the Hub, or "sha256:…" over the files of a local folder.
    """

    name: str
    folder: Path
    revision: str
    pipeline: str
    scheduler: Any


@dataclass(frozen=True)
class Drawn:
    """Pictures as float32 (pictures, height, width, 3) in [0, 1], and which the pipeline's safety checker replaced."""

    pixels: NDArray[np.float32]
    flagged: tuple[bool, ...]


def check_settings(settings: GenerateSettings) -> None:
    """StageError where a setting cannot be meant."""
    if settings.dtype not in DTYPES:
        raise StageError(f"unknown dtype {settings.dtype!r} of stage 'generate'; known: {', '.join(DTYPES)}")
    for name in ("steps", "batch", "threads", "height", "width"):
        value = getattr(settings, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise StageError(f"expected {name} of stage 'generate' to be a whole number of at least 1, got {value!r}")
    if settings.threads > _MOST_THREADS:
        raise StageError(
            f"expected threads of stage 'generate' of at most {_MOST_THREADS}, got {settings.threads}: give the cores"
        )
    if (settings.height is None) != (settings.width is None):  # Stable Diffusion would take neither, without a word
        raise StageError(
            f"expected both height and width of stage 'generate' or none, got height {settings.height} and "
            f"width {settings.width}"
        )


def find_generator(settings: GenerateSettings, lock: Path | None = None) -> Generator:
    """The pipeline that the settings name, downloaded where needed; no weights are read.

    lock: a file by which processes of one machine ask the Hub one after the other. ImportError without diffusers;
    StageError where there is no such pipeline.
    """
    check_settings(settings)
    _require_diffusers()
    local = Path(settings.model).expanduser()
    if local.is_dir():
        if settings.revision is not None:
            raise StageError(
                f"expected no revision for the local folder {settings.model}, got {settings.revision!r}: leave it out"
            )
        index = _index(local)
        revision, folder, name = f"sha256:{folder_hash(local)}", local, local.resolve().name
    else:
        folder = _download(settings, lock)
        index, revision, name = _index(folder), folder.name, settings.model
    return Generator(name, folder, revision, str(index["_class_name"]), _scheduler(settings, folder, index))


def folder_hash(folder: Path) -> str:
    """SHA-256 over the names and bytes of a local pipeline's weights, configurations and vocabularies."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in _DECIDING):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()


def load_pipeline(generator: Generator, settings: GenerateSettings, device: str) -> Any:
    """The diffusers pipeline on the device, in the settings' dtype, with threads and arithmetic as in the runner."""
    import torch
    from diffusers import AutoPipelineForText2Image
    from diffusers.pipelines import pipeline_utils

    torch.set_num_threads(settings.threads)
    if device.startswith("cuda"):  # TF32 keeps 10 bits of a float32, and some algorithms add up in any order
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    dtype = "dtype" if hasattr(pipeline_utils, "_resolve_dtype") else "torch_dtype"  # its name in older diffusers
    auto: Any = AutoPipelineForText2Image
    with _errors(generator.name), _no_bars():
        pipeline = auto.from_pretrained(
            generator.folder, local_files_only=True, use_safetensors=True, **{dtype: getattr(torch, settings.dtype)}
        )
        if settings.scheduler is not None:
            pipeline.scheduler = generator.scheduler
        pipeline = pipeline.to(device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw(pipeline: Any, prompts: Sequence[str], seeds: Sequence[int], settings: GenerateSettings) -> Drawn:
    """One batch: picture i from prompts[i], its noise from a CPU generator of its own with seeds[i].

    So the noise is the same on every device and in every batch, and the picture up to rounding. StageError where the
    pipeline fails, does not take a setting, or gives no RGB pictures.
    """
    import torch

    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    options = _options(pipeline, settings, len(prompts))
    name = type(pipeline).__name__
    try:
        with torch.inference_mode():
            output = pipeline(prompt=list(prompts), generator=generators, output_type="np", **options)
    except Exception as error:  # a pipeline raises everything from TypeError to CUDA's own errors
        raise StageError(_failure(name, error, len(prompts))) from error
    pixels = np.asarray(getattr(output, "images", ()), dtype=np.float32)
    if pixels.ndim != 4 or pixels.shape[0] != len(prompts) or pixels.shape[3] != 3:
        raise StageError(
            f"expected {len(prompts)} RGB pictures of {name}, got values of shape {pixels.shape}: take another model"
        )
    # Stable Diffusion's name of the answer, then that of DeepFloyd IF; None where there is no checker
    answer = getattr(output, "nsfw_content_detected", None) or getattr(output, "nsfw_detected", None)
    return Drawn(pixels, tuple(bool(flag) for flag in answer or [False] * len(prompts)))


def _options(pipeline: Any, settings: GenerateSettings, count: int) -> dict[str, Any]:
    options = {
        "num_inference_steps": settings.steps,
        "guidance_scale": settings.guidance,
        "negative_prompt": None if settings.negative_prompt is None else [settings.negative_prompt] * count,
        "height": settings.height,
        "width": settings.width,
    }
    given = {name: value for name, value in options.items() if value is not None}
    refused = [name for name in given if name not in signature(pipeline.__call__).parameters]
    if refused:
        raise StageError(
            f"{type(pipeline).__name__} takes no {refused[0]}: set it to null in the settings of stage 'generate'"
        )
    return given


def _failure(name: str, error: Exception, count: int) -> str:
    import torch

    text = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
    said = ("out of memory", "can't allocate memory")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error).lower() for words in said):
        return (
            f"{name} ran out of memory with {count} pictures at a time: give stage 'generate' a smaller batch ({text})"
        )
    return f"{name} failed in stage 'generate' with {type(error).__name__}: {text}"


def _require_diffusers() -> None:
    try:
        import diffusers  # noqa: F401
    except ImportError as error:
        raise ImportError(f"stage 'generate' needs diffusers: pip install \"hf-robust[generate]\" ({error})") from error


def _download(settings: GenerateSettings, lock: Path | None) -> Path:
    """The snapshot's folder in the cache, named by its commit."""
    from diffusers import DiffusionPipeline

    if settings.model.count("/") != 1 or settings.model.startswith((".", "/", "~")):
        raise StageError(f"expected a repository on the Hub (owner/name) or a folder, got {settings.model!r}")
    waiting = nullcontext() if lock is None else FileLock(lock)
    with waiting, _errors(settings.model), _no_bars(), _without_notes():
        return Path(DiffusionPipeline.download(settings.model, revision=settings.revision, use_safetensors=True))


def _index(folder: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StageError(
            f"expected a pipeline of diffusers in {folder}, got no readable {_INDEX} ({type(error).__name__}): "
            "give a folder that save_pretrained wrote"
        ) from error
    code = [n for n, v in index.items() if isinstance(v, list) and v and (folder / n / f"{v[0]}.py").is_file()]
    if not isinstance(index.get("_class_name"), str) or code:
        raise StageError(
            f"expected a pipeline that diffusers itself knows, got one in {folder} that brings Python code "
            f"({', '.join(code) or _INDEX}): such code is never run here; take another model"
        )
    return index


def _scheduler(settings: GenerateSettings, folder: Path, index: Mapping[str, Any]) -> Any:
    """The scheduler that will be used, with its settings; None for a pipeline without one."""
    import diffusers

    own_name = (index.get("scheduler") or [None, None])[1]
    own = getattr(diffusers, str(own_name), None)
    if settings.scheduler is None and own is None:
        return None
    if own is None:
        raise StageError(f"expected a pipeline with a scheduler to replace, got {index['_class_name']} in {folder}")
    known = {cls.__name__: cls for cls in own._get_compatibles()}
    chosen = known.get(settings.scheduler or str(own_name))
    if chosen is None:
        raise StageError(
            f"unknown scheduler {settings.scheduler!r} for this pipeline; known: {', '.join(sorted(known))}"
        )
    with _errors(f"the scheduler in {folder}"):
        return chosen.from_config(own.load_config(folder, subfolder="scheduler", local_files_only=True))


@contextmanager
def _errors(name: str) -> Iterator[None]:
    try:
        with library_errors(name):
            yield
    except ModelError as error:
        said = str(error).partition(f" ({type(error.__cause__).__name__}: ")[0]  # without the library's own words
        raise StageError(f"stage 'generate' cannot load {said}") from error


@contextmanager
def _no_bars() -> Iterator[None]:
    """Our own progress is shown, not one bar for every file."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    shown = [log for log in (diffusers_logging, transformers_logging) if log.is_progress_bar_enabled()]
    for log in shown:
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log in shown:
            log.enable_progress_bar()


@contextmanager
def _without_notes() -> Iterator[None]:
    """Without the Hub the library tells of its retry; whether it helped is in what comes out."""
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
