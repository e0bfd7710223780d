"""What must be said beside the numbers, said once: the marks, the notes, the protocol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..scoring.people import is_people
from .leaderboard import FAILED_IMAGES, INCOMPLETE, SUBSET, Result, line_key, line_names, marks, metric_name, plain

_TITLES = {
    INCOMPLETE: "incomplete: not all pictures of the official data were evaluated",
    SUBSET: "subset: only a sample was evaluated (--limit)",
    FAILED_IMAGES: "some pictures could not be read; they are not in n",
}
_COUNTS = {"n_in": "in-distribution", "n_out": "out-of-distribution", "n_control": "control", "n_spurious": "spurious"}
_LONGEST = 160  # characters of a short note; longer ones are lists of classes
_AT_LENGTH = ("data_fingerprints", "data_differences")  # of the protocol; a page for people leaves them to results.json


def legend(rows: Iterable[Result]) -> list[str]:
    """What the marks mean that stand at the values of `rows`, one text a mark."""
    present = {mark for row in rows if row["value"] is not None for mark in marks(row)}
    return [f"{mark} {title}" for mark, title in _TITLES.items() if mark in present]


def notes_of(row: Result) -> list[str]:
    """The notes of a result, with the count of unreadable pictures where no note tells it."""
    notes = [plain(note).rstrip(".") for note in row["notes"]]
    if row["n_failed"] and not any("could not be read" in note for note in notes):
        notes.append(f"{row['n_failed']} pictures could not be read")
    return list(dict.fromkeys(notes))


def brief(note: str) -> str:
    """A note without its example or bracket at the end, and not longer than two lines of a terminal.

    >>> brief("3 of 200 needed classes have fewer than 50 pictures, e.g. 6 (stingray): 0")
    '3 of 200 needed classes have fewer than 50 pictures'
    """
    short = re.sub(r", e\.g\. .*$| \([^()]*\)$", "", note)
    return short if len(short) <= _LONGEST else short[: _LONGEST - 1].rstrip(" ,") + "…"


def remarks(rows: Sequence[Result]) -> list[str]:
    """The notes of `rows` in short, each once, after the benchmarks that it is about; models where it is not all."""
    places: dict[str, dict[str, list[str]]] = {}
    people, rows = [row for row in rows if is_people(row)], [row for row in rows if not is_people(row)]
    benchmarks = dict.fromkeys(str(row["benchmark"]) for row in rows if row["metric"])
    names = line_names(rows)
    for benchmark in benchmarks:
        own = [row for row in rows if row["benchmark"] == benchmark and row["metric"]]
        lines = {line_key(row) for row in own}
        for note in dict.fromkeys(brief(note) for row in own for note in notes_of(row)):
            having = {line_key(row) for row in own if note in map(brief, notes_of(row))}
            places.setdefault(note, {}).setdefault(_which(having, lines, names), []).append(plain(benchmark))
    said = [f"{plain(row['benchmark'])} (people): {brief(note)}" for row in people for note in notes_of(row)]
    return [*(f"{_where(at, len(benchmarks))}: {note}" for note, at in places.items()), *dict.fromkeys(said)]


def _which(having: set[Any], lines: set[Any], names: Mapping[Any, str]) -> str:
    if having == lines:
        return ""
    return f" ({len(having)} of {len(lines)} models)" if len(having) > 1 else f" ({names[next(iter(having))]})"


def _where(at: Mapping[str, Sequence[str]], benchmarks: int) -> str:
    if max(map(len, at.values())) == benchmarks > 2:
        return f"all benchmarks{next(iter(at))}"
    return ", ".join(", ".join(several) + which for which, several in at.items())


def shared_notes(rows: Sequence[Result]) -> tuple[list[str], set[str]]:
    """The notes that all results of one benchmark share, or all of a model (then after its name); and these notes."""
    own = [row for row in rows if row["metric"]]
    names, of_line = line_names(rows), {}
    for key in sorted({line_key(row) for row in own}):
        of_line[key] = [notes_of(row) for row in own if line_key(row) == key]
    texts, said = [], set()
    for note in dict.fromkeys(note for row in own for note in notes_of(row)):
        having = [key for key, lists in of_line.items() if any(note in notes for notes in lists)]
        if all(note in notes for key in having for notes in of_line[key]):
            said.add(note)
            which = "" if len(having) == len(of_line) else f"{', '.join(names[key] for key in having)}: "
            texts.append(which + note)
    return texts, said


def protocol_lines(rows: Sequence[Result]) -> list[str]:
    """The protocol of one benchmark's results: "key: value" where all agree, else "key, of whom: value"."""
    own = [row for row in rows if row["metric"] and row["protocol"]]
    items = [_facts(row["protocol"]) for row in own]
    names = line_names(rows)
    lines = []
    for key in dict.fromkeys(key for item in items for key in item):
        having: dict[str, list[Result]] = {}
        for row, item in zip(own, items, strict=True):
            if key in item:
                having.setdefault(item[key], []).append(row)
        if len(having) == 1 and len(next(iter(having.values()))) == len(own):
            lines.append(f"{key}: {next(iter(having))}")
        else:
            whose = _whose(list(having.values()), names)
            lines += [f"{key}, {who}: {value}" for value, who in zip(having, whose, strict=True)]
    return lines


