"""Every test: no network beyond this machine, no file outside temporary folders, one thread a process."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

settings.register_profile("any machine", deadline=None)  # a busy machine is no failure
settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parent.parent
_HOME = Path(tempfile.mkdtemp(prefix="hf-robust-tests-"))

_ENVIRONMENT = {
    "HF_HOME": str(_HOME / "huggingface"),
    "XDG_CACHE_HOME": str(_HOME / "cache"),
    "TORCH_HOME": str(_HOME / "torch"),
    "MPLCONFIGDIR": str(_HOME / "matplotlib"),
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OMP_NUM_THREADS": "1",  # the models are tiny: more threads cost more than they give
}
_UNSET = (
    "HF_TOKEN", "HF_ENDPOINT", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_ASSETS_CACHE",
    "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "PYTHONPATH",
)  # fmt: skip


class NetworkInTest(RuntimeError):
    """A test reached for the network."""


def _guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any, /) -> Any:
        internet = self.family in (socket.AF_INET, socket.AF_INET6)
        if internet and not (address[0].startswith("127.") or address[0] in ("::1", "localhost", "0.0.0.0")):
            raise NetworkInTest(f"tests must not reach the network, got a connection to {address[0]}:{address[1]}")
        return connect(self, address)

    return guarded


def pytest_configure() -> None:
    early = {"datasets", "huggingface_hub", "transformers", "evaluate", "torch"} & set(sys.modules)
    if early:
        raise pytest.UsageError(f"{', '.join(sorted(early))} imported before the tests could redirect their caches")
    os.environ.update(_ENVIRONMENT)
    for name in _UNSET:
        os.environ.pop(name, None)
    for method in ("connect", "connect_ex"):
        setattr(socket.socket, method, _guarded(getattr(socket.socket, method)))


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the checkout; a test that needs it is skipped where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the reference data in ../shared")
    return folder


@pytest.fixture(scope="session")
def picture() -> Callable[..., Image.Image]:
    """A function (seed, width=48, height=40) -> an RGB picture of blurred colour blobs, the same for the same seed."""

    def make(seed: int, *, width: int = 48, height: int = 40) -> Image.Image:
        blobs = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        return Image.fromarray(blobs).resize((width, height), Image.Resampling.BICUBIC)

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the one of the system where there is one, else playwright's own."""
    pytest.importorskip("gradio", reason="needs the review extra")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with sync_api.sync_playwright() as playwright:
        system = shutil.which("chromium") or shutil.which("google-chrome")
        try:
            chromium = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()
