"""Predictions as a data set on the Hub and back: what travels, what is proved, and the same numbers again."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard
from loopback_hub import Hub, loopback_hub
from run_folder import A, Source, peaked, write_run

from hf_robust.hub.merging import metadata
from hf_robust.hub.predictions import MANIFEST, card, check_run, parcels, without_hosts
from hf_robust.predictions.plan import DamagedError
from hf_robust.predictions.read import HeadWeights

HOST = "private-host.example"
COMMAND = [sys.executable, "-m", "hf_robust"]
LOG = {"time": "2026-11-30T10:00:00Z", "host": HOST, "rank": 0, "versions": {"torch": "2.14.1"}}


def a_run(runs: Path, *, n: int = 250, **plan: Any) -> Path:
    """A run with random logits on ImageNet-A, in three parts, and on validation pictures of 12 of its classes."""
    generator = np.random.default_rng(n)
    rows = [[A[i % 200]] for i in range(n)]
    clean = [[k] for k in A[:12] for _ in range(2)]
    logits = generator.normal(size=(n, 1000)).astype(np.float32) + peaked([k for (k,) in rows], height=2.0)
    control = generator.normal(size=(24, 1000)).astype(np.float32) + peaked([k for (k,) in clean], height=4.0)
    sources = [Source("imagenet-a", rows, logits), Source("imagenet-val", clean, control)]
    heads = {"classifier": HeadWeights(np.ones((2, 3), np.float32), np.zeros(2, np.float32))}
    run = write_run(runs, ["imagenet-a"], sources, heads=heads, **plan)
    (run / "log.jsonl").write_text(json.dumps(LOG) + "\n")
    return run


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# --- what travels


def test_a_parcel_holds_the_run_and_neither_host_nor_leftovers(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    (run / "imagenet-a.model" / ".part-00009.parquet.host.1.tmp").write_bytes(b"half")
    (run / "notes.txt").write_text("mine")
    (parcel,) = parcels(tmp_path)
    own = {name for name in contents(run) if not name.endswith((".tmp", "notes.txt"))}
    assert set(parcel.files) == own | {MANIFEST}
    assert HOST.encode() not in parcel.files["log.jsonl"]
    assert [(s.name, s.rows, s.parts, s.of) for s in parcel.sources] == [
        ("imagenet-a.model", 250, 3, 3),  # 100 + 100 + 50
        ("imagenet-val.model", 2 * 12, 12, 12),
    ]


def test_a_log_without_hosts_keeps_everything_else() -> None:
    text = json.dumps(LOG) + "\nhalf a line"
    assert json.loads(without_hosts(text)) == {name: value for name, value in LOG.items() if name != "host"}


def test_places_of_this_machine_in_the_records_are_told(tmp_path: Path) -> None:
    a_run(tmp_path, n=2, model="/srv/me/own.py:make")
    assert parcels(tmp_path)[0].places() == ("/srv/me/own.py:make",)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"expected runs that `hf-robust evaluate --out` wrote in .*, got none"):
        parcels(tmp_path)


@pytest.mark.parametrize("damage", ["logits", "part", "plan", "source"])
def test_a_run_that_is_not_what_its_records_say_is_refused(tmp_path: Path, damage: str) -> None:
    run = a_run(tmp_path)
    part = run / "imagenet-a.model" / "part-00001.parquet"
    if damage == "logits":
        table = pq.read_table(part)
        pq.write_table(table.set_column(0, "id", table["id"].take(list(range(99, -1, -1)))), part)
    elif damage == "part":
        part.unlink()
    elif damage == "plan":
        (run / "plan.json").write_text((run / "plan.json").read_text().replace('"seed": 0', '"seed": 1'))
    else:
        source = run / "imagenet-a.model" / "source.json"
        source.write_text(source.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(DamagedError, match=r"expected (a folder|the parts of)"):
        check_run(run)


def test_a_renamed_folder_is_refused_with_its_name(tmp_path: Path) -> None:
    run = a_run(tmp_path, n=2)
    with pytest.raises(DamagedError, match=rf"name ends in -{run.name[-12:]}, by its plan.json, got 'mine'"):
        check_run(run.rename(tmp_path / "mine"))


def test_the_card_is_valid_and_names_a_config_for_each_source(tmp_path: Path) -> None:
    run = a_run(tmp_path, n=2)
    text = card(None, parcels(tmp_path), repo="me/p")
    configs = DatasetCard(text).data.to_dict()["configs"]
    files = [{"split": "test", "path": f"{run.name}/imagenet-a.model/part-*.parquet"}]
    assert configs[0] == {"config_name": f"{run.name}.imagenet-a.model", "data_files": files}
    assert "hf-robust pull me/p --out runs" in text


def test_the_card_keeps_other_runs_and_other_peoples_text(tmp_path: Path) -> None:
    one, two = a_run(tmp_path / "one", n=2), a_run(tmp_path / "two", n=2, threads=2)
    first = card(None, parcels(one), repo="me/p") + "\nBy hand.\n"
    both = card(first, parcels(two), repo="me/p")
    assert [c["config_name"].split(".")[0] for c in metadata(both)["configs"]] == [one.name] * 2 + [two.name] * 2
    assert "By hand." in both
    assert card(both, parcels(two), repo="me/p") == both


# --- there and back, against a Hub


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with loopback_hub() as running:
        yield running


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    a_run(folder)
    return folder


@pytest.fixture(scope="module")
def repo(hub: Hub, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("home")
    dry = hub.call([*COMMAND, "publish", "predictions", str(runs), "--to", "tester/p", "--dry-run"], home)
    assert dry.returncode == 0, dry.stderr
    assert "nothing was sent" in dry.stdout
    assert not hub.asked("^(POST|PUT) .*(create|commit)")
    done = hub.call([*COMMAND, "publish", "predictions", str(runs), "--to", "tester/p"], home)
    assert done.returncode == 0, done.stderr
    return "tester/p"


def pull(hub: Hub, repo: str, home: Path, out: Path) -> tuple[int, str]:
    done = hub.call([*COMMAND, "pull", repo, "--out", str(out)], home)
    return done.returncode, done.stdout + done.stderr


def test_publishing_is_one_commit_and_tells_no_host(hub: Hub, repo: str) -> None:
    there = hub.repo(f"datasets/{repo}")
    assert len([title for title in there.history() if title.startswith("Predictions of toy-")]) == 1
    assert not [path for path in there.files() if HOST.encode() in there.read(path)]


def test_pulled_predictions_are_equal_byte_by_byte_and_give_the_same_results(
    hub: Hub, repo: str, runs: Path, tmp_path: Path
) -> None:
    code, said = pull(hub, repo, tmp_path, tmp_path / "pulled")
    assert code == 0, said
    before, after = contents(runs), contents(tmp_path / "pulled")
    log = next(name for name in before if name.endswith("log.jsonl"))
    assert {**before, log: without_hosts(before[log].decode()).encode()} == after
    for folder in (runs, tmp_path / "pulled"):
        hub.call([*COMMAND, "score", str(folder)], tmp_path)
    results = [(folder / "results" / "results.json").read_bytes() for folder in (runs, tmp_path / "pulled")]
    shutil.rmtree(runs / "results")
    assert results[0] == results[1]
    assert json.loads(results[0])["results"][0]["protocol"]["software"] == {"torch": "2.14.1"}


def test_pulling_again_leaves_what_is_there(hub: Hub, repo: str, runs: Path, tmp_path: Path) -> None:
    code, said = pull(hub, repo, tmp_path, runs)
    assert code == 0, said
    assert "there already, the same" in said


def test_another_run_of_the_same_name_is_never_overwritten(hub: Hub, repo: str, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "mine")
    (request,) = (tmp_path / "mine").glob("*/requests/*.json")
    request.write_text(request.read_text().replace("null", '"mine"'))
    before = contents(tmp_path / "mine")
    code, said = pull(hub, repo, tmp_path, tmp_path / "mine")
    assert code == 1
    assert "expected no other run in" in said
    assert contents(tmp_path / "mine") == before


def test_an_edited_file_on_the_hub_is_found_and_nothing_is_left_behind(hub: Hub, repo: str, tmp_path: Path) -> None:
    edit = (
        "import sys; from huggingface_hub import HfApi, CommitOperationAdd, hf_hub_download as get; "
        "api = HfApi(); api.create_repo('tester/edited', repo_type='dataset'); "
        "files = [f for f in api.list_repo_files(sys.argv[1], repo_type='dataset') if '/' in f]; "
        "read = lambda f: open(get(sys.argv[1], f, repo_type='dataset'), 'rb').read(); "
        "change = lambda f, b: b.replace(b'null', b'\"no\"') if 'requests' in f else b; "
        "api.create_commit('tester/edited', [CommitOperationAdd(f, change(f, read(f))) for f in files "
        "if 'imagenet-val' not in f], commit_message='edited', repo_type='dataset')"
    )
    done = hub.run(edit, tmp_path, repo)
    assert done.returncode == 0, done.stderr
    code, said = pull(hub, "tester/edited", tmp_path, tmp_path / "pulled")
    assert code == 1
    assert "as its manifest.sha256 names them" in said
    assert list((tmp_path / "pulled").iterdir()) == []


def test_a_repo_without_runs_is_refused_in_one_line(hub: Hub, tmp_path: Path) -> None:
    code, said = pull(hub, "tester/nothing", tmp_path, tmp_path / "pulled")
    assert code == 1
    assert said.count("\n") == 1
    assert "expected a data set with runs at" in said


def test_the_published_rows_load_as_a_data_set(hub: Hub, repo: str, runs: Path, tmp_path: Path) -> None:
    (run,) = runs.iterdir()
    code = "import sys, datasets; d = datasets.load_dataset(*sys.argv[1:], split='test'); print(d.num_rows, d[7]['id'])"
    done = hub.run(code, tmp_path, repo, f"{run.name}.imagenet-a.model")
    assert done.stdout.split() == ["250", "imagenet-a/7.png"], done.stderr
