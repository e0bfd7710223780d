"""The loopback Hub of the tests, asked by the real libraries in processes of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_hub import NAMESPACES, Hub, loopback_hub

API = "import sys; from huggingface_hub import HfApi, CommitOperationAdd as Add; api = HfApi()\n"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with loopback_hub() as served:
        yield served


def run(hub: Hub, code: str, home: Path, *arguments: str, token: str | None = "") -> str:
    done = hub.run(API + code, home, *arguments, token=token)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refused(hub: Hub, code: str, home: Path, *, token: str | None = "") -> str:
    """The type and status of the error that the code ends with."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    code = (
        f"try:\n{lines}except Exception as e:\n    print(type(e).__name__, e.response.status_code)\nelse: print('none')"
    )
    return run(hub, code, home, token=token)


def test_the_token_says_who_one_is(hub: Hub, tmp_path: Path) -> None:
    said = run(hub, "me = api.whoami(); print(me['name'], [o['name'] for o in me['orgs']])", tmp_path)
    assert said == f"tester {[n for n in NAMESPACES if n != 'tester']}"


def test_one_commit_holds_regular_and_lfs_files(hub: Hub, tmp_path: Path) -> None:
    code = """
api.create_repo("hf_robust/x", repo_type="dataset")
files = [Add("a/b/text.md", b"# text"), Add("data/t.parquet", b"\\0large" * 9), Add("empty.txt", b"")]
print(api.create_commit("hf_robust/x", files, commit_message="all", repo_type="dataset").oid)
"""
    oid = run(hub, code, tmp_path)
    repo = hub.repo("datasets/hf_robust/x")
    assert repo.head == oid
    assert repo.history() == ["all", "initial commit"]
    assert repo.files() == [".gitattributes", "a/b/text.md", "data/t.parquet", "empty.txt"]
    large = repo.at().files["data/t.parquet"]
    assert (large.content, large.lfs) == (b"\0large" * 9, hashlib.sha256(b"\0large" * 9).hexdigest())
    assert repo.at().files["a/b/text.md"].lfs is None


def test_what_is_read_back_is_what_was_written(hub: Hub, tmp_path: Path) -> None:
    code = """
from huggingface_hub import snapshot_download, hf_hub_download
api.create_repo("tester/m")
for name, content in (("a/b.txt", b"first"), ("c.bin", b"\\0second"), ("a/d/e.txt", b"third")):
    api.upload_file(path_or_fileobj=content, path_in_repo=name, repo_id="tester/m")
from pathlib import Path
folder = Path(snapshot_download("tester/m"))
print(*(open(folder / n, "rb").read() for n in ("a/b.txt", "c.bin", "a/d/e.txt")))
tree = [(type(e).__name__, e.path) for e in api.list_repo_tree("tester/m", recursive=True)]
print(sorted(tree)[1:])
print(sorted(e.path for e in api.list_repo_tree("tester/m", "a")))
print(api.file_exists("tester/m", "c.bin"), api.file_exists("tester/m", "no.bin"))
print([s.size for s in api.model_info("tester/m", files_metadata=True).siblings][1:])
print([e.lfs is not None for e in api.get_paths_info("tester/m", ["a/b.txt", "c.bin", "no"])])
"""
    lines = run(hub, code, tmp_path).splitlines()
    assert lines[0] == r"b'first' b'\x00second' b'third'"
    files = [("RepoFile", "a/b.txt"), ("RepoFile", "a/d/e.txt"), ("RepoFile", "c.bin")]
    assert lines[1] == str([*files, ("RepoFolder", "a"), ("RepoFolder", "a/d")])
    assert lines[2:] == ["['a/b.txt', 'a/d']", "True False", "[5, 5, 7]", "[False, True]"]


def test_tags_and_branches_keep_their_commits(hub: Hub, tmp_path: Path) -> None:
    code = """
from huggingface_hub import hf_hub_download
api.create_repo("tester/s", repo_type="space", space_sdk="gradio")
kind = {"repo_id": "tester/s", "repo_type": "space"}
api.upload_file(path_or_fileobj=b"1", path_in_repo="v", **kind)
api.create_tag(tag="v0.4.6", **kind)
api.create_branch(branch="next", **kind)
api.upload_file(path_or_fileobj=b"2", path_in_repo="v", **kind)
api.create_tag(tag="v0.4.6", exist_ok=True, **kind)
print(*(open(hf_hub_download(filename="v", revision=r, **kind)).read() for r in ("v0.4.6", "next", "main")))
found = api.list_repo_refs(**kind)
print([t.name for t in found.tags], [b.name for b in found.branches])
api.delete_file("v", **kind)
print(len(api.list_repo_commits(**kind)), api.repo_info(**kind).sdk)
"""
    assert run(hub, code, tmp_path).splitlines() == ["1 1 2", "['v0.4.6'] ['main', 'next']", "4 gradio"]


def test_a_private_repo_is_not_there_for_others(hub: Hub, tmp_path: Path) -> None:
    run(hub, "api.create_repo('tester/p', repo_type='dataset', private=True)", tmp_path)
    look = "api.dataset_info('tester/p')"
    assert refused(hub, look, tmp_path) == "none"
    assert refused(hub, look, tmp_path, token=hub.reader_token) == "RepositoryNotFoundError 404"
    assert refused(hub, look, tmp_path, token=None) == "RepositoryNotFoundError 401"


