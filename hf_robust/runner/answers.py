"""Vision-language model + questions -> answers on disk, in fixed parts, resumable, by any number of processes.

RUNS/<model>-<hash>/questions.json holds what decides the answers, <data set>.vqa/part-*.parquet the answers: one row a
picture with both options and what the model said. It is no run of a classifier, so it has no plan.json.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..data import PictureError, Rows, decode
from ..metrics.vqa import question
from ..models import ModelError, weights_hash
from ..models.vqa import PREFIX, Answer, Likelihood, VisionLanguageModel, load_vqa
from ..predictions.parts import (
    Part,
    cut,
    finish,
    is_present,
    source_folder,
    work_list,
    write_part,
)
from ..predictions.plan import LOG_FILE, SOURCE_FILE, PlanError, SourcePlan, canonical, read_json, settle, write_json
from ..predictions.temporary import remove_leftovers
from .loop import OnError, PictureFailedError
from .questions import CONFUSING, TRUTH, questions_hash
from .world import World

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

Orders = Literal["both", "published"]
Meter = Callable[[int, int], None]  # called with pictures done so far, by all processes, and pictures in all

MODEL_PREFIX = PREFIX
QUESTIONS_FILE = "questions.json"
RULE = "vqa"
_VERSIONS = ("hf-robust", "torch", "transformers", "pillow", "pyarrow")


@dataclass(frozen=True)
class AskOptions:
    """How a model is asked; None means that the plan decides.

    orders       "both": once with the true option first, as published, and once with it second; "published": once.
    likelihood   the log-likelihood of both options as the answer too.
    most_tokens  where an answer is cut.
    limit, seed  as the rows were drawn, see `data.Rows.limited`.
    """

    orders: Orders = "both"
    likelihood: bool = False
    most_tokens: int = 64
    limit: int | None = None
    seed: int = 0
    micro_batch: int | None = None
    threads: int | None = None
    dtype: str = "float32"
    on_error: OnError = "raise"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        names = {"most_tokens": "max-new-tokens", "limit": "limit", "micro_batch": "batch-size", "threads": "threads"}
        for name, option in names.items():
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected --{option} of at least 1, got {value}: leave it out for the usual value")


@dataclass(frozen=True)
class AskPlan:
    """What decides the bytes of the answers; equal plans give equal bytes for any number of processes."""

    model: str
    weights: str  # SHA-256 of every parameter and buffer
    preprocessing: Mapping[str, Any]
    questions: str  # SHA-256 of every picture with its two options
    confusing_from: str
    orders: Orders
    likelihood: bool
    most_tokens: int
    dtype: str
    device: str
    micro_batch: int
    threads: int
    limit: int | None
    seed: int

    def digest(self) -> str:
        """SHA-256 of the plan."""
        return hashlib.sha256(canonical(asdict(self)).encode()).hexdigest()

    def folder(self, runs: Path) -> Path:
        """The run's folder below `runs`: readable model name, then the plan's hash."""
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", self.model).strip("-.")[-80:]
        return runs / f"{slug}-{self.digest()[:12]}"


@dataclass(frozen=True)
class _Job:
    folder: Path
    rows: Rows
    model: VisionLanguageModel
    plan: AskPlan
    on_error: OnError


@dataclass(frozen=True)
class _Asked:
    """What came of one picture; without a picture (`error`) everything else is None."""

    sha256: str
    error: str | None
    said: tuple[Answer | None, ...] = (None, None)  # published order, swapped order
    likely: tuple[tuple[Likelihood, ...] | None, ...] = (None, None)  # each (true, confusing)


def ask(
    name: str, rows: Rows, confusing_from: str, runs: Path, *, options: AskOptions, world: World, meter: Meter
) -> Path:
    """Ask `hf-vqa/…` about every row that has no answer on disk yet; returns the run's folder.

    rows  with the columns of `questions.with_questions`.   confusing_from  in words, for the results.
    Raises ModelError where the model cannot be loaded or run, PlanError where answers would be mixed,
    PictureFailedError where a picture cannot be read and options.on_error is "raise".
    """
    model = load_vqa(name, dtype=options.dtype, trust_remote_code=options.trust_remote_code)
    plan = _plan(model, rows, confusing_from, options, world.device)
    run = plan.folder(runs)
    folder = source_folder(run, rows.dataset, RULE)
    parts = cut(rows.table, by_class=False)
    _settle(plan, run / QUESTIONS_FILE)
    settle(_source(plan, rows, parts), folder / SOURCE_FILE)
    remove_leftovers(folder)
    _prepare(model, plan, world.device)
    job = _Job(folder, rows, model, plan, options.on_error)
    started, asked = time.time(), 0
    for part in work_list(parts, world.rank, world.size):
        if not is_present(folder, part):
            write_part(folder, part, _ask_part(job, part, _counter(folder, parts, meter)))
            asked += len(part.rows)
    finish(folder)
    meter(len(rows.table), len(rows.table))
    _log(run, {"rank": world.rank, "world": world.size, "seconds": round(time.time() - started, 1), "pictures": asked})
    return run


def _plan(model: VisionLanguageModel, rows: Rows, confusing_from: str, options: AskOptions, device: str) -> AskPlan:
    kind = device.split(":")[0]
    return AskPlan(
        model=model.name,
        weights=weights_hash(model.module),
        preprocessing=model.preprocessing,
        questions=questions_hash(rows),
        confusing_from=confusing_from,
        orders=options.orders,
        likelihood=options.likelihood,
        most_tokens=options.most_tokens,
        dtype=options.dtype,
        device=kind,
        micro_batch=options.micro_batch or (4 if kind == "cpu" else 16),
        threads=options.threads or 1,
        limit=options.limit,
        seed=options.seed,
    )


def _settle(plan: AskPlan, path: Path) -> None:
    ours = json.loads(canonical(asdict(plan)))
    if path.exists() and read_json(path) != ours:
        raise PlanError(f"expected the plan whose hash names {path.parent} in {path}, got another: remove that folder")
    write_json(path, ours)


def _source(plan: AskPlan, rows: Rows, parts: Sequence[Part]) -> SourcePlan:
    return SourcePlan(
        dataset=rows.dataset,
        rule=RULE,
        preprocessing={**plan.preprocessing, "plan": plan.digest()},  # so that a part knows whose answers it holds
        cut="rows",
        complete=rows.complete,
        differences=rows.differences,
        parts=tuple((part.index, len(part.rows), part.fingerprint) for part in parts),
    )


def _prepare(model: VisionLanguageModel, plan: AskPlan, device: str) -> None:
    import torch

    torch.set_num_threads(plan.threads)
    if plan.device == "cuda":  # as for classifiers: no TF32, no algorithm that adds up in any order
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    model.module.to(device)


def _counter(folder: Path, parts: Sequence[Part], meter: Meter) -> Callable[[int], None]:
    """Tells the meter how many pictures are done: those of finished parts, whoever made them, and this part's own."""
    total = sum(len(part.rows) for part in parts)
    finished = sum(len(part.rows) for part in parts if (folder / part.file_name).exists())
    return lambda own: meter(min(finished + own, total), total)


