"""Each out-of-distribution score against numbers worked by hand and against a second, plain computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logsumexp, rel_entr, softmax
from scipy.stats import chi2, entropy
from sklearn.covariance import EmpiricalCovariance, ShrunkCovariance
from sklearn.neighbors import NearestNeighbors

from hf_robust.ood_scores import Fit, LinearHead, fit, score
from hf_robust.ood_scores.quantile import quantile

RNG = np.random.default_rng(7)
LOGITS = RNG.normal(size=(60, 12)) * 3
LOGITS[5] = LOGITS[6]  # a repeated row
LOGITS[7, :4] = LOGITS[7].max() + 1  # four classes tie for the highest
LOGITS[8, 3] = -np.inf
LABELS = RNG.integers(12, size=60)
LABELS[8] = 0

FEATURES = np.maximum(RNG.normal(0.3, 1, size=(200, 16)), 0)
_WEIGHT = RNG.normal(size=(6, 16))
HEAD = LinearHead(_WEIGHT, RNG.normal(size=6) - _WEIGHT @ FEATURES.mean(axis=0))  # no class is out of reach
CLASSES = RNG.integers(6, size=200)
NEW = np.maximum(RNG.normal(0.1, 1.2, size=(30, 16)), 0)


def raw_logits(features, weight=HEAD.weight, bias=HEAD.bias):
    return np.array([[sum(w * x) + b for w, b in zip(weight, bias, strict=True)] for x in features])


def test_every_score_of_two_even_logits_is_known():
    even = [[3.0, 3.0]]
    assert score("msp", logits=even) == pytest.approx([-0.5])
    assert score("max_logit", logits=even).tolist() == [-3.0]
    assert score("energy", logits=even) == pytest.approx([-(3 + math.log(2))])
    assert score("entropy", logits=even) == pytest.approx([math.log(2)])
    assert score("margin", logits=even).tolist() == [0.0]
    assert score("gen", logits=even, gamma=0.5) == pytest.approx([2 * math.sqrt(0.5 * 0.5)])


def test_one_class_alone_is_certain():
    one = [[4.0]]
    assert score("msp", logits=one).tolist() == [-1.0]
    assert score("margin", logits=one).tolist() == [-1.0]
    assert score("gen", logits=one).tolist() == [0.0]
    assert score("entropy", logits=one).tolist() == [0.0]


def test_msp_entropy_and_energy_equal_scipys_softmax():
    p = softmax(LOGITS, axis=1)
    np.testing.assert_allclose(score("msp", logits=LOGITS), -p.max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(score("entropy", logits=LOGITS), entropy(p, axis=1), rtol=1e-12)
    for t in (0.5, 1.0, 4.0):
        expected = -t * logsumexp(LOGITS / t, axis=1)
        np.testing.assert_allclose(score("energy", logits=LOGITS, temperature=t), expected, rtol=1e-12)


def test_logits_of_a_thousand_overflow_nothing():
    for name in ("msp", "energy", "entropy", "margin", "gen"):
        shifted = score(name, logits=LOGITS + 1000) + (1000 if name == "energy" else 0)
        np.testing.assert_allclose(shifted, score(name, logits=LOGITS), rtol=1e-9, atol=1e-11)


def test_margin_is_the_gap_between_the_two_highest_of_a_sorted_row():
    expected = [-(a - b) for *_, b, a in np.sort(softmax(LOGITS, axis=1), axis=1)]
    np.testing.assert_allclose(score("margin", logits=LOGITS), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("top", [1, 2, 11, 12, 100])
@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_gen_is_the_sum_over_the_highest_probabilities(gamma, top):
    p = softmax(LOGITS, axis=1)
    expected = [sum(v**gamma * (1 - v) ** gamma for v in sorted(row)[-top:]) for row in p]
    np.testing.assert_allclose(score("gen", logits=LOGITS, gamma=gamma, top=top), expected, rtol=1e-9)


def test_gen_tells_two_very_confident_rows_apart():
    # 1 - p is exp(-40) and exp(-45): both probabilities are 1.0 in double precision
    sure, surer = score("gen", logits=[[40.0, 0.0], [45.0, 0.0]], gamma=0.1)
    assert (sure, surer) == pytest.approx((2 * math.exp(-4.0), 2 * math.exp(-4.5)))


def test_kl_matching_is_the_least_divergence_from_a_mean_posterior():
    known = fit("kl_matching", logits=LOGITS)
    p = softmax(LOGITS, axis=1)
    means = [p[p.argmax(axis=1) == k].mean(axis=0) for k in sorted(set(p.argmax(axis=1)))]
    np.testing.assert_allclose(known.arrays["templates"], means, rtol=1e-12)
    new = RNG.normal(size=(20, 12)) * 3
    expected = [min(rel_entr(q, d).sum() for d in means) for q in softmax(new, axis=1)]
    np.testing.assert_allclose(score("kl_matching", logits=new, fit=known), expected, rtol=1e-9)


def test_kl_matching_of_a_fit_row_that_is_its_own_template_is_zero():
    known = fit("kl_matching", logits=[[2.0, 0.0, -1.0]])
    assert known.arrays["classes"].tolist() == [0]
    assert score("kl_matching", logits=[[2.0, 0.0, -1.0]], fit=known) == pytest.approx([0.0], abs=1e-12)


def test_kl_matching_refuses_another_number_of_classes():
    with pytest.raises(ValueError, match="expected logits of width 12, that of the fit, got 3: use one class mask"):
        score("kl_matching", logits=np.ones((2, 3)), fit=fit("kl_matching", logits=LOGITS))


def test_the_fitted_temperature_minimises_the_likelihood_that_scipy_minimises():
    def loss(log_t):
        return -log_softmax(LOGITS / np.exp(log_t), axis=1)[np.arange(60), LABELS].mean()

    best = minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    known = fit("temperature_scaled_msp", logits=LOGITS, labels=LABELS)
    assert float(known.arrays["temperature"]) == pytest.approx(np.exp(best.x), rel=1e-5)


def test_a_temperature_that_made_the_logits_is_found_again():
    rng = np.random.default_rng(0)
    true = rng.normal(size=(40_000, 5)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)  # drawn from softmax(true)
    known = fit("temperature_scaled_msp", logits=3 * true, labels=labels)
    assert float(known.arrays["temperature"]) == pytest.approx(3.0, rel=0.03)


def test_the_fitted_temperature_is_used_like_a_given_one():
    known = fit("temperature_scaled_msp", logits=LOGITS, labels=LABELS)
    t = float(known.arrays["temperature"])
    expected = -softmax(LOGITS / t, axis=1).max(axis=1)
    np.testing.assert_allclose(score("temperature_scaled_msp", logits=LOGITS, fit=known), expected, rtol=1e-12)
    given = score("temperature_scaled_msp", logits=LOGITS, temperature=t)
    np.testing.assert_allclose(given, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="got both"):
        score("temperature_scaled_msp", logits=LOGITS, fit=known, temperature=2.0)


@pytest.mark.parametrize("labels", [[0, 1], [1, 0]])
def test_rows_that_are_all_right_or_all_wrong_have_no_temperature(labels):
    with pytest.raises(ValueError, match="expected fit rows with a temperature between"):
        fit("temperature_scaled_msp", logits=[[1.0, 0.0], [0.0, 1.0]], labels=labels)


def test_a_label_in_a_masked_column_is_refused():
    with pytest.raises(ValueError, match=r"expected labels among the classes of the mask, got 3 at row 1"):
        fit("temperature_scaled_msp", logits=LOGITS[7:9], labels=[3, 3])


def test_concept_matching_is_a_softmax_over_cosines_whatever_the_scale():
    texts = RNG.normal(size=(5, 8))
    unit = texts / np.linalg.norm(texts, axis=1, keepdims=True)
    images = RNG.normal(size=(9, 8))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    cosines = [[image @ text for text in unit] for image in images]
    for scale in (1.0, 100.0):
        head = LinearHead(scale * unit, np.zeros(5))
        values = score("mcm", logits=images @ head.weight.T, head=head)
        np.testing.assert_allclose(values, -softmax(cosines, axis=1).max(axis=1), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 7, 200])
def test_knn_is_the_distance_that_sklearn_finds_between_rows_of_length_one(k):
    def unit(rows):
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    expected = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(unit(FEATURES)).kneighbors(unit(NEW))[0][:, -1]
    np.testing.assert_allclose(score("knn", features=NEW, fit=fit("knn", features=FEATURES), k=k), expected, rtol=1e-9)


def test_knn_of_a_right_angle_is_the_root_of_two():
    known = fit("knn", features=[[3.0, 0.0]])
    # the length does not count, the direction does
    assert score("knn", features=[[0.0, 9.0], [5.0, 0.0]], fit=known, k=1) == pytest.approx([math.sqrt(2), 0], abs=1e-7)


def test_a_bank_that_is_too_large_is_drawn_once_by_its_seed():
    first, again, other = (fit("knn", features=FEATURES, max_rows=50, seed=s).arrays["bank"] for s in (0, 0, 1))
    assert first.shape == (50, 16)
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert {row.tobytes() for row in first} <= {row.tobytes() for row in FEATURES}


def plain_mahalanobis(rows, precision, means):
    return [[(x - m) @ precision @ (x - m) for m in means] for x in rows]


def class_means():
    return np.stack([FEATURES[k == CLASSES].mean(axis=0) for k in range(6)])


def test_mahalanobis_equals_a_loop_over_sklearns_shared_covariance():
    means = class_means()
    shared = EmpiricalCovariance(assume_centered=True).fit(FEATURES - means[CLASSES])  # divides by N
    expected = np.min(plain_mahalanobis(NEW, shared.precision_, means), axis=1)
    known = fit("mahalanobis", features=FEATURES, labels=CLASSES)
    np.testing.assert_allclose(score("mahalanobis", features=NEW, fit=known), expected, rtol=1e-8)


def test_relative_mahalanobis_takes_the_distance_to_all_rows_off():
    means = class_means()
    shared = EmpiricalCovariance(assume_centered=True).fit(FEATURES - means[CLASSES])
    every = EmpiricalCovariance().fit(FEATURES)
    own = np.array(plain_mahalanobis(NEW, shared.precision_, means))
    background = np.array(plain_mahalanobis(NEW, every.precision_, [FEATURES.mean(axis=0)]))
    known = fit("relative_mahalanobis", features=FEATURES, labels=CLASSES)
    expected = (own - background).min(axis=1)
    np.testing.assert_allclose(score("relative_mahalanobis", features=NEW, fit=known), expected, rtol=1e-7)


def test_shrinkage_is_sklearns():
    means = class_means()
    shared = ShrunkCovariance(assume_centered=True, shrinkage=0.3).fit(FEATURES - means[CLASSES])
    expected = np.min(plain_mahalanobis(NEW, shared.precision_, means), axis=1)
    known = fit("mahalanobis", features=FEATURES, labels=CLASSES, shrinkage=0.3)
    np.testing.assert_allclose(score("mahalanobis", features=NEW, fit=known), expected, rtol=1e-8)


def test_mahalanobis_finds_the_distances_of_a_gaussian_that_is_known():
    rng = np.random.default_rng(3)
    means, root = np.array([[0.0, 0.0, 0.0], [6.0, 0.0, -6.0]]), np.array([[2.0, 0, 0], [1.0, 1, 0], [0, 0.5, 0.3]])
    labels = rng.integers(2, size=200_000)
    known = fit("mahalanobis", features=means[labels] + rng.normal(size=(200_000, 3)) @ root.T, labels=labels)
    points = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 0.5], [6.0, 0.0, -6.0], [9.0, 1.0, -5.0]])
    exact = np.min(plain_mahalanobis(points, np.linalg.inv(root @ root.T), means), axis=1)
    np.testing.assert_allclose(score("mahalanobis", features=points, fit=known), exact, rtol=0.02, atol=1e-3)


def test_mahalanobis_of_a_thousand_classes_is_chi_squared_inside():
    # 1,000 classes of 60 rows: a covariance divided by anything else would be off by the ratio of the divisors
    rng = np.random.default_rng(4)
    means, labels = 50 * rng.normal(size=(1000, 8)), np.repeat(np.arange(1000), 60)
    scales = np.linspace(0.5, 3, 8)
    known = fit("mahalanobis", features=means[labels] + scales * rng.normal(size=(60_000, 8)), labels=labels)
    fresh = rng.integers(1000, size=4000)
    values = score("mahalanobis", features=means[fresh] + scales * rng.normal(size=(4000, 8)), fit=known)
    # class means of 60 rows add 1/60 of the variance, and the covariance about them lacks 1/60 of it
    assert values.mean() == pytest.approx(8 * (1 + 1 / 60) / (1 - 1 / 60), rel=0.03)
    quartiles = np.quantile(values, [0.25, 0.5, 0.75]) / ((1 + 1 / 60) / (1 - 1 / 60))
    np.testing.assert_allclose(quartiles, chi2(8).ppf([0.25, 0.5, 0.75]), rtol=0.05)


def test_a_large_common_offset_costs_mahalanobis_no_digits():
    near = score("mahalanobis", features=NEW, fit=fit("mahalanobis", features=FEATURES, labels=CLASSES))
    far = score("mahalanobis", features=NEW + 1e6, fit=fit("mahalanobis", features=FEATURES + 1e6, labels=CLASSES))
    np.testing.assert_allclose(far, near, rtol=1e-6)


def test_a_direction_without_variance_is_left_out_and_shrinkage_brings_it_back():
    flat = np.column_stack([FEATURES[:, :3], np.full(200, 2.0)])  # the last unit never moves
    moved = flat[:1] + np.array([0, 0, 0, 5.0])
    alone = fit("mahalanobis", features=flat, labels=CLASSES)
    assert alone.arrays["whitening"].shape == (4, 3)
    assert score("mahalanobis", features=moved, fit=alone) == pytest.approx(
        score("mahalanobis", features=flat[:1], fit=alone)
    )
    shrunk = fit("mahalanobis", features=flat, labels=CLASSES, shrinkage=0.1)
    assert (
        score("mahalanobis", features=moved, fit=shrunk) > score("mahalanobis", features=flat[:1], fit=shrunk) + 1
    ).all()


def test_mahalanobis_works_with_fewer_rows_than_features():
    rng = np.random.default_rng(5)
    few, labels = rng.normal(size=(12, 40)), np.arange(12) % 3
    known = fit("mahalanobis", features=few, labels=labels)
    means = np.stack([few[labels == k].mean(axis=0) for k in range(3)])
    centred = few - means[labels]
    precision = np.linalg.pinv(centred.T @ centred / 12, rcond=1e-10, hermitian=True)
    new = rng.normal(size=(5, 40))
    expected = np.min(plain_mahalanobis(new, precision, means), axis=1)
    np.testing.assert_allclose(score("mahalanobis", features=new, fit=known), expected, rtol=1e-8)


def plain_residual(rows, dimension):
    origin = -np.linalg.lstsq(HEAD.weight, HEAD.bias, rcond=None)[0]  # least length, as the pseudo-inverse
    principal = np.linalg.svd(FEATURES - origin, full_matrices=False)[2][:dimension]
    shifted = rows - origin
    return np.linalg.norm(shifted - shifted @ principal.T @ principal, axis=1)


@pytest.mark.parametrize("dimension", [1, 5, 15])
def test_the_residual_is_what_a_projection_leaves(dimension):
    known = fit("residual", features=FEATURES, head=HEAD, dimension=dimension)
    np.testing.assert_allclose(score("residual", features=NEW, fit=known), plain_residual(NEW, dimension), rtol=1e-9)


@pytest.mark.parametrize("dimension", [1, 5, 15])
def test_vim_is_the_scaled_residual_less_the_log_sum_of_the_logits(dimension):
    known = fit("vim", features=FEATURES, head=HEAD, dimension=dimension)
    alpha = raw_logits(FEATURES).max(axis=1).mean() / plain_residual(FEATURES, dimension).mean()
    expected = alpha * plain_residual(NEW, dimension) - logsumexp(raw_logits(NEW), axis=1)
    np.testing.assert_allclose(score("vim", features=NEW, head=HEAD, fit=known), expected, rtol=1e-9)


def test_the_principal_space_of_a_narrow_model_is_half_its_width():
    assert fit("vim", features=FEATURES, head=HEAD).arrays["residual"].shape == (16, 8)


@pytest.mark.parametrize("percentile", [0.0, 37.0, 90.0])
def test_react_clips_at_the_percentile_of_all_activations(percentile):
    known = fit("react", features=FEATURES, percentile=percentile)
    threshold = np.percentile(FEATURES, percentile)
    assert float(known.arrays["threshold"]) == pytest.approx(threshold)
    expected = -logsumexp(raw_logits(np.minimum(NEW, threshold)), axis=1)
    np.testing.assert_allclose(score("react", features=NEW, head=HEAD, fit=known), expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_the_quantile_in_passes_is_numpys(fraction, dtype):
    values = np.random.default_rng(6).normal(size=(41, 7)).round(1).astype(dtype)  # many ties, both signs
    assert quantile(values, fraction) == pytest.approx(np.quantile(values.astype(np.float64), fraction), rel=1e-12)


@pytest.mark.parametrize("value", [-np.finfo(np.float32).max, -1e-40, -0.0, 0.0, 1e-40, 3.5])
def test_the_quantile_of_one_number_is_that_number(value):
    assert quantile(np.array([[value]], dtype=np.float32), 0.3) == np.float32(value)


def plain_ash(x, variant, percentile):
    kept = len(x) - round(len(x) * percentile / 100)
    places = sorted(range(len(x)), key=lambda i: (-x[i], i))[:kept]
    result = np.zeros(len(x))
    for i in places:
        result[i] = sum(x) / kept if variant == "b" else x[i]
    return result * math.exp(sum(x) / sum(result)) if variant == "s" else result


@pytest.mark.parametrize("percentile", [0, 60, 65, 90])
@pytest.mark.parametrize("variant", ["s", "b", "p"])
def test_ash_is_the_energy_of_the_shaped_rows(variant, percentile):
    shaped = np.array([plain_ash(x, variant, percentile) for x in NEW])
    expected = -logsumexp(raw_logits(shaped), axis=1)
    values = score("ash", features=NEW, head=HEAD, variant=variant, percentile=percentile)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("percentile", [0, 65, 85])
def test_scale_multiplies_by_the_exponential_of_a_ratio_of_sums(percentile):
    kept = 16 - round(16 * percentile / 100)
    scaled = np.array([x * math.exp(sum(x) / sum(sorted(x)[-kept:])) for x in NEW])
    expected = -logsumexp(raw_logits(scaled), axis=1)
    np.testing.assert_allclose(score("scale", features=NEW, head=HEAD, percentile=percentile), expected, rtol=1e-9)


@pytest.mark.parametrize("percentile", [0, 70, 90])
def test_dice_keeps_the_weights_of_the_highest_contribution(percentile):
    known = fit("dice", features=FEATURES)
    mean = FEATURES.mean(axis=0)
    threshold = np.percentile([[w * m for w, m in zip(row, mean, strict=True)] for row in HEAD.weight], percentile)
    sparse = [[w if w * m > threshold else 0.0 for w, m in zip(row, mean, strict=True)] for row in HEAD.weight]
    expected = -logsumexp(raw_logits(NEW, sparse), axis=1)
    np.testing.assert_allclose(
        score("dice", features=NEW, head=HEAD, fit=known, percentile=percentile), expected, rtol=1e-9
    )


def test_she_is_the_product_with_the_mean_of_the_rows_that_were_right():
    predicted = raw_logits(FEATURES).argmax(axis=1)
    labels = np.where(np.arange(200) % 3 == 0, (predicted + 1) % 6, predicted)  # a third of the rows is wrong
    known = fit("she", features=FEATURES, head=HEAD, labels=labels)
    patterns = [FEATURES[(labels == k) & (predicted == k)].mean(axis=0) for k in range(6)]
    expected = [-(x @ patterns[k]) for x, k in zip(NEW, raw_logits(NEW).argmax(axis=1), strict=True)]
    np.testing.assert_allclose(score("she", features=NEW, head=HEAD, fit=known), expected, rtol=1e-9)


def test_a_masked_head_gives_the_energy_over_those_classes_alone():
    masked = LinearHead.masked(HEAD, [4, 1])
    never_clips = Fit("react", 1, {}, {"threshold": np.array(1e9)})
    expected = -logsumexp(raw_logits(NEW)[:, [4, 1]], axis=1)
    np.testing.assert_allclose(score("react", features=NEW, head=masked, fit=never_clips), expected, rtol=1e-9)


def test_the_confidence_branch_is_minus_a_sigmoid():
    c = np.array([-800.0, -2.0, 0.0, 1.5, 800.0])
    np.testing.assert_allclose(score("confidence_branch", confidence_logit=c), -expit(c), rtol=1e-12)


def test_rotation_is_the_cross_entropy_of_the_upright_picture():
    z = RNG.normal(size=(20, 4)) * 3
    expected = [-log_softmax(row)[0] for row in z]
    np.testing.assert_allclose(score("rotation", rotation_logits=z), expected, rtol=1e-12)


def test_rotation_over_four_turns_is_the_mean_cross_entropy_of_each_turn():
    z = RNG.normal(size=(20, 4, 4)) * 3
    expected = [sum(-log_softmax(turns[r])[r] for r in range(4)) / 4 for turns in z]
    np.testing.assert_allclose(score("rotation", rotation_logits=z), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (3, 3), (3, 4, 3), (0, 4)])
def test_rotation_logits_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="expected rotation_logits of shape"):
        score("rotation", rotation_logits=np.zeros(shape))


def test_a_branch_output_that_is_no_number_is_named():
    with pytest.raises(ValueError, match="expected finite values in confidence_logit, got one that is not at row 1"):
        score("confidence_branch", confidence_logit=[0.0, np.nan])
    with pytest.raises(ValueError, match="expected finite values in rotation_logits, got one that is not at row 0"):
        score("rotation", rotation_logits=[[0.0, 1.0, np.inf, 0.0]])
    with pytest.raises(TypeError, match="expected numbers in confidence_logit, got <U1"):
        score("confidence_branch", confidence_logit=["a"])