def _whose(groups: Sequence[Sequence[Result]], names: Mapping[Any, str]) -> list[str]:
    """A name for each group of results: its models if these tell the groups apart, else its metrics, else both."""
    views = (
        lambda row: names[line_key(row)],
        metric_name,
        lambda row: f"{metric_name(row)} of {names[line_key(row)]}",
    )
    labels: list[list[str]] = []
    for view in views:
        labels = [list(dict.fromkeys(map(view, group))) for group in groups]
        every = [label for group in labels for label in group]
        if len(set(every)) == len(every):
            break
    return [", ".join(group) for group in labels]


def _facts(protocol: Mapping[str, Any]) -> dict[str, str]:
    """A protocol as short texts; how pictures are prepared is one phrase a rule, after all else."""
    facts, rules = {}, {}
    for key, value in protocol.items():
        if key == "preprocessing" and isinstance(value, Mapping):
            for role, description in value.items():
                name = description.get("rule", role) if isinstance(description, Mapping) else role
                rules[f"rule {plain(name)}"] = prepared(description)
        elif key not in _AT_LENGTH:
            facts[plain(key).replace("_", " ")] = text_of(value)
    return {**facts, **rules}


def prepared(description: Any) -> str:
    """How a rule prepares a picture, in one phrase.

    >>> prepared({"input_size": [224, 224], "interpolation": "bicubic", "crop_pct": 0.875, "mean": [0.5, 0.5, 0.5]})
    '224 px, bicubic, crop 0.875, mean 0.5 0.5 0.5'
    """
    if not isinstance(description, Mapping):
        return text_of(description)
    known = {key: value for key, value in description.items() if value is not None}
    size, resize = known.get("input_size"), known.get("resize", {})
    parts = [f"{size[0]} px" if size[0] == size[-1] else f"{size[0]} × {size[-1]} px"] if size else []
    if "shorter_side" in resize:
        parts.append(f"shorter side to {resize['shorter_side']}, centre crop")
    elif resize:
        parts.append("resized without a crop")
    parts += [str(known[key]) for key in ("processor", "interpolation") if key in known]
    parts += [f"crop {known['crop_pct']:.4g}"] if "crop_pct" in known else []
    parts += [f"{known['crop_mode']} crop"] if known.get("crop_mode", "center") != "center" else []
    parts += ["not antialiased"] if known.get("antialias") is False else []
    parts += [f"{key} {text_of(known[key])}" for key in ("mean", "std") if key in known]
    parts += ["EXIF orientation applied"] if known.get("exif") == "apply" else []
    return plain(", ".join(parts)) or "not described"


def text_of(value: Any) -> str:
    """A value of a protocol or of details as people write it: no quotes, braces or brackets.

    >>> text_of({"control": 12, "test": 24})
    'control 12, test 24'
    """
    if isinstance(value, Mapping):
        pairs = ((plain(key).replace("_", " "), item) for key, item in value.items())
        return ", ".join(f"{key}{' = ' if isinstance(item, str) else ' '}{text_of(item)}" for key, item in pairs)
    if isinstance(value, list | tuple):
        numbers = all(isinstance(item, int | float) for item in value)
        return (" " if numbers else ", ").join(map(text_of, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.4g}" if isinstance(value, float) else plain(value)


def details_of(row: Result) -> str:
    """How a value was estimated and on how many pictures of each kind, from its details."""
    details = dict(row.get("details") or {})
    estimator = text_of(details.pop("estimator", ""))
    if "base_rate" in estimator and "base_rate" in details:
        estimator = estimator.replace("base_rate", f"base rate {text_of(details.pop('base_rate'))}")
    counts = [f"{details.pop(key)} {of}" for key, of in _COUNTS.items() if key in details]
    pictures = f"{', '.join(counts)} pictures" if counts else ""
    rest = {key: value for key, value in details.items() if key != "left_out"}  # that is among the notes
    return "; ".join(filter(None, [estimator, pictures, text_of(rest)]))


def chance_of(row: Result) -> str:
    """The value of a guess, where the estimator names it; "" where it does not."""
    details = row.get("details") or {}
    estimator = str(details.get("estimator", ""))
    if "chance = base_rate" in estimator and "base_rate" in details:
        return f"{details['base_rate']:.4f}"
    named = re.search(r"chance (\d[\d.]*)", estimator)
    return f"{float(named[1]):.4f}" if named else ""
