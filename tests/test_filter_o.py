"""Filtration for classes outside ImageNet-1k, the choice of predicted classes, and WordNet's hierarchy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from filter_world import KEEP, REASON, TINY, NoSettings, bytes_of, pool, rows_of, through, work

from hf_robust.benchmarks.spec import PAPER
from hf_robust.data import decode
from hf_robust.labels import imagenet_1k, label_space
from hf_robust.models import load_model, transform_for
from hf_robust.regenerate.balance import CLASS_FULL, TOO_FEW
from hf_robust.regenerate.filter_o import (
    CHOOSE_CLASSES,
    FILTER_O,
    KNOWN,
    NO_CLASS,
    RARE,
    RELATED,
    UNLISTED,
    UNREAD,
    UNSURE,
    ChooseClassesSettings,
    FilterOSettings,
    class_rule,
    most_used,
)
from hf_robust.regenerate.recipes import recipe_of
from hf_robust.regenerate.stage import StageError
from hf_robust.regenerate.wordnet import lemmas, read_hierarchy, relatives

START = NoSettings()
DOG, BREED, JELLO, ORGANISM = "n02084071", "n02085620", "n07613815", "n00004475"

# header, then: entity > organism > dog > two breeds, one of which is also an instance of a pet; jello > entity
DATABASE = """  1 This software and database is being provided to you
00000001 03 n 01 entity 0 001 ~ 00000002 n 0000 | that which exists
00000002 03 n 01 organism 0 002 @ 00000001 n 0000 ~ 00000003 n 0000 | a living thing
00000003 05 n 0b a 0 b 0 c 0 d 0 e 0 f 0 g 0 h 0 i 0 j 0 k 0 002 @ 00000002 n 0000 + 00000009 v 0101 | eleven words
00000004 05 n 01 breed 0 001 @ 00000003 n 0000 | a dog with | in its gloss
00000005 05 n 01 Rex 0 002 @i 00000003 n 0000 #p 00000001 n 0000 | an instance
00000006 13 n 02 jello 0 Jell-O 0 001 @ 00000001 n 0000 | a dessert
"""
PAIRS = "n00000001 n00000002\nn00000002 n00000003\nn00000003 n00000004\nn00000003 n00000005\nn00000001 n00000006\n"


@pytest.fixture
def photos(tmp_path, picture):
    """Seven pictures of one class outside ImageNet-1k."""
    files = []
    for i in range(7):
        picture(i, width=64, height=60).save(tmp_path / f"{i}.png")
        files.append((tmp_path / f"{i}.png", JELLO))
    return files


def expected_confidences(files):
    """(WordNet id, probability) of the highest of the 1,000 classes, by the module alone."""
    import torch

    model = load_model(TINY)
    transform = transform_for(PAPER, model.preprocessing)[0]
    found = []
    for path, _ in files:
        with torch.inference_mode():
            logits = model.module(transform(decode(path.read_bytes())).unsqueeze(0)).double().numpy()[0]
        chances = np.exp(logits) / np.exp(logits).sum()
        found.append((imagenet_1k().wnids[chances.argmax()], chances.max()))
    return found


def test_both_file_formats_give_the_same_hierarchy(tmp_path):
    (tmp_path / "data.noun").write_text(DATABASE)
    (tmp_path / "wordnet.is_a.txt").write_text(PAIRS)
    for name in ("data.noun", "wordnet.is_a.txt"):
        tree = read_hierarchy(tmp_path / name)
        assert tree.above(["n00000004"]) == {"n00000001", "n00000002", "n00000003"}
        assert tree.below(["n00000002"]) == {"n00000003", "n00000004", "n00000005"}
        assert tree.above(["n00000006", "n00000001"]) == {"n00000001"}
        assert tree.below(["n00000005", "n77777777"]) == set()
        assert "n00000006" in tree
        assert "n00000007" not in tree


def test_a_circle_in_the_hierarchy_ends(tmp_path):
    (tmp_path / "circle.txt").write_text("n00000001 n00000002\nn00000002 n00000001\n")
    assert read_hierarchy(tmp_path / "circle.txt").below(["n00000001"]) == {"n00000001", "n00000002"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("entity organism\n", "got 'entity organism' in line 1"),
        ("n00000001 n00000002\nn00000003\n", "got 'n00000003' in line 2"),
        ("  header\n00000001 03 n zz entity\n", "got '00000001 03 n zz entity' in line 2"),
        ("", "got no relation"),
    ],
)
def test_a_file_that_is_no_hierarchy_is_refused_with_where_to_get_one(content, message, tmp_path):
    (tmp_path / "some.txt").write_text(content)
    with pytest.raises(StageError, match=f"expected wordnet.is_a.txt of the ImageNet project .*{message}"):
        read_hierarchy(tmp_path / "some.txt")


def test_the_included_relatives_are_classes_of_the_21k_family_and_none_of_the_1000():
    assert DOG in relatives()
    assert ORGANISM in relatives()
    assert JELLO not in relatives()
    assert not relatives() & set(imagenet_1k().wnids)
    assert relatives() <= {wnid for width in (21841, 21843, 10450, 11221, 11821) for wnid in label_space(width).wnids}


def test_a_class_is_refused_for_the_first_rule_that_it_breaks():
    refuse, _ = class_rule(FilterOSettings())
    classes = (None, "", BREED, "n99999999", DOG, JELLO)
    assert [refuse(wnid) for wnid in classes] == [NO_CLASS, NO_CLASS, KNOWN, UNLISTED, RELATED, None]
    lenient, _ = class_rule(FilterOSettings(classes="any", hierarchy="none"))
    assert [lenient(wnid) for wnid in classes] == [NO_CLASS, NO_CLASS, KNOWN, None, None, None]


def test_a_given_hierarchy_and_list_replace_the_included_ones(tmp_path):
    wnids = imagenet_1k().wnids
    (tmp_path / "tree.txt").write_text("".join(f"n00000001 {w}\n" for w in wnids) + f"{wnids[0]} n00000002\n")
    (tmp_path / "list.txt").write_text("n00000001 n00000002\nn00000003\n")
    settings = FilterOSettings(classes=str(tmp_path / "list.txt"), hierarchy=str(tmp_path / "tree.txt"))
    refuse, facts = class_rule(settings)
    found = [refuse(w) for w in ("n00000001", "n00000002", "n00000003", JELLO)]
    assert found == [RELATED, RELATED, None, UNLISTED]
    assert facts != class_rule(FilterOSettings())[1]


def test_a_hierarchy_that_lacks_classes_of_imagenet_is_refused(tmp_path):
    (tmp_path / "tree.txt").write_text(PAIRS)
    with pytest.raises(
        StageError, match=r"expected all 1,000 ImageNet classes in .* none of n01440764, .* and 997 more"
    ):
        class_rule(FilterOSettings(hierarchy=str(tmp_path / "tree.txt")))


def test_files_and_combinations_without_sense_are_refused(tmp_path, photos):
    with pytest.raises(StageError, match="expected a WordNet file in hierarchy for classes='any', got 'included'"):
        class_rule(FilterOSettings(classes="any"))
    with pytest.raises(StageError, match="expected classes to be 'imagenet-22k', 'any' or a file of WordNet ids"):
        class_rule(FilterOSettings(classes=str(tmp_path / "absent.txt")))
    with pytest.raises(StageError, match=r"expected wordnet.is_a.txt of the ImageNet project .* or data.noun"):
        class_rule(FilterOSettings(hierarchy=str(tmp_path / "absent.txt")))
    with pytest.raises(StageError, match=r"expected min_confidence above 0 and at most 1, got 1\.5"):
        through(tmp_path / "out", (pool(photos), START), (FILTER_O, FilterOSettings(TINY, min_confidence=1.5)))
    with pytest.raises(StageError, match="expected at least 1 class, got 0"):
        through(tmp_path / "out", (pool(photos), START), (CHOOSE_CLASSES, ChooseClassesSettings(0)))


def test_kept_is_what_the_filter_gives_a_class_with_enough_confidence(tmp_path, photos):
    expected = expected_confidences(photos)
    threshold = sorted(confidence for _, confidence in expected)[3]  # four of the seven reach it
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    files = [*photos, (broken, JELLO), (photos[0][0], DOG)]
    settings = FilterOSettings(TINY, min_confidence=float(threshold) - 1e-6)
    rows = rows_of(through(tmp_path / "out", (pool(files[:8]), START), (FILTER_O, settings)))
    reasons = [None if confidence >= threshold else UNSURE for _, confidence in expected]
    assert [row[REASON] for row in rows] == [*reasons, UNREAD]
    assert [row[KEEP] for row in rows].count(True) == 4
    assert [row["confused_with"] for row in rows] == [*(wnid for wnid, _ in expected), None]
    assert [row["confidence"] for row in rows[:7]] == pytest.approx([c for _, c in expected], rel=1e-5)
    assert {row["true_lemmas"] for row in rows} == {"jello_Jell-O"}
    assert rows[7]["filter_error"] == "no picture format that Pillow knows"


def test_a_class_that_is_refused_costs_no_forward_pass_and_a_later_part_changes_nothing(tmp_path, photos):
    mixed = [(path, DOG if i % 2 else JELLO) for i, (path, _) in enumerate(photos)]
    settings = FilterOSettings(TINY, min_confidence=1e-3)
    through(tmp_path / "one", (pool(mixed), START), (FILTER_O, settings))
    for rank in (1, 0):
        ledger = through(tmp_path / "two", (pool(mixed), START), (FILTER_O, settings), rank=rank, size=2)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    assert [row["confused_with"] is None for row in rows_of(ledger)] == [bool(i % 2) for i in range(7)]


def test_the_most_used_classes_are_chosen_and_ties_go_to_the_lower_index(tmp_path):
    wnids = imagenet_1k().wnids
    predicted = [wnids[k] for k in (5, 5, 9, 9, 7, 3, 9, 3, 2)]  # 9 three times, 3 and 5 twice, 2 and 7 once
    files = [(Path(str(i)), JELLO) for i in range(9)]
    start = pool(files, confused_with=predicted), START
    assert most_used(through(tmp_path, start), 2) == (wnids[3], wnids[9])
    ledger = through(tmp_path, start, (CHOOSE_CLASSES, ChooseClassesSettings(4)))
    assert Counter(row[REASON] for row in rows_of(ledger)) == {None: 8, RARE: 1}
    assert [i for i, row in enumerate(rows_of(ledger)) if not row[KEEP]] == [4]  # index 2 wins the tie with 7
    assert through(tmp_path, start, (CHOOSE_CLASSES, ChooseClassesSettings())).kept() == 9


def test_after_the_choice_of_classes_the_predicted_ones_can_be_balanced(tmp_path):
    stages = {stage.name: stage for stage in recipe_of("imagenet-o").stages}
    names = list(stages)
    assert names.index("balance") == names.index("choose_classes") + 1
    wnids = imagenet_1k().wnids
    predicted = [wnids[k] for k in (5, 5, 5, 9, 9, 7)]
    confidence = [0.96, 0.98, 0.97, 0.99, 0.96, 0.99]
    files = [(Path(str(i)), JELLO) for i in range(6)]
    start = pool(files, confused_with=predicted, confidence=confidence), START
    balance = stages["balance"]
    assert through(tmp_path, start, (balance, balance.settings())).kept() == 6
    chosen = balance.settings(at_least=2, at_most=2, order="-confidence")
    ledger = through(tmp_path, start, (balance, chosen))
    reasons = {i: row[REASON] for i, row in enumerate(rows_of(ledger)) if not row[KEEP]}
    assert reasons == {0: CLASS_FULL, 5: TOO_FEW}  # of class 5 the two surest stay; class 7 has one picture alone
    total = through(tmp_path, start, (balance, balance.settings(total=4, order="-confidence")))
    assert [i for i, row in enumerate(rows_of(total)) if row[KEEP]] == [1, 2, 3, 5]  # first of each, then of the rest


def test_lemmas_are_written_as_in_the_published_file_names(shared):
    import csv

    with (shared / "reference" / "label_spaces" / "imagenet_o_file_names_sample.csv").open(encoding="utf-8") as stream:
        published = {row["file_name"].rpartition("_")[0] for row in csv.DictReader(stream)}
    assert published <= set(lemmas().values())
    assert not any("/" in text or " " in text for text in lemmas().values())


def test_the_filter_looks_once_at_each_picture(tmp_path):
    from hf_robust.regenerate.crops import load_viewer

    viewer = load_viewer(TINY, work(tmp_path).world, kind="one", mode="paper")
    assert viewer.pictures_at_once == 8
