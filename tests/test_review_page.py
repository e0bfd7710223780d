"""The page in a browser, served as people serve it: two workers at once, kill -9 in between, tokens, phones, keys."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from loopback_hub import Hub, loopback_hub
from review_world import SETTINGS, images, picture, questions, review, sentinels

from hf_robust.review.base import IMAGE_VALIDITY, MODES
from hf_robust.review.space import read_events, space_files
from hf_robust.review.store import Store
from hf_robust.review.tasks import Candidate, make_review

pytestmark = [pytest.mark.pages, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
SERVE = """
import sys
from hf_robust.review.serve import serve
serve(sys.argv[1], port=int(sys.argv[2]), token=sys.argv[3] or None, say=lambda line: print(line, flush=True))
"""
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
WAIT = 60_000
TOKEN = "a-token-of-this-test"


class Server:
    """A review that is served by a process of its own."""

    def __init__(self, folder: Path, port: int = 0, token: str = "") -> None:
        command = [sys.executable, "-c", SERVE, str(folder), str(port), token]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = next(line.strip() for line in self.process.stdout if line.startswith("http"))
        self.address = self.said.split("?")[0]
        self.port = int(self.address.rstrip("/").rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def served(folder: Path, token: str = "") -> Iterator[Server]:
    server = Server(folder, token=token)
    try:
        yield server
    finally:
        server.kill()


def enter(tab: Any, address: str, name: str) -> None:
    tab.goto(address)
    tab.get_by_label("Your worker id").fill(name, timeout=WAIT)
    tab.keyboard.press("Enter")


def ready(tab: Any) -> str:
    """The question that waits for an answer; "" when the task is done."""
    open_question = tab.locator("#review .choices button:not([disabled])").first
    tab.locator("[data-part=rest]").or_(open_question).and_(tab.locator(":visible")).first.wait_for(timeout=WAIT)
    return "" if tab.locator("[data-part=rest]").is_visible() else str(tab.locator("[data-part=question]").inner_text())


def place(tab: Any) -> tuple[str, float]:
    shown = str(tab.locator("[data-part=picture]").get_attribute("src"))
    return shown.rpartition("/")[2], float(tab.locator("[data-part=progress]").evaluate("bar => bar.value"))


def press(tab: Any, key: str) -> tuple[str, str, str]:
    """Presses a key on the question that is open; (picture, question, key). Returns when the next one is."""
    question, (shown, before) = ready(tab), place(tab)
    tab.keyboard.press(key)
    tab.wait_for_function(
        "before => document.querySelector('[data-part=progress]').value !== before "
        "|| !document.querySelector('[data-part=rest]').hidden",
        arg=before, timeout=WAIT,
    )  # fmt: skip
    return shown, question, key


def kept(store: Store, name: str) -> list[tuple[str, str, str]]:
    """The worker's answers as `press` tells them."""
    worker, rows = store.enter(name), []
    for answer in store.answers():
        if answer.worker == worker:
            item = store.review.item[answer.item_id]
            text = store.review.question[answer.question].text.replace("{subject}", item.subject)
            rows.append((item.picture, re.sub(r"\ba (?=umbrella)", "an ", text), answer.value[0]))
    return rows


def test_two_workers_at_once_lose_and_double_nothing_when_the_server_is_killed(browser: Any, tmp_path: Path) -> None:
    made = review(tmp_path, count=4, images_a_task=2)
    pressed: dict[str, list[tuple[str, str, str]]] = {"anna": [], "bo": []}
    server = Server(tmp_path)
    tabs = {"anna": browser.new_context().new_page(), "bo": browser.new_context(**PHONE).new_page()}
    try:
        for name, tab in tabs.items():
            enter(tab, server.address, name)
        for turn in range(3):
            for name, tab in tabs.items():
                pressed[name].append(press(tab, "yn"[(turn + (name == "bo")) % 2]))
        questions_open = {name: (place(tab)[0], ready(tab)) for name, tab in tabs.items()}
        server.kill()
        for name, tab in tabs.items():
            tab.keyboard.press("y")
            tab.get_by_text("Connection lost.").wait_for(timeout=WAIT)
            tab.keyboard.press("n")  # waits for the first one: not taken
            pressed[name].append((*questions_open[name], "y"))
        assert len(Store(tmp_path).answers()) == 6
        server = Server(tmp_path, server.port)
        for tab in tabs.values():
            tab.get_by_text("Connection lost.").wait_for(state="hidden", timeout=WAIT)
        for name, tab in tabs.items():
            for _ in made.tasks:
                while ready(tab):
                    pressed[name].append(press(tab, "y"))
                if tab.get_by_role("button", name="Next task").is_visible():
                    tab.keyboard.press("Enter")
                    tab.locator("[data-part=rest]").wait_for(state="hidden", timeout=WAIT)
            assert tab.get_by_role("heading", name="Thank you, that was all").is_visible()
    finally:
        server.kill()
    store = Store(tmp_path)
    assert {name: kept(store, name) for name in tabs} == pressed
    every = sum(len(list(questions(made, task.task_id))) for task in made.tasks)
    assert len(store.answers()) == len(store.events()) == every


