"""The store: who gets which task, what counts, undo, other places, many processes."""

from __future__ import annotations

import hashlib
import re
import stat
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kill_review import start
from review_world import fill, questions, review

from hf_robust.review.base import Answer, ReviewError, Task
from hf_robust.review.folder import read_review
from hf_robust.review.space import Journal, read_events
from hf_robust.review.store import Event, Progress, Store, normal_name

ROOT = Path(__file__).resolve().parent.parent
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=61)


def joined(store: Store, name: str, now: datetime = NOW) -> tuple[str, Task]:
    worker = store.enter(name)
    task = store.join(worker, now)
    assert task is not None
    return worker, task


def first(store: Store, worker: str, task: Task, value: str = "yes") -> Answer:
    item, question = next(questions(store.review, task.task_id))
    return Answer(worker, task.task_id, item, question, value, 1.5, "2026-01-01T00:00:00.000+00:00")


def test_a_worker_comes_back_to_the_same_task_until_it_is_done(tmp_path: Path) -> None:
    review(tmp_path)
    worker, task = joined(Store(tmp_path), "anna")
    Store(tmp_path).answer(first(Store(tmp_path), worker, task))
    assert joined(Store(tmp_path), " ANNA  ", LATER) == (worker, task)
    fill(Store(tmp_path), worker, task.task_id)
    assert joined(Store(tmp_path), "anna")[1].block != task.block


def test_no_worker_gets_two_tasks_of_a_block_and_no_task_two_workers(tmp_path: Path) -> None:
    made = review(tmp_path, count=8, workers=2)  # two blocks, four tasks
    store, had = Store(tmp_path), Counter[str]()
    for name in ("anna", "bo", "cem"):
        worker, blocks = store.enter(name), []
        while (task := store.join(worker, NOW)) is not None:
            fill(store, worker, task.task_id)
            blocks.append(task.block)
            had[task.task_id] += 1
        assert len(set(blocks)) == len(blocks)
    assert had == {task.task_id: 1 for task in made.tasks}
    assert store.progress(store.enter("anna"), NOW) == Progress(finished=2, left=0)
    assert store.progress(store.enter("cem"), NOW) == Progress(finished=0, left=0)


def test_a_task_left_idle_goes_to_another_and_no_answer_is_lost(tmp_path: Path) -> None:
    review(tmp_path, count=4, workers=1)
    store = Store(tmp_path, idle_minutes=60)
    worker, task = joined(store, "anna")
    answer = first(store, worker, task)
    store.answer(answer)
    other = store.enter("bo")
    assert store.join(other, NOW + timedelta(minutes=59)) is None
    assert store.progress(other, LATER).left == 1
    assert store.join(other, LATER) == task
    assert store.join(worker, LATER) is None  # it is taken, and of a block that this worker has had
    late = replace(answer, value="no", at="2026-01-01T02:00:00.000+00:00")
    store.answer(late)  # from the page that was still open
    assert store.answers() == [late]
    fill(store, other, task.task_id)
    assert len(store.answers()) == 1 + len(list(questions(store.review, task.task_id)))


def test_a_task_that_is_done_is_never_given_away(tmp_path: Path) -> None:
    review(tmp_path, count=4, workers=1)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    fill(store, worker, task.task_id)
    assert store.join(store.enter("bo"), datetime(2030, 1, 1, tzinfo=UTC)) is None


def test_closed_tasks_are_not_handed_out_and_released_ones_again(tmp_path: Path) -> None:
    made = review(tmp_path, count=4, workers=2)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    fill(store, worker, task.task_id)
    store.close([made.tasks[1].task_id])
    assert store.join(store.enter("bo"), NOW) is None
    store.release([task.task_id])  # its worker was dropped
    assert store.join(store.enter("bo"), NOW) == task
    assert store.join(worker, NOW) is None
    with pytest.raises(ReviewError, match=r"expected tasks of .*, got 'nope'"):
        store.close(["nope"])


def test_the_last_answer_counts_and_the_same_one_again_changes_nothing(tmp_path: Path) -> None:
    review(tmp_path)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    answer = first(store, worker, task)
    store.answer(answer)
    store.answer(replace(answer, seconds=9.0))  # sent again by a page that got no reply
    assert store.answers() == [answer]
    assert len(store.events()) == 1
    store.answer(replace(answer, value="no"))
    assert [a.value for a in store.answers()] == ["no"]
    assert [e.answer.value for e in store.events()] == ["yes", "no"]  # the history is kept


