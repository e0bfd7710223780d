"""Factories: a Python file that gives a module, a module with its transform, or a finished classifier."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest
import torch
from PIL import Image

from hf_robust import labels
from hf_robust.models import ImageClassifier, ModelError, load_model, weights_hash

TOY = """
import torch
from torch import nn
from torchvision import transforms

def transform(mean=0.5, std=0.5):
    normalise = transforms.Normalize([mean] * 3, [std] * 3)
    return transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor(), normalise])

class Toy(nn.Module):
    def __init__(self, width=1000):
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48, 8), nn.ReLU())
        self.fc = nn.Linear(8, width)

    def forward(self, x):
        return self.fc(self.body(x))
"""


@pytest.fixture
def factory(tmp_path):
    def write(body):
        file = tmp_path / "mine.py"
        file.write_text(TOY + textwrap.dedent(body))
        return f"{file}:build"

    return write


def test_a_module_with_its_transform_becomes_a_classifier(factory):
    model = load_model(factory("def build(): return Toy(), transform(0.4, 0.2)"))
    picture = model.preprocessing.transform(Image.new("RGB", (20, 30), (255, 255, 255)))
    assert torch.allclose(picture, torch.full((3, 16, 16), (1 - 0.4) / 0.2))
    assert (model.preprocessing.size, model.preprocessing.mean, model.preprocessing.std) == (16, (0.4,) * 3, (0.2,) * 3)
    assert model.label_space == labels.imagenet_1k()
    outputs = model.with_features().forward(torch.zeros(2, 3, 16, 16))
    again = outputs["features"] @ model.module.fc.weight.T + model.module.fc.bias
    assert torch.allclose(again, outputs["logits"])


def test_a_module_with_a_pretrained_cfg_needs_no_transform(factory):
    name = factory("""
        def build():
            module = Toy()
            module.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0.1, 0.2, 0.3), "std": (1.0, 1.0, 1.0)}
            return module
    """)
    preprocessing = load_model(name).preprocessing
    assert (preprocessing.size, preprocessing.mean) == (16, (0.1, 0.2, 0.3))


def test_a_file_that_was_changed_within_a_second_to_the_same_size_is_read_anew(factory, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as it is for most people
    means = []
    for mean in (0.4, 0.7):
        name = factory(f"def build(): return Toy(), transform({mean}, 0.2)")
        os.utime(name.removesuffix(":build"), (1e9, 1e9))  # what Python's stored bytecode is known by, beside the size
        means.append(load_model(name).preprocessing.mean[0])
    assert means == [0.4, 0.7]


def test_a_bare_module_is_asked_for_its_transform(factory):
    with pytest.raises(ModelError, match=r"let the factory give \(module, transform\)"):
        load_model(factory("def build(): return Toy()"))


def test_a_finished_classifier_is_taken_under_the_name_that_was_asked_for(factory):
    name = factory("""
        from hf_robust.models import load_model
        def build(): return load_model("timm-random/test_vit")
    """)
    model = load_model(name)
    assert isinstance(model, ImageClassifier)
    assert model.name == name
    with pytest.raises(ModelError, match="finished classifier, which takes no --checkpoint"):
        load_model(name, checkpoint="x.pt")


def test_a_head_of_21841_outputs_gets_its_label_space_and_names_what_is_missing(factory):
    space = load_model(factory("def build(): return Toy(21841), transform()")).label_space
    assert len(space) == 21841
    assert [labels.imagenet_1k().wnids[i] for i in space.missing_imagenet_1k()] == ["n04399382"]


def test_a_timm_architecture_with_another_width_works_through_a_factory(factory):
    name = factory("""
        import timm
        def build(): return timm.create_model("test_vit", num_classes=11821)
    """)
    assert load_model(name).label_space.name == "timm:imagenet12k"


def test_a_head_of_10_outputs_is_refused(factory):
    with pytest.raises(ModelError, match=r"expected a model with one of 1,000, .* outputs, got 10: no label space"):
        load_model(factory("def build(): return Toy(10), transform()"))


def test_a_module_may_bring_the_classes_of_its_outputs(factory):
    name = factory("""
        def build():
            module = Toy(2)
            module.wnids = ["n01443537", "n01440764"]
            return module, transform()
    """)
    space = load_model(name).label_space
    assert space.imagenet_1k_columns()[:2].tolist() == [1, 0]


def test_a_label_space_of_another_width_than_the_outputs_is_refused(factory):
    name = factory("""
        def build():
            module = Toy(3)
            module.wnids = ["n01443537", "n01440764"]
            return module, transform()
    """)
    with pytest.raises(ModelError, match="one class for each of 3 outputs, got 2"):
        load_model(name)


@pytest.mark.parametrize("wnids", ['["n01440764", "n01440764"]', '"n01440764"', "7"])
def test_wnids_that_are_no_list_of_different_ids_are_refused(factory, wnids):
    name = factory(f"""
        def build():
            module = Toy(2)
            module.wnids = {wnids}
            return module, transform()
    """)
    with pytest.raises(ModelError, match="a list of different WordNet ids"):
        load_model(name)


def test_confidence_and_rotation_outputs_travel_with_the_logits(factory):
    name = factory("""
        class Three(Toy):
            def forward(self, x):
                logits = super().forward(x)
                return {"logits": logits, "confidence_logit": logits[:, :1], "rotation_logits": logits[:, :4], "x": x}
        def build(): return Three(), transform()
    """)
    outputs = load_model(name).forward(torch.zeros(2, 3, 16, 16))
    assert {k: tuple(v.shape) for k, v in outputs.items()} == {
        "logits": (2, 1000),
        "confidence_logit": (2,),
        "rotation_logits": (2, 4),
    }


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("(logits, x)", "expected logits, an object with .logits or a dict with 'logits', got tuple"),
        ('{"scores": logits}', r"got the keys \['scores'\]"),
        ("logits[0]", r"shape \(1, outputs\) for one picture, got \(1000,\)"),
        ('{"logits": logits, "rotation_logits": logits}', r"rotation_logits of shape \(1, 4\), got \(1, 1000\)"),
        ("logits @ x", "it failed on one picture of 16 x 16 pixels: RuntimeError"),
    ],
)
def test_outputs_of_another_kind_are_refused(factory, returned, message):
    name = factory(f"""
        class Odd(Toy):
            def forward(self, x):
                logits = super().forward(x)
                return {returned}
        def build(): return Odd(), transform()
    """)
    with pytest.raises(ModelError, match=message):
        load_model(name)


def test_a_checkpoint_goes_into_the_module(factory, tmp_path):
    name = factory("def build(): return Toy(), transform()")
    other = load_model(name).module
    torch.save({"state_dict": {f"module.{k}": v for k, v in other.state_dict().items()}}, tmp_path / "w.pt")
    fresh = load_model(name)
    assert weights_hash(fresh.module) != weights_hash(other)
    assert weights_hash(load_model(name, checkpoint=tmp_path / "w.pt").module) == weights_hash(other)


def test_a_doubled_normalisation_is_noted(factory):
    name = factory("""
        class Inside(Toy):
            def forward(self, x):
                return super().forward((x - self.mean) / self.std)
        def build():
            module = Inside()
            module.register_buffer("mean", torch.full((3, 1, 1), 0.5))
            module.register_buffer("std", torch.full((3, 1, 1), 0.5))
            return module, transform()
    """)
    assert load_model(name).notes == ("the transform normalises and the model seems to do so again",)


def test_a_missing_normalisation_is_noted(factory):
    name = factory("""
        def build():
            return Toy(), transforms.Compose([transforms.Resize((16, 16)), transforms.ToTensor()])
    """)
    assert load_model(name).notes == ("neither the transform nor the model seems to normalise (mean 0, std 1)",)


def test_a_model_that_only_takes_contiguous_memory_is_not_run_in_channels_last(factory):
    name = factory("""
        class Viewed(nn.Module):
            def __init__(self):
                super().__init__()
                self.convs = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6)))
                self.fc = nn.Linear(768, 1000)
            def forward(self, x):
                return self.fc(self.convs(x).view(len(x), -1))
        def build(): return Viewed(), transform()
    """)
    assert load_model(name).layout == "contiguous"


def test_a_neighbour_of_the_file_can_be_imported(factory, tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("WIDTH = 1000\n")
    name = factory("""
        def build():
            from neighbour_of_mine import WIDTH
            return Toy(WIDTH), transform()
    """)
    assert len(load_model(name).label_space) == 1000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def built(): return 1", r"no function 'build' in mine.py; it has Toy, built, transform"),
        ("def build(): return 1", r"an nn.Module, \(module, transform\) or an ImageClassifier, got int"),
        ("def build(): return Toy(), 3", r"got \(Toy, int\)"),
        ("def build(): return nothing", "NameError at line 18 of mine.py: name 'nothing' is not defined"),
        ("def build(:", "SyntaxError at line 18 of mine.py"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(factory, body, message):
    with pytest.raises(ModelError, match=message):
        load_model(factory(body))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(ModelError, match=r"no such file .*nowhere.py"):
        load_model(f"{tmp_path}/nowhere.py:build")
