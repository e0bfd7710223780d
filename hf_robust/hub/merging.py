"""Files that others wrote too, changed only where they are ours; and what a push of them would change, shown first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import network

TEXTS = (".md", ".yaml", ".yml")
_ALONE = 8 << 20  # bytes: a run has hundreds of small parts, which one by one would take many minutes
_FRONT = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def metadata(card: str) -> dict[str, Any]:
    """The metadata in front of a card; empty where it has none.

    Raises ValueError where the block in front is no YAML mapping.

    >>> metadata("---\\nlicense: mit\\n---\\n# Model\\n")
    {'license': 'mit'}
    """
    front = _FRONT.match(card)
    return {} if front is None else _parsed(front["yaml"])


def with_entry(card: str, key: str, value: Any) -> str:
    """The card with `value` at the top level of its metadata, every other line as it was; None removes the entry.

    >>> print(with_entry("---\\nlicense: mit # ours\\ntags: [a]\\n---\\n# Model\\n", "tags", ["a", "b"]))
    ---
    license: mit # ours
    tags:
    - a
    - b
    ---
    # Model
    <BLANKLINE>
    """
    front = _FRONT.match(card)
    if front is None:
        return card if value is None else f"---\n{dumped({key: value})}---\n\n{card}"
    before = _parsed(front["yaml"])
    wanted = {name: old for name, old in before.items() if name != key}
    wanted = wanted if value is None else {**wanted, key: value}
    lines = _replaced(front["yaml"], key, "" if value is None else dumped({key: value}))
    # an entry in a style that cannot be cut out by its lines: the whole block is written anew
    yaml = lines if _is(lines, wanted) else dumped(wanted) if wanted else ""
    if "\r\n" in front["yaml"]:
        yaml = yaml.replace("\r\n", "\n").replace("\n", "\r\n")
    return card[: front.start("yaml")] + yaml + card[front.end("yaml") :]


def _replaced(yaml: str, key: str, text: str) -> str:
    lines = yaml.splitlines(keepends=True)
    name = re.compile(rf"(?:{re.escape(key)}|'{re.escape(key)}'|\"{re.escape(key)}\")\s*:")
    start = next((i for i, line in enumerate(lines) if name.match(line)), len(lines))
    end = next((i for i in range(start + 1, len(lines)) if re.match(r"[^\s#-]", lines[i])), len(lines))
    while end > start + 1 and (lines[end - 1].startswith("#") or not lines[end - 1].strip()):
        end -= 1  # a comment or blank line above the next entry belongs to that
    return "".join([*lines[:start], text, *lines[end:]])


def _is(yaml: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return _parsed(yaml) == wanted
    except ValueError:
        return False


def _reads_as(yaml: str, value: Any) -> bool:
    try:
        return bool(loaded(yaml) == value)
    except ValueError:
        return False


def _parsed(yaml: str) -> dict[str, Any]:
    values = loaded(yaml)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"expected a mapping in the metadata of the card, got a {type(values).__name__}: correct it")
    return values


def loaded(text: str) -> Any:
    """What a YAML text says; ValueError where it is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        short = " ".join(str(error).split())
        raise ValueError(f"expected YAML, got text that is none ({short}): correct it on the Hub first") from error


def dumped(value: Any) -> str:
    """YAML in the order of the entries, each list item on lines of its own."""
    import yaml

    text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10**9))
    if _reads_as(text, value):
        return text
    return str(yaml.safe_dump(value, sort_keys=False, width=10**9))  # a character that YAML itself takes for a line end


def with_section(card: str, name: str, body: str) -> str:
    """The card with `body` as its section of that name: in place of the one that is there, else at the end.

    Raises ValueError where the two comments that enclose the section do not stand there once each, in order.
    """
    begin, end = f"<!-- hf-robust: {name} begin -->", f"<!-- hf-robust: {name} end -->"
    new = f"{begin}\n{body.strip()}\n{end}"
    if begin not in card and end not in card:
        return f"{card.rstrip()}\n\n{new}\n" if card.strip() else f"{new}\n"
    if card.count(begin) != 1 or card.count(end) != 1 or card.index(begin) > card.index(end):
        raise ValueError(
            f"expected the comments {begin!r} and {end!r} once each and in this order in the card, got them otherwise: "
            "remove both, and the section is written at the end"
        )
    before, after = card[: card.index(begin)], card[card.index(end) + len(end) :]
    return before + new + after


@dataclass(frozen=True)
class Pending:
    """A push that is ready: what the repo holds now, and what one commit would make of it.

    old     texts on the Hub, for a diff.
    delete  paths that go where they are there.
    """

    repo: str
    repo_type: network.RepoType
    remote: network.Remote
    files: Mapping[str, network.Content]
    message: str
    old: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()

    def changes(self) -> tuple[network.Change, ...]:
        """What happens to each file."""
        return network.changes(self.remote, self.files, delete=self.delete)

    def difference(self) -> str:
        """A unified diff of cards and YAML, from what is on the Hub; "" where they stay the same."""
        new = {p: c.decode() for p, c in self.files.items() if isinstance(c, bytes) and p.endswith(TEXTS)}
        new |= dict.fromkeys((path for path in self.delete if path in self.old), "")
        return "".join(_difference(path, self.old.get(path, ""), text) for path, text in sorted(new.items()))

    def push(self, *, private: bool | None = None, say: network.Say | None = None) -> network.Push:
        """Carry it out in one commit; arguments and errors as `network.push`."""
        return network.push(
            self.repo, self.files, repo_type=self.repo_type, message=self.message, delete=self.delete,
            private=private, alone=_ALONE, say=say,
        )  # fmt: skip


def _difference(path: str, old: str, new: str) -> str:
    source, target = f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null"
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), source, target, lineterm=""))
    return "\n".join([*lines, ""]) if lines else ""
