"""Stage `generate`: the same picture for a row in every history, and no picture that shows nothing."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image
from tiny_diffusion import tiny_flow_pipeline, tiny_pipeline

from hf_robust.regenerate.blanks import to_png, why_unusable
from hf_robust.regenerate.estimate import Estimate, Probe, estimate, measure, scaled
from hf_robust.regenerate.generate import GENERATE
from hf_robust.regenerate.generators import GenerateSettings, draw, find_generator, folder_hash
from hf_robust.regenerate.prompts import PROMPTS, PromptSettings
from hf_robust.regenerate.stage import (
    KEEP,
    REASON,
    ROW_ID,
    Ledger,
    PartWise,
    Stage,
    StageError,
    Work,
    finished,
    run_stage,
)  # fmt: skip
from hf_robust.runner import World

FEW = PromptSettings(limit=10, part_rows=4)  # parts of 4, 4 and 2 rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pipeline(tmp_path_factory.mktemp("diffusion") / "tiny")


@pytest.fixture(scope="module")
def usual(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Ten pictures by one process in batches of three."""
    return _run(tiny, _work(tmp_path_factory.mktemp("usual")))


def _work(out: Path, rank: int = 0, size: int = 1, tell: Callable[[int, int], None] = lambda done, total: None) -> Work:
    return Work(out, World(rank, size, "cpu"), tell)


def _settings(folder: Path, **values: Any) -> GenerateSettings:
    return GenerateSettings(**{"model": str(folder), "steps": 2, "batch": 3, **values})


def _run(model: Path, work: Work, prompts: PromptSettings = FEW, **values: Any) -> Ledger:
    rows = run_stage(PROMPTS, prompts, replace(work, meter=lambda done, total: None))
    return run_stage(GENERATE, _settings(model, **values), replace(work, rows=rows))


def _column(ledger: Ledger, name: str) -> list[Any]:
    return [value for table in ledger.tables((name,)) for value in table[name].to_pylist()]


def _pixels(ledger: Ledger) -> NDArray[np.int16]:
    pictures = [Image.open(io.BytesIO(content)) for content in _column(ledger, "image")]
    return np.stack([np.asarray(picture, dtype=np.int16) for picture in pictures])


def _files(ledger: Ledger) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in ledger.stages[-1].folder.glob("part-*.parquet")}


def _with_last_layer(tiny: Path, folder: Path, weight: float, bias: float) -> Path:
    """A copy of the pipeline whose decoder ends in a layer of these weights: it gives bias everywhere when weight is 0.

    The decoder's -1 is black and its 0 is grey.
    """
    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny, folder)
    path = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    for name, value in (("decoder.conv_out.weight", weight), ("decoder.conv_out.bias", bias)):
        weights[name] = np.full_like(weights[name], value)
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def test_every_prompt_becomes_a_picture_with_its_lineage(tiny: Path, usual: Ledger) -> None:
    ledger = usual
    assert ledger.rows == ledger.kept() == 10
    assert _pixels(ledger).shape == (10, 32, 32, 3)
    assert _column(ledger, "image_sha256") == [hashlib.sha256(b).hexdigest() for b in _column(ledger, "image")]
    assert set(_column(ledger, "width")) == set(_column(ledger, "height")) == {32}
    assert set(_column(ledger, "generator")) == {"tiny"}
    assert set(_column(ledger, "generator_revision")) == {f"sha256:{folder_hash(tiny)}"}
    assert len(set(_column(ledger, "image_sha256"))) == 10


@pytest.mark.parametrize("batch", [1, 4])
def test_report_23_a_picture_does_not_depend_on_the_batch_but_for_one_grey_level(
    batch: int, tiny: Path, usual: Ledger, tmp_path: Path
) -> None:
    expected, other = _pixels(usual), _pixels(_run(tiny, _work(tmp_path), batch=batch))
    assert np.abs(expected - other).max() <= 1
    assert np.mean(expected != other) < 1e-3


