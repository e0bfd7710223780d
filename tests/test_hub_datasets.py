"""Publishing built data sets: against a loopback Hub, with the real libraries in processes of their own."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from builder_archives import SETS, Files, as_folder, as_tar, rows_of
from hypothesis import given
from hypothesis import strategies as st
from loopback_hub import ROOT, Hub, Repo, Stored, loopback_hub

from hf_robust.benchmarks import benchmarks
from hf_robust.builders import RECIPES, build, find
from hf_robust.cli import main
from hf_robust.hub.cards import KEPT, dataset_card, eval_yaml, record
from hf_robust.hub.datasets import publish_dataset, publishable, shard_bounds

NAMES = ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d")
MAIN = """
import json, os, sys
from hf_robust.cli import main
for line in json.loads(sys.argv[1]):
    print("exit", main(line), flush=True)
"""
PUBLISH = """
import os, sys
from pathlib import Path
from huggingface_hub import HfApi
from hf_robust.builders import find
from hf_robust.hub.datasets import publish_dataset
built = find(sys.argv[1], out=Path("out"))
def publish(**options):
    return publish_dataset(built, "tester/set", allow_incomplete=True, **options)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with loopback_hub() as served:
        yield served


def cli(hub: Hub, home: Path, *lines: list[str], token: str | None = "", **variables: str) -> tuple[str, str]:
    """What the commands print, all in one process: their exit codes stand between, as "exit 0"."""
    done = hub.run(MAIN, home, json.dumps(lines), token=token, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def python(hub: Hub, home: Path, code: str, *arguments: str, token: str | None = "") -> str:
    done = hub.run(code, home, *arguments, token=token)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built_in(home: Path, name: str, files: Files | None = None) -> Path:
    """A folder with a build of `name` in `out`, to publish with PUBLISH."""
    build(name, as_folder(home / "source", files or SETS[name]), allow_incomplete=True, out=home / "out")
    return home


@dataclass(frozen=True)
class Published:
    hub: Hub
    home: Path
    printed: str


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """The four sets, each built and pushed by one command."""
    home = tmp_path_factory.mktemp("published")
    with loopback_hub() as served:
        sources = {name: as_tar(home / f"{name}.tar", SETS[name]) for name in NAMES}
        out, _ = cli(
            served,
            home,
            *(
                ["build", name, "--source", str(sources[name]), "--out", "out", "--allow-incomplete", "--push-to-hub",
                 f"hf_robust/{name}"]
                for name in NAMES
            ),
        )  # fmt: skip
        yield Published(served, home, out)


# --- what is on the Hub afterwards


def test_one_commit_holds_data_card_manifest_record_and_what_fiftyone_reads(published: Published) -> None:
    assert published.printed.count("exit 0") == len(NAMES)
    for name in NAMES:
        repo = published.hub.repo(f"datasets/hf_robust/{name}")
        splits = RECIPES[name].splits
        files = [".gitattributes", "README.md", *(f"data/{s}-00000-of-00001.parquet" for s in sorted(splits))]
        assert repo.files() == [*files, "fiftyone.yml", "hf-robust.json", "manifest.sha256"]
        assert len(repo.history()) == 1 + 1  # as created, and the push


def test_only_the_set_whose_pictures_carry_a_licence_is_public_by_default(published: Published) -> None:
    private = {name: published.hub.repo(f"datasets/hf_robust/{name}").private for name in NAMES}
    assert private == {"imagenet-a": True, "imagenet-o": True, "spurious-imagenet": False, "imagenet-d": True}


READ = """
import hashlib, json
from datasets import Image, load_dataset
found = {}
for name in sys.argv[1:]:
    loaded = load_dataset(f"hf_robust/{name}")
    streamed = load_dataset(f"hf_robust/{name}", streaming=True)
    for way, splits in (("loaded", loaded), ("streamed", streamed)):
        rows = [r for s in splits.values() for r in s.cast_column("image", Image(decode=False))]
        for row in rows:
            row["image"] = hashlib.sha256(row["image"]["bytes"]).hexdigest()
        found[f"{name} {way}"] = rows
    found[f"{name} features"] = {split: str(rows.features) for split, rows in loaded.items()}
    found[f"{name} size"] = next(iter(loaded.values()))[0]["image"].size
print(json.dumps(found))
"""


def test_what_is_loaded_and_streamed_from_the_hub_is_what_was_built(published: Published, tmp_path: Path) -> None:
    found = json.loads(python(published.hub, tmp_path, "import sys" + READ, *NAMES))
    for name in NAMES:
        expected = rows_of(name, published.home / "out")
        for row in expected:
            stored = row["image"]
            assert isinstance(stored, dict)
            row["image"] = hashlib.sha256(stored["bytes"]).hexdigest()
            assert row["image"] == row["sha256"]
        assert found[f"{name} loaded"] == found[f"{name} streamed"] == expected
        features = {split: str(RECIPES[name].features()) for split in RECIPES[name].splits}
        assert found[f"{name} features"] == features
        assert found[f"{name} size"] == [12, 12]  # a picture is decoded without being asked


def test_the_manifest_is_what_sha256sum_reads(published: Published) -> None:
    text = published.hub.repo("datasets/hf_robust/imagenet-a").read("manifest.sha256").decode()
    names = [n.removeprefix("imagenet-a/") for n in SETS["imagenet-a"] if "README" not in n]
    lines = [f"{hashlib.sha256(SETS['imagenet-a'][f'imagenet-a/{n}']).hexdigest()}  {n}\n" for n in sorted(names)]
    assert text == "".join(lines)


def test_the_card_passes_the_metadata_checks_of_huggingface_hub(published: Published, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", minversion="1.0", reason="earlier versions always ask the official Hub")
    code = """
import sys
from huggingface_hub import DatasetCard
for name in sys.argv[1:]:
    card = DatasetCard.load(f"hf_robust/{name}")
    card.validate(repo_type="dataset")
    data = card.data
    print(data.license, data.size_categories, data.task_categories, [c["config_name"] for c in data.configs])
"""
    lines = python(published.hub, tmp_path, code, *NAMES).splitlines()
    classified = "['image-classification']"
    assert lines == [
        f"other ['n<1K'] {classified} ['default']",
        "other ['n<1K'] None ['default']",  # no labels: accuracy on it is not defined
        "cc-by-2.0 ['n<1K'] None ['default']",
        f"other ['n<1K'] {classified} ['default']",
    ]


def test_the_card_says_what_is_in_the_catalog(published: Published) -> None:
    for name in NAMES:
        card = published.hub.repo(f"datasets/hf_robust/{name}").read("README.md").decode()
        facts = benchmarks()[name]
        for text in (facts.description, facts.licence, facts.citation, facts.homepage, *facts.caveats):
            assert text in card
        for reason in (*facts.refused.values(), *facts.protocol.values(), facts.mask_name):
            assert reason in card
        assert "INCOMPLETE" in card
        assert all(f"| `{column}` |" in card for column in RECIPES[name].features())
        assert not re.search(r"\| `\w+` \| [^|]* \|  \|", card)  # every column has its words


def test_the_python_in_the_cards_runs(published: Published, tmp_path: Path) -> None:
    code = ""
    for name in NAMES:
        card = published.hub.repo(f"datasets/hf_robust/{name}").read("README.md").decode()
        blocks = [b for b in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "fiftyone" not in b]
        assert len(blocks) == 2
        code += "\n".join([*blocks, f"print({name!r})\n"])
    assert [n for n in python(published.hub, tmp_path, code).splitlines() if n in NAMES] == list(NAMES)


def test_the_commands_in_the_card_are_commands(published: Published) -> None:
    from hf_robust.cli import _parser

    card = published.hub.repo("datasets/hf_robust/imagenet-d").read("README.md").decode()
    (block,) = re.findall(r"```bash\n(.*?)```", card, re.DOTALL)
    lines = [line for line in block.splitlines() if line.startswith("hf-robust ")]
    assert [_parser().parse_args(line.split()[1:]).command.__name__ for line in lines] == ["evaluate", "report"]


def test_fiftyone_is_told_the_picture_and_the_class_columns(published: Published) -> None:
    labels = {}
    for name in NAMES:
        told = yaml.safe_load(published.hub.repo(f"datasets/hf_robust/{name}").read("fiftyone.yml"))
        assert (told["format"], told["filepath"]) == ("ParquetFilesDataset", "image")
        labels[name] = told["classification_fields"]
    assert labels == {
        "imagenet-a": ["label"],
        "imagenet-o": ["confused_with"],
        "spurious-imagenet": ["spurious_class"],
        "imagenet-d": ["label"],
    }


def test_the_token_is_in_no_file_and_no_output(published: Published) -> None:
    assert published.hub.token not in published.printed
    for repo in published.hub.repos.values():
        assert not [p for p in repo.files() if published.hub.token.encode() in repo.read(p)]
    written = [p for p in published.home.rglob("*") if p.is_file()]
    assert not [p for p in written if published.hub.token.encode() in p.read_bytes()]


def test_pushing_again_changes_nothing_and_sends_nothing(published: Published) -> None:
    repo = published.hub.repo("datasets/hf_robust/imagenet-a")
    head, sent = repo.head, len(published.hub.asked("^(PUT|POST) "))
    line = ["build", "imagenet-a", "--out", "out", "--allow-incomplete", "--push-to-hub", "hf_robust/imagenet-a"]
    out, _ = cli(published.hub, published.home, line, [*line, "--dry-run"])
    assert "nothing to change" in out
    assert out.count("same    ") == len(repo.files()) - 1  # all but .gitattributes
    assert "card: as it is on the Hub" in out
    assert (repo.head, len(published.hub.asked("^(PUT|POST) "))) == (head, sent)


# --- read by evaluate


ROWS = """
import sys
from hf_robust.data import open_rows
for repo in sys.argv[1:]:
    try:
        rows = open_rows("imagenet-o", repo=repo)
        print(rows.complete, len(rows.differences), len(rows.table), rows.read(0)[:2], rows.table.keys[0][:8])
    except Exception as error:
        print(type(error).__name__, error)
"""


def changed(hub: Hub, name: str, path: str, content: bytes | None, *, into: str | None = None) -> None:
    """Puts a file into a data set of the Hub, or into a copy of it; None takes it out."""
    repo = hub.repo(f"datasets/{name}")
    files = {p: f for p, f in repo.at().files.items() if p != path}
    target = repo if into is None else hub.repos.setdefault(("datasets", into), Repo("datasets", into))
    target.add("main", "edited", files if content is None else {**files, path: Stored(content)})


def test_a_set_on_the_hub_is_as_complete_as_its_record_says(hub: Hub, tmp_path: Path) -> None:
    python(hub, built_in(tmp_path, "imagenet-o"), PUBLISH + "publish()", "imagenet-o")
    kept = json.loads(hub.repo("datasets/tester/set").read("hf-robust.json"))
    edits: tuple[dict[str, object], ...] = ({"differences": []}, {"fingerprint": "f" * 64}, {"name": "imagenet-a"})
    for number, edit in enumerate(edits):
        changed(hub, "tester/set", "hf-robust.json", json.dumps({**kept, **edit}).encode(), into=f"tester/{number}")
    changed(hub, "tester/set", "hf-robust.json", None, into="tester/3")
    said = python(hub, tmp_path, ROWS, "tester/set", *(f"tester/{n}" for n in range(4))).splitlines()

    content = SETS["imagenet-o"][min(n for n in SETS["imagenet-o"] if n.endswith(".JPEG"))]
    ending = f"2 {content[:2]!r} {hashlib.sha256(content).hexdigest()[:8]}"
    assert said[0] == f"False {len(kept['differences'])} {ending}"
    assert said[1] == f"True 0 {ending}"
    assert said[2].startswith("MissingDataError expected the pictures that hf-robust.json of tester/1 records")
    assert said[3].startswith("MissingDataError expected imagenet-o in tester/2, got imagenet-a")
    assert said[4] == f"False 1 {ending}"  # no record: nothing says that it is the official set


# --- shards


def test_small_shards_load_like_one_and_old_shards_go_in_the_same_commit(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-a")
    count = len(SETS["imagenet-a"]) - 1  # README.txt is no picture
    python(hub, tmp_path, PUBLISH + "publish(shard_bytes=1)", "imagenet-a")
    repo = hub.repo("datasets/tester/set")
    names = [f"data/test-{n:05d}-of-{count:05d}.parquet" for n in range(count)]
    assert [p for p in repo.files() if p.startswith("data/")] == names
    code = "from datasets import load_dataset\nprint(load_dataset('tester/set', split='test')['file_name'][:])"
    before = python(hub, tmp_path, code)
    done = python(hub, tmp_path, PUBLISH + "print([c.state for c in publish().push.changes])", "imagenet-a")
    assert done.count("deleted") == count
    assert [p for p in repo.files() if p.startswith("data/")] == ["data/test-00000-of-00001.parquet"]
    assert len(repo.history()) == 1 + 2
    assert python(hub, tmp_path, code) == before


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_shards_cover_every_row_once_and_stay_within_the_limit(sizes: list[int], limit: int) -> None:
    bounds = shard_bounds(sizes, limit)
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(len(sizes)))
    assert all(sum(sizes[a:b]) <= limit or sum(s > 0 for s in sizes[a:b]) == 1 for a, b in bounds)


# --- dry run


def test_a_dry_run_shows_files_sizes_and_the_card_and_sends_nothing(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    line = ["build", "imagenet-o", "--out", "out", "--allow-incomplete", "--push-to-hub", "tester/set", "--dry-run"]
    out, _ = cli(hub, tmp_path, line)
    assert re.search(r"^new     data/test-00000-of-00001\.parquet  \d[\d,]* bytes$", out, re.MULTILINE)
    assert "+# ImageNet-O\n" in out
    assert f"dry run, nothing was sent: {hub.endpoint}/datasets/tester/set would be made, afterwards private" in out
    assert {r.method for r in hub.requests} == {"GET"}
    assert hub.repos == {}


def test_a_dry_run_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    line = ["build", "imagenet-o", "--out", "out", "--allow-incomplete", "--push-to-hub", "tester/set", "--dry-run"]
    out, err = cli(hub, tmp_path, line, HF_HUB_OFFLINE="1")
    assert out.endswith("exit 0\n")
    assert "compared with nothing: expected to reach" in err
    assert hub.requests == []


def test_the_diff_of_the_card_is_against_the_one_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    python(hub, tmp_path, PUBLISH + "publish()", "imagenet-o")
    card = hub.repo("datasets/tester/set").read("README.md")
    changed(hub, "tester/set", "README.md", card.replace(b"# ImageNet-O\n", b"# Mine\n"))
    out = python(hub, tmp_path, PUBLISH + "print(publish(dry_run=True).card_diff)", "imagenet-o")
    assert [line for line in out.splitlines() if line.startswith(("-", "+"))][2:] == ["-# Mine", "+# ImageNet-O"]


def test_what_others_wrote_into_the_card_is_kept(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    python(hub, tmp_path, PUBLISH + "publish()", "imagenet-o")
    card = hub.repo("datasets/tester/set").read("README.md").decode()
    edited = card.replace("pretty_name: ImageNet-O", "pretty_name: Mine\nextra_gated_heading: Hello") + "\nA note.\n"
    changed(hub, "tester/set", "README.md", edited.encode())
    python(hub, tmp_path, PUBLISH + "publish()", "imagenet-o")
    now = hub.repo("datasets/tester/set").read("README.md").decode()
    assert "extra_gated_heading: Hello" in now
    assert "pretty_name: ImageNet-O" in now
    assert now.endswith(f"{KEPT}\n\nA note.\n")


# --- when it goes wrong


def one_line(err: str) -> str:
    (line,) = [line for line in err.splitlines() if line.startswith("hf-robust: error")]
    assert "Traceback" not in err
    return line


def test_a_push_that_fails_leaves_the_repo_as_it_was_and_the_next_one_goes_on(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-a")
    python(hub, tmp_path, "from huggingface_hub import HfApi\nHfApi().create_repo('tester/set', repo_type='dataset', "
           "private=True)")  # fmt: skip
    repo = hub.repo("datasets/tester/set")
    head = repo.head
    line = ["build", "imagenet-a", "--out", "out", "--allow-incomplete", "--push-to-hub", "tester/set"]
    hub.fail_next("POST .*/commit/main", status=500, times=99, retry_after=0)
    out, err = cli(hub, tmp_path, line)
    assert out == "exit 1\n"
    assert "the Hub answered 500" in one_line(err)
    assert "nothing was changed, run it again later" in err
    assert (repo.head, repo.files()) == (head, [".gitattributes"])
    hub.failures.clear()
    out, _ = cli(hub, tmp_path, line)
    assert "pushed in one commit" in out
    assert len(hub.asked("^PUT /lfs-objects/")) == 1  # by the push that failed


def test_a_killed_push_leaves_the_repo_as_it_was_and_sends_the_rest_the_next_time(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-a")
    kill = "publish(shard_bytes=1, say=lambda line: os.kill(os.getpid(), 9) if line.startswith('sending 3') else None)"
    assert hub.run(PUBLISH + kill, tmp_path, "imagenet-a").returncode == -9
    repo = hub.repo("datasets/tester/set")
    assert (repo.history(), repo.files()) == (["initial commit"], [".gitattributes"])
    assert len(hub.asked("^PUT /lfs-objects/")) == 2
    python(hub, tmp_path, PUBLISH + "publish(shard_bytes=1)", "imagenet-a")
    assert len(repo.history()) == 1 + 1
    assert len(hub.asked("^PUT /lfs-objects/")) == 3  # of three shards two were there
    assert repo.private


def test_a_busy_hub_and_broken_connections_are_tried_again(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-a")
    hub.fail_next("POST .*/commit/main", status=429, times=2, retry_after=0)
    hub.fail_next("PUT /lfs-objects/", status=503)
    hub.fail_next("POST /api/repos/create", drop="request")
    hub.fail_next("POST .*/commit/main", drop="answer", skip=2)  # it is done, and nobody is told
    heard = "said = []\npublish(say=said.append)\nprint(*said, sep='\\n')"
    out = python(hub, tmp_path, PUBLISH + heard, "imagenet-a")
    assert "trying again in 0 s" in out
    assert hub.repo("datasets/tester/set").history()[1:] == ["initial commit"]
    assert len(hub.repo("datasets/tester/set").files()) == 1 + 5


def test_a_commit_of_somebody_else_in_between_is_not_overwritten(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-a")
    code = """
def say(line):
    if line.startswith("sending 1"):
        HfApi().upload_file(path_or_fileobj=b"x", path_in_repo="other", repo_id="tester/set", repo_type="dataset")
try: publish(say=say)
except RuntimeError as error: print(error)
"""
    out = python(hub, tmp_path, PUBLISH + code, "imagenet-a")
    assert out.startswith("somebody else changed http://127.0.0.1")
    assert hub.repo("datasets/tester/set").files() == [".gitattributes", "other"]


def test_what_the_hub_refuses_is_one_line_with_the_page(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    line = ["build", "imagenet-o", "--out", "out", "--allow-incomplete", "--push-to-hub", "hf_robust/set"]
    page = f"{hub.endpoint}/datasets/hf_robust/set"
    _, err = cli(hub, tmp_path, line, token=None)
    assert "hf auth login" in one_line(err)
    assert page in err
    _, err = cli(hub, tmp_path, line, token=hub.reader_token)
    assert f"you may not write to {page} (403)" in one_line(err)
    _, err = cli(hub, tmp_path, line, token="hf_" + "w" * 34)
    assert "hf auth login" in one_line(err)
    assert "hf_" + "w" * 9 not in err
    assert hub.repos == {}


def test_a_gated_set_is_closed_before_its_data_are_there(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    python(hub, tmp_path, PUBLISH + "publish(private=False, gated='auto')", "imagenet-o")
    repo = hub.repo("datasets/tester/set")
    assert (repo.private, repo.gated) == (False, "auto")
    asked = [r.path.rpartition("set/")[2] for r in hub.asked("^(PUT|POST) /api/datasets/")]
    assert asked.index("settings") < asked.index("commit/main")
    assert "extra_gated_prompt: The released code is MIT" in repo.read("README.md").decode()
    said = python(hub, tmp_path, ROWS, "tester/set", token=hub.reader_token)
    page = f"{hub.endpoint}/datasets/tester/set"
    assert said == f"MissingDataError tester/set is gated: accept its terms at {page}, then run `hf auth login`\n"


def test_a_public_repo_takes_pictures_without_a_licence_only_when_told_to(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    code = """
def is_private():
    return HfApi().dataset_info("tester/set").private
HfApi().create_repo("tester/set", repo_type="dataset")
try: publish()
except ValueError as error: print(error)
print(HfApi().list_repo_files("tester/set", repo_type="dataset"), is_private())
publish(private=True); print(is_private())
publish(); print(is_private())
publish(private=False); print(is_private())
"""
    said, *lines = python(hub, tmp_path, PUBLISH + code, "imagenet-o").splitlines()
    assert said.startswith("expected a private repo for imagenet-o, got the public tester/set")
    assert lines == ["['.gitattributes'] False", "True", "True", "False"]


def test_a_damaged_build_is_not_published(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-a")
    (arrow,) = find("imagenet-a", out=tmp_path / "out").path.glob("*.arrow")
    content, picture = arrow.read_bytes(), SETS["imagenet-a"]["imagenet-a/n01531178/0.01_washbasin _ bucket_0.5.jpeg"]
    arrow.write_bytes(content.replace(picture, picture[:-1] + b"!"))
    said = python(hub, tmp_path, PUBLISH + "try: publish()\nexcept ValueError as e: print(e)", "imagenet-a")
    assert "expected the bytes that were built for 'n01531178/0.01_washbasin _ bucket_0.5.jpeg'" in said
    assert hub.repos == {}


# --- refused before anything is asked


@pytest.mark.parametrize("name", ["imagenet-val", "imagenet-train"])
def test_imagenet_itself_is_never_pushed(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(as_folder(tmp_path / "source", SETS[name]))
    assert main(["build", name, "--source", source, "--out", str(tmp_path / "out"), "--push-to-hub", "me/x"]) == 1
    assert "is never pushed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_incomplete_build_is_refused(tmp_path: Path) -> None:
    built = build("imagenet-o", as_tar(tmp_path / "o.tar", SETS["imagenet-o"]), allow_incomplete=True, out=tmp_path)
    with pytest.raises(ValueError, match=r"expected a complete imagenet-o, got one with 4 differences.*--allow-incom"):
        publish_dataset(built, "me/set")


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ([], "expected --source PATH_OR_URL to build from, or --push-to-hub REPO"),
        (["--dry-run"], "expected --push-to-hub REPO with --dry-run"),
        (["--source", "x", "--public"], "expected --push-to-hub REPO with --private or --public"),
        (["--source", "x", "--gated", "off"], "expected --push-to-hub REPO with --gated"),
        (["--push-to-hub", "no-owner"], "expected a repo as OWNER/NAME, got 'no-owner'"),
        (["--push-to-hub", "me/set"], "build it with: hf-robust build imagenet-a --source PATH_OR_URL"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    given_options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", "imagenet-a", "--out", str(tmp_path), *given_options]) == 1
    assert said in capsys.readouterr().err


def test_a_set_outside_the_catalog_has_no_card() -> None:
    with pytest.raises(ValueError, match="expected a benchmark of the catalog, got the data set 'mine'"):
        publishable("mine")


def test_only_the_first_process_of_a_launch_talks_to_the_hub(hub: Hub, tmp_path: Path) -> None:
    built_in(tmp_path, "imagenet-o")
    line = ["build", "imagenet-o", "--out", "out", "--allow-incomplete", "--push-to-hub", "tester/set"]
    _, err = cli(hub, tmp_path, line, RANK="1")
    assert "this is number 1 of a launch" in one_line(err)
    assert hub.repos == {}


def test_the_builder_script_of_a_set_publishes_it(hub: Hub, tmp_path: Path) -> None:
    source = as_tar(tmp_path / "o.tar", SETS["imagenet-o"])
    command = [sys.executable, str(ROOT / "dataset_scripts" / "imagenet_o.py"), "--source", str(source), "--out", "out"]
    done = hub.call([*command, "--allow-incomplete", "--push-to-hub", "tester/set", "--eval-yaml"], tmp_path)
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(hub.repo("datasets/tester/set").read("eval.yaml"))
    assert told["tasks"] == [{"id": "imagenet-o", "config": "default", "split": "test"}]


def test_a_benchmark_of_three_splits_is_three_tasks() -> None:
    told = yaml.safe_load(eval_yaml(benchmarks()["imagenet-d"], ["background", "texture", "material"]))
    assert [task["id"] for task in told["tasks"]] == [
        "imagenet-d-background", "imagenet-d-texture", "imagenet-d-material"
    ]  # fmt: skip


def test_the_card_of_a_complete_build_is_not_marked(tmp_path: Path) -> None:
    from dataclasses import replace

    from hf_robust.hub.cards import Sizes

    built = build("imagenet-o", as_tar(tmp_path / "o.tar", SETS["imagenet-o"]), allow_incomplete=True, out=tmp_path)
    whole = replace(built, complete=True, differences=())
    sizes = {"test": Sizes(2_000, 10, 10)}
    card = dataset_card(whole, benchmarks()["imagenet-o"], "me/set", built.load(), sizes=sizes)
    assert "INCOMPLETE" not in card
    assert "- 1K<n<10K\n" in card
    assert "built_at" not in record(built)  # the same for equal builds
