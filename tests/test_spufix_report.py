"""The report on SpuFix: before and after, published models, trade-off, classes; zero-shot runs; the index."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folder import Source, write_run
from test_spufix_runs import CLASSES, HELD_OUT, SPURIOUS, Made

from hf_robust.benchmarks import benchmarks
from hf_robust.cli import main
from hf_robust.labels import imagenet_1k, imagenet_d_categories
from hf_robust.models import ImageClassifier, ModelError, Preprocessing
from hf_robust.predictions.read import HeadWeights
from hf_robust.report import published, write_report
from hf_robust.report.spufix import Fixed, fixed_of, strongest
from hf_robust.report.tables_spurious import before_and_after, beside_published, by_class
from hf_robust.scoring import correction_of, score
from hf_robust.spurious.alpha_files import own_alphas
from hf_robust.spurious.sheets import write_index
from hf_robust.spurious.spufix_files import fit_spufix, write_spufix
from hf_robust.spurious.training import open_training

STRENGTHS = (0.5, 1.0)


def row(metric: str, value: float | None, **changes: Any) -> dict[str, Any]:
    return {
        "model": "m", "benchmark": "spurious-imagenet", "metric": metric, "split": None, "value": value, "n": 100,
        "ci95": None, "protocol": {"rules": {"test": "x"}}, "preprocessing": "published", "run": "r", "complete": True,
        "subset": False, "headline": False, "n_failed": 0, "reason": None, "notes": [], "details": {},
        "spufix": None, "ood_score": None, "plan": {"weights": "w", "spufix": None}, **changes,
    }  # fmt: skip


def corrected(metric: str, value: float | None, strength: float, **changes: Any) -> dict[str, Any]:
    return row(metric, value, spufix={"sha256": "f" * 64, "strength": strength}, **changes)


KEY = ("m", "published", "r")
NAMES = {KEY: "m"}
CLEAN = {"benchmark": "imagenet-val"}
ROWS = [
    row("spurious_score", 0.80), row("top1_accuracy", 0.75, **CLEAN),
    corrected("spurious_score", 0.83, 0.5), corrected("top1_accuracy", 0.75, 0.5, **CLEAN),
    corrected("spurious_score", 0.861, 1.0), corrected("top1_accuracy", 0.74, 1.0, **CLEAN),
]  # fmt: skip


def cells(table: Any, place: int) -> list[str]:
    return [cell.text for cell in table.rows[place].cells]


# before and after


def test_a_correction_stands_beside_the_values_that_it_corrects() -> None:
    table = before_and_after(fixed_of("spurious-imagenet", ROWS), NAMES)
    assert table is not None
    assert table.heads[1:3] == ("spurious score before", "after")
    assert cells(table, 0) == ["0.5", "0.800", "0.830", "+0.030", "75.0 %", "75.0 %", "0.0 points"]
    assert cells(table, 1) == ["1", "0.800", "0.861", "+0.061", "75.0 %", "74.0 %", "\N{MINUS SIGN}1.0 points"]


def test_a_run_of_the_corrected_model_stands_beside_the_run_of_the_same_weights() -> None:
    plan = {"weights": "w", "spufix": "e" * 64, "spufix_strength": 0.75}
    run = row("spurious_score", 0.9, run="fixed", plan=plan)
    other = row("spurious_score", 0.5, run="other", plan={"weights": "v", "spufix": None})
    (found,) = fixed_of("spurious-imagenet", [run, other, ROWS[0]])
    assert (found.key, found.strength, found.file) == (KEY, 0.75, "e" * 64)
    assert (found.before["spurious_score"]["value"], found.after["spurious_score"]["value"]) == (0.8, 0.9)
    assert fixed_of("spurious-imagenet", [run, other]) == ()
    twice = corrected("spurious_score", None, 1.0, run="fixed", plan=plan, reason="got a run of evaluate --spufix")
    assert fixed_of("spurious-imagenet", [twice, run, ROWS[0]]) == (found,)


def test_without_imagenet_accuracy_the_accuracy_is_that_on_the_benchmarks_own_classes() -> None:
    own = [row("validation_top1_accuracy", 0.7), corrected("validation_top1_accuracy", 0.6, 1.0)]
    table = before_and_after(fixed_of("spurious-imagenet", [ROWS[0], ROWS[4], *own]), NAMES)
    assert table is not None
    assert table.heads[4] == "accuracy on its classes before"
    assert cells(table, 0)[4:] == ["70.0 %", "60.0 %", "\N{MINUS SIGN}10.0 points"]


def test_a_model_that_cannot_be_corrected_is_one_line_with_the_reason() -> None:
    refused = [
        corrected("spurious_score", None, s, reason="expected the model that it was fitted to") for s in STRENGTHS
    ]
    table = before_and_after(fixed_of("spurious-imagenet", [ROWS[0], *refused]), NAMES)
    assert table is not None
    assert len(table.rows) == 1
    assert cells(table, 0)[:3] == ["—", "0.800", "—"]
    assert "m was not corrected: expected the model that it was fitted to." in table.note


def test_without_a_correction_there_is_no_table() -> None:
    fixed = fixed_of("spurious-imagenet", ROWS[:2])
    assert (before_and_after(fixed, NAMES), beside_published(fixed, NAMES), by_class({}, [])) == (None, None, None)


def test_what_counts_as_after_is_the_largest_strength_with_a_value() -> None:
    (found,) = strongest(fixed_of("spurious-imagenet", [*ROWS[:4], corrected("spurious_score", None, 1.0, reason="x")]))
    assert found.strength == 0.5


def test_ours_stand_among_the_77_published_models_by_the_score_after() -> None:
    table = beside_published(fixed_of("spurious-imagenet", ROWS), NAMES)
    assert table is not None
    after = {b.model: b.value for b in published("spurious-imagenet", "spurious_score_spufix")}
    assert len(after) == 77
    place = next(i for i, line in enumerate(table.rows) if line.ours)
    assert (len(table.rows), table.rows[place].name) == (78, "m, strength 1")
    assert place == sum(value > 0.861 for value in after.values())
    line = next(line for line in table.rows if line.name == "resnet101")
    assert [cell.text for cell in line.cells] == ["0.748", "0.795", "+0.047", "82.8 %", "82.8 %", "0.0 points"]


def test_ours_of_another_preparation_do_not_stand_among_published_ones() -> None:
    rows = [{**r, "preprocessing": "model"} for r in ROWS]
    table = beside_published(fixed_of("spurious-imagenet", rows), {("m", "model", "r"): "m"})
    assert table is not None
    assert (len(table.rows), all(not line.ours for line in table.rows)) == (77, True)
    assert "Ours were prepared otherwise" in table.note


# the page


class Page(HTMLParser):
    """Plots by title, tables by caption, and whether a table is folded away."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.captions: dict[str, bool] = {}
        self.headings: list[str] = []
        self._at, self._folded = "", 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._at = tag
        self._folded += tag == "details"

    def handle_endtag(self, tag: str) -> None:
        self._at = ""
        self._folded -= tag == "details"

    def handle_data(self, data: str) -> None:
        if self._at == "caption":
            self.captions[data] = self._folded > 0
        elif self._at == "h4":
            self.headings.append(data)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("spufix-report")
    fix = Made(place / "runs").fitted(place / "fix.safetensors")
    told = ["report", place / "runs", "--out", place / "out", "--spufix", fix, "--allow-chance", "--no-images"]
    assert main([str(word) for word in told]) == 0
    return place / "out"


