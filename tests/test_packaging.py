"""What gets installed: version, extras, bounds, and the contents of the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import hf_robust

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = {
    "bench",
    "pages",
    "run",
    "transformers",
    "clip",
    "generate",
    "pool",
    "health",
    "evaluate",
    "report",
    "gradcam",
    "review",
    "fiftyone",
    "demo",
    "dev",
}
LEFT_OUT = (".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "demo-output")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that no build folder appears in the checkout."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "source", ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(place), str(place / "source")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(place.glob("*.whl"))


def test_the_version_has_one_home() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "hf_robust.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", hf_robust.__version__)


def test_the_extras_that_the_messages_name_exist() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == EXTRAS


def test_every_extra_named_in_an_error_message_exists() -> None:
    named = set()
    for path in (ROOT / "hf_robust").rglob("*.py"):
        for group in re.findall(r"hf-robust\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
            named |= set(group.split(","))
    assert named <= EXTRAS


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    extras = PROJECT["project"]["optional-dependencies"].values()
    everything = [*PROJECT["project"]["dependencies"], *(r for extra in extras for r in extra)]
    bounded = r"[\w.-]+(>=[\d.]+,<[\d.]+|==[\d.]+)"
    loose = [r for r in everything if not r.startswith("hf-robust[") and not re.fullmatch(bounded, r)]
    assert loose == []


def test_the_core_needs_no_torch() -> None:
    core = {re.split(r"[<>=]", requirement)[0] for requirement in PROJECT["project"]["dependencies"]}
    assert core & {"torch", "torchvision", "timm", "transformers", "accelerate"} == set()


def test_pillow_spans_the_versions_that_the_review_page_needs() -> None:
    (pillow,) = (r for r in PROJECT["project"]["dependencies"] if r.startswith("pillow"))
    assert pillow == "pillow>=12,<14"  # gradio needs < 13, everything else takes 13


@pytest.mark.slow
def test_the_wheel_carries_every_module_and_every_asset(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "hf_robust").rglob("*.py")}
    expected |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "hf_robust" / "assets").iterdir() if p.is_file()}
    assert expected | {"hf_robust/py.typed"} <= inside


@pytest.mark.slow
def test_the_wheel_carries_the_whole_folder_of_every_metric_module(wheel: Path) -> None:
    files = [p for p in (ROOT / "metrics").glob("*/*") if p.is_file()]
    expected = {f"hf_robust/metric_modules/{p.relative_to(ROOT / 'metrics').as_posix()}" for p in files}
    assert len(expected) >= 6 * 4  # six modules: script, card, page, requirements
    assert expected - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.slow
def test_an_installed_wheel_finds_its_own_metric_modules(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from hf_robust.hub import metric_module_folders as f; print(*f().values(), sep='\\n')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    names = sorted(p.name for p in (ROOT / "metrics").iterdir() if p.is_dir())
    assert done.stdout.split("\n")[:-1] == [str(tmp_path / "hf_robust" / "metric_modules" / name) for name in names]


@pytest.mark.slow
def test_the_wheel_carries_no_tests_and_no_pictures(wheel: Path) -> None:
    inside = zipfile.ZipFile(wheel).namelist()
    assert [n for n in inside if n.startswith("tests/") or n.lower().endswith((".jpg", ".jpeg", ".png"))] == []


@pytest.mark.slow
def test_the_wheel_names_its_version_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"hf_robust-{hf_robust.__version__}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        assert f"\nVersion: {hf_robust.__version__}\n" in metadata
        assert "\nLicense-Expression: MIT\n" in metadata
        assert "hf-robust = hf_robust.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert f"{info}/licenses/LICENSE" in archive.namelist()
