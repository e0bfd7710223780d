"""Two-option questions about a picture: their wording, which option an answer names, and the shares made of that.

The protocol of ImageNet-D for vision-language models (arXiv 2403.18775). Its released scorer looks for the names of the
two categories, and of synonyms, as substrings of the answer, and leaves answers that name both or neither out of the
denominator. Its list of synonyms is not public here: assets/vqa_synonyms.csv is ours.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Choice = Literal["true", "confusing", "both", "neither"]
Matching = Literal["published", "words"]

NOT_ASKED = "have no second option and were not asked about"
QUESTION = "What is the main object in this image? Choose from the following list: {first}, {second}."
# The longer name contains the shorter one as a substring; the released scorer has rules for these two pairs only.
SPECIAL_PAIRS = (("can opener", "pen"), ("drying rack for plates", "plate"))


def question(first: str, second: str) -> str:
    """The question with its two options in this order, worded as in the paper.

    >>> question("pen", "can opener")
    'What is the main object in this image? Choose from the following list: pen, can opener.'
    """
    return QUESTION.format(first=first, second=second)


def option_name(display_name: str) -> str:
    """A category's name as it stands in the question: as in the zero-shot prompt of the same paper.

    >>> option_name("coffee/french_press"), option_name("t-shirt")
    ('coffee or french press', 't shirt')
    """
    return display_name.replace("_", " ").replace("-", " ").replace("/", " or ").lower()


def plain_words(text: str) -> str:
    """Lower-case words with one blank between them: what answers and names are compared as.

    >>> plain_words("It's a T-shirt  (men).")
    'it s a t shirt men'
    """
    return " ".join(re.sub(r"[\W_]+", " ", text.casefold()).split())


@cache
def synonyms() -> Mapping[str, tuple[str, ...]]:
    """Further names of each of the 113 categories, by option name, as plain words.

    >>> synonyms()["tv"]
    ('television', 't v')
    """
    from ..labels import imagenet_d_categories

    text = (files("hf_robust") / "assets" / "vqa_synonyms.csv").read_text(encoding="utf-8")
    rows = {row["folder"]: row["synonyms"].split(";") for row in csv.DictReader(text.splitlines())}
    return MappingProxyType(
        {
            option_name(category.display_name): tuple(plain_words(name) for name in rows[category.folder] if name)
            for category in imagenet_d_categories()
        }
    )


def names_of(option: str) -> tuple[str, ...]:
    """Everything that counts as naming an option, as plain words: itself first, then its synonyms."""
    return (plain_words(option), *synonyms().get(option, ()))


def choice(answer: str, truth: str, confusing: str, *, matching: Matching = "published") -> Choice:
    """Which of two options an answer names: "true", "confusing", "both" or "neither".

    matching  "published": a name anywhere in the answer, as the released scorer looks for it ("pen" is found in
              "pencil" and in "soap dispenser"), but in its two special pairs, where the longer names are taken out
              before the shorter ones are looked for. "words": whole words, their plurals in s or es too, and the longer
              of two overlapping names counts alone.
    Raises ValueError for options that are not two, and for another matching.

    >>> choice("A can opener.", "pen", "can opener"), choice("a soap dispenser", "pen", "soap dispenser")
    ('confusing', 'both')
    >>> choice("a soap dispenser", "pen", "soap dispenser", matching="words")
    'confusing'
    """
    if matching not in get_args(Matching):
        raise ValueError(f"expected matching of {' or '.join(get_args(Matching))}, got {matching!r}: choose one")
    own, other = names_of(truth), names_of(confusing)
    if not own[0] or not other[0] or own[0] == other[0]:
        raise ValueError(f"expected two options with different names, got {truth!r} and {confusing!r}: give two")
    find = _as_released if matching == "published" else _as_words
    has_own, has_other = find(plain_words(answer), own, other)
    if has_own and has_other:
        return "both"
    return "true" if has_own else "confusing" if has_other else "neither"


def _as_released(text: str, own: Sequence[str], other: Sequence[str]) -> tuple[bool, bool]:
    if (own[0], other[0]) in SPECIAL_PAIRS:
        return _holds(text, own), _holds(_without(text, own), other)
    if (other[0], own[0]) in SPECIAL_PAIRS:
        return _holds(_without(text, other), own), _holds(text, other)
    return _holds(text, own), _holds(text, other)


def _holds(text: str, names: Collection[str]) -> bool:
    return any(name in text for name in names)


def _without(text: str, names: Collection[str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "|")
    return text


def _as_words(text: str, own: Sequence[str], other: Sequence[str]) -> tuple[bool, bool]:
    owners = {name: name in own for name in (*other, *own)}
    ordered = sorted(owners, key=lambda name: (-len(name), name))
    found = set()
    for name in ordered:  # the longest first, and what was found is gone
        text, count = re.subn(rf"\b{re.escape(name)}(?:e?s)?\b", "|", text)
        if count:
            found.add(owners[name])
    return True in found, False in found


def vqa_accuracy(choices: Sequence[str]) -> float:
    """Share of the true option among the answers that name one option: the published quantity, chance 0.5.

    choices  (N,) of "true", "confusing", "both", "neither". ValueError for another value, and where no answer names
             exactly one option.

    >>> vqa_accuracy(["true", "true", "confusing", "both", "neither"])  # 2 of 3
    0.6666666666666666
    """
    each = _checked(choices)
    answered = int(_answered(each).sum())
    if not answered:
        raise ValueError(f"expected an answer that names one of the two options, got none of {len(each)}: look at them")
    return float((each == "true").sum() / answered)


def vqa_answered(choices: Sequence[str]) -> float:
    """Share of answers that name exactly one of the two options: what `vqa_accuracy` has as its denominator.

    Input and errors as there; ValueError for no answers at all.

    >>> vqa_answered(["true", "true", "confusing", "both", "neither"])  # 3 of 5
    0.6
    """
    each = _checked(choices)
    if not len(each):
        raise ValueError("expected at least one answer, got none: there is nothing to count")
    return float(_answered(each).mean())


def _checked(choices: Sequence[str]) -> NDArray[np.str_]:
    each = np.asarray(choices, dtype=np.str_)
    strange = np.flatnonzero(~np.isin(each, get_args(Choice)))
    if each.ndim != 1 or len(strange):
        got = f"shape {each.shape}" if each.ndim != 1 else f"{str(each[strange[0]])!r} at position {strange[0]}"
        raise ValueError(f"expected a list of {', '.join(get_args(Choice))}, got {got}: see `choice`")
    return each


def _answered(each: NDArray[np.str_]) -> NDArray[np.bool_]:
    return np.isin(each, ("true", "confusing"))
