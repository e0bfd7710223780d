"""Neural PCA on disk, a file a class, and alphas of training pictures: our files, the published ones, or fresh ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..labels import imagenet_1k
from ..models.checkpoints import read_tensor
from ..predictions.plan import canonical
from ..predictions.temporary import renamed
from ..schema import Outputs
from .neural_pca import Float, NeuralPCA, fit
from .training import Training

OWN = "own"
_FORMAT = "hf_robust neural PCA 1"
_METADATA = "hf_robust"
_TENSORS = ("weight", "mean", "eigenvalues", "components", "alphas")
Meter = Callable[[int, int], None]


@dataclass(frozen=True)
class StoredPCA:
    """The neural PCA of one class as read back, the alphas of its training pictures (N, M), and their ids."""

    pca: NeuralPCA
    alphas: NDArray[np.float64]
    ids: tuple[str, ...]
    facts: Mapping[str, Any]


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """A safetensors file with `facts` in its header; it appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    with renamed(path) as temporary:
        save_file(arrays, temporary, metadata={_METADATA: canonical(facts)})


def read_facts(path: Path, form: str) -> dict[str, Any]:
    """What `write_tensors` put into the header; ValueError where the file is not of that form, or not whole."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get(_METADATA, "{}"))
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"expected a file of the form {form!r} at {path}, got one that cannot be read: {error}") from (
            error
        )
    found = facts.get("form", "another") if isinstance(facts, dict) else "another"
    if found != form:
        raise ValueError(f"expected a file of the form {form!r} at {path}, got {found!r}")
    return dict(facts)


def class_file(folder: Path, index: int) -> Path:
    """Where the neural PCA of an ImageNet-1k class lies."""
    return folder / f"class-{index:04d}.safetensors"


def read_class(folder: Path, index: int) -> StoredPCA:
    """The neural PCA of a class; FileNotFoundError where there is none, ValueError for a damaged file."""
    path = class_file(folder, index)
    if not path.is_file():
        raise FileNotFoundError(
            f"expected the neural PCA of class {index} at {path}, got no file: hf-robust neural-pca fit --classes "
            f"{index} --out {folder}"
        )
    facts = read_facts(path, _FORMAT)
    with safe_open(path, framework="numpy") as file:
        weight, mean, values, components, alphas = (file.get_tensor(name) for name in _TENSORS)
    pca = NeuralPCA(weight, mean, values, components, bool(facts["remainder"]), len(facts["ids"]))
    return StoredPCA(pca, alphas, tuple(facts["ids"]), facts)


def fit_classes(
    training: Training, classes: Sequence[int], out: Path, *, keep: int | None, meter: Meter | None = None
) -> int:
    """Write the neural PCA of every class that is not there yet, a file each; returns how many were written.

    Memory for one class at a time. A file made from other predictions is refused with a ValueError, so that a folder
    holds one model's components only; a damaged one is made again.
    """
    written = 0
    for done, index in enumerate(classes):
        if not _is_there(class_file(out, index), _facts(training, index, keep)):
            _write_class(training, index, out, keep)
            written += 1
        if meter is not None:
            meter(done + 1, len(classes))
    return written


def _facts(training: Training, index: int, keep: int | None) -> dict[str, Any]:
    return {"form": _FORMAT, "class": index, "wnid": imagenet_1k().wnids[index], "keep": keep, **training.provenance()}


def _is_there(path: Path, facts: Mapping[str, Any]) -> bool:
    if not path.exists():
        return False
    try:
        found = read_facts(path, _FORMAT)
    except ValueError:
        return False
    differ = sorted(name for name, value in facts.items() if found.get(name) != value)
    if differ:
        raise ValueError(
            f"expected the neural PCA of {facts['model']} in {path.parent}, got {path.name} made with another "
            f"{', '.join(differ)}: give another --out, or remove that folder"
        )
    return True


def _write_class(training: Training, index: int, out: Path, keep: int | None) -> None:
    rows = training.of_class(index)
    features = training.features(rows)
    pca = fit(features, training.row_of(index), keep=keep)
    arrays = (pca.weight, pca.mean, pca.eigenvalues, pca.components, pca.alphas(features))
    facts = {**_facts(training, index, keep), "remainder": pca.remainder, "ids": list(rows.ids)}
    write_tensors(class_file(out, index), dict(zip(_TENSORS, arrays, strict=True)), facts)


@dataclass(frozen=True)
class Alphas:
    """Alphas of training pictures by class: `of_class(index, rows, components)` gives (N, m); `origin` names them."""

    origin: Mapping[str, Any]
    of_class: Callable[[int, Outputs, Sequence[int]], Float]


def alphas_from(place: str | Path, training: Training) -> Alphas:
    """The alphas for a fit on `training`: "own", a folder of our files, or a folder of the published `.pt` files."""
    if str(place) == OWN:
        return own_alphas(training)
    folder = Path(place)
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a folder of alphas, or {OWN!r}, got {str(place)!r}: no folder")
    first = min(folder.glob("class-*.safetensors"), default=None)
    if first is not None:
        return Alphas(_origin(read_facts(first, _FORMAT)), lambda k, rows, which: _stored(folder, k, rows, which))
    if any(folder.glob("*.pt")):
        return Alphas({"published": folder.name}, lambda k, rows, which: _published(folder, k, rows, which))
    raise LookupError(f"expected class-*.safetensors or *.pt in {folder}, got neither: hf-robust neural-pca fit")


def own_alphas(training: Training) -> Alphas:
    """Alphas of the model that is fitted itself: its own components."""

    def of_class(index: int, rows: Outputs, components: Sequence[int]) -> Float:
        features = training.features(rows)
        pca = fit(features, training.row_of(index))
        return _columns(pca.alphas(features), components, index, len(pca.components) - pca.remainder)

    return Alphas({"model": training.plan["model"], "own": True}, of_class)


def _origin(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in ("model", "weights", "data")}


def _stored(folder: Path, index: int, rows: Outputs, components: Sequence[int]) -> Float:
    stored = read_class(folder, index)
    position = {key: i for i, key in enumerate(stored.ids)}
    missing = [key for key in rows.ids if key not in position]
    if missing or len(position) != len(rows):
        raise ValueError(
            f"expected the alphas of the same {len(rows)} training pictures of class {index} in {folder}, got "
            f"{len(position)}, {len(missing)} of the pictures not among them"
            f"{f', the first {missing[0]!r}' if missing else ''}: fit both models on the same pictures"
        )
    found = stored.alphas[[position[key] for key in rows.ids]]
    return _columns(found, components, index, len(stored.pca.components) - stored.pca.remainder)


def _published(folder: Path, index: int, rows: Outputs, components: Sequence[int]) -> Float:
    """The released alphas of a class: rows in the order of the pictures' sorted file names."""
    found = read_published(folder, index)
    if len(found) != len(rows):
        raise ValueError(
            f"expected {len(found)} training pictures of class {index}, one a row of {folder.name}, got {len(rows)}: "
            "the rows go by sorted file name, so the class folder must be the whole original one"
        )
    order = sorted(range(len(rows)), key=lambda i: rows.ids[i].rpartition("/")[2])
    ranked: Float = np.empty_like(found)
    ranked[order] = found
    return _columns(ranked, components, index, found.shape[1])


def read_published(folder: Path, index: int) -> Float:
    """(training pictures, components): the released alphas of a class, from the one `.pt` file that names it.

    The class stands in the file's name as its ImageNet-1k index (zeros in front allowed) or its WordNet id. The file
    is loaded without running any code of it.
    """
    wnid = imagenet_1k().wnids[index]
    names = re.compile(rf"(?<!\d)0*{index}(?!\d)")
    found = [path for path in sorted(folder.glob("*.pt")) if wnid in path.stem or names.search(path.stem)]
    if len(found) != 1:
        raise LookupError(
            f"expected one .pt file for class {index} ({wnid}) in {folder}, got "
            f"{', '.join(path.name for path in found) or 'none'}: name it by the class index"
        )
    values = np.asarray(read_tensor(found[0]), dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"expected (pictures, components) in {found[0]}, got shape {values.shape}: another file?")
    return values


def _columns(alphas: Float, components: Sequence[int], index: int, principal: int) -> Float:
    beyond = [c for c in components if c >= principal]
    if beyond:
        raise ValueError(
            f"expected components below {principal} for class {index}, got {beyond[0]}: the alphas hold no more "
            "principal components; keep more, or check the component list"
        )
    return np.asarray(alphas[:, list(components)])
