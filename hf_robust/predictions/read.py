"""From the parts of a source to the arrays that measures look at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..labels import LabelSpace
from ..metrics import log_sum_exp
from ..schema import (
    EMBEDDINGS,
    ERROR,
    FEATURES,
    ID,
    IMAGE_SHA256,
    LABELS,
    LOGITS,
    OUTPUT_COLUMNS,
    Outputs,
    RowStore,
)
from .parts import part_path, present_parts
from .plan import PLAN_FILE, DamagedError, SourcePlan, is_texts, read_json, write_json
from .temporary import renamed

LABEL_SPACE_FILE = "label_space.json"
HEADS_FOLDER = "heads"

# logits over all outputs (N, K), features (N, D) -> other logits (N, K)
Correct = Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]


@dataclass(frozen=True)
class SourceRead:
    """The predictions of a source as far as they are there.

    failed        (id, reason) of the rows whose picture could not be read; they are not in `outputs`.
    rows_by_part  rows of each part that was read.
    absent        indices of the parts that were wanted and are not there yet.
    """

    plan: SourcePlan
    outputs: Outputs
    failed: tuple[tuple[str, str], ...]
    rows_by_part: Mapping[int, int]
    absent: tuple[int, ...]


@dataclass(frozen=True)
class HeadWeights:
    """A stored linear head: float32 (outputs, features) and (outputs,)."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


def write_label_space(run: Path, space: LabelSpace) -> None:
    """Store which class each output column stands for."""
    write_json(run / LABEL_SPACE_FILE, {"name": space.name, "wnids": list(space.wnids)})


def read_label_space(run: Path) -> LabelSpace:
    """The classes of the output columns of a run."""
    values = read_json(run / LABEL_SPACE_FILE, ["name", "wnids"])
    if not isinstance(values["name"], str) or not is_texts(values["wnids"]):
        raise DamagedError(
            f"expected a name and WordNet ids in {run / LABEL_SPACE_FILE}, got others: "
            "run `evaluate` again, which writes that file anew"
        )
    space = LabelSpace(values["name"], tuple(values["wnids"]))
    plan = run / PLAN_FILE
    if plan.is_file() and read_json(plan, ["label_space"])["label_space"] != label_space_hash(space):
        raise DamagedError(
            f"expected the classes of {plan} in {run / LABEL_SPACE_FILE}, got others: "
            "every output would stand for a wrong class; run `evaluate` again, which writes that file anew"
        )
    return space


def label_space_hash(space: LabelSpace) -> str:
    """SHA-256 of the classes of the outputs, in order."""
    return hashlib.sha256("\n".join(space.wnids).encode()).hexdigest()


def write_heads(run: Path, heads: Mapping[str, HeadWeights]) -> None:
    """Store linear heads, a file each, so that corrections and zero-shot class lists need no model."""
    (run / HEADS_FOLDER).mkdir(parents=True, exist_ok=True)
    for name, head in heads.items():
        tensors = {"weight": np.ascontiguousarray(head.weight), "bias": np.ascontiguousarray(head.bias)}
        with renamed(_head_file(run, name)) as temporary:
            save_file(tensors, temporary, metadata={"sha256": _head_hash(head)})


def has_head(run: Path, name: str) -> bool:
    """Whether the run stores a head of that name."""
    return _head_file(run, name).exists()


def read_head(run: Path, name: str) -> HeadWeights | None:
    """The stored head of that name; None where the run has none, DamagedError where it cannot be read."""
    if not has_head(run, name):
        return None
    path = _head_file(run, name)
    try:
        with safe_open(path, framework="numpy") as file:
            head = HeadWeights(file.get_tensor("weight"), file.get_tensor("bias"))
            written = (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError) as error:
        raise DamagedError(_no_head(path, f"a file that cannot be read ({error})")) from error
    if head.weight.ndim != 2 or head.bias.shape != head.weight.shape[:1]:
        raise DamagedError(_no_head(path, f"shapes {head.weight.shape} and {head.bias.shape}"))
    if not (np.isfinite(head.weight).all() and np.isfinite(head.bias).all()):
        raise DamagedError(_no_head(path, "values that are not finite"))
    if written != _head_hash(head):
        raise DamagedError(_no_head(path, "other values than were written"))
    return head