def test_the_page_shows_before_after_trade_off_and_classes(reported: Path) -> None:
    page = Page((reported / "report.html").read_text(encoding="utf-8"))
    assert page.captions["Before and after SpuFix"] is False
    assert page.captions["The 77 published models before and after SpuFix"] is True
    assert page.captions[f"By class: {len(CLASSES)}, worst first"] is True
    assert {"Score and accuracy", "What SpuFix gives and costs", "Worst classes"} <= set(page.headings)
    stems = {path.stem for path in (reported / "plots").iterdir()}
    assert stems >= {"spurious-imagenet-field", "spurious-imagenet-trade-off"}


def test_the_trade_off_tells_its_ends_in_words(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    rows = score(reported.parent / "runs", benchmarks(), allow_chance=True, replicates=0,
                 correction=correction_of(reported.parent / "fix.safetensors"))  # fmt: skip
    ends = [r["value"] for r in rows if r["metric"] == "spurious_score"]
    assert f"toy score {ends[0]:.3f} to {ends[1]:.3f}, accuracy" in text
    assert f"toy {ends[0]:.3f}, after SpuFix {ends[1]:.3f}" in text


def test_a_class_has_its_feature_its_counts_and_its_scores(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    line = re.search(r"94 hummingbird ← red feeder/<wbr>flower</th>\s*(.*?)</tr>", text, re.DOTALL)
    assert line is not None
    found = re.findall(r"<td>([^<]*)", line[1])
    assert found[0] == f"{HELD_OUT} + {SPURIOUS}"
    assert len(found) == 5
    assert all(0 <= float(value) <= 1 for value in found[1:])


def test_the_report_without_a_correction_has_no_trade_off(reported: Path, tmp_path: Path) -> None:
    out = write_report(reported.parent / "runs", tmp_path, benchmarks=benchmarks(), images=False, allow_chance=True)
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert "Before and after SpuFix" not in page.captions
    assert "What SpuFix gives and costs" not in page.headings


def test_a_strength_without_a_correction_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Made(tmp_path / "runs")
    told = ["report", tmp_path / "runs", "--out", tmp_path / "out", "--spufix-strength", 0.5]
    assert main([str(word) for word in told]) == 1
    assert "expected --spufix FILE with --spufix-strength" in capsys.readouterr().err


# zero-shot runs


class ZeroShot:
    """A made-up zero-shot run: normalised embeddings and two heads, the scale inside the weight."""

    def __init__(self, runs: Path) -> None:
        rng = np.random.default_rng(5)
        self.head = HeadWeights(10 * rng.normal(size=(1000, 12)).astype(np.float32), np.zeros(1000, np.float32))
        heads = {"imagenet-1k": self.head, "imagenet-d": HeadWeights(self.head.weight[:113], self.head.bias[:113])}
        self.train, inside, outside = (self.embeddings(rng, n) for n in (30, HELD_OUT, SPURIOUS))
        self.inside, self.outside = inside, outside
        d = imagenet_d_categories()[:6]
        groups = {"spurious_class": np.repeat(CLASSES, SPURIOUS).tolist(), "component": [0] * len(outside)}
        own = {"category": [c.folder for c in d], "nuisance": ["background", "texture", "material"] * 2}
        sources = [
            self.source("imagenet-train", np.repeat(CLASSES, 30)[:, None], self.train),
            self.source("imagenet-val", np.repeat(CLASSES, HELD_OUT)[:, None], inside),
            self.source("spurious-imagenet", [[]] * len(outside), outside, rule="spurious-image", groups=groups),
            self.source("imagenet-d", [list(c.indices) for c in d], self.embeddings(rng, 2), groups=own),
        ]
        asked = ["spurious-imagenet", "imagenet-d", "imagenet-train"]
        self.run = write_run(runs, asked, sources, heads=heads, prompts="p" * 64)

    def embeddings(self, rng: np.random.Generator, each: int) -> Any:
        rows = np.concatenate([rng.normal(size=(each, 12)) + 0.1 * self.head.weight[k] for k in CLASSES])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    def source(self, name: str, labels: Any, embeddings: Any, **more: Any) -> Source:
        return Source(name, [[int(k) for k in one] for one in labels], embeddings, column="embeddings", **more)


def test_a_zero_shot_run_is_fitted_and_corrected_on_its_embeddings(tmp_path: Path) -> None:
    made = ZeroShot(tmp_path / "runs")
    training = open_training(made.run)
    assert training.column == "embeddings"
    fitted = fit_spufix(training, own_alphas(training), dict.fromkeys(CLASSES, (0,)))
    file = tmp_path / "fix.safetensors"
    write_spufix(file, fitted)
    rows = score(tmp_path / "runs", benchmarks(), allow_chance=True, replicates=0, correction=correction_of(file))
    found = [r for r in rows if r["metric"] == "spurious_score" and r["spufix"]]
    everything = np.concatenate([made.inside, made.outside])
    logits = fitted.fix.correct(everything @ made.head.weight.T, everything).astype(np.float64)
    p = np.exp(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
    classes = np.concatenate([np.repeat(CLASSES, HELD_OUT), np.repeat(CLASSES, SPURIOUS)])
    own, positive = p[np.arange(len(p)), classes], np.arange(len(p)) < len(made.inside)
    from sklearn.metrics import average_precision_score

    expected = [average_precision_score(positive[classes == k], own[classes == k]) for k in CLASSES]
    assert [r["value"] for r in found] == [pytest.approx(np.mean(expected), abs=1e-6)]
    before = next(r for r in rows if r["metric"] == "spurious_score" and not r["spufix"])
    assert before["value"] != found[0]["value"]


def test_another_class_list_of_a_zero_shot_run_is_not_corrected_and_says_so(tmp_path: Path) -> None:
    made = ZeroShot(tmp_path / "runs")
    training = open_training(made.run)
    file = tmp_path / "fix.safetensors"
    write_spufix(file, fit_spufix(training, own_alphas(training), dict.fromkeys(CLASSES, (0,))))
    rows = score(tmp_path / "runs", benchmarks(), allow_chance=True, replicates=0, correction=correction_of(file))
    (refused,) = [r for r in rows if r["benchmark"] == "imagenet-d" and r["spufix"]]
    assert refused["value"] is None
    assert "the zero-shot head 'imagenet-d' of 113 classes" in refused["reason"]


def test_a_zero_shot_model_is_not_corrected_inside_and_the_way_that_works_is_named() -> None:
    torch = pytest.importorskip("torch")
    from hf_robust.spurious.spufix_module import correct_classifier

    facts = Preprocessing(lambda image: torch.zeros(3, 8, 8), 8, (0.0,) * 3, (1.0,) * 3, {})
    model = ImageClassifier("clip", torch.nn.Identity(), facts, imagenet_1k(), lambda batch: {}, prompts="p" * 64)
    none: Any = None
    with pytest.raises(ModelError, match=r"gives embeddings.*`hf-robust score RUNS --spufix FILE`"):
        correct_classifier(model, none)


# the index of the pages of components


def test_the_index_leads_to_every_page_in_class_order(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    for name in ("class-0908.html", "class-0094.html", "class-0003.html", "class-0094.png", "other.html"):
        (tmp_path / name).write_text("x")
    text = write_index(tmp_path).read_text(encoding="utf-8")
    assert re.findall(r'href="([^"]+)"', text) == [
        "class-0003.html", "class-0003.png", "class-0094.html", "class-0094.png", "class-0908.html", "class-0908.png",
    ]  # fmt: skip
    assert "Components of 3 classes" in text
    assert ("94 hummingbird" in text, "red feeder/flower" in text) == (True, True)
    assert ("<script" in text, "http:" in text, "https:" in text) == (False, False, False)


def test_an_index_of_nothing_says_so(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    assert "Components of 0 classes" in write_index(tmp_path).read_text(encoding="utf-8")


def test_a_correction_is_a_plain_record() -> None:
    found = fixed_of("spurious-imagenet", ROWS)
    assert [type(one) for one in found] == [Fixed, Fixed]
    assert [one.clean_after and one.clean_after["value"] for one in found] == [0.75, 0.74]
