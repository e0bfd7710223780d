"""Archives to numbers through the command line; each number against a computation that shares no code with ours."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plain_metrics as plain
import pytest
from plain_protocols import (
    MODES,
    A,
    Numbers,
    O,
    Own,
    expected_a,
    expected_d,
    expected_o,
    expected_val,
    expected_values,
    lite0,
    of_classes,
)
from toy_world import FACTORY, SETS, Drawn, draw_all

from hf_robust.labels import imagenet_1k_index, spurious_classes


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "hf_robust", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)


def here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in this process, which saves the start of Python and of its libraries."""
    from hf_robust.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(word) for word in arguments])
    return subprocess.CompletedProcess([], code, out.getvalue(), err.getvalue())


# --- the flow


def numbers(results: list[dict[str, Any]]) -> Numbers:
    return {(r["benchmark"], r["metric"], r["split"]): r["value"] for r in results}


@dataclass(frozen=True)
class Flow:
    """What the commands left behind."""

    folder: Path
    world: dict[str, list[Drawn]]
    factory: Path
    data: Path
    runs: Path
    built: dict[str, subprocess.CompletedProcess[str]]
    evaluated: dict[str, subprocess.CompletedProcess[str]]
    results: list[dict[str, Any]]


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Flow:
    """Draw, build each of the four, evaluate all five benchmarks in one command, once for each preprocessing."""
    folder = tmp_path_factory.mktemp("flow")
    world, data, runs = draw_all(folder), folder / "data", folder / "runs"
    factory = folder / "grids.py"
    factory.write_text(FACTORY, encoding="utf-8")
    built = {
        name: here("build", name, "--source", folder / target, "--allow-incomplete", "--out", data)
        for name, (_, _, target) in SETS.items()
        if name != "imagenet-val"
    }
    evaluated = {
        mode: command(
            "evaluate", "--model", f"{factory}:build", "--benchmark", *SETS, "--imagenet-val", folder / "val",
            "--data", data, "--out", runs, "--preprocessing", mode, "--processes", 1,
        )
        for mode in MODES
    }  # fmt: skip
    for done in (*built.values(), *evaluated.values()):
        assert done.returncode == 0, done.stderr
    results = json.loads((runs / "results" / "results.json").read_text(encoding="utf-8"))
    assert results["schema_version"] == 1
    return Flow(folder, world, factory, data, runs, built, evaluated, results["results"])


@pytest.fixture(scope="module")
def grids(flow: Flow) -> Own:
    import torch

    content: dict[str, Any] = {}
    exec(compile(FACTORY, "grids", "exec"), content)
    module = content["build"]().eval()

    def forward(batch: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(np.ascontiguousarray(batch))).numpy()

    return Own(forward, 64, 0.95)


def test_builds_keep_every_picture_and_list_the_differences(flow: Flow) -> None:
    """USER_REPORTS 4: any case of any extension; ImageNet-A has three."""
    for name, done in flow.built.items():
        assert f"{name}: {len(flow.world[name])} pictures" in done.stdout
        assert "incomplete: " in done.stderr
    assert "220 pictures, official 7,500" in flow.built["imagenet-a"].stderr


@pytest.mark.parametrize("mode", MODES)
def test_every_number_equals_the_second_computation(flow: Flow, grids: Own, mode: str) -> None:
    """USER_REPORTS 1, 2, 3, 11, 12, 18, 38."""
    found = numbers([r for r in flow.results if r["preprocessing"] == mode])
    expected = expected_values(flow.world, grids, mode)
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key] == (None if value is None else pytest.approx(value, abs=1e-6)), key


def test_the_toy_is_neither_perfect_nor_at_chance_so_that_the_numbers_say_something(flow: Flow) -> None:
    for r in flow.results:
        if r["value"] is not None and r["metric"] != "rms_calibration_error_released_code" and r["n"] > 40:
            assert 0.01 < r["value"] < 1, r["metric"]


def test_the_two_preprocessings_differ_where_the_papers_do_and_nowhere_else(flow: Flow) -> None:
    own, published = (numbers([r for r in flow.results if r["preprocessing"] == mode]) for mode in MODES)
    changed = {key[0] for key, value in own.items() if published[key] != value}
    assert changed == {"imagenet-a", "imagenet-o", "spurious-imagenet"}


