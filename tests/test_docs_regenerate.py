"""What the pages on regeneration show and no block of theirs can run: a served page, a Hub, options, settings."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import urllib.request
from dataclasses import asdict
from pathlib import Path

import pytest
from candidate_world import drawn, work_in
from loopback_hub import loopback_hub
from review_world import review
from test_docs import DOCS, blocks

from hf_robust.regenerate.assemble import AssembleSettings, assemble
from hf_robust.regenerate.mine import MINE, MineSettings
from hf_robust.regenerate.recipe_file import claim
from hf_robust.regenerate.recipes import RECIPES, as_toml, configure, recipe_of
from hf_robust.regenerate.review import write_facts
from hf_robust.regenerate.stage import run_stage
from hf_robust.review.base import MODES
from hf_robust.review.decisions import Rule
from hf_robust.review.reliability import Thresholds
from hf_robust.review.store import Store

PAGE, REVIEW_PAGE = DOCS / "imagenet-d.md", DOCS / "review.md"
RUN = "import sys; from hf_robust.cli import main; sys.exit(main(sys.argv[1:]))"


def lines_of(name: str) -> list[list[str]]:
    """The commands of the block with test=NAME, without `hf-robust`."""
    every = (block for page in (PAGE, REVIEW_PAGE) for block in blocks(page))
    body = "".join(block.body for block in every if block.options.get("test") == name)
    return [shlex.split(line.removeprefix("$ hf-robust ")) for line in body.splitlines()]


def people_d(folder: Path, name: str = "people-d") -> Path:
    """A regeneration with a review of drawn pictures, in the folder that a page names."""
    out = folder / name
    claim("imagenet-d", out)
    write_facts(review(out / "review-0000"), Rule(2), Thresholds(), ledger="drawn")
    return out


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_on_the_machinery_names_the_stages_of_a_recipe(name: str) -> None:
    rows = (DOCS / "regenerate.md").read_text(encoding="utf-8").splitlines()
    row = next(line for line in rows if line.startswith(f"| `{name}` |"))
    assert re.findall(r"`(\w+)`", row.split("|")[-2]) == [stage.name for stage in recipe_of(name).stages]


@pytest.mark.parametrize("page", ["imagenet-d.md", "regenerate.md", "candidates.md", "review.md"])
def test_every_setting_that_a_page_names_exists(page: str) -> None:
    known = {section for recipe in RECIPES.values() for section in recipe.defaults()}
    names = {
        f"{section}.{name}"
        for recipe in RECIPES.values()
        for section, settings in recipe.defaults().items()
        for name in asdict(settings)
    }
    named = re.findall(r"`(\w+\.\w+)`", (DOCS / page).read_text(encoding="utf-8"))
    assert [name for name in named if name.partition(".")[0] in known and name not in names] == []


def test_the_config_of_the_page_is_one(tmp_path: Path) -> None:
    body = next(block.body for block in blocks(PAGE) if block.options.get("file") == "d.toml")
    (tmp_path / "d.toml").write_text(body)
    settings = configure(recipe_of("imagenet-d"), tmp_path / "d.toml")
    assert settings["assemble"].name == "our-d"
    assert len(settings["mine"].surrogates) == 4


def test_null_takes_a_default_away_in_a_file_and_on_the_command_line(tmp_path: Path) -> None:
    recipe = recipe_of("imagenet-d")
    assert configure(recipe)["generate"].guidance == 7.5
    changed = configure(recipe, None, ["generate.guidance=null"])
    assert changed["generate"].guidance is None
    (tmp_path / "config.toml").write_text(as_toml(recipe, changed))
    assert tomllib.loads(as_toml(recipe, changed))["generate"]["guidance"] == "null"
    assert configure(recipe, tmp_path / "config.toml") == changed


@pytest.mark.parametrize("name", ["review-desktop.png", "review-phone.png"])
def test_a_screenshot_is_small(name: str) -> None:
    assert 5_000 < (DOCS / name).stat().st_size < 150_000
    assert name in REVIEW_PAGE.read_text(encoding="utf-8")


def test_the_page_on_reviews_names_every_mode_with_its_questions() -> None:
    text = REVIEW_PAGE.read_text(encoding="utf-8")
    for mode in MODES.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{mode.name}` |"))
        assert all(question.text.replace("{subject}", "…") in row for question in mode.questions), mode.name


@pytest.mark.slow
def test_the_page_publishes_a_set_that_loads_by_name(tmp_path: Path) -> None:
    stages = tmp_path / "stages"
    mined = run_stage(MINE, MineSettings(("timm-random/test_vit",)), work_in(stages, drawn(stages)))
    assemble("imagenet-d", mined, AssembleSettings("tiny-d"), people_d(tmp_path), meter=print)
    [command] = lines_of("publish")
    load = "from datasets import load_dataset; print(sum(map(len, load_dataset('tester/tiny-d').values())))"
    with loopback_hub() as hub:
        pushed = hub.run(RUN, tmp_path, *(word.replace("ME/", "tester/") for word in command))
        assert pushed.returncode == 0, pushed.stderr
        loaded = hub.run(load, tmp_path)
        assert loaded.stdout.strip() == str(mined.kept()), loaded.stderr
        assert hub.repo("datasets/tester/tiny-d").private


@pytest.mark.slow
def test_the_page_sends_a_review_to_a_space_and_brings_its_answers(tmp_path: Path) -> None:
    people_d(tmp_path, "people-a")
    with loopback_hub() as hub:
        for command in lines_of("space"):
            done = hub.run(RUN, tmp_path, *(word.replace("ME/", "tester/") for word in command))
            assert done.returncode == 0, done.stderr
        assert "app.py" in hub.repo("spaces/tester/SPACE").files()
        assert "review/review.json" in hub.repo("datasets/tester/ANSWERS").files()
        assert hub.repo("datasets/tester/ANSWERS").private


@pytest.mark.pages
@pytest.mark.slow
def test_the_page_serves_a_review_until_it_is_stopped(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs the review extra")
    out = people_d(tmp_path, "people-a")
    [command] = lines_of("serve")
    server = subprocess.Popen(
        [sys.executable, "-c", RUN, *command, "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = server.stdout.readline().split()[1]
    with urllib.request.urlopen(address) as page:
        assert b"Is the object in the picture?" in page.read()
    asked = urllib.request.Request(
        f"{address}gradio_api/run/start", json.dumps({"data": ["ada"]}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked) as screen:
        assert b"question" in screen.read()
    server.send_signal(signal.SIGINT)
    said, _ = server.communicate(timeout=30)
    assert "every answer is kept" in said
    assert Store(out / "review-0000").answers() == []
