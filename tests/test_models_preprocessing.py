"""The rules of the protocols, pixel by pixel against plain PIL calls, and what a transform is measured to be."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from hf_robust.benchmarks.spec import IMAGENET_MEAN, IMAGENET_STD, MODEL, PAPER, SPURIOUS_IMAGE, SPURIOUS_VAL, Rule
from hf_robust.models import ModelError, Preprocessing, load_model, transform_for
from hf_robust.models.preprocessing import measured

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)


@pytest.fixture
def picture():
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def own():
    return Preprocessing(transforms.ToTensor(), 160, MEAN, STD, {"backend": "PIL", "interpolation": "bicubic"})


def normalised(picture, mean, std):
    pixels = np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / np.float32(255)
    return (pixels - np.array(mean, np.float32)[:, None, None]) / np.array(std, np.float32)[:, None, None]


def test_the_paper_rule_resizes_the_shorter_side_to_256_and_crops_224(picture, own):
    transform, facts = transform_for(PAPER, own)
    resized = picture.resize((int(256 * 500 / 300), 256), Image.Resampling.BILINEAR)
    left, top = round((resized.width - 224) / 2), (256 - 224) // 2
    cropped = resized.crop((left, top, left + 224, top + 224))
    np.testing.assert_allclose(transform(picture).numpy(), normalised(cropped, IMAGENET_MEAN, IMAGENET_STD), atol=1e-6)
    assert facts["resize"] == {"shorter_side": 256}
    assert facts["crop"] == {"centre": 224}
    assert facts["mean"] == list(IMAGENET_MEAN)


def test_the_spurious_image_rule_resizes_both_sides_and_crops_nothing(picture, own):
    transform, facts = transform_for(SPURIOUS_IMAGE, own)
    resized = picture.resize((160, 160), Image.Resampling.BICUBIC)
    np.testing.assert_allclose(transform(picture).numpy(), normalised(resized, MEAN, STD), atol=1e-6)
    assert facts["resize"] == {"height": 160, "width": 160}
    assert facts["crop"] is None


def test_the_spurious_val_rule_takes_size_mean_and_std_from_the_model(picture, own):
    transform, facts = transform_for(SPURIOUS_VAL, own)
    shorter = int(256 / 224 * 160)
    assert shorter == 182
    resized = picture.resize((int(182 * 500 / 300), 182), Image.Resampling.BICUBIC)
    left, top = round((resized.width - 160) / 2), (182 - 160) // 2
    cropped = resized.crop((left, top, left + 160, top + 160))
    np.testing.assert_allclose(transform(picture).numpy(), normalised(cropped, MEAN, STD), atol=1e-6)
    assert facts["std"] == list(STD)


def test_one_number_and_a_pair_are_different_rules_on_a_picture_that_is_not_square(picture, own):
    shorter, _ = transform_for(Rule("shorter", "shorter", 256, 1.0, "bilinear"), own)
    exact, _ = transform_for(Rule("exact", "exact", 256, 1.0, "bilinear"), own)
    assert shorter(picture).shape == exact(picture).shape
    assert (shorter(picture) - exact(picture)).abs().max() > 0.1


def test_the_model_rule_is_the_models_own_transform(own):
    transform, facts = transform_for(MODEL, own)
    assert transform is own.transform
    assert facts == {"rule": "model", "backend": "PIL", "interpolation": "bicubic"}


@pytest.mark.parametrize("rule", [MODEL, PAPER, SPURIOUS_VAL, SPURIOUS_IMAGE], ids=lambda r: r.name)
def test_a_description_is_json_and_the_same_each_time(rule):
    texts = {
        json.dumps(transform_for(rule, load_model("timm-random/test_vit").preprocessing)[1], sort_keys=True)
        for _ in range(2)
    }
    assert len(texts) == 1
    assert " at 0x" not in texts.pop()


def test_an_interpolation_left_open_is_the_models_own(picture, own):
    transform, facts = transform_for(Rule("open", "exact", 64), own)
    resized = picture.resize((64, 64), Image.Resampling.BICUBIC)
    np.testing.assert_allclose(transform(picture).numpy(), normalised(resized, MEAN, STD), atol=1e-6)
    assert facts["interpolation"] == "bicubic"


def test_an_interpolation_that_nobody_names_is_refused():
    bare = Preprocessing(transforms.ToTensor(), 64, MEAN, STD, {})
    with pytest.raises(ValueError, match="rule 'open' names no interpolation"):
        transform_for(Rule("open", "exact", 64), bare)


def test_an_unknown_interpolation_is_told_the_known_ones(own):
    with pytest.raises(ValueError, match=r"unknown interpolation 'cubic'; known: nearest, .*bicubic"):
        transform_for(Rule("odd", "exact", 64, 1.0, "cubic"), own)


def test_size_mean_and_std_of_any_transform_are_measured():
    steps = [transforms.Resize(70), transforms.CenterCrop(64), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    found = measured(transforms.Compose(steps), {}, name="toy")
    assert (found.size, found.mean, found.std) == (64, MEAN, STD)
    assert found.description["mean"] == list(MEAN)
    assert "Resize(size=70" in found.description["transform"]


def test_a_transform_without_normalisation_measures_as_mean_0_and_std_1():
    found = measured(transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()]), {}, name="toy")
    assert (found.mean, found.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda picture: picture, "gives a float tensor .* got Image"),
        (transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()]), "got torch.uint8"),
        (transforms.ToTensor(), "square input, got 480 x 640"),
        (lambda picture: torch.zeros(3, 8, 8), "keeps white brighter than black"),
        (lambda picture: picture.nothing, "its transform failed on an RGB picture: AttributeError"),
    ],
)
def test_a_transform_that_gives_no_normalised_tensor_is_refused(transform, message):
    with pytest.raises(ModelError, match=f"toy: .*{message}"):
        measured(transform, {}, name="toy")