def test_the_form_is_closed_until_its_script_runs(browser: Any, tmp_path: Path) -> None:
    """Whoever taps Start at once would send the form itself and lose the worker id to the page's address."""
    review(tmp_path)
    with served(tmp_path) as server:
        tab = browser.new_context(**PHONE).new_page()
        tab.add_init_script(
            "new MutationObserver((_, watching) => {"
            "  const form = document.querySelector('[data-part=enter]');"
            "  if (!form) return;"
            "  window.closedAtFirst = [...form.elements].map((part) => part.disabled);"
            "  watching.disconnect();"
            "}).observe(document, { childList: true, subtree: true });"
        )
        enter(tab, server.address, "anna")
        assert ready(tab)
        assert tab.evaluate("window.closedAtFirst") == [True, True]
        assert tab.url == server.address


def test_the_page_opens_again_where_the_worker_stopped(browser: Any, tmp_path: Path) -> None:
    review(tmp_path)
    with served(tmp_path) as server:
        context = browser.new_context()
        tab = context.new_page()
        enter(tab, server.address, "anna")
        press(tab, "y")
        seen = (ready(tab), place(tab))
        tab.close()
        tab = context.new_page()
        tab.goto(server.address)
        tab.get_by_role("button", name="Continue").wait_for(timeout=WAIT)
        assert tab.get_by_label("Your worker id").input_value() == "anna"
        tab.keyboard.press("Enter")
        assert (ready(tab), place(tab)) == seen
        other = browser.new_context(**PHONE).new_page()  # another device
        enter(other, server.address, "Anna ")
        assert (ready(other), place(other)) == seen


