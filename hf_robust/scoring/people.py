"""People beside the models: what `review result --to RUNS` wrote into RUNS/people, as rows of the results.

A row of people has the kind "people", a metric of its own and is never a headline: no rank, tie, gate or plot of models
sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..predictions.plan import DamagedError, read_json, write_json
from .rows import Result

PEOPLE = "people"  # the folder in RUNS, and the kind of the rows
METRIC = "human_accuracy"
FORMAT = 1
_COUNTS = (
    "pictures_of_the_set", "asked", "unreadable", "unanswered", "short", "ties", "workers", "workers_dropped",
    "workers_a_picture", "choices",
)  # fmt: skip
_FIELDS = (
    "format", "kind", "benchmark", *_COUNTS, "chance", "set_is_official", "fingerprint", "clean_sentinels", "stated",
    "answers", "majority",
)  # fmt: skip


def is_people(row: Mapping[str, Any]) -> bool:
    """Whether a row of the results is what people got right, not a model."""
    return row.get("kind") == PEOPLE


def write_people(runs: Path, record: Mapping[str, Any]) -> Path:
    """The file RUNS/people/<benchmark>.json with the record of `name_the_class.human_record`; ValueError for others."""
    if not runs.is_dir():
        raise FileNotFoundError(f"expected a folder that `evaluate --out` wrote, got {str(runs)!r}: no folder")
    path = runs / PEOPLE / f"{record['benchmark']}.json"
    _check(record, path)
    write_json(path, dict(record))
    return path


def read_people(path: Path) -> dict[str, Any]:
    """The record in a file of RUNS/people; DamagedError where it is damaged or of something else."""
    try:
        record = read_json(path)
    except DamagedError as error:
        raise _foreign(path, "no JSON object") from error
    _check(record, path)
    return record


def people_rows(runs: Path, models: Sequence[Result]) -> list[Result]:
    """Two rows a benchmark that people named the classes of: their majority, and what one answer is worth.

    models  the rows of the models; people stand beside them, so a benchmark that no model was asked about has none.
    DamagedError names a file of RUNS/people that is no such record.
    """
    benchmarks = {row["benchmark"] for row in models}
    records = [read_people(path) for path in sorted((runs / PEOPLE).glob("*.json"))]
    return [row for record in records if record["benchmark"] in benchmarks for row in _rows(record, models)]


def _rows(record: Mapping[str, Any], models: Sequence[Result]) -> Iterator[Result]:
    majority, answers = record["majority"], record["answers"]
    spread = answers["bootstrap"] if answers["bootstrap"][0] < answers["bootstrap"][1] else None
    ours, theirs = "pictures whose most frequent answer is right; a tie is wrong", "right answers of all answers"
    named = (
        (f"people (majority of {record['workers_a_picture']})", majority, majority["wilson"], ours),
        ("people (one answer)", answers, spread, f"{theirs}; n counts answers, interval over resampled pictures"),
    )
    asked = {
        "people": f"{record['workers']} people, {record['workers_a_picture']} a picture; {record['workers_dropped']} "
        "more did not answer with care and do not count",
        "question": f"which of {record['choices']} names fits the main object (a guess: {record['chance']:.2f})",
    }
    for model, share, interval, estimator in named:
        yield {
            "kind": PEOPLE, "model": model, "benchmark": record["benchmark"], "metric": METRIC, "split": None,
            "ood_score": None, "spufix": None, "value": share["value"], "n": share["n"], "ci95": interval,
            "protocol": asked, "preprocessing": None, "run": "", "plan": {},
            "complete": record["set_is_official"] and not record["short"] and not record["unreadable"],
            "subset": record["asked"] + record["unreadable"] < record["pictures_of_the_set"], "headline": False,
            "n_failed": record["unreadable"], "reason": None, "notes": _notes(record, models),
            "details": {"estimator": estimator},
        }  # fmt: skip


def _notes(record: Mapping[str, Any], models: Sequence[Result]) -> list[str]:
    choices, asked, whole = record["choices"], record["asked"], record["pictures_of_the_set"]
    asked_about = f"all {whole:,} pictures" if asked == whole else f"{asked:,} of {whole:,} pictures"
    notes = [f"asked about {asked_about}; people chose among {choices} names, models among all classes of the protocol"]
    right, all_answers = record["majority"], record["answers"]
    notes.append(
        f"{right['right']:,} of {right['n']:,} pictures right by majority with {record['ties']:,} ties, "
        f"{all_answers['right']:,} of {all_answers['n']:,} answers right, of {record['workers']:,} people"
    )
    if record["short"]:
        notes.append(f"{record['short']:,} pictures have fewer answers that count than asked for")
    if record["unanswered"]:
        notes.append(f"{record['unanswered']:,} pictures have no answer that counts; they are not in n")
    if not record["clean_sentinels"]:
        notes.append("no clean pictures among the tasks: only repeats told who answered with care")
    if record["stated"]:
        notes.append(record["stated"])
    theirs = {
        row["protocol"].get("data_fingerprints", {}).get("test")
        for row in models
        if row["benchmark"] == record["benchmark"] and not row["subset"]
    }
    if theirs - {None, record["fingerprint"]}:
        notes.append("some models were run on another build of the set than people saw")
    return notes


def _check(record: Mapping[str, Any], path: Path) -> None:
    missing = [name for name in _FIELDS if name not in record]
    if missing:
        raise _foreign(path, f"one without {missing[0]}")
    if record["format"] != FORMAT or record["kind"] != PEOPLE:
        raise _foreign(path, f"format {record['format']!r} of kind {record['kind']!r}")
    if record["benchmark"] != path.stem:
        raise _foreign(path, f"one of {record['benchmark']!r}")
    wrong = [name for name in _COUNTS if not _is_count(record[name])]
    wrong += [name for name in ("stated", "fingerprint") if not isinstance(record[name], str)]
    wrong += [name for name in ("set_is_official", "clean_sentinels") if not isinstance(record[name], bool)]
    wrong += [name for name in ("answers", "majority") if not _is_share(record[name])]
    wrong += [] if _is_number(record["chance"]) and 0 < record["chance"] <= 1 else ["chance"]
    wrong += [name for name, least in (("choices", 2), ("workers_a_picture", 1)) if record[name] in range(least)]
    if wrong:
        raise _foreign(path, f"{wrong[0]} {str(record[wrong[0]])[:80]!r}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_share(value: Any) -> bool:
    """Whether it is `right` of `n` with its fraction and two intervals in [0, 1]."""
    if not isinstance(value, Mapping) or not {"right", "n", "value", "wilson", "bootstrap"} <= set(value):
        return False
    if not (_is_count(value["right"]) and _is_count(value["n"]) and 0 < value["n"] >= value["right"]):
        return False
    ends = [*_pair(value["wilson"]), *_pair(value["bootstrap"])]
    return len(ends) == 4 and _is_number(value["value"]) and math.isclose(value["value"], value["right"] / value["n"])


def _pair(value: Any) -> list[float]:
    good = isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
    return list(value) if good and 0 <= value[0] <= value[1] <= 1 else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _foreign(path: Path, got: str) -> DamagedError:
    return DamagedError(
        f"expected people's answers that `hf-robust review result --to` wrote in {path}, got {got}: remove the file, "
        "or write it again"
    )
