"""Reading OpenImages, and ranking a pool by what a component makes a model take for a class."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest
from filter_world import KEEP, REASON, TINY, NoSettings, by_name, bytes_of, pool, rows_of, through

from hf_robust.data import decode
from hf_robust.labels import imagenet_1k
from hf_robust.models import load_model
from hf_robust.models.base import weights_hash
from hf_robust.regenerate.openimages import (
    COLLECT_OPENIMAGES,
    OPENIMAGES_LABELS,
    CollectOpenImagesSettings,
    read_openimages,
)
from hf_robust.regenerate.spurious_mining import (
    BEYOND,
    LOW,
    MINE_SPURIOUS,
    OTHER,
    SHOWN,
    UNREAD,
    MineSpuriousSettings,
    object_labels,
)
from hf_robust.regenerate.stage import StageError
from hf_robust.spurious.alpha_files import class_file, write_tensors
from hf_robust.spurious.neural_pca import fit

PICTURES = 24
FEEDER, BIRD = "/m/0feed", "/m/0bird"


@pytest.fixture(scope="module")
def photos(tmp_path_factory, picture):
    folder = tmp_path_factory.mktemp("photos")
    for i in range(PICTURES):
        picture(i, width=80, height=72).save(folder / f"{i:016x}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def seen(photos):
    """Of each picture by the module alone: the predicted class, and the features (N, D); and the head's weight."""
    import torch

    model = load_model(TINY)
    seen, logits = [], []
    hook = model.linear.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].double().numpy()))
    with torch.inference_mode():
        for path in photos:
            pixels = model.preprocessing.transform(decode(path.read_bytes()))
            logits.append(model.module(pixels.unsqueeze(0)).numpy())
    hook.remove()
    return np.concatenate(logits).argmax(axis=1), np.concatenate(seen), model.linear.weight.double().numpy()


@pytest.fixture(scope="module")
def world(photos, seen, tmp_path_factory):
    """Neural PCA of the two classes that most pictures are taken for, from drawn features, and a component list."""
    predicted, features, weight = seen
    folder = tmp_path_factory.mktemp("pca")
    (first, _), (second, _) = Counter(predicted.tolist()).most_common(2)
    draws = np.random.default_rng(0).normal(features.mean(axis=0), features.std(axis=0), (40, features.shape[1]))
    facts = {"form": "hf_robust neural PCA 1", "model": TINY, "weights": weights_hash(load_model(TINY).module)}
    for index in (first, second):
        pca = fit(draws, weight[index], keep=5)
        arrays = {
            "weight": pca.weight, "mean": pca.mean, "eigenvalues": pca.eigenvalues, "components": pca.components,
            "alphas": pca.alphas(draws),
        }  # fmt: skip
        write_tensors(class_file(folder, index), arrays, {**facts, "remainder": pca.remainder, "ids": ["x"] * 40})
    (folder / "components.json").write_text(json.dumps({str(first): [0, 2], str(second): [1], "999": [0]}))
    return folder, {first: (0, 2), second: (1,)}, draws


def settings(world, **more):
    folder = world[0]
    return MineSpuriousSettings(TINY, neural_pca=str(folder), components=str(folder / "components.json"), **more)


def files(photos):
    return [(path, None) for path in photos]


def alphas_by_hand(features, weight, draws, component):
    """<1, v> <v, w phi - mean> of one component, by a singular value decomposition."""
    psi = draws * weight
    mean = psi.mean(axis=0)
    v = np.linalg.svd(psi - mean, full_matrices=False)[2][component]
    return v.sum() * ((features * weight - mean) @ v)


def expected(world, seen, top, drop=()):
    """Position -> (class, component, alpha, reason), by the definition."""
    _, wanted, draws = world
    predicted, features, weight = seen
    found = {}
    for i, k in enumerate(predicted.tolist()):
        if k in wanted:
            each = {c: alphas_by_hand(features[i], weight[k], draws, c) for c in wanted[k]}
            best = max(each, key=each.get)
            found[i] = [k, best, each[best], SHOWN if i in drop else None if each[best] > 0 else LOW]
    for pair in {(k, c) for k, c, _, _ in found.values()}:
        own = [i for i, row in found.items() if tuple(row[:2]) == pair and row[3] is None]
        for i in sorted(own, key=lambda i: -found[i][2])[top:]:
            found[i][3] = BEYOND
    return found


