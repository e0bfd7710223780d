"""results.json, table.md, table.csv, the terminal table and the published numbers."""

from __future__ import annotations

import csv
import io
import json
import random
import re

import pytest
from rich.console import Console

from hf_robust.report import as_document, published, show, write
from hf_robust.report.published import SOURCES
from hf_robust.report.tables import csv_text, escape, markdown

LONG = "timm/eva02_large_patch14_448.mim_m38m_ft_in22k_in1k"
HOSTILE = "evil|name\nsecond <b>line</b> `x` \x1b[31m"


def result(**changes):
    row = {
        "model": "offline/efficientnet_lite0", "benchmark": "imagenet-a", "metric": "top1_accuracy", "split": None,
        "value": 0.0305, "n": 7500, "ci95": [0.0269, 0.0347], "protocol": {"classes": "the 200 classes"},
        "preprocessing": "model", "run": "lite0-3fa9", "complete": True, "subset": False, "headline": True,
        "n_failed": 0, "reason": None, "notes": [], "details": {},
    }  # fmt: skip
    assert set(changes) <= set(row)
    return {**row, **changes}


def failed(**changes):
    return result(**{"metric": None, "value": None, "n": 0, "ci95": None, "headline": False, **changes})


def rows_of(text, heading):
    """Cells of the Markdown table under a heading, split at unescaped bars."""
    section = text.split(heading, 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def printed(results, width=80, **options):
    stream = io.StringIO()
    show(results, Console(file=stream, width=width), **options)
    return stream.getvalue()


# files


def test_the_folder_holds_json_markdown_and_csv_and_nothing_else(tmp_path):
    out = write([result()], tmp_path / "report")
    assert sorted(p.name for p in out.iterdir()) == ["results.json", "table.csv", "table.md"]
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert content == {"schema_version": 1, "results": [result()]} == as_document([result()])


def test_the_files_do_not_depend_on_the_order_of_results(tmp_path):
    rows = [
        result(model=m, benchmark=b, split=s) for m in "ab" for b in ("imagenet-a", "imagenet-d") for s in (None, "x")
    ]
    shuffled = random.Random(0).sample(rows, len(rows))
    a, b = write(rows, tmp_path / "a"), write(shuffled, tmp_path / "b")
    for name in ("results.json", "table.md", "table.csv"):
        assert (a / name).read_bytes() == (b / name).read_bytes()


def test_nan_is_refused_and_the_old_files_stay(tmp_path):
    out = write([result()], tmp_path)
    before = (out / "results.json").read_bytes()
    with pytest.raises(
        ValueError, match=r"in top1_accuracy of 'offline/efficientnet_lite0' on imagenet-a \(result 1\)"
    ):
        write([result(), result(value=float("nan"))], tmp_path)
    assert (out / "results.json").read_bytes() == before


def test_a_result_without_a_field_is_named(tmp_path):
    row = result()
    del row["n"], row["run"]
    with pytest.raises(KeyError, match="result 0 lacks n, run"):
        write([row], tmp_path)


def test_no_results_give_readable_files(tmp_path):
    assert "No results." in (write([], tmp_path) / "table.md").read_text(encoding="utf-8")


# the leaderboard


def test_a_headline_is_shown_in_per_cent_with_its_interval():
    header, _, line = rows_of(markdown([result(value=0.91549, ci95=[0.884, 0.93911])]), "# Results")
    assert header == ["Model", "Preprocessing", "Run", "imagenet-a top1_accuracy (%)"]
    assert line == ["offline/efficientnet_lite0", "model", "lite0-3fa9", "91.5 [88.4, 93.9]"]


def test_one_line_a_model_preprocessing_and_run():
    rows = [result(), result(preprocessing="published"), result(run="lite0-77aa"), result(benchmark="imagenet-d")]
    table = rows_of(markdown(rows), "# Results")[2:]
    assert [line[1:3] for line in table] == [
        ["model", "lite0-3fa9"],
        ["model", "lite0-77aa"],
        ["published", "lite0-3fa9"],
    ]


def test_a_failed_model_stays_with_its_reason_in_a_footnote():
    text = markdown([result(), failed(model="hf/missing", reason="no such folder")])
    assert rows_of(text, "# Results")[2][3] == "— (1)"
    assert "(1) hf/missing: no such folder" in text


def test_a_model_that_failed_before_any_benchmark_is_empty_everywhere():
    text = markdown(
        [result(), result(benchmark="imagenet-d"), failed(model="broken", benchmark=None, reason="bad head")]
    )
    assert rows_of(text, "# Results")[2][3:] == ["— (1)", "— (1)"]
    assert "(1) broken: bad head" in text


def test_an_undefined_headline_shows_its_reason_and_what_was_not_asked_for_says_so():
    text = markdown([result(value=None, ci95=None, reason="near chance"), result(model="x", benchmark="imagenet-d")])
    assert rows_of(text, "# Results")[2][3:] == ["— (1)", "— (2)"]
    assert "(1) offline/efficientnet_lite0: near chance" in text
    assert "(2) not evaluated" in text


def test_incomplete_subset_and_unread_pictures_are_marked_and_explained():
    text = markdown([
        result(complete=False, notes=["n01440764 has 3 of 50 pictures"], subset=True, n_failed=2),
        result(model="other"),
    ])  # fmt: skip
    assert rows_of(text, "# Results")[2][3].startswith("3.0†‡§ [")
    assert "† incomplete: not all pictures of the official data were evaluated." in text
    assert "imagenet-a: n01440764 has 3 of 50 pictures." in text
    assert "‡ subset: only a sample was evaluated (--limit). imagenet-a." in text
    assert "imagenet-a with offline/efficientnet_lite0: 2 unread." in text


def test_complete_results_have_no_legend():
    assert not set("†‡§") & set(markdown([result()]))


def test_a_detection_headline_stands_beside_its_in_distribution_accuracy():
    rows = [
        result(benchmark="imagenet-o", metric="aupr", value=0.174, ci95=None),
        result(benchmark="imagenet-o", metric="id_accuracy", value=0.81, headline=False),
    ]
    header, _, line = rows_of(markdown(rows), "# Results")
    assert header[3:] == ["imagenet-o aupr (%)", "id_accuracy (%)"]
    assert line[3:] == ["17.4", "81.0"]
    assert "id acc 81" in printed(rows)


def test_the_value_of_one_split_never_stands_for_the_whole():
    rows = [result(value=None, ci95=None, reason="undefined"), result(split="texture", value=0.5)]
    assert rows_of(markdown(rows), "# Results")[2][3] == "— (1)"


# sections


def test_a_section_shows_every_metric_and_split_with_its_unit():
    rows = [
        result(value=0.25, ci95=[0.2, 0.3]),
        result(split="texture", value=0.125, ci95=None, n=498, headline=False),
        result(metric="aurra", value=0.25, ci95=None, headline=False),
        result(metric="accuracy_drop", value=-0.01, ci95=None, headline=False),
    ]
    lines = rows_of(markdown(rows), "## imagenet-a")[2:]
    assert [[line[0], line[1], *line[5:9]] for line in lines] == [
        ["top1_accuracy", "all", "25.00", "%", "[20.00, 30.00]", "7500"],
        ["top1_accuracy", "texture", "12.50", "%", "", "498"],
        ["accuracy_drop", "all", "-1.00", "% points", "", "7500"],
        ["aurra", "all", "0.2500", "0–1", "", "7500"],
    ]


def test_the_protocol_is_stated_once_and_what_differs_by_metric():
    rows = [
        result(protocol={"classes": "200", "estimator": "argmax"}),
        result(metric="aurra", headline=False, protocol={"classes": "200", "estimator": "mean of the curve"}),
    ]
    text = markdown(rows)
    assert "\nProtocol: classes: 200.\n" in text
    assert "\n- top1_accuracy: estimator: argmax\n- aurra: estimator: mean of the curve\n" in text


# hostile names


def test_a_hostile_name_stays_in_its_cell():
    text = markdown([result(model=HOSTILE), failed(model="x", reason="a | b\nc")])
    for line in rows_of(text, "# Results"):
        assert len(line) == 4
    for line in rows_of(text, "## imagenet-a"):
        assert len(line) == 10
    assert "\x1b" not in text
    assert "<b>" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tf_efficientnet_lite0", "tf_efficientnet_lite0"),
        ("_init_", r"\_init\_"),
        ("a|b", r"a\|b"),
        ("\\|", r"\\\|"),
        ("[x](y)", r"\[x\](y)"),
        ("a\u202eb\r\nc", "a\ufffdb c"),
    ],
)
def test_escaped_text_shows_the_same_characters(text, shown):
    assert escape(text) == shown


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-2", "@sum", "\t=1"])
def test_no_cell_of_the_csv_is_a_formula(name):
    rows = list(csv.DictReader(io.StringIO(csv_text([result(model=name, notes=[name], protocol={"classes": name})]))))
    assert {rows[0][column] for column in ("model", "notes", "protocol_classes")} == {"'" + name.strip()}


