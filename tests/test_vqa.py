"""Two-option questions: which option an answer names, shares made of that, which options are asked about, scoring."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from hf_robust.data import Rows
from hf_robust.labels import imagenet_d_categories
from hf_robust.metrics import wilson
from hf_robust.metrics.vqa import (
    SPECIAL_PAIRS,
    choice,
    names_of,
    option_name,
    plain_words,
    question,
    synonyms,
    vqa_accuracy,
    vqa_answered,
)
from hf_robust.predictions.parts import RowTable
from hf_robust.runner.questions import Ranking, most_confusing, option_of, ranking_of_files, with_questions
from hf_robust.scoring.answers import Answers, values_of

OPTIONS = tuple(option_name(category.display_name) for category in imagenet_d_categories())
IDS = ("background/pen/aa.png", "texture/plate/bb.png", "texture/pen/aa.png")


def test_the_question_is_worded_as_in_the_paper() -> None:
    assert question("pen", "mug") == (
        "What is the main object in this image? Choose from the following list: pen, mug."
    )


@pytest.mark.parametrize(
    ("answer", "truth", "confusing", "published", "words"),
    [
        ("The main object is a backpack.", "backpack", "mug", "true", "true"),
        ("MUG", "backpack", "mug", "confusing", "confusing"),
        ("A mug and a backpack", "backpack", "mug", "both", "both"),
        ("a dog", "backpack", "mug", "neither", "neither"),
        ("", "backpack", "mug", "neither", "neither"),
        ("a rucksack", "backpack", "mug", "true", "true"),  # a synonym
        ("two mugs", "backpack", "mug", "confusing", "confusing"),  # a plural
        ("watches", "watch", "mug", "true", "true"),
        ("a pencil", "pen", "mug", "true", "neither"),  # a substring, no word
        ("it is open", "pen", "mug", "true", "neither"),
        ("a soap dispenser", "pen", "soap dispenser", "both", "confusing"),  # disPENser
        ("a letter opener", "letter opener", "pen", "both", "true"),  # oPENer
        ("a can opener", "pen", "can opener", "confusing", "confusing"),  # a special pair of the released scorer
        ("a can opener", "can opener", "pen", "true", "true"),
        ("a pen, no can opener", "pen", "can opener", "both", "both"),
        ("a pen", "pen", "can opener", "true", "true"),
        ("a drying rack for plates", "plate", "drying rack for plates", "confusing", "confusing"),
        ("plates in a dish rack", "plate", "drying rack for plates", "both", "both"),
        ("a plate", "drying rack for plates", "plate", "confusing", "confusing"),
        ("T-shirt (white)", "t shirt", "sweater", "true", "true"),
        ("a binder", "binder (closed)", "envelope", "true", "true"),  # the bare name is among the synonyms
        ("the weight scale", "weight scale", "weight (exercise)", "both", "true"),  # the longer name counts alone
        ("Ein Füller 钢笔", "pen", "mug", "neither", "neither"),
    ],
)  # fmt: skip
def test_an_answer_names_what_its_words_say(
    answer: str, truth: str, confusing: str, published: str, words: str
) -> None:
    assert choice(answer, truth, confusing) == published
    assert choice(answer, truth, confusing, matching="words") == words


def test_swapping_the_roles_of_the_options_swaps_the_choice() -> None:
    other = {"true": "confusing", "confusing": "true", "both": "both", "neither": "neither"}
    answers = ("a pen", "a can opener", "a soap dispenser", "open", "plates", "nothing", "rack and plate")
    pairs = itertools.permutations(("pen", "can opener", "soap dispenser", "plate", "drying rack for plates"), 2)
    for (one, two), answer, matching in itertools.product(pairs, answers, ("published", "words")):
        assert choice(answer, one, two, matching=matching) == other[choice(answer, two, one, matching=matching)]


def test_every_category_is_found_in_the_sentence_that_names_it() -> None:
    for option, beside in zip(OPTIONS, (*OPTIONS[1:], OPTIONS[0]), strict=True):
        for name in names_of(option):
            assert choice(f"It is a {name}.", option, beside, matching="words") == "true", name
            assert choice(f"It is a {name}.", option, beside) in ("true", "both"), name


def test_no_two_categories_share_a_name_and_each_has_its_row_of_synonyms() -> None:
    owners: dict[str, str] = {}
    for option in OPTIONS:
        for name in names_of(option):
            assert owners.setdefault(name, option) == option, name
            assert name == plain_words(name)
    assert set(synonyms()) == set(OPTIONS)


def test_names_inside_names_of_other_categories_are_those_we_know() -> None:
    inside = {
        (one, two)
        for one, two in itertools.permutations(OPTIONS, 2)
        if any(name in other for name in names_of(one) for other in names_of(two))
    }
    known = {("pen", "letter opener"), ("pen", "laptop (open)"), ("pen", "soap dispenser")}  # the released scorer drops
    bare = {("weight (exercise)", "weight scale")}
    assert inside == known | bare | {(short, long) for long, short in SPECIAL_PAIRS}


def test_two_options_with_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="expected two options with different names, got 'pen' and 'Pen'"):
        choice("a pen", "pen", "Pen")
    with pytest.raises(ValueError, match="expected matching of published or words, got 'fuzzy'"):
        choice("a pen", "pen", "mug", matching="fuzzy")  # type: ignore[arg-type]


def test_accuracy_leaves_out_answers_that_name_both_or_neither() -> None:
    choices = ["true", "true", "true", "confusing", "both", "neither", "neither"]
    assert vqa_accuracy(choices) == 3 / 4
    assert vqa_answered(choices) == 4 / 7


def test_one_answer_is_enough_and_none_is_an_error() -> None:
    assert (vqa_accuracy(["confusing"]), vqa_answered(["both"])) == (0.0, 0.0)
    with pytest.raises(ValueError, match="got none of 2"):
        vqa_accuracy(["both", "neither"])
    with pytest.raises(ValueError, match="expected at least one answer, got none"):
        vqa_answered([])
    with pytest.raises(ValueError, match="got 'maybe' at position 1"):
        vqa_accuracy(["true", "maybe"])
    with pytest.raises(ValueError, match=r"got shape \(1, 1\)"):
        vqa_answered([["true"]])  # type: ignore[list-item]


def test_the_second_option_is_the_first_choice_unless_that_is_right() -> None:
    assert most_confusing("alarm_clock", "backpack", "alarm_clock") == "backpack"
    assert most_confusing("alarm_clock", "alarm clock", "binder_(closed)") == "binder (closed)"
    assert most_confusing("alarm_clock", "alarm_clock", "alarm clock") is None
    assert most_confusing("alarm_clock", None, None) is None
    assert most_confusing("alarm_clock", " ", "mug") == "mug"


def test_every_spelling_of_a_category_is_one_option() -> None:
    for category in imagenet_d_categories():
        option = option_name(category.display_name)
        assert {option_of(name) for name in (category.folder, category.display_name, option)} == {option}
    assert option_of("some_other thing") == "some other thing"


def rows_of(ids: tuple[str, ...] = IDS) -> Rows:
    groups = {"category": [key.split("/")[1] for key in ids], "nuisance": [key.split("/")[0] for key in ids]}
    table = RowTable(ids, tuple(f"sha-{key}" for key in ids), tuple((i,) for i in range(len(ids))), groups)
    return Rows("imagenet-d", table, lambda i: ids[i].encode())


def test_rows_keep_their_pictures_when_those_without_a_second_option_are_left_out() -> None:
    ranking = Ranking("test", {IDS[0]: ("pen", None), IDS[1]: ("plate", "mug"), IDS[2]: ("mug", "pen")})
    asked = with_questions(rows_of(), ranking)
    assert asked.table.ids == IDS[1:]
    assert [asked.read(i).decode() for i in range(2)] == list(IDS[1:])
    assert asked.table.groups["truth"] == ["plate", "pen"]
    assert asked.table.groups["confusing"] == ["mug", "mug"]
    assert not asked.complete
    assert asked.differences == ("1 of 3 pictures have no second option and were not asked about",)


def test_no_second_option_at_all_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(ValueError, match=r"got none for all 3: give --questions FILE .* or --confusing RUN"):
        with_questions(rows_of(), Ranking("questions of the data set", {}))


def test_question_files_are_joined_by_folder_and_file_name(tmp_path: Path) -> None:
    path = tmp_path / "texture.csv"
    path.write_text(
        "image_dir\tgt_category\ttop1_pred_cate\ttop2_pred_cate\n"
        "./texture/plate/bb.png\tplate\tmug\tplate\n"
        "images/texture/pen/aa.png\tpen\tpen\ttie\n"
        "pen/aa.png\tpen\tmug\tpen\n"  # two pictures end so: neither is meant for sure
        "texture/pen/unknown.png\tpen\tmug\tpen\n"
    )
    ranking = ranking_of_files([path], rows_of())
    assert ranking.choices == {IDS[1]: ("mug", "plate"), IDS[2]: ("pen", "tie")}
    assert ranking.origin.startswith("question files (SHA-256 ")


def test_question_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    commas = tmp_path / "commas.csv"
    commas.write_text("image_dir,top1_pred_cate\na,b\n")
    with pytest.raises(ValueError, match="without image_dir, top1_pred_cate, top2_pred_cate"):
        ranking_of_files([commas], rows_of())
    strangers = tmp_path / "strangers.csv"
    strangers.write_text("image_dir\ttop1_pred_cate\ttop2_pred_cate\nx/y/z.png\tpen\tmug\n")
    with pytest.raises(ValueError, match="expected pictures of imagenet-d in the column image_dir"):
        ranking_of_files([strangers], rows_of())
    pickled = tmp_path / "bytes.csv"
    pickled.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="expected a tab-separated text file"):
        ranking_of_files([pickled], rows_of())


def answers(published: str, swapped: str | None = None, **more: object) -> Answers:
    """Choices by their first letters: t(rue), c(onfusing), b(oth), n(either)."""
    names = {"t": "true", "c": "confusing", "b": "both", "n": "neither"}
    first = np.array([names[letter] for letter in published], dtype=np.str_)
    second = None if swapped is None else np.array([names[letter] for letter in swapped], dtype=np.str_)
    rest = {"likely": None, "likely_swapped": None, "likely_per_token": None, **more}
    return Answers(first, first, second, nuisance=np.array(["texture"] * len(first), dtype=np.str_), **rest)  # type: ignore[arg-type]


def test_every_share_has_its_own_denominator() -> None:
    found = dict(values_of(answers("tttcbn", "tcttnt")))
    assert (found["vqa_accuracy"].value, found["vqa_accuracy"].n) == (3 / 4, 4)
    assert found["vqa_answered"].value == 4 / 6
    assert found["vqa_accuracy_of_all"].value == 3 / 6
    assert (found["vqa_accuracy_swapped"].value, found["vqa_accuracy_swapped"].n) == (4 / 5, 5)
    assert found["vqa_accuracy_both_orders"].value == (3 + 4) / (4 + 5)
    assert found["vqa_order_changed"].value == 4 / 6  # all but the first and the third
    assert found["vqa_accuracy"].details == {
        "estimator": "answers that name one option; two options, chance 0.5",
        "named_true": 3, "named_confusing": 1, "named_both": 1, "named_neither": 1,
    }  # fmt: skip
    assert "vqa_likelihood_accuracy" not in found


def test_an_interval_over_both_orders_draws_pictures_not_answers() -> None:
    value = dict(values_of(answers("tc" * 50, "tc" * 50)))["vqa_accuracy_both_orders"]
    assert value.sampling is not None
    assert value.n == value.sampling.n == 100
    drawn = np.random.default_rng(0).multinomial(100, np.full(100, 0.01), size=4000)
    spread = float(value.sampling.statistic(drawn).std())
    assert spread == pytest.approx(np.sqrt(0.25 / 100), rel=0.05)  # that of 100 pictures, not of 200 answers
    assert value.sampling.statistic(np.ones((1, 100), dtype=np.int64))[0] == value.value == 0.5


def test_no_answer_that_names_one_option_leaves_the_accuracy_undefined() -> None:
    found = dict(values_of(answers("bn", "nn")))
    assert (found["vqa_accuracy"].value, found["vqa_accuracy"].n) == (None, 0)
    assert found["vqa_accuracy"].reason == "none of 2 answers names exactly one option"
    assert found["vqa_accuracy_both_orders"].value is None
    assert (found["vqa_answered"].value, found["vqa_accuracy_of_all"].value) == (0, 0)


def test_one_row_and_no_rows_have_defined_values() -> None:
    one = dict(values_of(answers("t", "c")))
    assert one["vqa_accuracy_both_orders"].value == 1 / 2
    assert wilson(1, 1)[0] < one["vqa_accuracy"].value == 1.0  # type: ignore[operator]
    nothing = dict(values_of(answers("")))
    assert [value.value for value in nothing.values()] == [None] * 5


def test_likelihoods_are_averaged_over_both_orders() -> None:
    flags = np.array([True, True, False, False]), np.array([True, False, False, True])
    per_token = np.array([True, True, True, False])
    found = dict(
        values_of(answers("nnnn", "nnnn", likely=flags[0], likely_swapped=flags[1], likely_per_token=per_token))
    )
    assert found["vqa_likelihood_accuracy"].value == 2 / 4
    assert found["vqa_likelihood_per_token"].value == 3 / 4
    assert found["vqa_likelihood_both_orders"].value == (2 + 2) / 8
