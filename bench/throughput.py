"""Speed of the package on this machine, every figure beside what it has to be compared with, in one run.

python bench/throughput.py [--photos FOLDER] [--pictures N] [--repeats N] [--only SECTION ...] [--json FILE]

evaluate  files to predictions on disk: `hf-robust evaluate` beside a plain ImageFolder + DataLoader loop
          (plain_loop.py) on the same pictures, weights and transform, in turns; and what the cores could do at most
score     scoring stored predictions beside running the model again
start     `hf-robust --help` and `import hf_robust`
build     a data set out of its archive beside copying the archive, from memory to memory and from disk to disk (12 GB)

Pictures: crops of scikit-image's photos, JPEG and PNG; or your own, any files below FOLDER, repeated up to N where
there are fewer. They are laid out as ImageNet validation is, 50 a class. The least of the repeats counts, since other
programs can only add to it; their median and the load of the machine stand beside it. `cpu` is processor time of all
processes, which other programs disturb less. Exit code 1 where a target is missed or predictions differ.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from hf_robust.labels import imagenet_1k, imagenet_a_wnids
from hf_robust.schema import image_id

PYTHON = sys.executable
PLAIN = [PYTHON, str(Path(__file__).with_name("plain_loop.py"))]
EACH_CLASS = 50  # as ImageNet validation has
# Times a plain loop: with start-up, and without. Both import torch and timm, which for so small a model as test_vit
# takes as long as a thousand pictures.
MODELS = {"offline/efficientnet_lite0": (2.0, 2.0), "timm-random/test_vit": (1.2, 1.2)}
SECTIONS = ("evaluate", "score", "start", "build")
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
LOGITS_DIFFER = 1e-4
BUILT = (7_500, 30_000)  # pictures: as many as ImageNet-A has, and four times as many
SCORE = """
import shutil, sys, time
from pathlib import Path
from hf_robust.benchmarks import benchmarks
from hf_robust.scoring import score

runs = Path(sys.argv[1])
copy = Path(shutil.copytree(runs, runs.with_name("copy"), dirs_exist_ok=True))
score(copy, benchmarks(), allow_chance=True)  # of other files, so that only what is imported is warm
started = time.perf_counter()
score(runs, benchmarks(), allow_chance=True)
print(time.perf_counter() - started)
"""


@dataclass
class Times:
    """Of one thing, measured several times: wall seconds and processor seconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)  # without start-up, where known

    def best(self, what: str = "wall") -> float:
        return float(min(getattr(self, what)))


@dataclass(frozen=True)
class Target:
    """What was promised, and what was measured."""

    what: str
    got: float
    wanted: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.got <= self.wanted if self.at_most else self.got >= self.wanted


# --- pictures


def photos(folder: Path | None) -> Iterator[tuple[str, bytes]]:
    """Suffix and bytes of pictures, without end."""
    if folder is not None:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        if not files:
            raise SystemExit(f"expected pictures below {folder}, got none")
        yield from ((path.suffix.lower(), path.read_bytes()) for path in cycle(files))
    yield from crops()


