"""`hf-robust verify`: every picture's SHA-256 computed again; what differs is named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from builder_archives import SETS, as_folder, as_tar, as_targz, as_zip, picture

from hf_robust.builders import BuildError, build, build_at, find, verify_build, verify_pictures
from hf_robust.cli import main
from hf_robust.hub.datasets import write_parquet

PICTURES = {
    name.removeprefix("imagenet-a/"): content for name, content in SETS["imagenet-a"].items() if "README" not in name
}
FIRST = min(PICTURES)


def _built(place: Path, name: str = "imagenet-a") -> Path:
    build(name, as_folder(place / "source", SETS[name]), allow_incomplete=True, out=place / "out")
    return place / "out"


def _manifest(path: Path) -> Path:
    path.write_text("".join(f"{hashlib.sha256(c).hexdigest()}  {n}\n" for n, c in PICTURES.items()), encoding="utf-8")
    return path


def _damage(out: Path, content: bytes) -> None:
    (arrow,) = find("imagenet-a", out=out).path.glob("*.arrow")
    whole = arrow.read_bytes()
    assert content in whole
    arrow.write_bytes(whole.replace(content, content[:-1] + b"!"))


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_build_is_verified_by_its_pictures(tmp_path: Path, name: str) -> None:
    built = find(name, out=_built(tmp_path, name))
    done = verify_build(built)
    assert (done.pictures, done.fingerprint) == (built.rows, built.fingerprint)


def test_a_picture_with_other_bytes_is_named(tmp_path: Path) -> None:
    out = _built(tmp_path)
    _damage(out, PICTURES[FIRST])
    with pytest.raises(BuildError, match=f"others for 1 of them in .*, the first: {FIRST!r} has SHA-256 "):
        verify_build(find("imagenet-a", out=out))


def test_a_build_with_another_fingerprint_than_its_record_is_no_build(tmp_path: Path) -> None:
    built = find("imagenet-a", out=_built(tmp_path))
    record = json.loads((built.path / "hf-robust.json").read_text())
    (built.path / "hf-robust.json").write_text(json.dumps({**record, "fingerprint": "0" * 64}))
    with pytest.raises(BuildError, match=r"expected 3 pictures with the fingerprint 000000000000 of hf-robust.json"):
        verify_build(find("imagenet-a", out=tmp_path / "out"))


@pytest.mark.parametrize("make", [as_tar, as_targz, as_zip, as_folder])
def test_archives_and_folders_are_verified_against_a_manifest(tmp_path: Path, make: object) -> None:
    source = make(tmp_path / "source", SETS["imagenet-a"])  # type: ignore[operator]
    done = verify_pictures(source, _manifest(tmp_path / "manifest.sha256"))
    assert done.pictures == len(PICTURES)
    assert done.fingerprint == find("imagenet-a", out=_built(tmp_path / "build")).fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({FIRST: picture(99)}, f"others for 1 of them in .*, the first: {FIRST!r} has SHA-256"),
        ({FIRST: None}, f"got 1 differences in .*, the first: {FIRST!r} is missing"),
        ({"n00000000/more.png": picture(9)}, "the first: 'n00000000/more.png' is not in the manifest"),
    ],
)
def test_a_folder_that_differs_from_the_manifest_is_refused(
    tmp_path: Path, change: dict[str, bytes | None], said: str
) -> None:
    files = {name: content for name, content in {**PICTURES, **change}.items() if content is not None}
    with pytest.raises(BuildError, match=said):
        verify_pictures(as_folder(tmp_path / "source", files), _manifest(tmp_path / "manifest.sha256"))


@pytest.mark.parametrize("text", ["", "abc  x.jpg\n", f"{'0' * 64}  x.jpg\n{'0' * 64}  x.jpg\n"])
def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m").write_text(text)
    with pytest.raises(BuildError, match=r"expected each line of .* as SHA-256, two blanks and one file name"):
        verify_pictures(as_folder(tmp_path / "source", PICTURES), tmp_path / "m")


def test_a_downloaded_repo_is_verified_by_the_pictures_in_its_parquet_files(tmp_path: Path) -> None:
    splits = find("imagenet-a", out=_built(tmp_path)).load()
    (tmp_path / "repo" / "data").mkdir(parents=True)
    write_parquet(splits["test"].select(range(2)), tmp_path / "repo" / "data" / "test-00000-of-00002.parquet")
    _manifest(tmp_path / "repo" / "manifest.sha256")
    assert main(["verify", str(tmp_path / "repo")]) == 1  # the second file is not there
    write_parquet(splits["test"].select([2]), tmp_path / "repo" / "data" / "test-00001-of-00002.parquet")
    assert main(["verify", str(tmp_path / "repo")]) == 0


def test_the_command_takes_a_name_a_build_or_a_folder_of_builds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = _built(tmp_path)
    own = find("imagenet-a", out=out).path
    assert build_at(out) is None
    for arguments in (["imagenet-a", "--out", str(out)], [str(own)], [str(out)]):
        assert main(["verify", *arguments]) == 0
        assert "imagenet-a: all 3 pictures as built, fingerprint " in capsys.readouterr().out
    _damage(out, PICTURES[FIRST])
    for arguments in (["imagenet-a", "--out", str(out)], [str(own)], [str(out)]):
        assert main(["verify", *arguments]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert repr(FIRST) in said.err


def test_the_command_says_what_it_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(as_folder(tmp_path / "source", PICTURES))]) == 1
    assert "got none; name it with --manifest FILE" in capsys.readouterr().err
    assert main(["verify", "imagenet-a", "--out", str(tmp_path)]) == 1
    assert "hf-robust build imagenet-a --source" in capsys.readouterr().err