def test_report_23_the_picture_comes_from_the_rows_seed_alone(tiny: Path, tmp_path: Path) -> None:
    together = _pixels(_run(tiny, _work(tmp_path / "together"), PromptSettings(limit=6, part_rows=6)))
    apart = _pixels(_run(tiny, _work(tmp_path / "apart"), PromptSettings(limit=6, part_rows=1)))
    assert np.abs(together - apart).max() <= 1
    assert np.abs(together[0] - together[1]).max() > 30


def test_report_23_a_kill_and_two_processes_leave_the_same_bytes(tiny: Path, usual: Ledger, tmp_path: Path) -> None:
    def killed(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(tiny, _work(tmp_path / "two", 1, 2, killed))
    folder = next((tmp_path / "two").glob("2-generate-*"))
    assert [path.name for path in folder.glob("part-*")] == ["part-00001.parquet"]  # rank 1's first
    assert not finished(folder)
    two = _run(tiny, _work(tmp_path / "two", 0, 2))
    assert two.key == usual.key
    assert _files(two) == _files(usual)
    assert len(_files(usual)) == 3


def test_the_seed_sets_the_noise_and_the_prompt_what_is_made_of_it(tiny: Path) -> None:
    settings = _settings(tiny)
    pipeline = _load(settings)
    pictures = draw(pipeline, ["a mug", "a mug", "a wok"], [1, 2, 1], settings).pixels
    assert np.abs(pictures[0] - pictures[1]).max() > 0.1
    assert 0 < np.abs(pictures[0] - pictures[2]).max() < np.abs(pictures[0] - pictures[1]).max()


def _load(settings: GenerateSettings) -> Any:
    from hf_robust.regenerate.generators import load_pipeline

    return load_pipeline(find_generator(settings), settings, "cpu")


def test_report_37_black_pictures_of_the_safety_checker_are_dropped_with_that_reason(tmp_path: Path) -> None:
    ledger = _run(tiny_pipeline(tmp_path / "strict", flags=True), _work(tmp_path / "out"))
    assert ledger.kept() == 0
    assert ledger.funnel()[-1]["reasons"] == {"flagged by the safety checker": 10}
    assert _pixels(ledger).max() == 0


def test_what_the_safety_checker_lets_pass_is_kept(tmp_path: Path) -> None:
    ledger = _run(tiny_pipeline(tmp_path / "mild", flags=False), _work(tmp_path / "out"))
    assert ledger.kept() == 10


@pytest.mark.parametrize(
    ("weight", "bias", "reason"), [(0, -1, "black"), (0, 0, "blank"), (np.nan, 0, "not finite"), (0, 0.4, "blank")]
)
def test_report_37_a_pipeline_that_shows_nothing_loses_every_row_with_the_reason(
    weight: float, bias: float, reason: str, tiny: Path, tmp_path: Path
) -> None:
    broken = _with_last_layer(tiny, tmp_path / "broken", weight, bias)
    ledger = _run(broken, _work(tmp_path / "out"), PromptSettings(limit=2))
    assert _column(ledger, REASON) == [reason, reason]
    assert len(_pixels(ledger)) == 2  # the picture stays in the ledger as proof


def test_a_picture_is_blank_up_to_a_deviation_of_two_grey_levels() -> None:
    checks = np.indices((8, 8)).sum(axis=0)[..., None] % 2 * np.ones(3)  # 0 and 1: a deviation of half the difference
    assert why_unusable(0.5 + checks * 4 / 255) == "blank"  # 4 / 2 = 2
    assert why_unusable(0.5 + checks * 5 / 255) is None  # 5 / 2 = 2.5
    assert why_unusable(checks * 2 / 255) == "black"
    one_channel = np.concatenate([checks[..., :1], np.full((8, 8, 2), 0.5)], axis=2)
    assert why_unusable(one_channel) is None
    assert why_unusable(np.full((1, 1, 3), 0.7)) == "blank"


def test_pixels_become_png_by_rounding_to_the_nearest_grey_level() -> None:
    pixels = np.array([[[0.0, 1.0, 0.5], [np.nan, 2.0, 1.6 / 255]]])
    expected = [[[0, 255, 128], [0, 255, 2]]]  # 127.5 rounds to even
    assert np.asarray(Image.open(io.BytesIO(to_png(pixels)))).tolist() == expected


def test_rows_dropped_before_are_not_drawn(tiny: Path, tmp_path: Path) -> None:
    def without_first(settings: Any, work: Work) -> PartWise:
        def make(rows: pa.Table) -> pa.Table:
            keep = [i > 0 for i in range(len(rows))]
            return pa.table({ROW_ID: rows[ROW_ID], KEEP: keep, REASON: [None if k else "first" for k in keep]})

        return PartWise({}, make, ())

    work = _work(tmp_path)
    rows = run_stage(PROMPTS, replace(FEW, part_rows=1, limit=1), work)
    rows = run_stage(
        Stage("thin", "drops the first of a part", PromptSettings, without_first), FEW, replace(work, rows=rows)
    )
    ledger = run_stage(GENERATE, _settings(tiny), replace(work, rows=rows))
    assert _column(ledger, "image") == [None]
    assert _column(ledger, REASON) == ["first"]


def test_the_image_id_names_row_generator_and_settings_but_not_the_folder(tiny: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tiny, tmp_path / "elsewhere")
    (moved / "README.md").write_text("moved\n", encoding="utf-8")
    few = PromptSettings(limit=2)
    ids = [
        _column(_run(model, _work(tmp_path / str(i)), few, steps=steps), "image_id")
        for i, (model, steps) in enumerate([(tiny, 2), (moved, 2), (tiny, 1)])
    ]
    assert ids[0] == ids[1]
    assert not set(ids[0]) & set(ids[2])
    assert len(set(ids[0])) == 2


def test_other_weights_are_another_revision_and_another_stage_folder(tiny: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny, tmp_path / "copy")
    few = PromptSettings(limit=1)
    before = _run(copy, _work(tmp_path / "out"), few)
    path = copy / "unet" / "diffusion_pytorch_model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    after = _run(copy, _work(tmp_path / "out"), few)
    assert before.stages[-1].folder != after.stages[-1].folder
    assert _column(before, "generator_revision") != _column(after, "generator_revision")


@pytest.mark.slow
def test_a_finished_stage_loads_no_weights(tiny: Path, usual: Ledger, tmp_path: Path) -> None:
    out = usual.stages[0].folder.parent
    code = (
        "import sys\nfrom pathlib import Path\nimport test_generate as t\n"
        f"ledger = t._run(Path({str(tiny)!r}), t._work(Path({str(out)!r})))\n"
        "print(ledger.key, 'diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == [usual.key, "False"]


def test_a_scheduler_by_name_replaces_the_pipelines_own_and_is_recorded(tiny: Path, tmp_path: Path) -> None:
    few = PromptSettings(limit=1)
    own, other = (_run(tiny, _work(tmp_path), few, scheduler=name) for name in (None, "DDIMScheduler"))
    facts = [json.loads((x.stages[-1].folder / "stage.json").read_text())["facts"]["scheduler"] for x in (own, other)]
    assert [fact["name"] for fact in facts] == ["PNDMScheduler", "DDIMScheduler"]
    assert facts[0]["beta_end"] == facts[1]["beta_end"] == 0.012
    assert np.abs(_pixels(own) - _pixels(other)).max() > 1


@pytest.mark.parametrize("name", ["NoScheduler", "StableDiffusionPipeline", "FlowMatchEulerDiscreteScheduler"])
def test_a_scheduler_that_does_not_fit_is_refused_with_those_that_do(name: str, tiny: Path) -> None:
    with pytest.raises(StageError, match=f"unknown scheduler '{name}' for this pipeline; known: .*PNDMScheduler"):
        find_generator(_settings(tiny, scheduler=name))


def test_size_guidance_and_negative_prompt_reach_the_pipeline(tiny: Path) -> None:
    plain = _settings(tiny, guidance=7.5)
    pipeline = _load(plain)

    def picture(**values: Any) -> NDArray[np.float32]:
        return draw(pipeline, ["a mug"], [1], replace(plain, **values)).pixels

    assert picture(height=48, width=40).shape == (1, 48, 40, 3)
    assert not np.array_equal(picture(), picture(guidance=1.0))
    assert not np.array_equal(picture(), picture(negative_prompt="blur"))


@pytest.mark.slow
def test_half_precision_makes_nearly_the_same_picture(tiny: Path) -> None:
    full, half = (_settings(tiny, dtype=name) for name in ("float32", "bfloat16"))
    pictures = [draw(_load(s), ["a mug"], [1], s).pixels for s in (full, half)]
    assert pictures[1].dtype == np.float32
    assert np.corrcoef(pictures[0].ravel(), pictures[1].ravel())[0, 1] > 0.9


def test_a_pipeline_of_another_family_runs_through_the_same_stage(tmp_path: Path) -> None:
    flux = tiny_flow_pipeline(tmp_path / "flux")
    one = _run(flux, _work(tmp_path / "out"), height=32, width=32, guidance=3.5)
    assert one.kept() == 10
    facts = json.loads((one.stages[-1].folder / "stage.json").read_text())["facts"]
    assert (facts["pipeline"], facts["scheduler"]["name"]) == ("FluxPipeline", "FlowMatchEulerDiscreteScheduler")
    alone = _run(flux, _work(tmp_path / "out"), height=32, width=32, guidance=3.5, batch=1)
    assert np.abs(_pixels(one) - _pixels(alone)).max() <= 1


def test_a_model_of_the_hub_is_recorded_by_its_commit(tiny: Path, tmp_path: Path) -> None:
    from huggingface_hub.constants import HF_HUB_CACHE

    commit = "c0ffee" * 6 + "c0ff"
    cached = Path(HF_HUB_CACHE) / "models--someone--tiny"
    shutil.copytree(tiny, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit, encoding="utf-8")
    ledger = run_stage(PROMPTS, PromptSettings(limit=1), _work(tmp_path))
    settings = GenerateSettings(model="someone/tiny", steps=1)
    ledger = run_stage(GENERATE, settings, replace(_work(tmp_path), rows=ledger))
    assert _column(ledger, "generator") == ["someone/tiny"]
    assert _column(ledger, "generator_revision") == [commit]


def test_a_missing_diffusers_names_the_extra(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ImportError, match=r"stage 'generate' needs diffusers: pip install \"hf-robust\[generate\]\""):
        _run(tiny, _work(tmp_path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dtype": "int8"}, "unknown dtype 'int8' of stage 'generate'; known: float32, float16, bfloat16"),
        ({"batch": 0}, "expected batch of stage 'generate' to be a whole number of at least 1, got 0"),
        ({"steps": 2.5}, "expected steps .* got 2.5"),
        ({"height": 64}, "expected both height and width .* or none, got height 64 and width None"),
        ({"height": -8}, r"expected height .* got -8"),
        ({"revision": "main"}, "expected no revision for the local folder .*, got 'main': leave it out"),
        ({"model": "absent"}, r"expected a repository on the Hub \(owner/name\) or a folder, got 'absent'"),
        ({"model": "./absent/model"}, "or a folder, got './absent/model'"),
        ({"model": "nobody/nothing"}, "stage 'generate' cannot load nobody/nothing: its files are not on this machine"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(values: dict[str, Any], message: str, tiny: Path) -> None:
    with pytest.raises(StageError, match=message):
        find_generator(_settings(tiny, **values))


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"expected a pipeline of diffusers in .*, got no readable model_index.json"):
        find_generator(_settings(tmp_path))


def test_a_pipeline_that_makes_no_pictures_from_text_is_refused(tiny: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny, tmp_path / "copy")
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps({**index, "_class_name": "DDPMPipeline"}))
    with pytest.raises(
        StageError, match="cannot load copy: ValueError: AutoPipeline can't find a pipeline linked to DDPM"
    ):
        _run(copy, _work(tmp_path / "out"))


@pytest.mark.parametrize("where", ["pipeline", "unet"])
def test_python_code_that_comes_with_a_model_is_never_run(where: str, tiny: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny, tmp_path / "copy")
    index = json.loads((copy / "model_index.json").read_text())
    if where == "pipeline":
        index["_class_name"] = ["own", "OwnPipeline"]
    else:
        index["unet"] = ["own", "OwnUNet"]
        (copy / "unet" / "own.py").write_text("raise SystemExit\n")
    (copy / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(StageError, match="such code is never run here"):
        find_generator(_settings(copy))


def test_weights_that_are_no_safetensors_are_not_read(tiny: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny, tmp_path / "copy")
    weights = copy / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(StageError, match=r"cannot load copy: OSError: .*diffusion_pytorch_model.safetensors"):
        _run(copy, _work(tmp_path / "out"))


def test_a_size_that_the_pipeline_cannot_make_is_said_in_its_own_words(tiny: Path) -> None:
    settings = _settings(tiny, height=33, width=32)
    with pytest.raises(StageError, match=r"StableDiffusionPipeline failed in stage 'generate' .*divisible by 8"):
        draw(_load(settings), ["a mug"], [1], settings)


class Plain:
    """A pipeline that gives what it is told to, and takes neither guidance nor size."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, prompt: list[str], generator: Any, output_type: str, num_inference_steps: int) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_setting_that_a_pipeline_does_not_take_is_no_silent_nothing(tiny: Path) -> None:
    with pytest.raises(StageError, match="Plain takes no guidance_scale: set it to null in the settings"):
        draw(Plain(None), ["a mug"], [1], _settings(tiny))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), RuntimeError("can't allocate memory")],
)
def test_running_out_of_memory_says_to_take_a_smaller_batch(error: Exception, tiny: Path) -> None:
    with pytest.raises(StageError, match=r"Plain ran out of memory with 2 pictures at a time: .* a smaller batch"):
        draw(Plain(error), ["a mug"] * 2, [1, 2], _settings(tiny, guidance=None))


@pytest.mark.parametrize("shape", [(1, 8, 8, 3), (2, 8, 8, 4), (2, 8, 8)])
def test_a_pipeline_must_give_one_rgb_picture_a_prompt(shape: tuple[int, ...], tiny: Path) -> None:
    with pytest.raises(StageError, match="expected 2 RGB pictures of Plain"):
        draw(Plain(SimpleNamespace(images=np.zeros(shape))), ["a", "b"], [1, 2], _settings(tiny, guidance=None))


def test_a_recipe_must_begin_with_prompts(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="expected a stage before this one"):
        run_stage(GENERATE, _settings(tiny), _work(tmp_path))


def test_an_estimate_multiplies_one_picture_by_the_prompts_and_divides_by_the_processes(tiny: Path) -> None:
    found = measure(PromptSettings(limit=600), _settings(tiny), "cpu", processes=4)
    assert found.rows == {"background": 200, "texture": 200, "material": 200}
    assert found.png_bytes is not None
    assert found.png_bytes % 600 == 0
    assert 1000 < found.png_bytes / 600 < 32 * 32 * 3 + 500
    assert found.seconds is not None
    assert found.seconds > 0
    assert scaled(found.rows, Probe(2.0, 100), 4) == Estimate(found.rows, 2.0 * 600 / 4, 100 * 600, None)


def test_an_estimate_without_a_model_still_counts_and_says_why(tiny: Path) -> None:
    counted, reason = estimate(PromptSettings(), GenerateSettings(model="nobody/nothing"), "cpu")
    assert counted == "prompts: 61,811 (background 52,884, texture 5,311, material 3,616)"
    assert reason == (
        "time and disk: not known, since no picture could be made: stage 'generate' cannot load nobody/nothing: its "
        "files are not on this machine and could not be downloaded: connect to the network once, or give local files"
    )
    lines = estimate(PromptSettings(limit=3), _settings(tiny), "cpu", processes=2)
    assert lines[1].endswith("on cpu with 2 processes, from one picture")
    assert lines[2].endswith("kB of pictures, from one picture")
