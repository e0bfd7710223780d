"""What prompts are made of: categories, names of nuisances, templates; ours, or a user's own files."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from string import Formatter

from ..labels import imagenet_1k_index, imagenet_d_categories
from ..models import imagenet_d_prompt_name
from .stage import StageError

KINDS = ("background", "texture", "material")
_COLUMNS = ("folder", "display_name", "imagenet_1k")


@dataclass(frozen=True)
class Subject:
    """A category: its folder in the data set, its name, and every ImageNet-1k index that counts as right."""

    folder: str
    display_name: str
    labels: tuple[int, ...]

    @property
    def prompt_name(self) -> str:
        """The name as in the published zero-shot prompts."""
        return imagenet_d_prompt_name(self.display_name)


@dataclass(frozen=True)
class Nuisances:
    """The nuisances of one kind as they stand in prompts, and the templates of that kind."""

    kind: str
    names: tuple[str, ...]
    templates: tuple[str, ...]


def read_subjects(path: str | None) -> tuple[Subject, ...]:
    """The categories of a CSV file with the columns folder, display_name, imagenet_1k; None: the 113 of ImageNet-D.

    imagenet_1k holds indices or WordNet ids, blanks between. StageError names the line that is wrong.
    """
    if path is None:
        return tuple(Subject(c.folder, c.display_name, c.indices) for c in imagenet_d_categories())
    subjects = tuple(_subject(row, f"line {n} of {path}") for n, row in _csv(path, _COLUMNS))
    _each_once([subject.folder for subject in subjects], f"folder in {path}")
    _each_once([subject.prompt_name for subject in subjects], f"display_name in {path}")
    return subjects


def _subject(row: dict[str, str], where: str) -> Subject:
    folder, name = row["folder"].strip(), row["display_name"].strip()
    if not folder or PurePosixPath(folder).name != folder or "\\" in folder or folder == "..":
        raise StageError(f"expected the name of one folder in {where}, got {folder!r}")
    if not name:
        raise StageError(f"expected a display_name in {where}, got none")
    found = tuple(_class(word, where) for word in row["imagenet_1k"].split())
    if not found or len(set(found)) < len(found):
        raise StageError(f"expected ImageNet-1k classes, each once, in {where}, got {row['imagenet_1k']!r}")
    return Subject(folder, name, found)


def _class(word: str, where: str) -> int:
    if word.isascii() and word.isdigit() and int(word) < 1000:
        return int(word)
    if word not in imagenet_1k_index():
        raise StageError(f"expected an index below 1000 or a WordNet id of ImageNet-1k in {where}, got {word!r}")
    return imagenet_1k_index()[word]


def read_nuisances(kind: str, path: str | None) -> tuple[str, ...]:
    """The names of one kind, ready for prompts; None: ImageNet-D's. Blank lines and lines with # are left out.

    Broden's suffix -s goes and _ becomes a blank, as in the published prompts: dining_room-s is "dining room".
    """
    where = "the list of ImageNet-D" if path is None else path
    if path is None:
        raw = [row["name"] for row in csv.DictReader(_asset("imagenet_d_nuisances.csv")) if row["kind"] == kind]
    else:
        raw = [line for line in _lines(path) if not line.startswith("#")]
    names = [" ".join(name.strip().removesuffix("-s").replace("_", " ").split()) for name in raw]
    names = [name for name in names if name]
    if not names:
        raise StageError(f"expected names of kind {kind!r}, one a line, in {where}, got none")
    _each_once([name.lower() for name in names], f"{kind} in {where}")
    return tuple(names)


def read_templates(path: str | None) -> dict[str, tuple[str, ...]]:
    """The templates of each kind from a CSV file with the columns kind, template; None: ours."""
    if path is None:
        rows = [(n, row) for n, row in enumerate(csv.DictReader(_asset("imagenet_d_templates.csv")), 2)]
    else:
        rows = _csv(path, ("kind", "template"))
    templates: dict[str, tuple[str, ...]] = {}
    for line, row in rows:
        kind, template = row["kind"].strip(), row["template"].strip()
        where = f"line {line} of {path}"
        if kind not in KINDS:
            raise StageError(f"unknown kind of nuisance {kind!r} in {where}; known: {', '.join(KINDS)}")
        _check_template(template, where)
        templates[kind] = (*templates.get(kind, ()), template)
    for kind, chosen in templates.items():
        _each_once(chosen, f"template of kind {kind!r} in {path}")
    return templates


def _check_template(template: str, where: str) -> None:
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(template)]
    except ValueError as error:
        raise StageError(f"expected a template with {{c}} and {{n}} in {where}, got {template!r} ({error})") from error
    named = [field for field in fields if field[0] is not None]
    if {field[0] for field in named} != {"c", "n"} or any(spec or conversion for _, spec, conversion in named):
        raise StageError(f"expected a template with {{c}} and {{n}} and no other field in {where}, got {template!r}")


def _csv(path: str, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(_lines(path))
    missing = [name for name in columns if name not in _header(reader, path)]
    if missing:
        raise StageError(f"expected the columns {', '.join(columns)} in {path}, got none called {missing[0]!r}")
    try:
        rows = [(reader.line_num, row) for row in reader if any(row.values())]
    except csv.Error as error:
        raise StageError(f"expected a CSV in {path}, got {error} in line {reader.line_num}") from error
    for number, row in rows:
        if any(row[name] is None for name in columns) or None in row:
            raise StageError(f"expected {len(reader.fieldnames or ())} fields in line {number} of {path}, got others")
    if not rows:
        raise StageError(f"expected lines below the header of {path}, got none")
    return rows


def _header(reader: csv.DictReader[str], path: str) -> Sequence[str]:
    try:
        return reader.fieldnames or ()
    except csv.Error as error:
        raise StageError(f"expected a CSV in {path}, got {error} in line 1") from error


def _lines(path: str) -> list[str]:
    try:
        return [line.strip() for line in Path(path).read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(f"expected a text file at {path}, got {type(error).__name__}: {error}") from error


def _asset(name: str) -> list[str]:
    return (files("hf_robust") / "assets" / name).read_text(encoding="utf-8").splitlines()


def _each_once(names: Sequence[str], what: str) -> None:
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise StageError(f"expected each {what} once, got {doubled[0]!r} more than once")
