"""SpuFix on arrays: exact vectors, the plain loop over classes, one row, strength."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_neural_pca import vectors

from hf_robust.spurious.components import published_components
from hf_robust.spurious.neural_pca import fit
from hf_robust.spurious.spufix import ClassFix, SpuFix, fit_class

CASES = ["own_alphas", "transferred_alphas"]


def plain_loop(logits: NDArray[Any], features: NDArray[Any], fixes: dict[int, ClassFix]) -> NDArray[Any]:
    """Picture by picture, class by class, by least squares: nothing in common with the product."""
    after = logits.copy()
    for n, phi in enumerate(features):
        for k, fix in fixes.items():
            centred = fix.weight * phi - fix.mean
            coordinates, *_ = np.linalg.lstsq(fix.directions.T, centred, rcond=None)
            for beta, direction in zip(coordinates, fix.directions, strict=True):
                after[n, k] -= max(beta * direction.sum(), 0.0)
    return after


def random_fixes(width: int, dim: int, spurious: int, seed: int) -> tuple[NDArray[Any], dict[int, ClassFix]]:
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(width, dim))
    counts = [len(c) for c in published_components().values()]
    fixes = {}
    for n, k in enumerate(sorted(rng.choice(width, spurious, replace=False).tolist())):
        train = np.abs(rng.normal(size=(30, dim)))
        fixes[k] = fit_class(train, weight[k], rng.normal(size=(30, counts[n % len(counts)])))
    return weight, fixes


@pytest.mark.parametrize("case", CASES)
def test_directions_and_logits_are_the_exact_ones(shared: Path, case: str) -> None:
    stored, inputs = vectors(shared)
    values = stored[case]
    weight, bias, train, new, second = inputs.spufix(values["recipe"], values["components"])
    fixes = {}
    for key, components in values["components"].items():
        k = int(key)
        source, row = (train[k], weight[k]) if second is None else (second[1][k], second[0][k])
        alphas = fit(source, row).alphas(source)[:, components]
        fixes[k] = fit_class(train[k], weight[k], alphas, components=components)
        expected = np.array(values["directions"][key])
        np.testing.assert_allclose(fixes[k].directions, expected, rtol=0, atol=1e-9)
    logits = new @ weight.T + bias
    np.testing.assert_allclose(logits, values["logits_before"], rtol=0, atol=1e-9)
    after = SpuFix.of(fixes, width=len(bias)).correct(logits, new)
    np.testing.assert_allclose(after, values["logits_after"], rtol=0, atol=1e-9)


def test_a_correction_by_hand() -> None:
    # psi of the training pictures: (0, 1), (2, 1), mean (1, 1); direction (1, 0), whose sum is 1
    fix = fit_class([[0.0, 1.0], [2.0, 1.0]], [1.0, 1.0], [[-1.0], [1.0]])
    spufix = SpuFix.of({1: fix}, width=3)
    # features (4, 9): 4 - 1 = 3 of the direction; features (0, 9): -1, which is clamped
    after = spufix.correct(np.array([[1.0, 13.0, 0.0], [1.0, 9.0, 0.0]]), np.array([[4.0, 9.0], [0.0, 9.0]]))
    assert after.tolist() == [[1.0, 13.0 - 3.0, 0.0], [1.0, 9.0, 0.0]]


def test_one_product_equals_the_plain_loop_over_233_of_1000_classes() -> None:
    weight, fixes = random_fixes(1000, 24, 233, seed=1)
    features = np.abs(np.random.default_rng(2).normal(size=(6, 24)))
    logits = features @ weight.T
    after = SpuFix.of(fixes, width=1000).correct(logits, features)
    np.testing.assert_allclose(after, plain_loop(logits, features, fixes), rtol=0, atol=1e-9)
    assert (after != logits).any(axis=0).sum() > 200
    assert sum(len(fix.components) for fix in fixes.values()) == 322


def test_directions_that_are_not_orthogonal_need_their_own_coordinates() -> None:
    """A plain projection counts twice what two directions share."""
    weight, fixes = random_fixes(5, 6, 2, seed=3)
    fix = fit_class(np.abs(np.random.default_rng(4).normal(size=(20, 6))), weight[0], np.random.default_rng(5).normal(
        size=(20, 3)))  # fmt: skip
    gram = fix.directions @ fix.directions.T
    assert np.abs(gram - np.eye(3)).max() > 0.05
    features = np.abs(np.random.default_rng(6).normal(size=(4, 6)))
    logits = features @ weight.T
    after = SpuFix.of({0: fix}, width=5).correct(logits, features)
    np.testing.assert_allclose(after, plain_loop(logits, features, {0: fix}), atol=1e-10)
    assert fixes


def test_a_row_alone_is_corrected_as_among_others() -> None:
    weight, fixes = random_fixes(20, 8, 5, seed=7)
    features = np.abs(np.random.default_rng(8).normal(size=(3, 8)))
    spufix, logits = SpuFix.of(fixes, width=20), features @ weight.T
    together = spufix.correct(logits, features)
    for n in range(3):
        np.testing.assert_allclose(spufix.correct(logits[n : n + 1], features[n : n + 1])[0], together[n], atol=1e-12)
    assert spufix.correct(logits[:0], features[:0]).shape == (0, 20)


@pytest.mark.parametrize("strength", [0.0, 0.25, 1.0])
def test_strength_scales_what_is_taken_off(strength: float) -> None:
    weight, fixes = random_fixes(20, 8, 5, seed=7)
    features = np.abs(np.random.default_rng(8).normal(size=(3, 8)))
    spufix, logits = SpuFix.of(fixes, width=20), features @ weight.T
    taken = logits - spufix.correct(logits, features)
    scaled = logits - spufix.correct(logits, features, strength=strength)
    np.testing.assert_allclose(scaled, strength * taken, atol=1e-12)


def test_logits_keep_their_precision_and_the_input_is_left_alone() -> None:
    weight, fixes = random_fixes(20, 8, 5, seed=7)
    features = np.abs(np.random.default_rng(8).normal(size=(3, 8))).astype(np.float32)
    logits = features @ weight.T.astype(np.float32)
    before = logits.copy()
    assert SpuFix.of(fixes, width=20).correct(logits, features).dtype == np.float32
    assert (logits == before).all()


@pytest.mark.parametrize(
    ("alphas", "message"),
    [
        (np.ones((4, 1)), r"expected alphas of shape \(N, m\) for N >= 2 training pictures, got \(4, 1\) for 5"),
        (np.ones((5, 0)), r"expected alphas of shape \(N, m\)"),
        (np.full((5, 1), np.nan), "expected finite alphas"),
        (np.ones((5, 1)), "got component 0 without any covariance"),
    ],
)
def test_alphas_that_do_not_fit_are_named(alphas: Any, message: str) -> None:
    features = np.abs(np.random.default_rng(0).normal(size=(5, 3)))
    with pytest.raises(ValueError, match=message):
        fit_class(features, np.ones(3), alphas)


def test_two_equal_directions_of_a_class_are_refused() -> None:
    features = np.abs(np.random.default_rng(0).normal(size=(9, 4)))
    alpha = np.random.default_rng(1).normal(size=(9, 1))
    fix = fit_class(features, np.ones(4), np.hstack([alpha, 2 * alpha]), components=[3, 8])
    with pytest.raises(ValueError, match=r"nearly the same ones for components \(3, 8\) of output 2"):
        SpuFix.of({2: fix}, width=4)


def test_logits_of_another_width_and_a_strength_out_of_range_are_refused() -> None:
    weight, fixes = random_fixes(20, 8, 5, seed=7)
    features = np.ones((2, 8))
    spufix = SpuFix.of(fixes, width=20)
    with pytest.raises(ValueError, match=r"expected logits of shape \(2, 20\).*got \(2, 21\)"):
        spufix.correct(np.ones((2, 21)), features)
    with pytest.raises(ValueError, match=r"expected a strength of correction from 0 to 1, got 1\.5"):
        spufix.correct(features @ weight.T, features, strength=1.5)
    with pytest.raises(ValueError, match="expected at least one class to correct, got none"):
        SpuFix.of({}, width=20)
    with pytest.raises(ValueError, match="expected output columns below 2, got"):
        SpuFix.of(fixes, width=2)
