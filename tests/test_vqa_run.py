"""A tiny vision-language model asked about a small ImageNet-D: the model, the loop, the results, the command."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_vlm
from loopback_hub import loopback_hub
from PIL import Image
from tiny_runs import contents, make_sets, picture, run, write

from hf_robust.benchmarks.derived import Derived
from hf_robust.builders import RECIPES, build, build_regenerated
from hf_robust.builders.archive import Archive, Member
from hf_robust.builders.cache import RECORD
from hf_robust.builders.recipe import Picture
from hf_robust.cli.vqa import add_vqa
from hf_robust.data import MissingDataError, Rows, decode
from hf_robust.labels import imagenet_d_categories
from hf_robust.metrics import wilson
from hf_robust.metrics.vqa import question
from hf_robust.models import ModelError
from hf_robust.models.vqa import VisionLanguageModel, load_vqa
from hf_robust.predictions.plan import PlanError
from hf_robust.runner import World
from hf_robust.runner.answers import AskOptions, ask
from hf_robust.runner.loop import PictureFailedError
from hf_robust.runner.questions import open_pictures, ranking_of_run, with_questions
from hf_robust.scoring.answers import score_answers

ALONE = World(0, 1, "cpu")
# nuisance, category, first and second choice of the zero-shot model, both options, what the model was taught to say
# with the true option first, and with it second
CASES = (
    ("background", "alarm_clock", "backpack", "pen", "alarm clock", "backpack", "alarm clock", "alarm clock"),
    ("texture", "backpack", "backpack", "alarm_clock", "backpack", "alarm clock", "A rucksack.", "alarm clock"),
    ("material", "pen", "can_opener", "pen", "pen", "can opener", "can opener", "pen"),
    ("background", "pen", "soap_dispenser", "pen", "pen", "soap dispenser", "soap dispenser", "pen"),
    ("texture", "plate", "plate", "drying_rack_for_plates", "plate", "drying rack for plates", "a plate", "plates"),
    ("material", "alarm_clock", "backpack", "pen", "alarm clock", "backpack", "I see a dog", "backpack"),
)


def build_d(folder: Path, rows: list[tuple[str, str, str, str]], *, name: str = "data") -> Path:
    """A built ImageNet-D of (nuisance, category, first choice, second choice)."""
    lines: dict[str, list[str]] = {}
    for i, (nuisance, category, first, second) in enumerate(rows):
        path = f"{nuisance}/{category}/{i:022d}.png"
        write(folder / "d" / path, picture(i))
        lines.setdefault(nuisance, []).append(f"{path}\t{category}\t{first}\t{second}\n")
    for nuisance, own in lines.items():
        head = "image_dir\tgt_category\ttop1_pred_cate\ttop2_pred_cate\n"
        write(folder / f"d/questions/{nuisance}.csv", (head + "".join(own)).encode())
    build("imagenet-d", folder / "d", allow_incomplete=True, out=folder / name)
    return folder / name


def rows_in(data: Path, *, limit: int | None = None, seed: int = 0) -> Rows:
    rows, ranking = open_pictures(data)
    return with_questions(rows if limit is None else rows.limited(limit, seed), ranking)


def regenerated(out: Path) -> Path:
    """CASES as the set that a regeneration makes, `tiny-d`."""
    names = [f"{nuisance}/{category}/{i:022d}.png" for i, (nuisance, category, *_) in enumerate(CASES)]
    official = {category.folder: category for category in imagenet_d_categories()}
    columns = [
        {"label": category, "category": category, "nuisance": nuisance, "top1_prediction": first,
         "top2_prediction": second, "imagenet_1k": list(official[category].indices)}
        for nuisance, category, first, second, *_ in CASES
    ]  # fmt: skip
    chosen = [
        (Member(name, len(picture(i)), i), Picture(name, own["nuisance"], own["category"], own))
        for i, (name, own) in enumerate(zip(names, columns, strict=True))
    ]
    archive = Archive("here", tuple(m for m, _ in chosen), lambda member: picture(member.position), lambda: None)
    record = Derived("imagenet-d", "tiny-d", "Tiny", (1,), "made", "none").as_record()
    build_regenerated(RECIPES["imagenet-d"], archive, chosen, names=tuple(official), record=record, out=out)
    return out


def asked(model: str, rows: Rows, out: Path, *, world: World = ALONE, **options: Any) -> Path:
    """The run's folder after asking in this process."""
    return ask(model, rows, "questions of a test", out, options=AskOptions(**options), world=world, meter=_quiet)


