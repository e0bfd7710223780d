"""Files of others, broken on purpose: archives, records, tables, checkpoints. One clear error, or what is true."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder_archives import A_FILES, D_FILES, as_tar, as_targz, as_zip, picture
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from run_folder import scored, small_a, write_run

from hf_robust.builders import BuildError, build, verify_pictures
from hf_robust.builders.archive import READ_ERRORS, open_archive
from hf_robust.hub.merging import metadata, with_entry
from hf_robust.models import ModelError, model_names
from hf_robust.models.checkpoints import read_state
from hf_robust.models.zero_shot import prompt_sets
from hf_robust.predictions.plan import DamagedError, read_json
from hf_robust.spurious.alpha_files import write_tensors
from hf_robust.spurious.components import read_components
from hf_robust.spurious.spufix_files import read_spufix

EXAMPLES = int(os.environ.get("HF_ROBUST_FUZZ", "60"))  # more: a longer search; other ones: pytest --hypothesis-seed=N
bounded = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TEXTS = st.binary(max_size=200) | st.text(max_size=200).map(str.encode)
GOOD = "imagenet-a/n01498041/0.1_x _ y_0.5.jpg"


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A way to spoil bytes: some changed, a piece taken out or put in, the end cut off."""
    places = draw(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6))
    cut, piece = draw(st.none() | st.floats(0, 1)), draw(st.binary(max_size=12))

    def spoil(data: bytes) -> bytes:
        broken = bytearray(data)
        for place, value in places:
            if broken:
                broken[int(place * len(broken))] = value
        if cut is not None:
            at = int(cut * len(broken))
            broken = broken[:at] + piece + (broken[at + 3 :] if piece else b"")
        return bytes(broken)

    return spoil


def outcome(call: Callable[[], Any], *refusals: type[Exception]) -> tuple[Any, str]:
    """What a call gives, or None and the words of its refusal; any other error is a failure of the test."""
    try:
        return call(), ""
    except refusals as error:
        return None, str(error)


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- archives


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("archives")
    makers = {"a.tar": as_tar, "a.zip": as_zip, "a.tar.gz": as_targz}
    return {name: make(folder / name, A_FILES).read_bytes() for name, make in makers.items()}


@bounded
@given(name=st.sampled_from(["a.tar", "a.zip", "a.tar.gz"]), spoil=damages())
def test_a_spoilt_archive_is_refused_or_read_within_its_bounds(
    archives: dict[str, bytes], tmp_path: Path, name: str, spoil: Callable[[bytes], bytes]
) -> None:
    path = put(tmp_path / name, spoil(archives[name]))
    archive, refusal = outcome(lambda: open_archive(path, scratch=tmp_path), BuildError)
    if archive is None:
        assert refusal.startswith("expected ")
        return
    with archive:
        for member in archive.members:
            assert not member.path.startswith("/")
            assert ".." not in member.path.split("/")
            content, _ = outcome(lambda which=member: archive.read(which), *READ_ERRORS)
            assert content is None or len(content) == member.size  # None: left out of the build, and listed


@bounded
@given(
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    parent=st.sampled_from(["", "../", "/", "a/../"]),
)
def test_a_member_of_any_name_is_refused_or_lies_inside(tmp_path: Path, name: str, parent: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(parent + name)
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    opened, refusal = outcome(lambda: open_archive(path, scratch=tmp_path), BuildError)
    if opened is None:
        assert "do not trust this archive" in refusal
        return
    with opened:
        inside = [(tmp_path / "x" / member.path).resolve() for member in opened.members]
    assert all(place.is_relative_to(tmp_path / "x") for place in inside)


def sparse_members() -> dict[str, tarfile.TarInfo]:
    old = tarfile.TarInfo("imagenet-a/n01498041/hole.jpg")
    old.type = tarfile.GNUTYPE_SPARSE
    new = tarfile.TarInfo("imagenet-a/n01498041/hole.jpg")
    new.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 50)}
    negative = tarfile.TarInfo("imagenet-a/n01498041/hole.jpg")
    negative.pax_headers = {"size": "-512"}
    huge = tarfile.TarInfo("imagenet-a/n01498041/hole.jpg")
    huge.pax_headers = {"size": str(1 << 60)}
    return {"old GNU": old, "PAX": new, "negative": negative, "huge": huge}


