"""How far apart two sets are: the Fréchet distance from streamed moments, the kernel distance, the command."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from numpy.typing import NDArray
from run_folder import Source, write_run
from tiny_runs import FACTORIES, picture, write

from hf_robust.cli.health import add_distance
from hf_robust.distance import (
    FeatureSet,
    distance,
    frechet,
    frechet_distance,
    grouped,
    groups_of,
    kernel_distance,
    merge,
    merged,
    moments_of,
    open_features,
    squared_mmd,
)  # fmt: skip
from hf_robust.distance.moments import Moments, without_each

Rows = NDArray[np.floating[Any]]


def random_rows(seed: int, n: int, width: int, *, spread: float = 1.0, shift: float = 0.0) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    mix = random.normal(size=(width, width)) / np.sqrt(width)
    return (random.gamma(2.0, spread, (n, width)) @ mix + shift).astype(np.float32)


def by_matrix_root(one: Rows, other: Rows) -> float:
    """The textbook formula, with scipy's matrix square root of the product of the covariances."""
    first, second = one.astype(np.float64), other.astype(np.float64)
    a, b = np.cov(first.T), np.cov(second.T)
    gap = first.mean(0) - second.mean(0)
    return float(gap @ gap + np.trace(a) + np.trace(b) - 2 * np.trace(scipy.linalg.sqrtm(a @ b)).real)


def mmd_by_loops(one: Rows, other: Rows) -> float:
    """The definition, pair by pair."""

    def kernel(x: Rows, y: Rows) -> float:
        return float((x.astype(np.float64) @ y.astype(np.float64) / len(x) + 1) ** 3)

    def within(rows: Rows) -> float:
        return float(np.mean([kernel(x, y) for i, x in enumerate(rows) for j, y in enumerate(rows) if i != j]))

    across = float(np.mean([kernel(x, y) for x in one for y in other]))
    return within(one) + within(other) - 2 * across


def chunks(rows: Rows, size: int) -> Iterator[Rows]:
    return (rows[i : i + size] for i in range(0, len(rows), size))


def check_same(found: Moments, rows: Rows) -> None:
    assert found.count == len(rows)
    assert np.allclose(found.mean, rows.astype(np.float64).mean(0), rtol=1e-12, atol=1e-12)
    assert np.allclose(found.covariance(), np.cov(rows.astype(np.float64).T), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_moments_are_those_of_all_rows_however_they_come(size: int) -> None:
    rows = random_rows(0, 400, 12)
    check_same(merged(grouped(chunks(rows, size), groups_of(400, 0))), rows)


def test_moments_stay_accurate_far_from_the_origin() -> None:
    rows = np.random.default_rng(1).normal(1e6, 1.0, (500, 3))
    assert np.allclose(merged(grouped([rows], groups_of(500, 0))).covariance(), np.cov(rows.T), rtol=1e-8)


def test_leaving_out_each_group_gives_the_moments_of_the_others() -> None:
    rows, group = random_rows(2, 60, 5), groups_of(60, 3)
    pieces = grouped([rows], group)
    for k, rest in enumerate(without_each(pieces)):
        check_same(rest, rows[group != k])


def test_one_row_has_moments_that_merge() -> None:
    rows = random_rows(3, 2, 4)
    check_same(merge(moments_of(rows[:1]), moments_of(rows[1:])), rows)


def test_groups_are_of_equal_size_and_drawn_by_the_seed() -> None:
    groups = groups_of(105, 0)
    assert sorted(np.bincount(groups).tolist()) == [10] * 5 + [11] * 5
    assert (groups == groups_of(105, 0)).all()
    assert (groups != groups_of(105, 1)).any()


def test_the_distance_of_two_gaussians_is_the_closed_form() -> None:
    # independent axes: |gap|² plus the squared difference of the standard deviations of each axis
    corners = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])  # variance 2 / 3 along each axis
    one, other = corners * [3, 5], corners * [4, 1] + [1, 2]
    expected = (1 + 4) + 2 / 3 * ((3 - 4) ** 2 + (5 - 1) ** 2)
    assert frechet_distance(moments_of(one), moments_of(other)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("n", "m", "width"), [(200, 300, 4), (500, 90, 40), (1000, 1000, 64)])
def test_the_distance_is_that_of_the_matrix_square_root(n: int, m: int, width: int) -> None:
    one, other = random_rows(4, n, width), random_rows(5, m, width, spread=1.5, shift=0.3)
    found = frechet_distance(moments_of(one), moments_of(other))
    assert found == pytest.approx(by_matrix_root(one, other), rel=1e-9)


