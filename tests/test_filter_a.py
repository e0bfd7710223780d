"""Adversarial filtration: ten crops, the verdict, its reasons, the balance of classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from filter_world import KEEP, REASON, TINY, NoSettings, by_name, bytes_of, pool, rows_of, through, work
from PIL import Image

from hf_robust.benchmarks.spec import PAPER
from hf_robust.labels import imagenet_1k_index, imagenet_1k_names
from hf_robust.models import ModelError, load_model, transform_for
from hf_robust.regenerate.balance import BALANCE, CLASS_FULL, SET_FULL, TOO_FEW, BalanceSettings
from hf_robust.regenerate.crops import load_viewer, look_at, ten_crops
from hf_robust.regenerate.filter import (
    FILTER_A,
    LIKELY,
    NO_LABEL,
    NOT_1K,
    OUTSIDE,
    RIGHT,
    UNREAD,
    FilterASettings,
    mask_of,
)
from hf_robust.regenerate.stage import StageError

OTHER = "timm-random/test_byobnet"
WNIDS = ("n01440764", "n01498041", "n02123045", "n03594945")
START = NoSettings()


@pytest.fixture(scope="module")
def photos(tmp_path_factory, picture):
    """Sixteen drawn pictures, four of each of four classes."""
    folder = tmp_path_factory.mktemp("photos")
    files = []
    for i in range(16):
        path = folder / f"{i:02d}.png"
        picture(i, width=150 + 5 * i, height=140).save(path)
        files.append((path, WNIDS[i % 4]))
    return files


def softmax(logits):
    shifted = np.exp(np.float64(logits) - np.float64(logits).max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def independent(architecture, files, classes, *, module=None, side=256, size=224, mode="bilinear", mean=None, std=None):
    """Probabilities (pictures, 10, classes) by torchvision's own TenCrop and the module alone."""
    import timm
    import torch
    from torchvision.transforms import InterpolationMode, Resize, TenCrop
    from torchvision.transforms import functional as F  # noqa: N812  its usual name

    if module is None:
        torch.manual_seed(0)
        module = timm.create_model(architecture, pretrained=False).eval()
    mean, std = mean or (0.485, 0.456, 0.406), std or (0.229, 0.224, 0.225)
    steps = Resize(side, interpolation=InterpolationMode(mode))
    found = []
    for path, _ in files:
        with Image.open(path) as image:
            crops = TenCrop(size)(steps(image.convert("RGB")))
        batch = torch.stack([F.normalize(F.to_tensor(crop), mean, std) for crop in crops])
        with torch.inference_mode():
            found.append(softmax(module(batch).numpy()[:, classes]))
    return np.array(found)


def test_the_ten_crops_are_four_corners_and_centre_and_their_mirror_images(picture):
    own = transform_for(PAPER, load_model(TINY).preprocessing)[0]
    image = picture(3, width=320, height=256)  # its shorter side is 256 already: resizing changes nothing
    crops = ten_crops(own, name="any")(image)
    boxes = [(0, 0), (96, 0), (0, 32), (96, 32), (48, 16)]
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    by_hand = [side.crop((x, y, x + 224, y + 224)) for side in (image, mirrored) for x, y in boxes]
    pixels = np.stack([np.asarray(crop, np.float64) / 255 for crop in by_hand])
    expected = ((pixels - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)).transpose(0, 3, 1, 2)
    assert np.abs(crops.numpy() - expected).max() < 1e-5


def test_the_fifth_crop_of_the_models_own_preprocessing_is_what_the_model_sees_in_an_evaluation(picture):
    own = load_model("timm-random/test_efficientnet").preprocessing.transform
    image = picture(5, width=300, height=211)
    assert bool((ten_crops(own, name="any")(image)[4] == own(image)).all())


def test_a_transform_without_a_centre_crop_is_refused_with_what_to_do():
    with pytest.raises(
        ModelError, match=r"my model: expected a transform with one centre crop .* preprocessing 'paper'"
    ):
        ten_crops(lambda image: image, name="my model")


