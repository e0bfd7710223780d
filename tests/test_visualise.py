"""What a component sees: gradients, the ascent and its limits, the page and the contact sheet, the command."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_runs import picture, write

from hf_robust.cli import main
from hf_robust.labels import imagenet_1k
from hf_robust.models import Head, ImageClassifier, ModelError, Preprocessing, weights_hash
from hf_robust.spurious.alpha_files import StoredPCA, read_class
from hf_robust.spurious.neural_pca import fit
from hf_robust.spurious.sheets import Component, Example, Sheet, contact_sheet, most_activating, most_confident, render

torch = pytest.importorskip("torch")
from hf_robust.spurious.visualise import Visualisation, alpha_of, checkpoints, maximise, visualise  # noqa: E402

SIDE, CLASS = 16, 7
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def classifier(*, dtype: Any = None, grad: bool = True) -> ImageClassifier:
    """A small smooth network with random weights and 1,000 outputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=2), torch.nn.SiLU(), torch.nn.Flatten())
        mix, linear = torch.nn.Sequential(torch.nn.Linear(288, 12), torch.nn.SiLU()), torch.nn.Linear(12, 1000)
    module = torch.nn.Sequential(body, mix, linear).to(dtype or torch.float32).eval().requires_grad_(False)

    def forward(batch: Any) -> Any:
        with torch.set_grad_enabled(grad):
            return {"logits": module(batch)}

    def transform(image: Image.Image) -> Any:
        pixels = np.asarray(image.resize((SIDE, SIDE)), np.float32).transpose(2, 0, 1) / 255
        return (torch.from_numpy(pixels) - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)

    weight, bias = (t.detach().float().numpy() for t in (linear.weight, linear.bias))
    heads = {"classifier": Head(weight, bias, imagenet_1k())}
    facts = Preprocessing(transform, SIDE, MEAN, STD, {})
    return ImageClassifier("toy", module, facts, imagenet_1k(), forward, heads, linear=linear)


