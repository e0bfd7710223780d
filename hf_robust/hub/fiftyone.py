"""A run on one benchmark as a FiftyOne data set on disk: pictures, labels, predictions with logits, hardness.

FiftyOne's own format (`fiftyone.types.FiftyOneDataset`): metadata.json, samples.json, data/. Written without the
library, whose import starts a database; it is only needed to look at the result.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..benchmarks import Role
from ..benchmarks.views import Scored
from ..data import VALIDATION, Rows, open_rows
from ..labels import imagenet_1k_names, imagenet_o_wnids, indices_of
from ..metrics import log_sum_exp
from ..report import Places
from ..scoring import Asked, asked_of_run, view_of
from ..scoring.load import Loaded

# The oldest version that the extra allows: a newer FiftyOne brings what it reads up to date, an older one refuses.
FIFTYONE_VERSION = "1.8.0"
HARDNESS = (
    "0 to 1, higher = harder. Labelled pictures: 1 minus the softmax probability of the acceptable classes. Role "
    "'outside' (no label): the highest softmax probability. Role 'spurious' (the object is not there): the softmax "
    "probability of the class. Softmax over the classes of the protocol."
)
CORRECT = (
    "Labelled pictures: whether the most probable class is acceptable. Role 'spurious': whether it is not the class "
    "whose spurious feature is shown. Role 'outside': not set."
)
_SIGNATURES = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp", b"BM": ".bmp"}


@dataclass(frozen=True)
class Exported:
    """An export: its folder, the number of samples, and how many pictures are not on this machine as evaluated."""

    folder: Path
    samples: int
    missing: int


@dataclass(frozen=True)
class _Role:
    """The rows of one role, as arrays of equal length, and where their pictures are read."""

    role: Role
    dataset: str
    scored: Scored
    truth: tuple[tuple[int, ...], ...]  # acceptable columns of the logits; empty for a picture without a label
    hardness: NDArray[np.float64]
    correct: tuple[bool | None, ...]
    rows: Rows


def asked_in(run: Path, benchmarks: Mapping[str, Any], name: str | None, mode: str | None) -> Asked:
    """The one benchmark, under one preprocessing, that a run was asked for and that `name` and `mode` leave.

    Raises LookupError with the choice where they leave none or several.
    """
    asked = list(asked_of_run(run, benchmarks))
    left = [a for a in asked if name in (None, a.benchmark.name) and mode in (None, a.mode)]
    if len(left) != 1:
        here = ", ".join(f"{a.benchmark.name} ({a.mode})" for a in asked) or "none"
        raise LookupError(
            f"expected one benchmark of {run}, got {len(left)}: choose by --benchmark, --preprocessing; there: {here}"
        )
    return left[0]


def export_fiftyone(asked: Asked, out: Path, *, places: Places) -> Exported:
    """The folder `out` with every picture of a benchmark, its labels and what the model said about it.

    Open it with `fiftyone.Dataset.from_dir(out, dataset_type=fiftyone.types.FiftyOneDataset)`. Each sample has
    ground_truth (where the picture has a label), acceptable, prediction (label, confidence, logits), hardness, correct,
    role, image_id, image_sha256, the groups of the data set as fields, and the benchmark and role as tags.
    Pictures are copied from this machine, only those with the very bytes that were evaluated.
    Raises FileExistsError where `out` holds something, MissingDataError where a data set is nowhere, LookupError and
    ValueError as `view_of` does.
    """
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"expected a new or empty folder, got {out}, which holds files: give another --out")
    loaded, _ = view_of(asked)
    roles = [
        _role(asked, loaded, source.role, places) for source in asked.benchmark.sources if source.role in loaded.roles
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=out.parent) as work:
        folder = Path(work) / "fiftyone"
        count = _write(asked, loaded, roles, folder)
        if out.exists():
            out.rmdir()
        shutil.move(folder, out)
    return Exported(out, count, sum(len(role.scored.outputs) for role in roles) - count)


def _role(asked: Asked, loaded: Loaded, role: Role, places: Places) -> _Role:
    dataset = loaded.reads[role].plan.dataset
    place = str(places.validation) if dataset == VALIDATION and places.validation is not None else None
    scored = Scored(loaded.roles[role], None if loaded.zero_shot else asked.benchmark.mask)
    rows = open_rows(dataset, built=places.built, place=place)
    truth, hardness, correct = _judged(scored, role)
    return _Role(role, dataset, scored, truth, hardness, correct, rows)


def _judged(
    scored: Scored, role: Role
) -> tuple[tuple[tuple[int, ...], ...], NDArray[np.float64], tuple[bool | None, ...]]:
    """Acceptable columns, hardness and correctness of each row: see HARDNESS and CORRECT."""
    n = len(scored.outputs)
    if role == "outside":
        return ((),) * n, scored.confidence, (None,) * n
    if role == "spurious":
        own = np.asarray(scored.outputs.groups["spurious_class"], dtype=np.int64)
        return ((),) * n, scored.of_class(own), tuple(map(bool, scored.logits.argmax(axis=1) != own))
    columns = scored.labels
    normaliser = scored.outputs.log_normaliser if scored.mask is None else log_sum_exp(scored.logits)
    logits = np.take_along_axis(scored.logits, np.maximum(columns, 0), axis=1).astype(np.float64)
    acceptable = np.where(columns >= 0, np.exp(logits - normaliser[:, None]), 0.0).sum(axis=1)
    truth = tuple(tuple(int(k) for k in row if k >= 0) for row in columns)
    return truth, np.clip(1 - acceptable, 0.0, 1.0), tuple(map(bool, scored.correct))


def _write(asked: Asked, loaded: Loaded, roles: Sequence[_Role], folder: Path) -> int:
    names = _class_names(asked, loaded)
    folder.mkdir()
    groups: dict[str, str] = {}
    count = 0
    with (folder / "samples.json").open("w", encoding="utf-8") as stream:  # may be larger than memory
        stream.write('{"samples": [')
        for sample in (sample for role in roles for sample in _samples(asked, role, names, folder)):
            groups |= {name: _kind(value) for name, value in sample.items() if name not in _OWN}
            stream.write((", " if count else "") + json.dumps(sample))
            count += 1
        stream.write("]}\n")
    text = json.dumps(_document(asked, loaded, names, groups), indent=1, ensure_ascii=False)
    (folder / "metadata.json").write_text(text + "\n", encoding="utf-8")
    return count


def _class_names(asked: Asked, loaded: Loaded) -> tuple[str, ...]:
    """The class of each logit."""
    if loaded.zero_shot and asked.benchmark.zero_shot is not None:
        return asked.benchmark.zero_shot.classes
    names = imagenet_1k_names()
    return names if asked.benchmark.mask is None else tuple(names[k] for k in asked.benchmark.mask)


def _samples(asked: Asked, role: _Role, names: Sequence[str], folder: Path) -> Iterator[dict[str, Any]]:
    """A sample for each picture that is here; its file is put into the folder."""
    outputs, confidence = role.scored.outputs, role.scored.confidence
    position = {key: i for i, key in enumerate(role.rows.table.ids)}
    for i, key in enumerate(outputs.ids):
        content = role.rows.read(position[key]) if key in position else b""
        if hashlib.sha256(content).hexdigest() != outputs.sha256[i]:
            continue
        path = _file_name(role.dataset, key, content)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        identity = f"{asked.run.name}/{asked.benchmark.name}/{asked.mode}/{role.role}/{key}"
        logits = role.scored.logits[i]
        prediction = {"confidence": float(confidence[i]), "logits": _vector(logits)}
        yield {
            "_id": _object_id(identity),
            "_rand": int(hashlib.sha256(identity.encode()).hexdigest()[-8:], 16) / 2**32,
            "_media_type": "image",
            "filepath": path,
            "tags": [asked.benchmark.name, role.role],
            "metadata": None,
            "ground_truth": _label(f"{identity}#truth", names[role.truth[i][0]]) if role.truth[i] else None,
            "acceptable": [names[k] for k in role.truth[i]],
            "prediction": _label(f"{identity}#prediction", names[int(logits.argmax())], **prediction),
            "hardness": float(role.hardness[i]),
            "correct": role.correct[i],
            "role": role.role,
            "image_id": key,
            "image_sha256": outputs.sha256[i],
            **{name: _group(name, values[i]) for name, values in outputs.groups.items()},
        }


def _file_name(dataset: str, key: str, content: bytes) -> str:
    """A readable path below data/ that is safe and unique whatever the id holds."""
    endings = [ending for signature, ending in _SIGNATURES.items() if content.startswith(signature)]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", key.rpartition(".")[0] if "." in key.rpartition("/")[2] else key).strip(
        "._"
    )
    return f"data/{dataset}/{stem[-80:]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}{[*endings, '.img'][0]}"


def _group(name: str, value: Any) -> Any:
    """A group's value as people read it: class numbers by name."""
    plain = value.item() if isinstance(value, np.generic) else value
    if name == "spurious_class":
        return imagenet_1k_names()[plain]
    if name == "confused_with":
        return imagenet_1k_names()[indices_of((imagenet_o_wnids()[plain],))[0]]
    return plain


