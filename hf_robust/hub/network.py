"""Talking to the Hub: what is there, what would change, and one commit that changes it; with patience, in short errors.

The token comes from where huggingface_hub looks for it (HF_TOKEN, `hf auth login`); nothing here reads, prints or
stores it. HF_ENDPOINT counts only if it is set before the first Hugging Face import.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from .patience import (
    HubError,
    RepoType,
    Say,
    check_first_process,
    check_repo_name,
    endpoint,
    page,
    patiently,
    status_of,
)

__all__ = [
    "Change", "Content", "Gate", "HubError", "Push", "Remote", "RepoType", "Say", "Upload", "changes", "download",
    "endpoint", "look", "page", "patiently", "push", "read_file", "repo_files",
]  # fmt: skip

Gate = Literal["auto", "manual", False]
State = Literal["new", "changed", "same", "deleted"]
Content = bytes | Path


@dataclass(frozen=True)
class Upload:
    """One file to be: its path in the repo, and its bytes or the local file that holds them."""

    path: str
    content: Content

    @cached_property
    def size(self) -> int:
        """Bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the bytes, by which LFS knows a file."""
        return self._digest(hashlib.sha256())

    @cached_property
    def blob(self) -> str:
        """The id by which git knows a file with these bytes."""
        return self._digest(hashlib.sha1(b"blob %d\0" % self.size))

    def _digest(self, digest: Any) -> str:
        if isinstance(self.content, bytes):
            digest.update(self.content)
        else:
            with self.content.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
        return str(digest.hexdigest())


@dataclass(frozen=True)
class Remote:
    """A repo as the Hub shows it to this user; `exists` is false also where it shows nothing.

    files  path -> (git id, SHA-256 of an LFS file or None).
    """

    exists: bool
    head: str | None = None
    private: bool = False
    gated: bool = False
    files: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)

    def has(self, upload: Upload) -> bool:
        """Whether the repo holds this file with these bytes."""
        blob, sha256 = self.files.get(upload.path, (None, None))
        return sha256 == upload.sha256 if sha256 is not None else blob is not None and blob == upload.blob


@dataclass(frozen=True)
class Change:
    """What a push does to one file."""

    path: str
    size: int
    state: State


@dataclass(frozen=True)
class Push:
    """What a push did or, as a dry run, would do.

    head     the newest commit afterwards: the old one where nothing had to change, None where there is no repo.
    before   the repo as it was.
    """

    head: str | None
    page: str
    before: Remote
    changes: tuple[Change, ...]

    @property
    def changed(self) -> bool:
        """Whether there was anything to commit."""
        return any(change.state != "same" for change in self.changes)


def look(repo: str, *, repo_type: RepoType, revision: str | None = None, say: Say | None = None) -> Remote:
    """The repo as it is now; `exists` is false where the Hub shows this user none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    check_repo_name(repo)

    def once() -> Remote:
        try:
            info: Any = HfApi().repo_info(repo, repo_type=repo_type, revision=revision, files_metadata=True)
        except GatedRepoError:
            raise
        except RepositoryNotFoundError:
            return Remote(False)
        files = {s.rfilename: (s.blob_id, None if s.lfs is None else s.lfs.sha256) for s in info.siblings or ()}
        return Remote(True, info.sha, bool(info.private), bool(getattr(info, "gated", False)), files)

    return patiently(once, repo, repo_type, say=say)


def repo_files(repo: str, *, repo_type: RepoType, revision: str | None = None) -> tuple[str, ...]:
    """The paths of the repo's files, sorted; none where the Hub shows this user no such repo."""
    return tuple(sorted(look(repo, repo_type=repo_type, revision=revision).files))


