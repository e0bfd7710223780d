"""A small Hub on 127.0.0.1, for tests in which the real huggingface_hub, datasets and evaluate talk to one.

    with loopback_hub() as hub:
        hub.run("from huggingface_hub import HfApi; HfApi().create_repo('tester/x', repo_type='dataset')", tmp_path)
        assert hub.repo("datasets/tester/x").files() == [".gitattributes"]

It keeps models, data sets and Spaces in memory, each with commits, branches and tags, and answers:

- who am I; create, delete, settings (private, gated) of a repo; may I read or write it (auth-check)
- info of a repo (at a revision, file metadata, card data and tags from the README), tree, paths-info, refs, commits
- preupload, LFS batch, upload and verify, commit as NDJSON (file, lfsFile, copyFile, deletedFile, deletedFolder,
  parentCommit, create_pr), tags and branches, validate-yaml (also at each commit that holds a README.md)
- resolve: HEAD and GET with ranges, X-Repo-Commit, ETag, X-Linked-ETag, X-Linked-Size

Rules as on the real one: a private repo does not exist for others (401 without a token, 404 with one); a gated one can
be seen, but its files answer 401 or 403 with X-Error-Code GatedRepo until `hub.grant`; writing needs the token of the
namespace; 404 comes with RepoNotFound, RevisionNotFound or EntryNotFound; a commit on another parent than the head is
412; the same LFS object is never asked for twice. Left out: xet, discussions, search, pagination, multi-part uploads.

Two users: `tester` (hub.token), who owns the namespaces in NAMESPACES, and `reader` (hub.reader_token), who owns
nothing. `hub.fail_next` makes coming requests fail; `hub.requests` holds what was asked. HF_ENDPOINT is read when
huggingface_hub is imported, so the libraries run in a subprocess: `hub.run` or `hub.environment`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
OWNER, READER = "tester", "reader"
NAMESPACES = (OWNER, "hf_robust", "evaluate-metric")
KINDS = {"models": "", "datasets": "datasets/", "spaces": "spaces/"}
LFS_ENDINGS = {
    ".parquet", ".arrow", ".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz", ".zip", ".gz", ".tar", ".png", ".jpg",
    ".jpeg", ".webp", ".gif",
}  # fmt: skip
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M")
DATE = "2026-01-01T00:00:00.000Z"


class Refusal(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


@dataclass(frozen=True)
class Stored:
    """One file of a commit; `lfs` is the SHA-256 of an LFS object, None for a file in git."""

    content: bytes
    lfs: str | None = None

    @property
    def oid(self) -> str:
        """The git blob's id: of the pointer for an LFS file."""
        text = self.content
        if self.lfs is not None:
            text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.lfs}\nsize {len(text)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()


@dataclass(frozen=True)
class Commit:
    sha: str
    title: str
    files: dict[str, Stored]
    parent: str | None


@dataclass
class Repo:
    kind: str
    id: str
    private: bool = False
    gated: str | bool = False
    sdk: str | None = None
    granted: set[str] = field(default_factory=set)
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """The id of the newest commit of `main`."""
        return self.branches["main"]

    def at(self, revision: str = "main") -> Commit:
        sha = self.branches.get(revision) or self.tags.get(revision) or revision
        if sha not in self.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[sha]

    def files(self, revision: str = "main") -> list[str]:
        return sorted(self.at(revision).files)

    def read(self, path: str, revision: str = "main") -> bytes:
        return self.at(revision).files[path].content

    def history(self, revision: str = "main") -> list[str]:
        """Titles of the commits, the newest first."""
        titles, sha = [], self.at(revision).sha or None
        while sha is not None:
            titles.append(self.commits[sha].title)
            sha = self.commits[sha].parent
        return titles

    def add(self, branch: str, title: str, files: dict[str, Stored]) -> str:
        parent = self.branches.get(branch)
        listing = json.dumps([len(self.commits), parent, title, sorted((p, f.oid) for p, f in files.items())])
        sha = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[sha] = Commit(sha, title, files, parent)
        self.branches[branch] = sha
        return sha


@dataclass
class Failure:
    """What happens to coming requests whose "METHOD path" the pattern is found in."""

    pattern: str
    times: int
    skip: int
    status: int | None
    headers: dict[str, str]
    drop: str | None


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    status: int
    user: str | None


Answer = tuple[int, Any, dict[str, str]]


class Hub:
    """The state of the Hub and what tests ask of it."""

    def __init__(self) -> None:
        self.token, self.reader_token = "hf_" + "t" * 34, "hf_" + "r" * 34
        self.endpoint = ""
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.failures: list[Failure] = []
        self.lock = threading.RLock()

    def repo(self, name: str) -> Repo:
        """The repo of "OWNER/NAME" (a model), "datasets/OWNER/NAME" or "spaces/OWNER/NAME"; KeyError without one."""
        kind, _, rest = name.partition("/")
        return self.repos[(kind, rest)] if kind in KINDS and "/" in rest else self.repos[("models", name)]

    def grant(self, name: str, user: str = READER) -> None:
        """Lets a user into a gated repo."""
        self.repo(name).granted.add(user)

    def fail_next(
        self,
        pattern: str = "",
        *,
        status: int | None = 500,
        times: int = 1,
        skip: int = 0,
        retry_after: float | None = None,
        drop: str | None = None,
    ) -> None:
        """Makes `times` coming requests fail whose "METHOD /path" matches the regular expression, after `skip` of them.

        status       of the answer; 429 with `retry_after` seconds in Retry-After.
        drop         "request": the connection ends in the middle of the request, nothing happens here;
                     "answer": what was asked is done, and the connection ends without an answer.
        """
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.failures.append(Failure(pattern, times, skip, None if drop else status, headers, drop))

    def asked(self, pattern: str) -> list[Request]:
        """The requests so far whose "METHOD /path" matches the regular expression."""
        return [r for r in self.requests if re.search(pattern, f"{r.method} {r.path}")]

    def environment(self, home: Path, *, token: str | None = "") -> dict[str, str]:
        """Variables of a process with this Hub and caches below `home`; token "" is hub.token, None none."""
        dropped = ("HF_", "HUGGINGFACE", "TRANSFORMERS_", "XDG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        caches = {"HF_HOME": str(home / "huggingface"), "XDG_CACHE_HOME": str(home / "cache")}
        given = {} if token is None else {"HF_TOKEN": token or self.token}
        settings = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "PYTHONPATH": str(ROOT),
        }
        return {**kept, **caches, **settings, **given}

    def run(
        self, code: str, home: Path, *arguments: str, token: str | None = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs Python code in a process of its own against this Hub, from the folder `home`."""
        return self.call([sys.executable, "-c", code, *arguments], home, token=token, **variables)

    def call(
        self, command: list[str], home: Path, *, token: str | None = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command against this Hub, from the folder `home`."""
        environment = {**self.environment(home, token=token), **variables}
        return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=240)

    def user_of(self, header: str | None) -> str | None:
        if header is None:
            return None
        users = {f"Bearer {self.token}": OWNER, f"Bearer {self.reader_token}": READER}
        if header not in users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return users[header]

    def failure_of(self, line: str) -> Failure | None:
        with self.lock:
            for failure in self.failures:
                if not re.search(failure.pattern, line) or failure.times == 0:
                    continue
                if failure.skip:
                    failure.skip -= 1
                    continue
                failure.times -= 1
                return failure
        return None


# --- who may what


def owns(user: str | None, repo_id: str) -> bool:
    return user == OWNER and repo_id.partition("/")[0] in NAMESPACES


def readable(hub: Hub, kind: str, repo_id: str, user: str | None) -> Repo:
    repo = hub.repos.get((kind, repo_id))
    if repo is None or (repo.private and not owns(user, repo_id)):
        # huggingface_hub knows a bare 401 for a missing repo by the official address only
        status, message = (401, "Invalid username or password.") if user is None else (404, "Repository not found")
        raise Refusal(status, message, "RepoNotFound")
    return repo


def files_readable(repo: Repo, user: str | None) -> None:
    if repo.gated and not owns(user, repo.id) and user not in repo.granted:
        status = 401 if user is None else 403
        raise Refusal(status, f"Access to {repo.kind} {repo.id} is restricted: accept its terms first.", "GatedRepo")


def writable(repo: Repo, user: str | None) -> None:
    if user is None:
        raise Refusal(401, "Invalid username or password.")
    if not owns(user, repo.id):
        raise Refusal(403, "You don't have the rights to write to this repo")


# --- documents


def entry(path: str, stored: Stored) -> dict[str, Any]:
    found = {"type": "file", "path": path, "size": len(stored.content), "oid": stored.oid}
    if stored.lfs is not None:
        found["lfs"] = {"oid": stored.lfs, "size": len(stored.content), "pointerSize": 130}
    return found


def tree(commit: Commit, folder: str, recursive: bool) -> list[dict[str, Any]]:
    prefix = f"{folder}/" if folder else ""
    inside = {path: stored for path, stored in commit.files.items() if path.startswith(prefix)}
    if folder and not inside:
        raise Refusal(404, f'"{folder}" does not exist on this revision', "EntryNotFound")
    folders: set[str] = set()
    for path in inside:
        parts = path.removeprefix(prefix).split("/")[:-1]
        folders |= {prefix + "/".join(parts[: n + 1]) for n in range(len(parts) if recursive else min(1, len(parts)))}
    listed = [entry(p, f) for p, f in inside.items() if recursive or "/" not in p.removeprefix(prefix)]
    listed += [directory(p) for p in folders]
    return sorted(listed, key=lambda e: e["path"])


def directory(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}


def front_matter(text: bytes) -> Any:
    """The YAML block at the top of a README, None without one."""
    found = re.match(r"\ufeff?---\r?\n(.*?)\r?\n---\s*?(?:\n|$)", text.decode("utf-8"), re.DOTALL)
    return None if found is None else yaml.safe_load(found.group(1))


def problems_of_card(text: bytes) -> list[str]:
    """What the Hub would refuse in the metadata of a card; a small part of its rules."""
    try:
        data = front_matter(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return [f"the YAML cannot be read: {error}"]
    if data is None:
        return []
    if not isinstance(data, dict):
        return ["the YAML is no mapping"]
    problems = []
    for key in ("tags", "size_categories", "task_categories", "configs", "model-index"):
        if key in data and not isinstance(data[key], list):
            problems.append(f'"{key}" must be an array')
    problems += [f'"tags" holds {t!r}' for t in data.get("tags") or () if not isinstance(t, str)]
    problems += [f'"size_categories" holds {s!r}' for s in data.get("size_categories") or () if s not in SIZES]
    if not isinstance(data.get("license", ""), str | list):
        problems.append('"license" must be a string or an array')
    if data.get("license") != "other" and "license_name" in data:
        problems.append('"license_name" needs license: other')
    for config in data.get("configs") or ():
        if not isinstance(config, dict) or not isinstance(config.get("config_name"), str):
            problems.append('each of "configs" needs a config_name')
    return problems


def info(repo: Repo, commit: Commit, blobs: bool) -> dict[str, Any]:
    readme = commit.files.get("README.md")
    card = (front_matter(readme.content) if readme else None) or {}
    siblings = []
    for path, stored in sorted(commit.files.items()):
        sibling: dict[str, Any] = {"rfilename": path}
        if blobs:
            sibling |= {"size": len(stored.content), "blobId": stored.oid}
            if stored.lfs is not None:
                sibling["lfs"] = {"sha256": stored.lfs, "size": len(stored.content), "pointerSize": 130}
        siblings.append(sibling)
    found = {
        "_id": hashlib.sha1(repo.id.encode()).hexdigest()[:24], "id": repo.id, "author": repo.id.partition("/")[0],
        "sha": commit.sha, "lastModified": DATE, "createdAt": DATE, "private": repo.private, "gated": repo.gated,
        "disabled": False, "downloads": 0, "likes": 0, "tags": list(card.get("tags") or ()), "cardData": card,
        "siblings": siblings,
    }  # fmt: skip
    if repo.kind == "models":
        found["modelId"] = repo.id
    if repo.kind == "spaces":
        found |= {"sdk": repo.sdk, "runtime": {"stage": "RUNNING", "hardware": {"current": None, "requested": None}}}
    return found


# --- actions


@dataclass
class Asked:
    """One request, taken apart."""

    hub: Hub
    method: str
    path: str
    query: dict[str, list[str]]
    user: str | None
    body: bytes
    headers: Any

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def flag(self, name: str) -> bool:
        return self.query.get(name, ["false"])[0].lower() in ("1", "true")


def whoami(asked: Asked) -> Answer:
    if asked.user is None:
        raise Refusal(401, "Invalid username or password.")
    orgs = [{"type": "org", "name": n} for n in NAMESPACES if n != OWNER] if asked.user == OWNER else []
    role = "write" if asked.user == OWNER else "read"
    token = {"accessToken": {"displayName": "test", "role": role}}
    return 200, {"type": "user", "name": asked.user, "fullname": asked.user, "orgs": orgs, "auth": token}, {}


def create(asked: Asked) -> Answer:
    wanted = asked.json()
    kind = wanted.get("type", "model") + "s"
    repo_id = f"{wanted.get('organization') or asked.user}/{wanted['name']}"
    if asked.user is None:
        raise Refusal(401, "Invalid username or password.")
    if not owns(asked.user, repo_id):
        raise Refusal(403, f"You don't have the rights to create a {kind[:-1]} under the namespace {repo_id}")
    url = f"{asked.hub.endpoint}/{KINDS[kind]}{repo_id}"
    if (kind, repo_id) in asked.hub.repos:
        return 409, {"error": "You already created this repo", "url": url}, {}
    private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    repo = Repo(kind, repo_id, private, sdk=wanted.get("sdk"))
    attributes = "".join(f"*{ending} filter=lfs diff=lfs merge=lfs -text\n" for ending in sorted(LFS_ENDINGS))
    repo.add("main", "initial commit", {".gitattributes": Stored(attributes.encode())})
    asked.hub.repos[(kind, repo_id)] = repo
    return 200, {"url": url, "name": repo_id, "id": repo_id}, {}


def delete(asked: Asked) -> Answer:
    wanted = asked.json()
    kind = wanted.get("type", "model") + "s"
    repo = readable(asked.hub, kind, f"{wanted.get('organization') or asked.user}/{wanted['name']}", asked.user)
    writable(repo, asked.user)
    del asked.hub.repos[(kind, repo.id)]
    return 200, {}, {}


def validate(asked: Asked) -> Answer:
    problems = problems_of_card(asked.json()["content"].encode())
    return (400 if problems else 200), {"errors": [{"message": p} for p in problems], "warnings": []}, {}


def repo_info(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    return 200, info(repo, repo.at(rest[0] if rest else "main"), asked.flag("blobs")), {}


def repo_tree(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    files_readable(repo, asked.user)
    listed = tree(repo.at(rest[0]), "/".join(rest[1:]), asked.flag("recursive"))
    if asked.flag("expand"):
        last = {"id": repo.at(rest[0]).sha, "title": repo.at(rest[0]).title, "date": DATE}
        listed = [{**e, "lastCommit": last} for e in listed]
    return 200, listed, {}


def paths_info(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    files_readable(repo, asked.user)
    is_json = asked.headers.get("Content-Type", "").startswith("application/json")
    paths = asked.json()["paths"] if is_json else parse_qs(asked.body.decode())["paths"]
    commit, found = repo.at(rest[0]), []
    for path in paths:
        if path in commit.files:
            found.append(entry(path, commit.files[path]))
        elif any(name.startswith(f"{path}/") for name in commit.files):
            found.append(directory(path))
    return 200, found, {}


def refs(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    def listed(names: dict[str, str], kind: str) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": sha} for n, sha in names.items()]

    branches = {name: sha for name, sha in repo.branches.items() if not name.startswith("refs/")}
    pulls = {name: sha for name, sha in repo.branches.items() if name.startswith("refs/")}
    requests = [{"name": n.removeprefix("refs/pr/"), "ref": n, "targetCommit": sha} for n, sha in pulls.items()]
    tags = listed(repo.tags, "tags")
    return 200, {"branches": listed(branches, "heads"), "converts": [], "tags": tags, "pullRequests": requests}, {}


def commits(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    found, sha = [], repo.at(rest[0]).sha or None
    while sha is not None:
        commit = repo.commits[sha]
        authors = [{"user": OWNER}]
        found.append({"id": sha, "title": commit.title, "message": "", "date": DATE, "authors": authors})
        sha = commit.parent
    return 200, found, {}


def settings(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    writable(repo, asked.user)
    wanted = asked.json()
    if "visibility" in wanted:
        repo.private = wanted["visibility"] == "private"
    repo.private = bool(wanted.get("private", repo.private))
    repo.gated = wanted.get("gated", repo.gated)
    return 200, {"private": repo.private, "gated": repo.gated}, {}


def auth_check(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    files_readable(repo, asked.user)
    if rest == ["write"]:
        writable(repo, asked.user)
    return 200, {}, {}


def tag(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    writable(repo, asked.user)
    if asked.method == "DELETE":
        if repo.tags.pop(rest[0], None) is None:
            raise Refusal(404, "no such tag", "RevisionNotFound")
        return 200, {}, {}
    name, sha = asked.json()["tag"], repo.at(rest[0]).sha
    if name in repo.tags:
        raise Refusal(409, "Tag reference exists already")
    repo.tags[name] = sha
    return 200, {}, {}


def branch(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    writable(repo, asked.user)
    if asked.method == "DELETE":
        if repo.branches.pop(rest[0], None) is None:
            raise Refusal(404, "no such branch", "RevisionNotFound")
        return 200, {}, {}
    if rest[0] in repo.branches:
        raise Refusal(409, "Reference already exists")
    repo.branches[rest[0]] = repo.at(asked.json().get("startingPoint") or "main").sha
    return 200, {}, {}


def preupload(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    if not asked.flag("create_pr"):
        writable(repo, asked.user)
    there, answers = repo.at(rest[0]).files, []
    for wanted in asked.json()["files"]:
        path, sample = wanted["path"], base64.b64decode(wanted["sample"])
        large = os.path.splitext(path)[1].lower() in LFS_ENDINGS or wanted["size"] > 10_000_000 or b"\0" in sample
        found = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        if path in there:
            found["oid"] = there[path].lfs or there[path].oid
        answers.append(found)
    return 200, {"files": answers}, {}


def lfs_batch(asked: Asked, repo: Repo) -> Answer:
    if asked.user is None:
        raise Refusal(401, "Invalid username or password.")
    answers = []
    for wanted in asked.json()["objects"]:
        answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"], "authenticated": True}
        if wanted["oid"] not in asked.hub.objects:
            place = f"{asked.hub.endpoint}/lfs-objects/{wanted['oid']}"
            verify = {"href": f"{asked.hub.endpoint}/lfs-verify"}
            answer["actions"] = {"upload": {"href": place}, "verify": verify}
        answers.append(answer)
    return 200, {"transfer": "basic", "objects": answers}, {}


def lfs_upload(asked: Asked, oid: str) -> Answer:
    if hashlib.sha256(asked.body).hexdigest() != oid:
        raise Refusal(400, f"the bytes sent are not those of {oid}")
    asked.hub.objects[oid] = asked.body
    return 200, {}, {"ETag": f'"{oid}"'}


def lfs_verify(asked: Asked) -> Answer:
    wanted = asked.json()
    if len(asked.hub.objects.get(wanted["oid"], b"")) != wanted["size"]:
        raise Refusal(404, "the object is not here")
    return 200, {}, {}


def commit(asked: Asked, repo: Repo, rest: list[str]) -> Answer:
    pull_request = asked.flag("create_pr")
    if not pull_request:
        writable(repo, asked.user)
    lines = [json.loads(line) for line in asked.body.splitlines() if line.strip()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    head = repo.at(rest[0])
    if rest[0] not in repo.branches:
        raise Refusal(400, f"{rest[0]} is no branch")
    if header.get("parentCommit") not in (None, head.sha):
        raise Refusal(412, "A commit has happened since. Please refresh and try again.")
    files = dict(head.files)
    for line in lines:
        apply(asked.hub, repo, files, line["key"], line["value"])
    problems = problems_of_card(files["README.md"].content) if "README.md" in files else []
    if problems:
        raise Refusal(400, f"Invalid metadata in README.md: {'; '.join(problems)}")
    target = rest[0]
    if pull_request:
        target = f"refs/pr/{1 + sum(name.startswith('refs/pr/') for name in repo.branches)}"
        repo.branches[target] = head.sha
    sha = repo.add(target, header["summary"], files)
    place = f"{asked.hub.endpoint}/{KINDS[repo.kind]}{repo.id}"
    done = {"success": True, "commitOid": sha, "commitUrl": f"{place}/commit/{sha}", "hookOutput": ""}
    if pull_request:
        done["pullRequestUrl"] = f"{place}/discussions/{target.rpartition('/')[2]}"
    return 200, done, {}


def apply(hub: Hub, repo: Repo, files: dict[str, Stored], key: str, value: dict[str, Any]) -> None:
    """One line of a commit."""
    if key == "file":
        files[value["path"]] = Stored(base64.b64decode(value["content"]))
    elif key == "lfsFile":
        if value["oid"] not in hub.objects:
            raise Refusal(400, f"LFS object {value['oid']} of {value['path']} was never uploaded")
        files[value["path"]] = Stored(hub.objects[value["oid"]], value["oid"])
    elif key == "deletedFile":
        if files.pop(value["path"], None) is None:
            raise Refusal(404, f"{value['path']} is not in the repo", "EntryNotFound")
    elif key == "deletedFolder":
        for path in [p for p in files if p.startswith(value["path"].rstrip("/") + "/")]:
            del files[path]
    elif key == "copyFile":
        files[value["path"]] = repo.at(value.get("srcRevision") or "main").files[value["srcPath"]]
    elif key != "header":
        raise Refusal(400, f"unknown key {key}")


def resolve(asked: Asked, repo: Repo, revision: str, path: str) -> Answer:
    files_readable(repo, asked.user)
    found = repo.at(revision)
    named = {"X-Repo-Commit": found.sha}
    if path not in found.files:
        raise Refusal(404, "Entry not found", "EntryNotFound")
    stored = found.files[path]
    tag_of = f'"{stored.lfs or stored.oid}"'
    named |= {"ETag": tag_of, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
    if stored.lfs is not None:
        named |= {"X-Linked-ETag": tag_of, "X-Linked-Size": str(len(stored.content))}
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("Range", ""))
    if wanted is None:
        return 200, stored.content, named
    total = len(stored.content)
    first = int(wanted[1]) if wanted[1] else max(0, total - int(wanted[2]))
    last = min(int(wanted[2]), total - 1) if wanted[1] and wanted[2] else total - 1
    if first >= total:
        return 416, b"", {**named, "Content-Range": f"bytes */{total}"}
    return 206, stored.content[first : last + 1], {**named, "Content-Range": f"bytes {first}-{last}/{total}"}


ACTIONS: dict[str, Callable[[Asked, Repo, list[str]], Answer]] = {
    "revision": repo_info, "tree": repo_tree, "paths-info": paths_info, "refs": refs, "commits": commits,
    "settings": settings, "auth-check": auth_check, "tag": tag, "branch": branch, "preupload": preupload,
    "commit": commit,
}  # fmt: skip
PLAIN: dict[tuple[str, str], Callable[[Asked], Answer]] = {
    ("GET", "/api/whoami-v2"): whoami,
    ("POST", "/api/repos/create"): create,
    ("DELETE", "/api/repos/delete"): delete,
    ("POST", "/api/validate-yaml"): validate,
    ("POST", "/lfs-verify"): lfs_verify,
}


def answer(asked: Asked) -> Answer:
    if (asked.method, asked.path) in PLAIN:
        return PLAIN[(asked.method, asked.path)](asked)
    if asked.path.startswith("/lfs-objects/") and asked.method == "PUT":
        return lfs_upload(asked, asked.path.rpartition("/")[2])
    parts = [unquote(part) for part in asked.path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= 4 and parts[1] in KINDS:
        repo = readable(asked.hub, parts[1], f"{parts[2]}/{parts[3]}", asked.user)
        if len(parts) == 4:
            return repo_info(asked, repo, [])
        if parts[4] in ACTIONS:
            return ACTIONS[parts[4]](asked, repo, parts[5:])
    kind = parts.pop(0) if parts[0] in KINDS else "models"
    if len(parts) >= 5 and parts[2] == "resolve" and asked.method in ("GET", "HEAD"):
        repo = readable(asked.hub, kind, f"{parts[0]}/{parts[1]}", asked.user)
        return resolve(asked, repo, parts[3], "/".join(parts[4:]))
    if asked.path.endswith(".git/info/lfs/objects/batch") and len(parts) >= 2:
        repo = readable(asked.hub, kind, f"{parts[0]}/{parts[1].removesuffix('.git')}", asked.user)
        return lfs_batch(asked, repo)
    raise Refusal(404, f"nothing here: {asked.method} {asked.path}")


# --- server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self.serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def serve(self) -> None:
        hub, where = self.server.hub, urlsplit(self.path)
        failure = hub.failure_of(f"{self.command} {where.path}")
        if failure is not None and failure.drop == "request":
            self.note(where.path, 0, None)
            self.rfile.read(min(1, int(self.headers.get("Content-Length", 0))))
            self.hang_up()
            return
        body, user = self.body(), None
        try:
            user = hub.user_of(self.headers.get("Authorization"))
            if failure is not None and failure.status is not None:
                raise Refusal(failure.status, "made to fail")
            query = parse_qs(where.query)
            with hub.lock:
                done = answer(Asked(hub, self.command, where.path, query, user, body, self.headers))
        except Refusal as refusal:
            named = {"X-Error-Message": refusal.message, **(failure.headers if failure else {})}
            named |= {"X-Error-Code": refusal.code} if refusal.code else {}
            done = refusal.status, {"error": refusal.message}, named
        self.note(where.path, done[0], user)
        if failure is not None and failure.drop == "answer":
            self.hang_up()
        else:
            self.reply(*done)

    def note(self, path: str, status: int, user: str | None) -> None:
        hub = self.server.hub
        with hub.lock:
            hub.requests.append(Request(self.command, unquote(path), status, user))

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def reply(self, status: int, content: Any, headers: dict[str, str]) -> None:
        is_file = isinstance(content, bytes)
        data = content if is_file else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**({} if is_file else {"Content-Type": "application/json"}), **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | ValueError):  # a client that was killed, or hung up on
            super().handle_error(request, client_address)


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    """A Hub that serves until the block ends."""
    hub = Hub()
    with _Server(hub) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
