"""Reviews on disk: blocks, orders, sentinels, opaque names, the same bytes again, refused over answers, damage."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from review_world import SETTINGS, fill, images, picture, review, sentinels

from hf_robust.review.base import IMAGE_VALIDITY, MODES, NAME_THE_CLASS, ReviewError
from hf_robust.review.folder import Review
from hf_robust.review.store import Store
from hf_robust.review.tasks import Candidate, make_review, read_review

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def kinds(made: Review, task_id: str) -> Counter[str]:
    return Counter(made.item[item_id].kind for item_id in made.task[task_id].items)


def test_every_image_is_in_one_block_and_in_as_many_tasks_as_workers(tmp_path: Path) -> None:
    made = review(tmp_path, count=10, workers=3)
    shown = Counter(item_id for task in made.tasks for item_id in task.items if made.item[item_id].kind == "image")
    assert len(shown) == 10
    assert set(shown.values()) == {3}
    blocks = {item_id: {t.block for t in made.tasks if item_id in t.items} for item_id in shown}
    assert all(len(found) == 1 for found in blocks.values())


def test_blocks_are_of_nearly_equal_size(tmp_path: Path) -> None:
    made = review(tmp_path, count=9, images_a_task=4)
    sizes = [kinds(made, task.task_id)["image"] for task in made.tasks if task.task_id.endswith("-0")]
    assert sorted(sizes) == [3, 3, 3]  # not 4, 4, 1


@pytest.mark.parametrize(("count", "rate"), [(1, 0.3), (2, 0.3), (5, 0.01), (12, 0.3), (40, 0.2), (40, 0.5)])
def test_every_task_has_each_kind_of_sentinel_and_the_set_rate(tmp_path: Path, count: int, rate: float) -> None:
    made = make_review(
        tmp_path, IMAGE_VALIDITY, images(count), sentinels(40), picture,
        workers=2, images_a_task=40, sentinel_rate=rate, seed=3,
    )  # fmt: skip
    wanted = max(3, round(count * rate / (1 - rate)))  # e.g. 40 images at 0.2: 10 of 50 items
    for task in made.tasks:
        found = kinds(made, task.task_id)
        assert found.total() - found["image"] == wanted
        assert min(found[kind] for kind in ("positive", "negative", "consistent")) >= 1


def test_a_rate_of_zero_means_no_sentinels(tmp_path: Path) -> None:
    made = review(tmp_path, sentinel_rate=0)
    assert {item.kind for item in made.items} == {"image"}


def test_a_task_never_shows_a_sentinel_twice_nor_more_than_there_are(tmp_path: Path) -> None:
    made = review(tmp_path, count=20, images_a_task=10, sentinel_rate=0.6)
    for task in made.tasks:
        assert len(set(task.items)) == len(task.items)
        assert kinds(made, task.task_id) == {"image": 10, "positive": 2, "negative": 2, "consistent": 5}


def test_a_repeated_image_comes_a_third_of_the_task_after_the_first_time(tmp_path: Path) -> None:
    made = review(tmp_path, count=60, images_a_task=20, workers=3)
    for task in made.tasks:
        again = [made.item[i] for i in task.items if made.item[i].kind == "consistent"]
        assert again
        for item in again:
            assert made.item[str(item.repeats)].picture == item.picture
            distance = task.items.index(item.item_id) - task.items.index(str(item.repeats))
            assert distance >= (len(task.items) - len(again)) // 3


def test_the_workers_of_a_block_see_its_images_in_different_orders(tmp_path: Path) -> None:
    made = review(tmp_path, count=12, images_a_task=12, workers=3)
    orders = {tuple(i for i in task.items if made.item[i].kind == "image") for task in made.tasks}
    assert len(orders) == 3


def test_nothing_that_a_browser_gets_tells_sentinels_apart(tmp_path: Path) -> None:
    made = review(tmp_path)
    for item in made.items:
        assert len(item.item_id) == 16
        assert int(item.item_id, 16) >= 0
        assert item.row_id not in item.picture
        assert made.picture(item.picture).read_bytes() == picture(Candidate(item.row_id, item.subject))
    assert [item.item_id for item in made.items] == sorted(item.item_id for item in made.items)


def test_sentinels_pass_with_what_the_questions_accept_and_its_opposite(tmp_path: Path) -> None:
    made = review(tmp_path)
    expected = {item.kind: dict(item.expected) for item in made.items if item.kind in ("positive", "negative")}
    assert expected == {
        "positive": {"recognise": ("yes",), "usable": ("yes",)},
        "negative": {"recognise": ("no",), "usable": ("no",)},
    }


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_is_read_back_as_it_was_made(tmp_path: Path, mode: str) -> None:
    made = review(tmp_path, mode)
    assert read_review(tmp_path) == made
    assert made.mode is MODES[mode]


def test_the_same_arguments_give_the_same_bytes_and_change_nothing_again(tmp_path: Path) -> None:
    made = review(tmp_path / "a")
    review(tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert len(files) == 3 + len({item.picture for item in made.items})
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    times = [(tmp_path / "a" / f).stat().st_mtime_ns for f in files]
    assert review(tmp_path / "a") == made
    assert [(tmp_path / "a" / f).stat().st_mtime_ns for f in files] == times


def test_a_review_without_answers_is_replaced_and_one_with_answers_is_kept(tmp_path: Path) -> None:
    review(tmp_path)
    Store(tmp_path).join(Store(tmp_path).enter("anna"), NOW)
    assert review(tmp_path, seed=2).settings["seed"] == 2
    store = Store(tmp_path)
    worker = store.enter("anna")
    task = store.join(worker, NOW)
    assert task is not None
    fill(store, worker, task.task_id)
    with pytest.raises(ReviewError, match=r"since it holds answers, got others: make the new review in another folder"):
        review(tmp_path, seed=3)
    assert review(tmp_path, seed=2).settings["seed"] == 2  # the same one is no trouble
    assert len(Store(tmp_path).answers()) == len(task.items) * 2


def test_a_lost_picture_is_written_again(tmp_path: Path) -> None:
    made = review(tmp_path)
    made.picture(made.items[0].picture).unlink()
    with pytest.raises(ReviewError, match="got no such file: make the review again"):
        read_review(tmp_path)
    assert review(tmp_path) == read_review(tmp_path)


@pytest.mark.parametrize("content", [b"", b"<svg onload=alert(1)>", b"GIF89a" + bytes(20)])
def test_bytes_that_are_no_picture_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(
        ReviewError, match=r"expected a PNG, JPEG or WebP picture for row 'image 0', got bytes that begin"
    ):
        make_review(tmp_path, IMAGE_VALIDITY, images(1), [], lambda _: content, **SETTINGS)
    assert not (tmp_path / "review.json").exists()


def test_requests_that_make_no_review_are_refused(tmp_path: Path) -> None:
    def expect_refusal(message: str, pool: list[Candidate], extra: list[Candidate], **changed: float) -> None:
        with pytest.raises(ReviewError, match=message):
            make_review(tmp_path, IMAGE_VALIDITY, pool, extra, picture, **{**SETTINGS, **changed})
        assert not (tmp_path / "review.json").exists()

    expect_refusal("expected images to ask about, got none", [], [])
    expect_refusal("one or more workers and images a task, got 0 and 4", images(1), [], workers=0)
    expect_refusal("sentinel rate of 0 or more and below 1, got 1.0", images(1), [], sentinel_rate=1.0)
    expect_refusal("sentinel rate of 0 or more and below 1, got nan", images(1), [], sentinel_rate=float("nan"))
    expect_refusal("every row once a subject, got 'image 0' .* twice", images(1) * 2, [])
    expect_refusal(
        "every row once a subject, got 'image 0' .* twice", images(1), [replace(images(1)[0], kind="positive")]
    )
    expect_refusal("consistent sentinels are made from the images", images(1), images(2)[1:])


def test_name_the_class_needs_options_and_sentinels_with_what_passes(tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match="two or more different answers to 'class' about 'image 0', got "):
        make_review(tmp_path, NAME_THE_CLASS, images(1), [], picture, **SETTINGS)
    unmarked = [replace(s, expected={}) for s in sentinels(1, NAME_THE_CLASS)]
    with pytest.raises(ReviewError, match=r"positive sentinel 'positive 0', got none: .* so set `expected`"):
        make_review(tmp_path, NAME_THE_CLASS, images(1, NAME_THE_CLASS), unmarked, picture, **SETTINGS)
    foreign = [replace(s, expected={"class": ("sofa",)}) for s in sentinels(1, NAME_THE_CLASS)]
    with pytest.raises(ReviewError, match="expected an answer that can be given to 'class', got 'sofa'"):
        make_review(tmp_path, NAME_THE_CLASS, images(1, NAME_THE_CLASS), foreign, picture, **SETTINGS)


def test_damaged_and_foreign_folders_are_refused_by_file(tmp_path: Path) -> None:
    with pytest.raises(ReviewError, match=r"got no review\.json there: make one first"):
        read_review(tmp_path)
    review(tmp_path)
    good = {name: (tmp_path / name).read_bytes() for name in ("review.json", "items.json", "tasks.json")}

    def expect_refusal(name: str, content: bytes, message: str) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ReviewError, match=message):
            read_review(tmp_path)
        (tmp_path / name).write_bytes(good[name])

    expect_refusal(
        "items.json", good["items.json"][:-9], r"items\.json as review\.json describes it, got another content"
    )
    expect_refusal("tasks.json", b"[]", r"tasks\.json as review\.json describes it, got another content")
    expect_refusal("review.json", b"\xff\x00", r"expected JSON in .*review\.json, got something else")
    expect_refusal("review.json", b"[1]", "got files of another shape")
    expect_refusal("review.json", b"{}", "got files of another shape")
    later = json.dumps({**json.loads(good["review.json"]), "format": 2}).encode()
    expect_refusal("review.json", later, r"expected format 1 in .*, got 2: use the version it is from")
    assert read_review(tmp_path).settings["seed"] == 1
