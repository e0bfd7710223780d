"""The page of a set's health: tables and the pictures that they speak of, in one file that loads nothing."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data import PictureError, Rows, decode
from ..labels import imagenet_1k_index, imagenet_1k_names
from .answers import FEWEST_STRONG

if TYPE_CHECKING:
    from . import Health

SHOWN = 24  # of each kind of finding; the rest is in health.json
_MEMBERS = 6  # pictures of one group
_SIDE, _QUALITY = 168, 72
_CLASSES = 10  # largest and smallest that are listed


@dataclass(frozen=True)
class Shown:
    """A picture on the page: `source` is a data address, None where it cannot be shown or pictures are switched off."""

    id: str
    source: str | None


@dataclass(frozen=True)
class Card:
    """A finding with its pictures and what is said below them, as (name, value)."""

    pictures: tuple[Shown, ...]
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Findings:
    """One kind of finding: `total` of them, the first of which are shown."""

    title: str
    text: str
    total: int
    cards: tuple[Card, ...]

    @property
    def paired(self) -> bool:
        """Whether a finding shows several pictures beside each other."""
        return any(len(card.pictures) > 1 for card in self.cards)


def write_page(
    found: Health,
    rows: Rows,
    references: Sequence[Rows],
    values: Mapping[str, Any],
    out: Path,
    *,
    images: bool,
) -> Path:
    """Writes health.html and, with all findings, health.json; returns the page. Equal input gives equal bytes.

    images  whether thumbnails of the flagged pictures are in the page.
    """
    show = _thumbnail if images else _nothing
    sections = [s for s in _sections(found, rows, references, show) if s.total]
    out.mkdir(parents=True, exist_ok=True)
    (out / "health.json").write_text(
        json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )
    (out / "health.html").write_text(_render(found, sections, images=images), encoding="utf-8")
    return out / "health.html"


def _render(found: Health, sections: Sequence[Findings], *, images: bool) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup, escape
    except ImportError as error:
        raise ImportError('the page of health needs jinja2: pip install "hf-robust[report]"') from error

    assets = files("hf_robust") / "assets"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["soft"] = lambda text: Markup(re.sub(r"([/_.])(?=[^/_.])", r"\1<wbr>", str(escape(text))))
    template = environment.from_string((assets / "health.html.jinja").read_text(encoding="utf-8"))
    return (
        template.render(
            found=found,
            summary=summary(found),
            sections=sections,
            shown=SHOWN,
            images=images,
            classes=_CLASSES,
            named=_named,
            share=lambda value: f"{100 * value:.1f}",
            style=Markup((assets / "report.css").read_text(encoding="utf-8")),
        )
        + "\n"
    )


def summary(found: Health) -> list[dict[str, str]]:
    """One line a check: how many, and what that means; the table on the terminal and at the head of the page."""
    spread = found.balance
    lines = [
        ("pictures", f"{found.pictures:,}", _not_official(found)),
        (
            "faulty files",
            str(len({i for i, _ in found.faults})),
            "unreadable, with an EXIF orientation, animated or blank",
        ),
        ("same bytes", str(_extra(found.same)), f"copies that could go, in {_count(len(found.same), 'group')}"),
        ("near-duplicates", str(_extra(found.near)), f"likes of another, in {_count(len(found.near), 'group')}"),
        *((f"also in {name}", str(len(there)), "same bytes or nearly so") for name, there in found.leaks),
    ]
    if spread.counts:
        (most, largest), (least, smallest) = spread.counts[0], spread.counts[-1]
        text = f"by {spread.by}: {smallest} ({_named(least)}) to {largest} ({_named(most)}), ratio {spread.ratio:.3g}"
        lines.append(("classes", str(len(spread.counts)), text))
    if spread.missing:
        lines.append(("missing classes", str(len(spread.missing)), ", ".join(map(_named, spread.missing[:3]))))
    if spread.unlabelled:
        lines.append(("without class", str(spread.unlabelled), "pictures that show none of the classes"))
    lines += _answer_lines(found)
    return [{"check": check, "found": number, "what": text} for check, number, text in lines]


def _answer_lines(found: Health) -> list[tuple[str, str, str]]:
    if found.answers is None:
        return []
    answers = found.answers
    doubtful = str(len(answers.suspects)) if len(answers.strong) >= FEWEST_STRONG else "—"
    return [
        ("models", str(len(answers.models)), f"{len(answers.strong)} of them strong: at or above the median accuracy"),
        ("solved", str(len(answers.solved)), "pictures that every model gets right"),
        ("never right", str(len(answers.never)), "pictures that no model gets right"),
        ("doubtful labels", doubtful, "strong models agree on another class"),
    ]


def _not_official(found: Health) -> str:
    if found.complete:
        return ""
    more = len(found.differences) - 1
    return f"not the official set: {found.differences[0]}{f' (and {more} more)' if more else ''}"


def _named(class_name: str) -> str:
    """A class as people know it: the name behind a WordNet id."""
    position = imagenet_1k_index().get(class_name)
    return class_name if position is None else f"{class_name} {imagenet_1k_names()[position]}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _extra(groups: Sequence[Any]) -> int:
    return sum(len(group.members) - 1 for group in groups)


def _sections(
    found: Health, rows: Rows, references: Sequence[Rows], show: Callable[[Rows, int], Shown]
) -> Iterator[Findings]:
    faults = [Card((show(rows, i),), (("", fault),)) for i, fault in found.faults[:SHOWN]]
    yield Findings("Faulty files", "What a model is given is not what people see.", len(found.faults), tuple(faults))
    for title, text, groups in (
        ("Same bytes", "Equal files; all but one of a group count a picture twice.", found.same),
        ("Near-duplicates", "Perceptual hashes that differ in few bits of 256, mirror images included.", found.near),
    ):
        cards = [_group(rows, group, show) for group in groups[:SHOWN]]
        yield Findings(title, text, len(groups), tuple(cards))
    for other, (name, there) in zip(references, found.leaks, strict=True):
        cards = [
            Card((show(rows, leak.position), show(other, leak.reference_position)), (("", _alike(leak)),))
            for leak in there[:SHOWN]
        ]
        text = "The picture of the set first, then its like in the reference."
        yield Findings(f"Also in {name}", text, len(there), tuple(cards))
    suspects = found.answers.suspects if found.answers is not None else ()
    cards = [
        Card(
            (show(rows, s.position),),
            (("label", s.label), ("models say", s.said), ("of strong models", f"{100 * s.share:.0f} %"),
             ("probability", f"{100 * s.probability:.0f} %")),
        )
        for s in suspects[:SHOWN]
    ]  # fmt: skip
    text = (
        "Strong models agree on a class that the label does not allow: a wrong label, a second object, or a picture "
        "that fools them all alike. In a set that was selected against models the last is what it is made of."
    )
    yield Findings("Doubtful labels", text, len(suspects), tuple(cards))


def _group(rows: Rows, group: Any, show: Callable[[Rows, int], Shown]) -> Card:
    more = len(group.members) - _MEMBERS
    facts = [("", _alike(group))] + ([("more", str(more))] if more > 0 else [])
    return Card(tuple(show(rows, i) for i in group.members[:_MEMBERS]), tuple(facts))


def _alike(found: Any) -> str:
    """How alike the pictures of a group or leak are, in words."""
    if found.same_bytes:
        return "same bytes"
    return f"{found.distance} of 256 bits differ{', one of them mirrored' if found.mirrored else ''}"


def _thumbnail(rows: Rows, position: int) -> Shown:
    try:
        picture = decode(rows.read(position))
    except PictureError:
        return _nothing(rows, position)
    picture.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    picture.save(stream, format="JPEG", quality=_QUALITY)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return Shown(rows.table.ids[position], f"data:image/jpeg;base64,{data}")


def _nothing(rows: Rows, position: int) -> Shown:
    return Shown(rows.table.ids[position], None)