def test_the_distances_are_those_of_torch_fidelity_and_torchmetrics() -> None:
    # torch-fidelity 0.4.0 and torchmetrics 1.9.0 in float64 on these rows; both gave these digits
    random = np.random.default_rng(3)
    one = random.gamma(2, size=(300, 16)).astype(np.float32)
    other = (random.gamma(2, size=(300, 16)) * np.linspace(0.5, 1.5, 16)).astype(np.float32)
    assert frechet_distance(moments_of(one), moments_of(other)) == pytest.approx(11.680050293787247, abs=1e-6)
    assert squared_mmd(one, other) == pytest.approx(52.79912918132919, abs=1e-6)


def test_fewer_rows_than_dimensions_are_exact() -> None:
    # rows of 6 dimensions turned into 300: a rotation changes no distance, and in 6 the textbook formula is safe
    small = random_rows(6, 40, 6), random_rows(7, 50, 6, spread=2.0, shift=1.0)
    turn = np.linalg.qr(np.random.default_rng(8).normal(size=(300, 6)))[0].T
    found = frechet_distance(*(moments_of(rows.astype(np.float64) @ turn) for rows in small))
    assert found == pytest.approx(by_matrix_root(*small), rel=1e-9)


def test_two_rows_in_many_dimensions_are_a_matter_of_arithmetic() -> None:
    one = np.zeros((2, 50))
    other = np.zeros((2, 50))
    one[:, 0], other[:, 1] = [-1, 1], [-2, 2]  # variances 2 and 8, in directions at right angles
    assert frechet_distance(moments_of(one), moments_of(other)) == pytest.approx(2 + 8)


@pytest.mark.parametrize(("n", "width"), [(300, 10), (10, 300)])
def test_a_set_is_at_distance_0_from_itself(n: int, width: int) -> None:
    found = moments_of(random_rows(9, n, width, shift=5.0))
    assert frechet_distance(found, found) == 0.0


def test_a_set_of_one_picture_repeated_is_at_distance_0_from_itself() -> None:
    found = moments_of(np.full((5, 3), 7.0))
    assert frechet_distance(found, found) == 0.0


def test_the_order_of_the_sets_does_not_matter() -> None:
    one, other = (grouped([random_rows(k, 80, 20)], groups_of(80, 0)) for k in (10, 11))
    there, back = frechet(one, other), frechet(other, one)
    assert there.value == pytest.approx(back.value, rel=1e-12)
    assert there.ci95 == pytest.approx(back.ci95, rel=1e-9)


def test_one_picture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected at least 2 pictures in each set, got 1"):
        frechet_distance(moments_of(np.zeros((1, 3))), moments_of(np.zeros((4, 3))))


def test_too_few_pictures_for_an_interval_are_said(tmp_path: Path) -> None:
    found = distance(*opened(tmp_path, random_rows(37, 19, 4), random_rows(38, 30, 4)))
    assert found.frechet.ci95 is None
    assert found.notes == ("a set of fewer than 20 pictures has no interval",)


def test_other_widths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"features of the same model, got 3 and 4 dimensions"):
        frechet_distance(moments_of(np.zeros((5, 3))), moments_of(np.zeros((5, 4))))


def test_the_interval_holds_the_value_that_other_pictures_give_on_average() -> None:
    def draw(seed: int) -> tuple[Rows, Rows]:
        random = np.random.default_rng(seed)
        return random.normal(size=(200, 6)), random.normal(0.3, 1.3, (200, 6))

    found = [frechet(*(grouped([rows], groups_of(200, k)) for rows in draw(k))) for k in range(60)]
    typical = np.mean([f.value for f in found])
    inside = [f.ci95 is not None and f.ci95[0] <= typical <= f.ci95[1] for f in found]
    assert sum(inside) >= 53  # 60 draws at 95 %: fewer happen once in 150 times


def test_extrapolation_takes_away_what_few_pictures_add() -> None:
    truth, found = 40 * (0.3**2 + 0.3**2), []
    for k in range(12):
        random = np.random.default_rng(k)
        one, other = random.normal(size=(400, 40)), random.normal(0.3, 1.3, (400, 40))
        found.append(frechet(*(grouped([rows], groups_of(400, k)) for rows in (one, other))))
    too_high = np.mean([f.value for f in found]) - truth
    left = np.mean([f.extrapolated for f in found if f.extrapolated is not None]) - truth
    assert too_high > 1
    assert abs(left) < 0.2 * too_high


