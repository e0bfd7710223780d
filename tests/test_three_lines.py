"""The three lines that users meet, in a fresh environment with the wheel, from an empty folder, without any network.

The environment holds the wheel with the extra `evaluate` and what pip brings along, and nothing of the checkout. Every
socket of its processes refuses to connect before the first command of ours runs there; no offline variable is set. The
third line needs torch and diffusers, several gigabytes that stand in the environment of these tests already: for that
line they are lent from there, behind the fresh one's own packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from builder_archives import as_tar
from docs_world import ROOT, tiny_generator
from toy_world import Drawn, imagenet_o

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SOURCES = ("hf_robust", "metrics", "pyproject.toml", "setup.py", "README.md", "LICENSE")  # what a wheel is made from
NO_NETWORK = """
import socket


def refuse(*_, **__):
    raise OSError("no network in this environment")


socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
"""
LAUNCH = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")


@dataclass(frozen=True)
class Fresh:
    """A fresh environment, the home folder of who uses it, and the pictures of ImageNet-O that were built there."""

    folder: Path
    home: Path
    drawn: list[Drawn]

    @property
    def packages(self) -> Path:
        return next((self.folder / "lib").glob("python3*")) / "site-packages"

    def run(self, folder: Path, *words: str) -> str:
        """What a new process of this environment prints, started in `folder`; it has to succeed."""
        foreign = ("HF_", "TRANSFORMERS_", "XDG_", "TORCH_", "PYTHON", "ACCELERATE_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        command = [str(self.folder / "bin" / "python"), *words]
        done = subprocess.run(
            command, cwd=folder, env={**own, "HOME": str(self.home)}, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """The environment after `hf-robust build imagenet-o` and `hf-robust setup`."""
    place = tmp_path_factory.mktemp("fresh")
    wheel = wheel_in(place)
    environment = Fresh(place / "environment", place / "home", list(imagenet_o(np.random.default_rng(2))))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment.folder)], check=True)
    pip(["--python", str(environment.folder / "bin" / "python"), "install", "-q", f"{wheel}[evaluate]"])
    write(environment.packages / "no_network.py", NO_NETWORK)
    write(environment.packages / "no_network.pth", "import no_network\n")
    environment.home.mkdir()
    archive = as_tar(place / "o.tar", {drawn.path: drawn.content for drawn in environment.drawn})
    words = ["-m", "hf_robust", "build", "imagenet-o", "--source", str(archive), "--allow-incomplete"]
    assert "imagenet-o: 60 pictures, INCOMPLETE" in environment.run(place, *words)
    assert "spurious_score" in environment.run(place, "-m", "hf_robust", "setup")
    return environment


def wheel_in(place: Path) -> Path:
    source = place / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, source / name)
    pip(["wheel", "-q", "--no-deps", "-w", str(place), str(source)])
    return next(place.glob("*.whl"))


def pip(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_the_package_is_the_wheels_and_no_socket_connects(fresh: Fresh, empty: Path) -> None:
    code = """
import socket, hf_robust
print(hf_robust.__file__)
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    print(error)
"""
    said = fresh.run(empty, "-c", code).splitlines()
    assert said == [str(fresh.packages / "hf_robust" / "__init__.py"), "no network in this environment"]


LOAD_DATASET = """
import hashlib, json
from datasets import Image, load_dataset
rows = load_dataset("hf_robust/imagenet-o")
raw = rows["test"].cast_column("image", Image(decode=False))
print(json.dumps({
    "splits": list(rows),
    "pictures": [hashlib.sha256(row["image"]["bytes"]).hexdigest() for row in raw],
    "size": rows["test"][0]["image"].size,
}))
"""


def test_load_dataset_gives_the_pictures_of_the_archive(fresh: Fresh, empty: Path) -> None:
    said = json.loads(fresh.run(empty, "-c", LOAD_DATASET).splitlines()[-1])
    assert said["splits"] == ["test"]
    assert sorted(said["pictures"]) == sorted(hashlib.sha256(drawn.content).hexdigest() for drawn in fresh.drawn)
    assert len(said["size"]) == 2  # a picture is decoded without being asked
    assert list(empty.iterdir()) == []


EVALUATE_LOAD = """
import evaluate
metric = evaluate.load("spurious_score")
print(metric.compute(predictions=[0.9, 0.5, 0.6], references=[7, 7, 7], is_spurious=[0, 0, 1])["spurious_score"])
"""


def test_evaluate_load_gives_the_metric(fresh: Fresh, empty: Path) -> None:
    score = float(fresh.run(empty, "-c", EVALUATE_LOAD).splitlines()[-1])
    assert score == pytest.approx((1 + 2 / 3) / 2)  # from the highest down: validation, spurious, validation
    assert list(empty.iterdir()) == []


@pytest.fixture
def with_torch(fresh: Fresh) -> Iterator[Fresh]:
    """The environment with what the tests' own has besides; what both have is its own."""
    lent = fresh.packages / "lent.pth"
    write(lent, sysconfig.get_path("purelib") + "\n")
    yield fresh
    lent.unlink()


def test_accelerate_launch_regenerate_draws_pictures(with_torch: Fresh, empty: Path, tmp_path: Path) -> None:
    script = shutil.copyfile(ROOT / "regenerate.py", tmp_path / "regenerate.py")
    tiny = ["generate.steps=1", "generate.height=32", "generate.width=32", "prompts.limit=6"]
    settings = ["--set", f"generate.model={tiny_generator(tmp_path)}", *tiny, "--until", "generate"]
    said = with_torch.run(empty, *LAUNCH, str(script), "imagenet-d", "--out", "D", *settings, "--json")
    funnel = json.loads(said[said.index("[") :])
    assert [(stage["stage"], stage["kept"]) for stage in funnel] == [("prompts", 6), ("generate", 6)]
    assert [path.name for path in empty.iterdir()] == ["D"]
    words = ["-m", "hf_robust", "regenerate", "imagenet-d", "--out", "D", *settings, "--dry-run"]
    told = with_torch.run(empty, *LAUNCH, *words)  # the same without the script, as a wheel has it
    assert "prompts: 6 (background 2, texture 2, material 2)" in told
