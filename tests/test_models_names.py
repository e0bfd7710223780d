"""Names of models: files of names, prefixes, plug-ins, and what a wrong name is told."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

from hf_robust.models import ImageClassifier, ModelError, load_model, model_names


def test_names_keep_their_order_and_a_file_of_names_is_read_in_place(tmp_path):
    file = tmp_path / "models.txt"
    file.write_text("# baselines\ntimm/resnet18.a1_in1k\n\n  hf/some/repo   # a comment\n")
    expected = ("offline/efficientnet_lite0", "timm/resnet18.a1_in1k", "hf/some/repo", "mine.py:build")
    assert model_names(["offline/efficientnet_lite0", f"@{file}", "mine.py:build"]) == expected


def test_a_name_given_twice_is_refused(tmp_path):
    file = tmp_path / "models.txt"
    file.write_text("timm/resnet18.a1_in1k\n")
    with pytest.raises(ModelError, match=r"each model once, got timm/resnet18.a1_in1k more than once"):
        model_names(["timm/resnet18.a1_in1k", f"@{file}"])


@pytest.mark.parametrize("arguments", [[], [""]])
def test_no_name_is_refused(arguments):
    with pytest.raises(ModelError, match="at least one model name and none empty"):
        model_names(arguments)


def test_a_file_without_names_and_a_missing_file_are_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("# nothing\n\n")
    with pytest.raises(ModelError, match=r"empty.txt: expected one model name a line, got none"):
        model_names([f"@{tmp_path / 'empty.txt'}"])
    with pytest.raises(ModelError, match=r"missing.txt: expected a text file with one model name a line"):
        model_names([f"@{tmp_path / 'missing.txt'}"])


def test_an_unknown_prefix_is_told_the_known_ones():
    with pytest.raises(ModelError, match=r"unknown model source 'tim' .*known: hf/…, hf-clip/…, offline/…, .*timm/…"):
        load_model("tim/resnet18")


def test_a_prefix_without_a_model_is_refused():
    with pytest.raises(ModelError, match="expected a model after the prefix, got 'timm/'"):
        load_model("timm/")


def test_a_misspelt_bare_name_is_told_the_close_ones():
    with pytest.raises(ModelError, match="no architecture 'resnet5'; close: resnet50"):
        load_model("resnet5")


def test_unknown_weights_of_a_known_architecture_are_told_the_known_ones():
    with pytest.raises(ModelError, match=r"unknown weights 'nope' of timm/test_vit; known: r160_in1k"):
        load_model("timm/test_vit.nope")


def test_a_package_adds_a_source_through_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "toy_source.py").write_text(
        textwrap.dedent("""
            from hf_robust.models import load_model

            def load(request):
                if request.argument == "broken":
                    raise KeyError("no such toy")
                return load_model(f"timm-random/{request.argument}") if request.argument != "odd" else 3
        """)
    )
    metadata = tmp_path / "toy_source-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-source\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[hf_robust.models]\ntoy = toy_source:load\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load_model("toy/test_vit")
    assert isinstance(loaded, ImageClassifier)
    assert loaded.name == "toy/test_vit"
    with pytest.raises(ModelError, match="toy/broken: KeyError: 'no such toy'"):
        load_model("toy/broken")
    with pytest.raises(ModelError, match="expected its plug-in to give an ImageClassifier, got int"):
        load_model("toy/odd")
    with pytest.raises(ModelError, match="toy/…"):
        load_model("toi/test_vit")


def test_importing_the_sources_imports_no_model_library():
    code = "import sys, hf_robust.models; print(sorted({'torch','timm','transformers','open_clip'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_missing_library_is_told_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r'timm/test_vit needs timm .*pip install "hf-robust\[run\]"'):
        load_model("timm/test_vit")


def test_weights_that_cannot_be_downloaded_are_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"timm/test_vit: its files are not on this machine and could not be"):
        load_model("timm/test_vit")


def test_loading_leaves_the_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model("timm-random/test_resnet")
    assert torch.equal(torch.rand(3), expected)