def test_undo_takes_an_answer_back_once(tmp_path: Path) -> None:
    review(tmp_path)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    one, two = fill(store, worker, task.task_id)[:2]
    store.undo(one)
    store.undo(one)
    assert one.item_id not in [a.item_id for a in store.answers() if a.question == one.question]
    assert len(store.events()) == len(list(questions(store.review, task.task_id))) + 1
    assert store.join(worker, NOW) == task  # unfinished again
    store.answer(replace(one, value="no"))
    assert store.answered(worker, task.task_id)[-1].value == "no"
    assert store.answered(worker, task.task_id)[0].question == two.question


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    review(tmp_path)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    good = first(store, worker, task)

    def expect_refusal(message: str, **changed: str) -> None:
        with pytest.raises(ReviewError, match=message):
            store.answer(replace(good, **changed))  # type: ignore[arg-type]

    expect_refusal("expected one of yes, no for task .*, got 'maybe'", value="maybe")
    expect_refusal("expected a question of this review, got task 'x', item", task_id="x")
    expect_refusal("expected a question of this review", item_id="x")
    expect_refusal("expected a question of this review", question="x")
    expect_refusal("expected an answer by a worker who has task '0000-0', got another", worker=store.enter("bo"))
    assert store.answers() == []


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e9])
def test_times_that_cannot_be_are_no_times(tmp_path: Path, seconds: float) -> None:
    review(tmp_path)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    store.answer(replace(first(store, worker, task), seconds=seconds))
    assert [a.seconds for a in store.answers()] == [None]


