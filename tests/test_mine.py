"""Mining of shared failures, against the same models run by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from candidate_world import DrawnSettings, drawn, judges, pixels, work_in

from hf_robust.benchmarks.spec import MODEL
from hf_robust.models import load_model, transform_for
from hf_robust.regenerate.assemble import vote_lines, votes
from hf_robust.regenerate.ledger import KEEP, REASON, Ledger
from hf_robust.regenerate.mine import MINE, MineSettings
from hf_robust.regenerate.stage import StageError, run_stage


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    folder = tmp_path_factory.mktemp("judges")
    return folder, judges(folder, (0.0, 0.4, 0.8, 1.2, 1.0))


def mined(out: Path, settings: MineSettings, source: DrawnSettings | None = None) -> Ledger:
    return run_stage(MINE, settings, work_in(out, drawn(out, source)))


def by_hand(name: str, ledger: Ledger) -> list[bool]:
    """Whether a model is right, one picture at a time without the runner."""
    model = load_model(name)
    transform, _ = transform_for(MODEL, model.preprocessing)
    right = []
    for table in ledger.tables(("image", "labels")):
        for row in table.to_pylist():
            with torch.inference_mode():
                logits = model.forward(transform(pixels(row["image"])).unsqueeze(0))["logits"][0]
            right.append(int(logits.argmax()) in row["labels"])
    return right


def rows_of(ledger: Ledger) -> list[dict[str, object]]:
    return [row for table in ledger.tables(("votes", "failures")) for row in table.to_pylist()]


def test_a_picture_is_kept_when_all_surrogates_fail(tmp_path: Path, world: tuple[Path, tuple[str, ...]]) -> None:
    names = world[1]
    ledger = mined(tmp_path, MineSettings(names[:4], targets=names[4:]))
    right = {name: by_hand(name, ledger) for name in names}
    failures = [4 - sum(right[name][n] for name in names[:4]) for n in range(30)]
    rows = rows_of(ledger)
    assert [row["failures"] for row in rows] == failures
    assert [row[KEEP] for row in rows] == [failed == 4 for failed in failures]
    assert 0 < sum(failed == 4 for failed in failures) < 30  # the world has both
    dropped = next(n for n in range(30) if failures[n] == 3)
    assert rows[dropped][REASON] == "3 of 4 surrogates fail, fewer than 4"
    said = {(v["model"], v["role"]): v["correct"] for v in rows[7]["votes"]}  # type: ignore[attr-defined]
    roles = {name: "target" if name == names[4] else "surrogate" for name in names}
    assert said == {(name, roles[name]): right[name][7] for name in names}


def test_fewer_failures_can_be_enough_and_other_surrogates_never_draw_again(
    tmp_path: Path, world: tuple[Path, tuple[str, ...]]
) -> None:
    names = world[1]
    four = mined(tmp_path, MineSettings(names[:4]))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("1-drawn-*/*")}
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/part-*")}
    three = mined(tmp_path, MineSettings(names[:4], min_failures=3))
    two = mined(tmp_path, MineSettings(names[:2]))
    assert four.kept() < three.kept()
    assert [r[KEEP] for r in rows_of(three)] == [(r["failures"] or 0) >= 3 for r in rows_of(four)]  # type: ignore[operator]
    assert two.kept() >= four.kept()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("1-drawn-*/*")} == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/part-*")} == runs


def test_the_effect_of_the_selection_is_counted_for_surrogates_and_targets(
    tmp_path: Path, world: tuple[Path, tuple[str, ...]]
) -> None:
    names = world[1]
    ledger = mined(tmp_path, MineSettings(names[:2], targets=names[4:]))
    right = {name: np.array(by_hand(name, ledger)) for name in names}
    kept = ~right[names[0]] & ~right[names[1]]
    table = {row["model"]: row for row in votes(ledger)}
    assert table[names[0]]["right"] == right[names[0]].sum()
    assert table[names[0]]["right_of_kept"] == 0
    assert table[names[4]]["right_of_kept"] == right[names[4]][kept].sum()
    assert table[names[4]]["kept"] == kept.sum()
    assert vote_lines(votes(ledger))[2].startswith(f"| `{names[0]}` | surrogate | ")


def test_a_picture_that_a_surrogate_cannot_read_is_dropped_with_that_reason(
    tmp_path: Path, world: tuple[Path, tuple[str, ...]]
) -> None:
    ledger = mined(tmp_path, MineSettings(world[1][:2]), DrawnSettings(rows=12, broken=4))
    row = rows_of(ledger)[4]
    assert (row[KEEP], row[REASON], row["failures"]) == (False, "a surrogate could not read it", None)


def test_a_finished_stage_is_not_run_again_for_predictions_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "judges").mkdir()
    names = judges(tmp_path / "judges", (0.4, 0.8, 1.2))
    settings = MineSettings(names[:2], targets=names[2:])
    first = mined(tmp_path, settings)
    files = {path: path.read_bytes() for path in first.stages[-1].folder.iterdir()}
    shutil.rmtree(tmp_path / "runs")
    assert mined(tmp_path, settings) == first
    assert not (tmp_path / "runs").exists()
    assert {path: path.read_bytes() for path in first.stages[-1].folder.iterdir()} == files
    (first.stages[-1].folder / "part-00001.parquet").unlink()  # what is missing needs the models
    assert mined(tmp_path, settings) == first
    assert len(list(tmp_path.glob("runs/*/*/run.json"))) == 3
    assert {path: path.read_bytes() for path in first.stages[-1].folder.iterdir()} == files
    shutil.rmtree(tmp_path / "runs")
    others = judges(tmp_path / "judges", (0.4, 0.8, 1.0))  # another target under the same name
    second = mined(tmp_path, MineSettings(others[:2], targets=others[2:]))
    assert second.key != first.key
    assert len(list(tmp_path.glob("runs/*/*/run.json"))) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MineSettings(()), "expected at least one surrogate and each model once, got none"),
        (MineSettings(("a", "a")), "each model once, got a, a"),
        (MineSettings(("a",), targets=("a",)), "each model once, got a, a"),
        (MineSettings(("a", "b"), min_failures=3), "expected min_failures from 1 to the 2 surrogates, got 3"),
        (MineSettings(("a", "b"), min_failures=0), "expected min_failures from 1 to the 2 surrogates, got 0"),
    ],
)
def test_surrogates_that_cannot_decide_are_refused(tmp_path: Path, settings: MineSettings, message: str) -> None:
    with pytest.raises(StageError, match=message):
        mined(tmp_path, settings, DrawnSettings(rows=3))


def test_the_default_asks_for_a_shared_failure_of_four() -> None:
    settings = MineSettings()
    assert len(settings.surrogates) == 4
    assert replace(settings, min_failures=None) == settings