def read_file(repo: str, path: str, *, repo_type: RepoType, revision: str | None = None) -> bytes:
    """The bytes of one file; FileNotFoundError where the repo has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    def once() -> bytes | None:
        try:
            return Path(hf_hub_download(repo, path, repo_type=repo_type, revision=revision)).read_bytes()
        except EntryNotFoundError:
            return None

    content = patiently(once, repo, repo_type)
    if content is None:
        raise FileNotFoundError(f"expected {path} in {page(repo, repo_type)}, got a repo without it")
    return content


def download(
    repo: str, paths: Sequence[str], folder: Path, *, repo_type: RepoType, revision: str | None = None
) -> None:
    """Writes these files of the repo below `folder`, under the paths that they have there."""
    from huggingface_hub import hf_hub_download

    for path in paths:
        target = folder / path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise HubError(f"expected paths inside the repo, got {path!r} in {page(repo, repo_type)}: do not trust it")
        cached = patiently(
            lambda path=path: hf_hub_download(repo, path, repo_type=repo_type, revision=revision),  # type: ignore[misc]
            repo,
            repo_type,
        )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(cached).read_bytes())


def changes(remote: Remote, files: Mapping[str, Content], *, delete: Collection[str] = ()) -> tuple[Change, ...]:
    """What a push of these files would do, file by file; `delete` are paths to remove where they are there."""
    uploads = [Upload(path, content) for path, content in files.items()]
    found = [Change(u.path, u.size, _state(remote, u)) for u in uploads]
    gone = sorted(set(delete) & set(remote.files) - set(files))
    return (*found, *(Change(path, 0, "deleted") for path in gone))


def _state(remote: Remote, upload: Upload) -> State:
    if upload.path not in remote.files:
        return "new"
    return "same" if remote.has(upload) else "changed"


def push(
    repo: str,
    files: Mapping[str, Content],
    *,
    repo_type: RepoType,
    message: str,
    delete: Collection[str] = (),
    private: bool | None = None,
    gated: Gate | None = None,
    sdk: str | None = None,
    alone: int = 0,
    dry_run: bool = False,
    say: Say | None = None,
) -> Push:
    """Makes the repo hold these files, in one commit; until then its head does not move. A missing repo is created.

    Files on disk are sent first, one by one (those that the Hub has are not sent again), then one commit takes all.
    Nothing is committed where nothing changed.
    private, gated  None keeps what is set; for a new repo, what the account has. What closes a repo is set before the
                    commit, what opens it afterwards, so that nothing is seen that should not be, whenever it stops.
    sdk             of a new Space.
    alone           bytes from which on a file on disk is sent on its own; smaller ones go together, with the commit.
    dry_run         only looks.
    HubError in one sentence where the Hub refuses, or where somebody else committed meanwhile.
    """
    check_first_process()
    before = look(repo, repo_type=repo_type, say=say)
    planned = changes(before, files, delete=delete)
    done = Push(before.head, page(repo, repo_type), before, planned)
    if dry_run:
        return done
    there = before if before.exists else _created(repo, repo_type, private, sdk, say)
    operations = _operations(planned, files)
    for number, operation in enumerate(operations, start=1):
        if getattr(operation, "upload_info", None) is not None and operation.upload_info.size >= alone:
            _send(repo, repo_type, operation, f"{number} of {len(operations)}", say)
    _set(repo, repo_type, say, private=True if private and not there.private else None, gated=gated)
    head = there.head
    if done.changed:

        def settled(now: Remote) -> bool:
            return all(change.state == "same" for change in changes(now, files, delete=delete))

        head = _commit(repo, repo_type, operations, settled, message, there.head, say)
    _set(repo, repo_type, say, private=False if private is False and there.private else None, gated=None)
    return Push(head, done.page, before, planned)


def _created(repo: str, repo_type: RepoType, private: bool | None, sdk: str | None, say: Say | None) -> Remote:
    from huggingface_hub import HfApi

    def once() -> None:
        HfApi().create_repo(repo, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)

    patiently(once, repo, repo_type, say=say)
    remote = look(repo, repo_type=repo_type, say=say)
    if not remote.exists:
        raise HubError(f"expected {page(repo, repo_type)} to be yours, got one that you may not see: take another name")
    return remote


def _operations(planned: Sequence[Change], files: Mapping[str, Content]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    return [
        CommitOperationDelete(change.path)
        if change.state == "deleted"
        else CommitOperationAdd(change.path, files[change.path])
        for change in planned
        if change.state != "same"
    ]


def _send(repo: str, repo_type: RepoType, operation: Any, number: str, say: Say | None) -> None:
    """Sends a file on disk ahead of the commit, so that a push that stops can go on from there."""
    from huggingface_hub import HfApi

    if not isinstance(getattr(operation, "path_or_fileobj", None), str | Path):
        return
    if say is not None:
        say(f"sending {number}: {operation.path_in_repo}, {operation.upload_info.size:,} bytes")
    patiently(
        lambda: HfApi().preupload_lfs_files(repo, [operation], repo_type=repo_type, free_memory=False),
        repo,
        repo_type,
        say=say,
    )


def _set(repo: str, repo_type: RepoType, say: Say | None, *, private: bool | None, gated: Gate | None) -> None:
    from huggingface_hub import HfApi

    def once() -> None:
        HfApi().update_repo_settings(repo, repo_type=repo_type, private=private, gated=gated)

    if private is not None or gated is not None:
        patiently(once, repo, repo_type, say=say)


def _commit(
    repo: str,
    repo_type: RepoType,
    operations: Sequence[Any],
    settled: Callable[[Remote], bool],
    message: str,
    parent: str | None,
    say: Say | None,
) -> str:
    from huggingface_hub import HfApi

    def once() -> str:
        try:
            done = HfApi().create_commit(
                repo, operations, commit_message=message, repo_type=repo_type, parent_commit=parent
            )
        except Exception as error:  # which classes there are differs between versions
            if status_of(error) != 412:
                raise
            now = look(repo, repo_type=repo_type, say=say)  # 412 also follows a commit of ours whose answer was lost
            if now.head and settled(now):
                return now.head
            where = page(repo, repo_type)
            raise HubError(f"somebody else changed {where} meanwhile: look at it, then run it again") from error
        return str(done.oid)

    return patiently(once, repo, repo_type, say=say)
