"""Answers of vision-language models on disk -> named values with intervals, rows like those of every benchmark."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..benchmarks import Value
from ..benchmarks.spec import Sampling
from ..metrics.vqa import NOT_ASKED, QUESTION, Choice, Matching, choice, vqa_accuracy
from ..predictions.parts import part_path, present_parts
from ..predictions.plan import DamagedError, SourcePlan, read_json
from .rows import REPLICATES, Result, failure, interval, versions

RESULTS = "vqa"  # folder in RUNS for results, and for what is known of models that could not be asked
HEADLINE = "vqa_accuracy"
_DATASET, _SUFFIX = "imagenet-d", "-vqa"
_PLAN, _RULE = "questions.json", "vqa"  # as runner.answers writes them
_PLAN_FIELDS = ("model", "weights", "confusing_from", "orders", "likelihood", "most_tokens", "dtype", "device", "limit")
ENOUGH = 0.5  # of the answers must name one option, or a note says that vqa_accuracy stands on few
_CHANCE = "two options, chance 0.5"


@dataclass(frozen=True)
class Answers:
    """The choices of a model for N pictures; `swapped` and likelihoods None where they were not asked for.

    published, words  (N,) what the answer names, by substrings and by whole words, the true option first.
    swapped           (N,) the same as `published`, the true option second.
    likely, likely_swapped, likely_per_token  bool (N,): whether the true option is the more likely answer; ties are no.
    nuisance          (N,).
    """

    published: NDArray[np.str_]
    words: NDArray[np.str_]
    swapped: NDArray[np.str_] | None
    likely: NDArray[np.bool_] | None
    likely_swapped: NDArray[np.bool_] | None
    likely_per_token: NDArray[np.bool_] | None
    nuisance: NDArray[np.str_]

    def select(self, keep: NDArray[np.bool_]) -> Answers:
        """The pictures where `keep` is true."""
        kept = {name: values[keep] for name, values in vars(self).items() if values is not None}
        return replace(self, **kept)


def score_answers(runs: Path, *, replicates: int = REPLICATES) -> list[Result]:
    """One result a model, metric and nuisance, of every run of questions in `runs`.

    A run whose answers cannot be read, and a model that could not be asked, is one result whose metric and value are
    None and whose reason says why. Raises LookupError where there is neither.
    """
    found = sorted(path.parent for path in runs.glob(f"*/{_PLAN}"))
    failed = _failed_models(runs / RESULTS)
    if not found and not failed:
        raise LookupError(f"expected answers in {runs}, got none: `hf-robust vqa --model … --out {runs}` writes them")
    return [*failed, *(row for run in found for row in score_answers_of(run, replicates=replicates))]


def _failed_models(folder: Path) -> list[Result]:
    """A result for each model that `runner.record_failure` remembers in that folder."""
    records = [read_json(path, ["model", "reason"]) for path in sorted(folder.glob("failures/*.json"))]
    return [failure(record["model"], None, None, "", record["reason"]) for record in records]


def score_answers_of(run: Path, *, replicates: int = REPLICATES) -> list[Result]:
    """The same for the folder of one run."""
    folder = next(iter(sorted(run.glob(f"*.{_RULE}"))), run / f"{_DATASET}.{_RULE}")  # one set a run
    try:
        plan = read_json(run / _PLAN, _PLAN_FIELDS)
        source = SourcePlan.read(folder)
        present = present_parts(folder, source)
        if not present:
            raise DamagedError(f"expected answers in {folder}, got none yet: run the same `vqa` again")
        table = pa.concat_tables([pq.read_table(part_path(folder, i)) for i in present])
        good = table.filter(pa.array([error is None for error in table["error"].to_pylist()]))
        answers = read_answers(good)
    except (OSError, ValueError, LookupError) as error:
        reason = str(error.args[0] if error.args else error)
        return [failure(run.name, folder.stem + _SUFFIX, "model", run.name, reason)]
    shared = _shared(run, plan, source, table, good)
    missing = len(source.parts) - len(present)
    lacks = [f"{missing} of {len(source.parts)} parts have no answers yet: run the same `vqa` again"] if missing else []
    whole = "the official set" if source.dataset == _DATASET else "whole"
    lacks += [f"{source.dataset} is not {whole}: {text}" for text in source.differences[:1]]
    lacks += [text for text in source.differences[1:] if NOT_ASKED in text]
    lacks += [f"{shared['n_failed']} pictures could not be read"] if shared["n_failed"] else []
    notes = [*lacks, *_cut(good, plan), *_few(answers)]
    return [
        _row(shared, metric, split, value, lacks=lacks, notes=notes, replicates=replicates)
        for split, part in _splits(answers)
        for metric, value in values_of(part)
    ]


def read_answers(table: pa.Table) -> Answers:
    """The choices in a table of answers without errors."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    pairs = list(zip(columns["truth"], columns["confusing"], strict=True))

    def chosen(name: str, matching: Matching) -> NDArray[np.str_]:
        texts = zip(columns[name], pairs, strict=True)
        return np.array([choice(text, *pair, matching=matching) for text, pair in texts], dtype=np.str_)

    def likelier(name: str, *, per_token: bool = False) -> NDArray[np.bool_] | None:
        if not pairs or any(values is None for values in columns[name]):
            return None
        sums = np.array(columns[name], dtype=np.float64)
        means = sums / np.array(columns["option_tokens"]) if per_token else sums
        return np.asarray(means[:, 0] > means[:, 1])

    both = bool(pairs) and all(text is not None for text in columns["answer_swapped"])
    return Answers(
        published=chosen("answer", "published"),
        words=chosen("answer", "words"),
        swapped=chosen("answer_swapped", "published") if both else None,
        likely=likelier("log_likelihood"),
        likely_swapped=likelier("log_likelihood_swapped"),
        likely_per_token=likelier("log_likelihood", per_token=True),
        nuisance=np.array(columns["nuisance"], dtype=np.str_),
    )


