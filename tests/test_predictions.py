"""Plans, parts, the proof, and reading predictions back."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_robust import labels
from hf_robust.predictions.parts import (
    Part,
    RowTable,
    cut,
    finish,
    ids_hash,
    is_present,
    part_table,
    present_parts,
    read_footer,
    write_part,
)
from hf_robust.predictions.plan import DamagedError, Plan, PlanError, SourcePlan, canonical, settle
from hf_robust.predictions.read import (
    HeadWeights,
    pad,
    read_head,
    read_label_space,
    read_source,
    write_heads,
    write_label_space,
)
from hf_robust.predictions.temporary import remove_leftovers, renamed

PLAN = Plan(
    model="timm/resnet50", weights="w", label_space="s", prompts=None, dtype="float32", device="cpu",
    layout="contiguous", batch_norm_folded=False, micro_batch=8, threads=1, features=False, limit=None, seed=0,
)  # fmt: skip
CHANGED: dict[str, Any] = {
    "model": "timm/resnet18", "weights": "v", "label_space": "t", "prompts": "p", "dtype": "bfloat16", "device": "cuda",
    "layout": "channels_last", "batch_norm_folded": True, "micro_batch": 4, "threads": 2, "features": True, "limit": 10,
    "seed": 1, "code": "c", "spufix": "f", "spufix_strength": 0.5, "exif": "apply", "compiled": True,
}  # fmt: skip
SOURCE = SourcePlan("imagenet-a", "model", {"size": 224}, "rows", True, (), ((0, 2, "f"),))


def table_of(n: int, *, groups: bool = True) -> RowTable:
    ids = tuple(f"{i % 3}/{i:04d}.png" for i in range(n))
    return RowTable(ids, ids, tuple((i % 3,) for i in range(n)), {"nuisance": ["texture"] * n} if groups else {})


def numbers(n: int, width: int = 1000, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


def store(folder: Path, table: RowTable, *, by_class: bool = False, **outputs: Any) -> tuple[Part, ...]:
    """A finished source of these outputs, one row of each for each row of the table."""
    parts = cut(table, by_class=by_class)
    plan = replace(
        SOURCE, cut="class" if by_class else "rows", parts=tuple((p.index, len(p.rows), p.fingerprint) for p in parts)
    )
    settle(plan, folder / "source.json")
    for part in parts:
        none: Sequence[str | None] = [None] * len(part.rows)
        write_part(
            folder, part, part_table(table, part, none, none, {k: v[list(part.rows)] for k, v in outputs.items()})
        )
    finish(folder)
    return parts


def test_every_field_of_the_plan_changes_the_folder(tmp_path: Path) -> None:
    assert set(CHANGED) == {field.name for field in fields(Plan)}
    folders = {
        PLAN.folder(tmp_path),
        *(replace(PLAN, **{name: value}).folder(tmp_path) for name, value in CHANGED.items()),
    }
    assert len(folders) == 1 + len(CHANGED)


def test_the_folder_is_the_model_s_name_and_the_hash_of_the_plan() -> None:
    text = json.dumps({f.name: getattr(PLAN, f.name) for f in fields(Plan)}, sort_keys=True, separators=(",", ":"))
    assert PLAN.folder(Path("runs")) == Path("runs") / f"timm-resnet50-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@pytest.mark.parametrize("model", ["../../etc/passwd", "/a/b/../c.py:f", "é ü", "...", "x" * 300])
def test_the_folder_of_any_model_name_lies_in_the_runs(tmp_path: Path, model: str) -> None:
    folder = replace(PLAN, model=model).folder(tmp_path)
    assert folder.parent == tmp_path
    assert not folder.name.startswith(".")
    folder.mkdir()


@pytest.mark.parametrize("field", sorted(CHANGED))
def test_a_tampered_plan_is_refused_with_the_field(tmp_path: Path, field: str) -> None:
    settle(replace(PLAN, **{field: CHANGED[field]}), tmp_path / "plan.json")
    with pytest.raises(
        PlanError, match=rf"expected {field} .* as in .*plan\.json, got .* not mixed; give another --out"
    ):
        settle(PLAN, tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("preprocessing", {"size": 225}), ("cut", "class"), ("complete", False), ("differences", ("one",)),
     ("rule", "paper"), ("dataset", "imagenet-o")],
)  # fmt: skip
def test_another_source_is_refused_with_the_field(tmp_path: Path, field: str, value: Any) -> None:
    settle(SOURCE, tmp_path / "source.json")
    with pytest.raises(PlanError, match=f"expected {field} "):
        settle(replace(SOURCE, **{field: value}), tmp_path / "source.json")


def test_other_pictures_are_refused_with_their_numbers(tmp_path: Path) -> None:
    settle(replace(SOURCE, parts=((0, 2, "g"), (1, 3, "h"))), tmp_path / "source.json")
    with pytest.raises(PlanError, match="was begun with, 5 pictures in 2 parts, got 4 pictures in 1 parts"):
        settle(replace(SOURCE, parts=((0, 4, "g"),)), tmp_path / "source.json")


def test_the_same_plan_settles_twice_and_reads_back(tmp_path: Path) -> None:
    settle(SOURCE, tmp_path / "source.json")
    before = (tmp_path / "source.json").stat().st_mtime_ns
    settle(SOURCE, tmp_path / "source.json")
    assert (tmp_path / "source.json").stat().st_mtime_ns == before
    assert SourcePlan.read(tmp_path) == SOURCE


@pytest.mark.parametrize(
    ("n", "sizes"), [(0, []), (1, [1]), (99, [99]), (100, [100]), (101, [100, 1]), (250, [100, 100, 50])]
)
def test_a_set_is_cut_into_parts_of_100_rows(n: int, sizes: list[int]) -> None:
    parts = cut(table_of(n), by_class=False)
    assert [len(p.rows) for p in parts] == sizes
    assert [row for p in parts for row in p.rows] == list(range(n))
    assert [p.index for p in parts] == list(range(len(sizes)))


def test_a_set_of_classes_is_cut_into_one_part_a_class() -> None:
    table = RowTable(("a", "b", "c", "d"), ("",) * 4, ((7,), (999,), (7,), (0,)))
    assert [(p.index, p.rows) for p in cut(table, by_class=True)] == [(0, (3,)), (7, (0, 2)), (999, (1,))]


def test_a_fingerprint_sees_id_key_label_and_group() -> None:
    table = RowTable(("a",), ("k",), ((1,),), {"g": [3]})
    others = (
        replace(table, ids=("b",)),
        replace(table, keys=("l",)),
        replace(table, labels=((2,),)),
        replace(table, groups={"g": [4]}),
    )
    marks = {cut(t, by_class=False)[0].fingerprint for t in (table, *others)}
    assert len(marks) == 5
    text = '["a","k",[1],{"g":3}]\n'
    assert hashlib.sha256(text.encode()).hexdigest() in marks


def test_two_rows_with_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match="expected unique ids, got 'x' more than once"):
        RowTable(("x", "y", "x"), ("",) * 3, ((0,),) * 3)


def test_a_part_has_exactly_these_columns_in_this_order() -> None:
    table = table_of(2)
    outputs = {
        "rotation_logits": numbers(2, 4),
        "confidence_logit": numbers(2)[:, 0],
        "features": numbers(2, 5),
        "logits": numbers(2, 7),
    }
    part = part_table(table, cut(table, by_class=False)[0], ["s", None], [None, None], outputs)
    vector = pa.list_(pa.float32())
    assert part.schema.equals(
        pa.schema([
            pa.field("id", pa.string(), nullable=False), ("image_sha256", pa.string()),
            pa.field("labels", pa.list_(pa.int32()), nullable=False), ("nuisance", pa.string()), ("error", pa.string()),
            ("logits", vector), ("features", vector), ("confidence_logit", pa.float32()), ("rotation_logits", vector),
        ])
    )  # fmt: skip


def test_a_row_with_an_error_has_null_outputs_and_the_others_their_own() -> None:
    table, logits, scalars = table_of(3), numbers(3, 4), numbers(3, 1)[:, 0]
    part = cut(table, by_class=False)[0]
    stored = part_table(table, part, ["s"] * 3, [None, "broken", None], {"logits": logits, "confidence_logit": scalars})
    assert stored["logits"].to_pylist() == [logits[0].tolist(), None, logits[2].tolist()]
    assert stored["confidence_logit"].to_pylist() == [float(scalars[0]), None, float(scalars[2])]
    assert stored["error"].to_pylist() == [None, "broken", None]


def test_a_part_without_a_group_value_has_the_type_of_the_whole_column() -> None:
    table = RowTable(tuple(map(str, range(101))), ("",) * 101, ((0,),) * 101, {"nuisance": ["texture"] * 100 + [None]})
    none = [None] * 100
    first, last = cut(table, by_class=False)
    one = part_table(table, first, none, none, {})
    other = part_table(table, last, [None], [None], {})
    assert one.schema.equals(other.schema)


def test_the_footer_holds_fingerprint_rows_and_ids(tmp_path: Path) -> None:
    (part,) = store(tmp_path, table_of(3), logits=numbers(3))
    ids = hashlib.sha256(b"0/0000.png\n1/0001.png\n2/0002.png").hexdigest()
    footer = read_footer(tmp_path / part.file_name) or {}
    assert {**footer, "records": 0, "content": 0} == {
        "fingerprint": part.fingerprint, "rows": 3, "ids": ids, "records": 0, "content": 0,
    }  # fmt: skip


def test_a_part_made_from_other_rows_is_not_present(tmp_path: Path) -> None:
    (part,) = store(tmp_path, table_of(3), logits=numbers(3))
    assert is_present(tmp_path, part)
    assert not is_present(tmp_path, replace(part, fingerprint="of other rows"))


@pytest.mark.parametrize(
    "damage", ["absent", "empty", "half", "garbage", "garbage with the magic bytes", "no footer of ours"]
)
def test_a_part_that_is_not_whole_is_not_present(tmp_path: Path, damage: str) -> None:
    (part,) = store(tmp_path, table_of(3), logits=numbers(3))
    path = tmp_path / part.file_name
    whole = path.read_bytes()
    if damage == "absent":
        path.unlink()
    elif damage == "no footer of ours":
        pq.write_table(pa.table({"id": ["x"]}), path)
    else:
        bad = {"empty": b"", "half": whole[: len(whole) // 2], "garbage": b"x" * 500}
        path.write_bytes(bad.get(damage, b"PAR1" + b"x" * 500 + (40).to_bytes(4, "little") + b"PAR1"))
    assert not is_present(tmp_path, part)
    assert present_parts(tmp_path, SourcePlan.read(tmp_path)) == ()
    assert read_source_of(tmp_path).absent == (0,)


def read_source_of(folder: Path, **options: Any) -> Any:
    write_label_space(folder.parent, labels.imagenet_1k())
    return read_source(folder, **options)


def test_writing_a_part_twice_gives_the_same_bytes_and_leaves_no_other_file(tmp_path: Path) -> None:
    (part,) = store(tmp_path, table_of(3), logits=numbers(3))
    before = (tmp_path / part.file_name).read_bytes()
    store(tmp_path, table_of(3), logits=numbers(3))
    assert (tmp_path / part.file_name).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part-00000.parquet", "run.json", "source.json"]


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("host", ["box", "box.lab.example.org"])
def test_leftovers_of_dead_processes_go_and_those_of_live_and_foreign_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    part, dead, day = tmp_path / "part-00000.parquet", dead_process(), 24 * 3600
    with renamed(part) as own:
        space = own.name.removeprefix(f".{part.name}.{host}.").removesuffix(f"-{os.getpid()}.tmp")
        own.touch()
    gone = [
        f".{part.name}.{host}.{space}-{dead}.tmp",
        f".run.json.{host}.{space}-{dead}.tmp",
        f".x.{host}.{0:08x}-1.tmp",
    ]
    kept = [f".{part.name}.{host}.{space}-{os.getpid()}.tmp", f".{part.name}.other.{space}-{dead}.tmp", ".strange.tmp"]
    kept += [f".{part.name}.{host}.{0:08x}-{os.getpid()}.tmp"]  # of another container with the same host name
    for name in (*gone, *kept, "part-00001.parquet"):
        (tmp_path / name).touch()
    os.utime(tmp_path / gone[-1], (time.time() - day - 60, time.time() - day - 60))
    part.unlink()
    remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*kept, "part-00001.parquet"}


def test_the_proof_counts_the_rows_and_hashes_the_sorted_ids(tmp_path: Path) -> None:
    table = table_of(101)
    parts = store(tmp_path, table, logits=numbers(101))
    proof = json.loads((tmp_path / "run.json").read_text())
    ids = hashlib.sha256("\n".join(sorted(table.ids)).encode()).hexdigest()
    whole = canonical([[p.index, len(p.rows), p.fingerprint] for p in parts])
    assert proof == {
        "dataset": "imagenet-a", "rule": "model", "fingerprint": hashlib.sha256(whole.encode()).hexdigest(),
        "parts": [0, 1], "parts_of_dataset": 2,
        "proof": {"rows": 101, "duplicates": 0, "missing": 0, "ids_sha256": ids},
    }  # fmt: skip


def test_the_proof_has_the_same_bytes_each_time_and_counts_only_whole_parts(tmp_path: Path) -> None:
    store(tmp_path, table_of(250), logits=numbers(250))
    before = (tmp_path / "run.json").read_bytes()
    finish(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before
    (tmp_path / "part-00001.parquet").write_bytes(b"cut short")
    finish(tmp_path)
    proof = json.loads((tmp_path / "run.json").read_text())
    assert (proof["parts"], proof["proof"]["rows"]) == ([0, 2], 100 + 50)


@pytest.mark.parametrize(("ids", "message"), [(["a"], "got 1 rows and 1 ids"), (["a", "a"], "got 2 rows and 1 ids")])
def test_a_missing_or_doubled_row_is_refused(tmp_path: Path, ids: list[str], message: str) -> None:
    table = RowTable(("a", "b"), ("", ""), ((0,), (1,)))
    (part,) = store(tmp_path, table, logits=numbers(2))
    written = pq.read_table(tmp_path / part.file_name).slice(0, len(ids))
    write_part(tmp_path, part, written.set_column(0, written.schema.field("id"), [ids]))
    with pytest.raises(ValueError, match=f"expected 2 rows with unique ids in .*, {message}: remove the folder"):
        finish(tmp_path)


def test_the_hash_of_ids_does_not_depend_on_their_order() -> None:
    assert ids_hash(["b", "a"]) == ids_hash(["a", "b"]) == hashlib.sha256(b"a\nb").hexdigest()


def test_what_is_read_is_exactly_what_was_written(tmp_path: Path) -> None:
    table, logits = table_of(101), numbers(101)
    store(tmp_path / "source", table, logits=logits)
    read = read_source_of(tmp_path / "source")
    assert read.outputs.ids == table.ids
    np.testing.assert_array_equal(read.outputs.logits, logits)
    np.testing.assert_array_equal(read.outputs.labels, [[i % 3] for i in range(101)])
    np.testing.assert_allclose(
        read.outputs.log_normaliser, np.log(np.exp(logits.astype(np.float64)).sum(axis=1)), rtol=1e-12
    )
    assert set(read.outputs.groups["nuisance"]) == {"texture"}
    assert (read.failed, read.absent, read.rows_by_part) == ((), (), {0: 100, 1: 1})


def test_only_the_wanted_classes_are_read(tmp_path: Path) -> None:
    table = table_of(9, groups=False)
    store(tmp_path / "source", table, by_class=True, logits=numbers(9))
    read = read_source_of(tmp_path / "source", wanted=(1, 2, 500))
    assert read.rows_by_part == {1: 3, 2: 3}
    assert sorted(set(read.outputs.labels[:, 0])) == [1, 2]


def test_failed_rows_are_told_and_left_out(tmp_path: Path) -> None:
    table, logits = table_of(3), numbers(3)
    (part,) = store(tmp_path / "source", table, logits=logits)
    write_part(
        tmp_path / "source", part, part_table(table, part, ["s"] * 3, [None, "broken", None], {"logits": logits})
    )
    read = read_source_of(tmp_path / "source")
    assert read.failed == (("1/0001.png", "broken"),)
    assert read.outputs.ids == ("0/0000.png", "2/0002.png")
    np.testing.assert_array_equal(read.outputs.logits, logits[[0, 2]])


def test_a_part_of_failed_rows_only_is_read_as_no_rows(tmp_path: Path) -> None:
    table, logits = table_of(101), numbers(101)
    parts = store(tmp_path / "source", table, logits=logits)
    write_part(tmp_path / "source", parts[1], part_table(table, parts[1], ["s"], ["broken"], {"logits": logits[100:]}))
    read = read_source_of(tmp_path / "source")
    assert read.failed == (("1/0100.png", "broken"),)
    np.testing.assert_array_equal(read.outputs.logits, logits[:100])


@pytest.mark.parametrize("width", [1001, 21841])
def test_outputs_of_another_label_space_are_joined_by_wordnet_id(tmp_path: Path, width: int) -> None:
    space, logits = labels.label_space(width), numbers(2, width)
    store(tmp_path / "source", table_of(2), logits=logits)
    write_label_space(tmp_path, space)
    assert read_label_space(tmp_path) == space
    read = read_source(tmp_path / "source").outputs
    for index in (0, 134, 517, 999):
        wnid = labels.imagenet_1k().wnids[index]
        expected = logits[:, space.wnids.index(wnid)] if wnid in space.wnids else [-np.inf, -np.inf]
        np.testing.assert_array_equal(read.logits[:, index], expected)
    assert np.isneginf(read.logits).any(axis=0).sum() == len(space.missing_imagenet_1k())
    np.testing.assert_allclose(read.log_normaliser, np.log(np.exp(logits.astype(np.float64)).sum(axis=1)), rtol=1e-12)


def test_embeddings_meet_the_head_that_is_asked_for(tmp_path: Path) -> None:
    embeddings, weight = numbers(2, 5), numbers(1113, 5, seed=1)
    heads = {
        "imagenet-1k": HeadWeights(weight[:1000], np.zeros(1000, np.float32)),
        "imagenet-d": HeadWeights(weight[1000:], np.ones(113, np.float32)),
    }
    store(tmp_path / "source", table_of(2), embeddings=embeddings)
    write_heads(tmp_path, heads)
    usual, other = (read_source_of(tmp_path / "source", head=head).outputs.logits for head in (None, "imagenet-d"))
    np.testing.assert_allclose(usual, np.einsum("nd,kd->nk", embeddings, weight[:1000]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other, np.einsum("nd,kd->nk", embeddings, weight[1000:]) + 1, rtol=1e-5, atol=1e-5)


def test_a_head_that_was_not_stored_is_none(tmp_path: Path) -> None:
    assert read_head(tmp_path, "classifier") is None
    write_heads(tmp_path, {"classifier": HeadWeights(numbers(3, 2), numbers(1, 3)[0])})
    assert read_head(tmp_path, "imagenet-d") is None
    stored = read_head(tmp_path, "classifier")
    assert stored is not None
    np.testing.assert_array_equal(stored.weight, numbers(3, 2))


def test_labels_are_padded_to_the_longest_row() -> None:
    assert pad([]).shape == (0, 1)
    assert pad([[]]).tolist() == [[-1]]


def test_a_head_whose_values_were_changed_is_not_used(tmp_path: Path) -> None:
    write_heads(tmp_path, {"classifier": HeadWeights(np.ones((2, 3), np.float32), np.zeros(2, np.float32))})
    path = tmp_path / "heads" / "classifier.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last bit of a value: the file is still one that can be read
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="got other values than were written: remove the file and run again"):
        read_head(tmp_path, "classifier")
