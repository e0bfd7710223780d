"""The same rows through pytorch-ood: its detectors compute in float32, ours in float64 over the same inputs."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from hf_robust.ood_scores import LinearHead, fit, score

if find_spec("pytorch_ood") is None:
    pytest.skip("pytorch-ood is not installed (pip install pytorch-ood)", allow_module_level=True)

from pytorch_ood import detector as other

RNG = np.random.default_rng(11)
LOGITS = (RNG.normal(size=(300, 10)) * 3).astype(np.float32)
NEW_LOGITS = (RNG.normal(size=(50, 10)) * 2).astype(np.float32)
FEATURES = np.maximum(RNG.normal(0.5, 1, size=(400, 24)), 0).astype(np.float32)
WEIGHT = RNG.normal(size=(5, 24)).astype(np.float32)
BIAS = RNG.normal(size=5).astype(np.float32) - WEIGHT @ FEATURES.mean(axis=0)  # no class is out of reach
HEAD = LinearHead(WEIGHT, BIAS)
CLASSES = np.arange(400) % 5
NEW = np.maximum(RNG.normal(0.3, 1.3, size=(60, 24)), 0).astype(np.float32)


def head(z):
    return torch.nn.functional.linear(z.flatten(1), torch.tensor(WEIGHT), torch.tensor(BIAS))


def as_maps(rows):
    """Vectors as feature maps of one pixel, which is what those detectors take."""
    return torch.tensor(rows)[:, :, None, None]


def assert_same(ours, theirs, rtol=1e-4):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=rtol, atol=1e-4)


def test_the_scores_of_logits_without_a_fit_agree():
    z = torch.tensor(NEW_LOGITS)
    assert_same(score("msp", logits=NEW_LOGITS), other.MaxSoftmax(None).predict_logits(z))
    assert_same(score("max_logit", logits=NEW_LOGITS), other.MaxLogit(None).predict_logits(z))
    assert_same(score("entropy", logits=NEW_LOGITS), other.Entropy(None).predict_logits(z))
    for t in (0.5, 1.0, 10.0):
        theirs = other.EnergyBased(None, t=t).predict_logits(z)
        assert_same(score("energy", logits=NEW_LOGITS, temperature=t), theirs)
        theirs = other.MaxSoftmax(None, t=t).predict_logits(z)
        assert_same(score("temperature_scaled_msp", logits=NEW_LOGITS, temperature=t), theirs)


@pytest.mark.parametrize("top", [3, 10])
def test_gen_agrees_up_to_the_mean_in_place_of_the_sum(top):
    theirs = other.GEN(None, gamma=0.5, M=top).predict_logits(torch.tensor(NEW_LOGITS))
    assert_same(score("gen", logits=NEW_LOGITS, gamma=0.5, top=top) / top, theirs, rtol=1e-3)


def test_kl_matching_agrees():
    theirs = other.KLMatching(None).fit_logits(torch.tensor(LOGITS)).predict_logits(torch.tensor(NEW_LOGITS))
    assert_same(score("kl_matching", logits=NEW_LOGITS, fit=fit("kl_matching", logits=LOGITS)), theirs)


def test_concept_matching_agrees():
    images = NEW / np.linalg.norm(NEW, axis=1, keepdims=True)
    texts = WEIGHT / np.linalg.norm(WEIGHT, axis=1, keepdims=True)
    theirs = other.MCM(None, torch.tensor(texts)).predict_features(torch.tensor(images))
    zero_shot = LinearHead(100 * texts, np.zeros(5, np.float32))
    assert_same(score("mcm", logits=100 * images @ texts.T, head=zero_shot), theirs)


def test_knn_agrees():
    theirs = other.KNN(None, k=5).fit_features(torch.tensor(FEATURES), torch.tensor(CLASSES))
    ours = score("knn", features=NEW, fit=fit("knn", features=FEATURES), k=5)
    assert_same(ours, theirs.predict_features(torch.tensor(NEW)))


def test_mahalanobis_agrees_up_to_half_and_the_count_that_it_does_not_divide_by():
    theirs = other.Mahalanobis(None).fit_features(torch.tensor(FEATURES), torch.tensor(CLASSES))
    ours = score("mahalanobis", features=NEW, fit=fit("mahalanobis", features=FEATURES, labels=CLASSES))
    assert_same(ours, 2 * len(FEATURES) * theirs.predict_features(torch.tensor(NEW)), rtol=1e-3)


def test_relative_mahalanobis_agrees_up_to_the_count_that_it_does_not_divide_by():
    theirs = other.RMD(None).fit_features(torch.tensor(FEATURES), torch.tensor(CLASSES))
    known = fit("relative_mahalanobis", features=FEATURES, labels=CLASSES)
    ours = score("relative_mahalanobis", features=NEW, fit=known)
    np.testing.assert_allclose(ours, len(FEATURES) * theirs.predict_features(torch.tensor(NEW)).numpy(), atol=0.02)


def test_vim_agrees():
    theirs = other.ViM(None, d=8, w=torch.tensor(WEIGHT), b=torch.tensor(BIAS))
    theirs.fit_features(torch.tensor(FEATURES), torch.tensor(CLASSES))
    known = fit("vim", features=FEATURES, head=HEAD, dimension=8)
    assert_same(score("vim", features=NEW, head=HEAD, fit=known), theirs.predict_features(torch.tensor(NEW)), rtol=1e-3)


@pytest.mark.parametrize("percentile", [50, 90])
def test_react_agrees(percentile):
    theirs = other.ReAct(None, head, percentile=percentile / 100)
    theirs.fit_feature_maps(as_maps(FEATURES), torch.tensor(CLASSES))
    known = fit("react", features=FEATURES, percentile=percentile)
    assert_same(score("react", features=NEW, head=HEAD, fit=known), theirs.predict_feature_maps(as_maps(NEW)))


@pytest.mark.parametrize("variant", ["s", "b", "p"])
def test_ash_agrees(variant):
    theirs = other.ASH(None, head, variant=f"ash-{variant}", percentile=0.65).predict_feature_maps(as_maps(NEW))
    assert_same(score("ash", features=NEW, head=HEAD, variant=variant, percentile=65), theirs)


def test_scale_agrees():
    theirs = other.SCALE(None, head, percentile=0.85).predict_feature_maps(as_maps(NEW))
    assert_same(score("scale", features=NEW, head=HEAD, percentile=85), theirs)


def test_dice_agrees():
    theirs = other.DICE(None, torch.tensor(WEIGHT), torch.tensor(BIAS), p=0.7)
    theirs.fit_features(torch.tensor(FEATURES), torch.tensor(CLASSES))
    ours = score("dice", features=NEW, head=HEAD, fit=fit("dice", features=FEATURES))
    assert_same(ours, theirs.predict_features(torch.tensor(NEW)))


def test_she_agrees():
    theirs = other.SHE(None, head).fit_features(torch.tensor(FEATURES), torch.tensor(CLASSES))
    known = fit("she", features=FEATURES, head=HEAD, labels=CLASSES)
    assert_same(score("she", features=NEW, head=HEAD, fit=known), theirs.predict_features(torch.tensor(NEW)))
