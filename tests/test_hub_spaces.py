"""Metrics as Spaces: what is published, one commit and its tag, the load line against a Hub, the pages in a browser."""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loopback_hub import Hub, loopback_hub

import hf_robust
from hf_robust.cli import main
from hf_robust.hub import metric_space
from hf_robust.hub.app import score

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["aupr", "aurra", "fpr_at_tpr", "l2_calibration_error", "response_rate_accuracy", "spurious_score"]
FILES = ["README.md", "app.py", "requirements.txt", "spurious_score.py"]
LOAD = """
import json, evaluate
metric = evaluate.load("tester/spurious_score")
result = metric.compute(predictions=[0.9, 0.5, 0.6], references=[7, 7, 7], is_spurious=[0, 0, 1])
print(json.dumps({"score": result["spurious_score"], "module": type(metric).__module__}))
"""
OLDER = """
from dataclasses import replace
from hf_robust.hub import metric_space, publish_metric
space = metric_space("spurious_score", "tester")
publish_metric(replace(space, files={**space.files, "requirements.txt": b"hf-robust==0.0.1\\n"}))
"""
VALIDATE = """
from huggingface_hub import RepoCard
from hf_robust.hub import metric_space
for name in %r:
    RepoCard(metric_space(name, "tester").card).validate(repo_type="space")
"""


@pytest.fixture
def online() -> Iterator[Hub]:
    with loopback_hub() as hub:
        yield hub