@pytest.mark.parametrize("top", [1, 3, 100])
def test_the_highest_of_each_component_among_pictures_of_its_class_are_kept(top, photos, seen, world, tmp_path):
    ledger = through(tmp_path, (pool(files(photos)), NoSettings()), (MINE_SPURIOUS, settings(world, top=top)))
    by_definition = expected(world, seen, top)
    reasons = {row[3] for row in by_definition.values()}
    assert {None, BEYOND} <= reasons if top == 1 else None in reasons
    for i, row in enumerate(rows_of(ledger)):
        index, component, alpha, reason = by_definition.get(i, (None, None, None, OTHER))
        assert row["predicted"] == imagenet_1k().wnids[seen[0][i]]
        assert (row["spurious_class"], row["component"], row[REASON]) == (index, component, reason)
        assert row[KEEP] == (reason is None)
        assert row["alpha"] is None if alpha is None else row["alpha"] == pytest.approx(alpha, rel=1e-3, abs=1e-5)


def test_pictures_that_may_show_the_object_by_their_labels_are_left_out(photos, seen, world, tmp_path):
    _, wanted, _ = world
    first, second = wanted
    (tmp_path / "classes.csv").write_text(f"class,label\n{first},{BIRD}\n{imagenet_1k().wnids[second]},\n")
    labels = [[BIRD, FEEDER] if i % 2 else [FEEDER] for i in range(PICTURES)]
    drop = [i for i in range(PICTURES) if i % 2 and seen[0][i] == first]
    ledger = through(
        tmp_path,
        (pool(files(photos), **{OPENIMAGES_LABELS: labels}), NoSettings()),
        (MINE_SPURIOUS, settings(world, top=2, class_labels=str(tmp_path / "classes.csv"))),
    )
    by_definition = expected(world, seen, 2, drop)
    assert drop
    assert [row[REASON] for row in rows_of(ledger)] == [
        by_definition[i][3] if i in by_definition else OTHER for i in range(PICTURES)
    ]


def test_unreadable_pictures_have_their_reason_and_any_order_of_processes_gives_the_same_bytes(photos, world, tmp_path):
    broken = tmp_path / "zz.png"
    broken.write_bytes(b"no picture")
    steps = (pool([*files(photos)[:8], (broken, None)]), NoSettings()), (MINE_SPURIOUS, settings(world))
    last = rows_of(through(tmp_path / "one", *steps))[-1]
    for rank in (1, 0):
        through(tmp_path / "two", *steps, rank=rank, size=2)
    assert (last[REASON], last["mining_error"]) == (UNREAD, "no picture format that Pillow knows")
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


def test_components_of_another_model_or_beyond_those_stored_are_refused(photos, world, tmp_path):
    folder, wanted, _ = world
    start = pool(files(photos)[:4]), NoSettings()
    with pytest.raises(
        StageError, match=r"expected the neural PCA of the model that ranks, got class .* other weights"
    ):
        through(tmp_path, start, (MINE_SPURIOUS, settings_of("timm-random/test_vit2", world)))
    (tmp_path / "list.json").write_text(json.dumps({str(next(iter(wanted))): [5]}))
    beyond = MineSpuriousSettings(TINY, neural_pca=str(folder), components=str(tmp_path / "list.json"))
    with pytest.raises(StageError, match=r"expected components below 5 of class .*, got 5"):
        through(tmp_path, start, (MINE_SPURIOUS, beyond))
    for place in ("", str(tmp_path)):
        with pytest.raises(StageError, match="expected the neural PCA of a class of 'published' in neural_pca"):
            through(tmp_path, start, (MINE_SPURIOUS, MineSpuriousSettings(TINY, neural_pca=place)))
    with pytest.raises(StageError, match="expected top of at least 1, got 0"):
        through(tmp_path, start, (MINE_SPURIOUS, settings(world, top=0)))


def settings_of(model, world):
    folder = world[0]
    return MineSpuriousSettings(model, neural_pca=str(folder), components=str(folder / "components.json"))


def test_a_class_without_a_line_in_the_label_file_is_refused(photos, world, tmp_path):
    (tmp_path / "classes.csv").write_text(f"class,label\n7,{BIRD}\n7,{FEEDER}\nn01498041,\n")
    assert object_labels(tmp_path / "classes.csv", [6, 7]) == {7: {BIRD, FEEDER}, 6: frozenset()}
    with pytest.raises(StageError, match=r"expected a line for each of 2 classes in .*, got none for 8 \(n01514859\)"):
        object_labels(tmp_path / "classes.csv", [7, 8])
    (tmp_path / "other.csv").write_text("klass,label\n7,x\n")
    with pytest.raises(StageError, match="expected a CSV with columns class and label"):
        object_labels(tmp_path / "other.csv", [7])
    first, second = world[1]
    (tmp_path / "classes.csv").write_text(f"class,label\n{first},{BIRD}\n{second},\n")
    with_labels = settings(world, class_labels=str(tmp_path / "classes.csv"))
    with pytest.raises(StageError, match="expected labels of OpenImages for class_labels, got none"):
        through(tmp_path, (pool(files(photos)[:4]), NoSettings()), (MINE_SPURIOUS, with_labels))