def test_csv_numbers_are_fractions_with_all_digits_and_may_be_negative():
    rows = list(csv.DictReader(io.StringIO(csv_text([result(value=-1 / 3), failed(reason="r")]))))
    assert float(rows[0]["value"]) == -1 / 3
    assert (rows[0]["ci95_low"], rows[1]["value"], rows[1]["reason"]) == ("0.0269", "", "r")


# the terminal


def test_the_terminal_table_fits_eighty_columns_with_long_names_and_five_benchmarks():
    names = ("imagenet-a", "imagenet-d", "imagenet-o", "imagenet-val", "spurious-imagenet")
    rows = [result(model=LONG, benchmark=name, value=1.0, ci95=[0.999, 1.0], complete=False) for name in names]
    text = printed(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert LONG in "".join(match.group(1) for match in re.finditer(r"(?m)^ (\S+)", text))
    assert text.count("100.0†") == text.count("99.9–100.0") == 5


def test_more_benchmarks_than_fit_continue_in_a_second_table():
    rows = [result(benchmark=f"own-{i}", ci95=[0.0269, 0.0347]) for i in range(9)]
    text = printed(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("2.7–3.5") == 9
    assert all(f"own-{i} " in text for i in range(9))


def test_the_terminal_names_failures_and_prints_no_escape_of_a_name():
    text = printed([result(), failed(model=HOSTILE, reason="no such folder")])
    assert "no such folder" in text
    assert "\x1b" not in text
    assert "[/red]" in printed([result(model="a[/red]b")], width=120)


def test_the_terminal_tells_two_lines_of_one_model_apart():
    text = printed([result(), result(preprocessing="published", run="other")], width=120)
    assert "model preprocessing" in text
    assert "published preprocessing" in text


def test_the_terminal_shows_every_value_on_request():
    rows = [
        result(model=LONG, value=0.25, ci95=[0.2, 0.3]),
        result(
            model=LONG,
            metric="rms_calibration_error_released_code",
            value=None,
            ci95=None,
            headline=False,
            split="background",
            reason="fewer than a bin",
        ),
    ]
    assert "rms_cal" not in printed(rows)
    text = printed(rows, everything=True)
    assert "25.00 %  20.00–30.00  7500" in re.sub(" +", lambda m: "  " if len(m[0]) > 1 else " ", text)
    assert max(map(len, text.splitlines())) <= 80
    assert "rms_calibration_error_released_code" in text
    assert "rms_calibration_error_released_code: fewer than a bin" in text


def test_the_terminal_says_when_there_is_nothing():
    assert printed([]) == "No results.\n"


# published numbers


def test_published_numbers_are_fractions_with_known_sources():
    for benchmark, count in (("imagenet-a", 1556 * 2 + 335 * 2 + 7), ("imagenet-val", 335), ("imagenet-o", 12)):
        assert len(published(benchmark)) == count
    every = [b for name in ("imagenet-a", "imagenet-o", "imagenet-val", "spurious-imagenet") for b in published(name)]
    assert all(0 <= b.value <= 1 and b.source in SOURCES and b.preprocessing in ("model", "published") for b in every)
    assert published("imagenet-d") == ()


@pytest.mark.parametrize(
    ("benchmark", "metric", "model", "value"),
    [
        ("imagenet-a", "top1_accuracy", "tf_efficientnet_lite0.in1k", 3.053 / 100),
        ("imagenet-a", "top1_accuracy", "alexnet", 1.773333 / 100),
        ("imagenet-a", "top1_accuracy", "resnet50", 0.0),
        ("imagenet-o", "aupr", "DeiT-T", 17.4 / 100),
        ("spurious-imagenet", "spurious_score", "volo_d3_224", 0.863),
        ("spurious-imagenet", "spurious_score_spufix", "robust_resnet", 0.763),
        ("spurious-imagenet", "imagenet_top1_accuracy", "resnet101", 82.8 / 100),
    ],
)
def test_a_published_number_is_found_by_name(benchmark, metric, model, value):
    assert [b.value for b in published(benchmark, metric) if b.model == model] == [pytest.approx(value, abs=1e-6)]


def test_every_timm_entry_is_unique_by_model_and_size():
    timm = [(b.model, b.size) for b in published("imagenet-a", "top1_accuracy") if b.source == "timm"]
    assert len(timm) == len(set(timm)) == 1556
