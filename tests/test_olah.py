"""The read side against a Hub that is not ours: olah serves local git repositories, and the real libraries read them.

Runs where OLAH_PYTHON names a Python that has olah; `make test-olah` makes one. What is served was published by our own
commands to the loopback Hub and is committed to git as it stood there, large files as LFS objects.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from builder_archives import SETS, as_tar, rows_of
from loopback_hub import Hub, Repo, loopback_hub
from run_folder import A, Source, peaked, write_run

PYTHON = os.environ.get("OLAH_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PYTHON is None, reason="needs olah in an environment of its own: make test-olah"),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git, which olah reads with"),
]
NAMES = ("imagenet-o", "imagenet-d")
REPOS = (*(f"datasets/hf_robust/{name}" for name in NAMES), "datasets/tester/p", "spaces/tester/spurious_score")
COMMAND = [sys.executable, "-m", "hf_robust"]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n"
MIRROR = """
[basic]
host = "127.0.0.1"
port = {port}
repos-path = "{cache}"
mirrors-path = ["{mirrors}"]

[accessibility]
offline = true
"""


@dataclass(frozen=True)
class Mirror:
    """olah at `endpoint`, what was published, and the folder it was published from."""

    hub: Hub
    endpoint: str
    home: Path

    def python(self, folder: Path, code: str, *arguments: str) -> str:
        """What the code prints, run in a process that knows olah only."""
        done = self.hub.run(code, folder, *arguments, token=None, HF_ENDPOINT=self.endpoint)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    home = tmp_path_factory.mktemp("olah")
    with loopback_hub() as hub:
        publish_all(hub, home)
        for name in REPOS:
            as_git(hub.repo(name), home / "mirrors" / name)
        with served(home) as endpoint:
            yield Mirror(hub, endpoint, home)


def publish_all(hub: Hub, home: Path) -> None:
    for name in NAMES:
        source = as_tar(home / f"{name}.tar", SETS[name])
        given = ["--source", str(source), "--out", "out", "--allow-incomplete", "--push-to-hub", f"hf_robust/{name}"]
        ours(hub, home, "build", name, *given)
    rows = [[A[i % 200]] for i in range(150)]  # two parts
    write_run(home / "runs", ["imagenet-a"], [Source("imagenet-a", rows, peaked([k for (k,) in rows]))])
    ours(hub, home, "publish", "predictions", "runs", "--to", "tester/p")
    ours(hub, home, "publish", "metric", "spurious_score", "--to", "tester")


def ours(hub: Hub, home: Path, *words: str) -> None:
    done = hub.call([*COMMAND, *words], home)
    assert done.returncode == 0, done.stderr


def as_git(repo: Repo, folder: Path) -> None:
    """The head of a repo as a git repository with LFS objects, and its tags."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for path, stored in repo.at().files.items():
        content = stored.content
        if stored.lfs is not None:
            write(folder / ".git" / "lfs" / "objects" / stored.lfs[:2] / stored.lfs[2:4] / stored.lfs, content)
            content = POINTER.format(sha=stored.lfs, size=len(content)).encode()
        write(folder / path, content)
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", repo.history()[0])
    for tag in repo.tags:
        git(folder, "tag", tag)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@contextmanager
def served(home: Path) -> Iterator[str]:
    """olah on a free port, offline, with `home/mirrors`; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = MIRROR.format(port=port, cache=home / "cache", mirrors=home / "mirrors")
    (home / "olah.toml").write_text(settings, encoding="utf-8")
    command = [str(PYTHON), "-m", "olah.server", "--config", "olah.toml", "--log-path", "logs"]
    environment = {**os.environ, "HOME": str(home)}
    with (home / "olah.log").open("w") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, env=environment)
    try:
        wait_for(port, process, home / "olah.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"olah did not start: {log.read_text(encoding='utf-8')}")


SNAPSHOT = """
import hashlib, json, sys
from pathlib import Path
from huggingface_hub import snapshot_download
folder = Path(snapshot_download(sys.argv[1], repo_type="dataset"))
files = [path for path in folder.rglob("*") if path.is_file()]
print(json.dumps({p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}))
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_is_what_was_published(mirror: Mirror, tmp_path: Path, name: str) -> None:
    repo = mirror.hub.repo(f"datasets/hf_robust/{name}")
    found = json.loads(mirror.python(tmp_path, SNAPSHOT, f"hf_robust/{name}"))
    assert found == {path: hashlib.sha256(repo.read(path)).hexdigest() for path in repo.files()}


LOAD = """
import hashlib, json, sys
from datasets import Image, load_dataset
found = {}
for way, splits in (
    ("loaded", load_dataset(sys.argv[1])), ("streamed", load_dataset(sys.argv[1], streaming=True)),
):
    found[way] = [row for rows in splits.values() for row in rows.cast_column("image", Image(decode=False))]
    for row in found[way]:
        row["image"] = hashlib.sha256(row["image"]["bytes"]).hexdigest()
found["splits"] = list(splits)
print(json.dumps(found))
"""


@pytest.mark.parametrize(("name", "splits"), [
    ("imagenet-o", ["test"]), ("imagenet-d", ["background", "texture", "material"]),
])  # fmt: skip
def test_the_load_line_gives_the_rows_that_were_built(
    mirror: Mirror, tmp_path: Path, name: str, splits: list[str]
) -> None:
    found = json.loads(mirror.python(tmp_path, LOAD, f"hf_robust/{name}"))
    expected = rows_of(name, mirror.home / "out")
    for row in expected:
        row["image"] = row["sha256"]  # of the stored bytes
    assert found["loaded"] == found["streamed"] == expected
    assert found["splits"] == splits


OPEN = """
import hashlib, json, sys
from hf_robust.data import open_rows
rows = open_rows(sys.argv[1], repo=f"hf_robust/{sys.argv[1]}")
digests = [hashlib.sha256(rows.read(i)).hexdigest() for i in range(len(rows.table.ids))]
print(json.dumps([rows.table.ids, digests, rows.complete, rows.differences]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_reads_its_pictures_and_knows_that_the_set_is_incomplete(
    mirror: Mirror, tmp_path: Path, name: str
) -> None:
    ids, digests, complete, differences = json.loads(mirror.python(tmp_path, OPEN, name))
    built = rows_of(name, mirror.home / "out")
    assert sorted(zip(ids, digests, strict=True)) == sorted((row["file_name"], row["sha256"]) for row in built)
    assert complete is False
    assert any("are missing" in text for text in differences)


METRIC = """
import evaluate
metric = evaluate.load("tester/spurious_score")
print(metric.compute(predictions=[0.9, 0.5, 0.6], references=[7, 7, 7], is_spurious=[0, 0, 1])["spurious_score"])
"""


def test_a_metric_loads_from_its_space(mirror: Mirror, tmp_path: Path) -> None:
    score = float(mirror.python(tmp_path, METRIC).splitlines()[-1])
    assert score == pytest.approx((1 + 2 / 3) / 2)  # from the highest down: validation, spurious, validation


def test_predictions_are_pulled_as_they_were(mirror: Mirror, tmp_path: Path) -> None:
    code = "import sys; from hf_robust.cli import main; sys.exit(main(['pull', 'tester/p', '--out', 'pulled']))"
    mirror.python(tmp_path, code)
    before = {p.relative_to(mirror.home / "runs"): p.read_bytes() for p in (mirror.home / "runs").rglob("*.parquet")}
    after = {p.relative_to(tmp_path / "pulled"): p.read_bytes() for p in (tmp_path / "pulled").rglob("*.parquet")}
    assert len(before) == 2
    assert before == after
