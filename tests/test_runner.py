"""The runner in one process: what is forwarded, what is written, what stops it, what can be read back."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tiny_runs import (
    A_AND_O,
    ONLY_D,
    SPURIOUS,
    VALIDATION,
    Sets,
    contents,
    make_sets,
    needs_of,
    picture,
    run,
    write,
    write_validation,
)

from hf_robust import labels
from hf_robust.benchmarks import benchmark
from hf_robust.data import open_rows
from hf_robust.models import load_model
from hf_robust.predictions.plan import PlanError
from hf_robust.predictions.read import read_head, read_source
from hf_robust.runner import DataPlaces, RunOptions, World, evaluate, gather, make_plan
from hf_robust.runner.loop import work_list

ALL = ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def own_sets(sets: Sets, tmp_path: Path) -> Sets:
    """The same sets with validation pictures and factories of this test's own, to be changed at will."""
    factories = Path(shutil.copy(sets.factories, tmp_path / "factories.py"))
    return replace(sets, validation=write_validation(tmp_path / "validation"), factories=factories)


@pytest.fixture(scope="module")
def a_run(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(sets, tmp_path_factory.mktemp("runs"), "plain", "imagenet-a", "imagenet-o", features=True)


def logits_by_id(source: Path) -> dict[str, Any]:
    read = read_source(source)
    return dict(zip(read.outputs.ids, read.outputs.logits, strict=True))


TO_LOAD = 1 + 3  # one picture tries the model, three are followed to its first layer


def forwarded(sets: Sets) -> int:
    """Pictures that the counting model has seen, without its trial and the probes of one picture each."""
    return sum(map(int, sets.factories.with_name("forwarded.txt").read_text().split()))


# --- what is written


def test_every_picture_gets_the_logits_that_the_model_gives_it_alone(sets: Sets, a_run: Path) -> None:
    model = load_model(sets.model("plain"))
    rows = open_rows("imagenet-a", built=sets.data)
    stored = logits_by_id(a_run / "imagenet-a.model")
    assert list(stored) == list(rows.table.ids)
    for i, key in enumerate(rows.table.ids):
        pixels = np.asarray(Image.open(io.BytesIO(rows.read(i))).convert("RGB"))
        with torch.no_grad():
            alone = model.module(model.preprocessing.transform(Image.fromarray(pixels)).unsqueeze(0))
        np.testing.assert_allclose(stored[key], alone[0].numpy(), atol=1e-5)


def test_the_rows_of_a_set_lie_in_parts_of_100_with_its_columns(a_run: Path) -> None:
    parts = sorted((a_run / "imagenet-o.model").glob("part-*"))
    assert [pq.read_metadata(p).num_rows for p in parts] == [100, 100, 50]
    vector = pa.list_(pa.float32())
    expected = pa.schema([
        pa.field("id", pa.string(), nullable=False), ("image_sha256", pa.string()),
        pa.field("labels", pa.list_(pa.int32()), nullable=False), ("confused_with", pa.int64()), ("error", pa.string()),
        ("logits", vector), ("features", vector),
    ])  # fmt: skip
    assert all(pq.read_schema(p).remove_metadata().equals(expected) for p in parts)


def test_validation_pictures_lie_in_one_part_a_class(a_run: Path) -> None:
    wanted = sorted(labels.imagenet_1k_index()[wnid] for wnid in A_AND_O)
    parts = sorted((a_run / "imagenet-val.model").glob("part-*"))
    assert [p.name for p in parts] == [f"part-{index:05d}.parquet" for index in wanted]
    table = pq.read_table(parts[0])
    assert table["labels"].to_pylist() == [[wanted[0]]] * 3
    assert all(key.startswith("ILSVRC2012_val_") for key in table["id"].to_pylist())


def test_features_and_head_make_the_logits_again(a_run: Path) -> None:
    table = pq.read_table(a_run / "imagenet-a.model" / "part-00000.parquet")
    features, logits = (np.array(table[name].to_pylist(), np.float32) for name in ("features", "logits"))
    head = read_head(a_run, "classifier")
    assert head is not None
    np.testing.assert_allclose(features @ head.weight.T + head.bias, logits, atol=1e-5)


@pytest.mark.parametrize("size", [17, 4, 6, 1, 100])
def test_micro_batches_that_do_not_divide_the_part_lose_and_double_nothing(
    sets: Sets, a_run: Path, tmp_path: Path, size: int
) -> None:
    assert {17: 0, 4: 1, 6: 6 - 1, 1: 0, 100: 17}[size] == 17 % size
    made = run(sets, tmp_path, "plain", "imagenet-a", micro_batch=size)
    usual, other = (logits_by_id(folder / "imagenet-a.model") for folder in (a_run, made))
    assert list(other) == list(usual)
    assert len(other) == 17
    for key, logits in usual.items():
        np.testing.assert_allclose(other[key], logits, atol=1e-4)


def test_batch_size_threads_and_limit_make_other_folders_and_logits_within_1e_4(sets: Sets, tmp_path: Path) -> None:
    options: tuple[dict[str, Any], ...] = ({}, {"micro_batch": 5}, {"threads": 2}, {"limit": 17}, {"seed": 1})
    runs = [run(sets, tmp_path, "timm-random/test_resnet", "imagenet-a", **o) for o in options]
    assert len(set(runs)) == len(options)
    usual = logits_by_id(runs[0] / "imagenet-a.model")
    for folder in runs[1:]:
        for key, logits in logits_by_id(folder / "imagenet-a.model").items():
            np.testing.assert_allclose(logits, usual[key], atol=1e-4)


def test_two_checkpoints_never_share_a_folder(sets: Sets, tmp_path: Path) -> None:
    module = load_model(sets.model("plain")).module
    torch.save(module.state_dict(), tmp_path / "same.pt")
    with torch.no_grad():
        next(module.parameters())[0, 0, 0, 0] += 1
    torch.save(module.state_dict(), tmp_path / "other.pt")
    same, other = (run(sets, tmp_path, "plain", "imagenet-a", checkpoint=tmp_path / f) for f in ("same.pt", "other.pt"))
    assert same != other
    assert run(sets, tmp_path, "plain", "imagenet-a") == same


def test_what_the_plan_decides_by_itself_is_the_same_each_time(sets: Sets) -> None:
    plans = {make_plan(load_model(sets.model("plain")), RunOptions(), "cpu") for _ in range(2)}
    (plan,) = plans
    assert (plan.micro_batch, plan.threads, plan.device, plan.layout) == (8, 1, "cpu", "contiguous")
    assert make_plan(load_model(sets.model("plain")), RunOptions(), "cuda:1").device == "cuda"


# --- resuming and sharing the work


def test_a_second_run_changes_no_file(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "plain", "imagenet-a")
    before = {p: p.stat().st_mtime_ns for p in made.rglob("part-*")}
    assert run(sets, tmp_path, "plain", "imagenet-a") == made
    assert {p: p.stat().st_mtime_ns for p in made.rglob("part-*")} == before


def test_a_part_that_was_cut_short_is_made_again_and_the_others_stay(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "plain", "imagenet-o")
    before, times = contents(made), {p.name: p.stat().st_mtime_ns for p in (made / "imagenet-o.model").glob("part-*")}
    broken = made / "imagenet-o.model" / "part-00001.parquet"
    broken.write_bytes(broken.read_bytes()[:1000])
    run(sets, tmp_path, "plain", "imagenet-o")
    assert contents(made) == before
    changed = {p.name for p in (made / "imagenet-o.model").glob("part-*") if p.stat().st_mtime_ns != times[p.name]}
    assert changed == {"part-00001.parquet"}


def test_one_process_of_three_alone_gives_the_same_bytes(sets: Sets, tmp_path: Path) -> None:
    usual = run(sets, tmp_path / "one", "plain", *ALL)
    for rank in (2, 0):  # the second finds everything done
        other = run(sets, tmp_path / "three", "plain", *ALL, world=World(rank, 3, "cpu"))
    assert contents(other) == contents(usual)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_process_would_do_every_part_once_and_its_own_first(size: int) -> None:
    parts: Any = tuple(range(7))
    for rank in range(size):
        order = work_list(parts, rank, size)
        assert sorted(order) == list(parts)
        assert order[: len(parts[rank::size])] == parts[rank::size]


def test_a_changed_data_set_is_refused(own_sets: Sets, tmp_path: Path) -> None:
    run(own_sets, tmp_path / "runs", "plain", "imagenet-o")
    write(own_sets.validation / A_AND_O[0] / "ILSVRC2012_val_00000001.JPEG", picture(1, kind="JPEG", size=(99, 99)))
    with pytest.raises(
        PlanError,
        match=r"expected the pictures that imagenet-val\.model was begun with, .*the same numbers, other pictures",
    ):
        run(own_sets, tmp_path / "runs", "plain", "imagenet-o")


def test_a_changed_plan_file_is_refused_with_the_field(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "plain", "imagenet-a")
    plan = json.loads((made / "plan.json").read_text())
    (made / "plan.json").write_text(json.dumps({**plan, "micro_batch": 9}))
    with pytest.raises(PlanError, match=r"expected micro_batch 9 as in .*, got 8"):
        run(sets, tmp_path, "plain", "imagenet-a")


def test_one_picture_twice_in_the_class_folders_is_refused(own_sets: Sets) -> None:
    write(own_sets.validation / A_AND_O[1] / "ILSVRC2012_val_00000001.JPEG", picture(1, kind="JPEG"))
    with pytest.raises(ValueError, match="expected unique ids, got 'ILSVRC2012_val_00000001' more than once"):
        needs_of(own_sets, "imagenet-o")


# --- one forward pass a picture


def test_a_picture_is_forwarded_once_however_many_benchmarks_need_it(own_sets: Sets, tmp_path: Path) -> None:
    made = run(own_sets, tmp_path / "runs", "counting", *ALL)
    validation = 3 * len(VALIDATION)
    expected = 17 + 250 + 4 + 6 + validation
    assert needs_of(own_sets, *ALL).pictures == expected
    # each source (A, O, Spurious, D, validation) tries one picture alone, then as the last of four
    assert forwarded(own_sets) == expected + TO_LOAD + 5 * (1 + 4)
    run(own_sets, tmp_path / "runs", "counting", *ALL)
    assert forwarded(own_sets) == expected + 2 * (TO_LOAD + 5 * (1 + 4))
    assert sorted(p.name for p in made.iterdir() if p.name.startswith("imagenet-val")) == ["imagenet-val.model"]


def test_the_published_mode_forwards_validation_pictures_once_for_each_distinct_rule(
    own_sets: Sets, tmp_path: Path
) -> None:
    made = run(own_sets, tmp_path / "runs", "counting", *ALL, mode="published")
    found = {
        p.parent.name: sum(pq.read_metadata(q).num_rows for q in p.parent.glob("part-*"))
        for p in made.rglob("run.json")
    }
    d_classes = [
        w for w in VALIDATION if any(labels.imagenet_1k_index()[w] in c.indices for c in labels.imagenet_d_categories())
    ]
    assert set(ONLY_D) <= set(d_classes)
    natural, spurious = (
        {*labels.imagenet_a_wnids(), *labels.imagenet_o_wnids()},
        {c.wnid for c in labels.spurious_classes()},
    )
    assert found == {
        "imagenet-a.paper": 17, "imagenet-o.paper": 250, "spurious-imagenet.spurious-image": 4, "imagenet-d.model": 6,
        "imagenet-val.paper": 3 * sum(w in natural for w in VALIDATION),
        "imagenet-val.spurious-val": 3 * sum(w in spurious for w in VALIDATION),
        "imagenet-val.model": 3 * len(d_classes),
    }  # fmt: skip
    assert forwarded(own_sets) == sum(found.values()) + TO_LOAD + (1 + 4) * len(found)


def test_another_benchmark_later_adds_only_what_is_not_there(own_sets: Sets, tmp_path: Path) -> None:
    run(own_sets, tmp_path / "runs", "counting", "imagenet-o")
    before = forwarded(own_sets)
    run(own_sets, tmp_path / "runs", "counting", "spurious-imagenet")
    assert forwarded(own_sets) - before == 4 + 3 * len(SPURIOUS) + TO_LOAD + 2 * (1 + 4)


def test_without_validation_pictures_o_is_not_run_and_a_is(sets: Sets, tmp_path: Path) -> None:
    chosen = [benchmark("imagenet-a"), benchmark("imagenet-o")]
    needs = gather(chosen, "model", DataPlaces(sets.data, None))
    assert [n.dataset for n in needs.needs] == ["imagenet-a"]
    meter = lambda done, total: None  # noqa: E731
    made = evaluate(
        sets.model("plain"), chosen, needs, tmp_path, options=RunOptions(), world=World(0, 1, "cpu"), meter=meter
    )
    failures = {p.stem: json.loads(p.read_text())["failure"] for p in (made / "requests").glob("*.json")}
    assert failures["imagenet-a.model"] is None
    assert "--imagenet-val" in failures["imagenet-o.model"]


# --- subsets


def test_a_limit_draws_the_same_rows_each_time_and_others_with_another_seed(sets: Sets) -> None:
    def drawn(seed: int) -> tuple[str, ...]:
        return open_rows("imagenet-o", built=sets.data).limited(30, seed).table.ids

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)
    assert len(set(drawn(0))) == 30
    folders = Counter(key.split("/")[0] for key in drawn(0))
    assert set(folders.values()) == {30 // 3}


def test_a_limit_below_the_number_of_classes_keeps_one_picture_of_every_class(sets: Sets) -> None:
    rows = open_rows("imagenet-val", place=str(sets.validation)).limited(2, 0)
    assert Counter(labels.imagenet_1k().wnids[k] for (k,) in rows.table.labels) == dict.fromkeys(VALIDATION, 1)
    assert Image.open(io.BytesIO(rows.read(0))).size == (16, 12)


def test_the_rows_of_a_limit_are_the_rows_of_the_set(sets: Sets) -> None:
    rows = open_rows("imagenet-a", built=sets.data)
    few = rows.limited(5, 3)
    for i, key in enumerate(few.table.ids):
        j = rows.table.ids.index(key)
        assert few.read(i) == rows.read(j)
        assert (few.table.labels[i], few.table.keys[i]) == (rows.table.labels[j], rows.table.keys[j])


def test_a_limit_above_the_set_is_the_set(sets: Sets) -> None:
    rows = open_rows("imagenet-a", built=sets.data)
    assert rows.limited(1000, 0).table == rows.table


@pytest.mark.parametrize("name", ["limit", "micro_batch", "threads"])
def test_numbers_below_one_are_refused(name: str) -> None:
    option = {"micro_batch": "batch-size"}.get(name, name)
    with pytest.raises(ValueError, match=f"expected --{option} of at least 1, got 0"):
        RunOptions(**{name: 0})  # type: ignore[arg-type]


def test_a_limit_below_one_is_refused_before_anything_is_opened(sets: Sets) -> None:
    with pytest.raises(ValueError, match="expected --limit of at least 1, got -1"):
        open_rows("imagenet-a", built=sets.data).limited(-1, 0)


# --- other kinds of outputs


@pytest.mark.parametrize(("model", "width"), [("with_background", 1001), ("of_21k", 21841)])
def test_all_outputs_are_stored_and_the_1000_classes_found_by_wordnet_id(
    sets: Sets, tmp_path: Path, model: str, width: int
) -> None:
    made = run(sets, tmp_path, model, "imagenet-a")
    stored = np.array(pq.read_table(made / "imagenet-a.model" / "part-00000.parquet")["logits"].to_pylist(), np.float32)
    assert stored.shape == (17, width)
    space, logits = labels.label_space(width), read_source(made / "imagenet-a.model").outputs.logits
    for wnid in A_AND_O:
        expected = stored[:, space.wnids.index(wnid)]
        np.testing.assert_array_equal(logits[:, labels.imagenet_1k_index()[wnid]], expected)


def test_a_zero_shot_run_stores_embeddings_and_one_head_a_class_list(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "zero_shot", "imagenet-d")
    assert read_head(made, "imagenet-1k") is None  # of thousands of texts, which only other benchmarks need
    run(sets, tmp_path, "zero_shot", "imagenet-a")
    table = pq.read_table(made / "imagenet-d.model" / "part-00000.parquet")
    assert "logits" not in table.column_names
    embeddings = np.array(table["embeddings"].to_pylist(), np.float32)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
    weight = np.random.default_rng(0).normal(size=(1113, 6)).astype(np.float32)
    for head, expected in ((None, weight[:1000]), ("imagenet-d", weight[1000:])):
        logits = read_source(made / "imagenet-d.model", head=head).outputs.logits
        np.testing.assert_allclose(logits, np.einsum("nd,kd->nk", embeddings, expected), rtol=1e-5, atol=1e-5)


def test_half_precision_makes_another_folder_and_float32_columns(sets: Sets, a_run: Path, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "plain", "imagenet-a", dtype="bfloat16")
    read, usual = logits_by_id(made / "imagenet-a.model"), logits_by_id(a_run / "imagenet-a.model")
    key = next(iter(read))
    assert read[key].dtype == np.float32
    np.testing.assert_allclose(read[key], usual[key], atol=0.02)
    assert not np.array_equal(read[key], usual[key])
