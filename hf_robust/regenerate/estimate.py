"""What a generated benchmark would take, before it is made: prompts of each kind, time and disk from one picture."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from .blanks import to_png
from .generate import GenerateSettings
from .generators import draw, find_generator, load_pipeline
from .prompts import PromptSettings, counts, grid
from .stage import StageError


@dataclass(frozen=True)
class Probe:
    """What one picture took: seconds, after a warm-up, and bytes as PNG."""

    seconds: float
    png_bytes: int


@dataclass(frozen=True)
class Estimate:
    """Rows of each kind of nuisance; for all of them seconds and bytes of pictures, or None and why not."""

    rows: dict[str, int]
    seconds: float | None
    png_bytes: int | None
    skipped: str | None


def probe(settings: GenerateSettings, prompt: str, device: str) -> Probe:
    """Time and size of one picture from the real pipeline, after a warm-up of one step."""
    pipeline = load_pipeline(find_generator(settings), settings, device)
    draw(pipeline, [prompt], [0], replace(settings, steps=1))
    begun = time.perf_counter()
    png = to_png(draw(pipeline, [prompt], [0], settings).pixels[0])
    return Probe(time.perf_counter() - begun, len(png))


def measure(prompts: PromptSettings, settings: GenerateSettings, device: str, *, processes: int = 1) -> Estimate:
    """The estimate for so many processes, each as quick as this one; without a pipeline only the rows are known."""
    rows = counts(prompts)
    try:
        one = probe(settings, str(grid(prompts).row(0)["prompt"]), device)
    except (StageError, ImportError) as error:
        return Estimate(rows, None, None, str(error))
    return scaled(rows, one, processes)


def scaled(rows: dict[str, int], one: Probe, processes: int) -> Estimate:
    """The estimate for all rows from what one picture took.

    >>> scaled({"texture": 600}, Probe(2.0, 100), 4).seconds
    300.0
    """
    total = sum(rows.values())
    return Estimate(rows, one.seconds * total / processes, one.png_bytes * total, None)


def estimate(prompts: PromptSettings, settings: GenerateSettings, device: str, *, processes: int = 1) -> list[str]:
    """The estimate as lines of text."""
    found = measure(prompts, settings, device, processes=processes)
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.rows.items())
    lines = [f"prompts: {sum(found.rows.values()):,} ({kinds})"]
    if found.seconds is None or found.png_bytes is None:
        return [*lines, f"time and disk: not known, since no picture could be made: {found.skipped}"]
    many = "1 process" if processes == 1 else f"{processes} processes"
    return [
        *lines,
        f"time: about {duration(found.seconds)} on {device} with {many}, from one picture",
        f"disk: about {size(found.png_bytes)} of pictures, from one picture",
    ]


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> duration(4285), duration(59.6), duration(200_000), duration(0.2)
    ('1 h 11 min', '1 min 0 s', '2 d 7 h', '1 s')
    """
    whole = max(1, round(seconds))
    for large, small, length, short in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= length:
            return f"{whole // length} {large} {whole % length // short} {small}"
    return f"{whole} s"


def size(count: int) -> str:
    """Bytes in the largest decimal unit that leaves at least 1.

    >>> size(184_444_024), size(999), size(25_000_000_000)
    ('184.4 MB', '999 B', '25.0 GB')
    """
    for unit, length in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count} B"