def _object_id(text: str) -> dict[str, str]:
    return {"$oid": hashlib.sha256(text.encode()).hexdigest()[:24]}


def _label(identity: str, label: str, **more: Any) -> dict[str, Any]:
    return {"_id": _object_id(identity), "_cls": "Classification", "tags": [], "label": label, **more}


def _vector(values: NDArray[np.floating[Any]]) -> dict[str, Any]:
    """A vector as FiftyOne stores it: the .npy bytes, compressed by zlib."""
    stream = io.BytesIO()
    np.save(stream, np.ascontiguousarray(values), allow_pickle=False)
    packed = base64.b64encode(zlib.compress(stream.getvalue())).decode("ascii")
    return {"$binary": {"base64": packed, "subType": "00"}}


_FIELDS = "fiftyone.core.fields."
_TEXT, _TEXTS = ("StringField", None), ("ListField", "StringField")
# Fields that every sample has, in this order: name in the database -> (type, type of the items of a list).
_OWN: Mapping[str, tuple[str, str | None]] = {
    "_id": ("ObjectIdField", None),
    "_rand": ("FloatField", None),
    "_media_type": _TEXT,
    "filepath": _TEXT,
    "tags": _TEXTS,
    "metadata": ("EmbeddedDocumentField", None),
    "ground_truth": ("EmbeddedDocumentField", None),
    "acceptable": _TEXTS,
    "prediction": ("EmbeddedDocumentField", None),
    "hardness": ("FloatField", None),
    "correct": ("BooleanField", None),
    "role": _TEXT,
    "image_id": _TEXT,
    "image_sha256": _TEXT,
}
_LATER = {"_dataset_id": "ObjectIdField", "created_at": "DateTimeField", "last_modified_at": "DateTimeField"}
_KINDS: Mapping[type, str] = {bool: "BooleanField", int: "IntField", float: "FloatField", str: "StringField"}
_LABEL: Mapping[str, tuple[str, str | None]] = {
    "_id": ("ObjectIdField", None), "tags": _TEXTS, "label": _TEXT, "confidence": ("FloatField", None),
    "logits": ("VectorField", None),
}  # fmt: skip
_PICTURE: Mapping[str, tuple[str, str | None]] = {
    "size_bytes": ("IntField", None), "mime_type": _TEXT, "width": ("IntField", None), "height": ("IntField", None),
    "num_channels": ("IntField", None),
}  # fmt: skip
_NOTHING: Mapping[str, tuple[str, str | None]] = {}
_EMBEDDED = {
    "metadata": ("fiftyone.core.metadata.ImageMetadata", _PICTURE),
    "ground_truth": ("fiftyone.core.labels.Classification", _LABEL),
    "prediction": ("fiftyone.core.labels.Classification", _LABEL),
}
_DESCRIBED = {"hardness": HARDNESS, "correct": CORRECT}


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "StringField")