def test_each_result_names_counts_interval_and_what_it_is_not(flow: Flow) -> None:
    val = flow.world["imagenet-val"]
    sizes = {
        ("imagenet-a", "top1_accuracy", None): 220,
        ("imagenet-a", "control_top1_accuracy", None): len(of_classes(val, A)),
        ("imagenet-o", "aupr", None): 60 + len(of_classes(val, O)),
        ("imagenet-o", "id_accuracy", None): len(of_classes(val, O)),
        ("spurious-imagenet", "spurious_score", None): 40 + 8 * 6,
        ("imagenet-d", "top1_accuracy", "all"): 48,
        ("imagenet-d", "top1_accuracy", "texture"): 16,
        ("imagenet-val", "top1_accuracy", None): len(val),
    }
    for r in flow.results:
        assert (r["complete"], r["subset"], r["n_failed"], bool(r["notes"])) == (False, False, 0, True)
        n = sizes.get((r["benchmark"], r["metric"], r["split"]))
        assert n in (None, r["n"])
        low, high = r["ci95"] or (r["value"], r["value"])
        assert r["value"] is None or low <= r["value"] <= high
        if n is not None and r["metric"].endswith("accuracy"):
            assert r["ci95"] == pytest.approx(plain.wilson(round(r["value"] * n), n), abs=1e-9)


def test_the_class_without_spurious_pictures_is_named(flow: Flow) -> None:
    lonely = spurious_classes()[::12][8].index
    notes = [r["notes"] for r in flow.results if r["metric"] == "spurious_score"]
    assert all(any("left out" in note and f"{lonely} " in note for note in row) for row in notes)


def test_the_protocol_says_how_the_pictures_were_made_ready(flow: Flow) -> None:
    """USER_REPORTS 7."""
    protocols = {(r["benchmark"], r["preprocessing"]): r["protocol"] for r in flow.results}
    paper = protocols["imagenet-a", "published"]["preprocessing"]["test"]
    assert (paper["resize"], paper["crop"]) == ({"shorter_side": 256}, {"centre": 224})
    assert (paper["interpolation"], paper["mean"]) == ("bilinear", [0.485, 0.456, 0.406])
    spurious = protocols["spurious-imagenet", "published"]["preprocessing"]
    assert (spurious["validation"]["resize"], spurious["validation"]["crop"]) == ({"shorter_side": 73}, {"centre": 64})
    assert (spurious["spurious"]["resize"], spurious["spurious"]["crop"]) == ({"height": 64, "width": 64}, None)
    own = protocols["imagenet-d", "published"]["preprocessing"]["test"]
    assert (own["crop_pct"], own["mean"], own["backend"]) == (0.95, [0.5, 0.5, 0.5], "PIL")


def test_a_picture_is_forwarded_once_for_all_benchmarks_of_one_rule(flow: Flow) -> None:
    """Two modes share the plan, hence the folder; validation pictures lie there once for each rule."""
    (run,) = [path.parent for path in flow.runs.glob("*/plan.json")]
    folders = sorted(path.name for path in run.iterdir() if path.is_dir() and path.name != "requests")
    assert folders == [
        "imagenet-a.model", "imagenet-a.paper", "imagenet-d.model", "imagenet-o.model", "imagenet-o.paper",
        "imagenet-val.model", "imagenet-val.paper", "imagenet-val.spurious-val", "spurious-imagenet.spurious-image",
    ]  # fmt: skip


def test_scoring_again_gives_the_same_results_and_refuses_accuracy_on_imagenet_o(flow: Flow) -> None:
    """USER_REPORTS 5."""
    again = here("score", flow.runs, "--json")
    assert again.returncode == 0
    assert sorted(json.loads(again.stdout)["results"], key=json.dumps) == sorted(flow.results, key=json.dumps)
    refused = here("score", flow.runs, "--benchmark", "imagenet-o", "--metric", "top1_accuracy")
    assert refused.returncode == 1
    assert "top1_accuracy is not defined on imagenet-o: its folders name the class that" in refused.stderr


# --- paths that are not the main one


