"""The report folder with its page, plots and gallery: made from stored predictions, looked at as HTML."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from run_folder import Source, peaked, write_run

from hf_robust.benchmarks import benchmark, benchmarks
from hf_robust.benchmarks.miniatures import miniatures
from hf_robust.labels import imagenet_d_categories, imagenet_o_wnids, spurious_classes
from hf_robust.report import Places, published, write_report
from hf_robust.report.baselines import comparable, ladder, standing
from hf_robust.report.evidence import Failure, gather, lemmas_of
from hf_robust.report.gallery import Thumbnails
from hf_robust.report.latex import latex, tex
from hf_robust.report.plots_field import parameters_of
from hf_robust.report.style import Series, draw, series_of
from hf_robust.report.ties import ranks, tie_groups
from hf_robust.report.verdict import verdict
from hf_robust.scoring import score

HOSTILE = 'evil/<script>alert("x")</script><img src=x onerror=alert(1)>$x^$&amp;{{7*7}}'
NAMES = (HOSTILE, "timm/resnet50.a1_in1k")
BENCHMARKS = ("imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d", "imagenet-val")
HARD, OUTSIDE = benchmark("imagenet-a").mask, benchmark("imagenet-o").mask


def drawn(seed: int, labels: list[int], skill: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    logits = random.normal(0, 1, (len(labels), 1000)).astype(np.float32)
    logits[np.arange(len(labels)), labels] += skill
    return logits


def sources(seed: int) -> list[Source]:
    spurious = [c.index for c in spurious_classes()[:6] for _ in range(5)]
    categories = [c for c in imagenet_d_categories()[:5] for _ in range(6)]
    kinds = ["background", "texture", "material"] * 10
    clean = sorted({*HARD[:6], *OUTSIDE[:6], *spurious, *(i for c in categories for i in c.indices)})
    val = [k for k in clean for _ in range(4)]
    hard = [HARD[i % 6] for i in range(24)]
    outside = [OUTSIDE[i % 6] for i in range(18)]
    wnids = [imagenet_o_wnids()[i % 6] for i in range(18)]
    return [
        Source("imagenet-val", [[k] for k in val], drawn(seed, val, 9)),
        Source("imagenet-a", [[k] for k in hard], drawn(seed + 1, hard, 3)),
        Source("imagenet-o", [[] for _ in outside], drawn(seed + 2, outside, 4), groups={"confused_with": wnids}),
        Source(
            "spurious-imagenet", [[] for _ in spurious], drawn(seed + 3, spurious, 4), rule="spurious-image",
            groups={"spurious_class": spurious, "component": [0] * len(spurious)},
        ),
        Source(
            "imagenet-d", [list(c.indices) for c in categories], drawn(seed + 4, [c.indices[0] for c in categories], 4),
            groups={"category": [c.folder for c in categories], "nuisance": kinds},
        ),
    ]  # fmt: skip


def two_models(runs: Path) -> Path:
    for seed, name in enumerate(NAMES):
        write_run(runs, BENCHMARKS, sources(10 * seed), model=name)
    return runs


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    return write_report(two_models(place / "runs"), place / "out", benchmarks=benchmarks(), images=False)


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def row(**changes: Any) -> dict[str, Any]:
    return {
        "model": "m", "benchmark": "imagenet-a", "metric": "top1_accuracy", "split": None, "value": 0.2, "n": 7500,
        "ci95": [0.19, 0.21], "protocol": {"rules": {"test": "model"}}, "preprocessing": "model", "run": "r",
        "complete": True, "subset": False, "headline": True, "n_failed": 0, "reason": None, "notes": [], "details": {},
        **changes,
    }  # fmt: skip


# the folder


def test_the_folder_holds_the_page_the_tables_and_each_plot_in_two_formats(folder: Path) -> None:
    assert {p.name for p in folder.iterdir()} == {
        "results.json", "table.md", "table.csv", "table.tex", "report.html", "plots",
    }  # fmt: skip
    names = sorted(p.name for p in (folder / "plots").iterdir())
    stems = {name.rsplit(".", 1)[0] for name in names}
    assert names == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    assert stems >= {
        "imagenet-a-reliability", "imagenet-a-response-rate", "imagenet-a-field-model", "imagenet-a-size",
        "imagenet-d-splits", "imagenet-d-categories", "imagenet-o-precision-recall", "imagenet-o-roc",
        "imagenet-o-scores", "spurious-imagenet-field", "spurious-imagenet-worst-classes", "imagenet-val-reliability",
    }  # fmt: skip


def test_equal_predictions_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    again = write_report(two_models(tmp_path / "runs"), tmp_path / "out", benchmarks=benchmarks(), images=False)
    for file in folder.rglob("*.*"):
        if file.is_file():
            assert file.read_bytes() == (again / file.relative_to(folder)).read_bytes(), file.name


def test_plots_of_an_earlier_report_go_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "out/plots").mkdir(parents=True)
    for name in ("old-roc.svg", "old-roc.png", "mine.txt"):
        (tmp_path / "out/plots" / name).write_text("x")
    runs = tmp_path / "runs"
    write_run(runs, ["imagenet-a"], sources(0)[:2])
    out = write_report(runs, tmp_path / "out", benchmarks=benchmarks(), images=False)
    names = {p.name for p in (out / "plots").iterdir()}
    assert "mine.txt" in names
    assert not names & {"old-roc.svg", "old-roc.png"}


def test_results_at_hand_are_not_scored_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, ["imagenet-a"], sources(0)[:2])
    results = [{**r, "value": 0.125} if r["headline"] else r for r in score(runs, benchmarks())]
    out = write_report(runs, tmp_path / "out", benchmarks=benchmarks(), images=False, results=results)
    assert "12.5 %" in (out / "report.html").read_text(encoding="utf-8")


# the page


def test_hostile_names_stay_text(folder: Path, page: Page) -> None:
    assert not page.all("script")
    assert not [attributes for _, attributes in page.tags if any(key.startswith("on") for key in attributes)]
    assert all((image["src"] or "").startswith("data:image/") for image in page.all("img"))
    assert '<script>alert("x")</script>' in page.text
    for svg in (folder / "plots").glob("*.svg"):
        assert "<script" not in svg.read_text(encoding="utf-8")


def test_the_page_loads_nothing_and_forbids_itself_to(page: Page) -> None:
    policy = [meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0]["content"] == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert {link["href"][0] for link in page.all("a") if link["href"]} == {"#"}
    assert not page.all("link")


def test_every_picture_has_a_text_and_every_table_has_a_caption_and_headers(page: Page) -> None:
    assert all(len(image["alt"] or "") > 20 for image in page.all("img"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(head.get("scope") in ("col", "row") for head in page.all("th"))


def test_each_model_has_one_sentence_and_each_benchmark_a_section(page: Page) -> None:
    titles = [benchmark(name).title for name in BENCHMARKS]
    ids = [h["id"] for h in page.all("h2")]
    assert ids == ["leaderboard", *sorted(BENCHMARKS)]
    assert all(title in page.text for title in titles)
    assert page.text.count("spots pictures of unknown classes on ImageNet-O") == len(NAMES)


def test_marks_are_explained_beside_the_numbers(page: Page) -> None:
    assert "† incomplete: not all pictures of the official data were evaluated" in page.text


def test_a_failed_model_stays_with_its_reason(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", ["imagenet-a"], [], failures={"imagenet-a": "<b>no such</b> weights"})
    out = write_report(tmp_path / "runs", tmp_path / "out", benchmarks=benchmarks())
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert "<b>no such</b> weights" in page.text
    assert "has no result on ImageNet-A" in page.text
    assert not page.all("b")


def test_no_results_give_a_page_that_says_so(tmp_path: Path) -> None:
    out = write_report(tmp_path / "runs", tmp_path / "out", benchmarks=benchmarks(), results=[])
    assert "No results." in (out / "report.html").read_text(encoding="utf-8")


def test_miniatures_are_called_no_benchmark_results(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", ["mini-imagenet-a"], sources(0)[:2])
    out = write_report(tmp_path / "runs", tmp_path / "out", benchmarks=miniatures(), images=False)
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert "holds no benchmark results" in page.text
    assert "7,500 natural pictures" not in page.text
    assert "Beside published numbers" not in page.text


def test_other_anomaly_scores_have_their_own_table(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", ["imagenet-o"], [sources(0)[0], sources(0)[2]])
    results = score(tmp_path / "runs", benchmarks())
    own = next(r for r in results if r["metric"] == "aupr")
    other = {**own, "ood_score": "energy", "value": 0.123, "ci95": None, "headline": False}
    out = write_report(
        tmp_path / "runs", tmp_path / "out", benchmarks=benchmarks(), images=False, results=[*results, other]
    )
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert "Other out-of-distribution scores" in page.text
    assert "toy: energy" in page.text
    assert f"AUPR of {100 * own['value']:.1f}\u00a0%" in page.text
    assert "| aupr (energy) |" in (out / "table.md").read_text(encoding="utf-8")


# words and groups


def test_the_sentence_on_a_model_holds_its_headline_numbers() -> None:
    rows = [
        row(), row(metric="control_top1_accuracy", value=0.9, headline=False),
        row(benchmark="imagenet-o", metric="aupr", value=0.25, details={"estimator": "chance 0.1667"}, subset=True),
        row(benchmark="spurious-imagenet", metric="spurious_score", value=0.85, n=125, details={"n_spurious": 75}),
        row(benchmark="imagenet-d", metric=None, value=None, headline=False),
    ]  # fmt: skip
    assert verdict(rows, {"imagenet-a": "ImageNet-A"}).replace("\u00a0", " ") == (
        "gets 20.0 % of the pictures of ImageNet-A (90.0 % of clean ones) right; spots pictures of unknown classes on "
        "imagenet-o with an AUPR of 25.0 % (a guess: 16.7 %) [of a part of the pictures]; tells classes from their "
        "spurious features on spurious-imagenet with a score of 0.850 (1 is best, a guess about 0.40); has no result "
        "on imagenet-d"
    )


def test_models_share_a_group_while_their_intervals_overlap_that_of_its_first() -> None:
    rows = [
        row(model="a", value=0.50, ci95=[0.45, 0.55]),
        row(model="b", value=0.44, ci95=[0.40, 0.48]),  # overlaps a
        row(model="c", value=0.41, ci95=[0.37, 0.44]),  # overlaps b only
        row(model="d", value=0.10, ci95=[0.05, 0.15]),
    ]
    assert [[r["model"] for r in group] for group in tie_groups(rows[::-1])] == [["a", "b"], ["c"], ["d"]]
    assert list(ranks(rows).values()) == ["1=", "1=", "3", "4"]


def test_without_intervals_no_rank_is_claimed() -> None:
    assert ranks([row(model="a", ci95=None), row(model="b")]) == {}


def test_one_model_has_no_rank() -> None:
    assert ranks([row()]) == {}


# published numbers


def test_published_numbers_of_another_preprocessing_do_not_stand_beside_ours() -> None:
    assert {b.preprocessing for b in comparable(row())} == {"model"}
    assert {b.preprocessing for b in comparable(row(preprocessing="published", protocol={}))} == {"published"}
    assert comparable(row(benchmark="imagenet-o", metric="aupr")) == ()


def test_published_numbers_of_a_benchmark_without_a_published_rule_do_not_stand_beside_ours() -> None:
    assert comparable(row(benchmark="imagenet-val", preprocessing="published")) == ()


def test_the_ladder_holds_the_nearest_published_numbers_above_and_below_ours() -> None:
    values = sorted(b.value for b in published("imagenet-a", "top1_accuracy") if b.source == "timm")
    below, above = max(v for v in values if v < 0.2), min(v for v in values if v >= 0.2)
    rungs = ladder([row()], {("m", "model", "r"): "ours"})
    place = next(i for i, rung in enumerate(rungs) if rung.key)
    assert (rungs[place - 1].value, rungs[place + 1].value) == (above, below)
    assert [r.value for r in rungs] == sorted((r.value for r in rungs), reverse=True)
    assert len(rungs) < 25


def test_the_standing_counts_the_published_numbers_below() -> None:
    values = [b.value for b in published("imagenet-a", "top1_accuracy") if b.source == "timm" and b.value > 0]
    assert standing(row()) == f"above {sum(v < 0.2 for v in values):,} of {len(values):,} published numbers"


@pytest.mark.parametrize("changes", [{"complete": False}, {"subset": True}])
def test_a_value_of_other_pictures_than_the_official_ones_claims_no_place(changes: dict[str, bool]) -> None:
    assert standing(row(**changes)) == ""


@pytest.mark.parametrize(
    ("model", "millions"),
    [("timm/resnet50.a1_in1k", 25.56), ("offline/efficientnet_lite0", 4.65), ("hf/some/model", None)],
)
def test_the_size_of_a_model_comes_from_the_published_list(model: str, millions: float | None) -> None:
    assert parameters_of(model, published("imagenet-a", "top1_accuracy")) == millions


# plots


def test_a_plot_is_equal_bytes_whatever_the_settings_of_the_reader() -> None:
    import matplotlib

    def paint(figure: Any) -> None:
        figure.subplots().plot([0, 1], [0, 1], label="$x_1$")

    first = draw("x", "X", "an x", "", paint)
    with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": "other"}):
        second = draw("x", "X", "an x", "", paint)
        assert matplotlib.rcParams["font.size"] == 30
    assert (first.svg, first.png) == (second.svg, second.png)
    assert b"<dc:date>" not in first.svg


def test_letters_of_a_plot_are_at_least_11_pixels_on_a_phone() -> None:
    plot = draw("x", "X", "an x", "", lambda figure: figure.subplots().set_xlabel("name"))
    wide = float(re.search(rb'viewBox="0 0 ([\d.]+)', plot.svg)[1])  # type: ignore[index]
    sizes = [float(size) for size in re.findall(rb"font(?:-size)?: (?:[\w ]+ )?([\d.]+)px", plot.svg)]
    assert sizes
    assert min(sizes) * (390 - 2 * 16) / wide >= 11


def test_names_that_the_font_lacks_warn_of_nothing() -> None:
    assert draw("x", "X", "an x", "", lambda figure: figure.subplots().set_xlabel("模型")).svg


def test_only_six_models_are_drawn_and_keep_their_numbers() -> None:
    names = {(f"m{i}", "model", "r"): f"m{i}" for i in range(8)}
    shown: tuple[Series, ...] = series_of(names, list(names)[2:])
    assert [s.number for s in shown] == [3, 4, 5, 6, 7, 8]
    assert len({s.colour for s in shown}) == 6


# the gallery


def picture(folder: Path, name: str, colour: tuple[int, int, int]) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (400, 300), colour).save(folder / name)
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_thumbnails_are_small_pictures_of_the_very_bytes_that_were_evaluated(tmp_path: Path) -> None:
    sha = picture(tmp_path / "val", "n01440764/a.png", (200, 10, 10))
    found = Failure("imagenet-val", "n01440764/a.png", sha, "shark", "tench", 0.9)
    other = Failure("imagenet-val", "n01440764/a.png", "0" * 64, "shark", "tench", 0.9)
    gallery = Thumbnails(Places(validation=tmp_path / "val")).gallery([found, other])
    assert [s.failure for s in gallery.shown] == [found]
    assert gallery.lacking.startswith("1 of 2 pictures are not on this machine as they were evaluated")
    content = base64.b64decode(gallery.shown[0].source.removeprefix("data:image/jpeg;base64,"))
    with Image.open(io.BytesIO(content)) as image:
        assert image.format == "JPEG"
        assert image.size == (168, 126)  # 400 x 300 with a longer side of 168
        assert np.abs(np.asarray(image.convert("RGB"))[60, 80].astype(int) - (200, 10, 10)).max() <= 3


def test_data_that_is_not_at_hand_is_named_and_no_error(tmp_path: Path) -> None:
    failure = Failure("imagenet-a", "x.jpg", "0" * 64, "shark", "tench", 0.9)
    gallery = Thumbnails(Places(tmp_path)).gallery([failure])
    assert gallery.shown == ()
    assert "data set imagenet-a" in gallery.lacking


def test_a_spurious_picture_is_a_failure_only_where_the_model_says_its_class(tmp_path: Path) -> None:
    k, other = (c.index for c in spurious_classes()[:2])
    groups = {"spurious_class": [k, k], "component": [None] * 2}
    pictures = Source("spurious-imagenet", [[]] * 2, peaked([k, other]), groups, rule="spurious-image")
    run = write_run(tmp_path, ["spurious-imagenet"], [Source("imagenet-val", [[k]], peaked([k])), pictures])
    key = ("toy", "model", run.name)
    found = gather(tmp_path, benchmarks(), [(key, "spurious-imagenet")])["spurious-imagenet"][key]
    assert [failure.id for failure in found.worst] == ["spurious-imagenet/0.png"]


def test_pictures_can_be_switched_off(page: Page) -> None:
    assert "Pictures of failures are switched off." in page.text
    assert all((image["src"] or "").startswith("data:image/svg") for image in page.all("img"))


def test_what_an_outside_picture_shows_is_read_from_its_name() -> None:
    assert lemmas_of("n01498041/a/garlic_bread_0.93.JPEG") == "garlic bread"


# LaTeX


def test_every_special_character_of_latex_is_escaped() -> None:
    assert tex(r"a_b{c}\d%$#&~^[x]") == (
        r"a\_b\{c\}\textbackslash{}d\%\$\#\&\textasciitilde{}\textasciicircum{}{[}x{]}"
    )


def test_the_latex_table_has_a_line_a_model_and_as_many_cells_as_columns() -> None:
    text = latex([row(model="b_1"), row(model="a&b", metric=None, value=None, headline=False, reason="50% gone")])
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert lines == [
        r"Model & imagenet-a top1\_accuracy \\", r"a\&b & --- (1) \\", r"b\_1 & 20.0 {[}19.0, 21.0{]} \\",
    ]  # fmt: skip
    assert r"(1) a\&b: 50\% gone." in text


# in a browser


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_not_wider_than_the_window(folder: Path, tmp_path: Path, width: int) -> None:
    content = html.escape((folder / "report.html").read_text(encoding="utf-8"), quote=True)
    script = "document.body.dataset.wide = this.contentDocument.documentElement.scrollWidth"
    frame = f'<iframe srcdoc="{content}" style="width:{width}px;height:800px;border:0" onload="{script}"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><body>{frame}</body>", encoding="utf-8")
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
        (tmp_path / "frame.html").as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-wide="(\d+)"', dom)
    assert found is not None
    assert int(found[1]) == width
