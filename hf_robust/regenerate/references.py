"""Pictures that a new set must not hold: folders, built data sets, or the hashes that an earlier release published."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..predictions.parts import put_tables, read_footer
from ..predictions.plan import read_json
from .collect import COLLECT, CollectSettings
from .fingerprint import EMBEDDING, FINGERPRINT, HASH, MIRRORED, FingerprintSettings
from .ledger import KEEP, ROW_ID, Ledger
from .pool import BUILT
from .pool_labels import NONE
from .stage import STAGE_FILE, StageError, Work, run_stage

SHA256, NAME = "image_sha256", "name"
_FOLDER = "references"
_ENDING = ".hashes.parquet"
_BUFFER = 1 << 16  # bytes read at a time; without it a column is read whole


@dataclass(frozen=True)
class Reference:
    """The marks of one set of pictures: what decides them, and their tables, one in memory at a time.

    A table has the columns id, image_sha256, phash, phash_mirrored and, where the fingerprints have them, embedding.
    """

    facts: Any
    rows: int
    ledger: Ledger | None
    file: Path | None

    def tables(self) -> Iterator[pa.Table]:
        """The marks of the readable pictures, in order."""
        if self.file is not None:
            stream = pq.ParquetFile(self.file, buffer_size=_BUFFER, pre_buffer=False)
            yield from (pa.Table.from_batches([batch]) for batch in stream.iter_batches(1000))
            stream.close()
        elif self.ledger is not None:
            yield from _marks(self.ledger)


def fingerprinted(ledger: Ledger) -> dict[str, Any]:
    """The record of the stage `fingerprint` of a ledger: settings and facts; StageError where it has none."""
    for stage in ledger.stages:
        if stage.name == FINGERPRINT.name:
            return read_json(stage.folder / STAGE_FILE, ["settings", "facts"])
    raise StageError("expected the stage 'fingerprint' before 'duplicates', got none: put it into the recipe")


def open_reference(text: str, work: Work) -> Reference:
    """The marks of a folder, shards, hf://…, the name of a built data set, or a file that `write_hashes` wrote.

    Pictures are collected and fingerprinted like the candidates, by all processes together, in the folder `references`
    of the regeneration. StageError where there is nothing of that name, or a file's marks were made otherwise.
    """
    made_by = fingerprinted(work.ledger)
    if text.endswith(_ENDING):
        return _open_file(Path(text).expanduser(), made_by)
    is_path = not text.strip() or os.sep in text or text.startswith(("~", "."))
    absent = not text.strip() or not Path(text).expanduser().exists()
    if is_path and absent and not text.startswith("hf://"):
        raise StageError(f"expected pictures that the new set must not hold at {text!r}, got nothing: check the path")
    pool = text if text.startswith(("hf://", BUILT)) or Path(text).expanduser().exists() else f"{BUILT}{text}"
    own = replace(work, out=work.out / _FOLDER / _slug(pool), rows=None, candidates=None)
    settings = CollectSettings(pool=pool, label_by=NONE, min_side=1, follow_links=True)
    collected = run_stage(COLLECT, settings, own)
    kinds = FingerprintSettings(**made_by["settings"])
    ledger = run_stage(FINGERPRINT, kinds, replace(own, rows=collected))
    return Reference({"pool": text, "key": ledger.key}, ledger.kept(), ledger, None)


def _slug(pool: str) -> str:
    return hashlib.sha256(pool.encode()).hexdigest()[:12]


def _made_by(record: dict[str, Any]) -> dict[str, Any]:
    """What has to be equal for marks to be comparable."""
    settings, facts = record["settings"], record["facts"]
    return {"hash_side": settings["hash_side"], "embedding": settings["embedding"], "weights": facts.get("weights")}


def _open_file(path: Path, made_by: dict[str, Any]) -> Reference:
    footer = read_footer(path)
    if footer is None or "made_by" not in footer:
        raise StageError(f"expected hashes as write_hashes puts them down, got none at {path}: check the path")
    wanted = _made_by(made_by)
    differing = [name for name, value in wanted.items() if footer["made_by"].get(name) != value]
    if differing:
        name = differing[0]
        raise StageError(
            f"expected hashes made with {name} {wanted[name]!r}, got {footer['made_by'].get(name)!r} in {path}: "
            "change the settings of 'fingerprint', or give the pictures"
        )
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Reference({"file": digest}, int(footer["rows"]), None, path)


def _marks(ledger: Ledger) -> Iterator[pa.Table]:
    columns = [n for n in (SHA256, NAME, HASH, MIRRORED, EMBEDDING) if n in ledger.columns]
    for table in ledger.tables(tuple(columns)):
        kept = table.filter(table[KEEP])
        ids = kept[NAME] if NAME in columns else kept[ROW_ID]
        yield pa.table({"id": ids, **{name: kept[name] for name in columns if name != NAME}})


def write_hashes(ledger: Ledger, path: Path) -> int:
    """Write the marks of the kept rows for later releases, which need not have the pictures; returns their number.

    path  ends with .hashes.parquet.
    """
    if not path.name.endswith(_ENDING):
        raise StageError(f"expected a file named *{_ENDING}, got {path.name}")
    rows, tables = ledger.kept(), _marks(ledger)
    first = next(tables)
    footer = {"made_by": _made_by(fingerprinted(ledger)), "rows": rows, "key": ledger.key}
    put_tables(path, first.schema, chain([first], tables), footer)
    return rows


def embeddings_of(table: pa.Table) -> NDArray[np.float16]:
    """The embeddings of a table without nulls: float16 (N, D)."""
    column = table[EMBEDDING].combine_chunks()
    flat: NDArray[np.float16] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(table), -1)
