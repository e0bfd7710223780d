"""The pages of docs/ and the README: every block runs, every link leads somewhere, every command is explained."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from docs_world import GIVEN, tiny_generator

from hf_robust.builders import RECIPES
from hf_robust.cli import main
from hf_robust.report.leaderboard import REQUIRED

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [path for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if path.exists()]
IDS = [path.name for path in PAGES]
RUN = {"bash", "python"}
SHOWN = {"text", "console", "toml", "json", ""}  # not run: needs a GPU, a network or a cluster, or is no program
_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
_INSTALLS = re.compile(r"^(make |git clone|cd |python3 -m venv|(\S*/)?pip install |(\S+/)?python3? -m pip )")


@dataclass(frozen=True)
class Block:
    """A fenced block. Behind the language may stand:

    file=PATH    it is written there and not run.
    exit=N       it has to end with that code.
    given=NAME   what `docs_world.GIVEN` makes first, since another program makes it for a reader; the page says so.
    shown=above  text whose lines the block before it printed, whatever the blanks.
    shown=demo   the same of what `hf-robust demo` printed; … stands for what the plan's hash decides.
    test=NAME    not run here, but by the test that looks for this name.
    """

    page: str
    line: int
    language: str
    options: dict[str, str]
    body: str


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        language, *options = match["info"].split() or [""]
        pairs = dict(option.split("=", 1) for option in options)
        yield Block(page.name, text.count("\n", 0, match.start()) + 1, language, pairs, match["body"])


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def help_of(*command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit):
        main([*command, "--help"])
    return said.getvalue()


def commands(*above: str) -> list[str]:
    """The commands below one, by its help; none below most."""
    listed = re.split(r"^  (?:COMMAND|ACTION|FORMAT|WHAT)\n", help_of(*above), maxsplit=1, flags=re.MULTILINE)
    return re.findall(r"^    ([a-z][a-z-]*)\b", "".join(listed[1:]), re.MULTILINE)


def whole_commands() -> list[str]:
    """Every command in full, such as "score" and "review serve"."""
    return [f"{name} {own}".strip() for name in commands() for own in commands(name) or [""]]


def environment(home: Path) -> dict[str, str]:
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TORCH_", "MPL", "PYTHONPATH"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"HF_HUB_OFFLINE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "120"}
    return {**ours, **quiet, "HOME": str(home), "PATH": path}


def check_block(block: Block, folder: Path, home: Path) -> str:
    """Runs or writes the block; what it printed."""
    if "file" in block.options:
        target = folder / block.options["file"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.body, encoding="utf-8")
        return ""
    if "given" in block.options:
        GIVEN[block.options["given"]](folder)
    body = block.body
    if block.page == "README.md":  # installation is what CI does from nothing
        body = "".join(line for line in body.splitlines(keepends=True) if not _INSTALLS.match(line))
        body = body.replace(".venv/bin/", "")
    command = ["bash", "-euo", "pipefail", "-c", body] if block.language == "bash" else [sys.executable, "-c", body]
    done = subprocess.run(
        command, cwd=folder, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    expected = int(block.options.get("exit", "0"))
    where = f"{block.page}, line {block.line}: expected exit code {expected}, got {done.returncode}"
    assert done.returncode == expected, f"{where}\n{block.body}\n{done.stdout[-4000:]}"
    return done.stdout


def check_shown(block: Block, printed: str) -> None:
    """The lines that the page shows are lines that were printed; … stands for anything."""
    there = "\n".join(" ".join(line.split()) for line in printed.splitlines())
    shown = [" ".join(line.split()) for line in block.body.splitlines()]
    patterns = [re.escape(line).replace("…", r"\S+") for line in shown]
    missing = [line for line, pattern in zip(shown, patterns, strict=True) if not re.search(rf"(?m)^{pattern}$", there)]
    assert missing == [], f"{block.page}, line {block.line}: got\n{printed}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's output, made as the pages say, and demo.txt with what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    printed = check_block(Block("the demo", 1, "bash", {}, "hf-robust demo --out demo-output"), folder, folder)
    (folder / "demo.txt").write_text(printed, encoding="utf-8")
    return folder / "demo-output"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_of_a_page_runs_in_order(page: Path, demo: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(demo, folder / "demo-output")
    if page.name == "README.md":  # its data sets are built from the real archives
        for name in ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d"):
            build = f"hf-robust build {name} --source demo-output/pictures/{name} --allow-incomplete"
            check_block(Block("the data sets", 1, "bash", {}, build), folder, tmp_path / "home")
    if "tiny-generator" in page.read_text(encoding="utf-8"):
        tiny_generator(folder)
    printed = ""
    for block in blocks(page):
        if block.language in RUN or "file" in block.options:
            printed = check_block(block, folder, tmp_path / "home")
        elif "shown" in block.options:
            demo_said = demo.with_name("demo.txt").read_text(encoding="utf-8")
            check_shown(block, {"above": printed, "demo": demo_said}[block.options["shown"]])


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_is_in_a_language_that_is_run_or_only_shown(page: Path) -> None:
    strange = [f"line {b.line}: {b.language}" for b in blocks(page) if b.language not in RUN | SHOWN]
    assert strange == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def test_every_command_is_shown_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in commands() if f"hf-robust {name}" not in text] == []


def test_every_command_that_is_shown_exists() -> None:
    shown = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"(?:^|[`$] ?)hf-robust ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert [f"{page}: {name}" for page, name in sorted(shown) if name not in commands()] == []


def test_every_option_of_every_command_is_explained_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    options = {
        (command, option)
        for command in whole_commands()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_of(*command.split()))
    }
    assert len({command for command, _ in options}) > 30
    unexplained = [f"{command} {option}" for command, option in sorted(options)
                   if option != "--help" and not re.search(rf"{option}(?![\w-])", text)]  # fmt: skip
    assert unexplained == []


def test_the_page_on_evaluating_names_every_field_of_a_result() -> None:
    text = (DOCS / "evaluate.md").read_text(encoding="utf-8")
    assert [field for field in REQUIRED if f"`{field}`" not in text] == []


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d", "imagenet-val"])
def test_the_page_on_building_names_every_column_of_a_set(name: str) -> None:
    text = (DOCS / "build.md").read_text(encoding="utf-8")
    row = [line for line in text.splitlines() if line.startswith(f"| `{name}`")][-1]
    every = next(line for line in text.splitlines() if line.startswith("| every set"))
    named = set(re.findall(r"`(\w+)`", row + every))
    assert set(RECIPES[name].features()) - named == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_script_that_a_page_names_exists_and_has_the_options_shown(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\b(?:bench|tests|docs)/\w+\.py\b", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    for name, rest in re.findall(r"\b(bench/\w+\.py)([^\n#`]*)", text):
        source = (ROOT / name).read_text(encoding="utf-8")
        assert [option for option in re.findall(r"--[a-z-]+", rest) if f'"{option}"' not in source] == [], name


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_a_page_names_no_path_of_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w./])/(?:home|root|work|tmp|Users)/\S*", text) == []


def test_the_picture_is_small() -> None:
    assert (DOCS / "imagenet-a-field.svg").stat().st_size < 200_000


def test_the_picture_is_drawn_with_the_same_bytes_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the report extra")
    for name in ("one.svg", "two.svg"):
        subprocess.run([sys.executable, str(DOCS / "field.py"), str(tmp_path / name)], check=True)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
