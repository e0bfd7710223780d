"""Zero-shot models: prompts, class weights, both heads, through transformers and open_clip, without a network."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hf_robust import labels
from hf_robust.models import ModelError, imagenet_d_prompt_name, load_model
from hf_robust.models.from_open_clip import quick_gelu
from hf_robust.models.zero_shot import (
    IMAGENET_D_TEMPLATES,
    SIMPLE_TEMPLATES,
    imagenet_templates,
    prompt_sets,
    read_class_names,
    read_templates,
)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("a {c}\n\nthe {c}.\n")
    return file


@pytest.fixture(scope="module")
def hf_clip(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    path = tmp_path_factory.mktemp("clip")
    letters = list(bytes_to_unicode().values())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=[])
    tokenizer.save_pretrained(path)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": len(tokens), "bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**small, "image_size": 32, "patch_size": 8}, projection_dim=12
    )
    torch.manual_seed(0)
    transformers.CLIPModel(config).save_pretrained(path)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def open_clip_folder(tmp_path_factory):
    open_clip = pytest.importorskip("open_clip")
    path = tmp_path_factory.mktemp("open_clip")
    config = {
        "embed_dim": 12,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    (path / "tiny-for-tests.json").write_text(json.dumps(config))
    preprocess = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bicubic"}
    (path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    open_clip.add_model_config(path / "tiny-for-tests.json")
    torch.manual_seed(0)
    state = open_clip.create_model("tiny-for-tests").state_dict()
    save_file({k: v.contiguous() for k, v in state.items()}, path / "open_clip_model.safetensors")
    torch.save(state, path / "weights.pt")
    return path


def check_heads(model, encode, image_features):
    """Both heads against a plain computation, one text at a time, for a few classes."""
    outputs = model.forward(torch.zeros(2, 3, 32, 32))
    assert set(outputs) == {"embeddings"}
    expected = image_features / image_features.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(outputs["embeddings"], expected)
    names = labels.imagenet_1k_names()
    scale = float(model.module.logit_scale.exp())
    head = model.heads["imagenet-1k"]
    assert head.weight.shape == (1000, 12)
    assert head.label_space == labels.imagenet_1k()
    assert not head.bias.any()
    for k in (0, 134, 999):
        pair = [encode(f"a {names[k]}"), encode(f"the {names[k]}.")]
        mean = sum(e / np.linalg.norm(e) for e in pair) / 2
        np.testing.assert_allclose(head.weight[k], scale * mean / np.linalg.norm(mean), atol=1e-4)
    categories = labels.imagenet_d_categories()
    head = model.heads["imagenet-d"]
    assert head.label_space.wnids == tuple(c.folder for c in categories)
    k = next(i for i, c in enumerate(categories) if c.display_name == "coffee/french press")
    embedding = encode("A photo of a coffee or french press")
    np.testing.assert_allclose(head.weight[k], 100 * embedding / np.linalg.norm(embedding), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(head.weight, axis=1), 100, rtol=1e-5)


def test_transformers_clip_gives_both_heads(hf_clip, prompts):
    import transformers

    model = load_model(f"hf-clip/{hf_clip}", prompts=prompts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf_clip)
    module = transformers.CLIPModel.from_pretrained(hf_clip).eval()

    def encode(text):
        with torch.no_grad():
            pooled = module.text_model(**tokenizer([text], return_tensors="pt")).pooler_output
            return module.text_projection(pooled)[0].numpy()

    with torch.no_grad():
        features = module.visual_projection(module.vision_model(torch.zeros(2, 3, 32, 32)).pooler_output)
    check_heads(model, encode, features)
    assert model.preprocessing.description["backend"] == "PIL"


def test_open_clip_gives_both_heads(open_clip_folder, prompts):
    import open_clip

    model = load_model(f"open_clip/{open_clip_folder}", prompts=prompts)
    module = open_clip.create_model("tiny-for-tests", pretrained=str(open_clip_folder / "weights.pt")).eval()
    tokenizer = open_clip.get_tokenizer("tiny-for-tests")

    def encode(text):
        with torch.no_grad():
            return module.encode_text(tokenizer([text]))[0].numpy()

    with torch.no_grad():
        features = module.visual(torch.zeros(2, 3, 32, 32))
    check_heads(model, encode, features)
    assert model.preprocessing.mean == (0.1, 0.2, 0.3)
    assert model.preprocessing.description["interpolation"] == "bicubic"


@pytest.mark.parametrize("how", ["in the name", "as a checkpoint"])
def test_open_clip_takes_an_architecture_and_a_file(open_clip_folder, how):
    file = open_clip_folder / "weights.pt"
    if how == "in the name":
        model = load_model(f"open_clip/tiny-for-tests/{file}")
    else:
        model = load_model("open_clip/tiny-for-tests", checkpoint=file)
    expected = load_model(f"open_clip/{open_clip_folder}")
    batch = torch.randn(1, 3, 32, 32)
    assert torch.equal(model.forward(batch)["embeddings"], expected.forward(batch)["embeddings"])


def test_heads_are_computed_when_they_are_read_and_only_once(open_clip_folder):
    model = load_model(f"open_clip/{open_clip_folder}")
    assert set(model.heads) == {"imagenet-1k", "imagenet-d"}
    assert not model.heads._heads
    assert model.heads["imagenet-d"] is model.heads["imagenet-d"]
    assert set(model.heads._heads) == {"imagenet-d"}


def test_the_embeddings_of_a_zero_shot_model_are_its_features(open_clip_folder):
    model = load_model(f"open_clip/{open_clip_folder}")
    assert model.with_features() is model


def test_open_clip_names_are_checked(open_clip_folder):
    with pytest.raises(ModelError, match="no architecture 'ViT-B-33'; close: ViT-B-32"):
        load_model("open_clip/ViT-B-33/openai")
    with pytest.raises(ModelError, match=r"'nope' is no file and no weights tag; known tags: openai, laion400m_e31"):
        load_model("open_clip/ViT-B-32/nope")
    with pytest.raises(ModelError, match=r"expected one source of weights .* got no weights"):
        load_model("open_clip/tiny-for-tests")
    with pytest.raises(ModelError, match="brings its own weights"):
        load_model(f"open_clip/{open_clip_folder}", checkpoint=open_clip_folder / "weights.pt")


@pytest.mark.parametrize(
    ("architecture", "weights", "quick"),
    [
        ("ViT-B-32", "openai", True),
        ("ViT-B-32", "laion2b_s34b_b79k", False),
        ("ViT-B-32-quickgelu", "openai", True),
        ("ViT-B-32-quickgelu", "weights.pt", True),
        ("ViT-B-32", "weights.pt", False),
    ],
)
def test_the_activation_is_the_one_that_the_weights_were_trained_with(architecture, weights, quick):
    assert quick_gelu(pytest.importorskip("open_clip"), architecture, weights) is quick


def test_a_transformers_model_without_texts_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="expected a model with image and text features, got ViTModel"):
        load_model(f"hf-clip/{tmp_path}")


def test_default_prompts_are_the_80_templates_and_our_unique_names():
    pytest.importorskip("open_clip")
    sets = prompt_sets()
    assert len(sets["imagenet-1k"].templates) == 80
    assert sets["imagenet-1k"].templates[0] == "a bad photo of a {c}."
    assert sets["imagenet-1k"].names == labels.imagenet_1k_names()
    assert sets["imagenet-d"].templates == IMAGENET_D_TEMPLATES == ("A photo of a {c}",)
    assert len(sets["imagenet-d"].names) == len(set(sets["imagenet-d"].names)) == 113


def test_one_plain_template_is_used_without_open_clip(monkeypatch):
    monkeypatch.setattr("hf_robust.models.zero_shot.find_spec", lambda name: None)
    assert imagenet_templates.__wrapped__() == SIMPLE_TEMPLATES


@pytest.mark.parametrize(
    ("display", "prompt"),
    [("coffee/french press", "coffee or french press"), ("t-shirt", "t shirt"), ("binder_(closed)", "binder (closed)")],
)
def test_imagenet_d_names_are_written_as_in_the_protocol(display, prompt):
    assert imagenet_d_prompt_name(display) == prompt


def test_the_hash_changes_with_templates_and_with_names(hf_clip, prompts, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"class {i}" for i in range(1000)))
    loads = [{}, {"prompts": prompts}, {"class_names": names}, {"prompts": prompts, "class_names": names}]
    hashes = [load_model(f"hf-clip/{hf_clip}", **options).prompts for options in [*loads, *loads]]
    assert hashes[:4] == hashes[4:]
    assert len(set(hashes)) == 4
    assert all(len(h) == 64 for h in hashes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a {c}\na photo\n", r"line 2: expected a template with \{c\} once for the class, got 'a photo'"),
        ("a {c} {c}\n", "line 1"),
        ("\n\n", "got an empty file"),
        ("a {c}\na {c}\n", "each template once"),
    ],
)
def test_a_file_of_templates_is_checked(tmp_path, text, message):
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_templates(tmp_path / "p.txt")


def test_braces_of_a_template_are_left_alone(tmp_path):
    (tmp_path / "p.txt").write_text("a {small} {c}\n")
    assert read_templates(tmp_path / "p.txt") == ("a {small} {c}",)


@pytest.mark.parametrize("header", ["wnid,name\n", ""])
def test_class_names_come_from_lines_or_from_a_table_in_any_order(tmp_path, header):
    names = tuple(f'name, "{i}"' for i in range(1000))
    (tmp_path / "lines.txt").write_text("\n".join(names) + "\n")
    with (tmp_path / "table.csv").open("w", newline="") as stream:
        stream.write(header)
        csv.writer(stream).writerows(reversed([*zip(labels.imagenet_1k().wnids, names, strict=True)]))
    assert read_class_names(tmp_path / "lines.txt") == names
    assert read_class_names(tmp_path / "table.csv") == names


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([f"c{i}" for i in range(999)], "expected 1,000 class names, got 999"),
        (["crane", *(f"c{i}" for i in range(998)), "crane"], "unique names, got 'crane' for the classes 0 and 999"),
        (["a", "", *(f"c{i}" for i in range(998))], "a name for every class, got none for class 1"),
        (["wnid,name", "n01440764,tench"], "expected 1,000 class names, got 1"),
        (["wnid,name", "n99999999,tench"], "each ImageNet wnid once, got 'n99999999,tench'"),
        (["wnid,name", "n01440764,tench", "n01440764,tench"], "each ImageNet wnid once, got 'n01440764,tench'"),
    ],
)
def test_a_file_of_class_names_is_checked(tmp_path, lines, message):
    (tmp_path / "names.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(ModelError, match=message):
        read_class_names(tmp_path / "names.txt")


def test_a_missing_file_of_prompts_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"--prompts .*gone.txt: expected a UTF-8 text file"):
        read_templates(tmp_path / "gone.txt")
