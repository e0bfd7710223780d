"""The modules of metrics/: loaded by path without network, equal to the package's functions, plain numbers, cards."""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from packaging.requirements import Requirement
from sklearn.metrics import average_precision_score, roc_auc_score

import hf_robust
from hf_robust import metrics
from hf_robust.hub import metric_module_folders
from hf_robust.hub.app import read, score
from hf_robust.metrics.columns import class_indices, same_class

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["aupr", "aurra", "fpr_at_tpr", "l2_calibration_error", "response_rate_accuracy", "spurious_score"]
DETECTION, CONFIDENCE = ["predictions", "references"], ["predictions", "references", "confidences"]
COLUMNS = {
    "aupr": DETECTION,
    "fpr_at_tpr": DETECTION,
    "aurra": CONFIDENCE,
    "l2_calibration_error": CONFIDENCE,
    "response_rate_accuracy": CONFIDENCE,
    "spurious_score": ["predictions", "references", "is_spurious"],
}
Columns = dict[str, Any]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """A function request -> reply of one process, see evaluate_worker.py."""
    home = tmp_path_factory.mktemp("evaluate")
    environment = {**os.environ, "HF_HOME": str(home), "HF_EVALUATE_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    setup = [sys.executable, "-m", "hf_robust", "setup"]  # for the bare names in the cards
    subprocess.run(setup, cwd=ROOT, env=environment, check=True, capture_output=True)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "evaluate_worker.py")],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout

    def send(request: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(request), file=process.stdin, flush=True)
        reply: dict[str, Any] = json.loads(process.stdout.readline())
        return reply

    yield send
    process.kill()  # a tidy exit of everything that `evaluate` imported takes seconds
    process.communicate()


@pytest.fixture(scope="module")
def ask(worker: Callable[[dict[str, Any]], dict[str, Any]]) -> Ask:
    """ask(module names, batch, batch, …, option=…) -> result; an error comes back as its "Type: text"."""

    def ask(names: str | list[str], *batches: Columns, dtypes: Any = None, first: Any = None, **options: Any) -> Any:
        modules = [names] if isinstance(names, str) else names
        request = {"modules": modules, "batches": batches, "options": options, "dtypes": dtypes or {}, "first": first}
        reply = worker(request)
        return reply["result"] if "result" in reply else reply["error"]

    return ask


def rows(name: str, *, n: int = 600, seed: int = 0) -> Columns:
    """Seeded input of a module with ties, as plain lists."""
    rng = np.random.default_rng(seed)
    if name == "spurious_score":
        columns: Columns = {"predictions": rng.random(n).round(2), "references": rng.integers(0, 4, n) * 100}
        columns["is_spurious"] = rng.integers(0, 2, n)
    elif name in ("aupr", "fpr_at_tpr"):
        columns = {"predictions": rng.normal(size=n).round(1), "references": rng.integers(0, 2, n)}
    else:
        columns = {"predictions": rng.integers(0, 3, n), "references": rng.integers(0, 3, n)}
        columns["confidences"] = rng.beta(5, 2, n).round(2)
    return {column: values.tolist() for column, values in columns.items()}


def split(columns: Columns, *borders: int) -> list[Columns]:
    edges = [0, *borders, len(columns["predictions"])]
    return [{k: v[a:b] for k, v in columns.items()} for a, b in pairwise(edges)]


def of_the_package(name: str, columns: Columns) -> Any:
    """The same quantity by the functions of the package."""
    first, second, *_ = (np.array(columns[column]) for column in COLUMNS[name])
    if name == "spurious_score":
        each = asdict(metrics.spurious_score(first, second, np.array(columns["is_spurious"], dtype=bool)))
        each["per_class"] = [{k: v for k, v in row.items() if v is not None} for row in each["per_class"]]
        return each
    if name in ("aupr", "fpr_at_tpr"):
        return {name: getattr(metrics, name)(first, second.astype(bool))}
    confidence, correct = np.array(columns["confidences"]), first == second
    if name == "response_rate_accuracy":
        n = len(correct)
        curve = metrics.response_rate_accuracy(confidence, correct).tolist()
        return {"response_rates": [i / n for i in range(1, n + 1)], name: curve}
    return {name: getattr(metrics, name)(confidence, correct)}