def test_every_verdict_follows_from_an_independent_computation(photos, tmp_path):
    settings = FilterASettings(filters=(TINY, OTHER), max_probability=0.27)
    ledger = through(tmp_path, (pool(photos), START), (FILTER_A, settings))
    classes = sorted(imagenet_1k_index()[w] for w in WNIDS)
    chances = [independent(name.partition("/")[2], photos, classes) for name in (TINY, OTHER)]
    names = [imagenet_1k_names()[k] for k in classes]
    reasons = []
    for i, row in enumerate(rows_of(ledger)):
        own = classes.index(imagenet_1k_index()[photos[i][1]])
        right, true, wrong, asked = 0, 0.0, [], 0
        reason = None
        for each in chances:
            if reason is None:
                asked += 1
                right += int((each[i].argmax(axis=1) == own).sum())
                true = max(true, each[i][:, own].max())
                others = np.where(np.arange(4) == own, 0, each[i].max(axis=0))
                wrong.append((names[others.argmax()], others.max()))
                reason = RIGHT if right else LIKELY if each[i][:, own].max() >= 0.27 else None
        reasons.append(reason)
        labels = [*(name for name, _ in wrong), None][:2]
        assert (row[REASON], row[KEEP], row["filters_asked"]) == (reason, reason is None, asked)
        assert [row["wrong_label_1"], row["wrong_label_2"], row["right_crops"]] == [*labels, right]
        assert row["true_probability"] == pytest.approx(true, abs=1e-5)
        assert row["wrong_confidence"] == pytest.approx(max(p for _, p in wrong), abs=1e-5)
    assert {None, RIGHT, LIKELY} == set(reasons)  # the pictures and the threshold show every case


def test_a_filter_is_asked_only_about_what_those_before_it_left(photos, tmp_path):
    ledger = through(tmp_path, (pool(photos), START), (FILTER_A, FilterASettings((TINY, OTHER), max_probability=0.27)))
    alone = through(tmp_path, (pool(photos), START), (FILTER_A, FilterASettings((TINY,), max_probability=0.27)))
    first = [row[KEEP] for row in rows_of(alone)]
    assert [row["filters_asked"] for row in rows_of(ledger)] == [2 if kept else 1 for kept in first]


def test_any_order_of_processes_and_a_killed_run_give_the_same_bytes(photos, tmp_path):
    steps = (pool(photos), START), (FILTER_A, FilterASettings((TINY,), max_probability=0.27))
    through(tmp_path / "one", *steps)
    for rank in (1, 0):  # each takes its own parts first, then what is missing
        through(tmp_path / "two", *steps, rank=rank, size=2)
    through(tmp_path / "killed", *steps)
    stage = next((tmp_path / "killed").glob("2-*"))
    (stage / "done.json").unlink()
    (stage / "part-00002.parquet").unlink()
    (stage / "part-00003.parquet").write_bytes((stage / "part-00003.parquet").read_bytes()[:100])
    through(tmp_path / "killed", *steps)
    assert len(bytes_of(tmp_path / "one")) == 8
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two") == bytes_of(tmp_path / "killed")


def test_rows_without_a_class_of_the_list_or_a_readable_picture_are_dropped_with_their_reason(
    photos, tmp_path, picture
):
    broken, long = tmp_path / "broken.png", tmp_path / "long.png"
    broken.write_bytes(b"no picture")
    Image.new("RGB", (505, 5)).save(long)
    listed = tmp_path / "classes.txt"
    listed.write_text("\n".join(WNIDS[:2]))
    files = [
        (photos[0][0], None),
        (photos[1][0], "n99999999"),
        (photos[2][0], WNIDS[2]),
        (broken, WNIDS[0]),
        (long, WNIDS[0]),
    ]
    ledger = through(tmp_path / "out", (pool(files), START), (FILTER_A, FilterASettings((TINY,), classes=str(listed))))
    rows = rows_of(ledger)
    assert [row[REASON] for row in rows] == [NO_LABEL, NOT_1K, OUTSIDE, UNREAD, UNREAD]
    assert ledger.funnel()[-1]["reasons"] == {NO_LABEL: 1, NOT_1K: 1, OUTSIDE: 1, UNREAD: 2}
    assert [row["filters_asked"] for row in rows] == [0] * 5
    assert rows[3]["filter_error"] == "no picture format that Pillow knows"
    assert rows[4]["filter_error"] == "505 x 5 pixels, more than 100 times as long as wide"


