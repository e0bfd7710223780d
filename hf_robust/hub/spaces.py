"""A metric as a Space: the page, and the module that `evaluate.load("<owner>/<name>")` finds there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

from .. import __version__
from .modules import metric_module_folders
from .network import Push, Say, patiently, push


@dataclass(frozen=True)
class Space:
    """What is to be published: the files of one commit, and the tag that `evaluate` asks for."""

    repo_id: str
    tag: str
    files: Mapping[str, bytes]

    @property
    def card(self) -> str:
        """The README."""
        return self.files["README.md"].decode("utf-8")


def metric_space(name: str, owner: str) -> Space:
    """The Space of the metric `name` for a user or an organisation; nothing is sent.

    Its requirements name exactly this version of hf-robust, its card the line that loads it from there.
    LookupError for an unknown metric, ValueError for an owner that is no name, ImportError without `evaluate`.
    """
    folders = metric_module_folders()
    if name not in folders:
        raise LookupError(f"unknown metric {name!r}; known: {', '.join(folders)}")
    if not re.fullmatch(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", owner):
        raise ValueError(f"expected the name of a user or organisation on the Hub, got {owner!r}: pass one without '/'")
    files = {path.name: path.read_bytes() for path in sorted(folders[name].iterdir()) if path.is_file()}
    files["requirements.txt"] = _filled_in(files["requirements.txt"])
    files["README.md"] = _loaded_from(files["README.md"], name, f"{owner}/{name}")
    return Space(f"{owner}/{name}", f"v{_evaluate_version()}", MappingProxyType(files))


def _filled_in(requirements: bytes) -> bytes:
    return re.sub(rb"^hf-robust.*$", f"hf-robust=={__version__}".encode(), requirements, flags=re.M)


def _loaded_from(card: bytes, name: str, repo_id: str) -> bytes:
    bare, full = f'evaluate.load("{name}")', f'evaluate.load("{repo_id}")'
    return card.replace(bare.encode(), full.encode())


def _evaluate_version() -> str:
    try:
        return version("evaluate")
    except PackageNotFoundError as error:
        raise ImportError(
            'publishing a metric needs evaluate, whose version becomes the tag: pip install "hf-robust[evaluate]"'
        ) from error


def publish_metric(space: Space, *, private: bool | None = None, dry_run: bool = False, say: Say | None = None) -> Push:
    """What the push did: the Space created where it is not there, one commit with all files, the tag moved to it.

    private  None keeps what is set; for a new Space, what the account has.
    dry_run  only looks.
    Files that the Space holds besides these stay. Until the commit is whole nothing has changed, and until the tag
    has moved `evaluate` loads what was there before. HubError in one sentence where the Hub refuses.
    """
    message = f"{space.repo_id.split('/')[1]} of hf-robust {__version__}"
    done = push(
        space.repo_id, space.files, repo_type="space", message=message, private=private, sdk="gradio",
        dry_run=dry_run, say=say,
    )  # fmt: skip
    if not dry_run and done.head is not None:
        _move_tag(space, done.head, say)
    return done


def _move_tag(space: Space, commit: str, say: Say | None) -> None:
    from huggingface_hub import HfApi

    def once() -> None:
        api, repo = HfApi(), space.repo_id
        tags = {tag.name: tag.target_commit for tag in api.list_repo_refs(repo, repo_type="space").tags}
        if tags.get(space.tag) == commit:
            return
        if space.tag in tags:  # a tag cannot be moved; in between `evaluate` takes the newest commit, this one
            api.delete_tag(repo, tag=space.tag, repo_type="space")
        api.create_tag(repo, tag=space.tag, revision=commit, repo_type="space")

    patiently(once, space.repo_id, "space", say=say)
