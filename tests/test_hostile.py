"""What a hostile user or a broken disk does to a run: no wrong number without a mark, one clear sentence instead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_runs import Sets, contents, make_sets, needs_of, run, write

from hf_robust.benchmarks import benchmark
from hf_robust.data import MissingDataError
from hf_robust.models import ModelError
from hf_robust.predictions.parts import content_hash
from hf_robust.predictions.plan import DamagedError, SourcePlan, read_json, settle
from hf_robust.predictions.read import read_label_space, read_source
from hf_robust.runner import DataPlaces, RunOptions, WorldError, gather, join_world

MORE_FACTORIES = """

class Odd(Tiny):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.normalise = kind, torch.nn.BatchNorm1d(1000)

    def forward(self, batch):
        logits = super().forward(batch)
        if self.kind == "training":
            return torch.nn.functional.dropout(logits, 0.5, training=True)
        if self.kind == "of_the_batch":
            return logits - logits.mean(0) if len(logits) > 1 else logits
        if self.kind == "half":
            return logits.half()
        if self.kind == "type_error" and len(batch) > 2:
            raise TypeError("no such batch")
        return logits


def training(): return Odd("training"), TRANSFORM
def of_the_batch(): return Odd("of_the_batch"), TRANSFORM
def half(): return Odd("half"), TRANSFORM
def type_error(): return Odd("type_error"), TRANSFORM


def strange_classes():
    module = Tiny()
    module.wnids = [f"x{i}" for i in range(1000)]
    return module, TRANSFORM


def other_weights():
    module = Tiny()
    with torch.no_grad():
        module.head.bias += 1
    return module, TRANSFORM
"""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    made = make_sets(tmp_path_factory.mktemp("sets"), o=9)
    with made.factories.open("a", encoding="utf-8") as stream:
        stream.write(MORE_FACTORIES)
    return made


@pytest.fixture(scope="module")
def finished(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(sets, tmp_path_factory.mktemp("runs"), "plain", "imagenet-a")


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    """A finished run of this test's own."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / finished.name))


def part(made: Path) -> Path:
    return made / "imagenet-a.model" / "part-00000.parquet"


def half_of_it(path: Path, _: Path) -> None:
    pq.write_table(pq.read_table(path).slice(0, 5), path)


def other_numbers(path: Path, _: Path) -> None:
    table = pq.read_table(path)
    logits = [[-x for x in row] for row in table["logits"].to_pylist()]
    place = table.schema.get_field_index("logits")
    pq.write_table(
        table.set_column(place, table.schema.field("logits"), pa.array(logits, pa.list_(pa.float32()))), path
    )


