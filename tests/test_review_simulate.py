"""Simulated workers and planning, checked against binomial arithmetic; and a whole review from files to decisions."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from review_answers import MODE, image, sentinel, task

from hf_robust.review.agreement import agreement
from hf_robust.review.base import NAME_THE_CLASS, ReviewError
from hf_robust.review.decisions import Rule, decide, still_needed
from hf_robust.review.folder import Review
from hf_robust.review.reliability import Thresholds, reliability, trusted
from hf_robust.review.simulate import Outcome, Worker, plan_review, simulate
from hf_robust.review.store import Store
from hf_robust.review.tasks import Candidate, make_review, read_review

YES = {"recognise": "yes", "usable": "yes"}
NO = {"recognise": "yes", "usable": "no"}
ITEMS = [
    *(image(str(i)) for i in range(400)),
    sentinel("p", "positive", "yes"),
    sentinel("n", "negative", "no"),
    sentinel("c", "consistent", repeats="0"),
]
TASKS = [task(f"t{i}", [*map(str, range(400)), "p", "n", "c"]) for i in range(4)]
TRUTH = {f"row-{i}": YES if i % 2 else NO for i in range(400)}


def test_a_careful_worker_is_right_as_often_as_said_and_spammers_do_what_they_do() -> None:
    workers = [Worker("good", 0.9), Worker("bad", 0.6), Worker("yes", habit="first"), Worker("dice", habit="random")]
    right: Counter[str] = Counter()
    for answer in simulate(ITEMS, TASKS, TRUTH, workers, MODE, seed=0):
        if answer.item_id.isdigit():
            right[answer.worker] += TRUTH[f"row-{answer.item_id}"][answer.question] == answer.value
    expected = {"good": 0.9, "bad": 0.6, "yes": 0.75, "dice": 0.5}  # three of four right answers are yes
    for worker, chance in expected.items():
        error = 4 * math.sqrt(chance * (1 - chance) / 800)
        assert right[worker] / 800 == pytest.approx(chance, abs=0 if worker == "yes" else error)


def test_answers_are_the_same_for_the_same_seed_and_do_not_depend_on_other_tasks() -> None:
    workers = [Worker(f"w{i}") for i in range(4)]
    whole = simulate(ITEMS, TASKS, TRUTH, workers, MODE, seed=1)
    assert simulate(ITEMS, TASKS, TRUTH, workers, MODE, seed=1) == whole
    assert simulate(ITEMS, TASKS[:2], TRUTH, workers, MODE, seed=1) == whole[: len(whole) // 2]
    assert simulate(ITEMS, TASKS, TRUTH, workers, MODE, seed=2) != whole


def test_nobody_gets_two_tasks_of_a_block_and_all_get_as_many() -> None:
    tasks = [task(f"{block}-{i}", ["0"], block) for block in range(10) for i in range(3)]
    found = simulate(ITEMS, tasks, TRUTH, [Worker(f"w{i}") for i in range(5)], MODE, seed=0)
    blocks = {(answer.worker, answer.task_id.split("-")[0], answer.task_id) for answer in found}
    assert len({(worker, block) for worker, block, _ in blocks}) == 30
    assert set(Counter(worker for worker, _, _ in blocks).values()) == {6}


def test_an_image_shown_again_gets_the_same_answer_as_often_as_said() -> None:
    items = [image("0"), sentinel("c", "consistent", repeats="0")]
    tasks = [task(f"t{i}", ["0", "c"], i) for i in range(1000)]
    found = simulate(items, tasks, TRUTH, [Worker("w", 0.5, steady=0.8)], MODE, seed=0)
    given = {(a.task_id, a.item_id): a.value for a in found if a.question == "recognise"}
    same = sum(given[t.task_id, "0"] == given[t.task_id, "c"] for t in tasks) / 1000
    assert same == pytest.approx(
        0.8 + 0.2 * 0.5, abs=4 * math.sqrt(0.09 / 1000)
    )  # drawn anew, it is equal half the time


def test_times_are_between_half_and_one_and_a_half_of_the_mean() -> None:
    found = simulate(ITEMS, TASKS[:1], TRUTH, [Worker("w", seconds=4.0)], MODE, seed=0)
    assert all(answer.seconds is not None and 2.0 <= answer.seconds <= 6.0 for answer in found)


@pytest.mark.parametrize(
    ("worker", "sittings", "expected", "of_one"),
    [
        (Worker("w", 0.95), 1, 0.012, 0.20),  # of a kind: judged from two on, or from the first
        (Worker("w", 0.95), 2, 0.02, 0.02),
        (Worker("w", habit="random"), 1, 0.84, 0.987),
        (Worker("w", habit="random"), 2, 0.92, 0.92),
        (Worker("w", habit="first"), 1, 0, 1),  # one task shows one negative sentinel
        (Worker("w", habit="first"), 2, 1, 1),
    ],
)
def test_the_thresholds_drop_as_many_workers_as_they_say(
    worker: Worker, sittings: int, expected: float, of_one: float
) -> None:
    items = [image("0"), *ITEMS[-3:]]
    tasks = [task(f"t{i}", ["0", "p", "n", "c"], i) for i in range(sittings)]
    dropped = [0, 0]
    for seed in range(400):
        sat = reliability(items, simulate(items, tasks, TRUTH, [worker], MODE, seed=seed), MODE)
        dropped[0] += bool(trusted(sat, Thresholds()).dropped)
        dropped[1] += bool(trusted(sat, Thresholds(fewest_of_a_kind=1)).dropped)
    for count, chance in zip(dropped, (expected, of_one), strict=True):
        assert count / 400 == pytest.approx(chance, abs=4 * math.sqrt(max(0.01, chance * (1 - chance)) / 400))


def test_too_few_workers_and_missing_truth_are_refused() -> None:
    with pytest.raises(ReviewError, match="expected 4 or more workers, one for each task of block 0, got 1"):
        simulate(ITEMS, TASKS, TRUTH, [Worker("w")], MODE, seed=0)
    with pytest.raises(ReviewError, match="got none for row 'row-0'"):
        simulate(ITEMS, [task("t", ["0"])], {}, [Worker("w")], MODE, seed=0)


def planned(rule: Rule, accuracy: float, images: int = 400) -> Outcome:
    plan = plan_review(
        images, MODE, rule=rule, images_a_task=20, sentinel_rate=0.1, seconds_an_answer=3, accuracies=[accuracy]
    )
    return plan.outcomes[0]


def at_least(votes: int, people: int, chance: float) -> float:
    """Chance that at least so many of so many independent answers come out so."""
    return sum(math.comb(people, k) * chance**k * (1 - chance) ** (people - k) for k in range(votes, people + 1))


@pytest.mark.parametrize(("people", "accuracy"), [(1, 0.8), (3, 0.8), (3, 0.95), (5, 0.7)])
def test_the_expected_accuracy_of_the_majority_is_that_of_binomial_arithmetic(people: int, accuracy: float) -> None:
    majority = people // 2 + 1
    right, wrong = at_least(majority, people, accuracy), at_least(majority, people, 1 - accuracy)
    # A good image needs two right majorities; a bad one is kept by a right and a wrong one.
    expected = 0.5 * right**2 + 0.5 * (1 - right * wrong)
    good = right**2 / (right**2 + right * wrong)
    found = planned(Rule(people, 1), accuracy)
    assert found.right[0] == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 400 / 200))
    assert found.good[0] == pytest.approx(good, abs=0.01)
    assert found.right[1] < expected < found.right[2]
    assert found.tied == (0.0, 0.0, 0.0)  # an odd number of answers has a majority


def test_the_expected_ties_of_two_people_are_those_of_binomial_arithmetic() -> None:
    split, against = 2 * 0.8 * 0.2, 0.2**2  # one question: one yes and one no; both no, where yes is right
    good = (1 - against) ** 2 - (1 - against - split) ** 2  # no question refused, one split
    bad = (1 - against) * (1 - 0.8**2) - 0.8**2 * 0.2**2
    assert planned(Rule(2, 2), 0.8).tied[0] == pytest.approx((good + bad) / 2, abs=0.01)


def test_two_answers_suffice_when_the_first_two_settle_it() -> None:
    # All right: good images are final after 2 of 3; bad ones after 2 too, by the question that is answered no.
    found = planned(Rule(), 1.0)
    assert found.saved == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert found.right == (1.0, 1.0, 1.0)


def test_one_more_worker_mends_ties_and_costs_answers() -> None:
    drop, more = planned(Rule(2, 1), 0.8), planned(Rule(2, 1, "one more"), 0.8)
    assert more.right[0] > drop.right[1] + 0.1
    assert more.saved[0] < 0 < drop.saved[0]


@pytest.mark.parametrize(
    ("images", "images_a_task", "rate"), [(240, 20, 0.15), (7, 4, 0.3), (25, 10, 0.5), (9, 9, 0.0)]
)
def test_the_plan_counts_what_the_review_then_holds(
    tmp_path: Path, png: Callable[[Candidate], bytes], images: int, images_a_task: int, rate: float
) -> None:
    review = built(tmp_path, png, images, images_a_task, rate)
    plan = plan_review(
        images, MODE, rule=Rule(), images_a_task=images_a_task, sentinel_rate=rate, seconds_an_answer=2.5, replicates=2
    )
    shown = sum(len(t.items) for t in review.tasks)
    assert (plan.tasks, plan.shown, plan.answers) == (len(review.tasks), shown, 2 * shown)
    assert plan.sentinels == shown - 3 * images
    assert plan.hours == pytest.approx(2 * shown * 2.5 / 3600)
    assert plan.minutes_a_task * plan.tasks / 60 == pytest.approx(plan.hours)


def test_240_images_by_3_workers_take_about_an_hour_and_a_half() -> None:
    plan = plan_review(240, MODE, rule=Rule(), images_a_task=20, sentinel_rate=0.15, seconds_an_answer=3)
    # 12 blocks · 3 people = 36 tasks of 20 images and 20 · 0.15 / 0.85 ≈ 4 sentinels, 2 questions each.
    assert (plan.tasks, plan.shown, plan.answers) == (36, 36 * 24, 36 * 24 * 2)
    assert plan.hours == pytest.approx(36 * 24 * 2 * 3 / 3600)
    assert [round(outcome.right[0], 2) for outcome in plan.outcomes] == [0.72, 0.86, 0.96, 0.99, 1.0]


def test_plans_out_of_range_and_modes_without_decisions_are_refused() -> None:
    usual = {"rule": Rule(), "images_a_task": 20, "sentinel_rate": 0.1, "seconds_an_answer": 3.0}
    with pytest.raises(ReviewError, match="expected at least one image"):
        plan_review(0, MODE, **usual)  # type: ignore[arg-type]
    with pytest.raises(ReviewError, match=r"expected chances in \[0, 1\]"):
        plan_review(9, MODE, **usual, accuracies=[1.5])  # type: ignore[arg-type]
    with pytest.raises(ReviewError, match="expected a mode that accepts images, got 'name-the-class'"):
        plan_review(9, NAME_THE_CLASS, **usual)  # type: ignore[arg-type]


# A whole review through files.


@pytest.fixture
def png(picture: Callable[..., Image.Image]) -> Callable[[Candidate], bytes]:
    """A function candidate -> the bytes of a small picture of its own."""

    def make(candidate: Candidate) -> bytes:
        content = io.BytesIO()
        picture(sum(candidate.row_id.encode()) + len(candidate.row_id), width=8, height=8).save(content, "PNG")
        return content.getvalue() + candidate.row_id.encode()

    return make


def built(folder: Path, png: Callable[[Candidate], bytes], images: int, images_a_task: int, rate: float) -> Review:
    sentinels = [
        Candidate(f"{kind}-{i}", "backpack", kind) for kind in ("positive", "negative") for i in range(max(4, images))
    ]
    return make_review(
        folder, MODE, [Candidate(f"row-{i}", "backpack") for i in range(images)], sentinels, png,
        workers=3, images_a_task=images_a_task, sentinel_rate=rate, seed=0,
    )  # fmt: skip


def test_34_overlap_sentinels_reliability_and_agreement_come_from_files_alone(
    tmp_path: Path, png: Callable[[Candidate], bytes]
) -> None:
    built(tmp_path, png, 60, 10, 0.25)
    review, store = read_review(tmp_path), Store(tmp_path)
    truth = {item.row_id: (YES if i % 3 else NO) for i, item in enumerate(review.items)}
    workers = [
        *(Worker(f"good-{i}", 0.97) for i in range(4)),
        Worker("lazy", habit="first"),
        Worker("dice", habit="random"),
    ]
    sat = simulate(review.items, review.tasks, truth, workers, MODE, seed=3)
    hashed = {worker.name: store.enter(worker.name) for worker in workers}
    store.import_answers([replace(answer, worker=hashed[answer.worker]) for answer in sat])
    answers, names = Store(tmp_path).answers(), store.names()
    assert len(answers) == len(sat)

    found = reliability(review.items, answers, MODE)
    trust = trusted(found, Thresholds())
    assert sorted(names[worker] for worker in trust.dropped) == ["dice", "lazy"]
    assert all("sentinels passed" in reason for reason in trust.dropped.values())

    careful = agreement(review.items, answers, MODE, workers=trust.kept)["usable"]
    everyone = agreement(review.items, answers, MODE)["usable"]
    assert careful.alpha is not None
    assert everyone.alpha is not None
    assert careful.alpha > 0.8 > everyone.alpha

    decisions = decide(review.items, answers, MODE, trusted=trust.kept, rule=Rule(fewest=1))
    wrong = [i for i, own in decisions.items() if own.final and own.accepted != (truth[review.item[i].row_id] == YES)]
    assert len(wrong) <= 2
    needed = still_needed(review.items, review.tasks, answers, MODE, trusted=trust.kept, rule=Rule())
    spent = {answer.task_id for answer in answers if answer.worker in trust.dropped}
    assert needed.again
    assert set(needed.again) <= spent
    assert json.loads((tmp_path / "review.json").read_text())["settings"]["workers"] == 3
