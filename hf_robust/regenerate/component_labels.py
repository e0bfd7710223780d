"""Which components of a class are spurious: a review of their sheets, and the list that people make."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

from ..review.base import COMPONENT_LABELS
from ..review.decisions import Rule
from ..review.folder import Review
from ..review.people import component_list
from ..review.reliability import Thresholds
from ..review.tasks import Candidate, make_review
from ..spurious.sheet_list import read_component_sheets
from .own_sentinels import own_sentinels
from .review import State, attend, facts_of, write_facts
from .stage import row_id


@dataclass(frozen=True)
class LabellingSettings:
    """How people are asked.

    workers         different people for every component; two that agree decide it.
    images_a_task   components of one sitting, sentinels aside; sentinel_rate their share of a task.
    own_sentinels   folder with positive/<class>/<sheet of a component that surely is spurious> and negative/<class>/….
    """

    workers: int = 3
    images_a_task: int = 20
    sentinel_rate: float = 0.2
    own_sentinels: str | None = None
    seed: int = 0


def make_labelling(folder: Path, sheets: Path, settings: LabellingSettings) -> Review:
    """The review in `folder` that asks, of every component in `sheets`, whether it is spurious.

    sheets  what `neural-pca show` wrote. Errors as in `read_component_sheets`, `own_sentinels` and `make_review`.
    """
    own = own_sentinels(settings.own_sentinels)
    content, places, images = dict(own.content), {}, []
    listed = read_component_sheets(sheets)
    for sheet in listed:
        digest = hashlib.sha256(sheet.picture.read_bytes()).hexdigest()
        key = row_id({"class": sheet.index, "component": sheet.component, "model": sheet.model, "picture": digest})
        content[key], places[key] = sheet.picture, [sheet.index, sheet.component]
        images.append(Candidate(key, sheet.subject))
    review = make_review(
        folder, COMPONENT_LABELS, images, own.candidates, lambda candidate: content[candidate.row_id].read_bytes(),
        workers=settings.workers, images_a_task=settings.images_a_task, sentinel_rate=settings.sentinel_rate,
        seed=settings.seed,
    )  # fmt: skip
    about = {"models": sorted({sheet.model for sheet in listed}), "settings": asdict(settings)}
    rule = Rule(settings.workers, min(2, settings.workers))
    thresholds = Thresholds(fewest_of_a_kind=1)  # there are few sheets: most people do one task, with one of a kind
    write_facts(review, rule, thresholds, about=about, components=places)
    return review


def judged_components(folder: Path) -> tuple[dict[int, list[int]], State]:
    """ImageNet-1k index -> the components that people judged spurious so far, and where the review stands."""
    facts = facts_of(folder, "components")
    state = attend(folder)
    rule = Rule(**facts["rule"])
    places = {key: (int(index), int(component)) for key, (index, component) in facts["components"].items()}
    found = component_list(
        state.review.items, state.answers, state.review.mode, places, trusted=state.trust.kept, rule=rule
    )
    return found, state
