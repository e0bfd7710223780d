"""What a fixed model says about pictures one by one: of ten crops each, or of one view.

The inputs of one picture are never spread over two micro-batches, and a micro-batch never leaves its part, so that the
numbers do not depend on how many processes share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..benchmarks.spec import MODEL, PAPER
from ..data import PictureError, decode
from ..machine import cores
from ..models import ImageClassifier, ModelError, Preprocessing, load_model, transform_for
from ..models.preprocessing import plain_repr
from ..predictions.plan import Plan
from ..runner import RunOptions, World, make_plan, prepare

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

Mode = Literal["paper", "model"]
Kind = Literal["ten", "one"]
Said = Mapping[str, NDArray[np.float32]] | PictureError
_RULES = {"paper": PAPER, "model": MODEL}


@dataclass(frozen=True)
class Viewer:
    """A fixed model and the inputs that it makes of a picture.

    views        picture -> float32 (V, 3, size, size).
    description  everything that changes a pixel, JSON.
    """

    model: ImageClassifier
    plan: Plan
    views: Callable[[Image], torch.Tensor]
    kind: Kind
    description: Mapping[str, Any]
    device: str

    @property
    def facts(self) -> dict[str, Any]:
        """What decides every number that this viewer gives, as JSON."""
        return {"plan": asdict(self.plan), "views": self.kind, "preprocessing": dict(self.description)}

    @property
    def pictures_at_once(self) -> int:
        """Pictures of a micro-batch: one of ten crops on a CPU."""
        return max(1, self.plan.micro_batch // (10 if self.kind == "ten" else 1))


def load_viewer(
    name: str, world: World, *, kind: Kind, mode: Mode, features: bool = False, batch_size: int | None = None
) -> Viewer:
    """The model of that name, ready on this process's device.

    kind  "ten": four corners and centre, and their mirror images; "one": what an evaluation looks at.
    mode  "paper": shorter side 256 bilinear, crops of 224, ImageNet mean and std; "model": the model's own transform,
          for ten crops with its centre crop replaced by ten of the same size.
    Raises ModelError where the model cannot be loaded or its transform has no centre crop to replace.
    """
    if mode not in _RULES:
        raise ValueError(f"expected preprocessing 'paper' or 'model', got {mode!r}: choose one")
    model = load_model(name)
    model = model.with_features() if features else model
    views, description = _views(model.preprocessing, kind, mode, name=name)
    plan = make_plan(model, RunOptions(features=features, micro_batch=batch_size), world.device)
    prepare(model, plan, world)
    return Viewer(model, plan, views, kind, description, world.device)


def _views(
    own: Preprocessing, kind: Kind, mode: Mode, *, name: str
) -> tuple[Callable[[Image], torch.Tensor], Mapping[str, Any]]:
    transform, description = transform_for(_RULES[mode], own)
    if kind == "one":
        return (lambda picture: transform(picture).unsqueeze(0)), description
    ten = ten_crops(transform, name=name)
    return ten, {**description, "crop": "four corners and centre, each also mirrored"}


def ten_crops(transform: Any, *, name: str) -> Callable[[Image], torch.Tensor]:
    """The same transform with ten crops in the place of its centre crop: picture -> float32 (10, 3, size, size).

    The order is top left, top right, bottom left, bottom right, centre, then the same of the mirrored picture.
    ModelError where the transform is no list of steps with exactly one centre crop; `name` is the model's.
    """
    import torch
    from torchvision.transforms import CenterCrop, Compose, TenCrop

    steps = list(transform.transforms) if isinstance(transform, Compose) else []
    places = [i for i, step in enumerate(steps) if isinstance(step, CenterCrop)]
    if len(places) != 1:
        raise ModelError(
            f"{name}: expected a transform with one centre crop that ten can replace, got {plain_repr(transform)}: "
            "give preprocessing 'paper'"
        )
    before, after = Compose(steps[: places[0]]), Compose(steps[places[0] + 1 :])
    ten = TenCrop(steps[places[0]].size)
    return lambda picture: torch.stack([after(crop) for crop in ten(before(picture))])


def look_at(viewer: Viewer, pictures: Iterable[bytes]) -> Iterator[Said]:
    """For each picture in order what the model says, or the PictureError of one that cannot be read.

    What it says is output name -> float32 (V, …), V the views of the picture. Pictures are read as they are needed.
    """
    waiting = iter(pictures)
    with ThreadPoolExecutor(1 if viewer.plan.device == "cpu" else min(8, cores())) as pool:

        def begin() -> list[Future[torch.Tensor | PictureError]]:
            return [pool.submit(_inputs, viewer, data) for data in islice(waiting, viewer.pictures_at_once)]

        ahead = begin()
        while ahead:  # the next pictures are decoded while the model works on these
            ready, ahead = ahead, begin()
            yield from _answers(viewer, [future.result() for future in ready])


def _answers(viewer: Viewer, batch: Sequence[torch.Tensor | PictureError]) -> Iterator[Said]:
    good = [inputs for inputs in batch if not isinstance(inputs, PictureError)]
    outputs = _forward(viewer, good) if good else {}
    place = 0
    for inputs in batch:
        if isinstance(inputs, PictureError):
            yield inputs
            continue
        rows = slice(place, place + len(inputs))
        place += len(inputs)
        yield {name: values[rows] for name, values in outputs.items()}


def _inputs(viewer: Viewer, data: bytes) -> torch.Tensor | PictureError:
    try:
        return viewer.views(decode(data))
    except PictureError as error:
        return error
    except Exception as error:  # a transform may be anybody's code
        return PictureError(f"{type(error).__name__} in the transform: {error}")


def _forward(viewer: Viewer, inputs: Sequence[torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    import torch

    batch = torch.cat(list(inputs)).to(viewer.device)
    if viewer.plan.layout == "channels_last":
        batch = batch.contiguous(memory_format=torch.channels_last)
    try:
        with torch.inference_mode():
            outputs = {name: v.float().cpu().numpy() for name, v in viewer.model.forward(batch).items()}
    except Exception as error:  # out of memory most of all, but a forward is anybody's code
        first = (str(error).splitlines() or [repr(error)])[0]
        raise ModelError(f"{viewer.model.name} failed on a batch of {len(batch)} inputs: {first}") from error
    for name, values in outputs.items():
        if len(values) != len(batch) or not np.isfinite(values).all():
            raise ModelError(
                f"{viewer.model.name}: expected finite {name}, one row for each of {len(batch)} inputs, got others: "
                "check the checkpoint"
            )
    return outputs


def class_logits(viewer: Viewer, said: Mapping[str, NDArray[np.float32]], classes: Sequence[int]) -> NDArray[Any]:
    """Logits of these ImageNet-1k classes: (V, C) from what `look_at` gave of one picture.

    ModelError where the model has no output for one of them.
    """
    columns = viewer.model.label_space.imagenet_1k_columns()[list(classes)]
    if (columns < 0).any():
        lacking = [index for index, column in zip(classes, columns, strict=True) if column < 0]
        raise ModelError(
            f"{viewer.model.name}: expected an output for each class, got none for ImageNet-1k class "
            f"{', '.join(map(str, lacking[:5]))}: give a list of classes without it, or another model"
        )
    if "logits" in said:
        return np.asarray(said["logits"][:, columns])
    head = viewer.model.heads["imagenet-1k"]
    return np.asarray(said["embeddings"] @ head.weight[columns].T + head.bias[columns])
