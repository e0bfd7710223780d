"""The leaderboard as a LaTeX table in the style of the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from .leaderboard import Cell, Column, Result, leaderboard, line_names, ordered, plain
from .notes import legend, remarks

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    '"': r"\textquotedbl{}", "†": r"\dag{}", "‡": r"\ddag{}", "§": r"\S{}", "—": "---", "–": "--", "…": r"\dots{}",
    "[": "{[}", "]": "{]}",
}  # fmt: skip


def tex(text: object) -> str:
    r"""`text` as LaTeX that prints exactly these characters.

    >>> tex("top1_accuracy 5%")
    'top1\\_accuracy 5\\%'
    """
    return "".join(_SPECIAL.get(c, c) for c in plain(text))


def latex(results: Sequence[Result]) -> str:
    """The headline numbers of all models in per cent, with intervals, notes below; needs \\usepackage{booktabs}."""
    rows = ordered(results)
    board = leaderboard(rows)
    names = line_names(rows)
    heads = [name for column in board.columns for name in _heads(column)]
    text = [
        r"% needs \usepackage{booktabs} and, for \textquotedbl, \usepackage[T1]{fontenc}",
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
        " & ".join(["Model", *heads]) + r" \\",
        r"\midrule",
    ]
    for line in board.lines:
        cells = [tex(names[line.model, line.preprocessing, line.run])]
        for column, cell in zip(board.columns, line.cells, strict=True):
            cells += _values(column, cell, people=line.people)
        text.append(" & ".join(cells) + r" \\")
    below = [f"({i}) {note.text}" for i, note in enumerate(board.footnotes, 1)] + [*legend(rows), *remarks(rows)]
    caption = "Headline values in per cent, in brackets the 95 % interval."
    caption = " ".join([caption, *(f"{note.rstrip('.')}." for note in below)])
    text += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{tex(caption)}}}", r"\end{table}"]
    return "\n".join(text) + "\n"


def _heads(column: Column) -> list[str]:
    first = f"{column.benchmark} {column.metric}".strip()
    return [tex(first), *([tex(column.companion)] if column.companion else [])]


def _values(column: Column, cell: Cell, *, people: bool) -> list[str]:
    if cell.value is None:
        value = tex(f"— ({cell.footnote})") if cell.footnote else ""
    else:
        ends = f" [{100 * cell.interval[0]:.1f}, {100 * cell.interval[1]:.1f}]" if cell.interval else ""
        value = tex(f"{100 * cell.value:.1f}{cell.marks}{ends}")
    if not column.companion:
        return [value]
    nothing = "" if people else "---"
    return [value, nothing if cell.companion is None else f"{100 * cell.companion:.1f}"]
