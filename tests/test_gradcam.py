"""GradCAM of alpha: the layer it looks at, equality with a plain computation, where a planted patch is, the command."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_docs import DOCS, blocks, check_block
from tiny_runs import picture, write

from hf_robust.cli import main
from hf_robust.labels import imagenet_1k
from hf_robust.models import Head, ImageClassifier, ModelError, Preprocessing, load_model, weights_hash
from hf_robust.spurious.alpha_files import StoredPCA
from hf_robust.spurious.neural_pca import fit

torch = pytest.importorskip("torch")
from hf_robust.spurious.gradcam import as_seen, feature_map, heat_maps, overlays, require_package  # noqa: E402
from hf_robust.spurious.visualise import alpha_of, features_of  # noqa: E402

SIDE, CLASS = 32, 7
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def transform(image: Image.Image) -> Any:
    pixels = np.asarray(image.resize((SIDE, SIDE)), np.float32).transpose(2, 0, 1) / 255
    return (torch.from_numpy(pixels) - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


class Pooled(torch.nn.Module):  # type: ignore[misc]
    """The mean over positions as a function, not a layer of its own."""

    def forward(self, maps: Any) -> Any:
        return maps.mean(dim=(2, 3))


def convolutional(*, grad: bool = True) -> ImageClassifier:
    """Two convolutions that share one activation, a mean over positions, a linear head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        act = torch.nn.SiLU()
        layers = [torch.nn.Conv2d(3, 8, 5, stride=2), act, torch.nn.Conv2d(8, 12, 3), act, Pooled()]
        module = torch.nn.Sequential(*layers, torch.nn.Linear(12, 1000)).eval().requires_grad_(False)

    def forward(batch: Any) -> Any:
        with torch.set_grad_enabled(grad):
            return {"logits": module(batch)}

    weight, bias = (t.detach().numpy() for t in (module[-1].weight, module[-1].bias))
    heads = {"classifier": Head(weight, bias, imagenet_1k())}
    facts = Preprocessing(transform, SIDE, MEAN, STD, {})
    return ImageClassifier("toy", module, facts, imagenet_1k(), forward, heads, linear=module[-1])


def stored_of(model: ImageClassifier, *, keep: int = 4) -> StoredPCA:
    side = model.preprocessing.size
    pictures = torch.rand(10, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = features_of(model)(pictures).double().numpy()
    pca = fit(features, model.heads["classifier"].weight[CLASS], keep=keep)
    facts = {"class": CLASS, "wnid": imagenet_1k().wnids[CLASS], "model": "toy", "weights": weights_hash(model.module)}
    return StoredPCA(pca, pca.alphas(features), tuple(map(str, range(10))), facts)


def photos(n: int) -> list[Image.Image]:
    rng = np.random.default_rng(2)
    return [Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)) for _ in range(n)]


def layer_of(model: ImageClassifier) -> Any:
    side = model.preprocessing.size
    objective = alpha_of(model, stored_of(model).pca, [0])

    class Alphas(torch.nn.Module):  # type: ignore[misc]
        def forward(self, pictures: Any) -> Any:
            return objective(pictures)

    return feature_map(model, Alphas(), torch.rand(1, 3, side, side))


# the layer


def test_the_layer_is_the_last_that_gives_a_grid_and_runs_once() -> None:
    model = convolutional()
    module: Any = model.module
    assert layer_of(model).layer is module[2]  # the activation behind it runs twice


@pytest.mark.parametrize(
    ("name", "channels_last"), [("test_resnet", False), ("test_convnext", False), ("test_mambaout", True)]
)
def test_maps_of_published_architectures_are_found_with_their_order_of_axes(name: str, channels_last: bool) -> None:
    pytest.importorskip("timm")
    model = load_model(f"timm-random/{name}")
    found = layer_of(model)
    assert found.channels_last == channels_last
    shapes: list[tuple[int, ...]] = []
    hook = found.layer.register_forward_hook(lambda _, __, out: shapes.append(found.channels_first(out).shape))
    side = model.preprocessing.size
    model.forward(torch.rand(2, 3, side, side))
    hook.remove()
    ((rows, channels, height, width),) = shapes
    assert (rows, height) == (2, width)
    assert channels > height > 1


