"""Agreement: hand-worked examples, an independent implementation, and every case in which it is not defined."""

from __future__ import annotations

import math

import krippendorff
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from review_answers import MODE, answers, image, sentinel

from hf_robust.review.agreement import agreement, counts, krippendorff_alpha, pairwise_agreement
from hf_robust.review.base import Answer, ReviewError

# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), part C: 4 observers, 12 units, None = missing.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]


def by_unit() -> list[list[str]]:
    return [[str(value) for value in unit if value is not None] for unit in zip(*OBSERVERS, strict=True)]


def test_alpha_of_krippendorffs_own_example_with_missing_data_is_0_743() -> None:
    assert round(krippendorff_alpha(counts(by_unit())), 3) == 0.743


def test_alpha_of_two_people_worked_by_hand() -> None:
    # Ten pictures: both yes 4, both no 2, split 4. n = 20 answers, 12 yes and 8 no.
    table = [[2, 0]] * 4 + [[0, 2]] * 2 + [[1, 1]] * 4
    observed = 4 * 2 / (2 - 1)  # Σ (n_u² - Σ n_uc²) / (n_u - 1): each split picture gives (4 - 2) / 1
    expected = (20**2 - 12**2 - 8**2) / (20 - 1)
    assert krippendorff_alpha(table) == pytest.approx(1 - observed / expected, abs=1e-12)
    assert pairwise_agreement(table) == pytest.approx(6 / 10, abs=1e-12)


def test_pairwise_agreement_counts_every_image_once_however_many_answered() -> None:
    # 4 answers yes yes yes no: 3 of 6 pairs; 2 answers that agree: 1 of 1; a single answer says nothing.
    assert pairwise_agreement([[3, 1], [0, 2], [1, 0]]) == pytest.approx((3 / 6 + 1) / 2, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=12))
def test_alpha_equals_the_independent_library_on_any_table(rows: list[list[int]]) -> None:
    table = np.array(rows)
    pairable = table[table.sum(axis=1) > 1]
    ours = krippendorff_alpha(table)
    if (pairable.sum(axis=0) > 0).sum() < 2:  # no pair, or one value only: chance cannot disagree
        assert math.isnan(ours)
    else:
        theirs = krippendorff.alpha(value_counts=table, level_of_measurement="nominal")
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_alpha_of_the_answers_equals_the_library_on_the_workers_matrix_with_holes() -> None:
    matrix = np.array([[1, 0, 1, np.nan, 1, 0], [1, 0, 0, 1, np.nan, 0], [np.nan, 1, 1, 1, 0, np.nan]])
    items = [image(str(i)) for i in range(6)]
    given = [
        Answer(f"w{w}", "t", str(i), "recognise", "yes" if value else "no")
        for w, row in enumerate(matrix)
        for i, value in enumerate(row)
        if not np.isnan(value)
    ]
    found = agreement(items, given, MODE)["recognise"]
    assert found.alpha == pytest.approx(krippendorff.alpha(matrix, level_of_measurement="nominal"), abs=1e-12)
    assert (found.images, found.answers) == (6, 14)


def test_each_question_has_its_own_agreement_and_sentinels_do_not_count() -> None:
    items = [image("a"), image("b"), sentinel("s", "positive", "yes")]
    given = answers("a", "yy", "yn") + answers("b", "nn", "ny") + answers("s", "yy", "nn")
    found = agreement(items, given, MODE)
    assert found["recognise"].alpha == 1.0
    assert found["recognise"].pairwise == 1.0
    assert found["usable"].pairwise == 0.0
    assert found["usable"].alpha == pytest.approx(1 - 3 * (2 + 2) / (4**2 - 2**2 - 2**2), abs=1e-12)
    assert found["usable"].images == 2


