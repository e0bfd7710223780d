"""A data set as rows that can be read one by one: built here, on the Hub, or a folder read in place."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import builders
from .builders.archive import IMAGE_SUFFIXES, MAX_MEMBER, MIB
from .builders.base import FORMATS, fingerprint
from .builders.cache import RECORD
from .labels import imagenet_1k_index
from .predictions.parts import RowTable
from .schema import FILE_NAME, GROUP_COLUMNS, IMAGE, IMAGENET_1K, SHA256, image_id

if TYPE_CHECKING:
    from PIL.Image import Image

Exif = Literal["ignore", "apply"]

VALIDATION, TRAIN = "imagenet-val", "imagenet-train"
STILL_WITH_FRAMES = ("MPO",)  # a photo of some cameras, with a preview or the other eye's view behind it
_ORIENTATION = 0x0112  # the EXIF tag
_BITS, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # tags of a TIFF, and a value of the second
_LONGEST = 100  # times as long as wide: a transform that brings the shorter side to S pixels makes S * S times that
_NO_FILE = -1  # the size of what is no plain file
FLAGS = {VALIDATION: "--imagenet-val", TRAIN: "--imagenet-train"}  # ImageNet's own sets, cut by class


class MissingDataError(LookupError):
    """A data set that is neither on this machine nor within reach; the message says how to get it."""


class PictureError(ValueError):
    """Bytes that are no picture that can be decoded."""


@dataclass(frozen=True)
class Rows:
    """The rows of a data set and how to read each one's bytes.

    read         position in `table` -> the picture's bytes as stored.
    complete     whether the set is the official one; `differences` says what it lacks.
    by_class     cut into one part a class (ImageNet's own sets) instead of parts of equal size.
    """

    dataset: str
    table: RowTable
    read: Callable[[int], bytes]
    complete: bool = True
    differences: tuple[str, ...] = ()
    by_class: bool = False

    def limited(self, limit: int, seed: int) -> Rows:
        """About `limit` rows, the same number from every stratum (label and groups), drawn by `seed`.

        A set that is cut by class keeps at least one picture of every class.
        """
        if limit < 1:
            raise ValueError(f"expected --limit of at least 1, got {limit}: leave it out for all pictures")
        kept = _stratified(self.table, limit, seed, at_least_one=self.by_class)
        table = RowTable(
            tuple(self.table.ids[i] for i in kept),
            tuple(self.table.keys[i] for i in kept),
            tuple(self.table.labels[i] for i in kept),
            {name: [values[i] for i in kept] for name, values in self.table.groups.items()},
        )
        return replace(self, table=table, read=lambda i: self.read(kept[i]))


def _stratified(table: RowTable, limit: int, seed: int, *, at_least_one: bool) -> list[int]:
    strata: dict[Any, list[tuple[str, int]]] = defaultdict(list)
    for i, (key, labels) in enumerate(zip(table.ids, table.labels, strict=True)):
        stratum = (labels, *(values[i] for values in table.groups.values()))
        strata[stratum].append((hashlib.sha256(f"{seed}:{key}".encode()).hexdigest(), i))
    ranked = [(rank, draw, i) for rows in strata.values() for rank, (draw, i) in enumerate(sorted(rows))]
    if at_least_one:
        each = max(1, limit // max(1, len(strata)))
        return sorted(i for rank, _, i in ranked if rank < each)
    return sorted(i for _, _, i in sorted(ranked)[:limit])


def decode(data: bytes, *, exif: Exif = "ignore") -> Image:
    """The picture as RGB pixels, the first of an animation; PictureError says what is wrong.

    exif  "ignore" leaves the pixels as they are stored, as the published evaluations do; "apply" turns and mirrors them
          as their EXIF orientation says, where there is one that can be read.
    """
    from PIL import Image as Pillow
    from PIL import ImageFile, UnidentifiedImageError

    try:
        with Pillow.open(io.BytesIO(data), formats=FORMATS) as image:
            # not by Pillow's warning: filters of warnings belong to the whole process, and threads decode at once
            if Pillow.MAX_IMAGE_PIXELS is not None and image.width * image.height > Pillow.MAX_IMAGE_PIXELS:
                raise PictureError(
                    f"{image.width} x {image.height} pixels, more than the {Pillow.MAX_IMAGE_PIXELS} that are safe"
                )
            if max(image.size) > _LONGEST * min(image.size):
                raise PictureError(f"{image.width} x {image.height} pixels, more than {_LONGEST} times as long as wide")
            ImageFile.LOAD_TRUNCATED_IMAGES = (
                False  # a model's file may have set it: half a picture would pass as whole
            )
            return _rgb(image if exif == "ignore" else _upright(image))
    except PictureError:
        raise
    except UnidentifiedImageError as error:  # its own text holds a memory address, other in every process
        raise PictureError("no picture format that Pillow knows") from error
    except Exception as error:  # Pillow's decoders raise whatever a broken file makes them raise
        raise PictureError(f"{type(error).__name__}: {error}") from error


def _rgb(image: Image) -> Image:
    """Pillow's own RGB, but for deep grey values, which it cuts off at 255: a 16-bit photo would become white."""
    from PIL import Image as Pillow

    if image.mode.startswith("I;16"):
        image = Pillow.fromarray(_eight_bits(image))
    elif image.mode in ("I", "F"):
        values = np.asarray(image)
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 255 and np.array_equal(values, np.rint(values))):  # 0 to 1 would become black
            raise PictureError(f"grey values from {low:g} to {high:g}, which no 8-bit picture stands for")
    elif image.mode == "P":
        image.info.pop("transparency", None)  # changes no pixel of RGB, but warns
    return image.convert("RGB")


