"""Which models of a table the data can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .leaderboard import Result, is_whole, line_key
from .style import LineKey

EXPLAINED = (
    "Rank: models whose 95 % interval overlaps that of the best of their group share its rank, marked =; the data "
    "cannot tell them apart. Where a value has no interval, no rank is claimed."
)


def tie_groups(rows: Sequence[Result]) -> list[list[Result]]:
    """The rows, best value first, cut into groups whose intervals all overlap the interval of the group's first row.

    Every row needs a value and a ci95. Intervals of two models on the same pictures overlap more often than a paired
    comparison would find no difference: ties are claimed too often rather than too seldom.
    """
    groups: list[list[Result]] = []
    for row in sorted(rows, key=lambda r: (-r["value"], *line_key(r))):
        if groups and row["ci95"][1] >= groups[-1][0]["ci95"][0]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def ranks(rows: Sequence[Result]) -> Mapping[LineKey, str]:
    """The rank of each model by its headline value, "2=" where it is shared; models without an interval have none."""
    own = [r for r in rows if r["headline"] and is_whole(r) and r["value"] is not None]
    if len(own) < 2 or any(r["ci95"] is None for r in own):
        return {}
    texts, place = {}, 1
    for group in tie_groups(own):
        for row in group:
            texts[line_key(row)] = f"{place}=" if len(group) > 1 else str(place)
        place += len(group)
    return texts