def test_a_vision_transformer_is_refused() -> None:
    pytest.importorskip("timm")
    with pytest.raises(ModelError, match=r"expected a last feature map that is a grid of positions, got one of shape"):
        layer_of(load_model("timm-random/test_vit"))


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(ModelError, match="got some without: its forward must not run under"):
        layer_of(convolutional(grad=False))


# without the package


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_grad_cam", None)
    with pytest.raises(ImportError, match=r'needs the package grad-cam: pip install "hf-robust\[gradcam\]"'):
        require_package()


def test_no_pictures_need_no_package() -> None:
    model = convolutional()
    assert overlays(model, stored_of(model), 0, []) == []


def test_gradcam_without_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["neural-pca", "show", "--components", tmp_path, "--run", tmp_path, "--out", tmp_path / "out", "--gradcam"]
    assert main([str(word) for word in told]) == 1
    assert "expected --model beside --gradcam, got none" in capsys.readouterr().err


# with the package


@pytest.fixture
def _package() -> None:
    pytest.importorskip("pytorch_grad_cam", reason="needs the extra gradcam")


def plain_gradcam(model: ImageClassifier, pca: Any, component: int, pictures: Any) -> Any:
    """Selvaraju et al., equations 1 and 2, with torch alone; scaled to [0, 1] picture by picture."""
    module: Any = model.module
    batch = (pictures - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    maps = module[2](module[1](module[0](batch))).requires_grad_(True)
    features = module[4](module[3](maps))
    psi = features * torch.from_numpy(pca.weight).float() - torch.from_numpy(pca.mean).float()
    direction = torch.from_numpy(pca.components[component]).float()
    alpha = (psi @ direction) * direction.sum()
    (slope,) = torch.autograd.grad(alpha.sum(), maps)
    heat = torch.relu((maps * slope.mean(dim=(2, 3), keepdim=True)).sum(dim=1)).detach()
    low, high = heat.amin(dim=(1, 2), keepdim=True), heat.amax(dim=(1, 2), keepdim=True)
    scaled = (heat - low) / (high - low)
    wide = torch.nn.functional.interpolate(scaled[:, None], size=(SIDE, SIDE), mode="bilinear")[:, 0].numpy()
    wide -= wide.min(axis=(1, 2), keepdims=True)
    return wide / wide.max(axis=(1, 2), keepdims=True)


@pytest.mark.usefixtures("_package")
def test_heat_equals_a_plain_computation_for_every_picture() -> None:
    model = convolutional()
    stored = stored_of(model)
    pixels, heat = heat_maps(model, stored, 1, photos(3))
    seen = torch.stack([as_seen(model, photo) for photo in photos(3)])
    assert np.abs(pixels - seen.permute(0, 2, 3, 1).numpy() * 255).max() <= 0.5 + 1e-3
    expected = plain_gradcam(model, stored.pca, 1, seen)
    assert expected.std() > 0.1
    assert heat == pytest.approx(expected, abs=1e-4)


@pytest.mark.usefixtures("_package")
def test_a_picture_alone_has_the_heat_that_it_has_among_others() -> None:
    model = convolutional()
    stored = stored_of(model)
    together = heat_maps(model, stored, 0, photos(3))[1]
    for one, photo in zip(together, photos(3), strict=True):
        assert heat_maps(model, stored, 0, [photo])[1][0] == pytest.approx(one, abs=1e-4)


@pytest.mark.usefixtures("_package")
def test_the_model_is_left_as_it_was() -> None:
    model = convolutional()
    stored, before = stored_of(model), weights_hash(model.module)
    model.module.requires_grad_(True)
    heat_maps(model, stored, 0, photos(1))
    assert weights_hash(model.module) == before
    assert [p.grad for p in model.module.parameters()] == [None] * len(list(model.module.parameters()))
    assert [len(m._forward_hooks) for m in model.module.modules()] == [0] * len(list(model.module.modules()))


@pytest.mark.usefixtures("_package")
def test_heat_lies_on_the_patch_that_the_logit_is_made_of() -> None:
    model = convolutional()
    module: Any = model.module
    with torch.no_grad():  # the first channel sees red, the second layer passes it on, the class reads it
        module[0].weight.zero_()[0, 0] = 1.0
        module[2].weight.zero_()[0, 0] = 1.0
        module[0].bias.zero_(), module[2].bias.zero_()
        module[5].weight.zero_()[CLASS, 0] = 1.0
    head = Head(module[5].weight.numpy(), module[5].bias.numpy(), imagenet_1k())
    model.heads = {"classifier": head}
    grey = np.full((SIDE, SIDE, 3), (0, 128, 128), np.uint8)
    grey[4:12, 20:28] = (255, 0, 0)
    _, (heat,) = heat_maps(model, stored_of(model, keep=1), 0, [Image.fromarray(grey)])
    inside = np.zeros((SIDE, SIDE), bool)
    inside[2:14, 18:30] = True
    assert inside[np.unravel_index(heat.argmax(), heat.shape)]
    assert heat[inside].mean() > 4 * heat[~inside].mean()


@pytest.mark.usefixtures("_package")
def test_components_of_another_model_are_refused() -> None:
    model = convolutional()
    stored = stored_of(model)
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    with pytest.raises(ModelError, match="expected the model that the components belong to, toy with weights"):
        heat_maps(model, stored, 0, photos(1))


@pytest.mark.usefixtures("_package")
def test_the_command_lays_heat_over_the_training_pictures(tmp_path: Path) -> None:
    for k, wnid in enumerate(imagenet_1k().wnids[7:9]):
        for i in range(4):
            write(tmp_path / "train" / wnid / f"{wnid}_{i}.png", picture(100 * k + i, size=(24, 24)))
    model, train = "timm-random/test_resnet", tmp_path / "train"
    told = ["--model", model, "--train", train, "--runs", tmp_path / "runs", "--out", tmp_path / "pca"]
    assert main([str(word) for word in ("neural-pca", "fit", *told)]) == 0
    pages = []
    for out, more in (("with", ["--gradcam"]), ("without", [])):
        told = ["--components", tmp_path / "pca", "--run", tmp_path / "runs", "--out", tmp_path / out]
        told += ["--imagenet-train", train, "--model", model, "--steps", 0, "--first", 2]
        assert main([str(word) for word in ("neural-pca", "show", *told, *more)]) == 0
        pages.append((tmp_path / out / "class-0007.html").read_text(encoding="utf-8"))
    located, plain = pages
    assert plain.count("data:image/jpeg") > 0
    assert located.count("data:image/jpeg") == 2 * plain.count("data:image/jpeg")
    assert ("with GradCAM: yellow where" in located, "GradCAM" in plain) == (True, False)
    heights = []
    for out in ("with", "without"):
        with Image.open(tmp_path / out / "class-0007.png") as sheet:
            heights.append(sheet.height)
    assert heights[0] - heights[1] == 2 * (160 + 8)  # one more row of pictures a component


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_package")
def test_the_block_of_the_page_runs_after_the_one_that_fits_components(tmp_path: Path) -> None:
    page = list(blocks(DOCS / "spurious.md"))
    own = next(block for block in page if block.options.get("test") == "gradcam")
    install, _, rest = own.body.partition("\n")
    assert install == 'pip install "hf-robust[gradcam]"'
    demo = replace(own, language="bash", body="hf-robust demo --out demo-output")
    for block in (demo, page[0], replace(own, language="bash", body=rest)):
        check_block(block, tmp_path, tmp_path)
    found = sorted((tmp_path / "pages").glob("*.html"))
    assert len(found) == 3 + 1  # the classes that were fitted, and the page that leads to them
    assert sum("with GradCAM: yellow where" in path.read_text(encoding="utf-8") for path in found) == 3
