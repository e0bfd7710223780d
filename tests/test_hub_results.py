"""Results in a model's repo: what is written, what of others stays, what is refused; and a push to a loopback Hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from loopback_hub import Hub, loopback_hub
from run_folder import A, Source, peaked, small_a, write_run

from hf_robust.benchmarks import benchmarks
from hf_robust.benchmarks.miniatures import miniatures
from hf_robust.hub.cards import eval_yaml
from hf_robust.hub.merging import metadata, with_entry, with_section
from hf_robust.hub.results import Publication, files, publication, section
from hf_robust.report import as_document, write

CARD = """---
# chosen by hand
license: apache-2.0
model-index:
- name: Their name
  results:
  - task:
      type: image-classification
    dataset:
      name: Beans
      type: beans
    metrics:
    - type: accuracy
      value: 0.9
tags: [a, "b"]   # flow style
---

# A model

Text of its author.
"""
COMMAND = [sys.executable, "-m", "hf_robust", "publish", "results"]


def right(n: int, of: int, **changes: Any) -> Source:
    """ImageNet-A with `n` of `of` pictures classified right."""
    labels = [[A[i % 200]] for i in range(of)]
    chosen = [k if i < n else A[(i + 1) % 200] for i, (k,) in enumerate(labels)]
    return Source("imagenet-a", labels, peaked(chosen), **changes)


def of(runs: Path, source: Source, **options: Any) -> Publication:
    plan = {"limit": options.pop("limit", None)}
    run = write_run(runs, ["imagenet-a"], [source], **plan)
    log = {"time": "2026-11-30T10:00:00Z", "host": "private-host", "versions": {"torch": "2.14.1"}}
    (run / "log.jsonl").write_text(json.dumps(log) + "\n")
    return publication(runs, benchmarks(), **options)


def written(this: Publication, there: dict[str, str]) -> dict[str, str]:
    new = files(this, benchmarks(), there, name="my-model")
    return {path: content.decode() for path, content in new.items() if content is not None}


# --- the pure parts: texts


def test_an_entry_of_the_metadata_is_replaced_and_every_other_line_stays() -> None:
    changed = with_entry(CARD, "model-index", [{"name": "x", "results": []}])
    kept = [line for line in CARD.splitlines() if "- name: Their" not in line]
    ours = ["model-index:", "- name: x", "  results: []"]
    between = kept.index("model-index:")
    expected = [*kept[:between], *ours, *kept[kept.index('tags: [a, "b"]   # flow style') :]]
    assert changed.splitlines() == expected
    assert changed.endswith(CARD[CARD.index("tags:") :])


def test_an_entry_in_flow_style_over_lines_is_replaced_too() -> None:
    card = "---\ntags: [a,\nb]\nlicense: mit\n---\nText\n"
    assert metadata(with_entry(card, "tags", ["c"])) == {"tags": ["c"], "license": "mit"}
    assert with_entry(card, "tags", ["c"]).endswith("---\nText\n")


def test_a_card_with_windows_line_ends_keeps_them() -> None:
    changed = with_entry(CARD.replace("\n", "\r\n"), "model-index", [{"name": "x"}])
    assert changed.count("\n") == changed.count("\r\n")


def test_a_card_without_metadata_gets_some_and_keeps_its_text() -> None:
    assert with_entry("# Model\n", "license", "mit") == "---\nlicense: mit\n---\n\n# Model\n"


def test_removing_an_entry_takes_its_lines_only() -> None:
    assert "model-index" not in with_entry(CARD, "model-index", None)
    assert "license: apache-2.0\ntags:" in with_entry(CARD, "model-index", None)


def test_metadata_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a mapping in the metadata of the card, got a list: correct it"):
        with_entry("---\n- a\n---\n", "license", "mit")


def test_a_section_is_replaced_in_its_place() -> None:
    first = with_section(CARD + "\n", "results", "one") + "\n## After\n"
    assert with_section(first, "results", "two") == first.replace("one", "two")


def test_a_section_without_its_end_is_refused() -> None:
    broken = with_section(CARD, "results", "one").replace("<!-- hf-robust: results end -->", "")
    with pytest.raises(ValueError, match=r"expected the comments .* once each and in this order in the card"):
        with_section(broken, "results", "two")


# --- what is written


def test_the_eval_results_entry_holds_the_headline_as_a_fraction(tmp_path: Path) -> None:
    text = written(of(tmp_path, right(13, 40)), {})[".eval_results/imagenet-a.yaml"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(text))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("hf_robust/imagenet-a", "imagenet-a", 13 / 40)
    assert entry.date == "2026-11-30"
    assert "top1_accuracy, model preprocessing, n = 40" in str(entry.notes)


def test_every_entry_names_a_task_of_the_data_set(tmp_path: Path) -> None:
    kinds = ("background", "texture", "material")
    d = Source(
        "imagenet-d", [[409]] * 6, peaked([409, 0, 409, 409, 0, 0]), {"category": ["c"] * 6, "nuisance": kinds * 2}
    )
    run = write_run(tmp_path, ["imagenet-a", "imagenet-d"], [right(1, 2), d])
    new = written(publication(run, benchmarks()), {})
    found = [entry for path, text in new.items() if path.startswith(".eval_results/") for entry in yaml.safe_load(text)]
    known = {
        task["id"]
        for name, splits in (("imagenet-a", ["test"]), ("imagenet-d", kinds))
        for task in yaml.safe_load(eval_yaml(benchmarks()[name], splits))["tasks"]
    }
    assert {entry["dataset"]["task_id"] for entry in found} == known
    values = {entry["dataset"]["task_id"]: entry["value"] for entry in found}
    assert values["imagenet-d-background"] == 2 / 2  # rows 0 and 3
    assert values["imagenet-d-texture"] == 0 / 2  # rows 1 and 4


def test_predictions_on_the_hub_become_the_source(tmp_path: Path) -> None:
    text = written(of(tmp_path, right(1, 2), predictions="me/p"), {})[".eval_results/imagenet-a.yaml"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(text))
    assert (str(entry.source_url).endswith("/datasets/me/p"), entry.source_user) == (True, "me")


def test_the_model_index_is_read_back_by_the_hub_library(tmp_path: Path) -> None:
    card = ModelCard(written(of(tmp_path, right(13, 40)), {"README.md": CARD})["README.md"])
    values = {(r.dataset_type, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert values["beans", "accuracy"] == 0.9
    assert values["hf_robust/imagenet-a", "top1_accuracy"] == 13 / 40
    assert card.data.model_name == "Their name"


def test_a_new_card_takes_the_name_of_the_repo(tmp_path: Path) -> None:
    card = ModelCard(written(of(tmp_path, small_a(4)), {})["README.md"])
    assert (card.data.model_name, card.data.pipeline_tag) == ("my-model", "image-classification")


def test_everything_of_others_stays_word_for_word(tmp_path: Path) -> None:
    new = written(of(tmp_path, right(13, 40)), {"README.md": CARD})["README.md"]
    theirs = CARD[CARD.index("- name: Their") : CARD.index("tags:")]
    for text in ("# chosen by hand", 'tags: [a, "b"]   # flow style', "Text of its author.", "license: apache-2.0"):
        assert text in new
    assert metadata(new)["model-index"][0]["results"][0] == yaml.safe_load(theirs)[0]["results"][0]


def test_publishing_again_replaces_only_what_was_ours(tmp_path: Path) -> None:
    first = written(of(tmp_path / "one", right(13, 40)), {"README.md": CARD})
    again = written(of(tmp_path / "one", right(13, 40)), first)
    better = written(of(tmp_path / "two", right(20, 40)), first)
    assert again["README.md"] == first["README.md"]
    assert ".eval_results/imagenet-a.yaml" not in again  # nothing to change
    assert better["README.md"].count("type: hf_robust/imagenet-a") == 1
    assert yaml.safe_load(better[".eval_results/imagenet-a.yaml"])[0]["value"] == 20 / 40


def test_an_entry_of_somebody_else_in_the_same_file_stays(tmp_path: Path) -> None:
    path = ".eval_results/imagenet-a.yaml"
    theirs = {"dataset": {"id": "hf_robust/imagenet-a", "task_id": "imagenet-a"}, "value": 0.1, "notes": "by hand"}
    entries = yaml.safe_load(written(of(tmp_path, right(1, 2)), {path: yaml.safe_dump([theirs])})[path])
    assert [entry["value"] for entry in entries] == [0.1, 1 / 2]
    assert entries[0] == theirs


def test_an_entry_of_ours_that_no_longer_holds_goes_with_its_file(tmp_path: Path) -> None:
    old = {"dataset": {"id": "d", "task_id": "imagenet-o"}, "value": 0.1, "notes": "hf-robust 0.0.1: aupr"}
    path = ".eval_results/imagenet-o.yaml"
    new = files(of(tmp_path, right(1, 2)), benchmarks(), {path: yaml.safe_dump([old])}, name="m")
    assert new[path] is None


def test_neither_host_nor_folder_of_this_machine_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path, ["imagenet-a"], [right(1, 2)], model="/srv/me/models/own.py:make")
    new = written(publication(run, benchmarks()), {})
    assert not [path for path, text in new.items() if "private-host" in text or "/srv/me" in text]
    assert "own.py:make" in new["README.md"]


# --- what is refused


def test_a_subset_is_refused_unless_told_and_then_marked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"imagenet-a is of a subset \(--limit\); finish the run, or --allow-incompl"):
        of(tmp_path, right(1, 2), limit=2)
    new = written(of(tmp_path, right(1, 2), limit=2, allow_incomplete=True), {})
    assert "subset (--limit)" in yaml.safe_load(new[".eval_results/imagenet-a.yaml"])[0]["notes"]
    assert metadata(new["README.md"])["model-index"][0]["results"][0]["metrics"][0]["args"]["subset"] is True


def test_an_incomplete_data_set_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = right(1, 2, complete=False, differences=("2 pictures, official 7,500",))
    with pytest.raises(ValueError, match=r"imagenet-a is incomplete \(imagenet-a is not the official set"):
        of(tmp_path, source)


def test_a_failed_benchmark_is_refused_and_stays_in_the_table_when_told(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a", "imagenet-o"], [right(1, 2)], failures={"imagenet-o": "no such size"})
    with pytest.raises(ValueError, match=r"imagenet-o failed \(no such size\)"):
        publication(tmp_path, benchmarks())
    this = publication(tmp_path, benchmarks(), allow_incomplete=True)
    assert "no such size" in section(this)
    assert ".eval_results/imagenet-o.yaml" not in written(this, {})


def test_a_control_that_was_not_run_is_no_obstacle(tmp_path: Path) -> None:
    assert any(row["metric"] == "control_top1_accuracy" for row in of(tmp_path, small_a(4)).results)


def test_miniatures_are_never_published(tmp_path: Path) -> None:
    source = Source("imagenet-a", [[A[0]]], peaked([A[0]]))
    write_run(tmp_path, ["mini-imagenet-a"], [source])
    with pytest.raises(ValueError, match=r"got miniatures in .*: those are never published"):
        publication(tmp_path, {**benchmarks(), **miniatures()}, allow_incomplete=True)


def test_several_runs_are_refused_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, ["imagenet-a"], [small_a(4)])
    write_run(tmp_path, ["imagenet-a"], [small_a(4)], threads=2)
    with pytest.raises(LookupError, match=r"expected one run in .*, got toy-\w+, toy-\w+: name the folder of one"):
        publication(tmp_path, benchmarks())


def test_a_report_gives_its_plots_only_where_its_numbers_are_the_same(tmp_path: Path) -> None:
    this = of(tmp_path / "runs", right(13, 40))
    write(this.results, tmp_path / "report")
    (tmp_path / "report" / "plots").mkdir()
    (tmp_path / "report" / "plots" / "imagenet-a-curve.png").write_bytes(b"\x89PNG")
    plots = publication(tmp_path / "runs", benchmarks(), report=tmp_path / "report").plots
    assert plots == {"imagenet-a-curve.png": b"\x89PNG"}
    assert "![imagenet a curve](hf-robust/plots/imagenet-a-curve.png)" in section(Publication(this.results, plots))
    document = as_document(this.results)
    document["results"][0]["value"] = 0.5
    (tmp_path / "report" / "results.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"expected the report in .* to be of the same numbers, got another"):
        publication(tmp_path / "runs", benchmarks(), report=tmp_path / "report")


# --- against a Hub


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with loopback_hub() as running:
        yield running


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, ["imagenet-a"], [right(13, 40)])
    return folder


def with_card(hub: Hub, repo: str, home: Path) -> None:
    code = (
        "import sys; from huggingface_hub import HfApi; HfApi().create_repo(sys.argv[1]); "
        "HfApi().upload_file(path_or_fileobj=sys.argv[2].encode(), path_in_repo='README.md', repo_id=sys.argv[1])"
    )
    done = hub.run(code, home, repo, CARD)
    assert done.returncode == 0, done.stderr


def test_a_dry_run_shows_a_diff_and_changes_nothing_then_one_commit_does(hub: Hub, runs: Path, tmp_path: Path) -> None:
    with_card(hub, "tester/card", tmp_path)
    before = hub.repo("tester/card").history()
    dry = hub.call([*COMMAND, str(runs), "--to", "tester/card", "--dry-run"], tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "--- a/README.md\n+++ b/README.md" in dry.stdout
    assert "--- /dev/null\n+++ b/.eval_results/imagenet-a.yaml" in dry.stdout
    assert not [line for line in dry.stdout.splitlines() if line.startswith("-") and "Text of its author" in line]
    assert hub.repo("tester/card").history() == before
    done = hub.call([*COMMAND, str(runs), "--to", "tester/card"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(hub.repo("tester/card").history()) == len(before) + 1
    card = hub.repo("tester/card").read("README.md").decode()
    (metric, *_) = metadata(card)["model-index"][0]["results"][1]["metrics"]
    assert (metric["type"], metric["value"]) == ("top1_accuracy", 13 / 40)
    again = hub.call([*COMMAND, str(runs), "--to", "tester/card"], tmp_path)
    assert "nothing had to change" in again.stdout
    assert len(hub.repo("tester/card").history()) == len(before) + 1


def test_a_push_whose_commit_fails_leaves_the_repo_as_it_was(hub: Hub, runs: Path, tmp_path: Path) -> None:
    with_card(hub, "tester/failing", tmp_path)
    before = hub.repo("tester/failing").head
    hub.fail_next("POST .*/tester/failing/commit/", times=9, status=500, retry_after=0)
    done = hub.call([*COMMAND, str(runs), "--to", "tester/failing"], tmp_path)
    hub.failures.clear()
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert "Traceback" not in done.stderr
    assert hub.repo("tester/failing").head == before


def test_without_a_login_the_error_is_one_line_without_a_token(hub: Hub, runs: Path, tmp_path: Path) -> None:
    done = hub.call([*COMMAND, str(runs), "--to", "tester/new-one"], tmp_path, token=None)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "hf auth login" in done.stderr
    assert hub.token not in done.stdout + done.stderr