@pytest.mark.parametrize("name", NAMES)
def test_a_module_equals_the_function_of_the_package(ask: Ask, name: str) -> None:
    assert ask(name, rows(name)) == of_the_package(name, rows(name))


@pytest.mark.parametrize("name", NAMES)
def test_batches_and_one_computation_agree(ask: Ask, name: str) -> None:
    columns = rows(name, seed=1)
    assert ask(name, *split(columns, 1, 200, 599)) == ask(name, columns)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_rows_does_not_matter(ask: Ask, name: str) -> None:
    columns, order = rows(name, seed=2), np.random.default_rng(3).permutation(600)
    shuffled = {k: [v[i] for i in order] for k, v in columns.items()}
    assert ask(name, shuffled)[name] == pytest.approx(ask(name, columns)[name], abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_columns_give_what_lists_give(ask: Ask, name: str) -> None:
    columns = rows(name, seed=4)
    flags = {"aupr": "references", "fpr_at_tpr": "references", "spurious_score": "is_spurious"}
    dtypes = {column: "int64" for column in columns if column in ("predictions", "references")}
    dtypes |= {"confidences": "float64"} if "confidences" in columns else {"predictions": "float64"}
    dtypes |= {flags[name]: "bool"} if name in flags else {}
    assert ask(name, columns, dtypes=dtypes) == ask(name, columns)


@pytest.mark.parametrize("name", ["aupr", "spurious_score"])
def test_a_module_still_works_after_an_error(ask: Ask, name: str) -> None:
    columns = rows(name, n=200)
    broken = {**columns, "predictions": [math.nan] * 200}
    assert ask(name, columns, first=broken) == of_the_package(name, columns)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_saved_and_read_back(ask: Ask, worker: Ask, name: str, tmp_path: Path) -> None:
    result = ask(name, rows(name, n=200))
    saved = worker({"save": str(tmp_path / "result.json"), "values": result})["result"]
    assert {k: saved[k] for k in result} == result


def test_combined_detection_modules_give_what_each_gives(ask: Ask) -> None:
    columns = rows("aupr")
    expected = {**of_the_package("aupr", columns), **of_the_package("fpr_at_tpr", columns)}
    assert ask(["aupr", "fpr_at_tpr"], columns) == expected


def test_combined_confidence_modules_give_what_each_gives_in_batches(ask: Ask) -> None:
    names, columns = ["aurra", "l2_calibration_error", "response_rate_accuracy"], rows("aurra")
    expected = {k: v for name in names for k, v in of_the_package(name, columns).items()}
    assert ask(names, *split(columns, 250)) == expected


def test_aupr_is_the_average_precision_of_scikit_learn(ask: Ask) -> None:
    columns = rows("aupr", seed=5)
    expected = average_precision_score(columns["references"], columns["predictions"])
    assert ask("aupr", columns)["aupr"] == pytest.approx(expected, abs=1e-12)


def test_the_spurious_score_is_the_mean_over_a_loop_of_scikit_learn(ask: Ask) -> None:
    columns = rows("spurious_score", seed=6)
    own, index = np.array(columns["predictions"]), np.array(columns["references"])
    genuine = 1 - np.array(columns["is_spurious"])
    groups = [index == k for k in np.unique(index)]
    result = ask("spurious_score", columns)
    each = [average_precision_score(genuine[g], own[g]) for g in groups]
    assert result["spurious_score"] == pytest.approx(np.mean(each), abs=1e-12)
    assert [row["average_precision"] for row in result["per_class"]] == pytest.approx(each, abs=1e-12)
    areas = [roc_auc_score(genuine[g], own[g]) for g in groups]
    assert result["spurious_auroc"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert result["joint_average_precision"] == pytest.approx(average_precision_score(genuine, own), abs=1e-12)
    assert result["joint_auroc"] == pytest.approx(roc_auc_score(genuine, own), abs=1e-12)


def test_scores_that_differ_in_the_twelfth_digit_are_no_tie(ask: Ask) -> None:
    columns = {"predictions": [0.5, 0.5 + 1e-12], "references": [0, 1]}  # float32 would make one threshold of them
    assert ask("aupr", columns) == {"aupr": 1.0}


def test_fpr_at_tpr_takes_its_options(ask: Ask) -> None:
    columns = {"predictions": [4, 3, 2, 1], "references": [1, 0, 1, 0]}
    assert ask("fpr_at_tpr", columns, tpr=0.5) == {"fpr_at_tpr": 0.0}
    assert ask("fpr_at_tpr", columns, tpr=0.95) == {"fpr_at_tpr": 1 / 2}
    # true positive rates 1/2 (no false alarm) and 1 (one of one): the released code takes 1/2, the nearest to 0.6
    tied = {"predictions": [3, 2, 2], "references": [1, 1, 0]}
    assert ask("fpr_at_tpr", tied, tpr=0.6, released_code=True) == {"fpr_at_tpr": 0.0}
    assert ask("fpr_at_tpr", tied, tpr=0.6) == {"fpr_at_tpr": 1.0}


def test_the_calibration_error_takes_its_options(ask: Ask) -> None:
    columns = {"predictions": [1, 2, 3, 4], "references": [1, 9, 3, 9], "confidences": [0.8, 0.8, 0.9, 0.9]}
    both, first = math.sqrt((0.3**2 + 0.4**2) / 2), math.sqrt(0.3**2 / 2)
    assert ask("l2_calibration_error", columns, bin_size=2)["l2_calibration_error"] == pytest.approx(both)
    released = ask("l2_calibration_error", columns, bin_size=2, released_code=True)
    assert released["l2_calibration_error"] == pytest.approx(first)


def test_fewer_rows_than_a_bin_are_flagged_by_a_warning(worker: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    request = {"modules": ["l2_calibration_error"], "batches": [rows("l2_calibration_error", n=99)]}
    (warning,) = worker(request)["warnings"]
    assert warning.startswith("99 rows are fewer than a bin of 100: all of them make one bin")
    assert worker({**request, "batches": [rows("l2_calibration_error", n=100)]})["warnings"] == []


def test_response_rates_pick_points_of_the_curve(ask: Ask) -> None:
    columns = {"predictions": [1, 5, 3, 2], "references": [1, 4, 3, 2], "confidences": [0.9, 0.8, 0.7, 0.6]}
    result = ask("response_rate_accuracy", columns, response_rates=[0.01, 0.25, 0.26, 0.75, 1.0])
    assert result["response_rate_accuracy"] == [1.0, 1.0, 1 / 2, 2 / 3, 3 / 4]  # ceil of 0.04, 1, 1.04, 3, 4 rows


def test_a_response_rate_of_seven_per_cent_of_100_rows_answers_seven(ask: Ask) -> None:
    columns = {"predictions": [0] * 100, "references": [0] * 7 + [1] * 93, "confidences": [*range(100, 0, -1)]}
    assert ask("response_rate_accuracy", columns, response_rates=[0.07])["response_rate_accuracy"] == [1.0]


@pytest.mark.parametrize("name", ["aurra", "l2_calibration_error", "response_rate_accuracy"])
def test_one_row_is_enough(ask: Ask, name: str) -> None:
    columns = {"predictions": [3], "references": [3], "confidences": [0.75]}
    expected = {"aurra": 1.0, "l2_calibration_error": 0.25, "response_rate_accuracy": [1.0]}  # |0.75 - 1|
    assert ask(name, columns)[name] == expected[name]


TWO: Columns = {"predictions": [0.1, 0.2], "references": [0, 1]}
SOME: Columns = {"predictions": [1, 2], "references": [1, 1], "confidences": [0.9, 0.8]}
HALF: Columns = {"predictions": [0.5, 0.4], "references": [7, 7], "is_spurious": [0, 1]}
WRONG: list[tuple[str, Columns, dict[str, Any], str]] = [
    ("aupr", {**TWO, "predictions": [0.1, math.nan]}, {}, "expected finite values in scores, got 1 of 2 that are not"),
    ("aupr", {**TWO, "references": [0, 0]}, {}, "expected both groups in is_ood, got no out-of-distribution row"),
    ("aupr", {**TWO, "references": [0, 2]}, {}, "expected only 0 and 1 in is_ood, got 2.0 at row 1"),
    ("aupr", {**TWO, "references": [0, 0.7]}, {}, "expected only 0 and 1 in is_ood, got 0.7 at row 1"),
    ("aupr", {**TWO, "references": [0]}, {}, "Mismatch in the number of predictions (2) and references (1)"),
    ("fpr_at_tpr", TWO, {"tpr": 95}, "expected tpr in (0, 1], got 95"),
    ("aurra", {**SOME, "predictions": [0.9, 0.2]}, {}, "expected class indices in predictions, got 0.9 at row 0"),
    ("aurra", {**SOME, "references": ["cat", "dog"]}, {}, "could not convert string to float: 'cat'"),
    ("aurra", TWO, {}, "Evaluation module inputs are missing: ['confidences']"),
    ("l2_calibration_error", {**SOME, "confidences": [90, 80]}, {}, "expected probabilities in [0, 1] in confidence"),
    ("l2_calibration_error", SOME, {"released_code": True}, "expected at least 100 examples for the released code"),
    ("l2_calibration_error", SOME, {"bin_size": 0}, "expected bin_size >= 1, got 0"),
    ("response_rate_accuracy", SOME, {"response_rates": [0.5, 2]}, "expected response_rates in (0, 1], got 2"),
    ("response_rate_accuracy", SOME, {"response_rates": []}, "expected response_rates in (0, 1], got none"),
    (
        "spurious_score",
        {**HALF, "is_spurious": [0, 0]},
        {},
        "expected validation and spurious rows of each class, got 1",
    ),
    ("spurious_score", {**HALF, "references": [7, 0.5]}, {}, "expected class indices in references, got 0.5 at row 1"),
]


@pytest.mark.parametrize(("name", "columns", "options", "text"), WRONG)
def test_a_mistake_comes_through_readable(ask: Ask, name: str, columns: Columns, options: Any, text: str) -> None:
    assert str(ask(name, columns, **options)).startswith(f"ValueError: {text}")


def test_a_misspelt_option_is_an_error_that_names_it(ask: Ask) -> None:
    reply = ask("fpr_at_tpr", TWO, trp=0.9)
    assert reply.startswith("TypeError:")
    assert "'trp'" in reply


@pytest.mark.parametrize("name", NAMES)
def test_a_module_knows_its_name_columns_and_source(worker: Ask, name: str) -> None:
    facts = worker({"modules": [name], "facts": True})["result"]
    assert (facts["name"], facts["module_type"], facts["columns"]) == (name, "metric", COLUMNS[name])
    assert facts["citation"].startswith("@inproceedings")
    assert all(f"    {column}: " in facts["inputs_description"] for column in [*COLUMNS[name], name])


@pytest.mark.parametrize("name", NAMES)
def test_the_worked_example_of_a_card_is_true(worker: Ask, name: str) -> None:
    failed, tried, said = worker({"page": f"metrics/{name}/README.md"})["result"]
    assert (failed, said) == (0, "")
    assert tried >= 4


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_what_a_space_and_a_reader_need(ask: Ask, name: str) -> None:
    _, front, text = (ROOT / "metrics" / name / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    facts = yaml.safe_load(front)
    assert (facts["sdk"], facts["app_file"], facts["tags"]) == ("gradio", "app.py", ["evaluate", "metric"])
    assert facts["title"]
    assert 0 < len(facts["short_description"]) <= 60  # the Hub refuses longer ones
    assert facts["python_version"] == "3.12"  # a Space takes 3.10 unless told, and the package needs 3.11
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["Formula", "Inputs", "Outputs", "Worked example", "Limits", "Citation"]
    inputs, outputs = text.split("## Outputs")
    assert [column for column in COLUMNS[name] if f"| `{column}` |" not in inputs] == []
    assert [key for key in ask(name, rows(name, n=100)) if f"| `{key}` |" not in outputs] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_requirements_of_a_space_allow_this_version(name: str) -> None:
    lines = (ROOT / "metrics" / name / "requirements.txt").read_text(encoding="utf-8").split("\n")
    wanted = {r.name: r for r in map(Requirement, filter(None, lines))}
    assert hf_robust.__version__ in wanted["hf-robust"].specifier
    assert set(wanted) == {"hf-robust", "matplotlib"}


def page_of(name: str) -> Any:
    pytest.importorskip("matplotlib", reason="needs the report extra")
    return runpy.run_path(str(ROOT / "metrics" / name / "app.py"))["PAGE"]


def example_of(name: str, page: Any) -> tuple[float, int]:
    """The number that the page's example has by the functions of the package, with the page's options; its rows."""
    columns = {c: v.tolist() for c, v in zip(COLUMNS[name], read(page.table, page.table.csv()), strict=True)}
    if name == "spurious_score":
        columns["references"] = [int(k) for k in columns["references"]]
    expected, n = of_the_package(name, columns)[name], len(columns["predictions"])
    if name == "response_rate_accuracy":
        expected = expected[n // 2 - 1]
    if name == "l2_calibration_error":
        correct = np.array(columns["predictions"]) == columns["references"]
        expected = metrics.calibration_error(columns["confidences"], correct, bin_size=4)
    return expected, n


@pytest.mark.parametrize("name", NAMES)
def test_the_page_computes_its_own_example(name: str) -> None:
    page = page_of(name)
    text, figure = score(page, page.table.csv(), None, *(option.value for option in page.options))
    expected, n = example_of(name, page)
    assert text.splitlines() == [f"## {page.result} {expected:.4f}", f"{n} rows"]
    assert len(figure.axes) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_options_of_a_page_are_options_of_its_metric(name: str) -> None:
    page = page_of(name)
    taken = {"response_rate_accuracy": {"rate"}, "l2_calibration_error": {"bin_size", "released_code"}}
    assert {o.name for o in page.options} == {"fpr_at_tpr": {"tpr", "released_code"}, **taken}.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_card_down_to_its_formula(name: str) -> None:
    page = page_of(name)
    assert page.about().startswith(f"# {page.title()}\n")
    assert "$$" in page.about()
    assert "## Inputs" not in page.about()
    assert "sdk:" not in page.about()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_names_a_missing_column_and_reads_an_uploaded_file(name: str, tmp_path: Path) -> None:
    page = page_of(name)
    values = [option.value for option in page.options]
    with pytest.raises(ValueError, match=rf"expected the columns .*, got none named '{page.table.columns[0]}'"):
        score(page, "a,b\n1,2\n", None, *values)
    (tmp_path / "scores.csv").write_text(page.table.csv(), encoding="utf-8")
    uploaded = score(page, "", str(tmp_path / "scores.csv"), *values)
    assert uploaded[0] == score(page, page.table.csv(), None, *values)[0]


def test_the_page_names_a_cell_that_is_no_number() -> None:
    with pytest.raises(ValueError, match="expected numbers in the column 'is_ood', got 'yes' in row 2"):
        read(page_of("aupr").table, "score,is_ood\n0.5,1\n0.4,yes\n")
    with pytest.raises(ValueError, match="expected numbers in the column 'score', got an empty cell in row 1"):
        read(page_of("aupr").table, "score,is_ood\n,1\n0.4,0\n")


def test_the_page_takes_flags_as_words_further_columns_and_any_order() -> None:
    page = page_of("aupr")
    assert score(page, "x,is_ood,score\na,True,0.9\nb,False,0.8\n")[0] == "## AUPR 1.0000\n2 rows"


def test_the_page_names_an_option_that_was_left_empty() -> None:
    page = page_of("l2_calibration_error")
    with pytest.raises(ValueError, match=r"expected a number for 'rows a bin .*', got an empty box"):
        score(page, page.table.csv(), None, None, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_card_cites_what_the_catalogue_cites(worker: Ask, name: str) -> None:
    text = (ROOT / "metrics" / name / "README.md").read_text(encoding="utf-8")
    assert (
        text.split("```bibtex\n")[1].removesuffix("\n```\n")
        == worker({"modules": [name], "facts": True})["result"]["citation"]
    )


def test_the_folders_of_the_modules_are_found() -> None:
    folders = metric_module_folders()
    assert list(folders) == NAMES
    for name, folder in folders.items():
        assert {f"{name}.py", "README.md", "app.py", "requirements.txt"} <= {p.name for p in folder.iterdir()}


def test_class_indices_take_whole_numbers_of_any_type_and_nothing_else() -> None:
    assert class_indices(np.array([3.0, 94.0], dtype=np.float16), "references").tolist() == [3, 94]
    with pytest.raises(ValueError, match=r"class indices in references, got 0\.25 at row 1: pass the index of a class"):
        class_indices([1, 0.25], "references")
    with pytest.raises(ValueError, match=r"class indices in references, got 1e\+300 at row 0"):
        class_indices([1e300], "references")
    with pytest.raises(ValueError, match="expected references of shape"):
        same_class([1, 2], [1])


@pytest.fixture(scope="module")
def vectors() -> Path:
    folder = ROOT.parent / "shared" / "reference" / "vectors"
    if not folder.is_dir():
        pytest.skip("needs the reference data in ../shared")
    return folder


def test_detection_modules_give_the_reference_values(ask: Ask, vectors: Path) -> None:
    draw = runpy.run_path(str(vectors / "inputs.py"))["ood"]
    for case in json.loads((vectors / "calibration_and_ood.json").read_text())["ood"]:
        out, inside = draw(case["recipe"])
        columns = {"predictions": [*out, *inside], "references": [1] * len(out) + [0] * len(inside)}
        assert ask("aupr", columns)["aupr"] == pytest.approx(case["aupr"], abs=1e-9)
        assert ask("fpr_at_tpr", columns)["fpr_at_tpr"] == pytest.approx(case["fpr95"], abs=1e-9)
        released = ask("fpr_at_tpr", columns, released_code=True)["fpr_at_tpr"]
        assert released == pytest.approx(case["fpr95_released_code"], abs=1e-9)


def test_confidence_modules_give_the_reference_values(ask: Ask, vectors: Path) -> None:
    draw = runpy.run_path(str(vectors / "inputs.py"))["calibration"]
    for case in json.loads((vectors / "calibration_and_ood.json").read_text())["calibration"]:
        confidence, correct = draw(case["recipe"])
        columns = {"predictions": correct.tolist(), "references": [1] * len(correct), "confidences": [*confidence]}
        assert ask("aurra", columns)["aurra"] == pytest.approx(case["aurra"], abs=1e-9)
        for released, key in ((False, "all_bins"), (True, "released_code")):
            value = ask("l2_calibration_error", columns, released_code=released)["l2_calibration_error"]
            assert value == pytest.approx(case[f"rms_calibration_error_{key}"], abs=1e-9)
        curve = ask("response_rate_accuracy", columns, response_rates=[1.0])["response_rate_accuracy"]
        assert curve == [pytest.approx(case["accuracy"], abs=1e-12)]


def test_the_spurious_module_gives_the_reference_values(ask: Ask, vectors: Path) -> None:
    draw = runpy.run_path(str(vectors / "inputs.py"))["spurious"]
    for case in json.loads((vectors / "spurious_score.json").read_text()):
        val, val_class, spur, spur_class = draw(case["recipe"])
        own = metrics.class_probability(np.concatenate([val, spur]), np.concatenate([val_class, spur_class]))
        columns = {"predictions": own.tolist(), "references": [*map(int, val_class), *map(int, spur_class)]}
        result = ask("spurious_score", {**columns, "is_spurious": [0] * len(val) + [1] * len(spur)})
        released = case["released_code"]
        assert result["spurious_score"] == pytest.approx(released["mean_average_precision"], abs=1e-9)
        assert result["joint_average_precision"] == pytest.approx(released["joint_average_precision"], abs=1e-9)
        assert result["spurious_auroc"] == pytest.approx(case["auroc"]["mean"], abs=1e-9)
        assert result["joint_auroc"] == pytest.approx(case["auroc"]["joint"], abs=1e-9)
        each = [row["average_precision"] for row in result["per_class"]]
        assert each == pytest.approx(released["class_average_precision"], abs=1e-9)
