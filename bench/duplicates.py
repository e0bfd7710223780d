"""Which changed copies of photos are found, which different photos are taken for copies, and what a search costs.

python bench/duplicates.py [FOLDER] [--photos N] [--embedding MODEL] [--rows N [N …]] [--no-embeddings]
                            [--pool N [N …]] [--filter-up-to N]

Copies are planted by re-encoding, resizing, cropping, mirroring and brightening; near-misses are other photos, and the
two halves or opposite corners of one photo. A copy counts as found where `find_twins` names its own original. The cost
is measured with random hashes and vectors, one planted copy in ten, and with whole pools: tar shards of 1,000 small
pictures, one in ten a copy, through the stages collect, fingerprint (hashes only), duplicates and, up to N pictures,
the 10-crop filter of a tiny model; in a process of its own for each size. Exit code 1 where a copy by bytes, size,
mirror or a crop of 2 % is missed, or two different photos are taken for one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from hf_robust.labels import imagenet_1k
from hf_robust.regenerate.collect import COLLECT, CollectSettings
from hf_robust.regenerate.duplicates import DUPLICATES, DuplicatesSettings
from hf_robust.regenerate.filter import FILTER_A, FilterASettings
from hf_robust.regenerate.fingerprint import (
    FINGERPRINT,
    Embedder,
    FingerprintSettings,
    embedder,
    perceptual_hashes,
)
from hf_robust.regenerate.hash_index import packed
from hf_robust.regenerate.row_file import RowFile
from hf_robust.regenerate.stage import Work, run_stage
from hf_robust.regenerate.twins import Marks, find_twins
from hf_robust.runner import World

BITS, COSINE, SIDE = 47, 0.9, 16
FILTER = "timm-random/test_vit"
BLOCK = 256  # rows made at a time
COSINES = (0.85, 0.90, 0.95)
Change = Callable[[Image.Image], Image.Image]


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(io.BytesIO(stream.getvalue())).convert("RGB")


def resized(image: Image.Image, factor: float) -> Image.Image:
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)


def cut(image: Image.Image, left: float, top: float, right: float, bottom: float) -> Image.Image:
    """The picture without these shares of its sides."""
    w, h = image.size
    return image.crop((round(w * left), round(h * top), round(w * (1 - right)), round(h * (1 - bottom))))


def centre(image: Image.Image, share: float) -> Image.Image:
    return cut(image, share / 2, share / 2, share / 2, share / 2)


COPIES: dict[str, Change] = {
    "JPEG quality 30": lambda i: jpeg(i, 30),
    "JPEG quality 60": lambda i: jpeg(i, 60),
    "JPEG quality 95": lambda i: jpeg(i, 95),
    "half the size": lambda i: resized(i, 0.5),
    "twice the size": lambda i: resized(i, 2),
    "mirrored": ImageOps.mirror,
    "mirrored, JPEG 60": lambda i: jpeg(ImageOps.mirror(i), 60),
    "2 % cropped": lambda i: centre(i, 0.02),
    "5 % cropped": lambda i: centre(i, 0.05),
    "10 % cropped": lambda i: centre(i, 0.10),
    "5 % cropped at one corner": lambda i: cut(i, 0.05, 0.05, 0, 0),
    "10 % cropped at one corner": lambda i: cut(i, 0.10, 0.10, 0, 0),
    "mirrored, 5 % cropped": lambda i: centre(ImageOps.mirror(i), 0.05),
    "half the size, 3 % cropped, JPEG 50": lambda i: jpeg(centre(resized(i, 0.5), 0.03), 50),
    "brightness 0.7": lambda i: ImageEnhance.Brightness(i).enhance(0.7),
    "brightness 1.3": lambda i: ImageEnhance.Brightness(i).enhance(1.3),
    "grey": lambda i: i.convert("L").convert("RGB"),
    "squeezed to 85 % height": lambda i: i.resize((i.width, round(i.height * 0.85))),
    "25 % cropped": lambda i: centre(i, 0.25),
    "50 % cropped": lambda i: centre(i, 0.50),
}
MUST_BE_FOUND = ("JPEG quality 30", "half the size", "twice the size", "mirrored", "2 % cropped")
NEAR_MISSES: dict[str, tuple[Change, Change]] = {
    "left and right half of one photo": (lambda i: cut(i, 0, 0, 0.5, 0), lambda i: cut(i, 0.5, 0, 0, 0)),
    "opposite corners of 70 %": (lambda i: cut(i, 0, 0, 0.3, 0.3), lambda i: cut(i, 0.3, 0.3, 0, 0)),
}


def marks_of(images: list[Image.Image], embed: Embedder, fixed: int = 0) -> Marks:
    both = [perceptual_hashes(image, SIDE) for image in images]
    vectors = np.concatenate([embed.run(images[s : s + 8]) for s in range(0, len(images), 8)])
    names = np.array([str(n) for n in range(len(images))], "S32")
    return Marks(names, packed([h for h, _ in both]), packed([m for _, m in both]), vectors, fixed)


def joined(one: Marks, other: Marks) -> Marks:
    def pair(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(one, name), getattr(other, name)])

    names = np.array([str(n) for n in range(len(one.sha256) + len(other.sha256))], "S32")
    return Marks(names, pair("hashes"), pair("mirrored"), pair("embeddings"), len(one.sha256))


def found_share(originals: Marks, changed: Marks, *, hash_bits: int, cosine: float) -> float:
    """Share of the changed pictures that are taken for a copy of their own original."""
    n = len(originals.sha256)
    twins = find_twins(joined(originals, changed), hash_bits=hash_bits, cosine=cosine)
    return sum(twins[n + i].row == i for i in range(n) if n + i in twins) / n


def shares(originals: Marks, changed: Marks) -> list[float]:
    """By hashes alone, by each cosine alone, by both limits."""
    alone = [found_share(originals, changed, hash_bits=BITS, cosine=1.0)]
    one, other = (m.embeddings.astype(np.float64) for m in (originals, changed))
    cosines = np.einsum("ij,ij->i", one, other)
    alone += [float((cosines >= limit).mean()) for limit in COSINES]
    return [*alone, found_share(originals, changed, hash_bits=BITS, cosine=COSINE)]


def show(name: str, values: list[float]) -> None:
    print(f"{name:36s}" + "".join(f"{100 * value:9.1f}" for value in values), flush=True)


def different_photos(marks: Marks) -> int:
    """Prints how near different photos come; returns how many are taken for copies."""
    n = len(marks.sha256)
    bits = [
        np.unpackbits(np.ascontiguousarray(h).view(np.uint8), axis=1).astype(np.float32)
        for h in (marks.hashes, marks.mirrored)
    ]
    pairs = np.triu_indices(n, 1)
    apart = [(bits[0] @ (1 - b).T + (1 - bits[0]) @ b.T)[pairs] for b in bits]
    vectors = marks.embeddings.astype(np.float32)
    nearest, alike = np.minimum(*apart), np.sort((vectors @ vectors.T)[pairs])[::-1]
    twins = find_twins(marks, hash_bits=BITS, cosine=COSINE)
    print(
        f"\n{n} different photos, {len(pairs[0])} pairs: nearest {nearest.min():.0f} bits "
        f"(mean {nearest.mean():.1f}, deviation {nearest.std():.1f}); largest cosines "
        f"{', '.join(f'{c:.3f}' for c in alike[:4])}; taken for copies: {len(twins)}"
    )
    for row, twin in twins.items():
        print(f"  {row} for {twin.row}: {twin.kind} {twin.distance:.3f}")
    return len(twins)


def photos(given: argparse.Namespace) -> bool:
    files = sorted(p for p in given.folder.iterdir() if p.suffix.lower() in (".png", ".jpg", ".jpeg"))
    images = [Image.open(path).convert("RGB") for path in files]
    with tempfile.TemporaryDirectory() as folder:
        embed = embedder(given.embedding, 8, Work(Path(folder), World(0, 1, "cpu"), lambda *_: None))
    missed = different_photos(marks_of(images, embed)) > 0
    images = images[: given.photos]
    originals = marks_of(images, embed)
    limits = "".join(f"{'cos ' + format(limit, '.2f'):>9s}" for limit in COSINES)
    print(f"\n{'copies found, %':36s}{f'{BITS} bits':>9s}{limits}{'both':>9s}   of {len(images)}, {given.embedding}")
    for name, change in COPIES.items():
        values = shares(originals, marks_of([change(image) for image in images], embed))
        missed |= name in MUST_BE_FOUND and values[-1] < 1
        show(name, values)
    print("near-misses taken for copies, %")
    for name, (one, other) in NEAR_MISSES.items():
        pair = (marks_of([change(image) for image in images], embed) for change in (one, other))
        show(name, shares(*pair))
    return missed


def planted_hashes(folder: Path, rows: int) -> tuple[RowFile, RowFile]:
    """Files of random hashes and those of mirror images; the last tenth differs in 16 bits from the first."""
    rng = np.random.default_rng(0)
    hashes, mirrored = (RowFile(rows, SIDE * SIDE // 16, np.uint16, folder) for _ in range(2))
    copies = rows // 10
    for start in range(0, rows, BLOCK):
        own = np.arange(start, min(rows, start + BLOCK))
        values = rng.integers(0, 1 << 16, (len(own), SIDE * SIDE // 16), dtype=np.uint16)
        copy = own >= rows - copies
        flip = (1 << rng.integers(0, 16, (int(copy.sum()), 1))).astype(np.uint16)
        values[copy] = hashes[own[copy] - (rows - copies)] ^ flip
        hashes.put(own, values)
        mirrored.put(own, rng.permuted(values, axis=1))
    return hashes, mirrored


def like_features(folder: Path, rows: int) -> RowFile:
    """Random unit vectors with a common part and variances that fall like those of real features, in a file."""
    rng = np.random.default_rng(0)
    vectors = RowFile(rows, 1280, np.float16, folder)
    factors = rng.normal(size=(200, 1280)) / np.arange(1, 201)[:, None] ** 0.5
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        block = 1 + rng.normal(size=(size, 200)) @ factors / 2
        vectors.put(np.arange(start, start + size), block / np.linalg.norm(block, axis=1, keepdims=True))
    return vectors


def cost(rows: int, *, embeddings: bool) -> None:
    """Prints time and peak memory of one search over random pictures, a tenth of them copies of others."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        sha256 = stack.enter_context(contextlib.closing(RowFile(rows, None, "S32", folder)))
        for start in range(0, rows, BLOCK):
            own = np.arange(start, min(rows, start + BLOCK))
            sha256.put(own, own.astype("S32"))
        hashes, mirrored = (stack.enter_context(contextlib.closing(f)) for f in planted_hashes(folder, rows))
        vectors = stack.enter_context(contextlib.closing(like_features(folder, rows))) if embeddings else None
        began, before = time.process_time(), peak()
        twins = find_twins(Marks(sha256, hashes, mirrored, vectors, 0), hash_bits=BITS, cosine=COSINE, folder=folder)
        took = time.process_time() - began
    what = "hashes and embeddings" if embeddings else "hashes"
    print(
        f"{rows:9,d} rows, {what:22s} {took:8.1f} s of CPU, {len(twins):7,d} of {rows // 10:,} copies, "
        f"peak {peak():,.0f} MB ({before:,.0f} before)",
        flush=True,
    )