def _splits(answers: Answers) -> Iterator[tuple[str, Answers]]:
    yield "all", answers
    for nuisance in ("background", "texture", "material"):
        keep = answers.nuisance == nuisance
        if keep.any():
            yield nuisance, answers.select(keep)


def values_of(answers: Answers) -> Iterator[tuple[str, Value]]:
    """Every metric of these answers, the published quantity first."""
    yield HEADLINE, _accuracy(answers.published)
    yield "vqa_answered", _answered(answers.published)
    yield "vqa_accuracy_of_all", _share(answers.published == "true", "answers that name both or neither count as wrong")
    yield "vqa_accuracy_words", _accuracy(answers.words)
    yield "vqa_answered_words", _answered(answers.words)
    if answers.swapped is not None:
        yield "vqa_accuracy_swapped", _accuracy(answers.swapped)
        yield "vqa_accuracy_both_orders", _pooled(answers.published, answers.swapped)
        changed = answers.published != answers.swapped
        yield "vqa_order_changed", _share(changed, "answers that name something else when the options are swapped")
    if answers.likely is not None and answers.likely_per_token is not None:
        yield "vqa_likelihood_accuracy", _share(answers.likely, f"the likelier option, summed; {_CHANCE}")
        mean = _share(answers.likely_per_token, f"the likelier option, mean over its tokens; {_CHANCE}")
        yield "vqa_likelihood_per_token", mean
    if answers.likely is not None and answers.likely_swapped is not None:
        yield "vqa_likelihood_both_orders", _mean_of_two(answers.likely, answers.likely_swapped)


def _counts(choices: NDArray[np.str_]) -> dict[str, int]:
    return {f"named_{name}": int((choices == name).sum()) for name in get_args(Choice)}


def _accuracy(choices: NDArray[np.str_]) -> Value:
    counts = _counts(choices)
    n = counts["named_true"] + counts["named_confusing"]
    details = {"estimator": f"answers that name one option; {_CHANCE}", **counts}
    if not n:
        return Value(None, 0, reason=f"none of {len(choices)} answers names exactly one option", details=details)
    return Value(vqa_accuracy(choices.tolist()), n, successes=counts["named_true"], details=details)


def _answered(choices: NDArray[np.str_]) -> Value:
    return _share(np.isin(choices, ("true", "confusing")), "answers that name exactly one option")


def _share(flags: NDArray[np.bool_], estimator: str) -> Value:
    if not len(flags):
        return Value(None, 0, reason="no answer to score")
    hits = int(flags.sum())
    return Value(hits / len(flags), len(flags), successes=hits, details={"estimator": estimator})