def body_features(model: ImageClassifier, pictures: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Features by hand: normalise in numpy, then the layers before the head."""
    batch = (pictures - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    module: Any = model.module
    with torch.no_grad():
        return np.asarray(module[:2](torch.as_tensor(batch).to(module[2].weight.dtype)).double().numpy())


def stored_of(model: ImageClassifier) -> StoredPCA:
    pictures = np.random.default_rng(1).uniform(size=(20, 3, SIDE, SIDE))
    features = body_features(model, pictures)
    pca = fit(features, model.heads["classifier"].weight[CLASS], keep=4)
    ids = tuple(f"picture-{i:02d}" for i in range(20))
    facts = {"class": CLASS, "wnid": imagenet_1k().wnids[CLASS], "model": "toy", "weights": weights_hash(model.module)}
    return StoredPCA(pca, pca.alphas(features), ids, facts)


def test_alpha_of_a_picture_is_the_alpha_of_its_features() -> None:
    model = classifier(dtype=torch.float64)
    pca = stored_of(model).pca
    pictures = np.random.default_rng(2).uniform(size=(3, 3, SIDE, SIDE))
    found = alpha_of(model, pca, [2, 0, 2])(torch.from_numpy(pictures)).numpy()
    expected = pca.alphas(body_features(model, pictures))
    assert found == pytest.approx([expected[0, 2], expected[1, 0], expected[2, 2]], abs=1e-9)


def test_the_gradient_of_alpha_equals_finite_differences() -> None:
    model = classifier(dtype=torch.float64)
    objective = alpha_of(model, stored_of(model).pca, [1])
    at = torch.from_numpy(np.random.default_rng(3).uniform(0.2, 0.8, size=(1, 3, SIDE, SIDE))).requires_grad_(True)
    (gradient,) = torch.autograd.grad(objective(at).sum(), at)
    assert float(gradient.abs().max()) > 1e-4
    for pixel in [(0, 0, 0, 0), (0, 1, 7, 9), (0, 2, 12, 3), (0, 1, 5, 5)]:
        step = torch.zeros_like(at).detach()
        step[pixel] = 1e-5
        with torch.no_grad():
            slope = float(objective(at + step) - objective(at - step)) / 2e-5
        assert float(gradient[pixel]) == pytest.approx(slope, abs=1e-8)


def test_on_a_plane_the_ascent_ends_where_the_ball_is_furthest_along_it() -> None:
    slope = torch.tensor([[3.0, 4.0], [-5.0, 12.0]], dtype=torch.float64)
    start = torch.full((2, 2), 0.5, dtype=torch.float64)
    found, value = maximise(lambda x: (x * slope).sum(dim=1), start, radius=0.25, steps=20)
    # 0.5 * (3 + 4) + 0.25 * 5, and 0.5 * (12 - 5) + 0.25 * 13
    assert value.tolist() == pytest.approx([3.5 + 1.25, 3.5 + 3.25], abs=1e-12)
    assert found.numpy() == pytest.approx(0.5 + 0.25 * np.array([[3 / 5, 4 / 5], [-5 / 13, 12 / 13]]), abs=1e-12)


def test_the_ascent_stays_in_the_ball_and_in_the_range_of_pixels() -> None:
    model = classifier()
    objective, seen = alpha_of(model, stored_of(model).pca, [0, 1]), []

    def watched(pictures: Any) -> Any:
        seen.append(pictures.detach().clone())
        return objective(pictures)

    for radius in (1.0, 50.0):  # the second reaches far beyond the range of pixels
        seen.clear()
        maximise(watched, torch.full((2, 3, SIDE, SIDE), 0.5), radius=radius, steps=20)
        iterates = torch.stack(seen)
        assert len(iterates) == 1 + 20
        assert float((iterates - 0.5).flatten(2).norm(dim=2).max()) <= radius * (1 + 1e-5)
        assert (float(iterates.min()) >= 0, float(iterates.max()) <= 1) == (True, True)


def plain_apgd(function: Any, start: np.ndarray[Any, Any], radius: float, steps: int) -> np.ndarray[Any, Any]:
    """Algorithm 1 of arXiv 2003.01690 for one picture, as the paper writes it."""

    def project(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        apart = x - start
        length = np.sqrt((apart**2).sum())
        return np.clip(start + apart * min(1.0, radius / max(length, 1e-12)), 0, 1)

    def ahead(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        gradient = function(x)[1]
        return project(x + eta * gradient / np.sqrt((gradient**2).sum()))

    p = [0.0, 0.22]
    while p[-1] < 1:
        p.append(p[-1] + max(p[-1] - p[-2] - 0.03, 0.06))
    w = [int(np.ceil(round(q * steps, 9))) for q in p]
    eta, x_old = 2 * radius, start
    x = ahead(x_old)
    values = [function(x_old)[0], function(x)[0]]
    best = x if values[1] > values[0] else x_old
    rises, last, eta_then, best_then = int(values[1] > values[0]), 0, eta, values[0]
    for k in range(1, steps + 1):
        if k > 1:
            x_new = project(x + 0.75 * (ahead(x) - x) + 0.25 * (x - x_old))
            rises += function(x_new)[0] > function(x)[0]
            x_old, x = x, x_new
            best = x if function(x)[0] > function(best)[0] else best
        if k in w:
            was = eta
            if rises < 0.75 * (k - last) or (eta == eta_then and function(best)[0] == best_then):
                eta, x = eta / 2, best
            rises, last, eta_then, best_then = 0, k, was, function(best)[0]
            eta_then = eta if eta == was else None  # halved here: the second condition waits for the next check
    return np.asarray(best)


def test_the_ascent_equals_the_algorithm_of_the_paper_for_each_row() -> None:
    rng = np.random.default_rng(4)
    matrix, tilt = rng.normal(size=(3, 6, 6)), rng.normal(size=(3, 6))

    def objective(x: Any) -> Any:
        turned = torch.einsum("bij,bj->bi", torch.from_numpy(matrix), x)
        return torch.sin(3 * turned).sum(dim=1) + (x * torch.from_numpy(tilt)).sum(dim=1)

    start = np.full((3, 6), 0.5)
    found, _ = maximise(objective, torch.from_numpy(start), radius=0.9, steps=60)
    for row in range(3):

        def function(x: np.ndarray[Any, Any], row: int = row) -> tuple[float, np.ndarray[Any, Any]]:
            turned = matrix[row] @ x
            return np.sin(3 * turned).sum() + tilt[row] @ x, matrix[row].T @ (3 * np.cos(3 * turned)) + tilt[row]

        assert found[row].numpy() == pytest.approx(plain_apgd(function, start[row], 0.9, 60), abs=1e-7)


def test_checks_come_at_22_percent_and_then_closer_together() -> None:
    assert checkpoints(100) == (22, 22 + 19, 41 + 16, 57 + 13, 70 + 10, 80 + 7, 87 + 6, 93 + 6)
    assert all(1 <= k <= 3 for k in checkpoints(3))


def test_a_visualisation_raises_alpha_and_is_the_same_again() -> None:
    model = classifier()
    stored = stored_of(model)
    first = visualise(model, stored, [0, 1, 2], radius=3, steps=20)
    again = visualise(model, stored, [0, 1, 2], radius=3, steps=20)
    assert [one.alpha > one.grey + 0.01 for one in first] == [True, True, True]
    assert [one.pixels.tobytes() for one in first] == [one.pixels.tobytes() for one in again]
    assert [(o.alpha, o.probability) for o in first] == [(o.alpha, o.probability) for o in again]


def test_alpha_and_probability_of_a_visualisation_are_those_of_its_picture() -> None:
    model = classifier()
    stored = stored_of(model)
    (one,) = visualise(model, stored, [1], radius=3, steps=10)
    pixels = one.pixels.transpose(2, 0, 1)[None] / 255
    features = body_features(model, pixels)
    head = model.heads["classifier"]
    odds = np.exp(features @ head.weight.T + head.bias)[0]
    assert one.alpha == pytest.approx(float(stored.pca.alphas(features)[0, 1]), abs=0.02)  # its pixels are rounded
    assert one.probability == pytest.approx(odds[CLASS] / odds.sum(), rel=0.02)


def test_components_of_another_model_are_refused() -> None:
    model = classifier()
    stored = stored_of(model)
    with torch.no_grad():
        next(model.module.parameters()).add_(1)
    with pytest.raises(ModelError, match="expected the model that the components belong to, toy with weights"):
        visualise(model, stored, [0])


def test_another_head_over_the_same_weights_is_refused() -> None:
    model = classifier()
    stored = stored_of(model)
    other = replace(stored, pca=replace(stored.pca, weight=stored.pca.weight + 0.01))
    with pytest.raises(ModelError, match="expected the head of toy that the components were fitted with, got another"):
        visualise(model, other, [0])


def test_a_model_without_gradients_is_refused() -> None:
    model = classifier(grad=False)
    with pytest.raises(ModelError, match="got one without them"):
        visualise(model, stored_of(model), [0])


def test_a_component_that_is_not_stored_is_refused() -> None:
    model = classifier()
    with pytest.raises(ValueError, match="expected components from 0 to 3, got 4: fit again"):
        visualise(model, stored_of(model), [0, 4])  # the fifth row is the remainder


def test_a_ball_without_radius_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a radius above 0 and at least 1 step, got 0 and 20"):
        maximise(lambda x: x.sum(dim=1), torch.full((1, 2), 0.5), radius=0, steps=20)


def test_numbers_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ModelError, match="expected finite alphas and gradients"):
        maximise(lambda x: x.sum(dim=1) / 0, torch.full((1, 2), 0.5), radius=1, steps=20)


def seen(component: int, probability: float) -> Visualisation:
    pixels = np.full((SIDE, SIDE, 3), 10 * component, np.uint8)
    return Visualisation(component, pixels, 2.0, 0.5, probability, 30.0, 200)


def test_the_ten_surest_are_shown_surest_first() -> None:
    every = [seen(c, [0.5, 0.9, 0.5, 0.1][c % 4]) for c in range(16)]
    assert most_confident(every) == (1, 5, 9, 13, 0, 2, 4, 6, 8, 10)


def test_the_most_activating_pictures_come_largest_first_and_only_above_0() -> None:
    stored = stored_of(classifier())
    alphas = stored.alphas.copy()
    alphas[:, 0] = -1
    alphas[[3, 8, 5], 0] = [2, 7, 2]
    assert most_activating(replace(stored, alphas=alphas), 0) == (
        ("picture-08", 7.0), ("picture-03", 2.0), ("picture-05", 2.0),
    )  # fmt: skip


def hostile() -> Sheet:
    name = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    examples = (Example(name, 1.5, Image.new("RGB", (40, 20), "red")), Example("gone", 0.5, None))
    return Sheet(name, name, 5, 3, (Component(0, 0.25, examples, seen(0, 0.75)),))


def test_hostile_names_are_escaped_on_the_page() -> None:
    pytest.importorskip("jinja2")
    page = render(hostile())
    assert page.count("&lt;script&gt;") == 5  # title, heading, model, and a picture's alt and id
    assert ("<script" in page, "<img src=x" in page) == (False, False)


def test_the_page_shows_the_figures_and_loads_nothing() -> None:
    pytest.importorskip("jinja2")
    page = render(hostile())
    for text in (
        "25.0 % of the variance",
        "probability of the class 0.750",
        "200 steps",
        "distance of 30",
        "1 picture is not",
    ):
        assert text in page
    assert ("http:" in page, "https:" in page, "<script" in page) == (False, False, False)


def test_the_contact_sheet_has_the_same_bytes_again_and_shows_the_picture() -> None:
    one, two = contact_sheet(hostile()), contact_sheet(hostile())
    assert one == two
    colours = {colour for _, colour in Image.open(io.BytesIO(one)).convert("RGB").getcolors(1 << 20) or ()}
    assert {(255, 0, 0), (0, 0, 0)} <= colours


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training pictures of two classes, a run of a random network over them, and its components."""
    pytest.importorskip("timm")
    folder = tmp_path_factory.mktemp("show")
    for k, wnid in enumerate(imagenet_1k().wnids[7:9]):
        for i in range(6):
            write(folder / "train" / wnid / f"{wnid}_{i}.png", picture(100 * k + i, size=(24, 24)))
    here = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    (folder / "mine.py").write_text(f"{here}from test_visualise import classifier\ndef build(): return classifier()\n")
    arguments = ["--model", f"{folder}/mine.py:build", "--train", folder / "train", "--runs", folder / "runs"]
    assert main([str(a) for a in ("neural-pca", "fit", *arguments, "--out", folder / "pca")]) == 0
    return folder


def show(world: Path, out: Path, *more: object) -> int:
    shown = ["neural-pca", "show", "--components", world / "pca", "--run", world / "runs", "--out", out, *more]
    return main([str(word) for word in shown])


def test_the_command_writes_a_page_and_a_sheet_for_each_class(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", f"{world}/mine.py:build", "--steps", 5, "--radius", 3, "--first", 2]
    code = show(world, tmp_path, "--imagenet-train", world / "train", *model)
    assert code == 0
    pages = ["class-0007.html", "class-0007.png", "class-0008.html", "class-0008.png", "index.html"]
    assert set(pages) <= {p.name for p in tmp_path.iterdir()}
    assert 'href="class-0008.html"' in (tmp_path / "index.html").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert ("2 components in" in said, "not on this machine" in said) == (True, False)
    page = (tmp_path / "class-0007.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg") == 2 + sum(
        len(most_activating(read_class(world / "pca", 7), component)) for component in (0, 1)
    )


def test_without_model_and_pictures_the_page_says_what_is_missing(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(world, tmp_path, "--classes", 7) == 0
    page = (tmp_path / "class-0007.html").read_text(encoding="utf-8")
    assert ("no model was run" in page, "are not on this machine" in page) == (True, True)
    assert "give --imagenet-train" in capsys.readouterr().out


def test_other_bytes_under_the_same_name_are_not_shown(world: Path, tmp_path: Path) -> None:
    for path in (world / "train").rglob("*.png"):
        write(tmp_path / "other" / path.parent.name / path.name, picture(9_999))
    assert show(world, tmp_path / "out", "--classes", 7, "--imagenet-train", tmp_path / "other") == 0
    assert "data:image" not in (tmp_path / "out" / "class-0007.html").read_text(encoding="utf-8")


def test_variance_shares_of_all_components_add_up_to_one(world: Path, tmp_path: Path) -> None:
    from hf_robust.spurious.sheets import sheet_of
    from hf_robust.spurious.training import open_training

    stored = read_class(world / "pca", 7)
    every = range(len(stored.pca.components) - stored.pca.remainder)
    sheet = sheet_of(open_training(world / "runs"), stored, every, lambda *_: (), lambda *_: None)
    assert len(every) == 6 - 1  # all but one of the pictures
    assert sum(component.share for component in sheet.components) == pytest.approx(1, abs=1e-6)


def test_components_of_another_run_are_refused(world: Path) -> None:
    from hf_robust.spurious.sheets import sheet_of
    from hf_robust.spurious.training import open_training

    stored = read_class(world / "pca", 7)
    other = replace(stored, facts={**stored.facts, "weights": "0" * 64})
    with pytest.raises(ValueError, match=r"expected the run that the components of class 7 were fitted to, .* weights"):
        sheet_of(open_training(world / "runs"), other, [0], lambda *_: (), lambda *_: None)


def test_a_folder_without_components_is_an_error(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = ["neural-pca", "show", "--components", tmp_path, "--run", world / "runs", "--out", tmp_path / "out"]
    assert main([str(word) for word in shown]) == 1
    assert "expected class-*.safetensors" in capsys.readouterr().err


def test_a_checkpoint_without_a_model_is_an_error(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(world, tmp_path, "--checkpoint", tmp_path / "x.pth") == 1
    assert "expected --model beside --checkpoint" in capsys.readouterr().err