def test_keys_answer_take_back_and_show_the_instructions(browser: Any, tmp_path: Path) -> None:
    made = review(tmp_path)
    with served(tmp_path) as server:
        tab = browser.new_page()
        enter(tab, server.address, "anna")
        first = (ready(tab), place(tab)[0])
        assert tab.get_by_role("button", name="Undo").first.is_disabled()
        tab.keyboard.press("?")
        assert tab.get_by_role("dialog", name="Instructions").is_visible()
        tab.keyboard.press("y")  # not meant for the question below
        tab.keyboard.press("Escape")
        assert (ready(tab), place(tab)) == (first[0], (first[1], 0))
        tab.keyboard.press("Control+y")
        tab.keyboard.press("q")
        assert Store(tmp_path).answers() == []
        press(tab, "n")
        assert ready(tab) != first[0]
        press(tab, "Backspace")
        assert (ready(tab), place(tab)) == (first[0], (first[1], 0))
        assert Store(tmp_path).answers() == []
        press(tab, "Y")
        while ready(tab):
            tab.get_by_role("group").get_by_role("button").first.focus()
            press(tab, "Enter")  # a button like any other
        assert [a.value for a in Store(tmp_path).answers()] == ["yes"] * len(list(questions(made, "0000-0")))
        tab.get_by_role("button", name="Undo the last answer").click()
        ready(tab)
        assert len(Store(tmp_path).answers()) == len(list(questions(made, "0000-0"))) - 1


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_is_done_by_thumb_on_a_phone(browser: Any, tmp_path: Path, mode: str) -> None:
    made = review(tmp_path, mode, count=2, images_a_task=2)
    with served(tmp_path) as server:
        tab = browser.new_context(**PHONE).new_page()
        tab.goto(server.address)
        tab.get_by_label("Your worker id").fill("anna", timeout=WAIT)
        tab.get_by_role("button", name="Start").tap()
        while ready(tab):
            before = place(tab)[1]
            for box in [tab.locator(f"[data-part={name}]").bounding_box() for name in ("picture", "question")]:
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 390
            assert tab.locator("[data-part=picture]").bounding_box()["width"] == 390
            button = tab.locator("#review .choices button").first
            assert button.bounding_box()["height"] >= 44
            button.tap()
            tab.wait_for_function(
                "before => document.querySelector('[data-part=progress]').value !== before "
                "|| !document.querySelector('[data-part=rest]').hidden",
                arg=before, timeout=WAIT,
            )  # fmt: skip
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert len(Store(tmp_path).answers()) == len(list(questions(made, "0000-0")))


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_without_the_token_neither_page_nor_pictures_are_shown(browser: Any, tmp_path: Path) -> None:
    made = review(tmp_path)
    with served(tmp_path, TOKEN) as server:
        assert server.said == f"{server.address}?token={TOKEN}"
        shown = f"images/{made.items[0].picture}"
        for path in (
            "",
            shown,
            "config",
            "gradio_api/info",
            "theme.css",
            "?token=another-token",
            f"{shown}?token={TOKEN}",
        ):
            assert status(server.address + path) == 401
        tab = browser.new_page()
        tab.goto(f"{server.address}?token=another-token")
        assert "Is the object" not in tab.content()
        tab.get_by_label("That is not the access token.").fill(TOKEN)
        tab.keyboard.press("Enter")
        tab.get_by_label("Your worker id").wait_for(timeout=WAIT)
        assert TOKEN not in tab.url
        enter(tab, server.address, "anna")
        assert ready(tab)
        assert tab.locator("[data-part=picture]").evaluate("picture => picture.naturalWidth") == 64


