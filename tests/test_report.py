"""results.json, table.md, table.csv, the terminal table and the published numbers."""

from __future__ import annotations

import csv
import io
import json
import random
import re

import pytest
from rich.cells import cell_len
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


def test_the_folder_holds_json_and_three_tables_and_nothing_else(tmp_path):
    out = write([result()], tmp_path / "report")
    assert sorted(p.name for p in out.iterdir()) == ["results.json", "table.csv", "table.md", "table.tex"]
    content = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert content == {"schema_version": 1, "results": [result()]} == as_document([result()])


def test_the_files_do_not_depend_on_the_order_of_results(tmp_path):
    rows = [
        result(model=m, benchmark=b, split=s) for m in "ab" for b in ("imagenet-a", "imagenet-d") for s in (None, "x")
    ]
    shuffled = random.Random(0).sample(rows, len(rows))
    a, b = write(rows, tmp_path / "a"), write(shuffled, tmp_path / "b")
    for name in ("results.json", "table.md", "table.csv", "table.tex"):
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
    for item in (
        "† incomplete: not all pictures of the official data were evaluated",
        "‡ subset: only a sample was evaluated (--limit)",
        "§ some pictures could not be read; they are not in n",
        "imagenet-a (offline/efficientnet_lite0): n01440764 has 3 of 50 pictures",
        "imagenet-a (offline/efficientnet_lite0): 2 pictures could not be read",
    ):
        assert text.count(f"\n- {item}\n") == 1


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
    assert "ID acc. 81.0" in printed(rows)


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
    assert [line[:6] for line in lines] == [
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
    assert "\nProtocol:\n\n- classes: 200\n" in text
    assert "\n- estimator, top1_accuracy: argmax\n- estimator, aurra: mean of the curve\n" in text


def test_a_section_names_what_is_constant_once_above_its_table():
    text = markdown([result(), result(metric="aurra", headline=False)])
    assert "\nModel: offline/efficientnet_lite0; preprocessing: model; run: lite0-3fa9\n" in text
    assert rows_of(text, "## imagenet-a")[0] == ["Metric", "Value", "Unit", "95 % interval", "n"]


def test_notes_stand_above_the_table_and_a_remark_holds_only_what_is_not_shared():
    rows = [
        result(notes=["all of it", "only here"]),
        result(metric="aurra", headline=False, notes=["all of it"], value=None, ci95=None, reason="undefined"),
    ]
    text = markdown(rows).split("## imagenet-a", 1)[1]
    assert text.count("all of it") == 1
    assert "\nNotes:\n\n- all of it\n" in text
    assert [line[-1] for line in rows_of(markdown(rows), "## imagenet-a")[2:]] == ["only here", "undefined"]


def test_the_protocol_has_one_phrase_a_rule_and_leaves_long_things_to_the_json():
    crop = {"rule": "model", "input_size": [224, 224], "crop_pct": 0.875, "interpolation": "bicubic", "antialias": True,
            "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "transform": "Compose(...)"}  # fmt: skip
    whole = {"rule": "own", "input_size": [96, 96], "resize": {"height": 96, "width": 96}, "crop": None}
    protocol = {
        "rules": {"test": "own", "control": "model", "inside": "model"}, "rows": {"test": 12, "control": 3},
        "preprocessing": {"test": whole, "control": crop, "inside": crop}, "data_fingerprints": {"test": "abc123"},
    }  # fmt: skip
    text = markdown([result(protocol=protocol)])
    assert "\n- rows: test 12, control 3\n" in text
    assert text.count("- rule model: 224 px, bicubic, crop 0.875, mean 0.5 0.5 0.5, std 0.25 0.25 0.25\n") == 1
    assert "\n- rule own: 96 px, resized without a crop\n" in text
    assert "Compose" not in text
    assert "abc123" not in text
    assert text.count("results.json") == 1


def test_a_protocol_that_differs_by_model_names_the_models():
    rows = [
        result(model=m, metric=x, protocol={"classes": c}) for m, c in (("a", "1"), ("b", "2")) for x in ("aurra", "x")
    ]
    assert "\n- classes, a: 1\n- classes, b: 2\n" in markdown(rows)


def test_estimator_chance_and_counts_stand_beside_a_detection_metric():
    details = {"estimator": "average precision; chance = base_rate", "n_in": 1, "n_out": 3, "base_rate": 0.75}
    row = result(benchmark="imagenet-o", metric="aupr", ci95=None, details=details)
    cell = rows_of(markdown([row]), "## imagenet-o")[2][-1]
    assert cell == "average precision; chance = base rate 0.75; 1 in-distribution, 3 out-of-distribution pictures"
    assert "chance 0.7500" in printed([row], everything=True)


def test_a_list_item_never_becomes_a_heading_or_a_list_of_its_own():
    text = markdown([result(notes=["# big", "1. one", "- dash"])])
    for item in (r"\# big", r"1\. one", r"\- dash"):
        assert f"\n- {item}\n" in text


# hostile names


def test_a_hostile_name_stays_in_its_cell():
    text = markdown([result(model=HOSTILE), failed(model="x", reason="a | b\nc")])
    for line in rows_of(text, "# Results"):
        assert len(line) == 4
    section = rows_of(text, "## imagenet-a")
    assert {len(line) for line in section} == {len(section[0])}
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
        ("a [x](y)", r"a [x\](y)"),
        ("[24.5, 61.2] of [red]x[/red]", r"\[24.5, 61.2] of [red]x[/red]"),
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


NAMES = ("imagenet-a", "imagenet-d", "imagenet-o", "imagenet-val", "spurious-imagenet")


def several(models):
    """Five benchmarks for each model, with a companion, splits, notes and every mark."""
    rows = []
    for place, model in enumerate(models):
        for name in NAMES:
            shared = {"model": model, "benchmark": name, "run": f"run-{place}", "complete": False, "n_failed": place}
            whole = "all" if name == "imagenet-d" else None
            rows.append(result(**shared, value=1.0 - place / 10, ci95=[0.5, 1.0], split=whole, notes=["a\nnote"]))
            rows.append(result(**shared, metric="control_top1_accuracy", value=1.0, headline=False))
        for split in ("texture", "background"):
            rows.append(result(**{**shared, "benchmark": "imagenet-d"}, split=split, headline=False, value=0.5))
        rows.append(failed(model=model, benchmark="own", run=f"run-{place}", reason="no such folder " * 12))
    return rows


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("models", [[LONG], [LONG, HOSTILE, "m" * 200, "[red]x[/red]", "模型" * 30]])
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_console_and_no_name_is_cut(width, models, everything):
    text = printed(several(models), width=width, everything=everything)
    assert max(map(cell_len, text.splitlines())) <= width
    for name in (LONG, *NAMES):
        assert name in text or name in unfolded(text)
    assert "top1_accuracy" in text
    assert "…" not in text
    assert "\x1b" not in text


def unfolded(text):
    """The first column of every line, joined: a folded name stands in it in one piece."""
    return "".join(line.strip().split("  ")[0] for line in text.splitlines())


def test_one_model_is_named_once_and_each_benchmark_has_one_line():
    lines = printed([r for r in several(["m"]) if r["metric"] and r["n_failed"] == 0]).splitlines()
    assert lines[0] == "m, model preprocessing, run run-0"
    starts = [line.split()[0] for line in lines[3:] if line and line[0] not in "†- "]
    assert starts == list(NAMES)


def test_splits_follow_indented_in_the_order_of_the_paper():
    lines = printed(several(["m"])).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("imagenet-d"))
    assert [line[:12] for line in lines[at + 1 : at + 3]] == ["  background", "  texture   "]


def test_the_best_model_comes_first_and_a_failed_one_last_with_its_reason_below():
    rows = [result(model=m, value=v) for m, v in (("low", 0.1), ("high", 0.9), ("middle", 0.5))]
    lines = printed([failed(model="broken", reason="bad head"), *rows]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["high", "middle", "low", "broken", "bad"]


def test_a_model_that_never_started_comes_after_all_benchmarks():
    lines = printed([failed(model="broken", benchmark=None, reason="no such file"), *several(["m"])]).splitlines()
    at = lines.index("not started")
    assert lines[at + 1].split() == ["broken", "—"]
    assert lines[at + 2].strip() == "no such file"
    assert at > max(i for i, line in enumerate(lines) if line.startswith(NAMES))


def test_only_failures_are_red():
    def coloured(rows):
        stream = io.StringIO()
        show(rows, Console(file=stream, width=80, force_terminal=True, color_system="standard", no_color=False))
        return stream.getvalue()

    assert "\x1b[31m" not in coloured([result(), result(model="b")])
    assert "\x1b[31m" in coloured([result(), failed(model="b", reason="r")])


def test_a_note_is_said_once_with_all_benchmarks_it_is_about():
    note = "3 of 200 needed classes have fewer than 50 pictures, e.g. 6 (stingray): 0"
    rows = [result(benchmark=name, metric=m, notes=[note]) for name in NAMES[:2] for m in ("top1_accuracy", "aurra")]
    text = printed([*rows, result(benchmark=NAMES[2])], width=140)
    assert text.count("needed classes") == 1
    assert "- imagenet-a, imagenet-d: 3 of 200 needed classes have fewer than 50 pictures" in text


def test_a_note_of_one_model_names_it_and_of_several_counts_them():
    rows = [result(model=m, notes=["n1"] if m == "a" else ["n2"]) for m in "abc"]
    text = printed(rows)
    assert "- imagenet-a (a): n1" in text
    assert "- imagenet-a (2 of 3 models): n2" in text


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
    assert "25.00 % 20.00–30.00 7500" in re.sub(" +", " ", text)
    assert max(map(len, text.splitlines())) <= 80
    line, reason = text.splitlines()[-2:]
    assert line.split() == ["rms_calibration_error_released_code,", "background", "—", "7500"]
    assert reason.strip() == "fewer than a bin"


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
