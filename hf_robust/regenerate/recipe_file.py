"""Which recipe a folder belongs to."""

from __future__ import annotations

from pathlib import Path

from ..predictions.plan import DamagedError, read_json, write_json
from .stage import StageError

RECIPE_FILE = "recipe.json"


def claim(name: str, out: Path) -> None:
    """Marks the folder as one of that recipe; StageError where it is another's."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / RECIPE_FILE).exists():
        write_json(out / RECIPE_FILE, {"recipe": name})
    found = recipe_name(out)
    if found != name:
        raise StageError(f"expected a folder of {name}, got one of {found} in {out}: give another --out")


def recipe_name(out: Path) -> str:
    """The recipe that a folder was made by; StageError where it is none."""
    if not (out / RECIPE_FILE).is_file():
        raise StageError(f"expected the folder of a regeneration, got {str(out)!r} without {RECIPE_FILE}")
    try:
        return str(read_json(out / RECIPE_FILE, ["recipe"])["recipe"])
    except DamagedError as error:  # its advice is to remove the folder, which holds everything
        raise StageError(
            f"expected the folder's recipe in {out / RECIPE_FILE}, got a damaged file: remove that file alone and give "
            "the `regenerate` command again"
        ) from error