def test_only_the_pictures_of_the_review_are_served(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs the review extra")
    made = review(tmp_path)
    (tmp_path / "images" / ("0" * 20 + ".png")).write_bytes(b"of another review")
    with served(tmp_path) as server:
        assert status(f"{server.address}images/{made.items[0].picture}") == 200
        for path in (
            "images/",
            "images",
            "images/" + "0" * 20 + ".png",
            "images/..%2Fitems.json",
            "images/%2Fetc%2Fpasswd",
        ):
            assert status(server.address + path) == 404
        for path in ("items.json", "answers.sqlite", "salt", "images/../salt", f"gradio_api/file={tmp_path}/salt"):
            assert status(server.address + path) in (403, 404)


def test_hostile_texts_are_shown_as_text_and_nothing_is_fetched_from_elsewhere(browser: Any, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>${alert(3)}"
    pool = [Candidate(f"row {i}", hostile) for i in range(2)]
    make_review(tmp_path, IMAGE_VALIDITY, pool, [], picture, **{**SETTINGS, "sentinel_rate": 0})
    with served(tmp_path) as server:
        tab, seen = browser.new_page(), []
        tab.on("dialog", lambda dialog: (seen.append(dialog.message), dialog.dismiss()))
        tab.on("request", lambda request: seen.append(request.url) if not ours(request.url, server.address) else None)
        tab.on("pageerror", lambda error: seen.append(str(error)))
        enter(tab, server.address, "\u202e")
        tab.get_by_text("expected a worker id of 1 to 100 printable characters").wait_for(timeout=WAIT)
        tab.get_by_label("Your worker id").fill("<b>anna</b>")
        tab.keyboard.press("Enter")
        assert hostile in ready(tab)
        while ready(tab):
            press(tab, "y")
        assert seen == []
    assert set(Store(tmp_path).names().values()) == {"<b>anna</b>"}


def ours(address: str, server: str) -> bool:
    return address.startswith((server, "data:", "blob:"))


def test_a_picture_that_fails_is_loaded_again_and_not_judged_unseen(browser: Any, tmp_path: Path) -> None:
    make_review(tmp_path, IMAGE_VALIDITY, images(2), sentinels(1), picture, **SETTINGS)
    with served(tmp_path) as server:
        tab, broken = browser.new_page(), []
        tab.route("**/images/*", lambda route: (broken.append(1), route.abort()) if not broken else route.continue_())
        enter(tab, server.address, "anna")
        tab.get_by_text("The picture could not be loaded.").wait_for(timeout=WAIT)
        tab.keyboard.press("y")
        assert Store(tmp_path).answers() == []
        ready(tab)
        assert tab.locator("[data-part=picture]").evaluate("picture => picture.naturalWidth") == 64
        press(tab, "y")
        assert len(Store(tmp_path).answers()) == 1


UPLOAD = """
import sys
from huggingface_hub import HfApi
from hf_robust.review.space import answer_repo_files
api = HfApi()
api.create_repo("tester/answers", repo_type="dataset", private=True)
for name, path in answer_repo_files(sys.argv[1]).items():
    api.upload_file(path_or_fileobj=path, path_in_repo=name, repo_id="tester/answers", repo_type="dataset")
"""


def call(address: str, name: str, *data: Any) -> dict[str, Any]:
    body = json.dumps({"data": data}).encode()
    request = urllib.request.Request(
        f"{address}gradio_api/run/{name}", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        screen: dict[str, Any] = json.load(answer)["data"][0]
    return screen


@contextmanager
def as_a_space(hub: Hub, folder: Path, review_folder: Path) -> Iterator[str]:
    """The address of the page, run from the files of the Space on an empty disk; stopped as a Space is."""
    folder.mkdir()
    for name, content in space_files(review_folder, "tester/answers").items():
        (folder / name).write_bytes(content)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"REVIEW_SALT": "s" * 32, "GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port)}
    process = subprocess.Popen([sys.executable, "app.py"], cwd=folder, env={**hub.environment(folder), **settings})
    address, stop = f"http://127.0.0.1:{port}/", time.monotonic() + 120
    try:
        while time.monotonic() < stop and process.poll() is None:
            with suppress(OSError):
                urllib.request.urlopen(address, timeout=5).close()
                break
            time.sleep(0.2)
        yield address
        process.terminate()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_space_keeps_its_answers_in_the_private_data_set_over_a_restart(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs the review extra")
    made = review(tmp_path / "review", count=2)
    asked = len(list(questions(made, "0000-0")))
    with loopback_hub() as hub:
        assert hub.run(UPLOAD, tmp_path, str(tmp_path / "review")).returncode == 0
        with as_a_space(hub, tmp_path / "first", tmp_path / "review") as address:
            screen = call(address, "start", "anna-of-the-hills")
            for _ in range(3):
                given = {key: screen[key] for key in ("task", "item", "question")} | {"value": "yes", "seconds": 1.5}
                screen = call(address, "answer", "anna-of-the-hills", given)
            screen = call(address, "undo", "anna-of-the-hills", screen["last"])
        repo = hub.repo("datasets/tester/answers")
        (journal,) = [name for name in repo.files() if name.startswith("answers/")]
        assert repo.read(journal).count(b"\n") == 4  # three answers, one taken back
        assert repo.private
        assert all(b"anna-of-the-hills" not in repo.read(name) for name in repo.files())
        with as_a_space(hub, tmp_path / "second", tmp_path / "review") as address:
            assert call(address, "start", "Anna-of-the-hills") == screen
            assert screen["answered"] == 2
            while screen["screen"] == "item":
                given = {key: screen[key] for key in ("task", "item", "question")} | {"value": "no"}
                screen = call(address, "answer", "anna-of-the-hills", given)
        (tmp_path / "back").mkdir()
        for name in repo.files():
            if name.startswith("answers/"):
                (tmp_path / "back" / Path(name).name).write_bytes(repo.read(name))
    store = Store(tmp_path / "review")
    assert store.replay(read_events(tmp_path / "back")) == asked + 2
    assert [answer.value for answer in store.answers()] == ["yes"] * 2 + ["no"] * (asked - 2)


def test_the_address_of_a_free_port_is_said(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="needs the review extra")
    review(tmp_path)
    with served(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port), timeout=20):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", server.said)