def test_a_gated_repo_opens_once_access_is_granted(hub: Hub, tmp_path: Path) -> None:
    code = "api.create_repo('tester/g', repo_type='dataset'); api.update_repo_settings('tester/g', gated='auto', "
    run(hub, code + "repo_type='dataset')", tmp_path)
    look = "from huggingface_hub import hf_hub_download as get\nget('tester/g', '.gitattributes', repo_type='dataset')"
    assert refused(hub, look, tmp_path, token=hub.reader_token) == "GatedRepoError 403"
    assert refused(hub, look, tmp_path, token=None) == "GatedRepoError 401"
    assert run(hub, "print(api.dataset_info('tester/g').gated)", tmp_path, token=None) == "auto"
    hub.grant("datasets/tester/g")
    assert refused(hub, look, tmp_path, token=hub.reader_token) == "none"


def test_only_owners_write_and_only_into_what_exists(hub: Hub, tmp_path: Path) -> None:
    run(hub, "api.create_repo('tester/m')", tmp_path)
    write = "api.upload_file(path_or_fileobj=b'1', path_in_repo='v', repo_id='{}')"
    assert refused(hub, write.format("tester/m"), tmp_path, token=hub.reader_token) == "HfHubHTTPError 403"
    assert refused(hub, write.format("tester/none"), tmp_path) == "RepositoryNotFoundError 404"
    assert refused(hub, "api.create_repo('someone/m')", tmp_path) == "HfHubHTTPError 403"
    assert refused(hub, "api.whoami()", tmp_path, token="hf_wrong").removeprefix("HfHub") == "HTTPError 401"
    look = "from huggingface_hub import hf_hub_download\nhf_hub_download('tester/m', '{}', revision='{}')"
    assert refused(hub, look.format("v", "main"), tmp_path).removeprefix("Remote") == "EntryNotFoundError 404"
    assert refused(hub, look.format("v", "gone"), tmp_path) == "RevisionNotFoundError 404"


def test_a_commit_on_an_old_parent_is_refused(hub: Hub, tmp_path: Path) -> None:
    code = """
api.create_repo("tester/m"); old = api.model_info("tester/m").sha
api.upload_file(path_or_fileobj=b"1", path_in_repo="v", repo_id="tester/m")
api.create_commit("tester/m", [Add("v", b"2")], commit_message="late", parent_commit=old)"""
    assert refused(hub, code, tmp_path) == "HfHubHTTPError 412"
    assert hub.repo("tester/m").read("v") == b"1"


def test_metadata_that_the_hub_would_refuse_is_refused(hub: Hub, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", minversion="1.0", reason="earlier versions always ask the official Hub")
    code = (
        "from huggingface_hub import DatasetCard\nDatasetCard('---\\ntags: one\\n---\\n').validate(repo_type='dataset')"
    )
    done = hub.run(API + code, tmp_path)
    assert done.returncode == 1
    assert '"tags" must be an array' in done.stderr


def test_the_same_large_file_is_sent_once(hub: Hub, tmp_path: Path) -> None:
    code = """
for name in ("tester/a", "tester/b"):
    api.create_repo(name)
    api.upload_file(path_or_fileobj=b"\\0" * 99, path_in_repo="x.bin", repo_id=name)
"""
    run(hub, code, tmp_path)
    assert len(hub.asked("^PUT /lfs-objects/")) == 1
    assert hub.repo("tester/b").read("x.bin") == b"\0" * 99


def test_requests_fail_on_demand(hub: Hub, tmp_path: Path) -> None:
    run(hub, "api.create_repo('tester/m')", tmp_path)
    hub.fail_next("GET /api/models", status=429, times=2, skip=1, retry_after=0)
    code = "for _ in range(4):\n    try: api.model_info('tester/m'); print(200)\n"
    code += "    except Exception as e: print(e.response.status_code, e.response.headers['Retry-After'])"
    assert run(hub, code, tmp_path).splitlines() == ["200", "429 0", "429 0", "200"]
    assert [r.status for r in hub.asked("GET /api/models/tester/m$")] == [200, 429, 429, 200]


def test_a_connection_ends_in_mid_request_or_before_the_answer(hub: Hub, tmp_path: Path) -> None:
    run(hub, "api.create_repo('tester/m')", tmp_path)
    write = "api.upload_file(path_or_fileobj=b'1', path_in_repo='v', repo_id='tester/m')"
    hub.fail_next("POST .*/commit/", drop="request")
    assert hub.run(API + write, tmp_path).returncode == 1
    assert hub.repo("tester/m").history() == ["initial commit"]
    hub.fail_next("POST .*/commit/", drop="answer")
    assert hub.run(API + write, tmp_path).returncode == 1
    assert hub.repo("tester/m").read("v") == b"1"


def test_datasets_loads_and_streams_what_it_pushed(hub: Hub, tmp_path: Path) -> None:
    code = """
import json
from datasets import Dataset, load_dataset
Dataset.from_dict({"x": list(range(7)), "t": [str(i) for i in range(7)]}).push_to_hub("tester/d", split="test")
loaded = load_dataset("tester/d")
streamed = list(load_dataset("tester/d", split="test", streaming=True))
print(json.dumps([list(loaded), loaded["test"]["x"][:], streamed[6]]))
"""
    assert json.loads(run(hub, code, tmp_path)) == [["test"], list(range(7)), {"x": 6, "t": "6"}]