def _eight_bits(image: Image) -> NDArray[np.uint8]:
    """The upper eight bits of deep grey values, as Pillow takes them of 16-bit colour; white is 255.

    Pillow leaves the values of a TIFF with 12 bits, or with white as 0, as they are.
    """
    tags = getattr(image, "tag_v2", {})
    values: NDArray[np.uint8] = (np.asarray(image) >> (tags.get(_BITS, (16,))[0] - 8)).astype(np.uint8)
    return 255 - values if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO else values


def _upright(image: Image) -> Image:
    """The picture as its EXIF orientation wants it seen; as it is where that says nothing that can be read."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }  # fmt: skip
    image.load()  # Pillow turns a TIFF by itself here, and then no longer names its orientation
    try:
        turn = turns.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a broken block of EXIF raises whatever it likes, and spoils no pixel
        return image
    return image if turn is None else image.transpose(turn)


def open_rows(
    dataset: str,
    *,
    built: Path | None = None,
    place: str | None = None,
    repo: str | None = None,
    columns: Sequence[str] = (),
) -> Rows:
    """The rows of a data set.

    built  folder that `build --out` wrote to; None: the data sets' cache of this machine.
    place  for imagenet-val and imagenet-train: a folder of WordNet-id folders, read in place, or a Hub repo.
    repo   Hub repo to fall back to where the set is not built here.
    columns  of the set that are groups too, where it has them, beside the usual ones; not of ImageNet's own sets.
    Raises MissingDataError where it is nowhere.
    """
    if dataset in FLAGS and place is not None:
        return _in_place(dataset, Path(place)) if Path(place).is_dir() else _from_hub(dataset, place)
    try:
        found = builders.find(dataset, out=built)
    except LookupError as error:
        if repo is None or built is not None:
            hint = f"; or give its folder with {FLAGS[dataset]}" if dataset in FLAGS else ""
            raise MissingDataError(f"{error.args[0]}{hint}") from error
        return _from_hub(dataset, repo, columns)
    return _from_splits(dataset, found.load(), complete=found.complete, differences=found.differences, columns=columns)


def open_folder(folder: Path) -> Rows:
    """The pictures below a folder that need be no data set, read in place, hidden files left out, sorted by path.

    Their name is that of the folder with a hash of paths and sizes. A picture whose folder is named by one of the 1,000
    WordNet ids has that label, any other has none. Pipes, devices and links to nothing are rows too, since they are
    named like pictures; reading one raises PictureError. Raises MissingDataError where there are no pictures.
    """
    files = [
        (path.relative_to(folder).as_posix(), path.stat().st_size if path.is_file() else _NO_FILE)
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()
    ]
    files = [(name, size) for name, size in files if not any(part.startswith(".") for part in name.split("/"))]
    if not files:
        raise MissingDataError(f"expected a folder with pictures, got none in {folder}; check the path")
    index = imagenet_1k_index()
    wnids = [Path(name).parent.name for name, _ in files]
    table = RowTable(
        tuple(_as_text(name) for name, _ in files),
        tuple(str(size) for _, size in files),
        tuple((index[wnid],) if wnid in index else () for wnid in wnids),
    )
    stem = re.sub(r"[^A-Za-z0-9-]+", "-", folder.resolve().name).strip("-") or "pictures"
    digest = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:8]
    return Rows(f"{stem}-{digest}", table, lambda i: _file_bytes(folder / files[i][0], files[i][1]))


def _as_text(name: str) -> str:
    """A file's name as text that can be stored; bytes that are none are written as \\x.."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _file_bytes(path: Path, size: int) -> bytes:
    """The bytes of a file that was `size` bytes long when it was listed; PictureError where it can be no picture.

    OSError where it is gone since.
    """
    if size == _NO_FILE:
        raise PictureError("no plain file")
    if size > MAX_MEMBER:
        raise PictureError(f"{size:,} bytes, more than the {MAX_MEMBER // MIB} MiB that are safe")
    return path.read_bytes()