def publish(hub: Hub, home: Path, *options: str, to: str = "tester", **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hf_robust", "publish", "metric", "spurious_score", "--to", to, *options]
    return hub.call(command, home, **how)


@pytest.mark.parametrize("name", NAMES)
def test_a_space_holds_script_page_card_and_requirements_of_this_version(name: str) -> None:
    space = metric_space(name, "someone")
    assert sorted(space.files) == sorted(["README.md", "app.py", "requirements.txt", f"{name}.py"])
    assert space.repo_id == f"someone/{name}"
    lines = space.files["requirements.txt"].decode().splitlines()
    assert lines[0] == f"hf-robust=={hf_robust.__version__}"
    assert space.files["app.py"] == (ROOT / "metrics" / name / "app.py").read_bytes()
    assert re.findall(r"evaluate\.load\(\"(.*?)\"\)", space.card) == [f"someone/{name}"]


def test_the_tag_is_the_one_that_evaluate_asks_for() -> None:
    from importlib.metadata import version

    assert metric_space("aupr", "someone").tag == f"v{version('evaluate')}"


def test_unknown_metrics_and_owners_that_are_no_names_are_refused() -> None:
    with pytest.raises(LookupError, match="unknown metric 'accuracy'; known: aupr, aurra, "):
        metric_space("accuracy", "someone")
    for owner in ("a/b", "", ".", "a b"):
        with pytest.raises(ValueError, match="expected the name of a user or organisation on the Hub, got"):
            metric_space("aupr", owner)


def test_publishing_needs_evaluate_and_says_so(tmp_path: Path) -> None:
    code = "from hf_robust.cli import main; import sys; sys.exit(main(['publish', 'metric', 'aupr', '--to', 'x']))"
    site = "import sys, importlib.metadata as m; sys.path = [p for p in sys.path if 'site-packages' not in p]; "
    done = subprocess.run(
        [sys.executable, "-c", site + code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.endswith('whose version becomes the tag: pip install "hf-robust[evaluate]"\n')


def test_the_cards_pass_the_validation_of_the_hub(online: Hub, tmp_path: Path) -> None:
    done = online.run(VALIDATE % NAMES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [request.status for request in online.asked("validate-yaml")] == [200] * len(NAMES)


def test_a_dry_run_shows_files_sizes_and_card_and_changes_nothing(online: Hub, tmp_path: Path) -> None:
    done = publish(online, tmp_path, "--dry-run")
    assert done.returncode == 0, done.stderr
    space = metric_space("spurious_score", "tester")
    for name in FILES:
        assert re.search(rf"^ +{len(space.files[name]):,} bytes  new +{name}$", done.stdout, re.M)
    assert done.stdout.endswith(f"\nREADME.md:\n\n{space.card}")
    assert online.repos == {}
    assert [r for r in online.requests if r.method != "GET"] == []


def test_a_dry_run_works_without_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "metric", "aupr", "--to", "someone", "--dry-run"]) == 0  # the tests run offline
    said = capsys.readouterr()
    assert "unknown  aupr.py" in said.out
    assert said.err.startswith("what is there now is unknown: expected to reach ")


def test_a_published_metric_loads_in_a_fresh_process(online: Hub, tmp_path: Path) -> None:
    done = publish(online, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'load it anywhere: evaluate.load("tester/spurious_score")' in done.stdout
    repo = online.repo("spaces/tester/spurious_score")
    assert (repo.sdk, repo.private) == ("gradio", False)
    assert repo.history() == [f"spurious_score of hf-robust {hf_robust.__version__}", "initial commit"]
    assert repo.files() == [".gitattributes", *FILES]
    loaded = online.run(LOAD, tmp_path, token=None)
    assert loaded.returncode == 0, loaded.stderr
    said = json.loads(loaded.stdout)
    assert said["score"] == pytest.approx((1 + 2 / 3) / 2)  # from the highest down: validation, spurious, validation
    assert said["module"].startswith("evaluate_modules.metrics.tester--spurious_score.")
    tag = metric_space("spurious_score", "tester").tag
    assert online.asked(f"GET /spaces/tester/spurious_score/resolve/{tag}/spurious_score.py")


def test_publishing_again_commits_nothing(online: Hub, tmp_path: Path) -> None:
    publish(online, tmp_path)
    before = online.repo("spaces/tester/spurious_score").head
    done = publish(online, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nothing had changed in ")
    assert online.repo("spaces/tester/spurious_score").head == before
    assert publish(online, tmp_path, "--dry-run").stdout.count(" bytes  same ") == len(FILES)


def test_a_new_version_takes_the_tag_with_it_and_leaves_other_files(online: Hub, tmp_path: Path) -> None:
    assert online.run(OLDER, tmp_path).returncode == 0
    code = "from huggingface_hub import HfApi; HfApi().upload_file(path_or_fileobj=b'x', path_in_repo='own.txt', "
    assert online.run(code + "repo_id='tester/spurious_score', repo_type='space')", tmp_path).returncode == 0
    repo, tag = online.repo("spaces/tester/spurious_score"), metric_space("spurious_score", "tester").tag
    assert repo.tags[tag] != repo.head
    assert publish(online, tmp_path).returncode == 0
    assert repo.tags == {tag: repo.head}
    assert repo.read("requirements.txt").startswith(f"hf-robust=={hf_robust.__version__}\n".encode())
    assert "own.txt" in repo.files()


def test_a_failed_push_leaves_the_space_as_it_was(online: Hub, tmp_path: Path) -> None:
    assert online.run(OLDER, tmp_path).returncode == 0
    repo = online.repo("spaces/tester/spurious_score")
    before = (repo.head, dict(repo.tags))
    online.fail_next("POST .*/commit/", status=400)
    done = publish(online, tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert (repo.head, repo.tags) == before
    assert publish(online, tmp_path).returncode == 0
    assert repo.tags == {next(iter(before[1])): repo.head}


def test_a_hub_that_asks_for_patience_gets_it(online: Hub, tmp_path: Path) -> None:
    online.fail_next("POST .*/commit/", status=429, retry_after=0)
    online.fail_next("POST .*/tag/", status=503)
    done = publish(online, tmp_path)
    assert done.returncode == 0, done.stderr
    repo = online.repo("spaces/tester/spurious_score")
    assert len(repo.history()) == 2
    assert list(repo.tags.values()) == [repo.head]
    assert "the Hub answered 429, trying again in 0 s" in done.stderr


@pytest.mark.parametrize("to", ["tester", "hf_robust"])
@pytest.mark.parametrize("token", [None, "reader"])
def test_without_the_right_to_write_it_is_one_line(online: Hub, tmp_path: Path, token: str | None, to: str) -> None:
    done = publish(online, tmp_path, to=to, token=online.reader_token if token else None)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("hf-robust: error: ")
    assert f"{online.endpoint}/spaces/{to}/spurious_score" in line
    assert online.reader_token not in line
    assert online.repos == {}


def test_a_private_space_stays_private_when_published_again(online: Hub, tmp_path: Path) -> None:
    assert publish(online, tmp_path, "--private").returncode == 0
    assert publish(online, tmp_path).returncode == 0
    assert online.repo("spaces/tester/spurious_score").private


# --- the pages, started as a Space starts them


@contextmanager
def served(name: str, folder: Path) -> Iterator[str]:
    """The address of the page, run from the files that would be published."""
    for path, content in metric_space(name, "tester").files.items():
        (folder / path).write_bytes(content)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "app.py"], cwd=folder, env={**os.environ, **settings},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}/", process)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    stop = time.monotonic() + 90
    while time.monotonic() < stop and process.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"the page did not start (exit code {process.poll()})")


@pytest.mark.slow
@pytest.mark.pages
@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_in_a_browser_what_the_function_gives(name: str, browser: Any, tmp_path: Path) -> None:
    page = runpy.run_path(str(ROOT / "metrics" / name / "app.py"))["PAGE"]
    values = [option.value for option in page.options]
    expected = score(page, page.table.csv(), None, *values)[0].splitlines()[0].removeprefix("## ")
    rows = 12 if name == "spurious_score" else 6  # two whole classes; both kinds of rows
    half = "\n".join(page.table.csv().splitlines()[: 1 + rows])
    of_half = score(page, half, None, *values)[0].splitlines()[0].removeprefix("## ")
    assert of_half != expected
    (tmp_path / "space").mkdir()
    with served(name, tmp_path / "space") as address:
        tab = browser.new_page()
        tab.goto(address)
        tab.get_by_role("heading", name=expected).wait_for(timeout=60_000)
        tab.get_by_role("heading", name="Formula").wait_for()
        assert tab.locator(".katex-display").count() >= 1  # the formula is set, not shown as source
        assert tab.locator("img[src*='/file=']").count() + tab.locator("img[src^='data:image']").count() >= 1
        tab.get_by_role("textbox").first.fill(half)
        tab.get_by_role("button", name="Compute").click()
        tab.get_by_role("heading", name=of_half).wait_for(timeout=60_000)
        tab.get_by_role("textbox").first.fill("a,b\n1,2")
        tab.get_by_role("button", name="Compute").click()
        tab.get_by_text("got none named").wait_for(timeout=60_000)
        assert tab.get_by_role("heading", name=of_half).count() == 0  # no number of another table stays
        (tmp_path / "half.csv").write_text(half, encoding="utf-8")
        tab.locator("input[type=file]").set_input_files(str(tmp_path / "half.csv"))
        tab.get_by_text("half.csv").or_(tab.get_by_text("half")).first.wait_for(timeout=60_000)
        tab.get_by_role("button", name="Compute").click()
        tab.get_by_role("heading", name=of_half).wait_for(timeout=60_000)
        tab.close()