def crops() -> Iterator[tuple[str, bytes]]:
    """Pieces of scikit-image's photos in the size of ImageNet's, JPEG and PNG by turns."""
    import skimage
    from PIL import Image

    place = Path(skimage.__file__).parent / "data"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "ihc.png")
    whole = [Image.open(place / name).convert("RGB") for name in names if (place / name).is_file()]
    rng = np.random.default_rng(0)
    for n, image in enumerate(cycle(whole)):
        width, height = (int(rng.integers(side // 2, side)) for side in image.size)
        left, top = int(rng.integers(image.width - width)), int(rng.integers(image.height - height))
        piece = image.resize((400, 320), Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        stream = io.BytesIO()
        piece.save(stream, "JPEG" if n % 2 else "PNG", **({"quality": 92} if n % 2 else {}))
        yield (".jpg" if n % 2 else ".png"), stream.getvalue()


def lay_out(folder: Path, source: Path | None, number: int) -> Path:
    for n, (suffix, data) in enumerate(islice(photos(source), number)):
        path = folder / imagenet_1k().wnids[n // EACH_CLASS % 1000] / f"ILSVRC2012_val_{n + 1:08d}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


# --- measuring


def run(command: Sequence[str], times: Times) -> str:
    """Standard output of the command; its wall and processor time are added to `times`."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    times.wall.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    times.cpu.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def evaluate_command(model: str, pictures: Path, out: Path) -> list[str]:
    task = ["--model", model, "--benchmark", "imagenet-val", "--imagenet-val", str(pictures), "--out", str(out)]
    return [PYTHON, "-m", "hf_robust", "evaluate", *task, "--allow-chance", "--device", "cpu"]


def evaluate(model: str, pictures: Path, number: int, repeats: int) -> dict[str, Any]:
    """Both loops in turns; the predictions of each turn are compared."""
    limit = json.loads(run([*PLAIN, "limit", model, str(pictures)], Times()))
    plain, ours = Times(), Times()
    differences, switched, plans = [], 0, []
    for turn in range(repeats):
        print(f"{model}, turn {turn + 1} of {repeats}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            file, out = Path(scratch, "plain.npz"), Path(scratch, "runs")
            plain.loop.append(json.loads(run([*PLAIN, "loop", model, str(pictures), str(file)], plain))["seconds"])
            run(evaluate_command(model, pictures, out), ours)
            (made,) = (plan.parent for plan in out.glob("*/plan.json"))
            plans.append(json.loads((made / "plan.json").read_text()))
            ours.loop.append(max(json.loads(line)["seconds"] for line in (made / "log.jsonl").read_text().splitlines()))
            difference, other = compare(file, made)
        differences.append(difference)
        switched += other
    cores = len(os.sched_getaffinity(0))
    limit["pictures_per_s"] = cores * 1e3 / (limit["decode_ms"] + limit["forward_ms"])
    chosen = [
        {name: plan[name] for name in ("micro_batch", "layout", "batch_norm_folded", "threads")} for plan in plans
    ]
    return {
        "model": model, "pictures": number, "cores": cores, "limit": limit, "plain": vars(plain), "ours": vars(ours),
        "plans": chosen, "largest_difference_of_logits": max(differences), "other_argmax": switched,
    }  # fmt: skip


def compare(file: Path, made: Path) -> tuple[float, int]:
    """Largest difference of two logits of one picture, and pictures whose largest logit is another's."""
    theirs = np.load(file)
    place = {image_id(f"x/{name}"): row for row, name in enumerate(theirs["names"])}
    largest, switched, seen = 0.0, 0, 0
    for part in sorted((made / "imagenet-val.model").glob("part-*.parquet")):
        table = pq.read_table(part)
        logits = np.stack([np.asarray(row.values) for row in table["logits"]])
        plain = theirs["logits"][[place[name] for name in table["id"].to_pylist()]]
        largest = max(largest, float(np.abs(logits - plain).max()))
        switched += int((logits.argmax(1) != plain.argmax(1)).sum())
        seen += len(logits)
    if seen != len(place):
        raise SystemExit(f"expected predictions of {len(place)} pictures, got {seen}")
    return largest, switched


def targets_of(row: dict[str, Any]) -> list[Target]:
    """Print one model's table; what was promised of it."""
    number, plain, ours, limit = row["pictures"], row["plain"], row["ours"], row["limit"]
    print(f"\n{row['model']}, {number:,} pictures, {row['cores']} cores; {row['plans'][-1]}")
    print(f"  {'':28}{'wall s':>9}{'median':>9}{'pictures/s':>12}{'cpu s':>9}")
    for what, times in (("plain loop", plain), ("hf-robust evaluate", ours)):
        for kind, values in (("start-up included", times["wall"]), ("loop alone", times["loop"])):
            cpu = f"{min(times['cpu']):9.1f}" if values is times["wall"] else ""
            name = what if values is times["wall"] else f"  {kind}"
            best = min(values)
            print(f"  {name:28}{best:9.2f}{statistics.median(values):9.2f}{number / best:12.1f}{cpu}")
    print(f"  {'the cores at most':28}{number / limit['pictures_per_s']:9.2f}{'':9}{limit['pictures_per_s']:12.1f}"
          f"   decode {limit['decode_ms']:.1f} + forward {limit['forward_ms']:.1f} ms ({limit['best']})")  # fmt: skip
    wall, loop, cpu = (min(plain[k]) / min(ours[k]) for k in ("wall", "loop", "cpu"))
    of_limit = number / min(ours["loop"]) / limit["pictures_per_s"]
    difference = row["largest_difference_of_logits"]
    print(
        f"  times the plain loop: {wall:.2f} with start-up, {loop:.2f} without, {cpu:.2f} by processor time; "
        f"{of_limit:.2f} of the limit; logits differ by {difference:.1e} at most"
    )
    whole, alone = MODELS.get(row["model"], (1.0, 1.0))
    return [
        Target(f"{row['model']}: times a plain loop, start-up included", wall, whole),
        Target(f"{row['model']}: times a plain loop, without start-up", loop, alone),
        Target(f"{row['model']}: largest difference of logits", difference, LOGITS_DIFFER, True),
        Target(f"{row['model']}: pictures with another argmax", row["other_argmax"], 0, True),
    ]


def score(pictures: Path, number: int, repeats: int) -> tuple[dict[str, Any], list[Target]]:
    """Scoring stored predictions, in a process that has what it needs imported, beside running the model again."""
    again, whole, inside = Times(), Times(), []
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "runs")
        run(evaluate_command("offline/efficientnet_lite0", pictures, out), again)
        (log,) = out.glob("*/log.jsonl")
        running = max(json.loads(line)["seconds"] for line in log.read_text().splitlines())
        for _ in range(repeats):
            inside.append(float(run([PYTHON, "-c", SCORE, str(out)], Times())))
            run([PYTHON, "-m", "hf_robust", "score", str(out), "--allow-chance"], whole)
    times = running / min(inside)
    print(
        f"\nscoring {number:,} stored predictions: {min(inside):.2f} s, {whole.best():.2f} s as a command; running the "
        f"model again: {running:.1f} s, {again.best():.1f} s as a command: {times:.0f} times"
    )
    row = {
        "pictures": number,
        "score": inside,
        "score_command": vars(whole),
        "run": running,
        "run_command": vars(again),
    }
    return row, [Target("running again, in times of scoring", times, 50)]


def start(repeats: int) -> tuple[dict[str, Any], list[Target]]:
    row, targets = {}, []
    for what, most, command in (
        ("hf-robust --help", 0.5, [PYTHON, "-m", "hf_robust", "--help"]),
        ("import hf_robust", 0.3, [PYTHON, "-c", "import hf_robust"]),
        ("python -c pass", float("inf"), [PYTHON, "-c", "pass"]),
    ):
        times = Times()
        for _ in range(3 * repeats):
            run(command, times)
        row[what] = vars(times)
        print(f"{what}: {times.best():.2f} s, {times.best('cpu'):.2f} s of processor time")
        if most < float("inf"):
            targets.append(Target(f"seconds of `{what}`", times.best(), most, True))
    return row, targets


def build(source: Path | None, number: int, repeats: int) -> tuple[dict[str, Any], list[Target]]:
    """A data set out of archives of two sizes, beside copying the archive: memory to memory, and disk to disk."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "out")
        archives = [archive_of(Path(scratch, f"{n}.tar"), source, number, n) for n in BUILT]
        cases = [(a, place, do) for a in archives for place in ("memory", "disk") for do in (copy_of, set_of)]
        for turn in range(repeats):
            print(f"build, turn {turn + 1} of {repeats}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            for archive, place, do in cases:
                took = seconds_of(do, archive, out, on_disk=place == "disk")
                seconds.setdefault(f"{do.__name__} {archive.stem} {place}", []).append(took)
        sha256 = min(seconds_of(sha256_of, archives[0], out, on_disk=False) for _ in range(repeats))
        megabytes = [archive.stat().st_size / 1e6 for archive in archives]
    row = {"megabytes": megabytes, "seconds": seconds, "sha256": sha256}
    return row, [target for place in ("memory", "disk") for target in targets_of_building(row, place)]


def targets_of_building(row: dict[str, Any], place: str) -> list[Target]:
    """Print the speeds in memory or on disk; what was promised of them."""
    best = {name: min(took) for name, took in row["seconds"].items()}
    copied, built = ([best[f"{do.__name__} {n} {place}"] for n in BUILT] for do in (copy_of, set_of))
    lines = [(f"{n:,} pictures", *line) for n, *line in zip(BUILT, row["megabytes"], copied, built, strict=True)]
    lines.append(
        ("each further byte", *(large - small for small, large in zip(lines[0][1:], lines[1][1:], strict=True)))
    )
    print(f"\nbuilding a set, from {place} to {place}{'':10}MB   copy MB/s  build MB/s  ratio")
    for what, size, copying, building in lines:
        print(f"  {what:34}{size:9.0f}{size / copying:12.0f}{size / building:12.0f}{copying / building:7.2f}")
    if place == "disk":
        # The promise is of a speed of bytes, so start-up is left out, and of what copying costs on a disk. It does not
        # hold for the command as a whole with a small archive, where imports take longest, nor in memory: see below.
        return [Target("speed of building each further byte, disk to disk, of copying it", copying / building, 0.5)]
    # Every byte goes through SHA-256 twice, of the archive and of its picture, and is written once.
    most = len(os.sched_getaffinity(0)) * copied[0] / (copied[0] + 2 * row["sha256"])
    speed = row["megabytes"][0] / row["sha256"]
    print(f"  SHA-256 on one core: {speed:.0f} MB/s, so a ratio of {most:.2f} at most")
    return []


def archive_of(file: Path, source: Path | None, number: int, pictures: int) -> Path:
    """A tar of so many pictures in ImageNet-A's layout, no two of the same bytes, made of `number` photos."""
    some = list(islice(photos(source), number))
    with tarfile.open(file, "w") as tar:
        for n, (suffix, data) in zip(range(pictures), cycle(some), strict=False):
            name = f"imagenet-a/{imagenet_a_wnids()[n % 200]}/0.{n:06d}_bucket _ bucket_0.5{suffix}"
            info = tarfile.TarInfo(name)
            info.size = len(data) + 8
            tar.addfile(info, io.BytesIO(data + n.to_bytes(8, "big")))
    return file


def copy_of(archive: Path, out: Path) -> None:
    out.mkdir()
    shutil.copyfile(archive, out / "copy")


def set_of(archive: Path, out: Path) -> None:
    command = ["build", "imagenet-a", "--source", str(archive), "--allow-incomplete", "--out", str(out)]
    run([PYTHON, "-m", "hf_robust", *command], Times())


def sha256_of(archive: Path, out: Path) -> None:
    with archive.open("rb") as stream:
        hashlib.file_digest(stream, "sha256")


def seconds_of(do: Callable[[Path, Path], None], archive: Path, out: Path, *, on_disk: bool) -> float:
    """On disk: nothing of the archive is in memory before, and all that was written has left it afterwards."""
    os.sync()
    with archive.open("rb") as stream:
        if on_disk:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while stream.read(1 << 24):
                pass
    started = time.perf_counter()
    do(archive, out)
    for file in out.rglob("*") if on_disk else ():
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    took = time.perf_counter() - started
    shutil.rmtree(out, ignore_errors=True)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, metavar="FOLDER", help="default: crops of scikit-image's photos")
    parser.add_argument("--pictures", type=int, default=1000, metavar="N", help="%(default)s")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="%(default)s")
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="M", help="%(default)s")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION", help="%(choices)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure of every repeat")
    given = parser.parse_args()
    figures: dict[str, Any] = {"cores": os.cpu_count(), "load_before": os.getloadavg()}
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as scratch:
        pictures = lay_out(Path(scratch, "val"), given.photos, given.pictures)
        for model in given.models if "evaluate" in given.only else ():
            figures[model] = evaluate(model, pictures, given.pictures, given.repeats)
            targets += targets_of(figures[model])
        others: dict[str, Callable[[], tuple[dict[str, Any], list[Target]]]] = {
            "score": lambda: score(pictures, given.pictures, given.repeats),
            "start": lambda: start(given.repeats),
            "build": lambda: build(given.photos, given.pictures, given.repeats),
        }
        for name in (name for name in others if name in given.only):
            figures[name], more = others[name]()
            targets += more
    figures["load_after"] = os.getloadavg()
    print()
    for target in targets:
        sign = "at most" if target.at_most else "at least"
        print(f"{target.what}: {target.got:.3g}, target {sign} {target.wanted:g}: {'met' if target.met else 'MISSED'}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
