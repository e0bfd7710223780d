"""Peak memory of `evaluate` as the number of pictures grows, all processes together, and what it leaves on disk.

python bench/scale.py [--pictures N ...] [--outputs N ...] [--processes N] [--json FILE]

Generated pictures in the layout of ImageNet validation, `test_vit` of timm without weights, with heads of 1,000 and of
21,841 outputs. Memory is the resident set of every process, sampled while the command runs; pages that processes share
are counted once for each. Forwarding and scoring are two numbers: the first is the time during which the worker
processes live, the second what comes after. Exit code 1 where one of them grows by more than 10 % from the smallest to
the largest number of pictures.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from hf_robust.labels import imagenet_1k

EVERY = 0.1  # seconds between two samples
MOST_GROWTH = 1.10
MODEL = """
import timm
import torch


def build():
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes={outputs})
"""


@dataclass(frozen=True)
class Row:
    """What one command took."""

    outputs: int
    pictures: int
    processes: int
    seconds: float
    forward_mb: float  # peak while at least `processes` processes lived
    score_mb: float  # peak of what came after
    disk_mb: float
    bytes_a_picture: float


def lay_out(folder: Path, number: int) -> Path:
    """Pictures of 64 x 48 pixels of coloured blobs, no two alike."""
    rng = np.random.default_rng(0)
    wnids = imagenet_1k().wnids
    for n in range(number):
        blobs = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        stream = io.BytesIO()
        blobs.resize((64, 48), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
        path = folder / wnids[n // 50 % 1000] / f"ILSVRC2012_val_{n + 1:08d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stream.getvalue())
    return folder


def measure(pictures: Path, number: int, outputs: int, processes: int, scratch: Path) -> Row:
    file, out = scratch / f"head_{outputs}.py", scratch / f"runs-{outputs}-{number}"
    file.write_text(MODEL.format(outputs=outputs))
    task = ["--model", f"{file}:build", "--benchmark", "imagenet-val", "--imagenet-val", str(pictures)]
    more = ["--out", str(out), "--device", "cpu", "--processes", str(processes), "--allow-chance"]
    started, forward, score = time.perf_counter(), 0.0, 0.0
    command = [sys.executable, "-m", "hf_robust", "evaluate", *task, *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        alive, used = resident(process.pid)
        if processes > 1 and alive < processes:  # before the workers started this is little
            score = max(score, used)
        else:
            forward = max(forward, used)
        time.sleep(EVERY)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with code {process.returncode}")
    disk = sum(path.stat().st_size for path in out.rglob("part-*.parquet"))
    seconds = time.perf_counter() - started
    return Row(outputs, number, processes, seconds, forward, score, disk / 1e6, disk / number)


def resident(pid: int) -> tuple[int, float]:
    """Processes below and with `pid`, and their resident memory in MB."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        sizes = [p.memory_info().rss for p in family if p.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:  # one of them just ended
        return 0, 0.0
    return len(sizes), sum(sizes) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, nargs="+", default=[1_000, 10_000, 50_000], metavar="N")
    parser.add_argument("--outputs", type=int, nargs="+", default=[1_000, 21_841], metavar="N")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="%(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    rows: list[Row] = []
    names = ("outputs", "pictures", "processes", "s", "forward MB", "score MB", "disk MB", "B each")
    print("".join(f"{name:>12}" for name in names))
    with tempfile.TemporaryDirectory() as scratch:
        for number in sorted(given.pictures):
            pictures = lay_out(Path(scratch, f"val-{number}"), number)
            for outputs in given.outputs:
                row = measure(pictures, number, outputs, given.processes, Path(scratch))
                rows.append(row)
                print(
                    f"{row.outputs:12,}{row.pictures:12,}{row.processes:12}{row.seconds:12.0f}{row.forward_mb:12.0f}"
                    f"{row.score_mb:12.0f}{row.disk_mb:12.1f}{row.bytes_a_picture:12.0f}",
                    flush=True,
                )
    grown = [
        _grown(phase, outputs, [getattr(row, field) for row in rows if row.outputs == outputs])
        for outputs in given.outputs
        for phase, field in (("forwarding", "forward_mb"), ("scoring", "score_mb"))
        if given.processes > 1 or phase == "forwarding"  # one process does both, and the first hides the second
    ]
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    return 0 if all(value <= MOST_GROWTH for value in grown) else 1


def _grown(phase: str, outputs: int, peaks: Sequence[float]) -> float:
    """How many times the memory of the fewest pictures the most pictures take; printed with the verdict."""
    grown = peaks[-1] / peaks[0]
    verdict = "met" if grown <= MOST_GROWTH else "MISSED"
    print(f"{outputs} outputs: {phase} takes {grown:.2f} times the memory at the end: {verdict}")
    return grown


if __name__ == "__main__":
    sys.exit(main())
