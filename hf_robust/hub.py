"""What this project shares with the Hub: for now, where its `evaluate` modules lie on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType


def metric_module_folders() -> Mapping[str, Path]:
    """The folder of each `evaluate` module by its name, sorted: `<folder>/<name>.py`, its card, page and requirements.

    An installed wheel carries them inside the package, a checkout at its top. Pass one as text to `evaluate.load`.
    Raises FileNotFoundError where neither place has them.
    """
    package = Path(str(files("hf_robust")))
    places = (package / "metric_modules", package.parent / "metrics")
    for place in places:
        scripts = sorted(place.glob("*/*.py"))
        folders = {script.stem: script.parent for script in scripts if script.stem == script.parent.name}
        if folders:
            return MappingProxyType(folders)
    raise FileNotFoundError(
        f"expected the evaluate modules of hf_robust in {places[0]} or {places[1]}, found them in neither: install "
        "hf-robust again, or run from a checkout"
    )
