"""Registering the metric modules: the bare load line without network, versions, many processes, and undoing it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hf_robust
from hf_robust import hub
from hf_robust.cli import main

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["aupr", "aurra", "fpr_at_tpr", "l2_calibration_error", "response_rate_accuracy", "spurious_score"]
LATER = "99.0.0"
LOAD = """
import json, socket, sys, time
def no_network(*_, **__):
    raise OSError("no network in this process")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = no_network
import evaluate
start = time.monotonic()
metric = evaluate.load("spurious_score")
seconds = time.monotonic() - start
result = metric.compute(predictions=[0.9, 0.5, 0.6], references=[7, 7, 7], is_spurious=[0, 0, 1])
print(json.dumps({"score": result["spurious_score"], "seconds": seconds, "module": type(metric).__module__}))
"""
CONFIG = """
import importlib, json, os, sys
import evaluate.config as config
from hf_robust.hub import modules_cache
for variables in json.loads(sys.argv[1]):
    for name in ("HF_MODULES_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    print(importlib.reload(config).HF_MODULES_CACHE, modules_cache(), sep="\\n")
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder under which `evaluate` looks for registered metrics, in a cache of this test."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "modules" / "evaluate_modules" / "metrics"


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def scripts(cache: Path, name: str = "spurious_score") -> list[Path]:
    """The scripts that `evaluate` chooses from, by its own rule: folders of 64 characters; the newest last."""
    parent = cache / f"evaluate-metric--{name}"
    found = [folder / f"{name}.py" for folder in parent.iterdir() if len(folder.name) == 64]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def version_of(script: Path) -> Any:
    return json.loads((script.parent / "hf-robust.json").read_text(encoding="utf-8"))["version"]


def run(code: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *(["-c", code] if code else []), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("offline", ["1", "0"])
def test_the_bare_line_works_in_a_fresh_process_from_an_empty_folder_without_network(
    offline: str, cache: Path, tmp_path: Path
) -> None:
    empty, home = tmp_path / "empty", str(tmp_path / "home")
    empty.mkdir()
    assert run("", empty, "-m", "hf_robust", "setup", HF_HOME=home).returncode == 0
    start = time.monotonic()
    done = run(LOAD, empty, HF_HOME=home, HF_EVALUATE_OFFLINE=offline, HF_HUB_OFFLINE=offline)
    assert time.monotonic() - start < 30
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["score"] == pytest.approx((1 + 2 / 3) / 2)  # from the highest down: validation, spurious, validation
    assert said["seconds"] < 10
    assert said["module"].startswith("evaluate_modules.metrics.evaluate-metric--spurious_score.")
    assert list(empty.iterdir()) == []


def test_the_cache_is_where_evaluate_looks_whatever_names_it(tmp_path: Path) -> None:
    cases = [
        {},
        {"XDG_CACHE_HOME": str(tmp_path / "xdg")},
        {"HF_HOME": "~/elsewhere", "XDG_CACHE_HOME": str(tmp_path / "xdg")},
        {"HF_MODULES_CACHE": str(tmp_path / "own"), "HF_HOME": str(tmp_path / "home")},
    ]
    done = run(CONFIG, tmp_path, json.dumps(cases), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[::2] == lines[1::2]
    expected = [".cache/huggingface/modules", "xdg/huggingface/modules", "elsewhere/modules", "own"]
    assert lines[::2] == [str(tmp_path / place) for place in expected]


def test_setup_registers_every_module_and_says_version_and_place(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup"]) == 0
    said = capsys.readouterr().out
    assert f"registered from hf-robust {hf_robust.__version__} in {tmp_path / 'modules'}: {', '.join(NAMES)}" in said
    assert 'evaluate.load("spurious_score")' in said
    for name in NAMES:
        (script,) = scripts(cache, name)
        assert script.read_bytes() == (ROOT / "metrics" / name / f"{name}.py").read_bytes()
        assert version_of(script) == hf_robust.__version__
    assert len(files(cache)) == 2 * len(NAMES)  # the script and the record


def test_a_second_setup_changes_nothing(cache: Path) -> None:
    main(["setup"])
    before = files(cache)
    main(["setup"])
    assert files(cache) == before


def test_remove_leaves_nothing_behind(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["setup"])
    capsys.readouterr()
    assert main(["setup", "--remove"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == NAMES
    assert f"of hf-robust {hf_robust.__version__} removed from" in said
    assert list(tmp_path.iterdir()) == []
    assert main(["setup", "--remove"]) == 0
    assert "nothing of hf-robust was registered" in capsys.readouterr().out


def other(cache: Path, name: str, *, newer_by: float) -> Path:
    """A module of the same name that somebody else put there."""
    folder = cache / f"evaluate-metric--{name}" / ("0" * 64)
    folder.mkdir(parents=True)
    (folder / f"{name}.py").write_text("theirs = True\n", encoding="utf-8")
    os.utime(folder / f"{name}.py", (time.time() + newer_by,) * 2)
    return folder / f"{name}.py"


def test_remove_keeps_what_others_registered(cache: Path) -> None:
    theirs = other(cache, "aupr", newer_by=0)
    hub.register_metric_modules()
    hub.remove_metric_modules()
    assert [cache / path for path in files(cache)] == [theirs]


def test_ours_wins_over_a_newer_file_of_others(cache: Path) -> None:
    theirs = other(cache, "aupr", newer_by=1000)
    hub.register_metric_modules()
    assert scripts(cache, "aupr")[0] == theirs
    assert version_of(scripts(cache, "aupr")[-1]) == hf_robust.__version__


def test_a_later_version_takes_the_place_of_an_older_one(cache: Path) -> None:
    hub.register_metric_modules(version="0.0.9")
    hub.register_metric_modules(version="0.0.10")  # later, though not as text
    assert [version_of(script) for script in scripts(cache)] == ["0.0.10"]


def test_an_older_version_leaves_a_later_one_in_place_and_says_so(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.register_metric_modules(version=LATER)
    assert main(["setup"]) == 0
    assert [version_of(script) for name in NAMES for script in scripts(cache, name)] == [LATER] * len(NAMES)
    said = capsys.readouterr().out
    assert f"spurious_score stays at the newer hf-robust {LATER}; to go back: hf-robust setup --remove first" in said
    assert "registered from" not in said
    main(["setup", "--remove"])
    main(["setup"])
    assert [version_of(script) for script in scripts(cache)] == [hf_robust.__version__]


def test_setup_mends_a_damaged_registration(cache: Path) -> None:
    hub.register_metric_modules()
    (script,) = scripts(cache)
    good = script.read_bytes()
    script.write_bytes(good[:100])
    hub.register_metric_modules()
    assert [path.read_bytes() for path in scripts(cache)] == [good]


def test_a_registration_with_an_unreadable_record_loses_to_a_new_one(cache: Path) -> None:
    hub.register_metric_modules(version="0.0.1")
    (old,) = scripts(cache)
    (old.parent / "hf-robust.json").write_text("{", encoding="utf-8")
    hub.register_metric_modules()
    assert version_of(scripts(cache)[-1]) == hf_robust.__version__


def test_four_setups_at_once_leave_one_registration_each(cache: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hf_robust", "setup"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    at_once = [subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1] for process in at_once] == [b""] * 4
    assert [process.returncode for process in at_once] == [0] * 4
    assert [len(scripts(cache, name)) for name in NAMES] == [1] * len(NAMES)
    assert len(files(cache)) == 2 * len(NAMES)


def test_of_versions_registered_at_once_the_latest_stays(cache: Path) -> None:
    failed: list[BaseException] = []

    def register(version: str) -> None:
        try:
            for _ in range(5):
                hub.register_metric_modules(version=version)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=register, args=(version,)) for version in ("0.1.0", "0.2.0", "0.3.0", "0.3.0")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [[version_of(s) for s in scripts(cache, name)] for name in NAMES] == [["0.3.0"]] * len(NAMES)
    assert [path for path in files(cache) if re.search(r"/\.hf-robust-", path)] == []


def test_setup_says_when_evaluate_is_not_installed(cache: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['evaluate'] = None; from hf_robust.cli import main; sys.exit(main(['setup']))"
    done = run(code, tmp_path)
    assert done.returncode == 0
    assert done.stderr == 'evaluate itself is not installed: pip install "hf-robust[evaluate]"\n'
    assert len(scripts(cache)) == 1


def test_a_cache_that_cannot_be_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "file"))
    assert main(["setup"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hf-robust: error: ")
    assert str(tmp_path / "file") in line
