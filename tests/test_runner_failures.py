"""What stops the runner and what it records: broken pictures, vanished files, models that do not work."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tiny_runs import A_AND_O, Sets, contents, make_sets, needs_of, picture, run, write, write_validation

from hf_robust import labels
from hf_robust.benchmarks import benchmark
from hf_robust.data import PictureError, decode
from hf_robust.models import ModelError
from hf_robust.predictions.read import read_source
from hf_robust.runner import RunOptions, World, evaluate
from hf_robust.runner.loop import PictureFailedError


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"), o=9)


@pytest.fixture
def own_sets(sets: Sets, tmp_path: Path) -> Sets:
    """The same sets with validation pictures and factories of this test's own, to be changed at will."""
    factories = Path(shutil.copy(sets.factories, tmp_path / "factories.py"))
    return replace(sets, validation=write_validation(tmp_path / "validation"), factories=factories)


# --- pictures that cannot be read


def test_a_broken_picture_stops_the_run_with_set_and_id_and_keeps_finished_parts(
    own_sets: Sets, tmp_path: Path
) -> None:
    write(own_sets.validation / A_AND_O[2] / "ILSVRC2012_val_00000009.JPEG", b"no picture")
    with pytest.raises(
        PictureFailedError,
        match="expected a picture at id 'ILSVRC2012_val_00000009' of imagenet-val, got no picture format that Pillow "
        "knows: repair it, or run with --on-error record",
    ):
        run(own_sets, tmp_path / "runs", "plain", "imagenet-a")
    finished = sorted(p.parent.name for p in (tmp_path / "runs").rglob("part-*"))
    assert Counter(finished) == {"imagenet-a.model": 1, "imagenet-val.model": 2}


