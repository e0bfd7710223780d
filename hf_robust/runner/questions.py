"""Which two categories each picture is asked about: the true one, and the one that a zero-shot model confuses it with.

The most confusing category is the zero-shot model's first choice, or its second where the first is right (arXiv
2403.18775).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from ..data import Rows, open_rows
from ..labels import imagenet_d_categories
from ..metrics.vqa import NOT_ASKED, option_name, plain_words
from ..predictions.parts import RowTable, is_source_folder, source_folder
from ..predictions.plan import PLAN_FILE, canonical, read_json
from ..predictions.read import has_head, read_source

DATASET = "imagenet-d"
TRUTH, CONFUSING = "truth", "confusing"  # columns with the two options as they stand in the question
_CHOICES = ("top1_prediction", "top2_prediction")  # columns of the data set
_PATH, _FIRST, _SECOND = "image_dir", "top1_pred_cate", "top2_pred_cate"  # of the released questions/*.csv


@dataclass(frozen=True)
class Ranking:
    """The first and second choice of a zero-shot model for pictures, by id, and in words which model that was."""

    origin: str
    choices: Mapping[str, tuple[str | None, str | None]]


def open_pictures(
    built: Path | None = None, *, dataset: str = DATASET, repo: str | None = None
) -> tuple[Rows, Ranking]:
    """The pictures of ImageNet-D or a set in its manner, and the choices that came with it, in its `questions/*.csv`.

    built, repo  as for `data.open_rows`, which raises MissingDataError where the set is nowhere.
    """
    rows = open_rows(dataset, built=built, repo=repo, columns=_CHOICES)
    groups = {name: values for name, values in rows.table.groups.items() if name not in _CHOICES}
    first, second = (rows.table.groups.get(name, [None] * len(rows.table)) for name in _CHOICES)
    choices = dict(zip(rows.table.ids, zip(first, second, strict=True), strict=True))
    ranking = Ranking("questions of the data set", choices)
    return replace(rows, table=replace(rows.table, groups=groups)), ranking


def ranking_of_files(paths: Sequence[Path], rows: Rows) -> Ranking:
    """The choices in tab-separated files with the columns of the released `questions/*.csv`.

    A path in `image_dir` stands for the picture of `rows` whose id ends in the same folder and file name; pictures that
    are not there are skipped. ValueError for a file without the columns, or without any picture of `rows`.
    """
    known = _by_ending(rows.table.ids)
    choices: dict[str, tuple[str | None, str | None]] = {}
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(content)
        here = {_found(row[_PATH] or "", known): (row[_FIRST], row[_SECOND]) for row in _read(content, path)}
        here.pop(None, None)
        if not here:
            raise ValueError(
                f"expected pictures of {rows.dataset} in the column {_PATH} of {path}, got none: "
                "its paths must end in category/name.png"
            )
        choices |= {key: pair for key, pair in here.items() if key is not None}
    return Ranking(f"question files (SHA-256 {digest.hexdigest()[:12]})", choices)


def _by_ending(ids: Sequence[str]) -> dict[str, str | None]:
    """Ids by themselves and by their folder and file name, None where several end so."""
    known: dict[str, str | None] = {}
    for key in ids:
        ending = "/".join(key.split("/")[-2:])
        known[ending] = None if ending in known else key
    return {**known, **{key: key for key in ids}}


def _found(path: str, known: Mapping[str, str | None]) -> str | None:
    steps = path.split("/")
    return known.get("/".join(steps[-3:])) or known.get("/".join(steps[-2:]))


def _read(content: bytes, path: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(content.decode("utf-8-sig").splitlines(), delimiter="\t"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"expected a tab-separated text file, got {path} ({error})") from error
    lacking = [name for name in (_PATH, _FIRST, _SECOND) if not rows or rows[0].get(name) is None]
    if lacking:
        raise ValueError(f"expected tab-separated columns {_PATH}, {_FIRST}, {_SECOND} in {path}, got it without "
                         f"{', '.join(lacking)}: see questions/*.csv of the released data")  # fmt: skip
    return rows


def ranking_of_run(run: Path, dataset: str = DATASET) -> Ranking:
    """The choices of a zero-shot model of this package over the 113 categories, from its stored predictions.

    LookupError where the run is not one of a zero-shot model on that set.
    """
    folder = source_folder(run, dataset, "model")
    if not is_source_folder(folder) or not has_head(run, DATASET):
        raise LookupError(
            f"expected predictions of a zero-shot model on {dataset} in {run}, got none: run `hf-robust evaluate "
            f"--model open_clip/… --benchmark` with it first"
        )
    read = read_source(folder, head=DATASET)
    names = [category.folder for category in imagenet_d_categories()]
    order = np.argsort(-read.outputs.logits, axis=1, kind="stable")[:, :2]
    choices = {key: (names[first], names[second]) for key, (first, second) in zip(read.outputs.ids, order, strict=True)}
    model = read_json(run / PLAN_FILE, ["model"])["model"]
    return Ranking(f"zero-shot run {run.name} of {model}", choices)


def most_confusing(truth: str, first: str | None, second: str | None) -> str | None:
    """The option to ask about beside the true one: the first choice, or the second where the first is right.

    Names may be folder names, display names or options. None where there is no such choice.

    >>> most_confusing("pen", "can_opener", "pen"), most_confusing("pen", "pen", "coffee/french_press")
    ('can opener', 'coffee or french press')
    >>> most_confusing("pen", "pen", None) is None
    True
    """
    options = [option_of(name) for name in (first, second) if name and plain_words(name)]
    return next((option for option in options if option != option_of(truth)), None)


def option_of(name: str) -> str:
    """The option that a folder name, display name or option of one of the 113 categories stands for.

    >>> option_of("coffee_or_french_press"), option_of("binder_closed")
    ('coffee or french press', 'binder (closed)')
    """
    return _options().get(plain_words(name), option_name(name))


@cache
def _options() -> dict[str, str]:
    options = {}
    for category in imagenet_d_categories():
        option = option_name(category.display_name)
        for name in (category.folder, category.display_name, option):
            options[plain_words(name)] = option
    return options


def with_questions(rows: Rows, ranking: Ranking) -> Rows:
    """The rows that can be asked about, with the columns `truth` and `confusing`.

    Pictures without a second option are left out and counted in `differences`. ValueError where none is left.
    """
    table = rows.table
    truths = [option_of(category) for category in table.groups["category"]]
    pairs = [ranking.choices.get(key, (None, None)) for key in table.ids]
    confusing = [most_confusing(truth, *pair) for truth, pair in zip(truths, pairs, strict=True)]
    kept = [i for i, option in enumerate(confusing) if option is not None]
    if not kept:
        raise ValueError(
            f"expected a most confusing category for pictures of {rows.dataset} from the {ranking.origin}, got none "
            f"for all {len(table)}: give --questions FILE (the released questions/*.csv), or --confusing RUN"
        )
    groups = {**table.groups, TRUTH: truths, CONFUSING: confusing}
    asked = RowTable(
        tuple(table.ids[i] for i in kept),
        tuple(table.keys[i] for i in kept),
        tuple(table.labels[i] for i in kept),
        {name: [values[i] for i in kept] for name, values in groups.items()},
    )
    missing = len(table) - len(kept)
    lacks = (f"{missing} of {len(table)} pictures {NOT_ASKED}",) if missing else ()
    return replace(
        rows,
        table=asked,
        read=lambda i: rows.read(kept[i]),
        complete=rows.complete and not missing,
        differences=(*rows.differences, *lacks),
    )


def questions_hash(rows: Rows) -> str:
    """SHA-256 over picture and both options of every question."""
    groups = rows.table.groups
    asked = zip(rows.table.ids, groups[TRUTH], groups[CONFUSING], strict=True)
    return hashlib.sha256(canonical([list(each) for each in asked]).encode()).hexdigest()
