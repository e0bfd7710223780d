"""What makes a run fast changes nothing else: folding, batches of bytes, the probe's decision, smaller batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tiny_runs import Sets, contents, make_sets, run, write
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from hf_robust.models import ModelError, load_model
from hf_robust.models.classifier import classifier
from hf_robust.models.folding import fold_batch_norm
from hf_robust.models.from_timm import timm_preprocessing
from hf_robust.models.preprocessing import measured
from hf_robust.predictions.plan import DamagedError
from hf_robust.predictions.read import read_source
from hf_robust.runner import RunOptions, make_plan
from hf_robust.runner.pixels import pixels_of
from hf_robust.runner.probe import Execution, _fitting, _probed, is_out_of_memory, settle_execution
from hf_robust.runner.world import World, WorldError, join_world

HUNGRY = '''

class Hungry(Tiny):
    """Runs out of memory above two pictures."""

    def forward(self, batch):
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory, as a GPU says it")
        return super().forward(batch)


class Starved(Tiny):
    def forward(self, batch):
        if len(batch) > 2 and Path(__file__).with_name("full").exists():
            raise torch.OutOfMemoryError("CUDA out of memory, as a GPU says it")
        return super().forward(batch)


def hungry(): return Hungry(), TRANSFORM
def starved(): return Starved(), TRANSFORM
'''


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    made = make_sets(tmp_path_factory.mktemp("sets"), o=20)
    made.factories.write_text(made.factories.read_text() + HUNGRY)
    return made


class Norms(torch.nn.Module):
    """Two convolutions with batch normalisation; `forward` decides what reaches what."""

    def __init__(self, way: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.one, self.two = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3, bias=False)
            self.norm_one, self.norm_two = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4, affine=False)
            self.head = torch.nn.Linear(4, 1000)
            for norm in (self.norm_one, self.norm_two):
                norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
                norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
        self.way = way

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(self.way(self, batch).mean((2, 3)))


def straight(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.norm_two(m.two(m.norm_one(m.one(x)).relu()))


def used_twice(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.one(x)
    return m.norm_two(m.two(m.norm_one(y) + y))


def shared_norm(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.norm_one(m.two(m.norm_one(m.one(x))))


def looks_inside(m: Any, x: torch.Tensor) -> torch.Tensor:
    return m.norm_one(m.one(x)) + m.norm_one.weight[:, None, None]


def of(way: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
    transform = Compose([Resize((16, 16)), ToTensor(), Normalize((0.5,) * 3, (0.25,) * 3)])
    return classifier("norms", Norms(way), measured(transform, {}, name="norms"))


def logits(model: Any, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.forward(batch)["logits"]


def norms_in(module: torch.nn.Module) -> int:
    return sum(isinstance(layer, torch.nn.BatchNorm2d) for layer in module.modules())


# --- folding


def test_folding_is_weight_and_bias_times_the_norm_s_scale() -> None:
    model = of(straight)
    norm, weight, bias = model.module.norm_one, model.module.one.weight.clone(), model.module.one.bias.clone()
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    assert fold_batch_norm(model)
    torch.testing.assert_close(model.module.one.weight, weight * scale[:, None, None, None])
    torch.testing.assert_close(model.module.one.bias, (bias - norm.running_mean) * scale + norm.bias)
    assert norms_in(model.module) == 0


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "test_byobnet"])
def test_a_folded_model_gives_the_logits_of_the_model(name: str) -> None:
    model = load_model(f"timm-random/{name}")
    batch = torch.randn(3, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    before, norms = logits(model, batch), norms_in(model.module)
    assert fold_batch_norm(model)
    assert norms_in(model.module) < norms
    torch.testing.assert_close(logits(model, batch), before, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", [used_twice, shared_norm, looks_inside])
def test_a_model_that_folding_would_change_stays_as_it_is(way: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    model = of(way)
    batch = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    before, state = logits(model, batch), {k: v.clone() for k, v in model.module.state_dict().items()}
    assert not fold_batch_norm(model)
    assert torch.equal(logits(model, batch), before)
    assert all(torch.equal(v, state[k]) for k, v in model.module.state_dict().items())


def test_a_norm_in_training_mode_is_not_folded() -> None:
    model = of(straight)
    model.module.norm_one.train()
    model.module.norm_two.train()
    assert not fold_batch_norm(model)


def test_a_model_without_batch_norm_is_not_folded() -> None:
    assert not fold_batch_norm(load_model("timm-random/test_vit"))


def test_folded_features_and_head_make_the_folded_logits(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "timm-random/test_efficientnet", "imagenet-a", features=True)
    assert json.loads((made / "plan.json").read_text())["batch_norm_folded"] is True
    read = read_source(made / "imagenet-a.model", extra=("features",)).outputs
    head = load_model("timm-random/test_efficientnet").heads["classifier"]
    np.testing.assert_allclose(read.extra["features"] @ head.weight.T + head.bias, read.logits, atol=1e-6)


def test_another_dtype_is_run_unfolded(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "timm-random/test_efficientnet", "imagenet-a", dtype="bfloat16")
    assert json.loads((made / "plan.json").read_text())["batch_norm_folded"] is False


# --- batches of bytes


@pytest.mark.parametrize("layout", ["channels_last", "contiguous"])
@pytest.mark.parametrize("model", ["test_vit", "test_efficientnet"])
def test_a_batch_has_the_bits_of_the_model_s_own_transform(
    picture: Callable[..., Image.Image], model: str, layout: str
) -> None:
    transform = timm_preprocessing(timm.create_model(model), name=model).transform
    pixels = pixels_of(transform)
    assert pixels.constants is not None
    pictures = [picture(seed, width=200 + seed, height=170) for seed in range(3)]
    batch = pixels.batch([pixels.of_picture(p) for p in pictures], "cpu", layout)
    assert torch.equal(batch, torch.stack([transform(p) for p in pictures]))
    wanted = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    assert batch.is_contiguous(memory_format=wanted)


@pytest.mark.parametrize(
    "transform",
    [
        Compose([Resize((8, 8)), ToTensor()]),
        Compose([Resize((8, 8)), ToTensor(), Normalize((0.5,), (0.25,))]),
        Compose([ToTensor(), Normalize((0.5,) * 3, (0.25,) * 3), Resize((8, 8))]),
        lambda image: ToTensor()(image.resize((8, 8))),
    ],
    ids=["not normalised", "one channel's constants", "resized last", "a function"],
)
def test_another_transform_is_run_as_it_is(picture: Callable[..., Image.Image], transform: Any) -> None:
    pixels = pixels_of(transform)
    assert pixels.constants is None
    assert torch.equal(pixels.batch([pixels.of_picture(picture(1))], "cpu", "contiguous")[0], transform(picture(1)))


# --- what auto decides


def decided(runs: Path) -> list[Path]:
    return sorted((runs / "auto").iterdir())


def test_a_decision_is_obeyed_by_every_later_command(sets: Sets, tmp_path: Path) -> None:
    first = run(sets, tmp_path, "plain", "imagenet-a")
    (record,) = decided(tmp_path)
    record.write_text(json.dumps({"micro_batch": 3, "layout": "contiguous", "batch_norm_folded": False}))
    other = run(sets, tmp_path, "plain", "imagenet-a")
    assert json.loads((other / "plan.json").read_text())["micro_batch"] == 3
    assert other != first
    assert run(sets, tmp_path, "plain", "imagenet-a") == other
    assert decided(tmp_path) == [record]


def test_two_processes_obey_the_one_that_decided_first(sets: Sets, tmp_path: Path) -> None:
    model = load_model(sets.model("plain"))
    plan = make_plan(model, RunOptions(), "cpu")
    asked = {"auto_batch": True, "device": "cpu", "pictures": 0}
    first = settle_execution(plan, model, tmp_path, **asked)
    from hf_robust.runner import probe

    (record,) = decided(tmp_path)
    probe._write_first(record, {"micro_batch": 99, "layout": "contiguous", "batch_norm_folded": False})
    assert settle_execution(plan, model, tmp_path, **asked) == first
    assert decided(tmp_path) == [record]


def test_an_asked_batch_size_is_kept_and_a_decision_of_its_own(sets: Sets, tmp_path: Path) -> None:
    made = [run(sets, tmp_path, "plain", "imagenet-a", micro_batch=size) for size in (5, None)]
    assert [json.loads((m / "plan.json").read_text())["micro_batch"] for m in made] == [5, 8]
    assert len(decided(tmp_path)) == 2


@pytest.mark.parametrize("values", [{}, {"micro_batch": 0, "layout": "contiguous", "batch_norm_folded": False}])
def test_a_damaged_decision_is_named(sets: Sets, tmp_path: Path, values: dict[str, Any]) -> None:
    run(sets, tmp_path, "plain", "imagenet-a")
    decided(tmp_path)[0].write_text(json.dumps(values))
    with pytest.raises(DamagedError, match=r"expected .* got .* run again"):
        run(sets, tmp_path, "plain", "imagenet-a")


def test_a_probe_decides_for_one_of_the_sizes_beside_the_usual_one() -> None:
    model = load_model("timm-random/test_efficientnet")
    plan = make_plan(model, RunOptions(), "cpu")
    assert (plan.micro_batch, plan.layout) == (4, "channels_last")
    chosen = _probed(plan, model, True, "cpu", 10_000)
    assert chosen.micro_batch in (2, 4, 8)
    assert chosen.layout in ("channels_last", "contiguous")
    assert _probed(plan, model, True, "cpu", 10) == Execution(4, "channels_last", False)


def test_how_a_model_is_run_is_told(sets: Sets, tmp_path: Path) -> None:
    from tiny_runs import needs_of

    from hf_robust.benchmarks import benchmark
    from hf_robust.runner import evaluate

    said: list[str] = []
    evaluate(
        sets.model("plain"), [benchmark("imagenet-a")], needs_of(sets, "imagenet-a"), tmp_path,
        options=RunOptions(), world=World(0, 1, "cpu"), meter=lambda done, total: None, tell=said.append,
    )  # fmt: skip
    assert said == ["1 process of 1 thread, micro-batches of 8, contiguous, float32"]


# --- memory


def test_a_batch_that_does_not_fit_is_halved_and_remembered(sets: Sets, tmp_path: Path) -> None:
    made = run(sets, tmp_path, "hungry", "imagenet-a")
    assert json.loads((made / "plan.json").read_text())["micro_batch"] == 2  # 8, 4, then 2 fits
    assert [path for path in tmp_path.iterdir() if (path / "plan.json").exists()] == [made]
    assert run(sets, tmp_path, "hungry", "imagenet-a") == made
    plain = run(sets, tmp_path, "plain", "imagenet-a", micro_batch=2)
    ours, theirs = (read_source(m / "imagenet-a.model").outputs.logits for m in (made, plain))
    assert np.array_equal(ours, theirs)


def test_an_asked_batch_size_that_does_not_fit_is_an_error(sets: Sets, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"failed on a batch of 4 .* give a smaller --batch-size"):
        run(sets, tmp_path, "hungry", "imagenet-a", micro_batch=4)


def test_memory_that_runs_out_later_keeps_the_parts_and_says_what_the_next_command_does(
    sets: Sets, tmp_path: Path
) -> None:
    made = run(sets, tmp_path, "starved", "imagenet-a")
    before = contents(made / "imagenet-a.model")
    write(sets.factories.with_name("full"), b"")
    try:
        with pytest.raises(ModelError, match=r"remembered: remove .*, and the same command uses micro-batches of 4"):
            run(sets, tmp_path, "starved", "imagenet-o")
    finally:
        sets.factories.with_name("full").unlink()
    assert contents(made / "imagenet-a.model") == before


def test_the_trial_before_a_run_halves_until_a_batch_fits(sets: Sets) -> None:
    model = load_model(sets.model("hungry"))
    assert _fitting(model, Execution(64, "contiguous", False), "cpu") == 2  # 64, 32, 16, 8, 4, 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("shape mismatch"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


# --- start


def test_a_machine_without_an_accelerator_is_known_without_asking_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_robust.runner.world._DRIVERS", ())
    monkeypatch.setattr("hf_robust.runner.world.sys.platform", "linux")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_world() == World(0, 1, "cpu")


# --- several machines


@pytest.mark.parametrize(
    ("rank", "size"), [("2", "2"), ("-1", "2"), ("0", "0"), ("0", ""), ("one", "2")], ids=lambda text: text or "unset"
)
def test_a_place_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    monkeypatch.setenv("HF_ROBUST_RANK", rank)
    monkeypatch.setenv("HF_ROBUST_WORLD", size)
    with pytest.raises(WorldError, match=r"expected HF_ROBUST_RANK from 0 to one less than HF_ROBUST_WORLD, got"):
        join_world("cpu")


def test_another_number_of_processes_than_the_world_s_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ROBUST_RANK", "1")
    monkeypatch.setenv("HF_ROBUST_WORLD", "2")
    assert join_world("cpu") == World(1, 2, "cpu")
    with pytest.raises(WorldError, match="expected --processes 2 as HF_ROBUST_WORLD says, got 3"):
        join_world("cpu", 3)


@pytest.mark.slow
def test_two_launches_that_share_only_the_folder_give_the_bytes_of_one(sets: Sets, tmp_path: Path) -> None:
    task = [
        *(sys.executable, "-m", "hf_robust", "evaluate", "--model", sets.model("plain"), "--allow-chance"),
        *("--benchmark", "imagenet-a", "imagenet-o", "--data", str(sets.data)),
        *("--imagenet-val", str(sets.validation), "--out", str(tmp_path / "two"), "--device", "cpu"),
    ]
    environments = [{**os.environ, "HF_ROBUST_RANK": str(rank), "HF_ROBUST_WORLD": "2"} for rank in (1, 0)]
    started = [subprocess.Popen(task, env=e, stdout=subprocess.DEVNULL) for e in environments]
    assert [process.wait(timeout=120) for process in started] == [0, 0]
    (plan,) = (tmp_path / "two").glob("*/plan.json")
    assert contents(plan.parent) == contents(run(sets, tmp_path / "one", "plain", "imagenet-a", "imagenet-o"))
    log = [json.loads(line) for line in (plan.parent / "log.jsonl").read_text().splitlines()]
    assert sorted((entry["rank"], entry["world"]) for entry in log) == [(0, 2), (1, 2)]
