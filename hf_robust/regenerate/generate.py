"""Stage `generate`: a picture for every prompt, from its seed alone; pictures that show nothing are dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import pyarrow as pa

from .blanks import to_png, why_unusable
from .generators import GenerateSettings, Generator, draw, find_generator, load_pipeline
from .stage import KEEP, REASON, ROW_ID, PartWise, Stage, StageError, Work, for_kept, row_id

__all__ = ["GENERATE", "GenerateSettings"]

_NEEDED = ("prompt", "seed")
_TYPES = {
    "image": pa.binary(),
    "image_sha256": pa.string(),
    "image_id": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "generator": pa.string(),
    "generator_revision": pa.string(),
    KEEP: pa.bool_(),
    REASON: pa.string(),
}


def start(settings: GenerateSettings, work: Work) -> PartWise:
    """Pictures for the prompts of each part; the pipeline is loaded when the first part that is missing needs it."""
    missing = [name for name in _NEEDED if name not in work.ledger.columns]
    if missing:
        raise StageError(
            f"expected a stage before 'generate' that makes {', '.join(missing)}, got only "
            f"{', '.join(work.ledger.columns)}: begin the recipe with 'prompts'"
        )
    generator = find_generator(settings, work.out / ".generator.lock")
    facts = _facts(generator, work.world.device)
    decides = _decides(settings, facts)
    pipeline = cache(lambda: load_pipeline(generator, settings, work.world.device))

    def make(rows: pa.Table) -> pa.Table:
        return for_kept(rows, lambda kept: _pictures(kept, pipeline, generator, settings, decides))

    return PartWise(facts, make, _NEEDED)


def _facts(generator: Generator, device: str) -> dict[str, Any]:
    scheduler = generator.scheduler
    # names with an underscore are bookkeeping of the library, some of them in the order of a set
    config = {} if scheduler is None else {k: v for k, v in scheduler.config.items() if not k.startswith("_")}
    return {
        "generator_revision": generator.revision,
        "pipeline": generator.pipeline,
        "scheduler": None if scheduler is None else {"name": type(scheduler).__name__, **config},
        "device": device.split(":")[0],
    }


def _decides(settings: GenerateSettings, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a picture beside its row: not where the model lies, but its revision."""
    return {**{k: v for k, v in asdict(settings).items() if k not in ("model", "revision")}, **facts}


def _pictures(
    kept: pa.Table, pipeline: Any, generator: Generator, settings: GenerateSettings, decides: Mapping[str, Any]
) -> dict[str, pa.Array]:
    rows = kept.select([ROW_ID, *_NEEDED]).to_pylist()
    made = []
    for first in range(0, len(rows), settings.batch):
        batch = rows[first : first + settings.batch]
        drawn = draw(pipeline(), [r["prompt"] for r in batch], [r["seed"] for r in batch], settings)
        for row, pixels, flagged in zip(batch, drawn.pixels, drawn.flagged, strict=True):
            reason, png = why_unusable(pixels, flagged=flagged), to_png(pixels)
            made.append(
                {
                    "image": png,
                    "image_sha256": hashlib.sha256(png).hexdigest(),
                    # row_id was given before the generator was known; this one names the picture itself
                    "image_id": row_id({"row": row[ROW_ID], **decides}),
                    "width": pixels.shape[1],
                    "height": pixels.shape[0],
                    "generator": generator.name,
                    "generator_revision": generator.revision,
                    KEEP: reason is None,
                    REASON: reason,
                }
            )
    return {name: pa.array([row[name] for row in made], kind) for name, kind in _TYPES.items()}


GENERATE = Stage("generate", "a picture for every prompt, by a text-to-image pipeline", GenerateSettings, start)
