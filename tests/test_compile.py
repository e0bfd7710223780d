"""`evaluate --compile`: the same numbers from a forward compiled by torch, and a row with the reason where it fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import Sets, make_sets, run

from hf_robust.models import ModelError, load_model
from hf_robust.predictions.read import read_source
from hf_robust.runner import RunOptions, make_plan
from hf_robust.runner.compiling import compiled

# pytest turns what torch warns about its own parts while it compiles into errors
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return make_sets(tmp_path_factory.mktemp("sets"))


def test_a_compiled_run_is_a_run_of_its_own_with_the_same_numbers(sets: Sets, tmp_path: Path) -> None:
    made = [run(sets, tmp_path, "plain", "imagenet-a", features=True, compile=flag) for flag in (False, True)]
    assert [json.loads((one / "plan.json").read_text())["compiled"] for one in made] == [False, True]
    usual, fast = (read_source(one / "imagenet-a.model", extra=("features",)).outputs for one in made)
    assert usual.ids == fast.ids
    np.testing.assert_allclose(np.asarray(fast.logits), np.asarray(usual.logits), atol=1e-4)
    np.testing.assert_allclose(np.asarray(fast.extra["features"]), np.asarray(usual.extra["features"]), atol=1e-4)


def test_a_machine_without_a_compiler_gives_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    torch._dynamo.reset()
    model = load_model("timm-random/test_efficientnet")
    plan = make_plan(model, RunOptions(compile=True), "cpu")
    with pytest.raises(ModelError, match=r"test_efficientnet cannot be compiled: .*; leave out --compile$"):
        compiled(model, plan, "cpu")