def _quiet(done: int, total: int) -> None:
    pass


def answers_of(run_folder: Path) -> list[dict[str, Any]]:
    parts = sorted(run_folder.glob("imagenet-d.vqa/part-*.parquet"))
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without any training whose repository would sample and penalise repetitions."""
    folder = tmp_path_factory.mktemp("random")
    return f"hf-vqa/{tiny_vlm.save(folder, do_sample=True, temperature=0.2, repetition_penalty=9.0)}"


@pytest.fixture(scope="module")
def loaded(random_model: str) -> VisionLanguageModel:
    return load_vqa(random_model)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_d(tmp_path_factory.mktemp("small"), [case[:4] for case in CASES])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts."""
    names = [category.folder for category in imagenet_d_categories()]
    kinds = ("background", "texture", "material")
    rows = [(kinds[i % 3], names[i % 50], names[i % 50 + 1], names[i % 50 + 2]) for i in range(205)]
    return build_d(tmp_path_factory.mktemp("large"), rows)


FAST = {"micro_batch": 20, "most_tokens": 2, "orders": "published"}


@pytest.fixture(scope="module")
def reference(random_model: str, large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that one process made at once."""
    return asked(random_model, rows_in(large), tmp_path_factory.mktemp("reference"), **FAST)


@pytest.fixture(scope="module")
def taught(small: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that has learnt what CASES say."""
    rows = rows_in(small)
    lessons = []
    for i, key in enumerate(rows.table.ids):
        *_, truth, confusing, first, second = CASES[int(Path(key).stem)]
        shown = decode(rows.read(i))
        lessons += [(shown, question(truth, confusing), first), (shown, question(confusing, truth), second)]
    return f"hf-vqa/{tiny_vlm.save(tmp_path_factory.mktemp('taught'), lessons=lessons)}"


def _pictures(number: int) -> list[Image.Image]:
    return [decode(picture(i, size=(30 + 20 * i, 40))) for i in range(number)]


QUESTIONS = [question("pen", "mug"), question("drying rack for plates", "plate"), "?", question("tv", "sock")]


def test_one_picture_alone_gets_the_answer_that_it_gets_in_a_batch_of_four(loaded: VisionLanguageModel) -> None:
    pictures = _pictures(4)
    together = loaded.answers(pictures, QUESTIONS, most_tokens=12)
    alone = [loaded.answers([p], [q], most_tokens=12)[0] for p, q in zip(pictures, QUESTIONS, strict=True)]
    assert together == alone
    assert loaded.answers(pictures, QUESTIONS, most_tokens=12) == together


def test_the_answer_is_the_argmax_token_by_token(loaded: VisionLanguageModel) -> None:
    """Without cache, batch and generate: what greedy means, whatever the repository's generation settings say."""
    import torch

    processor, end = loaded.processor, loaded.processor.tokenizer.eos_token_id
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTIONS[0]}]}]
    text = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    inputs = dict(processor(text=[text], images=_pictures(1), return_tensors="pt"))
    said: list[int] = []
    while len(said) < 6 and end not in said:
        with torch.inference_mode():
            said.append(int(loaded.module(**inputs).logits[0, -1].argmax()))
        for name, value in (("input_ids", said[-1]), ("attention_mask", 1), ("mm_token_type_ids", 0)):
            inputs[name] = torch.cat([inputs[name], torch.tensor([[value]])], dim=1)
    (answer,) = loaded.answers(_pictures(1), QUESTIONS[:1], most_tokens=6)
    assert answer.text == processor.tokenizer.decode(said, skip_special_tokens=True).strip()
    assert answer.ended == (end in said)


def test_the_likelihood_is_the_sum_of_the_log_probabilities_of_the_options_tokens(loaded: VisionLanguageModel) -> None:
    import torch

    processor = loaded.processor
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTIONS[0]}]}]
    text = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    (found,) = loaded.likelihoods(_pictures(1), QUESTIONS[:1], [("pen", "mug of tea")])
    for option, likelihood in zip(("pen", "mug of tea"), found, strict=True):
        inputs = processor(text=[text + option], images=_pictures(1), return_tensors="pt")
        with torch.inference_mode():
            probabilities = torch.softmax(loaded.module(**inputs).logits[0].double(), dim=-1).numpy()
        ids, n = inputs["input_ids"][0].tolist(), len(option)  # a token a byte
        expected = sum(np.log(probabilities[len(ids) - n + i - 1, ids[len(ids) - n + i]]) for i in range(n))
        assert likelihood.tokens == n
        assert likelihood.total == pytest.approx(expected, abs=1e-4)