def evaluate(flow: Flow, out: Path, *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    from hf_robust.cli import main

    words = ["evaluate", "--model", f"{flow.factory}:build", "--out", out, "--processes", 1, *arguments]
    code = main([str(word) for word in words])
    file = out / "results" / "results.json"
    return code, json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []


def test_without_validation_a_and_d_are_scored_and_the_exit_code_is_0(flow: Flow, tmp_path: Path) -> None:
    code, results = evaluate(flow, tmp_path, "--benchmark", "imagenet-a", "imagenet-d", "--data", flow.data)
    assert code == 0
    assert {r["value"] for r in results if r["metric"].startswith("control_")} == {None}
    assert all(any("control not run" in note for note in r["notes"]) for r in results)


def test_without_validation_o_is_a_row_with_its_reason_and_the_exit_code_is_1(flow: Flow, tmp_path: Path) -> None:
    code, results = evaluate(flow, tmp_path, "--benchmark", "imagenet-a", "imagenet-o", "--data", flow.data)
    assert code == 1
    (lost,) = [r for r in results if r["metric"] is None]
    assert lost["benchmark"] == "imagenet-o"
    assert "--imagenet-val" in lost["reason"]
    assert any(r["benchmark"] == "imagenet-a" and r["value"] is not None for r in results)


def test_a_limit_is_stratified_seeded_and_said(flow: Flow, tmp_path: Path) -> None:
    """USER_REPORTS 33."""
    arguments = ("--benchmark", "imagenet-a", "--data", flow.data, "--limit", 20, "--seed", 3)
    _, first = evaluate(flow, tmp_path / "first", *arguments)
    _, again = evaluate(flow, tmp_path / "again", *arguments)
    assert first == again
    assert {(r["subset"], r["plan"]["limit"], r["plan"]["seed"]) for r in first} == {(True, 20, 3)}
    assert {r["n"] for r in first if r["metric"] == "top1_accuracy"} == {20}


def test_a_broken_picture_stops_the_run_or_is_counted(
    flow: Flow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """USER_REPORTS 24. The header is whole, so that the build takes the picture; the rest is cut off."""
    pictures = [p for p in flow.world["imagenet-val"] if p.labels[0] in A]
    for p in pictures:
        (tmp_path / "val" / p.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "val" / p.path).write_bytes(p.content)
    (tmp_path / "val" / pictures[4].path).write_bytes(pictures[4].content[:700])
    arguments = ("--benchmark", "imagenet-val", "--imagenet-val", tmp_path / "val")
    code, _ = evaluate(flow, tmp_path / "stops", *arguments)
    assert code == 1
    assert Path(pictures[4].path).stem in capsys.readouterr().err
    code, results = evaluate(flow, tmp_path / "goes-on", *arguments, "--on-error", "record")
    assert code == 0
    assert {(r["n"], r["n_failed"], r["complete"]) for r in results} == {(len(pictures) - 1, 1, False)}


def test_a_model_that_cannot_be_loaded_stays_as_a_row_and_the_others_go_on(flow: Flow, tmp_path: Path) -> None:
    """USER_REPORTS 31."""
    arguments = ("timm/no_such_net", "--benchmark", "imagenet-a", "--data", flow.data)
    code, results = evaluate(flow, tmp_path, "--model", f"{flow.factory}:build", *arguments)
    assert code == 1
    (lost,) = [r for r in results if r["metric"] is None]
    assert lost["model"] == "timm/no_such_net"
    assert "no_such_net" in lost["reason"]
    assert {r["model"] for r in results} == {"timm/no_such_net", f"{flow.factory}:build"}


@pytest.mark.slow
def test_a_real_classifier_on_real_photos_equals_the_second_computation(flow: Flow, tmp_path: Path) -> None:
    """EfficientNet-Lite0 through timm's own transform and forward, on 20 photos that ship in a wheel."""
    demo_photos = pytest.importorskip("hf_robust.cli.demo.photos")
    photos = [p for p in demo_photos.PHOTOS if p.package == "foolbox"]
    wnids = sorted(imagenet_1k_index(), key=imagenet_1k_index().get)
    val = []
    for n, photo in enumerate(photos):
        name = f"{wnids[photo.index]}/ILSVRC2012_val_{n + 1:08d}.JPEG"
        picture = Drawn(name, photo.path.read_bytes(), (photo.index,))
        (tmp_path / "val" / picture.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "val" / picture.path).write_bytes(picture.content)
        val.append(picture)
    own, world = lite0(), {**flow.world, "imagenet-val": val}
    done = command(
        "evaluate", "--model", "offline/efficientnet_lite0", "--benchmark", "imagenet-a", "imagenet-o", "imagenet-d",
        "imagenet-val", "--imagenet-val", tmp_path / "val", "--data", flow.data, "--out", tmp_path / "runs",
        "--preprocessing", "published",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs" / "results" / "results.json").read_text(encoding="utf-8"))["results"]
    expected = {
        **{("imagenet-a", k, None): v for k, v in expected_a(world["imagenet-a"], val, own, "paper").items()},
        **{("imagenet-o", k, None): v for k, v in expected_o(world["imagenet-o"], val, own, "paper").items()},
        **{("imagenet-val", k, None): v for k, v in expected_val(val, own).items()},
        **expected_d(world["imagenet-d"], val, own),
    }
    found = numbers(results)
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key] == (None if value is None else pytest.approx(value, abs=1e-5)), key
    assert found["imagenet-val", "top1_accuracy", None] > 0.6
