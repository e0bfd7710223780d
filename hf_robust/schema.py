"""Columns, types and ids: of the published data sets, of the predictions table, and of its rows as they are read."""

from __future__ import annotations

import itertools
import re
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

RESULTS_SCHEMA_VERSION = 1

# Columns that every built data set has.
IMAGE, FILE_NAME, SHA256, IMAGENET_1K = "image", "file_name", "sha256", "imagenet_1k"

# Columns that every predictions table has, in this order; group columns stand between LABELS and the outputs.
ID, IMAGE_SHA256, LABELS, ERROR = "id", "image_sha256", "labels", "error"
# Columns that a model may fill: float32 scalars or fixed-length float32 vectors.
LOGITS, EMBEDDINGS, FEATURES = "logits", "embeddings", "features"
CONFIDENCE_LOGIT, ROTATION_LOGITS = "confidence_logit", "rotation_logits"
OUTPUT_COLUMNS = (LOGITS, EMBEDDINGS, FEATURES, CONFIDENCE_LOGIT, ROTATION_LOGITS)

_VALIDATION_ID = re.compile(r"ILSVRC2012_val_\d{8}")


def image_id(file_name: str) -> str:
    """A readable id: the ILSVRC validation number where the name holds one, else the path in the data set.

    >>> image_id("n01440764/ILSVRC2012_val_00000293.JPEG")
    'ILSVRC2012_val_00000293'
    >>> image_id("n01498041/0.000116_digital clock _ digital clock_0.865662.jpg")
    'n01498041/0.000116_digital clock _ digital clock_0.865662.jpg'
    """
    match = _VALIDATION_ID.search(file_name)
    return match.group() if match else file_name


def dataset_features(name: str, classes: Sequence[str]) -> datasets.Features:
    """The columns of the built data set `name`, its class column over `classes`; the same here and on the Hub.

    Every set has `image` (bytes as published), `file_name` (path in the archive), `sha256` (of the bytes) and
    `imagenet_1k` (every acceptable ImageNet-1k index; empty where the picture shows none of the classes). A set without
    columns of its own here has a `label` by WordNet id.
    """
    from datasets import ClassLabel, Features, Image, List, Value

    text, number, integer = Value("string"), Value("float64"), Value("int32")
    label = ClassLabel(names=list(classes))
    own: Mapping[str, Mapping[str, Any]] = {
        "imagenet-a": {
            "label": label,
            "true_class_probability": number,
            "wrong_label_1": text,
            "wrong_label_2": text,
            "wrong_label_confidence": number,
        },
        # no label: the folder of ImageNet-O is the class that a ResNet-50 confuses the picture with
        "imagenet-o": {
            "confused_with": label,
            "true_lemmas": text,
            "confidence": number,
        },
        "spurious-imagenet": {
            "spurious_class": label,
            "component": integer,
            "feature": text,
        },
        "imagenet-d": {
            "label": label,
            "category": text,
            "nuisance": text,
            "top1_prediction": text,
            "top2_prediction": text,
        },
    }
    shared = {FILE_NAME: text, SHA256: text, IMAGENET_1K: List(integer)}
    return Features({IMAGE: Image(), **own.get(name, {"label": label}), **shared})


# Columns of a built data set that travel into the predictions table, so that scoring needs no images; a regenerated set
# has those of the set it follows.
GROUP_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "imagenet-o": ("confused_with",),
    "spurious-imagenet": ("spurious_class", "component"),
    "imagenet-d": ("category", "nuisance"),
}


def predictions_schema(outputs: Mapping[str, int | None], groups: Sequence[pa.Field]) -> pa.Schema:
    """The schema of a predictions part.

    outputs  column name (one of OUTPUT_COLUMNS) -> width, or None for a scalar.
    """
    import pyarrow as pa

    unknown = set(outputs) - set(OUTPUT_COLUMNS)
    if unknown:
        raise KeyError(f"unknown output columns {sorted(unknown)}; known: {', '.join(OUTPUT_COLUMNS)}")
    return pa.schema(
        [
            pa.field(ID, pa.string(), nullable=False),
            pa.field(IMAGE_SHA256, pa.string()),
            pa.field(LABELS, pa.list_(pa.int32()), nullable=False),
            *groups,
            pa.field(ERROR, pa.string()),
            *(
                pa.field(name, pa.float32() if outputs[name] is None else pa.list_(pa.float32()))
                for name in OUTPUT_COLUMNS
                if name in outputs
            ),
        ]
    )


