"""What is tried again, and the one sentence that is left of the Hub's errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_robust.hub.network import Remote, Upload, changes
from hf_robust.hub.patience import TRIES, HubError, check_repo_name, page, patiently


class Answered(Exception):
    """As the errors of huggingface_hub: with the response."""

    def __init__(self, status: int, said: str = "", **headers: str) -> None:
        super().__init__(said or f"{status} Client Error")
        self.response = SimpleNamespace(
            status_code=status, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )


def _failing(*errors: BaseException) -> tuple[list[int], object]:
    waiting, calls = list(errors), []

    def action() -> str:
        calls.append(1)
        if waiting:
            raise waiting.pop(0)
        return "done"

    return calls, action


def test_a_busy_hub_is_asked_again_until_it_answers() -> None:
    calls, action = _failing(Answered(429, Retry_After="0"), Answered(503, Retry_After="0"))
    assert patiently(action, "me/x", "dataset") == "done"  # type: ignore[arg-type]
    assert len(calls) == 2 + 1


def test_patience_ends_with_one_sentence() -> None:
    calls, action = _failing(*[Answered(500, Retry_After="0")] * 9)
    with pytest.raises(HubError, match=f"the Hub answered 500 for .*/datasets/me/x {TRIES} times: nothing was changed"):
        patiently(action, "me/x", "dataset")  # type: ignore[arg-type]
    assert len(calls) == TRIES


def test_the_wait_is_the_one_that_the_hub_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    errors = (
        Answered(429, Retry_After="7"),
        Answered(429),
        Answered(429, Retry_After=date),
        Answered(429, Retry_After="1e9"),
    )
    _, action = _failing(*errors)
    said: list[str] = []
    patiently(action, "me/x", "model", say=said.append)  # type: ignore[arg-type]
    assert waits == [7, 2**1, 2**2, 300]
    assert said[0] == "the Hub answered 429, trying again in 7 s"


def test_an_answer_behind_another_error_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    upload = RuntimeError("Error while uploading 'x' to the Hub.")
    upload.__cause__ = Answered(503)
    calls, action = _failing(upload, ConnectionResetError("gone"))
    assert patiently(action, "me/x", "model") == "done"  # type: ignore[arg-type]
    assert len(calls) == 2 + 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Answered(401), r"does not accept your login for .*/me/x \(401\): run hf auth login, or set HF_TOKEN"),
        (Answered(403), r"you may not write to .*/me/x \(403\)"),
        (Answered(404), r"expected a model at .*/me/x, got none that you may see"),
        (Answered(400, "\n\nBad request: odd\nmore"), r"the Hub refused .*/me/x \(400\): Bad request: odd$"),
        (ValueError("hf_abcdefghijkl is no token"), r"the Hub refused .*/me/x: hf_… is no token$"),
        (type("LocalTokenNotFoundError", (OSError,), {})(), "expected to be logged in for"),
        (type("OfflineModeIsEnabled", (ConnectionError,), {})(), "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids it"),
        (type("GatedRepoError", (Answered,), {})(403), "me/x is gated: accept its terms at .*/me/x, then log in"),
    ],
)
def test_other_errors_are_not_tried_again_and_say_what_to_do(error: BaseException, said: str) -> None:
    calls, action = _failing(error)
    with pytest.raises(HubError, match=said):
        patiently(action, "me/x", "model")  # type: ignore[arg-type]
    assert len(calls) == 1


def test_a_stop_by_the_user_is_no_error_of_the_hub() -> None:
    _, action = _failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        patiently(action, "me/x", "model")  # type: ignore[arg-type]


def test_a_file_is_the_same_by_its_git_id_or_by_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello\n")
    upload = Upload("a", tmp_path / "x")
    assert upload.blob == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
    assert upload.sha256 == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"  # sha256sum
    remote = Remote(
        True, "c", files={"a": (upload.blob, None), "b": ("other", upload.sha256), "c": ("x", None), "d": ("y", "z")}
    )
    found = changes(remote, dict.fromkeys("abcde", b"hello\n"), delete=["a", "gone", "f"])
    assert [c.state for c in found] == ["same", "same", "changed", "changed", "new"]


def test_only_what_is_there_and_not_written_is_deleted() -> None:
    remote = Remote(True, "c", files={"a": ("1", None), "b": ("2", None)})
    assert [(c.path, c.state) for c in changes(remote, {"a": b""}, delete=["a", "b", "z"])] == [
        ("a", "changed"), ("b", "deleted")
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["x", "", "a/b/c", "/b", "a/", "../b", "a b/c"])
def test_a_repo_is_an_owner_and_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected a repo as OWNER/NAME, got"):
        check_repo_name(name)


def test_pages_are_those_of_the_hub() -> None:
    hub = page("me/x", "model").removesuffix("me/x")
    assert page("me/x", "dataset") == f"{hub}datasets/me/x"
    assert page("me/x", "space") == f"{hub}spaces/me/x"
