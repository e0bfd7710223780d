"""The lowest versions that pyproject.toml allows install together and pass the tests of core and metrics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUNNERS = ("pytest", "pytest-timeout", "hypothesis")  # their own lower bounds, too

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lower bounds are those of Python 3.11"),
]


def lowest(requirement: str) -> str:
    """The requirement with its lower bound as the exact version."""
    match = re.match(r"([\w.-]+)>=([\d.]+)", requirement)
    if match is None:
        raise ValueError(f"expected name>=version at the start of a requirement, got {requirement!r}")
    return f"{match[1]}=={match[2]}"


def _lowest_core_and_runners() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runners = [r for r in project["optional-dependencies"]["dev"] if re.split(r"[<>=\[]", r)[0] in RUNNERS]
    return [lowest(r) for r in (*project["dependencies"], *runners)]


def _call(*command: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_lowest_takes_the_lower_bound() -> None:
    assert lowest("numpy>=1.26,<3") == "numpy==1.26"


def test_core_and_metrics_pass_their_tests_on_the_lowest_versions(tmp_path: Path) -> None:
    pins = _lowest_core_and_runners()
    python = str(tmp_path / "venv" / "bin" / "python")
    _call(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    _call(python, "-m", "pip", "install", "-q", *pins)
    installed = _call(python, "-m", "pip", "freeze").lower().replace("_", "-")
    for pin in pins:
        name, version = pin.lower().replace("_", "-").split("==")
        assert re.search(rf"^{name}=={re.escape(version)}(\.0)*$", installed, re.MULTILINE), pin
    patterns = ("test_labels.py", "test_metrics*.py", "test_builders*.py")
    tests = sorted(p.relative_to(ROOT).as_posix() for pattern in patterns for p in (ROOT / "tests").glob(pattern))
    print(_call(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests))
