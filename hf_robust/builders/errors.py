"""The one error of this folder."""

from __future__ import annotations


class BuildError(ValueError):
    """A source that is not what it should be: says what was expected, what was found, where, and what to do."""