def flipped_bytes(path: Path, _: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    path.write_bytes(data)


def part_of_another_model(path: Path, other: Path) -> None:
    shutil.copy(part(other), path)


# --- parts


@pytest.mark.parametrize("damage", [half_of_it, other_numbers, flipped_bytes, part_of_another_model])
def test_a_part_that_is_not_what_the_run_wrote_is_never_scored_and_is_forwarded_again(
    sets: Sets, own: Path, tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    before = contents(own)
    other = run(sets, tmp_path / "other", "other_weights", "imagenet-a")
    damage(part(own), other)
    read = read_source(own / "imagenet-a.model")
    assert (read.absent, len(read.outputs)) == ((0,), 0)
    run(sets, own.parent, "plain", "imagenet-a")
    assert contents(own) == before


def test_the_hash_of_the_content_is_of_values_not_of_memory(tmp_path: Path) -> None:
    rows = [[1.0, 2.0], None, [3.0], []]
    whole = pa.table({"id": ["a", "b", "c", "d"], "logits": pa.array(rows, pa.list_(pa.float32()))})
    pq.write_table(whole, tmp_path / "x.parquet")
    longer = pa.concat_tables([whole.slice(3), whole])
    assert content_hash(pq.read_table(tmp_path / "x.parquet")) == content_hash(whole) == content_hash(longer.slice(1))
    shifted = whole.set_column(1, "logits", pa.array([[1.0], None, [2.0, 3.0], []], pa.list_(pa.float32())))
    assert len({content_hash(t) for t in (whole, shifted, whole.slice(0, 3))}) == 3


# --- records


@pytest.mark.parametrize(
    ("text", "got"),
    [("", "no JSON"), ("[]", "a list"), ("{}", "an object without name, wnids"), ("\xff{", "no JSON")],
)
def test_a_damaged_record_is_told_with_its_path(tmp_path: Path, text: str, got: str) -> None:
    path = write(tmp_path / "label_space.json", text.encode("latin-1"))
    with pytest.raises(DamagedError, match=rf"expected the record that `evaluate` wrote in .*{path.name}, got {got}"):
        read_json(path, ["name", "wnids"])


def test_a_record_that_is_gone_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"wrote in .*label_space\.json, got nothing: remove .* and run again"):
        read_label_space(tmp_path)


@pytest.mark.parametrize("parts", [5, [[1]], [["x", 1, "f"]], None])
def test_a_source_plan_with_other_parts_is_refused(own: Path, parts: object) -> None:
    path = own / "imagenet-a.model" / "source.json"
    path.write_text(json.dumps({**read_json(path), "parts": parts}))
    with pytest.raises(DamagedError, match="got parts that cannot be read"):
        SourcePlan.read(path.parent)


def test_a_damaged_plan_is_not_obeyed(own: Path) -> None:
    source = SourcePlan.read(own / "imagenet-a.model")
    path = write(own / "imagenet-a.model" / "source.json", b"[]")
    with pytest.raises(DamagedError, match=r"source\.json, got a list: remove .* and run again"):
        settle(replace(source), path)


def test_predictions_beside_an_edited_plan_are_not_scored(own: Path) -> None:
    plan = read_json(own / "plan.json")
    (own / "plan.json").write_text(json.dumps({**plan, "dtype": "bfloat16"}))
    assert read_source(own / "imagenet-a.model").absent == (0,)


def test_shifted_classes_are_refused(own: Path) -> None:
    space = read_json(own / "label_space.json")
    (own / "label_space.json").write_text(json.dumps({**space, "wnids": [*space["wnids"][1:], space["wnids"][0]]}))
    with pytest.raises(DamagedError, match=r"expected the classes of .*plan\.json in .*label_space\.json, got others"):
        read_label_space(own)


# --- models


@pytest.mark.parametrize("model", ["training", "of_the_batch"])
def test_a_model_whose_outputs_depend_on_more_than_the_picture_is_refused(
    sets: Sets, tmp_path: Path, model: str
) -> None:
    made = run(sets, tmp_path, model, "imagenet-a")
    failure = str(read_json(made / "requests" / "imagenet-a.model.json")["failure"])
    assert "expected the same logits for a picture alone and beside another, got others" in failure
    assert not list(made.rglob("part-*"))


def test_half_precision_logits_are_those_of_the_model_rounded(sets: Sets, finished: Path, tmp_path: Path) -> None:
    half = read_source(run(sets, tmp_path, "half", "imagenet-a") / "imagenet-a.model").outputs.logits
    exact = read_source(finished / "imagenet-a.model").outputs.logits
    np.testing.assert_array_equal(half, exact.astype(np.float16).astype(np.float32))


def test_any_error_of_a_forward_is_the_model_s_row(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="failed on a batch of 8 pictures of imagenet-a: TypeError: no such batch"):
        run(sets, tmp_path, "type_error", "imagenet-a")


def test_a_model_of_no_imagenet_class_is_refused(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="expected outputs for ImageNet-1k classes, got none among the 1,000 of factory"
    ):
        run(sets, tmp_path, "strange_classes", "imagenet-a")


def test_an_edited_factory_makes_a_run_of_its_own(sets: Sets, tmp_path: Path) -> None:
    mine = replace(sets, factories=Path(shutil.copy(sets.factories, tmp_path / "factories.py")))
    first = run(mine, tmp_path / "runs", "plain", "imagenet-a")
    mine.factories.write_text(mine.factories.read_text().replace("return self.head(", "return -self.head("))
    second = run(mine, tmp_path / "runs", "plain", "imagenet-a")
    assert first != second
    one, other = (read_source(made / "imagenet-a.model").outputs.logits for made in (first, second))
    np.testing.assert_array_equal(one, -other)


# --- options


@pytest.mark.parametrize("place", ["/nowhere/at/all", __file__])
def test_a_validation_place_that_is_wrong_is_an_error_and_not_left_out(sets: Sets, place: str) -> None:
    with pytest.raises(MissingDataError, match=r"expected a folder or a data set on the Hub, got .*, which is neither"):
        gather([benchmark("imagenet-a")], "model", DataPlaces(sets.data, place))
    assert needs_of(sets, "imagenet-a").absent == {}


@pytest.mark.parametrize("device", ["nonsense", "meta", "cuda:99", "cpu:x", ""])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(WorldError, match=rf"expected a device of this machine, got --device {device}: it has cpu"):
        join_world(device)


def test_more_threads_than_any_machine_has_are_refused() -> None:
    with pytest.raises(ValueError, match="expected --threads of at most 1024, got 99999999999"):
        RunOptions(threads=99_999_999_999)
