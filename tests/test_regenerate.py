"""Recipes from end to end through the command line: a new ImageNet-D, its review, its set, its numbers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from loopback_hub import loopback_hub
from tiny_diffusion import tiny_pipeline

from hf_robust import builders
from hf_robust.cli import main
from hf_robust.regenerate.recipes import RECIPES, as_toml, configure, recipe_of
from hf_robust.regenerate.review import ReviewSettings, simulated
from hf_robust.regenerate.stage import StageError
from hf_robust.review.folder import read_review
from hf_robust.review.store import Store
from hf_robust.schema import dataset_features

ROOT = Path(__file__).resolve().parent.parent
SURROGATES = (
    '["timm-random/test_vit", "timm-random/test_efficientnet", "timm-random/test_resnet", "timm-random/test_byobnet"]'
)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pipeline(tmp_path_factory.mktemp("tiny") / "diffusion")


def arguments(out: Path, generator: Path, *more: str, prompts: int = 24, part: int = 6) -> list[str]:
    return [
        "regenerate", "imagenet-d", "--out", str(out), "--device", "cpu", "--set",
        f"prompts.limit={prompts}", f"prompts.part_rows={part}", f"generate.model={generator}", "generate.steps=1",
        "generate.height=32", "generate.width=32", "generate.batch=3", f"mine.surrogates={SURROGATES}",
        "review.people=simulated", "review.images_a_task=6", "assemble.name=tiny-d", *more,
    ]  # fmt: skip


def stages(out: Path) -> dict[str, bytes]:
    """Every file of every stage, and the ledger: what must not depend on processes or kills."""
    found = [p for p in out.glob("[0-9]-*/*") if p.name != ".lock"]
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted([*found, out / "ledger.parquet"])}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, generator: Path) -> Path:
    out = tmp_path_factory.mktemp("regenerated") / "D"
    assert main(arguments(out, generator)) == 0
    return out


def test_a_recipe_leads_from_prompts_to_a_set_with_the_published_columns(made: Path) -> None:
    built = builders.find("tiny-d", out=made / "set")
    splits = built.load()
    first = next(iter(splits.values()))
    names = first.features["label"].names
    assert set(splits) == {"background", "texture", "material"}
    assert first.features == dataset_features("imagenet-d", names)
    ledger = pq.read_table(made / "ledger.parquet").to_pylist()
    kept = [row for row in ledger if row["keep"]]
    assert len(ledger) == 24
    assert built.rows == len(kept) > 0
    by_sha = {row["image_sha256"]: row for row in ledger}
    for row in (row for split in splits.values() for row in split):
        assert by_sha[row["sha256"]]["category"] == row["category"]
        assert by_sha[row["sha256"]]["labels"] == row["imagenet_1k"]


def test_every_candidate_has_its_seed_prompt_votes_answers_and_reason(made: Path) -> None:
    for row in pq.read_table(made / "ledger.parquet").to_pylist():
        assert row["prompt"]
        assert row["seed"] >= 0
        assert row["generator_revision"]
        if row["dropped_by"] not in ("generate",):
            assert [vote["role"] for vote in row["votes"]] == ["surrogate"] * 4
        assert (row["reason"] is None) == row["keep"]
        if row["dropped_by"] in (None, "review"):
            assert {a["question"] for a in row["answers"]} == {"recognise", "usable"}
    funnel = json.loads((made / "funnel.json").read_text())
    by_kind = [row for row in funnel["nuisance"] if row["stage"] == "review"]
    assert sum(row["kept"] for row in by_kind) == funnel["all"][-1]["kept"]


def test_a_set_is_evaluated_scored_and_reported_under_its_own_name(made: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    evaluate = ["evaluate", "--model", "timm-random/test_vit", "--benchmark", str(made / "set"), "--out", str(runs)]
    assert main([*evaluate, "--processes", "1", "--allow-chance", "--json"]) == 0
    results = json.loads((runs / "results" / "results.json").read_text())["results"]
    top1 = next(r for r in results if r["metric"] == "top1_accuracy" and r["split"] in (None, "all"))
    assert (top1["benchmark"], top1["value"]) == ("tiny-d", 0.0)  # a surrogate was selected against
    assert "regenerated: numbers are not those of ImageNet-D" in json.dumps(top1)
    assert main(["score", str(runs), "--allow-chance"]) == 0  # RUNS remembers what the set is
    assert main(["report", str(runs), "--out", str(tmp_path / "report"), "--no-images", "--allow-chance"]) == 0


def test_a_set_can_be_published_with_the_way_it_was_made(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(made / "set")
    assert main(["build", "tiny-d", "--out", place, "--push-to-hub", "me/tiny-d", "--dry-run"]) == 0
    card = capsys.readouterr().out
    assert "Made by `hf-robust regenerate imagenet-d`" in card
    assert "| mine | 24 | " in card
    assert "timm-random/test_vit" in card
    assert '"reviewed":"simulated"' in card


def test_people_are_waited_for_and_their_answers_decide(
    tmp_path: Path, generator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = arguments(tmp_path, generator, "review.people=people", "review.fastest=0")
    assert main(command) == 3
    assert "waiting for people: 24 of 24 pictures need" in capsys.readouterr().err
    folder = next(tmp_path.glob("review-*/"))
    review = read_review(folder)
    answers = simulated(review, ReviewSettings(good=0.5, accuracy=1.0))
    assert main(["review", "status", str(tmp_path)]) == 1
    assert "nobody has answered yet" in capsys.readouterr().out
    Store(folder).import_answers(answers)
    assert main(["review", "status", str(tmp_path)]) == 0
    assert "24 of 24 pictures are decided" in capsys.readouterr().out
    assert main(command) == 0
    good = sum(row["keep"] for row in pq.read_table(tmp_path / "ledger.parquet").to_pylist())
    assert builders.find("tiny-d", out=tmp_path / "set").rows == good
    assert 0 < good < 24


def test_a_dry_run_counts_and_writes_nothing(
    tmp_path: Path, generator: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(tmp_path / "D", generator), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "24" in said
    assert "nothing was written" in said
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize("name", RECIPES)
def test_a_printed_config_is_the_default_config(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_of(name)
    assert main(["regenerate", name, "--print-config"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "config.toml").write_text(text)
    assert list(tomllib.loads(text)) == list(recipe.defaults())
    assert configure(recipe, tmp_path / "config.toml") == recipe.defaults()
    assert as_toml(recipe, recipe.defaults()) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["prompts.limits=3"], "unknown setting 'limits' in --set prompts.limits=3; known: categories"),
        (["prompt.limit=3"], "unknown section 'prompt' in --set prompt.limit=3; sections of imagenet-d: prompts"),
        (["limit"], "expected --set STAGE.NAME=VALUE, got 'limit'"),
        (["mine.surrogates=3"], "expected surrogates in --set mine.surrogates=3 like"),
    ],
)
def test_wrong_settings_are_named(changes: list[str], message: str) -> None:
    with pytest.raises(StageError, match=message):
        configure(recipe_of("imagenet-d"), None, changes)


def test_commands_that_cannot_work_say_so(tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong: list[tuple[list[str], str]] = [
        (["regenerate", "imagenet-e", "--out", str(tmp_path)], "unknown recipe 'imagenet-e'; known: imagenet-d"),
        (["regenerate", "imagenet-d"], "expected --out DIR"),
        (["regenerate", "imagenet-a", "--out", str(tmp_path / "x")], "expected --candidates SOURCE for imagenet-a"),
        (["regenerate", "imagenet-d", "--out", str(tmp_path), "--until", "draw"], "unknown stage 'draw' of imagenet-d"),
        (["regenerate", "imagenet-a", "--out", str(made), "--candidates", "x"], "expected a folder of imagenet-a, got"),
        (["review", "status", str(tmp_path)], "expected a review in"),
        (["evaluate", "--model", "x", "--benchmark", str(tmp_path), "--out", str(tmp_path)], "folder of a regenerated"),
    ]
    for command, message in wrong:
        assert main(command) == 1
        assert message in capsys.readouterr().err


def launch(command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *command], env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_two_processes_make_the_same_bytes_as_one(made: Path, tmp_path: Path, generator: Path) -> None:
    two = launch(["-m", "hf_robust", *arguments(tmp_path, generator), "--processes", "2"])
    said, _ = two.communicate(timeout=280)
    assert two.returncode == 0, said.decode()
    assert stages(tmp_path) == stages(made)
    assert (
        builders.find("tiny-d", out=tmp_path / "set").fingerprint
        == builders.find("tiny-d", out=made / "set").fingerprint
    )


@pytest.mark.slow
def test_accelerate_launches_the_script(made: Path, tmp_path: Path, generator: Path) -> None:
    launcher = [
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--main_process_port",
        "0",
        str(ROOT / "regenerate.py"),
    ]
    script = launch([*launcher, *arguments(tmp_path, generator)[1:]], ACCELERATE_USE_CPU="true")
    said, _ = script.communicate(timeout=280)
    assert script.returncode == 0, said.decode()
    assert stages(tmp_path) == stages(made)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["1-prompts", "2-generate", "3-mine", "4-review"])
def test_a_kill_in_any_stage_is_resumed_to_the_same_bytes(
    stage: str, made: Path, tmp_path: Path, generator: Path
) -> None:
    started = launch(["-m", "hf_robust", *arguments(tmp_path, generator)])
    deadline = time.monotonic() + 200
    while started.poll() is None and not any(tmp_path.glob(f"{stage}-*/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    started.send_signal(signal.SIGKILL)
    started.communicate()
    assert main(arguments(tmp_path, generator)) == 0
    assert stages(tmp_path) == stages(made)


def test_a_published_set_is_evaluated_by_its_repo(made: Path, tmp_path: Path) -> None:
    place, runs = str(made / "set"), str(tmp_path / "runs")
    push = ["build", "tiny-d", "--out", place, "--push-to-hub", "tester/tiny-d"]
    evaluate = ["evaluate", "--model", "timm-random/test_vit", "--benchmark", "tester/tiny-d", "--out", runs, "--json"]
    code = "import json, sys\nfrom hf_robust.cli import main\nprint([main(line) for line in json.loads(sys.argv[1])])"
    lines = [push, [*evaluate, "--processes", "1", "--allow-chance"], ["score", runs, "--allow-chance"]]
    with loopback_hub() as hub:
        done = hub.run(code, tmp_path, json.dumps(lines), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 0, 0]", done.stderr
    assert list(json.loads((tmp_path / "runs" / "sets" / "tiny-d.json").read_text())["categories"])
