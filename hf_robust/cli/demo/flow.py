"""The demo's way: draw miniatures, build them, run a real classifier, score, report. Everything below one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import builders, report
from ...benchmarks.miniatures import miniatures
from ...runner import DataPlaces, Meter, RunOptions, World, evaluate, gather
from ...scoring import failed, score
from .pictures import draw

MODEL = "offline/efficientnet_lite0"
BUILT = ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d")
REMARK = (
    "These are miniatures made from a few photos and drawn patterns: they show how the package works and are no "
    "benchmark results. The miniature of Spurious ImageNet has the classes of the photos at hand, not the official 100."
)


@dataclass(frozen=True)
class DemoOutcome:
    """The results, where the report was written, and whether anything failed."""

    results: list[dict[str, Any]]
    report: Path
    failed: bool


def run_demo(out: Path, meter_of: Callable[[str], Meter]) -> DemoOutcome:
    """Everything that the package does, in small, below `out`: pictures, datasets, runs, report.

    Needs the demo extra (ImportError says so), no network, and writes nowhere else.
    """
    folders = draw(out / "pictures")
    places = DataPlaces(out / "datasets", str(folders["imagenet-val"]))
    for name in BUILT:
        builders.build(
            name, folders[name], allow_incomplete=True, out=places.built, progress=meter_of(f"build mini {name}")
        )
    minis = miniatures()
    needs = gather(tuple(minis.values()), "model", places)
    world = World(0, 1, "cpu")
    options = RunOptions()
    evaluate(MODEL, tuple(minis.values()), needs, out / "runs", options=options, world=world, meter=meter_of(MODEL))
    results = score(out / "runs", minis)
    shown = report.Places(places.built, folders["imagenet-val"])
    written = report.write_report(out / "runs", out / "report", benchmarks=minis, places=shown, results=results)
    return DemoOutcome(results, written, bool(failed(results)))
