"""Patience with the Hub: what is tried again, for how long, and the one sentence that is left of its errors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar

RepoType = Literal["model", "dataset", "space"]
Say = Callable[[str], None]
Answer = TypeVar("Answer")

TRIES = 5
LONGEST_WAIT = 300.0
_TRANSIENT = {408, 429, 500, 502, 503, 504}
_TOKEN = re.compile(r"hf_\w{6,}")
_PREFIX: Mapping[RepoType, str] = {"model": "", "dataset": "datasets/", "space": "spaces/"}


class HubError(RuntimeError):
    """What the Hub refused or could not do, in one sentence with the page to visit."""


def endpoint() -> str:
    """The address of the Hub that huggingface_hub talks to."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def page(repo: str, repo_type: RepoType) -> str:
    """Where a person looks at the repo."""
    return f"{endpoint()}/{_PREFIX[repo_type]}{repo}"


def check_repo_name(repo: str) -> None:
    """ValueError unless `repo` is OWNER/NAME."""
    if not re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", repo):
        raise ValueError(f"expected a repo as OWNER/NAME, got {repo!r}")


def check_first_process() -> None:
    """HubError in any process of a launch but the first: together they would only be told to slow down."""
    rank = os.environ.get("RANK", "0")
    if rank != "0":
        raise HubError(f"expected one process to talk to the Hub, this is number {rank} of a launch: run it on its own")


def patiently(action: Callable[[], Answer], repo: str, repo_type: RepoType, *, say: Say | None = None) -> Answer:
    """What `action` returns; tried again after 408, 429, 5xx and broken connections, up to TRIES times.

    It waits as long as the answer's Retry-After says, else 1, 2, 4, … seconds. Any other error, and the last one,
    become a HubError of one sentence. `action` has to bear being repeated.
    """
    for left in reversed(range(TRIES)):
        try:
            return action()
        except HubError:
            raise
        except Exception as error:  # which classes there are differs between versions and HTTP clients
            if not left or not _is_transient(error):
                raise explained(error, repo, repo_type) from error
            wait = _wait(error, TRIES - 1 - left)
            if say is not None:
                say(f"the Hub answered {status_of(error) or type(error).__name__}, trying again in {wait:.0f} s")
            time.sleep(wait)
    raise HubError(f"gave up on {page(repo, repo_type)} after {TRIES} tries")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from: uploads hide the answer behind a RuntimeError."""
    while error is not None:
        yield error
        error = error.__cause__


def _response(error: BaseException) -> Any:
    found = (getattr(e, "response", None) for e in _chain(error))
    return next((response for response in found if response is not None), None)


def status_of(error: BaseException) -> int | None:
    """The HTTP status that the Hub answered with, None where it did not answer."""
    response = _response(error)
    return None if response is None else int(response.status_code)


def _is_transient(error: BaseException) -> bool:
    status = status_of(error)
    return status in _TRANSIENT if status is not None else _is_connection(error)


def _is_connection(error: BaseException) -> bool:
    from ..builders.hub import HTTP_CLIENTS

    if any(type(e).__name__ == "OfflineModeIsEnabled" for e in _chain(error)):
        return False
    return any(
        isinstance(e, ConnectionError | TimeoutError) or type(e).__module__.partition(".")[0] in HTTP_CLIENTS
        for e in _chain(error)
    )


def _wait(error: BaseException, tries: int) -> float:
    response = _response(error)
    said = None if response is None else response.headers.get("Retry-After")
    try:
        seconds = float(said) if said is not None else 2.0**tries
    except ValueError:  # a date
        seconds = 2.0**tries
    return min(max(seconds, 0.0), LONGEST_WAIT)


def explained(error: BaseException, repo: str, repo_type: RepoType) -> HubError:
    """The error as one sentence: what the Hub said about the repo, and what to do."""
    where, status = page(repo, repo_type), status_of(error)
    names = {type(e).__name__ for e in _chain(error)}
    if "OfflineModeIsEnabled" in names:
        return HubError(f"expected to reach {where}, but HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids it: unset it")
    if "GatedRepoError" in names:
        return HubError(f"{repo} is gated: accept its terms at {where}, then log in with: hf auth login")
    if "LocalTokenNotFoundError" in names:
        return HubError(f"expected to be logged in for {where}: run hf auth login, or set HF_TOKEN")
    if "RepositoryNotFoundError" in names or status == 404:
        return HubError(
            f"expected a {repo_type} at {where}, got none that you may see: check the name or run hf auth login"
        )
    if status == 401:
        return HubError(f"the Hub does not accept your login for {where} (401): run hf auth login, or set HF_TOKEN")
    if status == 403:
        return HubError(f"you may not write to {where} (403): ask its owner, or take a token with write access")
    if status in _TRANSIENT:
        return HubError(f"the Hub answered {status} for {where} {TRIES} times: nothing was changed, run it again later")
    if status is None and _is_connection(error):
        return HubError(
            f"the connection to {where} failed ({type(error).__name__}): check the network and run it again"
        )
    said = _TOKEN.sub("hf_…", _first_line(error))
    return HubError(f"the Hub refused {where}{f' ({status})' if status else ''}: {said}")


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "server_message", None) or error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
