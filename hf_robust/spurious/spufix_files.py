"""A fitted correction on disk: the arrays, and what they belong to, so that another model refuses them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..labels import imagenet_1k
from ..schema import Outputs
from .alpha_files import Alphas, Meter, read_facts, write_tensors
from .components import Components
from .spufix import ClassFix, SpuFix, fit_class
from .training import Training

_FORMAT = "hf_robust SpuFix 1"
_ARRAYS = ("outputs", "components", "matrix", "offset", "directions")


@dataclass(frozen=True)
class FittedSpuFix:
    """A correction with its origin.

    facts       model, weights and head hashes, data and alphas of the fit, classes that were left out with the reason.
    fit_ids, fit_images  uint64: the first 8 bytes of the SHA-256 of each fit picture's id and of its bytes.
    sha256      of the file that it was read from.
    """

    fix: SpuFix
    facts: Mapping[str, Any]
    fit_ids: NDArray[np.uint64]
    fit_images: NDArray[np.uint64]
    sha256: str = ""

    def refuse_other(self, *, weights: str, head: str, model: str) -> None:
        """Nothing for the model that it was fitted to; ValueError for another."""
        for name, theirs in (("weights", weights), ("head", head)):
            if self.facts[name] != theirs:
                raise ValueError(
                    f"expected the model that the correction was fitted to, {self.facts['model']} with {name} "
                    f"{self.facts[name][:12]}, got {model} with {name} {theirs[:12]}: hf-robust spufix fit for it"
                )

    def refuse_fit_rows(self, rows: Outputs) -> None:
        """Nothing where no row was fitted on, by id and by the picture's bytes; ValueError with the count else."""
        known_id, known_image = set(self.fit_ids.tolist()), set(self.fit_images.tolist())
        hashes = rows.sha256 or (None,) * len(rows)
        shared = [
            key
            for key, image in zip(rows.ids, hashes, strict=True)
            if _short(_text_hash(key)) in known_id or (image and _short(image) in known_image)
        ]
        if shared:
            raise ValueError(
                f"expected rows that the correction was not fitted on, got {len(shared)} of {len(rows)} that it was, "
                f"the first {shared[0]!r}: fit on other pictures, such as imagenet-train"
            )


def fit_spufix(
    training: Training, alphas: Alphas, components: Components, *, meter: Meter | None = None
) -> FittedSpuFix:
    """The correction of every class in `components`, from the training pictures of each.

    Classes that the head has no output for are left out and named in the facts; whatever else is missing is an error.
    """
    fixes: dict[int, ClassFix] = {}
    left_out: dict[str, str] = {}
    ids: list[int] = []
    images: list[int] = []
    for done, (index, which) in enumerate(components.items()):
        try:
            output = training.output_of(index)
        except LookupError as error:
            left_out[str(index)] = str(error)
        else:
            rows = training.of_class(index)
            own = alphas.of_class(index, rows, which)
            fixes[output] = fit_class(training.features(rows), training.row_of(index), own, components=which)
            ids += [_short(_text_hash(key)) for key in rows.ids]
            images += [_short(image) for image in rows.sha256 if image]
        if meter is not None:
            meter(done + 1, len(components))
    fix = SpuFix.of(fixes, width=len(training.head.bias))
    facts = {**training.provenance(), "form": _FORMAT, "width": fix.width, "alphas": dict(alphas.origin)}
    facts |= {"left_out": left_out, "classes": _classes(training, components, left_out), "pictures": len(ids)}
    return FittedSpuFix(fix, facts, np.array(ids, np.uint64), np.array(images, np.uint64))


def _classes(training: Training, components: Components, left_out: Mapping[str, str]) -> dict[str, Any]:
    return {
        imagenet_1k().wnids[index]: {"output": training.output_of(index), "components": list(which)}
        for index, which in components.items()
        if str(index) not in left_out
    }


def write_spufix(path: Path, fitted: FittedSpuFix) -> str:
    """Write the file, whole or not at all; returns its SHA-256."""
    tensors = {name: getattr(fitted.fix, name) for name in _ARRAYS}
    write_tensors(path, {**tensors, "fit_ids": fitted.fit_ids, "fit_images": fitted.fit_images}, fitted.facts)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_spufix(path: Path) -> FittedSpuFix:
    """The correction in a file that `spufix fit` wrote; ValueError for another file, FileNotFoundError for none."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a file that `hf-robust spufix fit` wrote, got {str(path)!r}: no file")
    facts = read_facts(path, _FORMAT)
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in (*_ARRAYS, "fit_ids", "fit_images")}
    except SafetensorError as error:
        raise ValueError(f"expected every array of a correction in {path}, got another file: {error}") from error
    _check(path, arrays, facts)
    fix = SpuFix(**{name: arrays[name] for name in _ARRAYS}, width=int(facts["width"]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return FittedSpuFix(fix, facts, arrays["fit_ids"], arrays["fit_images"], digest)


def _check(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """ValueError where arrays and facts do not fit together: an edited file must not correct anything."""
    rows, width = len(arrays["outputs"]), facts.get("width")
    shape = arrays["matrix"].shape
    wrong = [name for name in ("model", "weights", "head") if not isinstance(facts.get(name), str)]
    if not isinstance(width, int) or ((arrays["outputs"] < 0) | (arrays["outputs"] >= width)).any():
        wrong.append("outputs")
    if len(shape) != 2 or shape[0] != rows or arrays["directions"].shape != shape:
        wrong.append("matrix and directions")
    wrong += [name for name in ("outputs", "components", "offset") if arrays[name].shape != (rows,)]
    wrong += [n for n in ("matrix", "offset", "directions") if not np.isfinite(arrays[n]).all()]
    if wrong:
        raise ValueError(
            f"expected a whole correction in {path}, got {', '.join(dict.fromkeys(wrong))} that do not fit: "
            "the file was edited; hf-robust spufix fit writes it anew"
        )


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _short(digest: str) -> int:
    return int(digest[:16], 16)