def test_few_pictures_and_shared_pictures_have_no_interval() -> None:
    few = grouped([random_rows(13, 19, 3)], groups_of(19, 0))
    enough = grouped([random_rows(14, 20, 3)], groups_of(20, 0))
    assert frechet(few, enough).ci95 is None
    assert frechet(enough, enough, independent=False).ci95 is None
    assert frechet(enough, grouped([random_rows(15, 20, 3)], groups_of(20, 0))).ci95 is not None


def test_the_kernel_distance_is_its_definition() -> None:
    one, other = random_rows(16, 9, 4), random_rows(17, 7, 4, shift=0.2)
    assert squared_mmd(one, other) == pytest.approx(mmd_by_loops(one, other), rel=1e-10)


def test_the_kernel_distance_of_sets_of_one_source_is_about_0_and_of_others_is_not() -> None:
    random = np.random.default_rng(18)
    one, same, other = random.normal(size=(400, 8)), random.normal(size=(400, 8)), random.normal(1, 1, (400, 8))
    near, far = kernel_distance(one, same, seed=0), kernel_distance(one, other, seed=0)
    assert (near.subsets, near.subset_size) == (100, 200)  # half of the smaller set
    assert abs(near.value) < near.std
    assert far.value > 10 * far.std


def test_the_kernel_distance_of_one_row_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 2 rows in each set, got 1 and 5"):
        squared_mmd(np.zeros((1, 2)), np.zeros((5, 2)))


def stored(tmp_path: Path, features: Rows, *, dataset: str = "imagenet-a", **changes: Any) -> Path:
    run = {name: changes.pop(name) for name in ("model", "weights") if name in changes}
    n = len(features)
    source = Source(dataset, [[6]] * n, np.zeros((n, 1000)), features=features.astype(np.float32), **changes)
    return write_run(tmp_path, [], [source], features=True, **run) / f"{dataset}.{source.rule}"


def opened(tmp_path: Path, *features: Rows) -> list[FeatureSet]:
    return [
        open_features(stored(tmp_path, rows, dataset=name))
        for rows, name in zip(features, ("imagenet-a", "imagenet-o"), strict=False)
    ]


def test_stored_features_give_the_distance_of_their_rows(tmp_path: Path) -> None:
    one, other = random_rows(19, 250, 8), random_rows(20, 130, 8)  # three parts and two
    found = distance(*opened(tmp_path, one, other))
    assert found.frechet.value == pytest.approx(by_matrix_root(one, other), rel=1e-9)
    assert found.counts == (250, 130)
    assert found.title == "Fréchet distance (features of toy)"
    assert found.notes == ()


def test_a_set_compared_with_itself_has_distance_0_and_says_that_pictures_are_shared(tmp_path: Path) -> None:
    (one,) = opened(tmp_path, random_rows(21, 30, 4))
    found = distance(one, one)
    assert (found.frechet.value, found.frechet.ci95) == (0.0, None)
    assert found.notes == ("30 pictures are in both sets, so that no interval is given",)


def test_fewer_pictures_than_dimensions_are_said(tmp_path: Path) -> None:
    found = distance(*opened(tmp_path, random_rows(22, 30, 40), random_rows(23, 30, 40)))
    assert found.frechet.extrapolated is None
    assert found.notes[0].startswith("fewer pictures than the 40 dimensions of the features")


def test_pictures_that_could_not_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = random_rows(24, 30, 4)
    one = open_features(stored(tmp_path, rows, errors={3: "broken"}))
    (other,) = opened(tmp_path / "other", random_rows(25, 30, 4))
    assert np.array_equal(np.concatenate(list(one.chunks())), np.delete(rows, 3, axis=0))
    other = open_features(stored(tmp_path, random_rows(25, 30, 4), dataset="imagenet-o"))
    assert "1 pictures of imagenet-a could not be read and are left out" in distance(one, other).notes


def test_parts_that_are_not_there_yet_are_said(tmp_path: Path) -> None:
    one = open_features(stored(tmp_path, random_rows(26, 250, 4), lost=(1,)))
    other = open_features(stored(tmp_path, random_rows(27, 30, 4), dataset="imagenet-o"))
    assert distance(one, other).notes == ("1 of 3 parts of imagenet-a are not there yet",)


def test_pictures_prepared_otherwise_are_said(tmp_path: Path) -> None:
    one = open_features(stored(tmp_path, random_rows(28, 30, 4)))
    other = open_features(stored(tmp_path, random_rows(29, 30, 4), dataset="imagenet-o", rule="paper"))
    assert distance(one, other).notes[0].startswith("the pictures were prepared differently (rules model and paper)")