class RowStore:
    """Float32 rows in a temporary file without a name, which is gone when nothing looks at it any more.

    Reading instead of mapping: touched pages of a memory map count as memory of the process.
    """

    def __init__(self, width: int) -> None:
        """Rows of `width` numbers each."""
        self.width, self._count = width, 0
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 -- closed with this object
        weakref.finalize(self, self._file.close)

    def append(self, rows: NDArray[np.float32]) -> None:
        """Adds rows (n, width); OSError where the disk is full, ValueError for rows of another width or type."""
        if rows.dtype != np.float32 or rows.shape[1:] != (self.width,):
            raise ValueError(
                f"expected float32 rows of width {self.width}, got {rows.dtype} of shape {rows.shape}: "
                "all parts of a source have the same outputs, run `evaluate` again"
            )
        rest = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        try:
            while len(rest):
                rest = rest[self._file.write(rest.data) :]
        except OSError as error:
            place, size = tempfile.gettempdir(), (self._count + len(rows)) * self.width * rows.itemsize
            message = f"expected room for {size:,} bytes in {place}, got: {error.strerror}; set TMPDIR to another disk"
            raise OSError(error.errno, message) from error
        self._count += len(rows)

    def rows(self) -> StoredRows:
        """All that was appended so far, in order; none of it is read."""
        return StoredRows(self, np.arange(self._count), None)

    def read(self, where: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, width) the rows at these positions; neighbours are read at once."""
        found = np.empty((len(where), self.width), dtype=np.float32)
        bounds = np.append(np.flatnonzero(np.diff(where, prepend=-2) != 1), len(where))
        for start, stop in itertools.pairwise(bounds):
            self._file.seek(int(where[start]) * self.width * found.itemsize)
            rest = found[start:stop].reshape(-1).view(np.uint8)
            while len(rest):
                read = self._file.readinto(rest.data)
                if not read:
                    raise OSError(f"expected {self._count} rows in a temporary file, got fewer: run the command again")
                rest = rest[read:]
        return found


class StoredRows:
    """Rows (N, K) of a `RowStore`: indexing gives rows or columns and reads none of them, `np.asarray` reads."""

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, store: RowStore, rows: NDArray[np.int64], columns: NDArray[np.int64] | None) -> None:
        """`rows` are positions in the store; of them `columns`, or all (None)."""
        self._store, self._rows, self._columns = store, rows, columns
        self.shape = (len(rows), store.width if columns is None else len(columns))

    @property
    def size(self) -> int:
        """How many numbers these are."""
        return self.shape[0] * self.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> StoredRows:
        """The rows of a slice, mask or array of positions; with a second one after a comma, columns of those."""
        where, which = key if isinstance(key, tuple) else (key, None)
        rows, columns = self._rows[where], self._columns
        if which is not None:
            columns = (np.arange(self._store.width) if columns is None else columns)[which]
        if rows.ndim != 1 or (columns is not None and columns.ndim != 1):
            raise IndexError(f"expected slices or arrays of positions, got {key!r}: take i:i + 1 for a single row")
        return StoredRows(self._store, rows, columns)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("expected that a copy may be made, got copy=False: these rows are read from a file")
        read = self._store.read(self._rows)
        own = read if self._columns is None else read[:, self._columns]
        return own if dtype is None else own.astype(dtype, copy=False)


Rows = NDArray[np.floating[Any]] | StoredRows  # (N, K): `np.asarray(rows[a:b])` is an array of some of them


@dataclass(frozen=True)
class Outputs:
    """What a model said about the rows of one source: the input of every measure.

    logit_rows      float, (N, K): K = 1,000 ImageNet classes, or the classes of a zero-shot head; -inf in a column that
                    the model has no output for. An array, or rows on disk, which memory need not hold.
    log_normaliser  float64, (N,): log-sum-exp over all outputs of the model, which may be more than K.
    labels          int64, (N, L): every column that counts as right, padded with -1; all -1 for a picture of none.
    groups          column name -> (N,) array, for splits.
    sha256          of each picture's bytes.
    extra           further output columns that were asked for: "features" (N, D), "confidence_logit" (N,), …
    """

    ids: tuple[str, ...]
    logit_rows: Rows
    log_normaliser: NDArray[np.float64]
    labels: NDArray[np.int64]
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sha256: tuple[str | None, ...] = ()
    extra: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def logits(self) -> NDArray[np.floating[Any]]:
        """(N, K) all of them in memory; `logit_rows` where a few at a time will do."""
        return np.asarray(self.logit_rows)

    def select(self, keep: NDArray[np.bool_]) -> Outputs:
        """The rows where `keep` is true."""
        return self.take(np.flatnonzero(keep))

    def take(self, where: NDArray[np.integer[Any]]) -> Outputs:
        """The rows at these positions, in this order."""
        return Outputs(
            tuple(self.ids[i] for i in where),
            self.logit_rows[where],
            self.log_normaliser[where],
            self.labels[where],
            {name: values[where] for name, values in self.groups.items()},
            tuple(self.sha256[i] for i in where) if self.sha256 else (),
            {name: values[where] for name, values in self.extra.items()},
        )