@pytest.mark.parametrize("kind", ["old GNU", "PAX", "negative", "huge"])
def test_a_member_with_holes_or_an_impossible_size_is_refused_before_anything_is_read(
    tmp_path: Path, kind: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in ((tarfile.TarInfo(GOOD), picture(1)), (sparse_members()[kind], bytes(1024))):
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with pytest.raises(BuildError, match=r"expected (files and folders only|members of at most 64 MiB|a tar)"):
        build("imagenet-a", tmp_path / "a.tar", allow_incomplete=True, out=tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.arrow"))


def test_a_zip_that_lies_about_a_size_gives_no_picture(tmp_path: Path) -> None:
    path = as_zip(tmp_path / "a.zip", {GOOD: picture(1), "imagenet-a/n01498041/0.1_z _ y_0.5.jpg": bytes(900)})
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        size = archive.infolist()[1].file_size.to_bytes(4, "little")
    place = data.rindex(size, 0, data.rindex(b"0.1_z"))  # in the central directory
    data[place : place + 4] = (901).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    built = build("imagenet-a", path, allow_incomplete=True, out=tmp_path / "out")
    assert built.rows == 1
    assert any("left out '" in text and "unreadable" in text for text in built.differences)


@pytest.mark.parametrize("table", [b"a\tb\n" + b"x" * 200_000, b"\xff\xfe", b'"' * 200_001, b"image_dir\n\0", b""])
def test_questions_that_are_no_table_are_a_difference_and_no_crash(tmp_path: Path, table: bytes) -> None:
    files = {**D_FILES, "questions/background.csv": table}
    built = build("imagenet-d", as_tar(tmp_path / "d.tar", files), allow_incomplete=True, out=tmp_path / "out")
    assert any(text.startswith("questions/background.csv ") for text in built.differences)


# --- predictions and their records


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("runs"), ["imagenet-a"], [small_a(150)])
    return run.parent


@pytest.fixture(scope="module")
def true_values(a_run: Path) -> dict[Any, Any]:
    return {key(row): row["value"] for row in scored(a_run, replicates=0)}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["benchmark"], row["metric"], row["split"], row["n"]


@bounded
@given(which=st.integers(0, 99), spoil=damages())
def test_one_spoilt_file_of_a_run_never_gives_another_number(
    a_run: Path, true_values: dict[Any, Any], which: int, spoil: Callable[[bytes], bytes]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(shutil.copytree(a_run, Path(scratch, "runs")))
        files = sorted(path for path in runs.rglob("*") if path.is_file())
        path = files[which % len(files)]
        path.write_bytes(spoil(path.read_bytes()))
        for row in scored(runs, replicates=0):
            if row["value"] is not None and row["n"] == 150:
                assert row["value"] == true_values[key(row)]
            elif row["value"] is not None:  # fewer rows: marked, and the lost part is named
                assert not row["complete"]
                assert any("parts of imagenet-a have no predictions" in note for note in row["notes"])
            else:
                assert row["reason"]


@bounded
@given(content=TEXTS | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_record_of_any_bytes_is_an_object_or_a_damaged_record(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path / "plan.json", content)
    record, refusal = outcome(lambda: read_json(path, ["model"]), DamagedError)
    assert str(path) in refusal if record is None else "model" in record


# --- tables and lists that a user hands over


@bounded
@given(content=TEXTS | JSON.map(lambda value: json.dumps(value).encode()))
def test_a_component_list_of_any_bytes_is_a_list_or_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path / "components.json", content)
    found, refusal = outcome(lambda: read_components(path), ValueError)
    assert str(path) in refusal if found is None else all(0 <= index < 1000 for index in found)


def test_lists_nested_without_end_are_refused_with_their_name(tmp_path: Path) -> None:
    path = put(tmp_path / "components.json", b"[" * 100_000)
    with pytest.raises(ValueError, match=r"expected JSON in .*components\.json"):
        read_components(path)
    with pytest.raises(DamagedError, match=r"components\.json"):
        read_json(path)


@bounded
@given(content=TEXTS)
def test_names_prompts_and_model_lists_of_any_bytes_are_read_or_refused_with_their_name(
    tmp_path: Path, content: bytes
) -> None:
    path = put(tmp_path / "list.txt", content)
    readers: tuple[Callable[[], Any], ...] = (
        lambda: prompt_sets(prompts=path), lambda: prompt_sets(class_names=path), lambda: model_names([f"@{path}"]),
    )  # fmt: skip
    for reader in readers:
        found, refusal = outcome(reader, ModelError)
        assert found or str(path) in refusal or "expected each model once" in refusal


def test_class_names_with_an_endless_field_are_refused_with_their_name(tmp_path: Path) -> None:
    path = put(tmp_path / "names.csv", b'n01440764,"' + b"x" * 200_000)
    with pytest.raises(ModelError, match=r"names\.csv: expected lines of wnid,name, got field larger"):
        prompt_sets(class_names=path)


@bounded
@given(content=TEXTS)
def test_a_manifest_of_any_bytes_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pictures").mkdir(exist_ok=True)
    path = put(tmp_path / "manifest.sha256", content)
    with pytest.raises(BuildError, match=r"manifest"):
        verify_pictures(tmp_path / "pictures", path)


@bounded
@example(front='{"\\u0085"}')  # YAML takes it for a line end
@given(front=st.text(max_size=60) | st.dictionaries(st.text(max_size=8), JSON, max_size=3).map(json.dumps))
def test_the_metadata_of_any_card_is_kept_or_refused(front: str) -> None:
    card = f"---\n{front}\n---\n# Model\n"
    before, _ = outcome(lambda: metadata(card), ValueError)
    after, _ = outcome(lambda: metadata(with_entry(card, "model-index", ["x"])), ValueError)
    assert after == (None if before is None else {**before, "model-index": ["x"]})


# --- checkpoints and corrections


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    import torch
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("checkpoints")
    state = {"head.weight": torch.arange(6.0).reshape(2, 3)}
    torch.save(state, folder / "zip.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state, folder / "a.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.filterwarnings("ignore")  # torch warns about old tensors in damaged files
@bounded
@given(name=st.sampled_from(["zip.pt", "old.pt", "a.safetensors"]), spoil=damages())
def test_a_spoilt_checkpoint_is_refused_with_its_name_or_holds_tensors(
    checkpoints: dict[str, bytes], tmp_path: Path, name: str, spoil: Callable[[bytes], bytes]
) -> None:
    path = put(tmp_path / name, spoil(checkpoints[name]))
    state, refusal = outcome(lambda: read_state(path), ModelError)
    assert str(path) in refusal if state is None else all(hasattr(tensor, "shape") for tensor in state.values())


@bounded
@given(spoil=damages())
def test_a_spoilt_correction_is_refused_or_read_whole(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    arrays = {
        "outputs": np.array([3]), "components": np.array([0]), "matrix": np.ones((1, 2)), "offset": np.zeros(1),
        "directions": np.ones((1, 2)), "fit_ids": np.zeros(1, np.uint64), "fit_images": np.zeros(1, np.uint64),
    }  # fmt: skip
    facts = {"form": "hf_robust SpuFix 1", "width": 4, "model": "toy", "weights": "0" * 64, "head": "1" * 64}
    path = tmp_path / "fix.safetensors"
    write_tensors(path, arrays, facts)
    path.write_bytes(spoil(path.read_bytes()))
    fitted, refusal = outcome(lambda: read_spufix(path), ValueError)
    assert str(path) in refusal if fitted is None else np.isfinite(fitted.fix.matrix).all()
