"""ImageNet-1k validation and training pictures, to evaluate and to fit with; never published.

Three layouts: folders named by WordNet id; the official archives (validation: flat, with the development kit;
training: a tar of 1,000 tars); the gated Hub set (hub.py).
"""

from __future__ import annotations

import io
import re
from functools import partial
from pathlib import Path

from .. import labels
from .archive import Archive, is_noise, open_archive
from .errors import BuildError
from .recipe import Picture, Reading, Recipe

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.(?:JPEG|jpeg|JPG|jpg|png|PNG)")
_TRAINING_NAME = re.compile(r"n\d{8}_\d+\.(?:JPEG|jpeg|JPG|jpg|png|PNG)")


def describe(file_name: str, *, split: str, grammar: re.Pattern[str]) -> Picture | str:
    """The row of `<wnid>/<name>`."""
    wnid, _, name = file_name.partition("/")
    if wnid not in labels.imagenet_1k_index():
        return f"{wnid!r} is not one of the 1,000 ImageNet classes"
    columns = {"label": wnid, "imagenet_1k": [labels.imagenet_1k_index()[wnid]]}
    problem = None if grammar.fullmatch(name) else f"name outside the grammar: {file_name!r}"
    return Picture(file_name, split, wnid, columns, problem)


_describe_validation = partial(describe, split="validation", grammar=_VALIDATION_NAME)
_describe_training = partial(describe, split="train", grammar=_TRAINING_NAME)


def validation_reader(archive: Archive, source: Path, devkit: Path | None) -> Reading:
    """Class folders as they are; a flat archive through the development kit."""
    pictures = [m.path for m in archive.members if m.is_image and not is_noise(m.path)]
    folders = {path.rpartition("/")[0].rpartition("/")[2] for path in pictures}
    if not pictures or folders & set(labels.imagenet_1k_index()):
        return Reading(_describe_validation, as_published=False)
    truth = validation_wnids(devkit or _devkit_beside(source))
    lacking = () if len(truth) == 50_000 else (f"the development kit names {len(truth):,} pictures, official 50,000",)
    return Reading(lambda file_name: _describe_flat(file_name, truth), 1, lacking)


def _describe_flat(file_name: str, truth: tuple[str, ...]) -> Picture | str:
    match = _VALIDATION_NAME.fullmatch(file_name)
    if match is None:
        return f"{file_name!r} is not ILSVRC2012_val_<number>.JPEG"
    number = int(match[1])
    if not 1 <= number <= len(truth):
        return f"the development kit has no class for {file_name!r}"
    return _describe_validation(
        f"{truth[number - 1]}/{file_name}"
    )  # as in class folders, so that both are one data set


def _devkit_beside(source: Path) -> Path:
    beside = source.parent / DEVKIT
    if not beside.exists():
        raise BuildError(
            f"expected class folders, or {DEVKIT} beside the flat archive, got flat pictures in {source} alone; "
            "pass devkit=PATH (from image-net.org)"
        )
    return beside


def validation_wnids(devkit: Path) -> tuple[str, ...]:
    """WordNet id of each validation picture, in the order of their numbers.

    The kit's class ids 1..1000 are not in the order of sorted WordNet ids: data/meta.mat says which is which.
    """
    import tempfile

    with tempfile.TemporaryDirectory() as scratch, open_archive(devkit, scratch=Path(scratch)) as kit:
        meta = kit.named("data/meta.mat")
        truth = kit.named("data/ILSVRC2012_validation_ground_truth.txt")
        if meta is None or truth is None:
            raise BuildError(
                f"expected data/meta.mat and data/ILSVRC2012_validation_ground_truth.txt, got neither or one in "
                f"{devkit}; give {DEVKIT}"
            )
        wnid_of = _meta(kit.read(meta))
        numbers = [int(line) for line in kit.read(truth).split()]
    strange = sorted(set(numbers) - set(wnid_of))
    if strange:
        raise BuildError(
            f"expected class ids of meta.mat, got {strange[0]} in the ground truth of {devkit}; take {DEVKIT}"
        )
    return tuple(wnid_of[number] for number in numbers)


def _meta(content: bytes) -> dict[int, str]:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    try:
        synsets = loadmat(io.BytesIO(content), squeeze_me=True)["synsets"].ravel()
        pairs = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    except (KeyError, IndexError, TypeError, ValueError, OSError) as error:
        raise BuildError(f"expected synsets in meta.mat, got {type(error).__name__}; take {DEVKIT} again") from error
    return {i: wnid for i, wnid in pairs.items() if wnid in labels.imagenet_1k_index()}  # drops the inner nodes


VALIDATION = Recipe(
    name="imagenet-val",
    title="ImageNet-1k validation pictures (ILSVRC 2012). Not to be published.",
    addresses=(),
    digest=("md5", "29b22e2961454d5413ddabcf34fc5622"),
    splits={"validation": 50_000},
    classes=labels.imagenet_1k().wnids,
    reader=validation_reader,
    top_folders=("val", "validation"),
    layout="n01440764/ILSVRC2012_val_00000293.JPEG",
    per_class=50,
    suffixes={".JPEG": 50_000},
)


def training_reader(archive: Archive, source: Path, devkit: Path | None) -> Reading:
    """Class folders, or the tar of tars, whose checksum is published."""
    return Reading(_describe_training, as_published=archive.kind == "tar of tars")


TRAINING = Recipe(
    name="imagenet-train",
    title="ImageNet-1k training pictures (ILSVRC 2012). Not to be published.",
    addresses=(),
    digest=("md5", "1d675b47d978889d74fa0da5fadfb00e"),
    splits={"train": 1_281_167},
    classes=labels.imagenet_1k().wnids,
    reader=training_reader,
    top_folders=("train",),
    layout="n01440764/n01440764_10026.JPEG",
    suffixes={".JPEG": 1_281_167},
    nested=True,
)
