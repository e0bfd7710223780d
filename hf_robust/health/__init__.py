"""How sound a set of pictures is: duplicates, leaks, broken files, balance, and what stored predictions say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..data import Rows
from .answers import AGREEMENT, Answers, answers_of, read_years
from .balance import Balance, balance
from .lookalikes import RADIUS, Group, Leak, check_radius, leaks, near, same_bytes
from .page import summary, write_page
from .pictures import BITS, Looks, look_at

__all__ = [
    "AGREEMENT", "BITS", "RADIUS", "Answers", "Balance", "Group", "Health", "Leak", "Looks", "answers_of", "balance",
    "check_radius", "health_of", "leaks", "look_at", "near", "read_years", "record", "same_bytes", "summary",
    "write_page",
]  # fmt: skip


@dataclass(frozen=True)
class Health:
    """Everything that was found, by position in the set.

    leaks    of each reference by its name.
    answers  None where no predictions were given.
    """

    dataset: str
    pictures: int
    complete: bool
    differences: tuple[str, ...]
    faults: tuple[tuple[int, str], ...]
    same: tuple[Group, ...]
    near: tuple[Group, ...]
    radius: int
    leaks: tuple[tuple[str, tuple[Leak, ...]], ...]
    balance: Balance
    answers: Answers | None


def health_of(
    rows: Rows,
    looks: Looks,
    references: Sequence[tuple[Rows, Looks]],
    answers: Answers | None,
    *,
    radius: int = RADIUS,
) -> Health:
    """What is found in the pictures of a set, beside references that it must not share any with.

    radius  differing bits of BITS up to which two pictures are near-duplicates; ValueError as `check_radius`.
    """
    check_radius(radius)
    return Health(
        rows.dataset,
        len(rows.table),
        rows.complete,
        rows.differences,
        looks.faults,
        same_bytes(looks),
        near(looks, radius),
        radius,
        tuple((other.dataset, leaks(looks, seen, radius)) for other, seen in references),
        balance(rows),
        answers,
    )


def record(found: Health, rows: Rows, references: Sequence[Rows]) -> dict[str, Any]:
    """All findings as JSON values, positions replaced by ids."""
    ids = rows.table.ids
    values = asdict(found)
    values["faults"] = [{"id": ids[i], "fault": fault} for i, fault in found.faults]
    for name in ("same", "near"):
        values[name] = [{**asdict(group), "members": [ids[i] for i in group.members]} for group in getattr(found, name)]
    values["leaks"] = [
        {
            "id": ids[leak.position],
            "reference": other.dataset,
            "reference_id": other.table.ids[leak.reference_position],
            "same_bytes": leak.same_bytes,
            "distance": leak.distance,
            "mirrored": leak.mirrored,
        }
        for other, (_, there) in zip(references, found.leaks, strict=True)
        for leak in there
    ]
    values["balance"] |= {"ratio": found.balance.ratio}
    if found.answers is not None:
        values["answers"] |= {name: [ids[i] for i in getattr(found.answers, name)] for name in ("solved", "never")}
        suspects = [(asdict(s), ids[s.position]) for s in found.answers.suspects]
        values["answers"]["suspects"] = [
            {"id": key, **{k: v for k, v in s.items() if k != "position"}} for s, key in suspects
        ]
    return values
