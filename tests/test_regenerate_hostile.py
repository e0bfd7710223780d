"""Regeneration under attack: wrong settings, damaged folders, strange pools, lost records of people's work."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tiny_diffusion import tiny_pipeline

from hf_robust import builders
from hf_robust.benchmarks.derived import Derived
from hf_robust.cli import main
from hf_robust.regenerate.generators import GenerateSettings, check_settings
from hf_robust.regenerate.pool_folder import open_folder
from hf_robust.regenerate.pool_parquet import network_errors
from hf_robust.regenerate.recipes import RECIPES, configure, recipe_of
from hf_robust.regenerate.review import ReviewSettings, shown, simulated
from hf_robust.regenerate.setting_kinds import is_of, kinds_of
from hf_robust.regenerate.stage import StageError
from hf_robust.review.base import ReviewError
from hf_robust.review.exchange_labelstudio import import_label_studio
from hf_robust.review.folder import read_review
from hf_robust.review.store import Store

Damage = Callable[[Path], object]


def of(folder: Path, pattern: str) -> Path:
    return next(iter(sorted(folder.glob(pattern))))


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# settings


@pytest.mark.parametrize("name", RECIPES)
def test_every_default_is_of_its_own_kind(name: str) -> None:
    for settings in recipe_of(name).defaults().values():
        for setting, kind in kinds_of(settings).items():
            assert is_of(getattr(settings, setting), kind), setting


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("prompts.limit=many", "to be a whole number or \"null\", got 'many'"),
        ("prompts.limit=2024-01-01", "expected limit in .* got datetime.date"),
        ("prompts.limit=99999999999999999999", "expected limit"),
        ('prompts.images="null"', 'expected images in .* like 1, got "null"'),
        ("generate.guidance=nan", "expected guidance in .* like 7.5, got nan"),
        ("generate.guidance=inf", "expected guidance"),
        ("mine.surrogates=[1]", "expected surrogates"),
        ("mine.min_failures=1.5", "expected min_failures"),
        ("review.own_sentinels=a\0b", "expected own_sentinels"),
    ],
)
def test_a_value_of_another_kind_is_refused_also_where_the_default_is_none(change: str, message: str) -> None:
    with pytest.raises(StageError, match=message):
        configure(recipe_of("imagenet-d"), None, [change])


def test_a_text_that_looks_like_a_number_or_a_date_stays_a_text() -> None:
    changes = ["assemble.name=2024", "prompts.categories=2024-01-01", "assemble.title=a=b"]
    settings = configure(recipe_of("imagenet-d"), None, changes)
    assert settings["assemble"].name == "2024"
    assert settings["prompts"].categories == "2024-01-01"
    assert settings["assemble"].title == "a=b"


def test_so_many_threads_that_torch_ends_the_process_are_refused() -> None:
    with pytest.raises(StageError, match="expected threads of stage 'generate' of at most 1024, got 100000"):
        check_settings(GenerateSettings(threads=100000))


def test_a_licence_that_the_hub_does_not_know_and_a_title_of_two_lines_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected the Hub's id of a licence, such as cc-by-4\.0, got 'x: "):
        Derived("imagenet-a", "new-a", "New", (1,), "", "", picture_licence="x: [y")
    with pytest.raises(ValueError, match="expected a title of one line"):
        Derived("imagenet-a", "new-a", "New\n---", (1,), "", "")


# a generated set


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pipeline(tmp_path_factory.mktemp("tiny") / "diffusion")


def command(out: Path, generator: Path, *more: str) -> list[str]:
    return [
        "regenerate", "imagenet-d", "--out", str(out), "--device", "cpu", "--set", "prompts.limit=6",
        "prompts.part_rows=4", f"generate.model={generator}", "generate.steps=1", "generate.height=32",
        "generate.width=32", 'mine.surrogates=["timm-random/test_vit"]', "review.people=people", "review.fastest=0",
        "assemble.name=tiny-d", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, generator: Path) -> Path:
    """A regeneration whose people have answered, and that was not run again since."""
    out = tmp_path_factory.mktemp("regenerated") / "it's [1] ü"
    assert main(command(out, generator)) == 3
    folder = of(out, "review-*/")
    answers = simulated(read_review(folder), ReviewSettings(good=0.5, accuracy=1.0))
    assert Store(folder).import_answers(answers) == len(answers)
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, waiting: Path, generator: Path) -> Path:
    out = tmp_path_factory.mktemp("made") / "D"
    shutil.copytree(waiting, out)
    assert main(command(out, generator)) == 0
    return out


def content(out: Path) -> dict[str, bytes]:
    found = [p for p in out.glob("[0-9]-*/*") if p.name != ".lock"]
    return {str(p.relative_to(out)): p.read_bytes() for p in [*found, out / "ledger.parquet"]}


HEALED: dict[str, Damage] = {
    "a part is gone": lambda out: of(out, "2-*/part-00001*").unlink(),
    "done.json is gone": lambda out: of(out, "2-*/done.json").unlink(),
    "done.json is no JSON": lambda out: of(out, "2-*/done.json").write_text("{"),
    "done.json has fewer parts": lambda out: edit(of(out, "1-*/done.json"), lambda d: d.update(rows=[4])),
    "done.json lacks a column": lambda out: edit(of(out, "2-*/done.json"), lambda d: d.update(columns=["row_id"])),
    "stage.json has other settings": lambda out: edit(of(out, "2-*/stage.json"), lambda d: d.update(settings={})),
    "recipe.json is gone": lambda out: (out / "recipe.json").unlink(),
    "the set is gone": lambda out: shutil.rmtree(out / "set"),
    "review.json is gone": lambda out: of(out, "review-*/review.json").unlink(),
    "review.json is another object": lambda out: of(out, "review-*/review.json").write_text("{}"),
    "items.json is no JSON": lambda out: of(out, "review-*/items.json").write_text("x"),
    "regeneration.json is no JSON": lambda out: of(out, "review-*/regeneration.json").write_text("x"),
    "a picture of the review is gone": lambda out: of(out, "review-*/images/*").unlink(),
}


@pytest.mark.parametrize("damage", HEALED)
def test_what_can_be_made_again_is_made_again(damage: str, made: Path, generator: Path, tmp_path: Path) -> None:
    out = tmp_path / "D"
    shutil.copytree(made, out)
    HEALED[damage](out)
    assert main(command(out, generator)) == 0
    assert content(out) == content(made)
    assert builders.find("tiny-d", out=out / "set").fingerprint == builders.find("tiny-d", out=made / "set").fingerprint


REFUSED: dict[str, tuple[Damage, str]] = {
    "a part is cut": (
        lambda out: os.truncate(of(out, "3-*/part-00000*"), 100),
        r"part-00000.parquet, got [^\n]*: remove that file and run again",
    ),
    "two parts changed places": (
        lambda out: swap(of(out, "3-*/part-00000*"), of(out, "3-*/part-00001*")),
        "expected the 4 rows of part 0 of the stages before",
    ),
    "a part is another stage's": (
        lambda out: shutil.copy(of(out, "2-*/part-00000*"), of(out, "3-*/part-00000*")),
        "expected the part that a stage wrote in",
    ),
    "recipe.json is no JSON": (
        lambda out: (out / "recipe.json").write_text("x"),
        "got a damaged file: remove that file alone and give the `regenerate` command again",
    ),
    "the answers are no data base": (
        lambda out: of(out, "review-*/answers.sqlite").write_bytes(b"no data base" * 1000),
        "got a file that SQLite cannot open",
    ),
    "the answers' pages are damaged and review.json is gone": (
        lambda out: (tear(of(out, "review-*/answers.sqlite")), of(out, "review-*/review.json").unlink()),
        "expected the answers of a review in .*, got a damaged file",
    ),
    "the salt is empty": (
        lambda out: of(out, "review-*/salt").write_bytes(b""),
        "expected 64 hexadecimal digits in .*, got 0 other bytes: put back a copy",
    ),
}


def tear(path: Path) -> None:
    """Put noise in the place of everything below the first page."""
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(np.random.default_rng(0).bytes(len(whole) - 4096)))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("damage", REFUSED)
def test_what_cannot_be_made_again_is_refused_in_one_sentence(
    damage: str, made: Path, generator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "D"
    shutil.copytree(made, out)
    spoil, message = REFUSED[damage]
    spoil(out)
    assert main(command(out, generator)) == 1
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert "remove " + str(out) + " " not in said  # it holds people's answers


def test_answers_survive_the_loss_of_every_record_beside_them(waiting: Path, generator: Path, tmp_path: Path) -> None:
    out = tmp_path / "D"
    shutil.copytree(waiting, out)
    folder = of(out, "review-*/")
    before = len(Store(folder).answers())
    for name in ("review.json", "items.json", "tasks.json", "regeneration.json"):
        (folder / name).unlink()
    assert main(command(out, generator)) == 0
    assert len(Store(folder).answers()) == before > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("review.mode=nope", "expected mode of stage 'review' to be one of image-validity, object-absent, got 'nope'"),
        ("review.mode=name-the-class", "expected mode of stage 'review'"),
        ("review.workers=1", "expected fewest of stage 'review' from 1 to the 1 workers, got 2"),
        ("review.sentinels=-1", "expected sentinels of stage 'review' of 0 or more, got -1"),
        ("review.accuracy=1.5", "expected accuracy of stage 'review' from 0 to 1, got 1.5"),
        ("mine.dtype=int8", "unknown dtype 'int8' of stage 'mine'; known: float32, float16, bfloat16"),
        ("assemble.name=../x", "expected a new name of small letters"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    change: str, message: str, made: Path, generator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "D"
    shutil.copytree(made, out)
    assert main(command(out, generator, "review.people=simulated", change)) == 1
    assert message in capsys.readouterr().err
    assert not (out / ".." / "x.hashes.parquet").exists()


# a pool


def picture(seed: int, kind: str = "BMP", size: tuple[int, int] = (80, 70)) -> bytes:
    blobs = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(blobs).resize(size, Image.Resampling.BICUBIC).save(stream, kind)
    return stream.getvalue()


WNIDS = ("n01440764", "n01443537", "n01484850")
NAMES = [f"{wnid}/{j}.bmp" for wnid in WNIDS for j in range(3)]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    root = tmp_path / 'it\'s a "pool" [1] ü'
    for k, wnid in enumerate(WNIDS):
        (root / wnid).mkdir(parents=True)
        for j in range(3):
            (root / wnid / f"{j}.bmp").write_bytes(picture(10 * k + j))
    return root


def filtered(pool: Path, out: Path, *more: str, until: str | None = None) -> list[str]:
    return [
        "regenerate", "imagenet-a", "--candidates", str(pool), "--out", str(out), "--device", "cpu",
        *(["--until", until] if until else []), "--set", 'filter_a.filters=["timm-random/test_vit"]',
        "filter_a.preprocessing=model", "filter_a.max_probability=1", "fingerprint.embedding=null", "review.good=1",
        "review.people=simulated", "review.accuracy=1", "assemble.name=tiny-a", "collect.part_rows=4", *more,
    ]  # fmt: skip


def test_pictures_that_no_browser_shows_are_reviewed_as_png_and_published_as_they_are(
    pool: Path, tmp_path: Path
) -> None:
    out = tmp_path / "A"
    assert main(filtered(pool, out, 'fingerprint.embedding="null"')) == 0
    kept = [row for row in pq.read_table(out / "ledger.parquet").to_pylist() if row["keep"]]
    assert kept
    assert {path.suffix for path in out.glob("review-*/images/*")} == {".png"}
    rows = builders.find("tiny-a", out=out / "set").load()
    assert {row["sha256"] for split in rows.values() for row in split} == {row["image_sha256"] for row in kept}


def test_only_formats_of_browsers_stay_as_they_are() -> None:
    for kind, stays in (("PNG", True), ("JPEG", True), ("WEBP", True), ("BMP", False), ("TIFF", False), ("GIF", False)):
        content = picture(1, kind)
        assert (shown(content) == content) is stays
        assert Image.open(io.BytesIO(shown(content))).size == (80, 70)


@pytest.mark.parametrize("until", ["collect", "balance", "review"])
def test_a_picture_that_was_exchanged_after_it_was_collected_is_refused(
    until: str, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, no_model = tmp_path / "A", 'fingerprint.embedding="null"'
    assert main(filtered(pool, out, no_model, until=until)) == 0
    for path in pool.glob("*/*.bmp"):
        path.write_bytes(picture(999))  # of the same size in bytes: the list of the pool's files is the same
    assert main(filtered(pool, out, no_model)) == 1
    assert "held when it was collected, got another: put it back" in capsys.readouterr().err


def test_links_that_lead_nowhere_outside_or_to_themselves_are_rows_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    for name, target in {"loop": "loop.png", "lost": "nowhere", "out": os.devnull}.items():
        (tmp_path / "pool" / f"{name}.png").symlink_to(target)
    (tmp_path / "pool" / "up").symlink_to("..")
    found = open_folder(tmp_path / "pool", part_rows=10, follow_links=False)
    entries = [entry for part in range(len(found.rows_of)) for entry in found.entries(part)]
    assert [(entry.name, entry.source) for entry in entries] == [("loop.png", ""), ("lost.png", ""), ("out.png", "")]
    assert {entry.trouble for entry in entries} == {"not a plain file"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "assemble.name=imagenet-o",
            "expected a new name of small letters, digits, '.', '_' and '-', got 'imagenet-o'",
        ),
        ("assemble.name=mini-imagenet-a", "expected a new name of small letters"),
        ("assemble.name=A_set", "expected a new name of small letters"),
        ("assemble.title='two\nlines'", "expected a title of one line"),
        ("assemble.licence=' '", "expected a sentence in licence of 'assemble', got none"),
        ("assemble.picture_licence=all rights", "expected the Hub's id of a licence"),
        ('selection.held_out=["timm/resnet5"]', "timm has no architecture 'resnet5'; close: resnet50"),
        ('selection.held_out=["offline/efficientnet_lite9"]', "unknown offline model 'offline/efficientnet_lite9'"),
        ('selection.held_out=["nowhere.py:build"]', "no such file nowhere.py"),
        ('selection.held_out=["my/own"]', "unknown model source 'my' in 'my/own'"),
        (
            'selection.held_out=["timm-random/test_vit"]',
            "expected at least one filter and one held-out model, each once",
        ),
        ("review.tie=both", "expected tie to be 'drop' or 'one more', got 'both'"),
        ("review.people=nobody", "expected people to be one of people, simulated, none, got 'nobody'"),
        ("review.sentinel_rate=1.0", "expected sentinel_rate of stage 'review' from 0 to below 1, got 1.0"),
        ("review.own_sentinels=/nowhere", "expected pictures in positive/<what it shows>/"),
    ],
)
def test_settings_that_only_count_after_peoples_work_are_checked_before_any(
    change: str, message: str, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [change] if "held_out" in change else ['selection.held_out=["timm-random/test_resnet"]', change]
    for way in ([], ["--dry-run"]):
        assert main([*filtered(pool, tmp_path / "out", *changes), *way]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_settings_that_keep_nothing_leave_no_set_of_earlier_ones_as_their_result(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("file_name,label\n" + "".join(f"{name},n01514668\n" for name in NAMES))
    usual = filtered(pool, out, f"collect.label_by=file:{wrong}", "filter_a.classes=all")
    assert main(usual) == 0
    first = (out / "ledger.parquet").read_bytes()
    assert builders.find("tiny-a", out=out / "set").rows == 9
    assert main([*usual, "review.good=0", "review.sentinels=0"]) == 1  # people accept none
    assert "expected accepted pictures, got none" in capsys.readouterr().err
    assert not (out / "set").exists()
    assert builders.find("tiny-a", out=out / "earlier-set").rows == 9
    assert [row["kept"] for row in json.loads((out / "funnel.json").read_text())["all"]] == [9, 9, 9, 9, 9, 0]
    assert main(usual) == 0
    assert (out / "ledger.parquet").read_bytes() == first
    assert main([*usual, "balance.at_least=10"]) == 1  # no stage after it has a row
    assert "expected pictures to review, got none that is kept" in capsys.readouterr().err
    assert not (out / "set").exists()
    assert {row["reason"] for row in pq.read_table(out / "ledger.parquet").to_pylist()} == {
        "its class has too few pictures"
    }


def test_that_nothing_is_left_to_filter_is_said_as_such(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_model = 'fingerprint.embedding="null"'
    assert main(filtered(pool, tmp_path / "A", no_model, "collect.min_side=500")) == 1
    said = capsys.readouterr()
    assert "expected candidates to filter, got none that is kept: see the reasons in the funnel" in said.err
    assert "too small: 9" in said.out
    assert main(filtered(pool, tmp_path / "A", no_model, 'duplicates.references=["/nope"]')) == 1
    assert "must not hold at '/nope', got nothing: check the path" in capsys.readouterr().err


def test_a_shard_may_lie_below_a_name_with_brackets(
    pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = tmp_path / "shards [1]" / "a.tar"
    shard.parent.mkdir()
    shutil.make_archive(str(shard.with_suffix("")), "tar", pool)
    assert main(filtered(shard, tmp_path / "A", until="collect")) == 0
    assert "collect" in capsys.readouterr().out


def test_what_the_client_of_the_hub_raises_becomes_an_error_that_the_command_says() -> None:
    refused = type("ConnectError", (Exception,), {"__module__": "httpx2._exceptions"})
    with (
        pytest.raises(OSError, match="expected to reach a/b, got ConnectError: check the network"),
        network_errors("a/b"),
    ):
        raise refused("no address")
    with pytest.raises(KeyError), network_errors("a/b"):
        raise KeyError("ours")


# what other tools send


@pytest.mark.parametrize(
    "annotation",
    [
        {"completed_by": 1, "result": None},
        {"completed_by": 1, "result": ["x"]},
        {"completed_by": 1, "result": [{"from_name": ["recognise"], "value": {}}]},
        {"completed_by": 1, "result": [{"from_name": "recognise", "value": "yes"}]},
        {"completed_by": 1, "result": [{"from_name": "recognise", "value": {"choices": "yes"}}]},
        {"completed_by": " ", "result": []},
    ],
)
def test_a_hostile_export_of_label_studio_is_refused(annotation: object, waiting: Path, tmp_path: Path) -> None:
    review = read_review(of(waiting, "review-*/"))
    task = review.tasks[0]
    row = {"data": {"task_id": task.task_id, "item_id": task.items[0]}, "annotations": [annotation]}
    (tmp_path / "export.json").write_text(json.dumps([row]))
    with pytest.raises(ReviewError, match="expected "):
        import_label_studio(review, tmp_path / "export.json", enter=str)


def test_times_of_label_studio_that_are_none_are_left_out(waiting: Path, tmp_path: Path) -> None:
    review = read_review(of(waiting, "review-*/"))
    task = review.tasks[0]
    said = {"from_name": "recognise", "value": {"choices": ["yes"]}}
    strange = {"completed_by": 1, "result": [said], "lead_time": "soon", "created_at": [1]}
    row = {"data": {"task_id": task.task_id, "item_id": task.items[0]}, "annotations": [strange]}
    (tmp_path / "export.json").write_text(json.dumps([row]))
    found = import_label_studio(review, tmp_path / "export.json", enter=str)
    assert [(a.value, a.seconds, a.at) for a in found.answers] == [("yes", None, None)]