def _pooled(first: NDArray[np.str_], second: NDArray[np.str_]) -> Value:
    """Accuracy over the answers to both orders; pictures, not answers, are drawn again for its interval."""
    both = np.stack([first, second])
    right = (both == "true").sum(axis=0)
    answered = np.isin(both, ("true", "confusing")).sum(axis=0)
    right, answered = right[answered > 0], answered[answered > 0]
    details = {"estimator": f"answers to both orders that name one option; {_CHANCE}", "answers": int(answered.sum())}
    if not len(answered):
        return Value(None, 0, reason="no answer to either order names exactly one option", details=details)
    sampling = Sampling(lambda weights: (weights @ right) / (weights @ answered), len(answered))
    return Value(float(right.sum() / answered.sum()), len(answered), details=details, sampling=sampling)


def _mean_of_two(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Value:
    each = (first.astype(np.float64) + second) / 2
    sampling = Sampling(lambda weights: (weights @ each) / weights.sum(axis=1), len(each))
    details = {"estimator": f"the likelier option, summed, mean over both orders; {_CHANCE}"}
    return Value(float(each.mean()), len(each), details=details, sampling=sampling)


def _cut(table: pa.Table, plan: Mapping[str, Any]) -> list[str]:
    cut = sum(ended is False for name in ("ended", "ended_swapped") for ended in table[name].to_pylist())
    return [f"{cut} answers were cut at {plan['most_tokens']} tokens: --max-new-tokens gives more"] if cut else []


def _few(answers: Answers) -> list[str]:
    named = float(np.isin(answers.published, ("true", "confusing")).mean()) if len(answers.published) else 1.0
    few = f"only {named:.0%} of the answers name one option: vqa_accuracy says nothing about the others"
    return [few] if named < ENOUGH else []


def _shared(run: Path, plan: Mapping[str, Any], source: SourcePlan, table: pa.Table, good: pa.Table) -> dict[str, Any]:
    """What all rows of a run have in common."""
    base = failure(str(plan["model"]), source.dataset + _SUFFIX, "model", run.name, "")
    facts = {name: value for name, value in plan.items() if name not in ("model", "preprocessing")}
    return {
        **base,
        "protocol": protocol(run, plan, source, len(good)),
        "plan": facts,
        "subset": plan["limit"] is not None,
        "n_failed": len(table) - len(good),
    }


def protocol(run: Path, plan: Mapping[str, Any], source: SourcePlan, rows: int) -> dict[str, Any]:
    """Everything that the values of a run depend on."""
    own = {} if source.dataset == _DATASET else {"set": "regenerated: numbers are not those of ImageNet-D"}
    return {
        **own,
        "question": QUESTION,
        "second_option": f"most confusing category by the {plan['confusing_from']}",
        "order": "true option first, as published, where the metric names no other order",
        "decoding": f"greedy, at most {plan['most_tokens']} tokens; published numbers were sampled at temperature 0.2",
        "matching": "names and synonyms as substrings, as released, where the metric does not say words",
        "synonyms": f"ours, the released list is not public (SHA-256 {synonyms_hash()[:12]})",
        "denominator": "answers that name both options or neither are left out, as published; see vqa_answered",
        "preprocessing_mode": "model",
        "preprocessing": {"test": dict(source.preprocessing)},
        "rows": {"test": rows},
        "data_fingerprints": {"test": source.fingerprint()},
        "data_differences": {"test": list(source.differences)},
        "software": versions(run),
    }


@cache
def synonyms_hash() -> str:
    """SHA-256 of the list of synonyms."""
    return hashlib.sha256((files("hf_robust") / "assets" / "vqa_synonyms.csv").read_bytes()).hexdigest()


def _row(
    shared: Mapping[str, Any], metric: str, split: str, value: Value, *,
    lacks: list[str], notes: list[str], replicates: int,
) -> Result:  # fmt: skip
    return {
        **shared,
        "metric": metric,
        "split": split,
        "value": value.value,
        "n": value.n,
        "ci95": interval(value, replicates=replicates),
        "complete": not lacks and value.value is not None,
        "headline": metric == HEADLINE and split == "all",
        "reason": value.reason,
        "notes": notes,
        "details": dict(value.details),
    }