def test_a_recorded_failure_is_a_row_with_its_reason_and_no_logits(own_sets: Sets, tmp_path: Path) -> None:
    good = picture(50_009, kind="JPEG")
    write(own_sets.validation / A_AND_O[2] / "ILSVRC2012_val_00000009.JPEG", good[: len(good) // 2])
    made = run(own_sets, tmp_path / "runs", "plain", "imagenet-a", on_error="record")
    index = labels.imagenet_1k_index()[A_AND_O[2]]
    table = pq.read_table(made / "imagenet-val.model" / f"part-{index:05d}.parquet")
    row = table.filter(pa.compute.equal(table["id"], "ILSVRC2012_val_00000009")).to_pylist()[0]
    assert row["logits"] is None
    assert "runcated" in row["error"]
    read = read_source(made / "imagenet-val.model")
    assert [key for key, _ in read.failed] == ["ILSVRC2012_val_00000009"]
    assert len(read.outputs) == 3 * 3 - 1
    assert json.loads((made / "imagenet-val.model" / "run.json").read_text())["proof"]["rows"] == 3 * 3


def test_a_part_of_broken_pictures_only_has_the_columns_of_the_others(own_sets: Sets, tmp_path: Path) -> None:
    for path in (own_sets.validation / A_AND_O[0]).iterdir():
        path.write_bytes(b"no picture")
    made = run(own_sets, tmp_path / "runs", "plain", "imagenet-a", on_error="record")
    parts = sorted((made / "imagenet-val.model").glob("part-*"))
    tables = {p.name: pq.read_table(p) for p in parts}
    bad = tables[f"part-{labels.imagenet_1k_index()[A_AND_O[0]]:05d}.parquet"]
    assert bad["logits"].to_pylist() == [None] * 3
    assert len({tuple(t.schema.remove_metadata()) for t in tables.values()}) == 1
    assert len(read_source(made / "imagenet-val.model").outputs) == 3 * 2


def test_recorded_failures_have_the_same_bytes_in_every_run(own_sets: Sets, tmp_path: Path) -> None:
    for path in (own_sets.validation / A_AND_O[0]).iterdir():
        path.write_bytes(b"no picture")
    runs = [run(own_sets, tmp_path / n, "plain", "imagenet-a", on_error="record") for n in ("one", "two")]
    assert contents(runs[0]) == contents(runs[1])


@pytest.mark.parametrize("mode", ["raise", "record"])
def test_a_file_that_vanished_is_an_error_in_both_modes(own_sets: Sets, tmp_path: Path, mode: Any) -> None:
    needs = needs_of(own_sets, "imagenet-a")
    (own_sets.validation / A_AND_O[0] / "ILSVRC2012_val_00000002.JPEG").unlink()
    with pytest.raises(
        PictureFailedError, match=r"expected to read id 'ILSVRC2012_val_00000002' of imagenet-val, got .*No such"
    ):
        evaluate(
            own_sets.model("plain"), [benchmark("imagenet-a")], needs, tmp_path, options=RunOptions(on_error=mode),
            world=World(0, 1, "cpu"), meter=lambda done, total: None,
        )  # fmt: skip


def test_a_picture_that_the_transform_cannot_take_is_named(own_sets: Sets, tmp_path: Path) -> None:
    write(own_sets.validation / A_AND_O[0] / "ILSVRC2012_val_00000002.JPEG", picture(1, kind="JPEG", size=(1, 40)))
    with pytest.raises(
        PictureFailedError, match="ILSVRC2012_val_00000002' of imagenet-val, got IndexError in the transform"
    ):
        run(own_sets, tmp_path / "runs", "fragile", "imagenet-a")
    made = run(own_sets, tmp_path / "runs", "fragile", "imagenet-a", on_error="record")
    assert read_source(made / "imagenet-val.model").failed == (
        ("ILSVRC2012_val_00000002", "IndexError in the transform: too narrow"),
    )


def test_a_picture_of_too_many_pixels_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    data = picture(0, size=(20, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    assert decode(data).size == (20, 20)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 150)  # more than twice as many: Pillow itself refuses
    with pytest.raises(PictureError, match="DecompressionBombError"):
        decode(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 399)
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(PictureError, match="20 x 20 pixels, more than the 399"),
    ):
        decode(data)


def test_every_kind_of_picture_becomes_rgb() -> None:
    for mode in ("L", "RGBA", "CMYK", "P", "I;16", "1", "LA"):
        stream = io.BytesIO()
        Image.new(mode, (5, 4)).save(stream, "TIFF" if mode == "CMYK" else "PNG")
        assert (decode(stream.getvalue()).mode, decode(stream.getvalue()).size) == ("RGB", (5, 4))


# --- models that do not work


def test_logits_that_are_not_finite_stop_the_model_with_the_id(own_sets: Sets, tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (16, 12)).save(stream, "PNG")
    write(own_sets.validation / A_AND_O[1] / "ILSVRC2012_val_00000005.JPEG", stream.getvalue())
    with pytest.raises(
        ModelError, match="gave logits that are not finite for id 'ILSVRC2012_val_00000005' of imagenet-val"
    ):
        run(own_sets, tmp_path / "runs", "not_finite_on_black", "imagenet-a")


def test_a_size_that_the_model_cannot_take_is_the_benchmark_s_reason_and_the_others_run(
    sets: Sets, tmp_path: Path
) -> None:
    made = run(sets, tmp_path, "only_small", "imagenet-a", "imagenet-d", mode="published")
    failures = {p.stem: json.loads(p.read_text())["failure"] for p in (made / "requests").glob("*.json")}
    assert failures["imagenet-d.published"] is None
    assert "under the rule 'paper' (224x224 pixels)" in failures["imagenet-a.published"]
    assert len(read_source(made / "imagenet-d.model").outputs) == 6
    assert not (made / "imagenet-a.paper").exists()


def test_a_model_that_takes_one_size_only_runs_under_its_own_rule(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "only_small", "imagenet-a", "imagenet-o")
    assert len(read_source(made / "imagenet-a.model").outputs) == 17


def test_a_model_that_mixes_the_pictures_of_a_batch_is_refused(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"expected logits of shape \(8, 1000\), one row a picture, got \(1, 1000\)"):
        run(sets, tmp_path, "one_row", "imagenet-a")


def test_a_model_that_runs_out_of_memory_is_a_model_that_failed(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"failed on a batch of 8 pictures of imagenet-a: tried to allocate .*smaller --batch"
    ):
        run(sets, tmp_path, "out_of_memory", "imagenet-a")
