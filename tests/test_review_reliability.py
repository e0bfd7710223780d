"""Who passes sentinels, who agrees, who is dropped and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from review_answers import MODE, answers, image, sentinel

from hf_robust.metrics.intervals import wilson
from hf_robust.review.base import Answer, Item, ReviewError
from hf_robust.review.reliability import Reliability, Share, Thresholds, reliability, trusted
from hf_robust.review.votes import cast, majority

ITEMS = [
    image("a"),
    image("b"),
    sentinel("p", "positive", "yes"),
    sentinel("n", "negative", "no"),
    sentinel("c", "consistent", repeats="a"),
]


def careful_and_careless() -> list[Answer]:
    """w0 passes all sentinels; w1 always says yes; w2 does not answer as before."""
    return (
        answers("a", "yy", "yy", "yy")
        + answers("b", "nn", "yy", "nn")
        + answers("p", "yy", "yy", "yy")
        + answers("n", "nn", "yy", "nn")
        + answers("c", "yy", "yy", "yn")
    )


def test_sentinels_are_counted_by_kind_and_all_questions_must_pass() -> None:
    found = reliability(ITEMS, careful_and_careless(), MODE)
    assert (found["w0"].positive, found["w0"].negative, found["w0"].consistent) == (Share(1, 1),) * 3
    assert (found["w1"].positive, found["w1"].negative) == (Share(1, 1), Share(0, 1))
    assert found["w2"].consistent == Share(0, 1)
    assert found["w2"].sentinels == Share(2, 3)
    assert found["w1"].answers == 10


def test_a_sentinel_that_stands_in_several_tasks_is_seen_in_each_of_them() -> None:
    given = [a for i, pair in enumerate(("nn", "nn", "yy")) for a in answers("n", pair, task=f"t{i}")]
    assert reliability(ITEMS, given, MODE)["w0"].negative == Share(2, 3)


def test_a_sentinel_answered_in_part_is_not_seen() -> None:
    found = reliability(ITEMS, answers("p", "y-") + answers("c", "yy") + answers("a", "y-"), MODE)["w0"]
    assert found.sentinels.seen == 0


def test_a_worker_is_dropped_with_the_reason_and_the_others_are_kept() -> None:
    trust = trusted(reliability(ITEMS, careful_and_careless(), MODE), Thresholds(fewest_of_a_kind=1))
    assert trust.kept == ("w0",)
    assert trust.dropped == {
        "w1": "0 of 1 negative sentinels passed, 0.5 of them needed",
        "w2": "0 of 1 consistent sentinels passed, 0.5 of them needed",
    }


def seen(positive: tuple[int, int], negative: tuple[int, int], consistent: tuple[int, int]) -> Reliability:
    """A worker who passed so many of so many of each kind."""
    return Reliability("w", 60, Share(*positive), Share(*negative), Share(*consistent), Share(0, 0), None, 0)


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (seen((2, 2), (0, 1), (2, 2)), None),  # one failed of a kind may be a slip
        (seen((2, 2), (0, 2), (2, 2)), "0 of 2 negative sentinels passed, 0.5 of them needed"),
        (seen((2, 2), (1, 2), (2, 2)), None),
        (seen((1, 1), (0, 1), (1, 1)), None),
        (seen((0, 1), (0, 1), (1, 1)), "1 of 3 sentinels passed, 0.5 of them needed"),  # 1 < 3 / 2
        (seen((0, 1), (0, 0), (0, 1)), None),  # two are too few to say anything
    ],
)
def test_a_kind_speaks_alone_once_two_of_it_were_seen_and_all_kinds_together_before(
    own: Reliability, reason: str | None
) -> None:
    assert trusted({"w": own}, Thresholds()).dropped.get("w") == reason


def test_together_the_kinds_must_reach_what_each_asks_on_average() -> None:
    own = {"w": seen((0, 1), (1, 1), (1, 2))}
    lenient = Thresholds(positive=0, negative=1, consistent=0.5)  # of 4: (0 · 1 + 1 · 1 + 0.5 · 2) / 4 = 0.5
    assert trusted(own, lenient).kept == ("w",)
    strict = Thresholds(positive=0.5, negative=1, consistent=0.5)  # (0.5 + 1 + 1) / 4 = 0.625, 2 of 4 are fewer
    assert trusted(own, strict).dropped == {"w": "2 of 4 sentinels passed, 0.62 of them needed"}
    exact = {"w": seen((11, 20), (0, 0), (0, 0))}
    assert trusted(exact, Thresholds(positive=0.55)).kept == ("w",)  # 0.55 · 20 is not more than 11


def test_thresholds_decide_and_a_share_that_just_reaches_them_passes() -> None:
    found = reliability(ITEMS, careful_and_careless(), MODE)
    one = {"w": replace(found["w0"], positive=Share(3, 4))}
    assert trusted(one, Thresholds(positive=0.75)).kept == ("w",)
    assert "3 of 4 positive" in trusted(one, Thresholds(positive=0.76)).dropped["w"]


def test_with_too_few_sentinels_nobody_is_dropped_for_them_but_they_can_be_left_out() -> None:
    found = reliability(ITEMS, answers("n", "yy"), MODE)
    assert trusted(found, Thresholds(fewest=2)).unjudged == ("w0",)
    assert trusted(found, Thresholds(fewest=2)).kept == ("w0",)
    strict = trusted(found, Thresholds(fewest=2, keep_unjudged=False))
    assert strict.dropped == {"w0": "only 1 sentinels seen, 2 needed to be judged"}


def test_who_answers_faster_than_one_can_look_is_dropped_by_the_median() -> None:
    fast = answers("a", "yy", seconds=0.1) + answers("b", "yy", seconds=0.1) + answers("p", "yy", seconds=9.0)
    found = reliability(ITEMS, fast, MODE)
    assert found["w0"].median_seconds == 0.1
    assert trusted(found, Thresholds()).dropped == {"w0": "median of 0.1 s an answer, 0.4 s needed"}
    assert trusted(found, Thresholds(fastest=0.0)).kept == ("w0",)
    assert trusted(found, Thresholds(fewest=7)).kept == ("w0",)  # 6 timed answers are too few to tell


def test_times_that_are_no_times_are_left_out() -> None:
    odd = [
        replace(answer, seconds=value) for answer, value in zip(answers("a", "yy"), (float("nan"), -1.0), strict=True)
    ]
    found = reliability(ITEMS, odd, MODE)["w0"]
    assert (found.median_seconds, found.timed) == (None, 0)


def test_agreement_is_with_the_majority_of_the_others() -> None:
    given = answers("a", "yy", "yy", "ny", "yy")  # for w2: the others say yes 3 times; for w0: yes, no, yes
    found = reliability(ITEMS, given, MODE)
    assert found["w2"].agreement == Share(1, 2)
    assert found["w0"].agreement == Share(2, 2)
    split = reliability(ITEMS, answers("b", "yy", "yy", "nn"), MODE)
    assert split["w0"].agreement == Share(0, 0)  # the others say yes and no: no majority
    strict = trusted(found, Thresholds(fewest=2, agreement=0.75))
    assert strict.dropped == {"w2": "1 of 2 answers as the majority of the others, 0.75 of them needed"}


def test_a_rate_has_a_wilson_interval_and_nothing_seen_has_none() -> None:
    assert Share(9, 10).rate == 0.9
    assert Share(9, 10).failed == 1
    assert Share(9, 10).interval == wilson(9, 10)
    assert (Share(0, 0).rate, Share(0, 0).interval) == (None, None)


def test_nobody_answered_gives_nobody() -> None:
    assert reliability(ITEMS, [], MODE) == {}
    assert trusted({}, Thresholds()).kept == ()


def test_of_two_answers_in_a_task_the_last_counts_of_two_tasks_the_first() -> None:
    early = Answer("w", "t1", "a", "recognise", "yes", at="2026-01-01T00:00:00Z")
    corrected = replace(early, value="no", at="2026-01-01T00:01:00Z")
    later = replace(early, task_id="t2", value="yes", at="2026-01-02T00:00:00Z")
    for order in ([early, corrected, later], [later, corrected, early]):
        assert cast(ITEMS, order, MODE)["a", "recognise"] == {"w": "no"}


def test_the_majority_of_a_tie_is_none() -> None:
    assert majority(["a", "b", "b", "a", "c"]) is None


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([image("a"), image("a")], "expected each item once, got 'a' twice"),
        ([sentinel("p", "positive")], "expected the answers that pass for the positive sentinel 'p'"),
        ([sentinel("c", "consistent", repeats="z")], "repeat an item of this review, got 'z'"),
        ([image("a", kind="other")], "expected a kind of item"),
    ],
)
def test_items_that_cannot_be_judged_are_refused(items: list[Item], message: str) -> None:
    with pytest.raises(ReviewError, match=message):
        reliability(items, [], MODE)


def test_thresholds_out_of_range_are_refused() -> None:
    with pytest.raises(ReviewError, match="expected fractions in"):
        Thresholds(positive=1.5)
    for wrong in ({"fewest": 0}, {"fewest_of_a_kind": 0}):
        with pytest.raises(ReviewError, match="fewest… >= 1"):
            Thresholds(**wrong)
