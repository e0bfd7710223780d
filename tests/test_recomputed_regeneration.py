"""Numbers of regenerated sets once more, from the files that hold the evidence and by plain counting."""

from __future__ import annotations

import csv
import json
import random
import re
import sqlite3
import statistics
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from candidate_world import DrawnSettings, drawn, judges, work_in
from review_world import images, picture, sentinels

from hf_robust.labels import imagenet_d_categories
from hf_robust.metrics.vqa import choice, option_name
from hf_robust.regenerate.assemble import votes
from hf_robust.regenerate.mine import MINE, MineSettings
from hf_robust.regenerate.review import State, state_of
from hf_robust.regenerate.selection import SelectionEffect, _gap, selection_lines
from hf_robust.regenerate.stage import run_stage
from hf_robust.review.agreement import agreement
from hf_robust.review.base import IMAGE_VALIDITY, Answer, Item
from hf_robust.review.decisions import Rule
from hf_robust.review.reliability import Thresholds
from hf_robust.review.simulate import plan_review
from hf_robust.review.store import Store
from hf_robust.review.tasks import make_review
from hf_robust.scoring.answers import read_answers, values_of

# a review, from answers.sqlite, items.json and review.json alone

LATEST = """
SELECT worker, task_id, item_id, question, value, seconds FROM log AS one WHERE value IS NOT NULL AND number = (
  SELECT max(number) FROM log WHERE worker = one.worker AND task_id = one.task_id AND item_id = one.item_id
  AND question = one.question)
"""
HABITS = ("careful",) * 9 + ("yes", "no", "random", "fast", "changes its mind", "stops early")


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A review of 24 pictures that people of every kind have answered, with answers taken back and corrected."""
    folder = tmp_path_factory.mktemp("review")
    made = make_review(
        folder, IMAGE_VALIDITY, images(24), sentinels(6), picture,
        workers=3, images_a_task=4, sentinel_rate=0.4, seed=3,
    )  # fmt: skip
    store, draw, now = Store(folder), random.Random(4), datetime(2026, 1, 1, tzinfo=UTC)
    truth = {(item.row_id, q): draw.random() < 0.7 for item in made.items for q in ("recognise", "usable")}
    people = [(store.enter(f"{habit} {i}"), habit) for i, habit in enumerate(HABITS)]
    for worker, habit in people * 2:
        task = store.join(worker, now)
        if task is None:
            continue
        for item_id in task.items[: 5 if habit == "stops early" else None]:
            for question in ("recognise", "usable"):
                item = made.item[item_id]
                known = item.expected.get(question)
                right = known == ("yes",) if known else truth[item.row_id, question]
                _answer(store, Answer(worker, task.task_id, item_id, question, ""), habit, right, draw)
    return folder


def _answer(store: Store, blank: Answer, habit: str, right: bool, draw: random.Random) -> None:
    says = {"yes": True, "no": False, "random": draw.random() < 0.5}.get(habit, right == (draw.random() < 0.97))
    seconds = 0.2 if habit == "fast" else draw.choice([None, draw.uniform(0.5, 5)])
    values = ["yes" if says else "no"]
    if habit == "changes its mind" or draw.random() < 0.1:
        values.append("no" if says else "yes")
    for value in values:
        answer = Answer(*(blank.worker, blank.task_id, blank.item_id, blank.question), value, seconds)
        store.answer(answer)
        if draw.random() < 0.1:
            store.undo(answer)


def by_hand(folder: Path) -> dict[str, Any]:
    """Sentinels passed by worker and kind, whose answers count, votes by picture and question."""
    with closing(sqlite3.connect(folder / "answers.sqlite")) as db:
        rows = db.execute(LATEST).fetchall()
    items = {item["item_id"]: item for item in json.loads((folder / "items.json").read_text())}
    asked = [q["name"] for q in json.loads((folder / "review.json").read_text())["mode"]["questions"]]
    said = {(w, t, i, q): value for w, t, i, q, value, _ in rows}
    passed: dict[tuple[str, str], list[bool]] = {}
    for worker, task, item_id in sorted({key[:3] for key in said}):
        item = items[item_id]
        if item["kind"] == "image":
            continue
        wanted = [item["expected"].get(q) or [said.get((worker, task, item["repeats"], q))] for q in asked]
        given = [said.get((worker, task, item_id, q)) for q in asked]
        if None not in given and [None] not in wanted:
            right = all(value in allowed for value, allowed in zip(given, wanted, strict=True))
            passed.setdefault((worker, item["kind"]), []).append(right)
    trusted = []
    for worker in sorted({row[0] for row in rows}):
        own = [done for (name, _), done in passed.items() if name == worker]
        everything = [one for done in own for one in done]
        alone = any(sum(done) / len(done) < 0.5 for done in own if len(done) >= 2)
        bad = len(everything) >= 3 and (alone or sum(everything) / len(everything) < 0.5)
        times = [row[5] for row in rows if row[0] == worker and row[5] is not None]
        if not bad and not (times and statistics.median(times) < 0.4):
            trusted.append(worker)
    counted = {(i, q): [v for w, _, j, p, v, _ in rows if (j, p) == (i, q) and w in trusted]
               for i, item in items.items() if item["kind"] == "image" for q in asked}  # fmt: skip
    return {"passed": passed, "trusted": trusted, "votes": counted, "answers": len(rows)}


@pytest.fixture(scope="module")
def state(reviewed: Path) -> State:
    store = Store(reviewed)
    return state_of(store.review, store.answers(), Rule(), Thresholds())


def test_whose_answers_count_follows_from_the_database_alone(reviewed: Path, state: State) -> None:
    from hf_robust.review.reliability import reliability

    found = by_hand(reviewed)
    ours = reliability(state.review.items, state.answers, state.review.mode)
    assert sum(one.answers for one in ours.values()) == len(state.answers) == found["answers"]
    for worker, one in ours.items():
        for kind in ("positive", "negative", "consistent"):
            done, share = found["passed"].get((worker, kind), []), getattr(one, kind)
            assert (share.passed, share.seen) == (sum(done), len(done))
    assert sorted(state.trust.kept) == found["trusted"]
    assert 3 <= len(found["trusted"]) < len(ours)  # there are both


def test_decisions_and_what_is_missing_follow_from_the_database_alone(reviewed: Path, state: State) -> None:
    given = by_hand(reviewed)["votes"]
    seen: Counter[tuple[bool, bool]] = Counter()
    for item_id, decision in state.decisions.items():
        own = [given[item_id, q] for q in ("recognise", "usable")]
        yes, no = [v.count("yes") for v in own], [v.count("no") for v in own]
        enough = [len(v) >= 2 for v in own]
        left = [3 - len(v) for v in own]
        refused = any(e and y + more <= n for e, y, n, more in zip(enough, yes, no, left, strict=True))
        accepted = all(e and y > n + more for e, y, n, more in zip(enough, yes, no, left, strict=True))
        assert decision.final == (refused or accepted)
        if decision.final:
            assert decision.accepted is accepted
        else:
            assert state.needed.answers[item_id] == max(left)
        seen[decision.final, bool(decision.accepted)] += 1
    assert set(state.needed.answers) == {i for i, d in state.decisions.items() if not d.final}
    assert min(seen[True, True], seen[True, False], seen[False, False] + seen[False, True]) > 0  # there are all


def test_agreement_follows_from_the_database_alone(reviewed: Path, state: State) -> None:
    given = by_hand(reviewed)["votes"]
    for question, found in state.agreement().items():
        pictures = [v for (_, q), v in given.items() if q == question and len(v) > 1]
        equal = [[a == b for i, a in enumerate(v) for b in v[:i]] for v in pictures]
        # alpha by its definition: disagreement of pairs within pictures, over that of pairs from anywhere
        everything = [v for own in pictures for v in own]
        n = len(everything)
        within = sum(2 * pairs.count(False) / (len(v) - 1) for pairs, v in zip(equal, pictures, strict=True)) / n
        anywhere = sum(a != b for a in everything for b in everything) / (n * (n - 1))
        assert found["pairwise"] == pytest.approx(np.mean([np.mean(pairs) for pairs in equal]), abs=1e-6)
        assert found["alpha"] == pytest.approx(1 - within / anywhere, abs=1e-6)


def test_intervals_of_agreement_are_those_of_pictures_drawn_again() -> None:
    rng = np.random.default_rng(0)
    items = [Item(str(i), str(i), "p.png", "wok") for i in range(120)]
    people = rng.integers(2, 5, size=120)
    yes = np.array([rng.binomial(n, 0.85 if i % 3 else 0.2) for i, n in enumerate(people)])
    answers = [
        Answer(f"w{w}", "t", str(i), q, "yes" if w < yes[i] else "no")
        for i in range(120)
        for w in range(people[i])
        for q in ("recognise", "usable")
    ]
    found = agreement(items, answers, IMAGE_VALIDITY, replicates=2000)["usable"]
    drawn = []
    for _ in range(4000):
        rows = rng.integers(120, size=120)
        n, y = people[rows], yes[rows]
        pairs = n * (n - 1)
        equal = y * (y - 1) + (n - y) * (n - y - 1)
        answered, said_yes = n.sum(), y.sum()
        anywhere = 2 * said_yes * (answered - said_yes) / (answered * (answered - 1))
        drawn.append([(equal / pairs).mean(), 1 - ((pairs - equal) / (n - 1)).sum() / answered / anywhere])
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    assert found.pairwise_interval == pytest.approx((low[0], high[0]), abs=0.015)
    assert found.alpha_interval == pytest.approx((low[1], high[1]), abs=0.03)


@pytest.mark.parametrize("accuracy", [0.7, 0.9])
def test_the_plan_of_a_review_is_the_arithmetic_of_three_people_and_two_questions(accuracy: float) -> None:
    plan = plan_review(
        400,
        IMAGE_VALIDITY,
        rule=Rule(),
        images_a_task=20,
        sentinel_rate=0.2,
        seconds_an_answer=3,
        accuracies=(accuracy,),
    )
    p, q = accuracy, 1 - accuracy
    right, wrong = p**3 + 3 * p**2 * q, q**3 + 3 * q**2 * p  # at least two of three; half of the pictures are good,
    good, bad = right * right, right * wrong  # accepted; the others fail the last question
    # done after two people: both accept both questions, or both refuse one
    soon_good = p**2 * p**2 + 1 - (1 - q**2) ** 2
    soon_bad = p**2 * q**2 + 1 - (1 - q**2) * (1 - p**2)
    found = plan.outcomes[0]
    assert found.right[0] == pytest.approx((good + 1 - bad) / 2, abs=0.01)
    assert found.good[0] == pytest.approx(good / (good + bad), abs=0.01)
    assert found.saved[0] == pytest.approx((soon_good + soon_bad) / 2 / 3, abs=0.01)
    assert found.tied[0] == 0


# mining and selection


def test_funnel_and_votes_are_counts_of_the_ledgers_rows(tmp_path: Path) -> None:
    models = judges(tmp_path, (0.0, 0.6, 1.2))
    settings = MineSettings(models[:2], min_failures=1, targets=models[2:])
    ledger = run_stage(MINE, settings, work_in(tmp_path, drawn(tmp_path, DrawnSettings(rows=20, broken=4))))
    rows = [row for table in ledger.tables(("nuisance", "votes")) for row in table.to_pylist()]
    for place in {row["nuisance"] for row in rows}:
        own = [row for row in rows if row["nuisance"] == place]
        reasons = Counter(row["reason"] for row in own if not row["keep"])
        line = {"nuisance": place, "stage": "mine", "rows": len(own), "dropped": reasons.total()}
        line |= {"kept": sum(row["keep"] for row in own), "reasons": dict(reasons)}
        assert line in ledger.funnel("nuisance")
    for row in votes(ledger):
        said = [(v, r["keep"]) for r in rows for v in r["votes"] if v["model"] == row["model"] and v["error"] is None]
        assert (row["candidates"], row["right"]) == (19, sum(v["correct"] for v, _ in said))  # one cannot be read
        assert row["kept"] == sum(keep for _, keep in said) > row["right_of_kept"]
        assert row["right_of_kept"] == sum(v["correct"] for v, keep in said if keep)


def test_models_that_are_alike_on_every_picture_have_no_interval() -> None:
    fails, mixed = {"a": False, "b": False, "c": False}, {"a": True, "b": False, "c": False}
    found = _gap("filtered", [fails], [fails])
    assert (found.value, found.pictures) == (0.0, 3)
    assert np.isnan([found.low, found.high]).all()
    apart = _gap("sample", [fails], [mixed])
    assert apart.value == pytest.approx(1 / 3)
    assert apart.low < apart.value < apart.high
    lines = selection_lines(SelectionEffect((), (found, apart)))
    assert lines[-2] == "- filtered: 0.0 [no interval: all pictures of a side alike] (3 pictures)"


# questions to vision-language models

CATEGORIES = tuple(option_name(category.display_name) for category in imagenet_d_categories())
LONGER = {("pen", "can opener"), ("plate", "drying rack for plates")}


def names(option: str) -> list[str]:
    """An option and its synonyms, from the table that the package ships."""
    text = (files("hf_robust") / "assets" / "vqa_synonyms.csv").read_text(encoding="utf-8")
    rows = {row["folder"]: row["synonyms"] for row in csv.DictReader(text.splitlines())}
    folder = next(c.folder for c in imagenet_d_categories() if option_name(c.display_name) == option)
    return [words(name) for name in (option, *rows[folder].split(";")) if name]


def words(text: str) -> str:
    return " ".join(re.findall("[a-z0-9]+", text.lower()))


def named(answer: str, truth: str, confusing: str, known: dict[str, list[str]]) -> str:
    """The released rule: names as substrings, and in two pairs the longer name hides the shorter one inside it."""
    found = {}
    for option, other in ((truth, confusing), (confusing, truth)):
        text = words(answer)
        if (option, other) in LONGER:
            for name in sorted(known[other], key=len, reverse=True):
                text = text.replace(name, "#")
        found[option] = any(name in text for name in known[option])
    if found[truth] and found[confusing]:
        return "both"
    return "true" if found[truth] else "confusing" if found[confusing] else "neither"


def sentences(count: int, seed: int) -> list[tuple[str, str, str]]:
    """(answer, true option, other option) of random pairs, the two special ones often among them."""
    draw = random.Random(seed)
    forms = ("{}", "The {}.", "a {} on a table", "It looks like {}s!", "{} or {}", "I see a {}, no {}", "neither", "")
    made = []
    for n in range(count):
        pair = draw.choice(sorted(LONGER)) if n % 10 == 0 else draw.sample(CATEGORIES, 2)
        truth, confusing = draw.sample(list(pair), 2)
        pool = (truth, confusing, draw.choice(CATEGORIES))
        text = draw.choice(forms).format(draw.choice(pool), draw.choice(pool))
        made.append((draw.choice((text, text.upper(), text.replace(" ", "-"))), truth, confusing))
    return made


def test_which_option_an_answer_names_follows_the_released_rule_on_random_sentences() -> None:
    known = {option: names(option) for option in CATEGORIES}
    made = sentences(3000, seed=1)
    expected = [named(*case, known) for case in made]
    assert [choice(*case) for case in made] == expected
    assert set(expected) == {"true", "confusing", "both", "neither"}


def test_every_share_of_a_table_of_answers_is_a_count() -> None:
    known = {option: names(option) for option in CATEGORIES}
    made, rng = sentences(400, seed=2), np.random.default_rng(2)
    likely, swapped = rng.integers(-4, 0, (2, 400, 2))  # with ties
    tokens = rng.integers(1, 4, (400, 2))
    back = [made[(i + 1) % 400][0] if i % 2 else made[i][0] for i in range(400)]
    columns = {"answer": [case[0] for case in made], "truth": [case[1] for case in made]}
    columns |= {"confusing": [case[2] for case in made], "answer_swapped": back, "nuisance": ["texture"] * 400}
    columns |= {"log_likelihood": likely.tolist(), "log_likelihood_swapped": swapped.tolist()}
    columns |= {"option_tokens": tokens.tolist()}
    values = {name: value.value for name, value in values_of(read_answers(pa.table(columns)))}
    first = [named(*case, known) for case in made]
    second = [named(text, *case[1:], known) for text, case in zip(back, made, strict=True)]
    one, two = Counter(first), Counter(second)
    of_both = one["true"] + two["true"]
    wins = [sum(a > b for a, b in pairs) for pairs in (likely, swapped, likely / tokens)]
    expected = {
        "vqa_accuracy": one["true"] / (one["true"] + one["confusing"]),
        "vqa_answered": (one["true"] + one["confusing"]) / 400,
        "vqa_accuracy_of_all": one["true"] / 400,
        "vqa_accuracy_swapped": two["true"] / (two["true"] + two["confusing"]),
        "vqa_accuracy_both_orders": of_both / (of_both + one["confusing"] + two["confusing"]),
        "vqa_order_changed": sum(a != b for a, b in zip(first, second, strict=True)) / 400,
        "vqa_likelihood_accuracy": wins[0] / 400,
        "vqa_likelihood_both_orders": (wins[0] + wins[1]) / 800,
        "vqa_likelihood_per_token": wins[2] / 400,
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)