def test_a_shared_highest_logit_counts_as_right():
    from hf_robust.regenerate.filter import Verdict, _judge

    verdict = Verdict()
    _judge(verdict, np.array([[1.0, 1.0, 0.0]]), [1], ["a", "b", "c"], 0.9)
    e = np.e
    assert (verdict.reason, verdict.right_crops) == (RIGHT, 1)
    assert verdict.true_probability == pytest.approx(e / (2 * e + 1))
    assert verdict.wrong == [("a", pytest.approx(e / (2 * e + 1)))]


def test_several_acceptable_classes_count_together():
    from hf_robust.regenerate.filter import Verdict, _judge

    verdict = Verdict()
    _judge(verdict, np.log([[0.2, 0.2, 0.6], [0.3, 0.1, 0.6]]), [0, 1], ["a", "b", "c"], 0.5)
    assert (verdict.reason, verdict.right_crops) == (None, 0)
    assert verdict.true_probability == pytest.approx(0.2 + 0.2)


def test_the_softmax_runs_over_the_classes_of_the_kept_candidates_all_or_a_list(photos, tmp_path):
    ledger = through(tmp_path, (pool(photos[:3]), START))
    known = imagenet_1k_index()
    assert mask_of("recipe", ledger) == tuple(sorted(known[w] for w in WNIDS[:3]))
    assert mask_of("all", ledger) == tuple(range(1000))
    (tmp_path / "list.txt").write_text(f"{WNIDS[3]} {WNIDS[0]}\n")
    assert mask_of(str(tmp_path / "list.txt"), ledger) == (known[WNIDS[0]], known[WNIDS[3]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("n01440764 n00000000", "expected WordNet ids of ImageNet-1k in .*, got 'n00000000'"),
        ("n01440764", "expected at least 2 classes .*, got 1: a softmax over one is always 1"),
    ],
)
def test_a_list_that_cannot_be_a_softmax_is_refused(content, message, photos, tmp_path):
    (tmp_path / "list.txt").write_text(content)
    with pytest.raises(StageError, match=message):
        mask_of(str(tmp_path / "list.txt"), through(tmp_path, (pool(photos[:1]), START)))


def test_settings_without_sense_are_refused(photos, tmp_path):
    with pytest.raises(StageError, match="expected classes to be 'recipe', 'all' or a file"):
        mask_of("reciep", through(tmp_path, (pool(photos[:1]), START)))
    for settings, message in (
        (FilterASettings(()), "expected each filter once and at least one, got none"),
        (FilterASettings((TINY, TINY)), "expected each filter once"),
        (FilterASettings((TINY,), max_probability=0.0), "expected max_probability above 0"),
    ):
        with pytest.raises(StageError, match=message):
            through(tmp_path, (pool(photos[:1]), START), (FILTER_A, settings))
    with pytest.raises(ValueError, match="expected preprocessing 'paper' or 'model', got 'own'"):
        load_viewer(TINY, work(tmp_path).world, kind="ten", mode="own")


def test_ten_crops_of_one_picture_are_one_micro_batch_whatever_its_neighbours(photos, tmp_path):
    viewer = load_viewer(TINY, work(tmp_path).world, kind="ten", mode="paper")
    contents = [path.read_bytes() for path, _ in photos[:3]]
    together = list(look_at(viewer, contents))
    alone = [next(look_at(viewer, [content])) for content in contents]
    assert viewer.pictures_at_once == 1
    assert all((a["logits"] == b["logits"]).all() for a, b in zip(together, alone, strict=True))


def balanced(folder: Path, settings: BalanceSettings, **columns):
    """Rows a0 … a4, b0, b1, c0 with columns; name -> reason of those that are dropped."""
    names = ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "c0"]
    classes = [WNIDS["abc".index(name[0])] for name in names]
    files = [(Path(name), wnid) for name, wnid in zip(names, classes, strict=True)]
    ledger = through(folder, (pool(files, **columns), START), (BALANCE, settings))
    return {name: row[REASON] for name, row in by_name(ledger).items() if not row[KEEP]}