def test_a_feature_that_is_not_a_number_is_named(tmp_path: Path) -> None:
    rows = random_rows(30, 130, 4)
    rows[117, 2] = np.nan
    one, other = opened(tmp_path, rows, random_rows(31, 30, 4))
    with pytest.raises(ValueError, match=r"expected finite features, got NaN or infinity for id 'imagenet-a/117.png'"):
        distance(one, other)


def test_one_stored_picture_is_refused(tmp_path: Path) -> None:
    one, other = opened(tmp_path, random_rows(32, 1, 4), random_rows(33, 30, 4))
    with pytest.raises(ValueError, match=r"expected at least 2 pictures in .*imagenet-a.model, got 1"):
        distance(one, other)


def test_features_of_another_model_are_refused(tmp_path: Path) -> None:
    one = open_features(stored(tmp_path, random_rows(34, 30, 4)))
    other = open_features(stored(tmp_path, random_rows(35, 30, 4), weights="1" * 64))
    with pytest.raises(ValueError, match=r"expected features of one model, got weights '000"):
        distance(one, other)


def test_a_run_without_features_says_how_to_get_them(tmp_path: Path) -> None:
    source = Source("imagenet-a", [[6]] * 5, np.zeros((5, 1000)))
    folder = write_run(tmp_path, [], [source]) / "imagenet-a.model"
    with pytest.raises(LookupError, match=r"got none: run `evaluate` again with --features"):
        open_features(folder)


def test_a_zero_shot_run_is_compared_by_its_embeddings(tmp_path: Path) -> None:
    rows = random_rows(36, 30, 4)
    sources = [Source(name, [[6]] * 30, rows, column="embeddings") for name in ("imagenet-a", "imagenet-o")]
    run = write_run(tmp_path, [], sources, prompts="0" * 64)
    one = open_features(run / "imagenet-a.model")
    assert one.column == "embeddings"
    assert np.array_equal(np.concatenate(list(one.chunks())), rows)


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_distance(parser.add_subparsers())
    options = parser.parse_args(["distance", *words])
    return int(options.command(options))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Two folders of drawn pictures, one of them with a broken file, and a tiny model."""
    home = tmp_path_factory.mktemp("photos")
    for i in range(22):
        write(home / "first" / f"{i}.png", picture(i))
        write(home / "second" / "deep" / f"{i}.jpg", picture(100 + i, kind="JPEG"))
    write(home / "second" / "broken.png", b"no picture")
    factory = write(home / "factories.py", FACTORIES.encode())
    return home / "first", home / "second", f"{factory}:plain"


def test_two_folders_are_run_through_a_model_and_compared(
    photos: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, model = photos
    words = [str(first), str(second), "--model", model, "--runs", str(tmp_path), "--device", "cpu"]
    assert command(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    sets = [open_features(path) for path in sorted(tmp_path.glob("*/*.model"))]
    expected = by_matrix_root(*(np.concatenate(list(s.chunks())) for s in sets))
    assert (found["counts"], found["dimensions"]) == ([22, 22], 8)
    assert found["frechet"]["value"] == pytest.approx(expected, rel=1e-6)
    assert any("1 pictures of second-" in note for note in found["notes"])


def test_what_was_run_once_is_read_again_and_printed(
    photos: tuple[Path, Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, model = photos
    words = ["--model", model, "--runs", str(tmp_path), "--device", "cpu"]
    assert command(str(first), str(second), *words) == 0
    parts = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    (one,) = tmp_path.glob("*/first-*.model")
    assert command(str(one), str(second), *words) == 0  # a stored set beside one that is named
    printed = capsys.readouterr().out
    assert f"Fréchet distance (features of {model}): " in printed
    assert "Kernel distance (cubic polynomial, 100 subsets of 11): " in printed
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")} == parts


REFUSED: Sequence[tuple[list[str], str]] = [
    ([], r"expected a folder of predictions such as RUNS/<run>/<dataset>.<rule>, got "),
    (["--model", "timm-random/test_vit"], r"expected --model M and --runs RUNS together, got one"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_folders_without_a_model_are_refused(photos: tuple[Path, Path, str], words: list[str], message: str) -> None:
    with pytest.raises((LookupError, ValueError), match=message):
        command(str(photos[0]), str(photos[1]), *words)


def test_a_folder_without_pictures_is_named(photos: tuple[Path, Path, str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LookupError, match=r"expected a folder with pictures, got none in .*empty"):
        command(str(tmp_path / "empty"), str(photos[1]), "--model", photos[2], "--runs", str(tmp_path / "runs"))
