"""Hard-image mining (ImageNet-D, section 3.2 of arXiv 2403.18775): keep what the surrogate models fail on together.

A surrogate fails on a picture when its most probable class is none of the picture's. Models of texts and pictures
choose among the categories of ImageNet-D, classifiers among the 1,000 classes, as in the benchmark's own protocols.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from .. import labels
from ..benchmarks.spec import Benchmark
from ..metrics import hits
from ..models import load_model
from ..predictions.plan import PLAN_FILE, DamagedError, canonical, read_json
from ..runner import RunOptions, make_plan
from .candidates import candidate_rows, forward, imagenet_d, is_zero_shot, said, softmax_top
from .generators import DTYPES
from .ledger import KEEP, REASON, ROW_ID, Ledger
from .stage import STAGE_FILE, Stage, StageError, Whole, Work, finished

VOTES, FAILURES = "votes", "failures"
SURROGATE, TARGET = "surrogate", "target"
VOTE = pa.struct(
    [
        ("model", pa.string()), ("role", pa.string()), ("classes", pa.string()), ("correct", pa.bool_()),
        ("predicted", pa.string()), ("second", pa.string()), ("confidence", pa.float32()), ("error", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class MineSettings:
    """How hard images are found.

    surrogates    models that decide; the default are four of the kind the paper names, the choice is ours.
    min_failures  a picture is kept when at least so many surrogates fail; None: all of them (the paper's rule).
    targets       held-out models, evaluated beside and without a say, so that the effect of the selection shows.
    """

    surrogates: tuple[str, ...] = (
        "open_clip/ViT-L-14/openai", "open_clip/ViT-L-14-336/openai", "open_clip/RN50/openai", "timm/resnet50.tv_in1k",
    )  # fmt: skip
    min_failures: int | None = None
    targets: tuple[str, ...] = ()
    batch_size: int | None = None
    dtype: str = "float32"


def _start(settings: MineSettings, work: Work) -> Whole:
    needed = _check(settings)
    rows = candidate_rows(work.ledger)
    options = RunOptions(on_error="record", micro_batch=settings.batch_size, dtype=settings.dtype)
    names = (*settings.surrogates, *settings.targets)
    judge = imagenet_d()

    def run() -> dict[str, Path]:
        return forward(names, rows, work, options=options, zero_shot=judge)

    models = _of_finished(settings, names, options, work)
    folders = run() if models is None else None
    if folders is not None:
        models = {name: _identity_in(folder) for name, folder in folders.items()}

    def make(ledger: Ledger) -> Iterator[pa.Table]:
        streams = [
            _Votes(name, SURROGATE if name in settings.surrogates else TARGET, _votes_of(folder, judge))
            for name, folder in (folders or run()).items()
        ]
        for table in ledger.tables(()):
            yield _decide(table, streams, needed, len(settings.surrogates))

    return Whole({"models": models}, make)


def _check(settings: MineSettings) -> int:
    """The number of failures that keeps a picture."""
    names = (*settings.surrogates, *settings.targets)
    if not settings.surrogates or len(set(names)) != len(names):
        raise StageError(f"expected at least one surrogate and each model once, got {', '.join(names) or 'none'}")
    if settings.dtype not in DTYPES:
        raise StageError(f"unknown dtype {settings.dtype!r} of stage 'mine'; known: {', '.join(DTYPES)}")
    needed = len(settings.surrogates) if settings.min_failures is None else settings.min_failures
    if not 1 <= needed <= len(settings.surrogates):
        raise StageError(
            f"expected min_failures from 1 to the {len(settings.surrogates)} surrogates, got {needed}: "
            "leave it out for all of them"
        )
    return needed


def _of_finished(
    settings: MineSettings, names: Sequence[str], options: RunOptions, work: Work
) -> dict[str, Any] | None:
    """What the models are, loaded and not run, where a stage with them is finished; its predictions may be gone."""
    earlier = _finished(settings, work)
    if not earlier:
        return None
    plans = {name: make_plan(load_model(name), options, work.world.device) for name in names}
    models = {name: {"weights": plan.weights, "prompts": plan.prompts} for name, plan in plans.items()}
    return models if canonical(models) in earlier else None


def _finished(settings: MineSettings, work: Work) -> set[str]:
    """What the models were, as text, in finished stages of these settings after these candidates."""
    found = set()
    for folder in work.out.glob(f"{len(work.ledger.stages) + 1}-{MINE.name}-*"):
        try:
            record = read_json(folder / STAGE_FILE, ["settings", "before", "facts"])
        except DamagedError:
            continue
        same = canonical(record["settings"]) == canonical(asdict(settings)) and record["before"] == work.ledger.key
        complete = finished(folder) and sum(1 for _ in folder.glob("part-*.parquet")) == work.ledger.parts
        if same and complete and isinstance(record["facts"], dict):
            found.add(canonical(record["facts"].get("models")))
    return found


def _identity_in(folder: Path) -> dict[str, Any]:
    plan = read_json(folder.parent / PLAN_FILE, ["weights", "prompts"])
    return {"weights": plan["weights"], "prompts": plan["prompts"]}


@dataclass
class _Votes:
    """The votes of one model, asked for in the order of the candidates: one part of its predictions in memory."""

    model: str
    role: str
    stream: Iterator[dict[str, dict[str, Any]]]  # a part each: row id -> vote
    ahead: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, key: str) -> dict[str, Any]:
        """The vote about one candidate."""
        while key not in self.ahead:
            self.ahead = {**self.ahead, **next(self.stream)}
        return {"model": self.model, "role": self.role, **self.ahead.pop(key)}


def _votes_of(folder: Path, judge: Benchmark) -> Iterator[dict[str, dict[str, Any]]]:
    zero_shot = is_zero_shot(folder)
    space, columns_of = _answers(judge if zero_shot else None)
    names = {"classes": judge.name if zero_shot else "imagenet-1k"}
    for piece in said(folder, zero_shot=judge):
        votes: dict[str, dict[str, Any]] = {key: {**names, "error": error} for key, error in piece.failed.items()}
        outputs = piece.outputs
        if len(outputs):
            right = hits(outputs.logits, columns_of(outputs.labels, outputs.groups.get("category", ())))
            order, probability = softmax_top(outputs.logits, 2)
            for i, key in enumerate(outputs.ids):
                first, second = (space[column] for column in order[i])
                vote = {"correct": bool(right[i]), "predicted": first, "second": second}
                votes[key] = {**names, **vote, "confidence": float(probability[i, 0])}
        yield votes


def _answers(judge: Benchmark | None) -> tuple[Sequence[str], Any]:
    """The names of the logits' columns, and the function that gives each row's acceptable columns."""
    if judge is None or judge.zero_shot is None:
        return labels.imagenet_1k_names(), lambda acceptable, categories: acceptable
    places = {name: i for i, name in enumerate(judge.zero_shot.classes)}

    def columns(acceptable: Any, categories: Iterable[str]) -> Any:
        unknown = sorted({name for name in categories if name not in places})
        if unknown:
            raise StageError(
                f"expected categories of ImageNet-D for a surrogate of texts and pictures, got {unknown[0]!r}, which "
                "its class list lacks: take classifiers as surrogates"
            )
        return np.array([[places[name]] for name in categories], dtype=np.int64)

    return judge.zero_shot.classes, columns


def _decide(table: pa.Table, streams: Sequence[_Votes], needed: int, surrogates: int) -> pa.Table:
    keep: list[bool | None] = []
    reasons: list[str | None] = []
    failures: list[int | None] = []
    own: list[list[dict[str, Any]] | None] = []
    for key, before in zip(table[ROW_ID].to_pylist(), table[KEEP].to_pylist(), strict=True):
        given = [votes.of(key) for votes in streams] if before else []
        deciding = [v for v in given if v["role"] == SURROGATE]
        failed = sum(v.get("correct") is False for v in deciding)
        unread = any("error" in v for v in deciding)
        kept = before and not unread and failed >= needed
        own.append(given if before else None)
        failures.append(failed if before and not unread else None)
        keep.append(kept if before else None)
        reasons.append(None if kept or not before else _reason(unread, failed, needed, surrogates))
    columns = {VOTES: pa.array(own, pa.list_(VOTE)), FAILURES: pa.array(failures, pa.int16())}
    return pa.table({ROW_ID: table[ROW_ID], **columns, KEEP: pa.array(keep, pa.bool_()), REASON: reasons_of(reasons)})


def reasons_of(reasons: Sequence[str | None]) -> pa.Array:
    """Reasons as a column of texts, also where there is none."""
    return pa.array(reasons, pa.string())


def _reason(unread: bool, failed: int, needed: int, surrogates: int) -> str:
    if unread:
        return "a surrogate could not read it"
    return f"{failed} of {surrogates} surrogates fail, fewer than {needed}"


MINE = Stage("mine", "keep the pictures that the surrogate models fail on together", MineSettings, _start)
