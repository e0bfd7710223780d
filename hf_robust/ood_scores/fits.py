"""What a fit is, and the check that it never saw a row that is scored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Fit:
    """What a score learned from the rows of its fit source.

    score     the score that it belongs to.
    rows      how many rows it was made from.
    settings  every option of the fit, defaults included.
    arrays    name -> array; the same bytes whenever the same rows are fitted again on the same machine.
    """

    score: str
    rows: int
    settings: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def sha256(self) -> str:
        """SHA-256 over the names, types, shapes and bytes of the arrays: two equal fits have one hash."""
        digest = hashlib.sha256(self.score.encode())
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(self.arrays[name])
            digest.update(f"{name}:{array.dtype.str}:{array.shape}:".encode())
            digest.update(array.data)
        return digest.hexdigest()


def refuse_overlap(
    fit_ids: Sequence[str],
    fit_sha256: Sequence[str | None],
    ids: Sequence[str],
    sha256: Sequence[str | None],
) -> None:
    """Nothing, where no fit row is also scored; ValueError with the count and the first shared row otherwise.

    Rows are the same when they share an id or an image's SHA-256; an unknown SHA-256 (None or "") matches nothing.

    >>> refuse_overlap(["a"], [None], ["b"], [None])
    """
    for left, right, what in ((fit_ids, fit_sha256, "fit_sha256"), (ids, sha256, "sha256")):
        if len(left) != len(right):
            raise ValueError(f"expected one entry of {what} for each id, got {len(right)} for {len(left)} ids")
    known_ids, known_images = set(fit_ids), {digest for digest in fit_sha256 if digest}
    shared = [i for i, digest in zip(ids, sha256, strict=True) if i in known_ids or digest in known_images]
    if shared:
        raise ValueError(
            f"expected fit rows that are not scored, got {len(shared)} of {len(ids)} scored rows in the fit source, "
            f"the first {shared[0]!r}: fit on other pictures, such as imagenet-train"
        )