def _ask_part(job: _Job, part: Part, progress: Callable[[int], None]) -> pa.Table:
    asked: list[_Asked] = []
    for start in range(0, len(part.rows), job.plan.micro_batch):
        progress(len(asked))
        asked += _ask_batch(job, part.rows[start : start + job.plan.micro_batch])
    return answers_table(job.rows, part, asked)


def _ask_batch(job: _Job, positions: Sequence[int]) -> list[_Asked]:
    read = [_picture(job, position) for position in positions]
    good = [(position, picture) for position, (_, picture, _) in zip(positions, read, strict=True) if picture]
    answers = iter(_ask_model(job, good) if good else [])
    return [
        _Asked(sha256, error) if picture is None else _Asked(sha256, None, *next(answers))
        for sha256, picture, error in read
    ]


def _picture(job: _Job, position: int) -> tuple[str, Image | None, str | None]:
    """SHA-256, the picture or None, and why there is none."""
    name = f"id {job.rows.table.ids[position]!r} of {job.rows.dataset}"
    sha256 = ""
    try:
        data = job.rows.read(position)
        sha256 = hashlib.sha256(data).hexdigest()
        return sha256, decode(data), None
    except OSError as error:  # the disk, not the picture
        raise PictureFailedError(f"expected to read {name}, got {error}: is the data still where it was?") from error
    except PictureError as error:
        if job.on_error == "raise":
            raise PictureFailedError(f"expected a picture at {name}, got {error}: repair it, or run with --on-error "
                                     "record to go on and have it counted in every result") from error  # fmt: skip
        return sha256, None, str(error)


