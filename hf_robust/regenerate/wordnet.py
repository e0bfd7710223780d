"""WordNet as far as class lists need it: which class lies above or below which, and what the classes are called."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from .stage import StageError

_WNID = re.compile(r"n\d{8}")
_WHERE = "wordnet.is_a.txt of the ImageNet project ('parent child' a line) or data.noun of WordNet 3.0"
_HYPERNYMS = ("@", "@i")


@dataclass(frozen=True)
class Hierarchy:
    """The is-a relation between classes, both ways, by WordNet id."""

    parents: Mapping[str, frozenset[str]]
    children: Mapping[str, frozenset[str]]

    def above(self, wnids: Iterable[str]) -> set[str]:
        """Every hypernym, direct or not, of these classes; not the classes themselves unless one lies above another."""
        return _reached(self.parents, wnids)

    def below(self, wnids: Iterable[str]) -> set[str]:
        """Every hyponym, direct or not."""
        return _reached(self.children, wnids)

    def __contains__(self, wnid: str) -> bool:
        return wnid in self.parents or wnid in self.children


def _reached(steps: Mapping[str, frozenset[str]], start: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    ahead = [step for wnid in start for step in steps.get(wnid, ())]
    while ahead:
        wnid = ahead.pop()
        if wnid not in seen:
            seen.add(wnid)
            ahead += steps.get(wnid, ())
    return seen


def read_hierarchy(path: Path) -> Hierarchy:
    """The hierarchy in `wordnet.is_a.txt`, or in WordNet's own `data.noun`.

    Ids are those of WordNet 3.0, as in ImageNet: other versions number their synsets differently. StageError where the
    file is neither, naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StageError(f"expected {_WHERE}, got {str(path)!r}: {error}") from error
    is_database = any(line[:1] == " " or line[8:9] == " " for line in lines[:1])
    pairs = _from_database(lines, path) if is_database else _from_pairs(lines, path)
    parents: dict[str, set[str]] = defaultdict(set)
    children: dict[str, set[str]] = defaultdict(set)
    for parent, child in pairs:
        parents[child].add(parent)
        children[parent].add(child)
    if not parents:
        raise StageError(f"expected {_WHERE}, got no relation in {path}")
    return Hierarchy(*({k: frozenset(v) for k, v in side.items()} for side in (parents, children)))


def _from_pairs(lines: Iterable[str], path: Path) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        words = line.split()
        if len(words) != 2 or not all(_WNID.fullmatch(word) for word in words):
            raise StageError(f"expected {_WHERE}, got {line[:60]!r} in line {number} of {path}")
        yield words[0], words[1]


def _from_database(lines: Iterable[str], path: Path) -> Iterable[tuple[str, str]]:
    """`offset file type words {word id} pointers {symbol offset type place}`, see wndb(5WN), after indented lines."""
    for number, line in enumerate(lines, 1):
        if line.startswith(" "):
            continue
        words = line.partition(" | ")[0].split()
        try:
            first = 4 + 2 * int(words[3], 16)
            ends = range(first + 1, first + 1 + 4 * int(words[first]), 4)
            pointers = [tuple(words[i : i + 3]) for i in ends]
            child = f"n{int(words[0]):08d}"
        except (IndexError, ValueError) as error:
            raise StageError(f"expected {_WHERE}, got {line[:60]!r} in line {number} of {path}") from error
        yield from ((f"n{target}", child) for symbol, target, part in pointers if symbol in _HYPERNYMS and part == "n")


@cache
def relatives() -> frozenset[str]:
    """The classes of ImageNet-21k and -22k that lie above or below a class of ImageNet-1k, by WordNet 3.0.

    >>> "n02084071" in relatives(), "n07613815" in relatives()  # dog is above 118 breeds; jello is related to none
    (True, False)
    """
    text = (files("hf_robust") / "assets" / "imagenet_1k_relatives.txt").read_text(encoding="utf-8")
    return frozenset(text.split())


@cache
def lemmas() -> Mapping[str, str]:
    """WordNet id -> its lemmas joined by underscores, as in the file names of ImageNet-O; for 21,843 classes.

    From timm's list; ImportError where timm is missing.

    >>> lemmas()["n07613815"]
    'jello_Jell-O'
    """
    spec = find_spec("timm")  # the folder only: importing timm would import torch
    if spec is None or not spec.submodule_search_locations:
        raise ImportError('the names of classes outside ImageNet-1k are timm\'s: pip install "hf-robust[run]"')
    path = Path(spec.submodule_search_locations[0], "data", "_info", "imagenet_synset_to_lemma.txt")
    pairs = (line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line)
    return {wnid: re.sub(r"[\s,]+", "_", text.strip()).replace("/", "-") for wnid, text in pairs}
