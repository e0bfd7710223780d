"""Stage `fingerprint`: what near-duplicates are found by: perceptual hashes and, by a model, an embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..data import PictureError, decode
from ..models import ImageClassifier, load_model
from ..models.base import weights_hash
from .pictures import picture_columns, picture_of
from .stage import ROW_ID, PartWise, Stage, StageError, Work, for_kept

if TYPE_CHECKING:
    from PIL.Image import Image

HASH, MIRRORED, EMBEDDING = "phash", "phash_mirrored", "embedding"
_HIGHEST_FREQUENCY = 4  # of imagehash: the DCT is taken over a square of four times the hash's side


@dataclass(frozen=True)
class FingerprintSettings:
    """What is computed of each picture.

    hash_side    side of the perceptual hash: its square is the number of bits. With 8 (64 bits) different photos come
                 as near as 14 bits among a few hundred; with 16 (256 bits) none comes nearer than 90.
    embedding    model source whose penultimate features are compared; None: hashes only, which miss crops above 5 %.
    micro_batch  pictures a forward pass.
    """

    hash_side: int = 16
    embedding: str | None = "offline/efficientnet_lite0"
    micro_batch: int = 8


def start_fingerprint(settings: FingerprintSettings, work: Work) -> PartWise:
    """The hashes and embeddings of the kept pictures of each part; ModelError where the model cannot be loaded."""
    if not 2 <= settings.hash_side <= 32 or settings.hash_side % 4:
        raise StageError(f"expected hash_side of 4, 8, 12, …, 32, got {settings.hash_side}")
    embed = None if settings.embedding is None else embedder(settings.embedding, settings.micro_batch, work)

    def make(rows: pa.Table) -> pa.Table:
        return for_kept(rows, lambda kept: _columns(kept, settings, embed, work.out))

    facts = {} if embed is None else {"weights": embed.weights, "device": embed.device}
    return PartWise(facts, make, picture_columns(work.ledger))


def _columns(
    kept: pa.Table, settings: FingerprintSettings, embed: Embedder | None, out: Path
) -> Mapping[str, pa.Array]:
    hashes: list[str] = []
    mirrored: list[str] = []
    vectors: list[NDArray[np.float16]] = []
    rows = kept.to_pylist()
    for start in range(0, len(rows), settings.micro_batch):
        pictures = [_decoded(row, out) for row in rows[start : start + settings.micro_batch]]
        both = [perceptual_hashes(picture, settings.hash_side) for picture in pictures]
        hashes += [one for one, _ in both]
        mirrored += [other for _, other in both]
        if embed is not None:
            vectors += list(embed.run(pictures))
    columns = {HASH: pa.array(hashes, pa.string()), MIRRORED: pa.array(mirrored, pa.string())}
    return columns if embed is None else {**columns, EMBEDDING: pa.array(vectors, pa.list_(pa.float16()))}


def _decoded(row: Mapping[str, Any], out: Path) -> Image:
    try:
        return decode(picture_of(row, out))
    except (OSError, PictureError) as error:  # it could be read when it was collected
        raise StageError(
            f"expected the picture of row {row[ROW_ID]} as it was when it was collected, got {error}: is the pool "
            "still where it was?"
        ) from error


def perceptual_hashes(image: Image, side: int) -> tuple[str, str]:
    """The perceptual hash (imagehash.phash) of a picture and of its mirror image, in hexadecimal, side² bits each.

    ImportError where imagehash is not installed.
    """
    try:
        import imagehash
    except ImportError as error:
        raise ImportError('perceptual hashes need imagehash: pip install "hf-robust[pool]"') from error
    from PIL import Image as Pillow
    from PIL import ImageOps

    square = side * _HIGHEST_FREQUENCY  # reduced once, as imagehash does; both hashes are taken of that
    small = image.convert("L").resize((square, square), Pillow.Resampling.LANCZOS)
    one, other = (imagehash.phash(picture, side) for picture in (small, ImageOps.mirror(small)))
    return str(one), str(other)


@dataclass(frozen=True)
class Embedder:
    """A model that gives one vector of length 1 a picture, float16; its weights' hash and the device kind."""

    run: Callable[[Sequence[Image]], NDArray[np.float16]]
    weights: str
    device: str


def embedder(name: str, micro_batch: int, work: Work) -> Embedder:
    """The embeddings of a model source, by its own preprocessing; one thread, so that the bytes are always the same."""
    import torch

    if micro_batch < 1:
        raise StageError(f"expected micro_batch of at least 1, got {micro_batch}")
    model = load_model(name).with_features()
    kind = work.world.device.split(":")[0]
    torch.set_num_threads(1)
    if kind == "cuda":  # TF32 keeps 10 bits of a float32, and some algorithms add up in any order
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
    weights = weights_hash(model.module)
    model.module.to(work.world.device)
    if model.layout == "channels_last":
        model.module.to(memory_format=torch.channels_last)

    def run(pictures: Sequence[Image]) -> NDArray[np.float16]:
        return _embeddings(model, pictures, work.world.device)

    return Embedder(run, weights, kind)


def _embeddings(model: ImageClassifier, pictures: Sequence[Image], device: str) -> NDArray[np.float16]:
    import torch

    batch = torch.stack([model.preprocessing.transform(picture) for picture in pictures]).to(device)
    if model.layout == "channels_last":
        batch = batch.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        outputs = model.forward(batch)
    vectors = outputs["features" if "features" in outputs else "embeddings"].double().cpu().numpy()
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise StageError(f"expected features that are finite and not all zero of {model.name}, got others: check it")
    unit: NDArray[np.float16] = (vectors / lengths).astype(np.float16)
    return unit


FINGERPRINT = Stage(
    "fingerprint", "perceptual hashes and embeddings of the pictures", FingerprintSettings, start_fingerprint
)