def test_likelihoods_do_not_depend_on_the_batch(loaded: VisionLanguageModel) -> None:
    pictures, options = _pictures(4), [("pen", "mug"), ("drying rack for plates", "plate"), ("a", "b"), ("tv", "sock")]
    together = loaded.likelihoods(pictures, QUESTIONS, options)
    for i in range(4):
        (alone,) = loaded.likelihoods(pictures[i : i + 1], QUESTIONS[i : i + 1], options[i : i + 1])
        assert [one.total for one in alone] == pytest.approx([one.total for one in together[i]], abs=1e-4)
        assert [one.tokens for one in alone] == [len(option) for option in options[i]]


def test_a_model_that_cannot_be_asked_says_why(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a vision-language model as hf-vqa/REPO_OR_FOLDER, got 'timm/x'"):
        load_vqa("timm/x")
    with pytest.raises(ModelError, match="expected a chat template"):
        load_vqa(f"hf-vqa/{tiny_vlm.save(tmp_path / 'base', template=None)}")
    with pytest.raises(ModelError, match=r"hf-vqa/no/such: its processor: "):
        load_vqa("hf-vqa/no/such")


@pytest.fixture(scope="module")
def taught_run(taught: str, small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asked(taught, rows_in(small), tmp_path_factory.mktemp("taught-run"), likelihood=True, micro_batch=4)


def test_the_table_holds_both_options_and_what_the_model_said(taught_run: Path) -> None:
    found = {int(Path(row["id"]).stem): row for row in answers_of(taught_run)}
    for i, (nuisance, category, *_, truth, confusing, first, second) in enumerate(CASES):
        row = found[i]
        assert (row["nuisance"], row["category"], row["truth"], row["confusing"]) == (
            nuisance, category, truth, confusing,
        )  # fmt: skip
        assert (row["answer"], row["answer_swapped"]) == (first, second)
        assert (row["ended"], row["ended_swapped"], row["error"]) == (True, True, None)
        assert row["option_tokens"] == [len(truth), len(confusing)]  # a token a byte
        assert len(row["log_likelihood"]) == len(row["log_likelihood_swapped"]) == 2


def test_the_results_are_those_worked_out_by_hand(taught_run: Path) -> None:
    rows = {(row["metric"], row["split"]): row for row in score_answers(taught_run.parent)}

    def value(metric: str, split: str = "all") -> tuple[float, int]:
        return rows[metric, split]["value"], rows[metric, split]["n"]

    # with the true option first: 0, 1 and 4 true, 2 confusing, 3 both (disPENser), 5 neither
    assert value("vqa_accuracy") == (3 / 4, 4)
    assert value("vqa_answered") == (4 / 6, 6)
    assert value("vqa_accuracy_of_all") == (3 / 6, 6)
    assert value("vqa_accuracy_words") == (3 / 5, 5)  # by words 3 is confusing
    assert value("vqa_answered_words") == (5 / 6, 6)
    # with it second: 0, 2, 3 and 4 true, 1 and 5 confusing
    assert value("vqa_accuracy_swapped") == (4 / 6, 6)
    assert value("vqa_accuracy_both_orders") == ((3 + 4) / (4 + 6), 6)
    assert value("vqa_order_changed") == (4 / 6, 6)  # 1, 2, 3 and 5
    assert value("vqa_accuracy", "texture") == (2 / 2, 2)
    assert value("vqa_accuracy", "material") == (0 / 1, 1)
    headline = rows["vqa_accuracy", "all"]
    assert (headline["headline"], rows["vqa_accuracy", "texture"]["headline"]) == (True, False)
    assert headline["ci95"] == list(wilson(3, 4))
    assert not headline["complete"]  # six pictures are not the official set
    assert headline["protocol"]["second_option"] == "most confusing category by the questions of a test"
    assert "temperature 0.2" in headline["protocol"]["decoding"]


def test_the_likelier_option_follows_from_the_stored_sums(taught_run: Path) -> None:
    rows = {(row["metric"], row["split"]): row for row in score_answers(taught_run.parent)}
    table = answers_of(taught_run)
    summed = [row["log_likelihood"][0] > row["log_likelihood"][1] for row in table]
    swapped = [row["log_likelihood_swapped"][0] > row["log_likelihood_swapped"][1] for row in table]
    means = [
        row["log_likelihood"][0] / len(row["truth"]) > row["log_likelihood"][1] / len(row["confusing"]) for row in table
    ]
    assert rows["vqa_likelihood_accuracy", "all"]["value"] == sum(summed) / 6
    assert rows["vqa_likelihood_per_token", "all"]["value"] == sum(means) / 6
    assert rows["vqa_likelihood_both_orders", "all"]["value"] == (sum(summed) + sum(swapped)) / 12


def test_a_second_run_changes_no_file_and_a_damaged_part_is_made_again(
    random_model: str, large: Path, tmp_path: Path, reference: Path
) -> None:
    folder = tmp_path / reference.name
    shutil.copytree(reference, folder)
    parts = sorted(folder.glob("imagenet-d.vqa/part-*.parquet"))
    assert len(parts) == 3
    parts[0].unlink()
    parts[1].write_bytes(parts[1].read_bytes()[:-40])
    before = parts[2].stat().st_mtime_ns
    asked(random_model, rows_in(large), tmp_path, **FAST)
    assert contents(folder) == contents(reference)
    assert parts[2].stat().st_mtime_ns == before


def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_bytes(
    random_model: str, large: Path, tmp_path: Path, reference: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done >= 120:
            raise KeyboardInterrupt

    options = AskOptions(**FAST)
    with pytest.raises(KeyboardInterrupt):
        ask(random_model, rows_in(large), "questions of a test", tmp_path, options=options, world=ALONE, meter=stop)
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 1
    unfinished = score_answers(tmp_path)
    assert unfinished[0]["notes"][0] == "2 of 3 parts have no answers yet: run the same `vqa` again"
    assert contents(asked(random_model, rows_in(large), tmp_path, world=World(1, 2, "cpu"), **FAST)) == contents(
        reference
    )


WORKER = """
import json, sys
from pathlib import Path
from test_vqa_run import FAST, asked, rows_in
from hf_robust.runner import World
model, data, out, rank, size = sys.argv[1:]
asked(model, rows_in(Path(data)), Path(out), world=World(int(rank), int(size), "cpu"), **FAST)
"""


def _worker(model: str, data: Path, out: Path, rank: int, size: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, model, str(data), str(out), str(rank), str(size)]
    return subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_and_a_killed_one_leave_the_bytes_of_one(
    random_model: str, large: Path, tmp_path: Path, reference: Path
) -> None:
    both = [_worker(random_model, large, tmp_path / "two", rank, 2) for rank in range(2)]
    said = [process.communicate(timeout=240)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    (folder,) = (tmp_path / "two").glob("*/")
    assert contents(folder) == contents(reference)
    killed = _worker(random_model, large, tmp_path / "killed", 0, 1)
    _wait(lambda: any((tmp_path / "killed").rglob("part-*.parquet")))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert 1 <= len(list((tmp_path / "killed").rglob("part-*.parquet"))) <= 3
    assert contents(asked(random_model, rows_in(large), tmp_path / "killed", **FAST)) == contents(reference)


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not until():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def test_other_questions_and_other_options_make_other_folders(random_model: str, small: Path, tmp_path: Path) -> None:
    first = asked(random_model, rows_in(small), tmp_path, most_tokens=1, orders="published")
    rows = [(*case[:2], "tv", "tv") for case in CASES]
    others = build_d(tmp_path / "others", rows)
    second = asked(random_model, rows_in(others), tmp_path, most_tokens=1, orders="published")
    third = asked(random_model, rows_in(small), tmp_path, most_tokens=2, orders="published")
    assert len({first, second, third}) == 3
    plan = first / "questions.json"
    plan.write_text(plan.read_text().replace('"most_tokens": 1', '"most_tokens": 7'))
    with pytest.raises(PlanError, match="expected the plan whose hash names"):
        asked(random_model, rows_in(small), tmp_path, most_tokens=1, orders="published")


def test_a_subset_is_marked_and_one_row_is_enough(random_model: str, small: Path, tmp_path: Path) -> None:
    rows = rows_in(small, limit=1)
    assert len(rows.table) == 1
    folder = asked(random_model, rows, tmp_path, most_tokens=1, limit=1, likelihood=True)
    results = score_answers(folder.parent)
    assert all(row["subset"] for row in results)
    few = "only 0% of the answers name one option: vqa_accuracy says nothing about the others"
    assert few in results[0]["notes"]
    likely = next(row for row in results if row["metric"] == "vqa_likelihood_accuracy")
    assert (likely["n"], likely["value"]) in ((1, 0), (1, 1))


def test_an_unreadable_picture_stops_the_run_or_is_counted(random_model: str, tmp_path: Path) -> None:
    data = build_d(tmp_path, [case[:4] for case in CASES])
    rows = rows_in(data)
    broken = Rows(rows.dataset, rows.table, lambda i: b"no picture" if i == 2 else rows.read(i))
    with pytest.raises(PictureFailedError, match=r"got no picture format that Pillow knows: repair it, or run with"):
        asked(random_model, broken, tmp_path / "out", most_tokens=1)
    folder = asked(random_model, broken, tmp_path / "out", most_tokens=1, on_error="record", likelihood=True)
    found = answers_of(folder)
    assert [row["error"] is not None for row in found] == [i == 2 for i in range(6)]
    assert (found[2]["answer"], found[2]["log_likelihood"]) == (None, None)
    results = score_answers(folder.parent)
    answered = next(row for row in results if (row["metric"], row["split"]) == ("vqa_answered", "all"))
    assert (answered["n"], answered["n_failed"]) == (5, 1)
    assert "1 pictures could not be read" in answered["notes"]


def test_a_data_set_that_is_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="hf-robust build imagenet-d"):
        open_pictures(tmp_path)


def test_a_folder_without_answers_says_so(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"expected answers in .*, got none"):
        score_answers(tmp_path)


def test_a_run_whose_plan_is_damaged_stays_a_row_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path / "run/questions.json", b"{")
    (row,) = score_answers(tmp_path)
    assert row["metric"] is None
    assert "expected the record" in row["reason"]


def test_the_second_option_can_come_from_a_zero_shot_run_of_this_package(tmp_path: Path) -> None:
    from hf_robust.benchmarks import benchmark
    from hf_robust.predictions.read import read_source

    sets = make_sets(tmp_path, a=3, o=3)
    folder = run(sets, tmp_path / "runs", "zero_shot", "imagenet-d")
    ranking = ranking_of_run(folder)
    head = benchmark("imagenet-d").zero_shot
    assert head is not None
    outputs = read_source(folder / "imagenet-d.model", head="imagenet-d").outputs
    for i, key in enumerate(outputs.ids):
        ranked = sorted(range(113), key=lambda k: (-outputs.logits[i, k], k))
        assert ranking.choices[key] == (head.classes[ranked[0]], head.classes[ranked[1]])
    asked_about = with_questions(open_pictures(sets.data)[0], ranking)
    assert len(asked_about.table) == 6
    assert folder.name in ranking.origin
    with pytest.raises(LookupError, match="expected predictions of a zero-shot model on imagenet-d"):
        ranking_of_run(run(sets, tmp_path / "runs", "plain", "imagenet-d"))


def command(*arguments: str) -> int:
    """The exit code of `hf-robust vqa …` in this process."""
    parser = argparse.ArgumentParser()
    add_vqa(parser.add_subparsers())
    options = parser.parse_args(["vqa", *arguments])
    options.given = ["vqa", *arguments]
    return int(options.command(options))


def test_the_command_asks_scores_and_writes_the_report(
    taught: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    shared_arguments = ("--data", str(small), "--out", str(out), "--device", "cpu")
    assert command("--model", taught, *shared_arguments) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("imagenet-d-vqa", "vqa_accuracy", "75.00†"))
    document = json.loads((out / "vqa/results.json").read_text())
    again = command("--out", str(out), "--json")  # without a model: the stored answers are scored again
    assert again == 0
    assert json.loads(capsys.readouterr().out) == document
    assert "vqa_order_changed" in (out / "vqa/table.md").read_text()


def test_the_command_takes_question_files_and_refuses_what_cannot_be_asked(
    random_model: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = small.parent / "d/questions/texture.csv"
    options = ("--data", str(small), "--out", str(tmp_path), "--device", "cpu", "--max-new-tokens", "1")
    assert command("--model", random_model, *options, "--questions", str(file), "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert {row["split"] for row in results} == {"all", "texture"}
    assert results[0]["protocol"]["data_differences"]["test"][-1].startswith("4 of 6 pictures have no second option")
    with pytest.raises(ValueError, match="got both: leave one out"):
        command("--model", random_model, *options, "--questions", str(file), "--confusing", str(tmp_path))
    with pytest.raises(ValueError, match=r"expected models as hf-vqa/REPO_OR_FOLDER, got 'timm/resnet18'"):
        command("--model", "timm/resnet18", *options)
    with pytest.raises(ValueError, match="expected --max-new-tokens of at least 1, got 0"):
        command("--model", random_model, *options[:-1], "0")
    with pytest.raises(ValueError, match="expected imagenet-d or a set regenerated in its manner, got 'imagenet-a'"):
        command("--model", random_model, *options, "--benchmark", "imagenet-a")


def test_a_model_that_cannot_be_asked_stays_a_row_with_its_reason_until_it_can(
    random_model: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = tmp_path / "late"
    options = ("--data", str(small), "--out", str(tmp_path / "runs"), "--device", "cpu", "--max-new-tokens", "1")
    for models in ([f"hf-vqa/{late}"], [f"hf-vqa/{late}", random_model]):
        assert command("--model", *models, *options, "--json") == 1
        results = json.loads(capsys.readouterr().out)["results"]
        (row,) = [row for row in results if row["metric"] is None]
        assert row["model"] == f"hf-vqa/{late}"
        assert "its processor" in row["reason"]
        assert {row["model"] for row in results} == set(models)
    assert "its processor" in (tmp_path / "runs/vqa/table.md").read_text()
    shutil.copytree(random_model.removeprefix("hf-vqa/"), late)
    assert command("--model", f"hf-vqa/{late}", *options, "--json") == 0
    capsys.readouterr()
    assert command("--out", str(tmp_path / "runs"), "--json") == 0
    assert all(row["metric"] for row in json.loads(capsys.readouterr().out)["results"])


@pytest.mark.slow
def test_published_sets_are_asked_about_by_their_repo(taught: str, small: Path, tmp_path: Path) -> None:
    place = regenerated(tmp_path / "D" / "set")
    ask = ["vqa", "--model", taught, "--device", "cpu", "--orders", "published", "--out"]
    lines = [
        ["build", "tiny-d", "--out", str(place), "--push-to-hub", "tester/tiny-d"],
        [*ask, "own", "--benchmark", "tester/tiny-d"],
        [*ask, "none", "--benchmark", "tester/nothing"],
        ["vqa", "--out", "own"],
    ]
    code = "import json, sys\nfrom hf_robust.cli import main\nprint([main(line) for line in json.loads(sys.argv[1])])"
    with loopback_hub() as hub:
        done = hub.run(code, tmp_path, json.dumps(lines), OMP_NUM_THREADS="1")
    assert done.stdout.splitlines()[-1] == "[0, 0, 1, 0]", done.stderr
    assert "datasets/tester/nothing, got none that you may see" in done.stderr
    (part,) = (tmp_path / "own").glob("*/tiny-d.vqa/part-*.parquet")
    local = asked(taught, rows_in(small), tmp_path / "local", orders="published")
    columns = ["truth", "confusing", "answer"]
    shown = [[row[name] for name in columns] for row in pq.read_table(part).to_pylist()]
    assert sorted(shown) == sorted([row[name] for name in columns] for row in answers_of(local))


def test_a_regenerated_set_is_asked_about_under_its_own_name(
    taught: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, out = regenerated(tmp_path / "D" / "set"), tmp_path / "runs"
    asked_for = ("--benchmark", str(place), "--out", str(out), "--device", "cpu")
    assert command("--model", taught, *asked_for, "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    (headline,) = [row for row in results if row["headline"]]
    assert (headline["benchmark"], headline["value"], headline["n"]) == ("tiny-d-vqa", 3 / 4, 4)  # as of the same CASES
    assert headline["complete"]
    assert headline["protocol"]["set"] == "regenerated: numbers are not those of ImageNet-D"
    assert len(list(out.glob("*/tiny-d.vqa/part-00000.parquet"))) == 1
    other = Derived("imagenet-a", "tiny-a", "Tiny", (1,), "made", "none").as_record()
    (record,) = place.rglob(RECORD)
    record.write_text(json.dumps({**json.loads(record.read_text()), "set": other}))
    with pytest.raises(ValueError, match="expected a set in the manner of imagenet-d, got tiny-a, which follows imag"):
        command("--model", taught, *asked_for)
