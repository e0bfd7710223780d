"""People beside the models: their rows in results, tables, terminal and report, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from naming_world import answer, make, people_of, row_of, small_sets
from rich.console import Console
from tiny_runs import Sets, run

from hf_robust.benchmarks import benchmarks
from hf_robust.cli import main
from hf_robust.report import show
from hf_robust.report.ties import ranks
from hf_robust.scoring import score
from hf_robust.scoring.people import people_rows, write_people


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return small_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def runs(sets: Sets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a tiny model on the same pictures."""
    folder = tmp_path_factory.mktemp("runs")
    for size in (4, 8):
        run(sets, folder, "plain", "imagenet-a", micro_batch=size)
    return folder


@pytest.fixture(scope="module")
def record(sets: Sets, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What people got right in a finished review."""
    folder = tmp_path_factory.mktemp("review")
    make(sets, folder, "--imagenet-val", sets.validation)
    answer(folder, 0.95)
    assert main(["review", "result", str(folder), "--to", str(runs)]) == 0
    return people_of(runs)


@pytest.fixture
def asked(runs: Path, record: dict[str, Any]) -> Path:
    """The runs with people beside them."""
    write_people(runs, record)
    return runs


def test_people_change_no_result_rank_or_gate_of_a_model(asked: Path) -> None:
    rows = score(asked, benchmarks(), allow_chance=True)
    people = [row for row in rows if row.get("kind") == "people"]
    assert [row["model"] for row in people] == ["people (majority of 3)", "people (one answer)"]
    assert rows[-2:] == people
    assert not any(row["headline"] or row["run"] for row in people)
    models = [row for row in rows if row not in people]
    (asked / "people" / "imagenet-a.json").unlink()
    assert score(asked, benchmarks(), allow_chance=True) == models
    assert ranks(rows) == ranks(models)


@pytest.fixture(scope="module")
def report(runs: Path, record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Ending -> text of each file of a report whose record of people holds a script."""
    out = tmp_path_factory.mktemp("report")
    write_people(runs, {**record, "stated": f"{record['stated']} <script>alert(1)</script>"})
    assert main(["report", str(runs), "--out", str(out), "--allow-chance", "--no-images"]) == 0
    return {path.suffix: path.read_text(encoding="utf-8") for path in out.glob("*.*")}


def test_score_shows_people_below_the_models(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(asked), "--allow-chance"]) == 0
    said = capsys.readouterr().out
    assert said.rindex("plain") < said.index("people (majority of 3)") < said.index("people (one answer)")


def test_the_short_table_shows_people_below_one_model_and_below_several(
    asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = score(asked, benchmarks(), allow_chance=True)
    first = rows[0]["run"]
    for shown in (rows, [row for row in rows if row["run"] in (first, "")]):
        show(shown, Console(width=120, color_system=None))
        said = capsys.readouterr().out
        value = f"{100 * people_of(asked)['majority']['value']:.1f}"
        line = next(line for line in said.splitlines() if "people (majority of 3)" in line)
        assert value in line
        assert line.split()[-1] == "24"  # n


def test_every_table_shows_people_below_the_models(report: dict[str, str], record: dict[str, Any]) -> None:
    value = f"{100 * record['majority']['value']:.1f}"
    for kind in (".md", ".tex", ".html"):
        assert "people (majority of 3)" in report[kind]
        assert value in report[kind]
        assert f"of {record['answers']['n']} answers right" in report[kind]
    assert ",people," in report[".csv"]
    assert "### People" in report[".md"]
    board = [line.split(" | ")[0] for line in report[".md"].splitlines() if line.startswith("| ")][2:6]
    assert board[2:] == ["| people (majority of 3)", "| people (one answer)"]


def test_the_report_names_people_without_a_number_rank_or_verdict(report: dict[str, str]) -> None:
    page = report[".html"]
    rows = [part.split("</tr>")[0] for part in page.split('<tr class="people">')[1:]]
    assert len(rows) == 4  # two in the leaderboard, two in the section
    assert not any('class="n"' in row for row in rows)
    ranked = [row for row in rows if row.split("</th>")[1].lstrip().startswith("<td></td>")]
    assert len(ranked) == 2  # in the section, where models have a rank
    verdicts = page.split('<ol class="verdicts">')[1].split("</ol>")[0]
    assert "people" not in verdicts
    assert "the paper states about 90 % for ImageNet-A" in page


def test_text_of_a_record_is_escaped_in_the_report(report: dict[str, str]) -> None:
    assert ("<script" in report[".html"], "&lt;script&gt;alert(1)" in report[".html"]) == (False, True)
    assert "<script" not in report[".md"]


def test_people_of_a_benchmark_that_no_model_was_asked_about_have_no_row(asked: Path) -> None:
    assert people_rows(asked, [row_of("imagenet-d")]) == []


def test_another_build_of_the_set_is_told(asked: Path) -> None:
    record = people_of(asked)
    same = {**row_of("imagenet-a"), "protocol": {"data_fingerprints": {"test": record["fingerprint"]}}}
    other = {**row_of("imagenet-a"), "protocol": {"data_fingerprints": {"test": "0" * 64}}}
    told = [any("another build" in note for note in people_rows(asked, [row])[0]["notes"]) for row in (same, other)]
    assert told == [False, True]


def test_the_models_of_the_runs_saw_the_set_that_people_saw(asked: Path) -> None:
    rows = score(asked, benchmarks(), allow_chance=True)
    assert not any("another build" in note for row in rows for note in row["notes"])
    assert {row["protocol"]["data_fingerprints"]["test"] for row in rows[:-2]} == {people_of(asked)["fingerprint"]}


BROKEN: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "no JSON": lambda record: "{",
    "a list": lambda record: "[]",
    "a file of another program": lambda record: json.dumps({"benchmark": "imagenet-a", "accuracy": 0.9}),
    "a newer format": lambda record: json.dumps({**record, "format": 2}),
    "another benchmark": lambda record: json.dumps({**record, "benchmark": "imagenet-d"}),
    "more right than asked": lambda record: json.dumps({**record, "majority": {**record["majority"], "right": 99}}),
    "a value that does not fit": lambda record: json.dumps({**record, "answers": {**record["answers"], "value": 0.5}}),
    "an interval beyond 1": lambda record: json.dumps({**record, "answers": {**record["answers"], "wilson": [0, 2]}}),
    "not a number": lambda record: json.dumps({**record, "ties": "none"}),
    "a guess beyond certainty": lambda record: json.dumps({**record, "chance": 1.5}),
    "no choices": lambda record: json.dumps({**record, "choices": 0}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_damaged_or_foreign_file_is_an_error_that_names_it(
    asked: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = asked / "people" / "imagenet-a.json"
    path.write_text(BROKEN[what](people_of(asked)), encoding="utf-8")
    capsys.readouterr()
    assert main(["score", str(asked), "--allow-chance"]) == 1
    said = capsys.readouterr().err
    path.unlink()
    assert f"expected people's answers that `hf-robust review result --to` wrote in {path}, got" in said
    assert "Traceback" not in said
