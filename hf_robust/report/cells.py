"""Tables of the page as plain data, and a result as the text of a cell."""

from __future__ import annotations

from dataclasses import dataclass

from .leaderboard import Result, is_proportion, marks, plain


@dataclass(frozen=True)
class Number:
    """One cell: the value as text, below it the interval; `why` where there is none."""

    text: str
    interval: str = ""
    why: str = ""


@dataclass(frozen=True)
class Row:
    """One line of a table: a model by its number on the page, or by its name people (number 0) or whatever (None).

    ours  False for what others published.
    """

    number: int | None
    name: str
    rank: str
    cells: tuple[Number, ...]
    ours: bool = True


@dataclass(frozen=True)
class Table:
    """Models, or what `first` says, against metrics (or splits), with a legend of the columns.

    note    stands below it.   folded  a long one, shown when asked for.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    ranked: bool
    first: str = "Model"
    note: str = ""
    folded: bool = False

    @property
    def mixed(self) -> bool:
        """Whether ours stand among others'."""
        return any(not row.ours for row in self.rows)


def percent(row: Result) -> str:
    """A value as a person reads it: per cent for proportions, else a fraction."""
    metric = str(row["metric"])
    if metric.endswith("_drop"):
        return f"{100 * row['value']:.1f} points{marks(row)}"
    if is_proportion(metric) or metric in ("aupr", "auroc"):
        return f"{100 * row['value']:.1f} %{marks(row)}"
    return f"{row['value']:.3f}{marks(row)}"


def number(row: Result | None) -> Number:
    """The cell of a result."""
    if row is None:
        return Number("—", why="not evaluated")
    if row["value"] is None:
        return Number("—", why=plain(row["reason"] or "undefined"))
    low_high = row["ci95"]
    if not low_high:
        return Number(percent(row))
    scaled = is_proportion(str(row["metric"])) or row["metric"] in ("aupr", "auroc")
    text = "–".join(f"{100 * end:.1f}" if scaled else f"{end:.3f}" for end in low_high)
    return Number(percent(row), text)