def test_a_class_with_too_few_pictures_is_dropped_whole_and_a_large_one_cut_by_a_column(tmp_path):
    score = [0.5, 0.1, 0.4, 0.2, 0.3, 0.0, 0.0, 0.0]
    smallest = balanced(tmp_path, BalanceSettings(at_least=2, at_most=2, order="score"), score=score)
    assert smallest == {"c0": TOO_FEW, "a4": CLASS_FULL, "a2": CLASS_FULL, "a0": CLASS_FULL}
    largest = balanced(tmp_path, BalanceSettings(at_most=2, order="-score"), score=score)
    assert largest == {"a4": CLASS_FULL, "a3": CLASS_FULL, "a1": CLASS_FULL}


def test_the_total_is_taken_from_all_classes_in_turn(tmp_path):
    score = [0.5, 0.1, 0.4, 0.2, 0.3, 0.2, 0.1, 0.9]
    gone = balanced(tmp_path, BalanceSettings(total=5, order="score"), score=score)
    # first of each class: a1, b1, c0; second: a3, b0; the others are beyond
    assert gone == {"a0": SET_FULL, "a2": SET_FULL, "a4": SET_FULL}


def test_the_draw_depends_on_the_seed_and_the_row_alone(tmp_path):
    draws = {seed: balanced(tmp_path / str(seed), BalanceSettings(at_most=1, seed=seed)) for seed in range(8)}
    kept = [{"a0", "a1", "a2", "a3", "a4"} - set(gone) for gone in draws.values()]
    assert all(len(names) == 1 for names in kept)
    assert len(set(map(frozenset, kept))) > 1
    assert balanced(tmp_path / "again", BalanceSettings(at_most=1, seed=3)) == draws[3]


def test_no_limit_drops_nothing_and_bad_limits_are_refused(tmp_path):
    assert balanced(tmp_path, BalanceSettings()) == {}
    with pytest.raises(StageError, match="expected at_most of at least 1, got 0"):
        balanced(tmp_path, BalanceSettings(at_most=0))
    with pytest.raises(StageError, match="expected a number in column 'score' of every kept row, got nan"):
        balanced(tmp_path, BalanceSettings(order="score"), score=[float("nan")] * 8)
    with pytest.raises(StageError, match="unknown column 'class' in by or order; known: row_id, name"):
        balanced(tmp_path, BalanceSettings(by="class"))


@pytest.mark.slow
def test_every_kept_photo_is_wrong_in_each_crop_by_an_independent_computation(shared, tmp_path):
    """EfficientNet-Lite0 on real photos: four of the nine that it keeps of 400, and four others."""
    folder = shared / "data" / "nips2017"
    with (folder / "labels.csv").open(encoding="utf-8") as stream:
        labels = {row["file_name"]: row["wnid"] for row in csv.DictReader(stream)}
    hard = ["3bd1ba0432603b28.png", "59e9bdbb7a3fc4ba.png", "74dbbe535861d709.png", "9f3afb58c061c290.png"]
    names = [*hard, *sorted(set(labels) - set(hard))[:4]]
    files = [(folder / "images" / name, labels[name]) for name in names]
    model = "offline/efficientnet_lite0"
    settings = FilterASettings((model,), classes="all", preprocessing="model")
    ledger = through(tmp_path, (pool(files), START), (FILTER_A, settings))
    half = (0.5, 0.5, 0.5)
    chances = independent(
        "", files, list(range(1000)), module=load_model(model).module, mode="bicubic", mean=half, std=half
    )
    for i, row in enumerate(rows_of(ledger)):
        own = imagenet_1k_index()[files[i][1]]
        wrong_everywhere = bool((chances[i].argmax(axis=1) != own).all())
        assert row[KEEP] == (wrong_everywhere and chances[i][:, own].max() < 0.15) == (i < len(hard))
        assert row["true_probability"] == pytest.approx(chances[i][:, own].max(), abs=1e-4)