def _in_place(dataset: str, folder: Path) -> Rows:
    files = builders.image_folder(folder)
    if not files:
        raise MissingDataError(f"expected folders named by WordNet id with pictures in {folder}, got none")
    table = RowTable(
        tuple(image_id(_as_text(name)) for name, _, _ in files),
        tuple(str(size) for _, _, size in files),
        tuple((index,) for _, index, _ in files),
    )
    return Rows(dataset, table, lambda i: _file_bytes(folder / files[i][0], files[i][2]), by_class=True)


def _from_splits(
    dataset: str, splits: Any, *, complete: bool, differences: tuple[str, ...], columns: Sequence[str] = ()
) -> Rows:
    from datasets import Image as ImageFeature
    from datasets import concatenate_datasets

    whole = concatenate_datasets([splits[name] for name in splits])
    whole = whole.cast_column(IMAGE, ImageFeature(decode=False))
    plain = whole.remove_columns(IMAGE)
    known = dict.fromkeys([*(name for usual in GROUP_COLUMNS.values() for name in usual), *columns])
    groups = {name: _group(plain, name) for name in known if name in plain.column_names}
    names = plain[FILE_NAME][:]
    table = RowTable(
        tuple(image_id(name) for name in names),
        tuple(plain[SHA256][:]),
        tuple(tuple(labels) for labels in plain[IMAGENET_1K][:]),
        groups,
    )
    pictures = whole.select_columns(IMAGE)
    by_class = dataset in FLAGS
    return Rows(dataset, table, lambda i: _stored_bytes(pictures[i][IMAGE]), complete, differences, by_class)


def _group(plain: Any, name: str) -> Sequence[Any]:
    return list(plain[name][:])


def _stored_bytes(picture: dict[str, Any]) -> bytes:
    return picture["bytes"] if picture["bytes"] is not None else Path(picture["path"]).read_bytes()


def _from_hub(dataset: str, repo: str, columns: Sequence[str] = ()) -> Rows:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:  # load_dataset alone retries for a long time where there is no network
        commit = HfApi().dataset_info(repo, revision="main", timeout=10).sha  # mirrors know no other head
    except GatedRepoError as error:
        raise _gated(repo) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise MissingDataError(f"expected a folder or a data set on the Hub, got {repo!r}, which is neither") from error
    except Exception as error:  # the HTTP client, and so its errors, differ between versions of huggingface_hub
        raise MissingDataError(
            f"{dataset} is not on this machine and the Hub cannot be reached ({type(error).__name__}): "
            f"hf-robust build {dataset} --source PATH"
        ) from error
    if dataset in FLAGS:
        return _from_labelled(dataset, _loaded(repo, split="validation" if dataset == VALIDATION else "train"))
    splits = _loaded(repo, revision=commit)
    differences = _published_differences(dataset, repo, commit, splits)
    return _from_splits(dataset, splits, complete=not differences, differences=differences, columns=columns)


def _loaded(repo: str, **which: Any) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError

    try:
        return load_dataset(repo, **which)
    except DatasetNotFoundError as error:  # anyone may ask for a gated set's info, so that told nothing
        if "gated" in str(error):
            raise _gated(repo) from error
        raise


def _gated(repo: str) -> MissingDataError:
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/datasets/{repo}"
    return MissingDataError(f"{repo} is gated: accept its terms at {page}, then run `hf auth login`")


def _published_differences(dataset: str, repo: str, commit: str | None, splits: Any) -> tuple[str, ...]:
    """What the repo's own record says is not official; MissingDataError where its pictures are not those it records."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = hf_hub_download(repo, RECORD, repo_type="dataset", revision=commit)
    except EntryNotFoundError:
        return (f"{repo} holds no {RECORD}: nothing says that its pictures are the official ones",)
    record = json.loads(Path(path).read_text(encoding="utf-8"))
    if record.get("name") != dataset:
        raise MissingDataError(f"expected {dataset} in {repo}, got {record.get('name')}: give the repo of {dataset}")
    pairs = [p for split in splits.values() for p in zip(split[FILE_NAME][:], split[SHA256][:], strict=True)]
    if fingerprint(pairs) != record["fingerprint"]:
        raise MissingDataError(
            f"expected the pictures that {RECORD} of {repo} records (fingerprint {record['fingerprint'][:12]}), got "
            f"others ({fingerprint(pairs)[:12]}): ask its owner, or build {dataset} here"
        )
    return tuple(record["differences"])


def _from_labelled(dataset: str, split: Any) -> Rows:
    """A set with only `image` and `label`, its labels in ImageNet-1k order (as ILSVRC/imagenet-1k has them)."""
    from datasets import Image as ImageFeature

    split = split.cast_column(IMAGE, ImageFeature(decode=False))
    names = split.flatten()[f"{IMAGE}.path"][:]
    labels = split["label"][:]
    ids = tuple(image_id(Path(name).name) if name else f"{i:08d}" for i, name in enumerate(names))
    table = RowTable(ids, ids, tuple((int(k),) for k in labels))
    return Rows(dataset, table, lambda i: _stored_bytes(split[i][IMAGE]), by_class=True)
