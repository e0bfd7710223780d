"""What goes wrong inside the model libraries, said in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .base import ModelError

_UNREACHABLE = {
    "OfflineModeIsEnabled", "LocalEntryNotFoundError", "ConnectError", "ConnectTimeout", "ConnectionError",
    "ProxyError", "ReadTimeout", "TimeoutError", "URLError", "gaierror", "MaxRetryError",
}  # fmt: skip


def require(package: str, extra: str, *, name: str) -> Any:
    """The imported library; ModelError with the pip line where it is missing."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ModelError(f'{name} needs {package} ({error}): pip install "hf-robust[{extra}]"') from error


@contextmanager
def library_errors(name: str) -> Iterator[None]:
    """Turns whatever a model library raises inside into one ModelError that names the model and what to do."""
    try:
        yield
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # the libraries raise everything from KeyError to their own HTTP errors
        raise ModelError(f"{name}: {_reason(error)}") from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: Exception | SystemExit) -> str:
    kinds = {cls.__name__ for link in _chain(error) for cls in type(link).__mro__}
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:300]
    if "GatedRepoError" in kinds:
        return "the repository is gated: accept its terms on its page at huggingface.co, then run `hf auth login`"
    if "RepositoryNotFoundError" in kinds or "not a valid model identifier" in text:
        return f"no such repository, or a private one: check the name or run `hf auth login` ({first})"
    if "trust_remote_code" in text:
        return "the model needs Python code from its repository: read that code, then load with trust_remote_code=True"
    if kinds & _UNREACHABLE or "couldn't connect" in text:
        return (
            "its files are not on this machine and could not be downloaded: connect to the network once, or give local "
            f"files ({type(error).__name__}: {first})"
        )
    return f"{type(error).__name__}: {first}"
