"""transformers classifiers, from a folder that was saved here."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from hf_robust import labels
from hf_robust.models import ModelError, load_model, weights_hash

transformers = pytest.importorskip("transformers")


def config(names=None, width=1000):
    extra = {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}} if names else {}
    return transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        **(extra or {"num_labels": width}),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    def save(cfg, cls=transformers.ViTForImageClassification, **processor):
        torch.manual_seed(1)
        cls(cfg).save_pretrained(tmp_path / "vit")
        settings = {"size": {"height": 32, "width": 32}, **processor}
        transformers.ViTImageProcessor(**settings).save_pretrained(tmp_path / "vit")
        return tmp_path / "vit"

    return save


@pytest.fixture
def picture():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))


def test_logits_are_those_of_transformers(folder, picture):
    path = folder(config())
    model = load_model(f"hf/{path}")
    batch = model.preprocessing.transform(picture)[None]
    with torch.no_grad():
        expected = transformers.AutoModelForImageClassification.from_pretrained(path).eval()(batch).logits
    assert torch.equal(model.forward(batch)["logits"], expected)
    assert model.label_space == labels.imagenet_1k()


def test_features_are_the_input_of_the_last_linear_layer(folder):
    model = load_model(f"hf/{folder(config())}")
    batch = torch.randn(2, 3, 32, 32)
    outputs = model.with_features().forward(batch)
    expected = model.module.vit(batch).last_hidden_state[:, 0]
    torch.testing.assert_close(outputs["features"], expected)
    head = model.heads["classifier"]
    again = outputs["features"].numpy() @ head.weight.T + head.bias
    np.testing.assert_allclose(again, outputs["logits"].numpy(), atol=1e-5)


def test_pictures_are_prepared_by_pil_and_that_is_recorded(folder, picture):
    path = folder(config(), image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6], resample=3)
    preprocessing = load_model(f"hf/{path}").preprocessing
    resized = np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC), dtype=np.float32) / 255
    expected = (resized - np.array([0.1, 0.2, 0.3], np.float32)) / np.array([0.4, 0.5, 0.6], np.float32)
    np.testing.assert_allclose(preprocessing.transform(picture).numpy(), expected.transpose(2, 0, 1), atol=1e-5)
    facts = json.loads(json.dumps(preprocessing.description))
    assert (facts["backend"], facts["interpolation"], facts["input_size"]) == ("PIL", "bicubic", [32, 32])
    assert (facts["mean"], facts["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert facts["settings"]["do_normalize"] is True


def test_a_processor_that_does_not_normalise_is_noted(folder):
    (note,) = load_model(f"hf/{folder(config(), do_normalize=False)}").notes
    assert note.startswith("neither the transform nor the model seems to normalise")


def test_a_background_class_in_front_is_understood_by_width(folder):
    space = load_model(f"hf/{folder(config(['background', *labels.imagenet_1k_names()]))}").label_space
    assert space.imagenet_1k_columns()[:2].tolist() == [1, 2]


def test_wordnet_ids_in_another_order_are_followed(folder):
    wnids = [*reversed(labels.imagenet_1k().wnids)]
    space = load_model(f"hf/{folder(config([f'{w} something' for w in wnids]))}").label_space
    assert space.wnids == tuple(wnids)
    assert space.imagenet_1k_columns()[0] == 999


def test_class_names_in_another_order_are_warned_about(folder):
    path = folder(config([*reversed(labels.imagenet_1k_names())]))
    with pytest.warns(UserWarning, match="1000 of its 1,000 class names stand at another index"):
        load_model(f"hf/{path}")


def test_a_model_of_10_classes_is_refused(folder):
    with pytest.raises(ModelError, match="got 10: no label space is known for that width"):
        load_model(f"hf/{folder(config(width=10))}")


def test_a_backbone_without_its_classifier_is_refused(folder):
    path = folder(config(), transformers.ViTModel)
    with pytest.raises(ModelError, match=r"2 weights of ViTForImageClassification are missing .* the first classifier"):
        load_model(f"hf/{path}")


def test_a_checkpoint_replaces_the_weights(folder, tmp_path):
    path = folder(config())
    module = load_model(f"hf/{path}").module
    other = {f"module.{k}": v + 1 for k, v in module.state_dict().items()}
    torch.save(other, tmp_path / "other.pt")
    loaded = load_model(f"hf/{path}", checkpoint=tmp_path / "other.pt").module
    assert torch.equal(loaded.classifier.bias, module.classifier.bias + 1)
    assert weights_hash(loaded) != weights_hash(module)


def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(ModelError, match=rf"hf/{tmp_path}"):
        load_model(f"hf/{tmp_path}")


def test_a_repository_that_cannot_be_reached_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="hf/nobody/nothing: its files are not on this machine and could not be"):
        load_model("hf/nobody/nothing")
