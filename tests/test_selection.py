"""The selection effect: filters and held-out models, on the filtered set and on a sample of its pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filter_world import TINY, NoSettings, pool, rows_of, through, work

from hf_robust.data import decode
from hf_robust.labels import imagenet_1k_index
from hf_robust.metrics import wilson
from hf_robust.models import load_model
from hf_robust.regenerate.balance import BALANCE, BalanceSettings
from hf_robust.regenerate.candidates import candidate_rows
from hf_robust.regenerate.filter import FILTER_A, FilterASettings
from hf_robust.regenerate.selection import Gap, _difference, sampled, selection_effect
from hf_robust.regenerate.stage import StageError

HELD_OUT = ("timm-random/test_byobnet", "timm-random/test_efficientnet")
WNIDS = ("n01440764", "n01498041", "n02123045")
START = NoSettings()


@pytest.fixture(scope="module")
def photos(tmp_path_factory, picture):
    folder = tmp_path_factory.mktemp("photos")
    files = []
    for i in range(18):
        picture(i, width=90, height=80).save(folder / f"{i:02d}.png")
        files.append((folder / f"{i:02d}.png", WNIDS[i % 3]))
    return files


@pytest.fixture(scope="module")
def filtered(photos, tmp_path_factory):
    """Folder and ledger of the pool filtered by one tiny model."""
    out = tmp_path_factory.mktemp("out")
    settings = FilterASettings((TINY,), max_probability=0.37, preprocessing="paper")
    return out, through(out, (pool(photos), START), (FILTER_A, settings), (BALANCE, BalanceSettings()))


def right_by_hand(name, rows, photos):
    """Whether the model alone is right on each of these rows, among the three classes."""
    import torch

    model = load_model(name)
    known = imagenet_1k_index()
    columns = sorted(known[w] for w in WNIDS)
    found = []
    for row in rows:
        path, wnid = photos[int(row["name"][:2])]
        with torch.inference_mode():
            pixels = model.preprocessing.transform(decode(path.read_bytes()))
            logits = model.module(pixels.unsqueeze(0)).numpy()[0, columns]
        found.append(columns[int(logits.argmax())] == known[wnid])
    return found


def test_each_row_and_gap_follows_from_the_models_alone(filtered, photos):
    out, ledger = filtered
    effect = selection_effect(ledger, work(out), filters=[TINY], held_out=HELD_OUT, since="filter_a", sample=100)
    everything = rows_of(ledger)
    sides = {"filtered": [row for row in everything if row["keep"]], "sample": everything}
    assert 2 <= len(sides["filtered"]) < 18
    gaps = {}
    for side, rows in sides.items():
        right = {name: right_by_hand(name, rows, photos) for name in (TINY, *HELD_OUT)}
        for row in (r for r in effect.rows if r.side == side):
            n, correct = len(rows), sum(right[row.model])
            assert (row.pictures, row.correct, row.accuracy, row.unread) == (n, correct, correct / n, 0)
            assert (row.low, row.high) == wilson(correct, n)
            assert row.role == ("filter" if row.model == TINY else "held-out")
        gaps[side] = np.mean([right[name] for name in HELD_OUT]) - np.mean(right[TINY])
    assert {gap.side: gap.value for gap in effect.gaps} == pytest.approx(
        {**gaps, "difference": gaps["filtered"] - gaps["sample"]}
    )
    assert all(gap.low <= gap.value <= gap.high for gap in effect.gaps)


def test_the_difference_of_two_independent_gaps_adds_their_widths_as_squares():
    found = _difference(Gap("filtered", 0.5, 0.2, 0.9, 10), Gap("sample", 0.1, 0.0, 0.4, 20))
    # 0.5 - 0.1; down: sqrt(0.3^2 + 0.3^2), up: sqrt(0.4^2 + 0.1^2)
    assert (found.side, found.value, found.pictures) == ("difference", pytest.approx(0.4), 30)
    assert (found.low, found.high) == pytest.approx((0.4 - 0.18**0.5, 0.4 + 0.17**0.5))


def test_the_sample_is_drawn_by_seed_and_id_and_named_by_both(filtered):
    rows = candidate_rows(filtered[1], only_kept=False)
    one, again, other = (sampled(rows, 5, seed) for seed in (0, 0, 1))
    assert one.table == again.table != other.table
    assert one.dataset == f"{rows.dataset}-sample-5-0" != other.dataset
    assert [one.read(i) for i in range(5)] == [rows.read(rows.table.ids.index(key)) for key in one.table.ids]
    reversed_ids = replace(rows, table=replace(rows.table, ids=rows.table.ids[::-1]))
    assert set(sampled(reversed_ids, 5, 0).table.ids) == set(one.table.ids)
    assert sampled(rows, 99, 0).table == rows.table


def test_questions_without_an_answer_are_refused(filtered):
    out, ledger = filtered
    ask = {"filters": [TINY], "held_out": [HELD_OUT[0]], "since": "filter_a"}
    for change, message in (
        ({"held_out": [TINY]}, "expected at least one filter and one held-out model, each once"),
        ({"held_out": []}, "expected at least one filter and one held-out model"),
        (
            {"since": "pool"},
            "expected the name of a stage after the first, got 'pool'; stages: pool, filter_a, balance",
        ),
        ({"sample": 0}, "expected a sample of at least 1 picture, got 0"),
    ):
        with pytest.raises(StageError, match=message):
            selection_effect(ledger, work(out), **{**ask, **change})


def test_a_set_of_which_nothing_is_kept_is_refused(photos, tmp_path: Path):
    ledger = through(tmp_path, (pool(photos[:4]), START), (FILTER_A, FilterASettings((TINY,), max_probability=1e-9)))
    with pytest.raises(StageError, match="expected candidates to run models on, got none that is kept"):
        selection_effect(ledger, work(tmp_path), filters=[TINY], held_out=[HELD_OUT[0]], since="filter_a")