def _head_hash(head: HeadWeights) -> str:
    digest = hashlib.sha256()
    for values in (head.weight, head.bias):
        digest.update(f"{values.dtype.str}:{values.shape}:".encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _no_head(path: Path, got: str) -> str:
    return f"expected the linear head that `evaluate` wrote in {path}, got {got}: remove the file and run again"


def _head_file(run: Path, name: str) -> Path:
    return run / HEADS_FOLDER / f"{name}.safetensors"


def read_source(
    folder: Path,
    wanted: Collection[int] | None = None,
    *,
    parts: Collection[int] | None = None,
    head: str | None = None,
    extra: Collection[str] = (),
    correct: Correct | None = None,
    on_disk: bool = False,
) -> SourceRead:
    """Outputs of the rows of the classes `wanted` (None: all) in part order.

    parts  only the parts of these indices: one after the other, a source of any size fits into memory.
    head   name of the zero-shot head whose logits are wanted; None: the logits over the 1,000 ImageNet classes.
    extra  further output columns to read where the run holds them, such as "features".
    correct  what becomes of the logits over all outputs before anything else is made of them, from the stored features
             (a zero-shot run's embeddings); LookupError where the run holds none.
    on_disk  `logit_rows` lie in a temporary file, so that memory does not grow with the number of pictures.
    """
    plan = SourcePlan.read(folder)
    by_class = plan.cut == "class"
    named = [i for i, _, _ in plan.parts if parts is None or i in parts]
    asked = [i for i in named if wanted is None or not by_class or i in wanted]
    columns = read_label_space(folder.parent).imagenet_1k_columns()
    present = set(present_parts(folder, plan, set(asked)))
    pieces, failed, rows = _Pieces(on_disk), [], {}
    weights = read_head(folder.parent, head or "imagenet-1k")
    for i in (i for i in asked if i in present):
        table = pq.read_table(part_path(folder, i))
        rows[i] = len(table)
        errors = table[ERROR].to_pylist()
        failed += [(key, error) for key, error in zip(table[ID].to_pylist(), errors, strict=True) if error is not None]
        pieces.append(_outputs(table.filter(pa.array([e is None for e in errors])), columns, weights, extra, correct))
    absent = tuple(i for i in asked if i not in rows)
    outputs = pieces.joined()
    if wanted is not None and not by_class:  # the parts of such a set hold rows of every class
        outputs = outputs.select(np.asarray(np.isin(outputs.labels, list(wanted)).any(axis=1)))
    return SourceRead(plan, outputs, tuple(failed), rows, absent)


def _outputs(
    table: pa.Table,
    columns: NDArray[np.int64],
    head: HeadWeights | None,
    extra: Collection[str],
    correct: Correct | None,
) -> Outputs:
    if not len(table):  # every picture of the part failed: no columns to read
        everything = logits = np.zeros((0, len(columns) if head is None else len(head.bias)), np.float32)
    elif EMBEDDINGS in table.column_names:
        if head is None:
            raise LookupError("the run holds embeddings but no head for these classes: run `evaluate` again")
        everything = logits = _corrected(table, _matrix(table[EMBEDDINGS]) @ head.weight.T + head.bias, correct)
    else:
        everything = _corrected(table, _matrix(table[LOGITS]), correct)
        logits = np.full((len(table), len(columns)), -np.inf, dtype=np.float32)
        logits[:, columns >= 0] = everything[:, columns[columns >= 0]]
    own = {ID, IMAGE_SHA256, LABELS, ERROR, *OUTPUT_COLUMNS}
    groups = {name: np.array(table[name].to_pylist()) for name in table.column_names if name not in own}
    labels = pad(table[LABELS].to_pylist())
    ids, sha256 = tuple(table[ID].to_pylist()), tuple(table[IMAGE_SHA256].to_pylist())
    more = {name: _extra(table, name) for name in extra if len(table) and name in table.column_names}
    return Outputs(ids, logits, log_sum_exp(everything), labels, groups, sha256, more)


def _corrected(table: pa.Table, logits: NDArray[np.float32], correct: Correct | None) -> NDArray[np.float32]:
    if correct is None:
        return logits
    column = next((name for name in (EMBEDDINGS, FEATURES) if name in table.column_names), None)
    if column is None:
        raise LookupError("the run holds no features, which a correction reads: `evaluate` again with --features")
    return correct(logits, _matrix(table[column]))


def _extra(table: pa.Table, name: str) -> NDArray[np.float32]:
    scalar = pa.types.is_floating(table[name].type)
    return np.asarray(table[name].combine_chunks()) if scalar else _matrix(table[name])


def _matrix(column: pa.ChunkedArray) -> NDArray[np.float32]:
    values = column.combine_chunks()
    return np.asarray(values.flatten()).reshape(len(values), -1)


def pad(labels: list[list[int]]) -> NDArray[np.int64]:
    """Ragged labels as int64 (N, L), padded with -1, L at least 1.

    >>> pad([[3], [1, 2], []]).tolist()
    [[3, -1], [1, 2], [-1, -1]]
    """
    width = max([1, *map(len, labels)])
    return np.array([[*row, *[-1] * (width - len(row))] for row in labels], dtype=np.int64).reshape(-1, width)


class _Pieces:
    """The outputs of part after part; their logits in memory or in a temporary file."""

    def __init__(self, on_disk: bool) -> None:
        self._all: list[Outputs] = []
        self._on_disk = on_disk
        self._store: RowStore | None = None

    def append(self, piece: Outputs) -> None:
        if self._on_disk and len(piece):
            logits = np.asarray(piece.logit_rows, dtype=np.float32)
            self._store = self._store or RowStore(logits.shape[1])
            self._store.append(logits)
            piece = replace(piece, logit_rows=np.zeros((0, logits.shape[1]), np.float32))
        self._all.append(piece)

    def joined(self) -> Outputs:
        return _join(self._all, self._store)


def _join(pieces: list[Outputs], store: RowStore | None) -> Outputs:
    pieces = [p for p in pieces if len(p)] or pieces[:1]
    if not pieces:
        empty: dict[str, NDArray[Any]] = {}
        return Outputs((), np.zeros((0, 1000), np.float32), np.zeros(0), np.zeros((0, 1), np.int64), empty)
    width = max(p.labels.shape[1] for p in pieces)
    labels = [np.pad(p.labels, ((0, 0), (0, width - p.labels.shape[1])), constant_values=-1) for p in pieces]
    return Outputs(
        tuple(i for p in pieces for i in p.ids),
        np.concatenate([p.logits for p in pieces]) if store is None else store.rows(),
        np.concatenate([p.log_normaliser for p in pieces]),
        np.concatenate(labels),
        {name: np.concatenate([p.groups[name] for p in pieces]) for name in pieces[0].groups},
        tuple(s for p in pieces for s in p.sha256),
        {name: np.concatenate([p.extra[name] for p in pieces]) for name in pieces[0].extra},
    )