def _field(name: str, kind: str, items: str | None = None) -> dict[str, Any]:
    """How FiftyOne declares a field."""
    embedded, inner = _EMBEDDED.get(name, (None, _NOTHING))
    return {
        "name": "id" if name == "_id" else name,
        "ftype": _FIELDS + kind,
        "embedded_doc_type": embedded,
        "subfield": _FIELDS + items if items else None,
        "fields": [_field(key, *value) for key, value in inner.items()],
        "db_field": name,
        "description": _DESCRIBED.get(name),
        "info": None,
        "read_only": name in ("created_at", "last_modified_at"),
        "created_at": None,
    }


def _document(asked: Asked, loaded: Loaded, names: Sequence[str], groups: Mapping[str, str]) -> dict[str, Any]:
    """FiftyOne's record of the data set; what stands for its database is replaced when it is read."""
    benchmark, model = asked.benchmark, str(asked.plan["model"])
    fields = [_field(name, *kind) for name, kind in _OWN.items()]
    fields += [_field(name, kind) for name, kind in {**_LATER, **groups}.items()]
    info = {
        "benchmark": benchmark.name,
        "model": model,
        "run": asked.run.name,
        "preprocessing": asked.mode,
        "hardness": HARDNESS,
        "correct": CORRECT,
        "licence": benchmark.licence,
        "notes": [*(text for texts in loaded.lacks.values() for text in texts), *loaded.notes, *asked.notes],
    }
    return {
        "_id": _object_id(f"{asked.run.name}/{benchmark.name}/{asked.mode}"),
        "name": f"{benchmark.name} by {model}",
        "version": FIFTYONE_VERSION,
        "sample_collection_name": "samples",
        "persistent": False,
        "media_type": "image",
        "group_media_types": {},
        "tags": ["hf-robust", benchmark.name],
        "description": f"{benchmark.title} and what {model} said about it",
        "info": info,
        "app_config": {"media_fields": ["filepath"], "grid_media_field": "filepath", "modal_media_field": "filepath"},
        "classes": {"prediction": list(names)},
        "default_classes": list(names),
        "mask_targets": {},
        "default_mask_targets": {},
        "skeletons": {},
        "sample_fields": fields,
    }