def _ask_model(
    job: _Job, good: Sequence[tuple[int, Image]]
) -> list[tuple[tuple[Answer | None, ...], tuple[tuple[Likelihood, ...] | None, ...]]]:
    """For each picture its answers and the likelihoods of both options, each in published and in swapped order."""
    groups = job.rows.table.groups
    pairs = [(groups[TRUTH][position], groups[CONFUSING][position]) for position, _ in good]
    pictures = [picture for _, picture in good]
    said: list[Sequence[Answer | None]] = []
    likely: list[Sequence[tuple[Likelihood, ...] | None]] = []
    for swapped in (False, True):
        asked = not swapped or job.plan.orders == "both"
        questions = [question(*(reversed(pair) if swapped else pair)) for pair in pairs]
        none = [None] * len(pairs)
        try:
            said.append(job.model.answers(pictures, questions, most_tokens=job.plan.most_tokens) if asked else none)
            wanted = asked and job.plan.likelihood
            likely.append(job.model.likelihoods(pictures, questions, pairs) if wanted else none)
        except Exception as error:  # out of memory most of all, but a model's code may raise anything
            raise ModelError(
                f"{job.model.name} failed on {len(pairs)} questions: {type(error).__name__}: {str(error)[:300]}; "
                "if memory ran out, give a smaller --batch-size"
            ) from error
    return list(zip(zip(*said, strict=True), zip(*likely, strict=True), strict=True))


def answers_table(rows: Rows, part: Part, asked: Sequence[_Asked]) -> pa.Table:
    """The answers of one part: one row a picture, null where something was not asked or could not be read.

    `answer` and `answer_swapped` with `ended` (False: cut at the largest number of tokens), `log_likelihood` and
    `log_likelihood_swapped`: float32 (true, confusing), natural logarithm, summed over `option_tokens`.
    """
    import pyarrow as pa

    text, flag, pair = pa.string(), pa.bool_(), pa.list_(pa.float32())
    columns: dict[str, tuple[Any, list[Any]]] = {
        "id": (text, [rows.table.ids[i] for i in part.rows]),
        "image_sha256": (text, [one.sha256 for one in asked]),
        "labels": (pa.list_(pa.int32()), [list(rows.table.labels[i]) for i in part.rows]),
        **{name: (text, [values[i] for i in part.rows]) for name, values in rows.table.groups.items()},
        "error": (text, [one.error for one in asked]),
    }
    for place, suffix in enumerate(("", "_swapped")):
        said, likely = [one.said[place] for one in asked], [one.likely[place] for one in asked]
        columns |= {
            f"answer{suffix}": (text, [None if a is None else a.text for a in said]),
            f"ended{suffix}": (flag, [None if a is None else a.ended for a in said]),
            f"log_likelihood{suffix}": (pair, [None if of is None else [each.total for each in of] for of in likely]),
        }
    tokens = [None if of is None else [each.tokens for each in of] for of in (one.likely[0] for one in asked)]
    columns["option_tokens"] = (pa.list_(pa.int32()), tokens)
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def _log(run: Path, entry: dict[str, object]) -> None:
    facts = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry}
    with (run / LOG_FILE).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**facts, "versions": {name: version(name) for name in _VERSIONS}}) + "\n")
