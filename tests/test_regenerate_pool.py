"""The recipes that begin with a pool of pictures, from folder to numbers, with tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from candidate_world import judges
from toy_world import draw

from hf_robust import builders
from hf_robust.benchmarks.derived import Derived, derive, from_record, remember, remembered
from hf_robust.cli import main
from hf_robust.labels import imagenet_1k

CLASSES = (1, 5, 9, 207)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """Pictures of four classes, one of them twice; and three models that know the classes more or less."""
    folder = tmp_path_factory.mktemp("pool")
    for n in range(32):
        place = folder / "pictures" / imagenet_1k().wnids[CLASSES[n % 4]]
        place.mkdir(parents=True, exist_ok=True)
        content = draw(CLASSES[n % 4], np.random.default_rng(n), kind="PNG", strangeness=1.0)
        (place / f"{n:03d}.png").write_bytes(content)
        if n == 7:
            (place / "again.png").write_bytes(content)
    return folder / "pictures", judges(folder, (0.3, 0.5, 0.7))


def command(out: Path, pool: tuple[Path, tuple[str, ...]], *more: str) -> list[str]:
    pictures, (judge, *held_out) = pool
    return [
        "regenerate", "imagenet-a", "--out", str(out), "--candidates", str(pictures), "--set", "collect.min_side=16",
        'fingerprint.embedding="timm-random/test_vit"', "duplicates.cosine=1.0", "duplicates.hash_bits=2",
        f'filter_a.filters=["{judge}"]', "filter_a.preprocessing=model", "filter_a.max_probability=0.5",
        f"selection.held_out={json.dumps(held_out)}", "selection.sample=20", "review.people=none",
        "assemble.name=toy-a", *more,
    ]  # fmt: skip


def test_a_pool_becomes_a_set_that_the_filter_gets_wrong(
    pool: tuple[Path, tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path / "A", pool)) == 0
    said = capsys.readouterr().out
    assert "held-out" in said
    rows = pq.read_table(tmp_path / "A" / "ledger.parquet").to_pylist()
    assert len(rows) == 33
    assert [row["dropped_by"] for row in rows].count("duplicates") == 1
    built = builders.find("toy-a", out=tmp_path / "A" / "set")
    assert 0 < built.rows == sum(row["keep"] for row in rows)
    first = next(iter(built.load().values()))[0]
    assert first["file_name"].startswith("n0")
    assert first["wrong_label_1"]
    runs = tmp_path / "runs"
    evaluate = ["evaluate", "--model", *pool[1], "--benchmark", str(tmp_path / "A" / "set"), "--out", str(runs)]
    assert main([*evaluate, "--processes", "1", "--allow-chance"]) == 0
    results = json.loads((runs / "results" / "results.json").read_text())["results"]
    top1 = {r["model"]: r["value"] for r in results if r["metric"] == "top1_accuracy"}
    assert top1[pool[1][0]] == 0.0  # the filter is wrong on all it kept, over the classes that it saw
    assert (tmp_path / "A" / "toy-a.hashes.parquet").is_file()


def test_a_release_is_a_reference_for_the_next_set(pool: tuple[Path, tuple[str, ...]], tmp_path: Path) -> None:
    assert main(command(tmp_path / "A", pool)) == 0
    hashes = tmp_path / "A" / "toy-a.hashes.parquet"
    assert main(command(tmp_path / "B", pool, f'duplicates.references=["{hashes}"]')) == 1  # nothing is left
    again = sorted((tmp_path / "B").glob("3-duplicates-*/part-*.parquet"))
    reasons = [r for path in again for r in pq.read_table(path)["reason"].to_pylist()]
    kept = builders.find("toy-a", out=tmp_path / "A" / "set").rows
    assert reasons.count("in the reference set") == kept


OWN = Derived("imagenet-d", "mine", "Mine", (1, 2), "made", "none", groups=((1,), (2,)), categories=("alarm_clock",))


def test_a_derived_benchmark_takes_the_protocol_and_none_of_the_published_names() -> None:
    benchmark = derive(OWN)
    assert (benchmark.name, benchmark.repo_id, benchmark.sources[0].dataset) == ("mine", None, "mine")
    assert benchmark.zero_shot is not None
    assert derive(from_record({**OWN.as_record(), "categories": ["dragon"]})).zero_shot is None
    assert derive(from_record({**OWN.as_record(), "base": "imagenet-a", "mask": [1, 2, 3]})).mask == (1, 2, 3)
    assert from_record(OWN.as_record()) == OWN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "imagenet-d"}, "expected a new name of small letters"),
        ({"name": "../x"}, "expected a new name of small letters"),
        ({"base": "cifar"}, "expected one of imagenet-a, imagenet-o, spurious-imagenet, imagenet-d as the base"),
        ({"classes": None}, "expected the record of a regenerated set"),
    ],
)
def test_records_of_something_else_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_record({**OWN.as_record(), **changes})


def test_runs_remember_their_sets_and_name_a_damaged_record(tmp_path: Path) -> None:
    remember(tmp_path, OWN)
    assert list(remembered(tmp_path)) == ["mine"]
    (tmp_path / "sets" / "mine.json").write_text("{")
    with pytest.raises(ValueError, match=r"expected the record of a set in .*mine.json"):
        remembered(tmp_path)