def metadata(folder, ids):
    """The two files of OpenImages as published, with more pictures than the pool has, a quote and a line break."""
    columns = ["ImageID", "Subset", "OriginalURL", "OriginalLandingURL", "License", "Author", "Title", "Rotation"]
    with (folder / "images.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="x")
        writer.writeheader()
        for key in ["ffffffffffffffff", *ids]:
            page = {
                "OriginalLandingURL": f"https://pages.example/{key}",
                "License": "CC BY 2.0",
                "Author": f'A, "{key}"',
            }
            writer.writerow({"ImageID": key, **page, "Title": "two\nlines"})
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["ImageID", "Source", "LabelName", "Confidence"])
        writer.writerow(["ffffffffffffffff", "verification", BIRD, "1"])
        writer.writerow([ids[0], "verification", FEEDER, "1"])
        writer.writerow([ids[0], "verification", BIRD, "0"])  # people looked and saw none
        writer.writerow([ids[1], "machine", BIRD, "0.7"])
        writer.writerow([ids[1], "verification", BIRD, "1"])
    return folder / "images.csv", folder / "labels.csv"


def test_pictures_of_openimages_carry_author_licence_page_and_positive_labels(photos, tmp_path):
    ids = [path.stem for path in photos[:3]]
    images, labels = metadata(tmp_path, ids[:2])
    collect = CollectOpenImagesSettings(str(photos[0].parent), (str(images),), (str(labels),), part_rows=5)
    rows = by_name(through(tmp_path / "out", (COLLECT_OPENIMAGES, collect)))
    first, second, third = (rows[f"{key}.png"] for key in ids)
    assert len(rows) == PICTURES
    assert (first["author"], first["licence"]) == (f'A, "{ids[0]}"', "CC BY 2.0")
    assert first["source_page"] == f"https://pages.example/{ids[0]}"
    assert (first[OPENIMAGES_LABELS], second[OPENIMAGES_LABELS], third[OPENIMAGES_LABELS]) == ([FEEDER], [BIRD], [])
    assert (third["author"], third[KEEP], third["wnid"]) == (None, True, None)


def test_the_recipe_runs_from_files_to_mined_pictures(photos, world, tmp_path):
    images, labels = metadata(tmp_path, [path.stem for path in photos])
    (tmp_path / "classes.csv").write_text("class,label\n" + "".join(f"{k},{BIRD}\n" for k in world[1]))
    ledger = through(
        tmp_path / "out",
        (COLLECT_OPENIMAGES, CollectOpenImagesSettings(str(photos[0].parent), (str(images),), (str(labels),))),
        (MINE_SPURIOUS, settings(world, top=1, class_labels=str(tmp_path / "classes.csv"))),
    )
    kept = [row for row in rows_of(ledger) if row[KEEP]]
    assert kept
    assert all(row["alpha"] > 0 and row["author"] and BIRD not in row[OPENIMAGES_LABELS] for row in kept)


def test_files_that_are_not_of_openimages_are_refused(photos, tmp_path):
    images, labels = metadata(tmp_path, [path.stem for path in photos[:2]])
    with pytest.raises(StageError, match="expected a CSV file of OpenImages with ImageID, LabelName, Confidence"):
        read_openimages([], [images], ["a"])
    with pytest.raises(StageError, match="expected a CSV file of OpenImages with ImageID, License"):
        read_openimages([tmp_path / "absent.csv"], [], ["a"])
    (tmp_path / "labels.csv").write_text("ImageID,Source,LabelName,Confidence\na,x,/m/1,high\n")
    with pytest.raises(StageError, match=r"expected numbers in Confidence of .*, got 'high'"):
        read_openimages([], [labels], ["a"])
    metadata(tmp_path, ["0" * 15 + "f", "0" * 15 + "e"])
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "other.png").write_bytes(photos[0].read_bytes())
    collect = CollectOpenImagesSettings(str(tmp_path / "pool"), (str(images),))
    with pytest.raises(StageError, match=r"expected image ids of .* as names of the pool's files, got none"):
        through(tmp_path / "out", (COLLECT_OPENIMAGES, collect))
