"""Class-wise neural PCA on arrays: exact vectors, sums of alphas, the thin case, signs, streaming."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hf_robust.spurious.neural_pca import Moments, fit, fit_pieces

RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=12)
MANY, FEW = np.abs(RNG.normal(size=(40, 12))), np.abs(RNG.normal(size=(7, 12)))
NEW = np.abs(RNG.normal(size=(5, 12)))


def vectors(shared: Path) -> tuple[Any, Any]:
    """The stored values and the module that draws their inputs."""
    folder = shared / "reference" / "vectors"
    spec = importlib.util.spec_from_file_location("vector_inputs", folder / "inputs.py")
    assert spec is not None
    assert spec.loader is not None
    inputs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inputs)
    return json.loads((folder / "spufix.json").read_text()), inputs


def centred_logit(features: NDArray[Any], train: NDArray[Any]) -> NDArray[Any]:
    return features @ WEIGHT - (train @ WEIGHT).mean()


@pytest.mark.parametrize("case", ["own_alphas", "transferred_alphas"])
def test_eigenvalues_and_alphas_are_the_exact_ones(shared: Path, case: str) -> None:
    stored, inputs = vectors(shared)
    values = stored[case]
    weight, _, train, new, second = inputs.spufix(values["recipe"], values["components"])
    weight, train = (weight, train) if second is None else second
    for k, expected in values["neural_pca"].items():
        pca = fit(train[int(k)], weight[int(k)])
        np.testing.assert_allclose(pca.eigenvalues, expected["eigenvalues"], rtol=0, atol=1e-9)
        alphas = pca.alphas(train[int(k)][:3])
        np.testing.assert_allclose(alphas, expected["alpha_train_first3"], rtol=0, atol=1e-9)
        if "alpha_new" in expected:
            np.testing.assert_allclose(pca.alphas(new), expected["alpha_new"], rtol=0, atol=1e-9)


def test_one_direction_is_found_by_hand() -> None:
    # psi = (0, 1), (2, 1), (4, 1): mean (2, 1), all variance (4 + 0 + 4) / 2 = 4 along the first axis
    pca = fit([[0, 1], [1, 1], [2, 1]], [2.0, 1.0])
    assert pca.eigenvalues.tolist() == [4.0, 0.0]
    assert pca.components.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    # for features (3, 5): psi - mean = (6 - 2, 5 - 1)
    assert pca.alphas([[3, 5]]).tolist() == [[4.0, 4.0]]


@pytest.mark.parametrize("train", [MANY, FEW], ids=["more pictures than features", "fewer"])
@pytest.mark.parametrize("keep", [None, 1, 3, 6])
def test_the_alphas_of_a_picture_add_up_to_its_centred_logit(train: NDArray[Any], keep: int | None) -> None:
    pca = fit(train, WEIGHT, keep=keep)
    for features in (train, NEW, NEW[:1]):
        np.testing.assert_allclose(pca.alphas(features).sum(axis=1), centred_logit(features, train), atol=1e-11)


def test_alphas_agree_with_the_definition_component_by_component() -> None:
    pca = fit(MANY, WEIGHT)
    psi = NEW * WEIGHT - (MANY * WEIGHT).mean(axis=0)
    for j, v in enumerate(pca.components):
        for n in range(len(NEW)):
            assert pca.coordinates(NEW)[n, j] == pytest.approx(float(v @ psi[n]))
            assert pca.alphas(NEW)[n, j] == pytest.approx(float(v.sum() * (v @ psi[n])))


def test_the_covariance_divides_by_n_minus_1_and_the_largest_eigenvalue_is_first() -> None:
    expected = np.sort(np.linalg.eigvalsh(np.cov((MANY * WEIGHT).T)))[::-1]
    np.testing.assert_allclose(fit(MANY, WEIGHT).eigenvalues, expected, atol=1e-12)


def test_fewer_pictures_than_features_give_one_component_less_than_pictures_and_a_remainder() -> None:
    pca = fit(FEW, WEIGHT)
    assert pca.remainder
    assert len(pca.components) == len(FEW) - 1 + 1
    expected = np.sort(np.linalg.eigvalsh(np.cov((FEW * WEIGHT).T)))[::-1][: len(FEW) - 1]
    np.testing.assert_allclose(pca.eigenvalues[:-1], expected, atol=1e-12)
    np.testing.assert_allclose(pca.components @ pca.components.T, np.eye(len(pca.components)), atol=1e-12)
    np.testing.assert_allclose(pca.alphas(FEW)[:, -1], 0, atol=1e-12)  # the training pictures have nothing of it
    assert np.abs(pca.alphas(NEW)[:, -1]).max() > 1e-3  # new ones have


def test_the_remainder_is_what_the_dropped_components_add_up_to() -> None:
    whole, cut = fit(MANY, WEIGHT), fit(MANY, WEIGHT, keep=4)
    np.testing.assert_allclose(cut.alphas(NEW)[:, :4], whole.alphas(NEW)[:, :4], atol=1e-12)
    np.testing.assert_allclose(cut.alphas(NEW)[:, 4], whole.alphas(NEW)[:, 4:].sum(axis=1), atol=1e-12)
    variance = np.var(cut.coordinates(MANY)[:, 4], ddof=1)
    assert cut.eigenvalues[4] == pytest.approx(variance)


def test_every_component_points_to_where_the_logit_rises() -> None:
    for train in (MANY, FEW):
        pca = fit(train, WEIGHT)
        assert (pca.sums >= 0).all()


def test_a_component_that_adds_up_to_nothing_has_its_largest_entry_positive() -> None:
    # psi varies along (1, -1) only, more than along (1, 1)
    pca = fit([[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [0.1, 0.1], [-0.1, -0.1]], [1.0, 1.0])
    assert pca.sums[0] == pytest.approx(0, abs=1e-12)
    assert pca.components[0].max() == pytest.approx(2**-0.5)


def test_alphas_do_not_depend_on_the_order_of_the_pictures() -> None:
    again = fit(MANY[::-1], WEIGHT)
    np.testing.assert_allclose(again.alphas(NEW), fit(MANY, WEIGHT).alphas(NEW), atol=1e-12)


def test_pieces_give_the_same_as_all_at_once() -> None:
    pieces = [MANY[:1], MANY[1:1], MANY[1:30], MANY[30:]]
    streamed, whole = fit_pieces(pieces, WEIGHT), fit(MANY, WEIGHT)
    np.testing.assert_allclose(streamed.eigenvalues, whole.eigenvalues, atol=1e-12)
    np.testing.assert_allclose(streamed.alphas(NEW), whole.alphas(NEW), atol=1e-11)


def test_streamed_moments_are_exact_far_from_zero() -> None:
    rows = 1e6 + RNG.normal(size=(50, 3))
    moments = Moments(3)
    for piece in np.array_split(rows, 7):
        moments.add(piece)
    np.testing.assert_allclose(moments.covariance(), np.cov(rows.T), rtol=1e-8)


def test_features_that_are_always_zero_do_no_harm() -> None:
    dead = MANY.copy()
    dead[:, 3:] = 0
    pca = fit(dead, WEIGHT)
    np.testing.assert_allclose(pca.alphas(NEW).sum(axis=1), NEW @ WEIGHT - (dead @ WEIGHT).mean(), atol=1e-11)
    assert (pca.eigenvalues >= 0).all()


def test_the_same_pictures_give_the_same_bytes() -> None:
    assert fit(MANY, WEIGHT).components.tobytes() == fit(MANY, WEIGHT).components.tobytes()


@pytest.mark.parametrize(
    ("features", "weight", "keep", "message"),
    [
        (MANY, WEIGHT[:3], None, r"expected features of shape \(N, 3\), as wide as the head, got \(40, 12\)"),
        (MANY[0], WEIGHT, None, r"expected features of shape \(N, 12\)"),
        (MANY[:1], WEIGHT, None, "expected at least 2 training pictures of the class, got 1"),
        (MANY * np.nan, WEIGHT, None, "expected finite features, got NaN"),
        (MANY, MANY, None, r"expected the head's row of one class, finite and of shape \(D,\), got \(40, 12\)"),
        (MANY, WEIGHT, 0, "expected to keep at least 1 component, got 0"),
    ],
)
def test_input_that_does_not_fit_is_named(features: Any, weight: Any, keep: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(features, weight, keep=keep)


def test_no_pieces_at_all_are_named() -> None:
    with pytest.raises(ValueError, match="expected at least 2 training pictures of the class, got 0"):
        fit_pieces([], WEIGHT)
