"""Two models on the same pictures: paired differences, tests, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_folder import Source, peaked, write_run
from scipy.stats import binomtest

from hf_robust.benchmarks import benchmarks
from hf_robust.scoring.compare import Comparison, compare, run_of


def runs(tmp_path: Path, first: list[int], second: list[int]) -> tuple[Path, Path]:
    """Two runs over the same validation pictures, of class 0 to 9; what each model answers."""
    labels = [[i % 10] for i in range(len(first))]
    one = write_run(tmp_path / "a", ["imagenet-val"], [Source("imagenet-val", labels, peaked(first))], weights="1" * 64)
    two = write_run(
        tmp_path / "b", ["imagenet-val"], [Source("imagenet-val", labels, peaked(second))], weights="2" * 64
    )
    return one, two


def named(rows: list[Comparison], metric: str) -> Comparison:
    return next(row for row in rows if row.metric == metric)


def test_the_difference_of_accuracies_is_tested_by_mcnemar_over_the_pictures_where_they_differ(tmp_path: Path) -> None:
    truth = [i % 10 for i in range(100)]
    first = truth[:90] + [99] * 10  # right on the first 90
    second = [99] * 15 + truth[15:95] + [99] * 5  # right on 15 .. 94: 15 only the first, 5 only the second
    row = named(compare(*runs(tmp_path, first, second), benchmarks(), replicates=200), "top1_accuracy")
    assert (row.first, row.second, row.n) == (0.9, 0.8, 100)
    assert row.difference == pytest.approx(0.1)
    assert row.p_value == pytest.approx(binomtest(5, 20).pvalue)
    assert row.test == "exact McNemar"
    assert row.ci95[0] < 0.1 < row.ci95[1]
    assert row.headline
    assert row.p_holm == row.p_value  # one benchmark: nothing to adjust


def test_a_model_against_itself_differs_nowhere(tmp_path: Path) -> None:
    truth = [i % 10 for i in range(50)]
    rows = compare(*runs(tmp_path, truth, truth), benchmarks(), replicates=100)
    assert {row.difference for row in rows} == {0.0}
    assert {row.p_value for row in rows} == {1.0}
    assert not any(row.decided for row in rows)


def test_other_pictures_are_refused_with_their_number(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", ["imagenet-val"], [Source("imagenet-val", [[0]] * 5, peaked([0] * 5))])
    two = write_run(tmp_path / "b", ["imagenet-val"], [Source("imagenet-val", [[0]] * 7, peaked([0] * 7))])
    with pytest.raises(ValueError, match="expected the same pictures in both runs, got 2 ids of test rows"):
        compare(one, two, benchmarks())


def test_runs_without_a_common_benchmark_are_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a", ["imagenet-val"], [Source("imagenet-val", [[0]] * 5, peaked([0] * 5))])
    two = write_run(tmp_path / "b", ["imagenet-a"], [Source("imagenet-a", [[6]] * 5, peaked([6] * 5))])
    with pytest.raises(LookupError, match="expected a benchmark that both runs were asked for"):
        compare(one, two, benchmarks())


def test_a_folder_with_one_run_stands_for_it_and_with_two_is_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path, ["imagenet-val"], [Source("imagenet-val", [[0]], peaked([0]))], weights="1" * 64)
    assert run_of(tmp_path) == run_of(one) == one
    write_run(tmp_path, ["imagenet-val"], [Source("imagenet-val", [[0]], peaked([0]))], weights="2" * 64)
    with pytest.raises(LookupError, match="expected one run in"):
        run_of(tmp_path)


def test_the_paired_interval_is_narrower_than_two_apart_where_the_models_err_together(tmp_path: Path) -> None:
    """USER_REPORTS 32: 400 pictures, both wrong on the same 100, one also on 8 more."""
    truth = [i % 10 for i in range(400)]
    first = [99 if i < 100 else t for i, t in enumerate(truth)]
    second = [99 if i < 108 else t for i, t in enumerate(truth)]
    row = named(compare(*runs(tmp_path, first, second), benchmarks()), "top1_accuracy")
    width = row.ci95[1] - row.ci95[0]
    apart = 2 * 1.96 * np.sqrt(0.75 * 0.25 / 400 + 0.73 * 0.27 / 400)
    assert width < apart / 3
    assert row.p_value == pytest.approx(2 / 2**8)
