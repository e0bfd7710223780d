"""What the page shows next, and the gate before it: no gradio needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from review_world import images, picture, review, sentinels

from hf_robust.review.base import IMAGE_VALIDITY, MODES, Choice, Question, ReviewError
from hf_robust.review.page import instructions, skeleton
from hf_robust.review.screens import KEYS, Desk, buttons, question_text
from hf_robust.review.serve import Gate, access_token, is_loopback, listen, serve
from hf_robust.review.space import SALT, answer_repo_files, serve_space, space_files
from hf_robust.review.store import Store
from hf_robust.review.tasks import Candidate, make_review

TOKEN = "a-token-of-this-test-ä"
HOSTILE = "<img src=x onerror=alert(1)>{subject}{0}%s"


def reply(screen: Mapping[str, Any], value: str = "yes") -> dict[str, Any]:
    return {key: screen[key] for key in ("task", "item", "question")} | {"value": value, "seconds": 0.5}


@pytest.mark.parametrize("mode", sorted(MODES))
def test_every_mode_goes_through_the_same_screens(tmp_path: Path, mode: str) -> None:
    made = review(tmp_path, mode, count=4)
    desk, asked = Desk(Store(tmp_path)), []
    screen = desk.start("anna")
    while screen["screen"] == "item":
        assert (tmp_path / "images" / screen["picture"]).is_file()
        assert screen["answered"] == len(asked)
        assert len({choice["key"] for choice in screen["choices"]}) == len(screen["choices"]) >= 2
        asked.append((screen["item"], screen["question"]))
        screen = desk.answer("anna", reply(screen, screen["choices"][0]["value"]))
    task = made.tasks[0]
    assert asked == [(item, question.name) for item in task.items for question in made.mode.questions]
    assert screen == {
        "screen": "rest", "finished": 1, "left": 0,
        "last": {"task": task.task_id, "item": asked[-1][0], "question": asked[-1][1]},
    }  # fmt: skip
    assert desk.undo("anna", screen["last"])["item"] == asked[-1][0]


def test_a_screen_tells_nothing_about_sentinels(tmp_path: Path) -> None:
    review(tmp_path)
    screen = Desk(Store(tmp_path)).start("anna")
    assert sorted(screen) == sorted(
        ["screen", "task", "item", "question", "picture", "text", "choices", "number", "of", "which", "questions",
         "answered", "asked", "following", "last"]
    )  # fmt: skip


def test_a_call_sent_twice_gives_the_same_screen(tmp_path: Path) -> None:
    review(tmp_path)
    desk = Desk(Store(tmp_path))
    first = desk.start("anna")
    assert desk.start("anna") == first
    second = desk.answer("anna", reply(first))
    assert desk.answer("anna", reply(first)) == second
    assert desk.undo("anna", second["last"]) == desk.undo("anna", second["last"]) == first


@pytest.mark.parametrize("given", [{}, {"task": 1}, {"task": "x", "item": "y", "question": "z", "value": "yes"}])
def test_an_answer_to_nothing_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    review(tmp_path)
    with pytest.raises(
        ReviewError, match=r"expected an answer to a question of this review, got .*: load the page again"
    ):
        Desk(Store(tmp_path)).answer("anna", given)


def test_subjects_are_put_into_questions_as_they_are() -> None:
    question = Question("q", "Is it a {subject}? A {subject}!", (), ())
    assert question_text(question, "kite") == "Is it a kite? A kite!"
    assert question_text(question, "umbrella") == "Is it an umbrella? An umbrella!"
    assert question_text(question, HOSTILE) == f"Is it a {HOSTILE}? A {HOSTILE}!"  # nothing in it is filled in again
    for subject, article in (("unicycle", "a"), ("upright piano", "an"), ("hourglass", "an"), ("European", "a")):
        assert question_text(Question("q", "a {subject}", (), ()), subject) == f"{article} {subject}"


def test_options_get_numbers_then_letters_then_no_key(tmp_path: Path) -> None:
    names = tuple(f"name {i}" for i in range(40))
    mode = MODES["name-the-class"]
    made = make_review(
        tmp_path, mode, [Candidate("image 0", "", options={"class": names})], [], picture,
        workers=1, images_a_task=1, sentinel_rate=0, seed=0,
    )  # fmt: skip
    keys = [choice["key"] for choice in buttons(mode.questions[0], made.items[0])]
    assert keys == [*KEYS, *[""] * 5]
    assert KEYS == "123456789abcdefghijklmnopqrstuvwxyz"


def test_the_page_escapes_what_comes_from_the_mode() -> None:
    mode = MODES["image-validity"]
    hostile = type(mode)("x", HOSTILE, HOSTILE, (Question("q", HOSTILE, (Choice("v", HOSTILE, "<"),), ()),))
    for text in (skeleton(hostile), instructions(hostile)):
        assert "<img" not in text.replace('<img data-part="picture"', "")
        assert "&lt;img src=x onerror=alert(1)&gt;" in text


def test_off_loopback_a_token_is_needed(tmp_path: Path) -> None:
    review(tmp_path)
    for host in ("0.0.0.0", "192.168.1.4", "::", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(ReviewError, match=f"expected an access token for host {host}, which others can reach"):
            serve(tmp_path, host=host, say=print)
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert access_token(host, None) is None
    with pytest.raises(ReviewError, match="expected a token of 12 characters or more, got 0"):
        access_token("127.0.0.1", "")
    one, other = access_token("0.0.0.0", "auto"), access_token("0.0.0.0", "auto")
    assert one is not None
    assert len(one) == 32
    assert one != other


def test_a_port_in_use_is_said() -> None:
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ReviewError, match=rf"expected to listen on 127\.0\.0\.1:{port}, got .*--port"):
            listen("127.0.0.1", port)


# --- the gate, asked as a server asks it


def through(
    gate: Gate, path: str = "/", *, query: str = "", method: str = "GET", **headers: str
) -> tuple[int, Any, bytes]:
    """Status, headers, body of what the gate answers."""
    sent: list[Any] = []
    named = {"host": "127.0.0.1:7861", **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(gate(scope, receive, send))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, sent[1]["body"]


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"the review"})


@pytest.mark.parametrize("path", ["/", "/images/x.png", "/config", "/gradio_api/run/start", "/nowhere"])
@pytest.mark.parametrize("query", ["", "token=wrong", "token=", "token=a-token-of-this-test"])
def test_without_the_token_nothing_is_shown(path: str, query: str) -> None:
    for cookie in ("", "hf_robust_review=00", "hf_robust_review=zz", "=;;=\x01", f"hf_robust_review={TOKEN[:-1]}"):
        status, headers, body = through(Gate(inside, TOKEN), path, query=query, cookie=cookie)
        assert status == 401
        assert b"the review" not in body
        assert "set-cookie" not in headers


def test_the_token_opens_once_by_address_then_by_cookie() -> None:
    from urllib.parse import quote

    gate = Gate(inside, TOKEN)
    status, headers, _ = through(gate, query=f"token={quote(TOKEN)}&view=1")
    assert (status, headers["location"]) == (303, "./?view=1")  # it does not stay in the address
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=Lax" in headers["set-cookie"]
    status, headers, body = through(gate, cookie=headers["set-cookie"].split(";")[0], host="review.example.org")
    assert (status, body) == (200, b"the review")
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["referrer-policy"] == "no-referrer"
    far = through(gate, query=f"token={quote(TOKEN)}", x_forwarded_proto="https")[1]["set-cookie"]
    assert "SameSite=None; Secure" in far  # in the frame of a Space


def test_other_sites_do_not_reach_a_page_without_a_token() -> None:
    gate = Gate(inside, None)
    for host in ("127.0.0.1:7861", "localhost:7861", "localhost", "[::1]:7861"):
        assert through(gate, host=host)[0] == 200
    for host in ("evil.example.org", "127.0.0.1.evil.org:7861", "", "[::1].evil.org"):
        assert through(gate, host=host)[0] == 403
    assert through(gate, method="POST", sec_fetch_site="cross-site")[0] == 403
    assert through(gate, method="POST", sec_fetch_site="same-origin")[0] == 200


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://x"])
def test_what_the_page_does_not_need_is_not_served(path: str) -> None:
    assert through(Gate(inside, None), path)[0] == 403


# --- the Space


def test_a_space_holds_nothing_of_the_review_and_the_data_set_no_answers(tmp_path: Path) -> None:
    made = review(tmp_path)
    store = Store(tmp_path)
    store.join(store.enter("anna"), datetime(2026, 1, 1, tzinfo=UTC))
    files = space_files(tmp_path, "someone/answers")
    assert sorted(files) == ["README.md", "app.py", "requirements.txt"]
    assert b'serve_space("someone/answers")' in files["app.py"]
    assert b"sdk: gradio" in files["README.md"]
    for item in made.items:
        assert all(item.item_id.encode() not in content for content in files.values())
    kept = answer_repo_files(tmp_path)
    assert all(path.is_file() for path in kept.values())
    assert {name.split("/")[1] for name in kept} == {"items.json", "tasks.json", "review.json", "images"}


@pytest.mark.parametrize("name", ["answers", 'a/b")\nimport os #', "a/b/c", "", "../a"])
def test_a_name_that_is_none_never_becomes_code(tmp_path: Path, name: str) -> None:
    review(tmp_path)
    with pytest.raises(ReviewError, match="expected OWNER/NAME of a data set on the Hub, got"):
        space_files(tmp_path, name)


def test_a_space_without_its_salt_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SALT, "short")
    with pytest.raises(
        ReviewError, match=f"random characters in the secret {SALT}, got 5: set it in the Space's settings"
    ):
        serve_space("someone/answers")


def test_a_hostile_subject_reaches_the_screen_as_text(tmp_path: Path) -> None:
    pool = [Candidate(f"../../{i}", HOSTILE) for i in range(2)]
    make_review(
        tmp_path, IMAGE_VALIDITY, [*pool, *images(2)], sentinels(1), picture,
        workers=1, images_a_task=4, sentinel_rate=0.1, seed=0,
    )  # fmt: skip
    store = Store(tmp_path)
    assert all(
        path.parent == tmp_path / "images"
        for path in map(store.review.picture, (i.picture for i in store.review.items))
    )
    texts = [question_text(q, i.subject) for i in store.review.items for q in store.review.mode.questions]
    assert f"Can you recognise a {HOSTILE} in this picture?" in texts