def test_only_the_workers_asked_for_count() -> None:
    items = [image("a"), image("b")]
    given = answers("a", "yy", "yy", "nn") + answers("b", "nn", "nn", "yy")
    assert agreement(items, given, MODE, workers=["w0", "w1"])["recognise"].alpha == 1.0
    assert agreement(items, given, MODE)["recognise"].pairwise == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ([], "no image has two answers"),
        (answers("a", "yy") + answers("b", "nn", first=1), "no image has two answers"),
        (answers("a", "yy", "yy") + answers("b", "yy", "yy"), "everyone gave the same answer everywhere"),
    ],
    ids=["no data", "one worker an item", "one value only"],
)
def test_where_alpha_is_not_defined_it_is_none_with_the_reason(given: list[Answer], note: str) -> None:
    found = agreement([image("a"), image("b")], given, MODE)["recognise"]
    assert found.alpha is None
    assert found.alpha_interval is None
    assert note in found.note


def test_everyone_alike_still_has_pairwise_agreement_1() -> None:
    found = agreement([image("a")], answers("a", "yy", "yy"), MODE)["recognise"]
    assert (found.pairwise, found.pairwise_interval) == (1.0, (1.0, 1.0))


def test_intervals_of_95_per_cent_cover_the_true_alpha_about_95_times_in_100() -> None:
    # Two answers agree with 0.9² + 0.1² = 0.82, by chance with 1/2, so alpha is (0.82 - 0.5) / 0.5 = 0.64.
    draw = np.random.default_rng(0)
    items = [image(str(i)) for i in range(60)]
    covered = 0
    for repeat in range(100):
        truth = draw.random(60) < 0.5
        yes = (draw.random((60, 3)) < 0.9) == truth[:, None]
        given = [
            Answer(f"w{w}", "t", str(i), "recognise", "yes" if yes[i, w] else "no") for i in range(60) for w in range(3)
        ]
        interval = agreement(items, given, MODE, replicates=200, seed=repeat)["recognise"].alpha_interval
        assert interval is not None
        covered += interval[0] < 0.64 < interval[1]
    assert 88 <= covered <= 100  # 95 ± 3 standard errors of √(100 · 0.95 · 0.05)


def test_an_alpha_of_nearly_equal_answers_says_that_it_says_little() -> None:
    items = [image(str(i)) for i in range(40)]
    given = [a for i in range(40) for a in answers(str(i), "yy", "ny" if i < 4 else "yy")]
    found = agreement(items, given, MODE)["recognise"]
    assert found.pairwise == 36 / 40
    assert found.alpha is not None
    assert found.alpha < 0  # 4 of 80 answers are no, never two on one image
    assert found.note.startswith("95% of the answers are alike: alpha, which compares with chance, says little")


def test_the_interval_is_the_same_for_the_same_seed() -> None:
    items = [image("a"), image("b"), image("c")]
    given = answers("a", "yy", "yy") + answers("b", "nn", "nn") + answers("c", "yn", "nn")
    assert agreement(items, given, MODE, seed=5) == agreement(items, given, MODE, seed=5)
    assert agreement(items, given, MODE, seed=5)["usable"].pairwise_interval == (1.0, 1.0)


def test_resamples_without_alpha_are_counted_and_too_many_give_no_interval() -> None:
    items = [image(str(i)) for i in range(6)]
    given = [answer for i in range(5) for answer in answers(str(i), "yy", "yy")] + answers("5", "nn", "nn")
    found = agreement(items, given, MODE)["recognise"]
    assert found.alpha == 1.0
    assert found.alpha_interval is None  # (5/6)⁶ = 33 % of the resamples miss the only "no"
    assert "of 1000 resamples: no interval" in found.note


def test_an_answer_with_another_value_is_refused_by_name() -> None:
    with pytest.raises(ReviewError, match="expected one of 'yes', 'no' for 'recognise' of item 'a', got 'maybe'"):
        agreement([image("a")], [Answer("w", "t", "a", "recognise", "maybe")], MODE)


def test_an_answer_about_an_unknown_item_is_refused() -> None:
    with pytest.raises(ReviewError, match="got one to 'z' in task 't': these answers are from another review"):
        agreement([image("a")], answers("z", "yy"), MODE)
