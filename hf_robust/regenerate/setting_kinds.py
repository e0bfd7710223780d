"""Whether a value from a config file or a command line is of the kind that a setting's annotation names."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LARGEST = 2**63
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", NoneType: '"null"'}


def kinds_of(settings: Any) -> dict[str, Any]:
    """Name of each setting -> its annotation, resolved."""
    return get_type_hints(type(settings))


def is_of(value: Any, kind: Any) -> bool:
    """Whether the value can stand for a setting of this annotation; a list for a tuple, no NaN, no infinity.

    >>> is_of(3, int | None), is_of("a", int | None), is_of(["a"], tuple[str, ...]), is_of([1], tuple[str, ...])
    (True, False, True, False)
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(is_of(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, list | tuple) and all(is_of(one, inner[0]) for one in value)
    if isinstance(value, bool):
        return kind is bool
    if kind is str:
        return isinstance(value, str) and "\0" not in value
    if kind is float:
        return isinstance(value, int | float) and abs(value) < _LARGEST and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and abs(value) < _LARGEST
    return isinstance(value, kind)


def in_words(kind: Any) -> str:
    """The annotation for people.

    >>> in_words(int | None), in_words(tuple[str, ...]), in_words(Literal["a", "b"])
    ('a whole number or "null"', 'a list, each a text', "'a' or 'b'")
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(in_words(one) for one in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        return f"a list, each {in_words(inner[0])}"
    return _WORDS.get(kind, str(kind))