def peak() -> float:
    """The most memory that this process ever held, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_shards(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    for start in range(0, rows, 1000):
        with tarfile.open(folder / f"{start:07d}.tar", "w") as shard:
            for n in range(start, min(rows, start + 1000)):
                seed = n if n % 10 else n + 1  # every tenth is its neighbour's picture, encoded otherwise
                small = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
                stream = io.BytesIO()
                image = Image.fromarray(small).resize((128, 128), Image.Resampling.BICUBIC)
                image.save(stream, "JPEG", quality=int(rng.integers(60, 95)))
                info = tarfile.TarInfo(f"{imagenet_1k().wnids[n // 10 % 10]}/{n:07d}.jpg")
                info.size = stream.tell()
                shard.addfile(info, io.BytesIO(stream.getvalue()))


def pool_cost(rows: int, *, filtered: bool) -> None:
    """Prints rate and peak memory of each stage over a pool of tar shards."""
    stages = (
        (COLLECT, CollectSettings()),
        (FINGERPRINT, FingerprintSettings(embedding=None)),
        (DUPLICATES, DuplicatesSettings()),
        *([(FILTER_A, FilterASettings((FILTER,), "all", preprocessing="model"))] if filtered else []),
    )
    with tempfile.TemporaryDirectory() as folder:
        make_shards(Path(folder), rows)
        work = Work(Path(folder, "out"), World(0, 1, "cpu"), lambda *_: None, None, folder)
        for stage, settings in stages:
            began = time.process_time()
            ledger = run_stage(stage, settings, work)
            rate = rows / (time.process_time() - began)
            print(f"{rows:9,d} rows, {stage.name:22s} {rate:8,.0f} a second of CPU, peak {peak():,.0f} MB", flush=True)
            work = replace(work, rows=ledger)
        gone = sum(row["dropped"] for row in ledger.funnel() if row["stage"] == DUPLICATES.name)
        print(f"{rows:9,d} rows, {gone:,} of {rows // 10:,} copies dropped")


def alone(arguments: list[str]) -> None:
    subprocess.run([sys.executable, __file__, *arguments], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="photos; without it only the cost is measured")
    parser.add_argument("--photos", type=int, default=200, help="photos that copies are made of")
    parser.add_argument("--embedding", default="offline/efficientnet_lite0", help="model source")
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--pool", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--filter-up-to", type=int, default=10_000, metavar="N", help="larger pools stop before it")
    parser.add_argument("--no-embeddings", action="store_true", help="of --rows search hashes only")
    parser.add_argument("--cost-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pool-of", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cost_of is not None:
        cost(given.cost_of, embeddings=not given.no_embeddings)
        return 0
    if given.pool_of is not None:
        pool_cost(given.pool_of, filtered=given.pool_of <= given.filter_up_to)
        return 0
    for rows in given.rows:  # each in a process of its own: the peak is of its whole life
        alone(["--cost-of", str(rows), "--no-embeddings"])
        if not given.no_embeddings:
            alone(["--cost-of", str(rows)])
    for rows in given.pool:
        alone(["--pool-of", str(rows), "--filter-up-to", str(given.filter_up_to)])
    return int(given.folder is not None and photos(given))


if __name__ == "__main__":
    sys.exit(main())
