"""Decisions by majority, when they are final, and what is still to be collected."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from review_answers import MODE, answers, image, sentinel, task

from hf_robust.review.base import COMPONENT_LABELS, NAME_THE_CLASS, Answer, Item, ReviewError
from hf_robust.review.decisions import Decision, Needed, Rule, decide, still_needed
from hf_robust.review.people import component_json, component_list, human_accuracy
from hf_robust.spurious.components import read_components

PAIRS = ("yy", "yn", "ny", "nn")


def decided(*values: str, rule: Rule | None = None) -> Decision:
    return decide([image("a")], answers("a", *values), MODE, trusted=None, rule=rule or Rule())["a"]


@pytest.mark.parametrize(
    ("values", "accepted", "reason"),
    [
        (["yy", "yy", "nn"], True, "accepted"),
        (["yy", "yn", "ny"], True, "accepted"),  # each question 2 of 3
        (["yn", "yn", "yy"], False, "majority against: usable"),
        (["nn", "nn", "yy"], False, "majority against: recognise"),
        (["yy", "yn"], False, "tie: usable"),
        (["yy"], None, "too few trusted answers"),
        ([], None, "too few trusted answers"),
    ],
)
def test_an_image_is_accepted_when_each_question_has_a_majority_for_it(
    values: list[str], accepted: bool | None, reason: str
) -> None:
    found = decided(*values)
    assert (found.accepted, found.reason) == (accepted, reason)


def test_a_tie_drops_or_waits_for_one_more() -> None:
    drop, more = Rule(workers=2), Rule(workers=2, tie="one more")
    assert (decided("yy", "nn", rule=drop).accepted, decided("yy", "nn", rule=drop).final) == (False, True)
    waiting = decided("yy", "nn", rule=more)
    assert (waiting.accepted, waiting.final, waiting.reason) == (None, False, "tie, one more: recognise")
    assert (decided("yy", "nn", "yy", rule=more).accepted, decided("yy", "nn", "yy", rule=more).final) == (True, True)


def test_votes_show_how_many_trusted_workers_gave_each_value() -> None:
    assert decided("yy", "yn", "nn").votes == {"recognise": {"no": 1, "yes": 2}, "usable": {"no": 2, "yes": 1}}


def test_dropped_workers_do_not_vote_and_sentinels_are_not_decided() -> None:
    items = [image("a"), sentinel("s", "positive", "yes")]
    found = decide(items, answers("a", "yy", "nn", "nn"), MODE, trusted=["w0"], rule=Rule(fewest=1))
    assert list(found) == ["a"]
    assert found["a"].accepted is True


def outcomes(values: tuple[str, ...], rule: Rule) -> set[bool | None]:
    """Every decision that can come of these answers when the rest is collected, by going through all of them."""
    found = set()
    for rest in itertools.product(PAIRS, repeat=max(0, rule.workers - len(values))):
        accepted = decided(*values, *rest, rule=rule).accepted
        if accepted is None:
            found |= {decided(*values, *rest, last, rule=rule).accepted for last in PAIRS}
        else:
            found.add(accepted)
    return found


@pytest.mark.parametrize("rule", [Rule(3, 2), Rule(4, 2), Rule(4, 2, "one more"), Rule(3, 1), Rule(2, 2, "one more")])
def test_final_means_that_no_way_to_go_on_changes_the_decision_and_nothing_else(rule: Rule) -> None:
    cases = [v for n in range(rule.workers + 1) for v in itertools.combinations_with_replacement(PAIRS, n)]
    for values in cases:
        found = decided(*values, rule=rule)
        certain = found.accepted is not None and len(outcomes(values, rule)) == 1
        assert found.final == certain, values


def test_two_of_three_that_agree_are_final_and_one_is_not() -> None:
    assert decided("yy", "yy").final
    assert decided("yn", "yn").final  # one question surely refused is enough
    assert not decided("yy", "yn").final
    assert not decided("yy").final


def test_collecting_the_workers_who_remain_after_a_drop_is_not_final() -> None:
    found = decide([image("a")], answers("a", "yy", "yn", "nn"), MODE, trusted=["w0", "w1"], rule=Rule())["a"]
    assert not found.final  # a third trusted answer may still turn `usable`


ITEMS = [image("a"), image("b"), image("c"), image("d"), sentinel("s", "positive", "yes")]
TASKS = [task(f"{block}-{i}", items, block) for block, items in ((0, "abs"), (1, "cds")) for i in range(3)]


def sat(block: int, worker: int, first: str, second: str) -> list[Answer]:
    """A whole task: two images and the sentinel."""
    name = f"{block}-{worker}"
    one, two = "ab" if block == 0 else "cd"
    given = answers(one, first, task=name, first=worker) + answers(two, second, task=name, first=worker)
    return given + answers("s", "yy", task=name, first=worker)


def needed(given: list[Answer], trusted: list[str] | None = None, rule: Rule | None = None) -> Needed:
    return still_needed(ITEMS, TASKS, given, MODE, trusted=trusted, rule=rule or Rule())


def test_at_the_start_every_image_needs_all_answers_and_every_task_is_open() -> None:
    found = needed([])
    assert found.answers == dict.fromkeys("abcd", 3)
    assert found.open == tuple(t.task_id for t in TASKS)
    assert (found.stopped, found.again) == ((), ())


def test_a_block_whose_images_are_all_final_is_stopped() -> None:
    found = needed(sat(0, 0, "yy", "nn") + sat(0, 1, "yy", "nn") + sat(1, 0, "yy", "yy") + sat(1, 1, "yy", "nn"))
    assert found.stopped == ("0-2",)
    assert found.open == ("1-2",)  # d is split
    assert found.answers == {"d": 1}


def test_answers_of_a_dropped_worker_are_collected_again() -> None:
    given = [answer for i in range(3) for answer in sat(0, i, "yy", "yn" if i else "yy")]
    found = needed(given, trusted=["w0", "w1"])
    assert found.answers == {"b": 1, "c": 3, "d": 3}
    assert found.again == ("0-2",)
    assert found.open == ("1-0", "1-1", "1-2")


def test_a_task_that_only_a_dropped_worker_has_begun_is_given_again() -> None:
    begun = answers("a", "yy", task="0-2", first=2)
    found = needed(sat(0, 0, "yy", "yy") + sat(0, 1, "nn", "yy") + begun, trusted=["w0", "w1"])
    assert found.again == ("0-2",)
    assert "0-2" not in found.open


def test_a_tie_that_waits_for_one_more_gives_one_task_of_the_block_again() -> None:
    rule = Rule(workers=2, tie="one more")
    tasks = [t for t in TASKS if t.task_id in ("0-0", "0-1")]
    given = sat(0, 0, "yy", "yy") + sat(0, 1, "nn", "yy")
    found = still_needed(ITEMS, tasks, given, MODE, trusted=None, rule=rule)
    assert (found.answers["a"], "b" in found.answers) == (1, False)
    assert found.again == ("0-0",)


def test_more_answers_than_tasks_can_give_are_asked_for_again() -> None:
    found = needed([], rule=Rule(workers=5))
    assert found.again == ("0-0", "0-1", "1-0", "1-1")  # 5 - 3 open ones in each block


def test_a_task_with_an_unknown_item_is_refused() -> None:
    with pytest.raises(ReviewError, match="expected tasks of items of this review, got 'z' in task 't'"):
        still_needed(ITEMS, [task("t", "z")], [], MODE, trusted=None, rule=Rule())


def test_a_mode_without_accepting_answers_is_not_decided() -> None:
    with pytest.raises(ReviewError, match=r"got none for 'class' of 'name-the-class': for people's accuracy use"):
        decide([], [], NAME_THE_CLASS, trusted=None, rule=Rule())


def test_a_rule_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(ReviewError, match="expected 1 <= fewest <= workers"):
        Rule(workers=2, fewest=3)


# People as a model: name the class.

NAMES = ("cat", "dog", "fox")


def named(name: str) -> Item:
    return image(name, options={"class": NAMES})


def name_it(item_id: str, *values: str) -> list[Answer]:
    return [Answer(f"w{i}", "t", item_id, "class", value) for i, value in enumerate(values)]


def test_human_accuracy_by_answer_and_by_majority_with_both_denominators() -> None:
    items = [*map(named, "abcd"), replace(named("s"), kind="positive", expected={"class": ("cat",)})]
    given = (
        name_it("a", "cat", "cat", "dog")  # right by majority, 2 of 3 answers
        + name_it("b", "dog", "fox", "fox")  # wrong, 1 of 3
        + name_it("c", "cat", "dog")  # a tie counts as wrong, 1 of 2
        + name_it("s", "cat", "cat")
    )
    truth = {"row-a": ["cat"], "row-b": ["dog"], "row-c": ["cat"], "row-d": ["cat"]}
    found = human_accuracy(items, given, NAME_THE_CLASS, truth, trusted=None)
    assert (found.answers.right, found.answers.n, found.answers.value) == (4, 8, 4 / 8)
    assert (found.majority.right, found.majority.n, found.majority.value) == (1, 3, 1 / 3)
    assert (found.ties, found.unanswered, found.workers) == (1, 1, 3)
    assert found.majority.wilson[0] < 1 / 3 < found.majority.wilson[1]


def test_any_of_several_acceptable_names_is_right_and_dropped_workers_do_not_count() -> None:
    given = name_it("a", "cat", "fox", "dog")
    found = human_accuracy([named("a")], given, NAME_THE_CLASS, {"row-a": ["cat", "fox"]}, trusted=["w0", "w1"])
    assert (found.answers.right, found.answers.n, found.workers) == (2, 2, 2)


def test_answers_to_one_image_stay_together_in_the_resampled_interval() -> None:
    items = [named(str(i)) for i in range(40)]
    given = [answer for i in range(40) for answer in name_it(str(i), *(["cat"] if i % 2 else ["dog"]) * 5)]
    truth = {item.row_id: ["cat"] for item in items}
    found = human_accuracy(items, given, NAME_THE_CLASS, truth, trusted=None)
    low, high = found.answers.bootstrap
    # All five answers to an image are alike, so 200 answers say no more than 40 images: 0.5 ± 1.96 √(0.25 / 40).
    assert high - low == pytest.approx(2 * 1.96 * (0.25 / 40) ** 0.5, rel=0.15)
    assert found.answers.wilson[1] - found.answers.wilson[0] < 0.5 * (high - low)


@pytest.mark.parametrize(
    ("given", "truth", "message"),
    [
        ([], {"row-a": ["cat"]}, "expected answers to 'class' of 1 images, got none that count"),
        (name_it("a", "cat"), {}, "expected the right names of every image, got none for row 'row-a'"),
        (name_it("a", "cat"), {"row-a": ["cow"]}, "a right name among the 3 options of item 'a', got none of cow"),
    ],
)  # fmt: skip
def test_accuracy_that_would_mean_nothing_is_refused(
    given: list[Answer], truth: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ReviewError, match=message):
        human_accuracy([named("a")], given, NAME_THE_CLASS, truth, trusted=None)


# Component labels.


def labelled(item_id: str, *letters: str) -> list[Answer]:
    words = {"s": "spurious", "n": "not-spurious", "i": "inconsistent"}
    return [Answer(f"w{i}", "t", item_id, "component", words[letter]) for i, letter in enumerate(letters)]


def test_components_that_most_people_call_spurious_make_a_list_in_the_published_format(tmp_path: Path) -> None:
    items = [image(name) for name in "abcde"]
    places = {"row-a": (850, 2), "row-b": (850, 0), "row-c": (14, 1), "row-d": (14, 5), "row-e": (0, 0)}
    given = (
        labelled("a", "s", "s", "n")
        + labelled("b", "s", "s", "s")
        + labelled("c", "s", "n", "i")  # one of three: not more for than against
        + labelled("d", "s", "i", "s")
        + labelled("e", "n", "n", "s")
    )
    found = component_list(items, given, COMPONENT_LABELS, places, trusted=None, rule=Rule())
    assert found == {14: [5], 850: [0, 2]}
    path = tmp_path / "components.json"
    path.write_text(component_json(found), encoding="utf-8")
    assert read_components(path) == {14: (5,), 850: (0, 2)}


def test_a_sheet_without_a_place_and_two_sheets_of_one_component_are_refused() -> None:
    items = [image("a"), image("b")]
    with pytest.raises(ReviewError, match="got none for row 'row-b'"):
        component_list(items, [], COMPONENT_LABELS, {"row-a": (1, 1)}, trusted=None, rule=Rule())
    with pytest.raises(ReviewError, match="got two of component 1 of class 1"):
        component_list(
            items, [], COMPONENT_LABELS, dict.fromkeys(("row-a", "row-b"), (1, 1)), trusted=None, rule=Rule()
        )
