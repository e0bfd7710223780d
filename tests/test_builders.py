"""Building data sets from small archives in the official layouts."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder_archives import (
    A_FILES,
    D_FILES,
    O_FILES,
    ROOT,
    SETS,
    SPURIOUS_FILES,
    Files,
    as_folder,
    as_tar,
    as_targz,
    as_zip,
    picture,
    rows_of,
)

from hf_robust import labels
from hf_robust.builders import NAMES, RECIPES, BuildError, build, find, installed, remove


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_source_gives_the_same_data_set(tmp_path: Path, name: str) -> None:
    makers: tuple[Callable[[Path, Files], Path], ...] = (as_tar, as_targz, as_zip, as_folder)
    fingerprints = {
        build(name, make(tmp_path / make.__name__, SETS[name]), allow_incomplete=True, out=tmp_path / "out").fingerprint
        for make in makers
    }
    pictures = {k: v for k, v in SETS[name].items() if k.endswith((".jpg", ".JPEG", ".jpeg", ".png"))}
    tops = ("imagenet-a/", "imagenet-o/", "images/")
    pairs = sorted(
        (next((k.removeprefix(t) for t in tops if k.startswith(t)), k), hashlib.sha256(v).hexdigest())
        for k, v in pictures.items()
    )
    expected = hashlib.sha256("".join(f"{n}\0{s}\n" for n, s in pairs).encode()).hexdigest()
    assert fingerprints == {expected}


@pytest.mark.parametrize("name", NAMES)
def test_image_bytes_are_those_of_the_archive_and_rows_are_sorted(tmp_path: Path, name: str) -> None:
    source = as_folder(tmp_path / "source", SETS[name])
    built = build(name, source, allow_incomplete=True, out=tmp_path / "out")
    rows = rows_of(name, tmp_path / "out")
    top = {"imagenet-a": "imagenet-a/", "imagenet-o": "imagenet-o/", "spurious-imagenet": "images/"}.get(name, "")
    for row in rows:
        original = (source / (top + str(row["file_name"]))).read_bytes()
        assert row["image"] == {"bytes": original, "path": row["file_name"]}
        assert row["sha256"] == hashlib.sha256(original).hexdigest()
    for split in built.load().values():
        assert split["file_name"][:] == sorted(split["file_name"])
        assert split.features == RECIPES[name].features()
    assert built.rows == len(rows)


def test_imagenet_a_takes_all_three_endings_and_reads_the_names(tmp_path: Path) -> None:
    build("imagenet-a", as_tar(tmp_path / "a.tar", A_FILES), allow_incomplete=True, out=tmp_path / "out")
    first, second, third = rows_of("imagenet-a", tmp_path / "out")
    assert [str(r["file_name"]).rpartition(".")[2] for r in (first, second, third)] == ["jpg", "JPEG", "jpeg"]
    assert first["wrong_label_1"] == "digital clock"
    assert first["wrong_label_confidence"] == 0.865662
    assert second["wrong_label_1"] == "jack-o'-lantern"
    assert second["true_class_probability"] == 0.25
    assert first["label"] == labels.imagenet_a_wnids().index("n01498041")
    assert first["imagenet_1k"] == [labels.imagenet_1k().wnids.index("n01498041")]


def test_imagenet_o_has_no_label_but_what_it_is_confused_with(tmp_path: Path) -> None:
    build("imagenet-o", as_zip(tmp_path / "o.zip", O_FILES), allow_incomplete=True, out=tmp_path / "out")
    row = rows_of("imagenet-o", tmp_path / "out")[0]
    assert "label" not in row
    assert row["confused_with"] == labels.imagenet_o_wnids().index("n02786058")
    assert row["true_lemmas"] == "lass_lassie_young_girl_jeune_fille"
    assert row["confidence"] == 0.9998679
    assert row["imagenet_1k"] == []


def test_spurious_classes_are_imagenet_indices(tmp_path: Path) -> None:
    files = {**SPURIOUS_FILES, "images/x_y_999_z_with_blanks_7/cc.png": picture(9, kind="PNG")}
    built = build("spurious-imagenet", as_zip(tmp_path / "s.zip", files), allow_incomplete=True, out=tmp_path / "out")
    rows = rows_of("spurious-imagenet", tmp_path / "out")
    assert [(r["spurious_class"], r["component"]) for r in rows] == [(0, 12), (2, 1), (999, 7)]
    assert rows[0]["feature"] == labels.spurious_classes()[0].feature
    assert rows[2]["feature"] is None
    assert f"class {labels.imagenet_1k().wnids[999]!r} is not one of the official 100" in built.differences


def test_pictures_that_are_not_square_are_a_difference_of_spurious_imagenet(tmp_path: Path) -> None:
    files = {"images/a_b_0_c_1/x.png": picture(1, size=(12, 13), kind="PNG")}
    built = build("spurious-imagenet", as_zip(tmp_path / "s.zip", files), allow_incomplete=True, out=tmp_path / "out")
    assert "'a_b_0_c_1/x.png' is 12 x 13, official pictures are square" in built.differences


def test_imagenet_d_has_three_splits_and_joins_categories_by_name(tmp_path: Path) -> None:
    built = build("imagenet-d", as_folder(tmp_path / "d", D_FILES), allow_incomplete=True, out=tmp_path / "out")
    assert {s: d.num_rows for s, d in built.load().items()} == {"background": 1, "texture": 1, "material": 1}
    clock, _, bag = rows_of("imagenet-d", tmp_path / "out")
    assert (clock["top1_prediction"], clock["top2_prediction"]) == ("backpack", "alarm_clock")
    assert clock["imagenet_1k"] == [409, 530]
    assert (bag["category"], bag["nuisance"], bag["top1_prediction"]) == ("backpack", "material", None)
    assert bag["label"] == [c.folder for c in labels.imagenet_d_categories()].index("backpack")


def test_imagenet_d_with_one_kind_only_can_be_built(tmp_path: Path) -> None:
    files = {k: v for k, v in D_FILES.items() if k.startswith("texture")}
    built = build("imagenet-d", as_folder(tmp_path / "d", files), allow_incomplete=True, out=tmp_path / "out")
    assert list(built.load()) == ["texture"]


def test_questions_without_their_columns_are_a_difference(tmp_path: Path) -> None:
    files = {**D_FILES, "questions/texture.csv": b"image_dir,gt_category\nx,y\n"}
    built = build("imagenet-d", as_folder(tmp_path / "d", files), allow_incomplete=True, out=tmp_path / "out")
    assert any("questions/texture.csv has no tab-separated columns" in d for d in built.differences)


def test_load_dataset_finds_the_newest_build_offline_from_another_folder(tmp_path: Path) -> None:
    fewer = {k: v for k, v in O_FILES.items() if "n03196217" not in k}
    script = (
        "import sys; from hf_robust.builders import build, find; from datasets import load_dataset\n"
        "for source in sys.argv[1:]:\n"
        "    built = build('imagenet-o', source, allow_incomplete=True)\n"
        "    print(built.rows, load_dataset('hf_robust/imagenet-o')['test'].num_rows, find('imagenet-o').rows)\n"
        "print(load_dataset('hf_robust/imagenet-o')['test'].info.description.splitlines()[0])"
    )
    both, one = as_tar(tmp_path / "both.tar", O_FILES), as_tar(tmp_path / "one.tar", fewer)
    (tmp_path / "elsewhere").mkdir()
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", script, str(both), str(one), str(both)],
        env=environment, cwd=tmp_path / "elsewhere", capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[:3] == ["2 2 2", "1 1 1", "2 2 2"]
    assert lines[3].startswith("INCOMPLETE: ")


def test_a_build_elsewhere_touches_no_other_cache(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "a.tar", A_FILES)
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "dataset_scripts" / "imagenet_a.py"), "--source", str(source)]
    command += ["--allow-incomplete", "--out", str(tmp_path / "out")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "imagenet-a: 3 pictures, INCOMPLETE" in ran.stdout
    assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file()]


@pytest.mark.parametrize("page", ["imagenet_a", "imagenet_o", "spurious_imagenet", "imagenet_d", "imagenet_val"])
def test_every_script_refuses_an_incomplete_source_with_one_line(tmp_path: Path, page: str) -> None:
    source = as_folder(tmp_path / "source", SETS[page.replace("_", "-")])
    command = [sys.executable, str(ROOT / "dataset_scripts" / f"{page}.py"), "--source", str(source)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([*command, "--out", str(tmp_path / "out")], env=environment, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "--allow-incomplete" in ran.stderr


def test_an_identical_rebuild_gives_the_same_build(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "a.tar", A_FILES)
    first = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out")
    again = build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out")
    assert first == again
    assert installed(out=tmp_path / "out") == (first,)


def test_removing_a_data_set_leaves_nothing_to_find(tmp_path: Path) -> None:
    build("imagenet-a", as_tar(tmp_path / "a.tar", A_FILES), allow_incomplete=True, out=tmp_path / "out")
    build("imagenet-o", as_tar(tmp_path / "o.tar", O_FILES), allow_incomplete=True, out=tmp_path / "out")
    assert remove("imagenet-a", out=tmp_path / "out") == 1
    assert remove("imagenet-a", out=tmp_path / "out") == 0
    assert [b.name for b in installed(out=tmp_path / "out")] == ["imagenet-o"]
    with pytest.raises(LookupError, match="hf-robust build imagenet-a --source"):
        find("imagenet-a", out=tmp_path / "out")


def test_progress_counts_every_picture(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = as_tar(tmp_path / "a.tar", A_FILES)
    build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out", progress=lambda *step: seen.append(step))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_failed_build_leaves_nothing_that_counts_as_built(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise RuntimeError("stopped")

    source = as_tar(tmp_path / "a.tar", A_FILES)
    with pytest.raises(RuntimeError, match="stopped"):
        build("imagenet-a", source, allow_incomplete=True, out=tmp_path / "out", progress=stop)
    assert installed(out=tmp_path / "out") == ()
    assert not list((tmp_path / "out").rglob("*.arrow"))


def test_a_killed_build_leaves_nothing_that_counts_as_built_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    source, out = as_tar(tmp_path / "a.tar", A_FILES), tmp_path / "out"
    script = (
        "import os, sys, signal; from pathlib import Path; from hf_robust.builders import build\n"
        "kill = lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done == 2 else None\n"
        "build('imagenet-a', sys.argv[1], allow_incomplete=True, out=Path(sys.argv[2]), progress=kill)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", script, str(source), str(out)], env=environment, capture_output=True)
    assert ran.returncode == -9
    assert installed(out=out) == ()
    assert build("imagenet-a", source, allow_incomplete=True, out=out).rows == 3
    assert not list(out.glob(".hf_robust*"))


def test_a_file_address_is_read_like_a_path(tmp_path: Path) -> None:
    source = as_tar(tmp_path / "a.tar", A_FILES)
    assert build("imagenet-a", source.as_uri(), allow_incomplete=True, out=tmp_path / "out").rows == 3


def test_an_http_address_is_downloaded(tmp_path: Path) -> None:
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    as_tar(tmp_path / "a.tar", A_FILES)
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert build("imagenet-a", f"{address}/a.tar", allow_incomplete=True, out=tmp_path / "out").rows == 3
        with pytest.raises(BuildError, match="404"):
            build("imagenet-a", f"{address}/missing.tar", allow_incomplete=True, out=tmp_path / "out")
        server.shutdown()
    assert not list((tmp_path / "out").rglob("*.tar"))


def test_the_record_beside_the_data_holds_the_differences(tmp_path: Path) -> None:
    built = build("imagenet-a", as_tar(tmp_path / "a.tar", A_FILES), allow_incomplete=True, out=tmp_path / "out")
    record = json.loads((built.path / "hf-robust.json").read_text())
    assert tuple(record["differences"]) == built.differences
    assert not built.complete
    assert built.path.relative_to(tmp_path / "out").parts[:3] == ("hf_robust___imagenet-a", "default", "1.0.0")


def test_a_complete_imagenet_o_in_its_official_counts_is_built_without_leave(tmp_path: Path) -> None:
    files = {
        f"{wnid}/thing_0.{n:03d}.JPEG": picture(i * 10 + n, size=(4, 4), kind="PNG")
        for i, wnid in enumerate(labels.imagenet_o_wnids())
        for n in range(10)
    }
    built = build("imagenet-o", as_folder(tmp_path / "o", files), out=tmp_path / "out")
    assert (built.complete, built.differences, built.rows) == (True, (), 200 * 10)
    description = built.load()["test"].info.description
    assert description.startswith("ImageNet-O")
