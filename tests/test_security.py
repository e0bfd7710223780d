"""What the package never does: run code of strangers unasked, keep or show tokens, listen beyond this machine."""

from __future__ import annotations

import ast
import io
import pickle
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_runs import A_AND_O, Sets, make_sets, picture, write

import hf_robust
from hf_robust.cli import main
from hf_robust.models import ModelError, load_model

PACKAGE = Path(hf_robust.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
RUNS_CODE = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads",
    "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "dill.load", "joblib.load", "shelve.open",
}  # fmt: skip
EVERYWHERE = {"review/space.py"}  # the page of a Space runs in a container of its own, whose port is the Hub's
HOSTILE = "\"><img src=x onerror=alert(1)><script>alert('x')<"  # no slash: it is a file name


def calls(path: Path) -> Iterator[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"


def test_no_module_runs_what_a_file_says() -> None:
    found = [where(path, call) for path in MODULES for call in calls(path) if ast.unparse(call.func) in RUNS_CODE]
    shells = [where(path, c) for path in MODULES for c in calls(path) if any(k.arg == "shell" for k in c.keywords)]
    assert found + shells == []


def test_tensors_are_loaded_without_the_code_that_a_pickle_may_hold() -> None:
    loads = [(path, c) for path in MODULES for c in calls(path) if ast.unparse(c.func) == "torch.load"]
    assert loads
    unsafe = [where(*load) for load in loads if "weights_only=True" not in map(ast.unparse, load[1].keywords)]
    assert unsafe == []


def test_code_of_a_repository_runs_only_where_the_user_said_so() -> None:
    said = re.compile(r"trust_remote_code(: bool)? ?= ?True")
    texts = re.compile(r'""".*?"""|"[^"\n]*"|#.*', re.DOTALL)
    assert [p for p in MODULES if said.search(texts.sub("", p.read_text(encoding="utf-8")))] == []


def test_no_server_listens_beyond_this_machine_by_itself() -> None:
    open_to_all = re.compile(r"""["'](0\.0\.0\.0|::)["']|share=True""")
    found = {str(p.relative_to(PACKAGE)) for p in MODULES if open_to_all.search(p.read_text(encoding="utf-8"))}
    assert found <= EVERYWHERE


class Code:
    """A pickle of this writes a file when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("written_by_a_checkpoint", "w")


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "a.bin", "a.safetensors"])
def test_a_checkpoint_with_code_is_refused_and_its_code_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(pickle.dumps({"state_dict": Code()}))
    with pytest.raises(ModelError, match=rf"checkpoint {name}"):
        load_model("timm-random/test_vit", checkpoint=Path(name))
    assert [path.name for path in tmp_path.iterdir()] == [name]


# --- a whole run with hostile names and a token in the environment


class Page(HTMLParser):
    """The tags of a page, and the attributes that would run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, value in attributes if name.startswith("on") or "javascript:" in (value or "")]
        self.handlers += [f"{tag} {value}" for name, value in attributes if name == "src" and not _is_data(value)]


def _is_data(value: str | None) -> bool:
    return (value or "").startswith("data:image/")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    made = make_sets(tmp_path_factory.mktemp("sets"), a=3, o=3)
    folder = Path(shutil.copytree(made.factories.parent / "validation", made.factories.parent / "hostile"))
    for i, wnid in enumerate(A_AND_O):
        write(folder / wnid / f"{HOSTILE}{i}.jpeg", picture(90 + i, kind="JPEG"))
    factories = made.factories.with_name(f"{HOSTILE}.py")
    return replace(made, validation=folder, factories=Path(shutil.copy(made.factories, factories)))


def test_hostile_names_leave_no_script_in_the_report_and_no_token_in_any_file(
    sets: Sets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "hf_thisIsASecretThatNobodyMaySee"
    monkeypatch.setenv("HF_TOKEN", token)
    line = ["--model", sets.model("plain"), "--benchmark", "imagenet-a", "imagenet-val", "--data", str(sets.data)]
    places = ["--imagenet-val", str(sets.validation)]
    assert main(["evaluate", *line, *places, "--out", str(tmp_path / "runs"), "--device", "cpu", "--allow-chance"]) == 0
    report = ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report"), "--data", str(sets.data)]
    assert main([*report, *places, "--allow-chance"]) == 0
    text = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert ("script" in page.tags, page.handlers) == (False, [])
    assert "onerror=alert(1)&gt;" in text  # the names are there, as text
    assert "<script" not in "".join(p.read_text(encoding="utf-8") for p in (tmp_path / "report").rglob("*.svg"))
    said = capsys.readouterr()
    written = io.BytesIO(b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())).getvalue()
    assert token not in said.out + said.err
    assert token.encode() not in written
    assert sys.executable.encode() not in written