@pytest.mark.parametrize("name", ["", "  ", "a" * 101, "a\x00b", "a\u202eb"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(ReviewError, match="expected a worker id of 1 to 100 printable characters, got"):
        normal_name(name)


def test_what_leaves_has_salted_hashes_only_and_the_salt_is_private(tmp_path: Path) -> None:
    review(tmp_path / "a")
    review(tmp_path / "b")
    store, other = Store(tmp_path / "a"), Store(tmp_path / "b")
    worker, task = joined(store, "Anna@example.org")
    salt = (tmp_path / "a" / "salt").read_text()
    assert worker == hashlib.sha256(f"{salt}:anna@example.org".encode()).hexdigest()
    assert other.enter("anna@example.org") != worker  # another review, another salt
    store.answer(first(store, worker, task))
    assert {a.worker for a in store.answers()} == {worker}
    assert store.names() == {worker: "anna@example.org"}
    assert stat.S_IMODE((tmp_path / "a" / "salt").stat().st_mode) == 0o600
    assert Store(tmp_path / "a").enter("anna@example.org") == worker


def test_a_store_that_keeps_no_names_has_none_on_its_disk(tmp_path: Path) -> None:
    review(tmp_path)
    store = Store(tmp_path, salt="s" * 16, keep_names=False)
    worker, task = joined(store, "anna-of-the-hills")
    store.answer(first(store, worker, task))
    assert store.names() == {}
    assert not (tmp_path / "salt").exists()
    assert all(b"anna-of-the-hills" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_answers_collected_elsewhere_come_in_once(tmp_path: Path) -> None:
    made = review(tmp_path)
    store = Store(tmp_path)
    task = made.tasks[0]
    given = [Answer("f" * 64, task.task_id, i, q, "yes") for i, q in questions(made, task.task_id)]
    assert store.import_answers(given) == len(given)
    assert store.import_answers(given) == 0
    assert [replace(a, at=None) for a in store.answers()] == given
    assert joined(store, "anna")[1].task_id != task.task_id  # it is done
    assert store.progress("f" * 64, NOW).finished == 1


def test_a_wrong_answer_among_imported_ones_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    made = review(tmp_path)
    item, question = next(questions(made, "0000-0"))
    good = Answer("f" * 64, "0000-0", item, question, "yes")
    with pytest.raises(ReviewError, match="expected one of yes, no"):
        Store(tmp_path).import_answers([good, replace(good, value="?")])
    assert Store(tmp_path).answers() == []
    assert Store(tmp_path).progress("f" * 64, NOW).finished == 0


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["yes", "no", "undo"])), max_size=12)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_a_replayed_log_gives_the_same_answers_however_often(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("replay")
    review(folder / "a", count=4, workers=3)
    review(folder / "b", count=4, workers=3)
    store, copy = Store(folder / "a"), Store(folder / "b")
    seats = [joined(store, name) for name in ("anna", "bo", "cem")]
    plain: dict[tuple[int, int], str] = {}
    for i, (who, which, what) in enumerate(steps):
        worker, task = seats[who]
        item, question = list(questions(store.review, task.task_id))[which]
        answer = Answer(worker, task.task_id, item, question, what, at=f"2026-01-01T00:00:{i:02}.000+00:00")
        if what == "undo":
            store.undo(answer)
            plain.pop((who, which), None)
        else:
            store.answer(answer)
            plain[who, which] = what
    assert Counter(a.value for a in store.answers()) == Counter(plain.values())
    events = store.events()
    assert copy.replay(events) == len(events)
    assert copy.replay(events) == 0
    assert copy.answers() == store.answers()


def test_a_journal_holds_every_event_and_brings_them_back(tmp_path: Path) -> None:
    import threading

    review(tmp_path / "a")
    review(tmp_path / "b")
    (tmp_path / "new").mkdir()
    store = Store(tmp_path / "a", salt="s" * 16)
    journal = Journal(store, tmp_path / "new", threading.Lock())
    worker, task = joined(store, "anna")
    given = fill(store, worker, task.task_id)
    journal.write()
    journal.write()
    store.undo(given[-1])
    journal.write()
    lines = journal.path.read_text().splitlines()
    assert len(lines) == len(list(questions(store.review, task.task_id))) + 1
    assert "anna" not in journal.path.read_text()
    again = Store(tmp_path / "b", salt="s" * 16)
    assert again.replay(read_events(tmp_path / "new")) == len(lines)
    assert again.answers() == store.answers()
    assert joined(again, "anna") == (worker, task)
    journal.path.write_text("[1]\n")
    with pytest.raises(ReviewError, match=r"expected an answer in line 1 of .*\.jsonl, got"):
        list(read_events(tmp_path / "new"))


def test_answers_of_another_review_and_damaged_files_are_refused(tmp_path: Path) -> None:
    review(tmp_path / "a")
    review(tmp_path / "b", seed=2)
    Store(tmp_path / "a")  # collected at once, so that the file is whole
    (tmp_path / "b" / "answers.sqlite").write_bytes((tmp_path / "a" / "answers.sqlite").read_bytes())
    with pytest.raises(ReviewError, match=r"expected the answers of this review in .*, got those of another"):
        Store(tmp_path / "b")
    (tmp_path / "b" / "answers.sqlite").write_bytes(b"not a database, but long enough to be read as one" * 9)
    with pytest.raises(ReviewError, match=r"answers\.sqlite, got a file that SQLite cannot open"):
        Store(tmp_path / "b")


def test_a_server_of_a_replaced_review_takes_no_more_answers(tmp_path: Path) -> None:
    review(tmp_path)
    store = Store(tmp_path)
    worker, task = joined(store, "anna")
    review(tmp_path, seed=2)
    for _ in range(2):
        with pytest.raises(ReviewError, match="got those of another: if the review was made anew, serve it again"):
            store.answer(first(store, worker, task))
        assert Store(tmp_path).answers() == []


def test_an_undone_event_of_an_unknown_task_is_refused(tmp_path: Path) -> None:
    review(tmp_path)
    with pytest.raises(ReviewError, match="expected a question of this review, got task 'x'"):
        Store(tmp_path).replay([Event(1, Answer("f" * 64, "x", "y", "z", ""), True)])


JOIN = """
import sys
from datetime import UTC, datetime
from hf_robust.review.store import Store
store = Store(sys.argv[1])
task = store.join(store.enter(sys.argv[2]), datetime(2026, 1, 1, tzinfo=UTC))
print(task.task_id)
"""


def test_processes_that_come_at_once_get_different_tasks(tmp_path: Path) -> None:
    made = review(tmp_path, count=4, workers=6)
    running = [start(JOIN, tmp_path, f"worker {i}") for i in range(6)]
    got = [process.communicate(timeout=120)[0].strip() for process in running]
    assert sorted(got) == [task.task_id for task in made.tasks]


def test_a_store_needs_no_gradio_and_no_torch(tmp_path: Path) -> None:
    review(tmp_path)
    code = JOIN + "\nprint([m for m in ('gradio', 'torch', 'fastapi', 'pandas') if m in sys.modules])"
    out = start(code, tmp_path, "anna").communicate(timeout=120)[0]
    assert re.search(r"\[\]$", out.strip())
    assert read_review(tmp_path).tasks
