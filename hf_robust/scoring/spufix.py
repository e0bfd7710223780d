"""A correction of the logits, applied to stored predictions before anything is scored: no model, no pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..predictions.read import has_head, read_head
from ..spurious.spufix import check_strength
from ..spurious.spufix_files import FittedSpuFix, read_spufix
from ..spurious.training import head_hash, head_name
from .load import Loaded, load
from .rows import Asked


@dataclass(frozen=True)
class Correction:
    """A fitted SpuFix and the strengths, from 0 to 1, that are scored beside the uncorrected logits."""

    fitted: FittedSpuFix
    strengths: tuple[float, ...] = (1.0,)

    def facts(self, strength: float) -> Mapping[str, Any]:
        """What a result says of it."""
        return {"sha256": self.fitted.sha256, "strength": strength}

    def load(self, asked: Asked, strength: float) -> Loaded:
        """The roles of a benchmark with corrected logits.

        ValueError where it was fitted to another model or on rows that are scored, or the run was corrected already;
        LookupError where the run stores no head or no features.
        """
        _fits(asked, self.fitted)

        def correct(logits: NDArray[np.float32], features: NDArray[np.float32]) -> NDArray[np.float32]:
            return self.fitted.fix.correct(logits, features, strength=strength).astype(np.float32, copy=False)

        loaded = load(asked.run, asked.benchmark, asked.mode, correct=correct)
        for outputs in loaded.roles.values():
            self.fitted.refuse_fit_rows(outputs)
        return loaded


def correction_of(file: Path | None, strengths: Sequence[float] = (1.0,)) -> Correction | None:
    """The correction in a file that `spufix fit` wrote, checked; None for no file."""
    for strength in strengths:
        check_strength(strength)
    return None if file is None else Correction(read_spufix(file), tuple(strengths))


def _fits(asked: Asked, fitted: FittedSpuFix) -> None:
    if asked.plan.get("spufix") is not None:
        raise ValueError(f"expected uncorrected logits in {asked.run.name}, got a run of `evaluate --spufix`: score it")
    head = read_head(asked.run, head_name(asked.plan))
    if head is None:
        raise LookupError(f"expected the linear head in {asked.run}, got none: `evaluate` again with --features")
    listed = asked.benchmark.zero_shot
    if listed is not None and has_head(asked.run, listed.head):
        raise ValueError(
            f"expected logits of the head that the correction was fitted to, got the zero-shot head {listed.head!r} of "
            f"{len(listed.classes)} classes on {asked.benchmark.name}: it stays as it is"
        )
    model = str(asked.plan["model"])
    fitted.refuse_other(weights=str(asked.plan["weights"]), head=head_hash(head), model=model)
