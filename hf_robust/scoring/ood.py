"""Other anomaly scores for detection benchmarks, fitted on stored rows that are not scored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import ood_scores
from ..benchmarks import Outputs, Value
from ..benchmarks.views import Detection, Scored
from ..predictions.parts import is_source_folder, source_folder
from ..predictions.plan import PLAN_FILE, SourcePlan, read_json
from ..predictions.read import read_head, read_label_space, read_source
from ..schema import EMBEDDINGS, FEATURES, LOGITS, Rows
from .load import Loaded
from .rows import Asked, Named

FIT_SOURCE = "imagenet-train"
_SAME = ("weights", "label_space", "prompts", "dtype")  # what two runs must share for one to be fitted on the other

_CORRECTION = ("spufix", "spufix_strength")  # the same; plans of older versions lack them


@dataclass(frozen=True)
class OodOptions:
    """The anomaly scores that are wanted beside the protocol's own, and where their fits come from.

    fit_on  a folder of runs, one run, or the folder of one of its sources; None: the runs that are scored.
    """

    scores: tuple[str, ...] = ()
    fit_on: Path | None = None


def columns_of(asked: Asked, names: Sequence[str]) -> tuple[str, ...]:
    """Output columns beside the logits that these scores read from the run."""
    needs = {ood_scores.find(name).needs for name in names} - {LOGITS}
    return tuple(sorted(_stored(asked, column) for column in needs))


def _stored(asked: Asked, column: str) -> str:
    return EMBEDDINGS if column == FEATURES and asked.plan["prompts"] is not None else column


def detected(asked: Asked, view: Detection, loaded: Loaded, options: OodOptions) -> Iterator[Named]:
    """Every detection measure under every wanted score; one that cannot be had is a null value with its reason."""
    measures = [m for m in asked.benchmark.measures if m.__name__ in ("aupr", "auroc", "fpr95")]
    for name in options.scores:
        try:
            variant, facts = _variant(asked, view, loaded, name, options.fit_on)
            values = [measure(variant) for measure in measures]
        except (LookupError, ValueError) as error:
            reason = str(error.args[0])
            values = [Value(None, len(view.is_ood), reason=reason) for _ in measures]
            facts = {"anomaly_score": name}
        for measure, value in zip(measures, values, strict=True):
            yield Named(measure.__name__, None, value, ("inside", "outside"), ood_score=name, protocol=facts)


def _variant(
    asked: Asked, view: Detection, loaded: Loaded, name: str, place: Path | None
) -> tuple[Detection, dict[str, Any]]:
    one = ood_scores.find(name)
    mask = view.inside.mask
    head = _head(asked, mask) if one.head or one.fit_head else None
    fit = None
    facts: dict[str, Any] = {"anomaly_score": f"{name} ({one.source})", "score_options": dict(one.options)}
    if one.fitter is not None and (one.fit_needed or place is not None):
        folder = _fit_folder(asked, place or asked.run.parent, loaded.reads["inside"].plan.rule)
        rows = _fit_rows(asked, folder, one, mask)
        for half in (view.inside.outputs, view.outside.outputs):
            ood_scores.refuse_overlap(rows.ids, rows.sha256, half.ids, half.sha256)
        scored = Scored(rows, mask)
        fit = ood_scores.fit(name, **_columns(asked, scored, one.needs), head=head, labels=scored.labels[:, 0])
        facts["fit"] = {
            "source": f"{folder.parent.name}/{folder.name}",
            "rows": fit.rows,
            "data_fingerprint": SourcePlan.read(folder).fingerprint(),
            "sha256": fit.sha256(),
        }

    def anomaly(half: Scored) -> NDArray[np.float64]:
        return ood_scores.score(name, **_columns(asked, half, one.needs), head=head, fit=fit)

    return replace(view, anomaly=anomaly), facts


def _columns(asked: Asked, half: Scored, needs: str) -> dict[str, Rows]:
    if needs == LOGITS:
        return {LOGITS: half.logit_rows}
    column = _stored(asked, needs)
    if column not in half.outputs.extra:
        raise LookupError(f"the run holds no {column}: `evaluate` again with --features, or a model that gives them")
    return {needs: half.outputs.extra[column]}


def _head(asked: Asked, mask: Collection[int] | None) -> ood_scores.LinearHead:
    zero_shot = asked.plan["prompts"] is not None
    head = read_head(asked.run, "imagenet-1k" if zero_shot else "classifier")
    if head is None:
        raise LookupError(f"expected the linear head in {asked.run}, got none: `evaluate` again with --features")
    columns = np.arange(1000) if zero_shot else read_label_space(asked.run).imagenet_1k_columns()
    wanted = columns if mask is None else columns[list(mask)]
    if (wanted < 0).any():
        raise ValueError(f"the head has no output for {int((wanted < 0).sum())} classes of the protocol")
    return ood_scores.LinearHead.masked(head, [int(i) for i in wanted])


def _fit_folder(asked: Asked, place: Path, rule: str) -> Path:
    """The source to fit on: `place` itself, or the training pictures in a run of the same model below it."""
    if is_source_folder(place):
        runs, folders = [place.parent], [place]
    else:
        runs = [place] if (place / PLAN_FILE).is_file() else sorted(p.parent for p in place.glob(f"*/{PLAN_FILE}"))
        folders = [source_folder(run, FIT_SOURCE, rule) for run in runs]
    plans = [read_json(run / PLAN_FILE, _SAME) for run in runs]
    for folder, plan in zip(folders, plans, strict=True):
        if is_source_folder(folder) and all(plan.get(name) == asked.plan.get(name) for name in (*_SAME, *_CORRECTION)):
            return folder
    raise LookupError(
        f"expected predictions of {FIT_SOURCE} by the same model under the rule {rule!r} in {place}, got none: "
        f"hf-robust evaluate --benchmark {FIT_SOURCE} --imagenet-train FOLDER (--features where it needs them)"
    )


def _fit_rows(asked: Asked, folder: Path, one: ood_scores.Score, mask: Collection[int] | None) -> Outputs:
    extra = () if one.needs == LOGITS else (_stored(asked, one.needs),)
    # of the protocol's classes: a fifth of the training set
    rows = read_source(folder, mask, extra=extra, on_disk=True).outputs
    if not len(rows):
        raise LookupError(f"expected fit rows of the protocol's classes in {folder}, got none: fit on other pictures")
    return rows


def options_of(names: Sequence[str], fit_on: Path | None) -> OodOptions:
    """Checked options; KeyError lists the known scores."""
    for name in names:
        ood_scores.find(name)
    return OodOptions(tuple(names), fit_on)
