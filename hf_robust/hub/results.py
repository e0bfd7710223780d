"""The results of a run in its model's repo: .eval_results, model-index metadata, a section of the card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from .. import __version__
from ..benchmarks import Benchmark
from ..benchmarks.miniatures import PREFIX
from ..builders import recipes
from ..predictions.plan import LOG_FILE
from ..report import as_document
from ..report.leaderboard import Result, is_whole, metric_name, ordered
from ..report.notes import brief, notes_of
from ..report.tables import markdown
from ..scoring import results_of_run
from ..scoring.compare import run_of
from . import network
from .merging import Pending, dumped, loaded, metadata, with_entry, with_section
from .patience import check_repo_name

TOOL = "hf-robust"
EVAL_RESULTS = ".eval_results"
FOLDER = "hf-robust"  # of results.json and the plots, in the model's repo
_IMAGENET = "ILSVRC/imagenet-1k"  # of sets that we never publish
_TASK = {"type": "image-classification", "name": "Image Classification"}
_OUR_NOTE = re.compile(rf"{re.escape(TOOL)} \d")


@dataclass(frozen=True)
class Publication:
    """What is said of one model.

    results      every row of one run, failures included.
    plots        file name -> picture, for the card's section.
    date         of the evaluation, ISO 8601; None where the run's log does not tell.
    predictions  data set repo with the predictions that the results follow from; None where they are not published.
    """

    results: tuple[Result, ...]
    plots: Mapping[str, bytes] = field(default_factory=dict)
    date: str | None = None
    predictions: str | None = None


def publication(
    place: Path,
    benchmarks: Mapping[str, Benchmark],
    *,
    allow_incomplete: bool = False,
    report: Path | None = None,
    predictions: str | None = None,
) -> Publication:
    """The results of the one run at `place`, scored again.

    report  folder that `hf-robust report` wrote of this run, for its plots.
    Raises LookupError where there is not exactly one run, and ValueError for miniatures, for a report of other numbers,
    and, unless allow_incomplete, where a row failed, is incomplete or of a subset: each with its reason.
    """
    if predictions is not None:
        check_repo_name(predictions)
    run = run_of(place)
    rows = tuple(_public(row, run) for row in results_of_run(run, benchmarks) if not _is_fit(row, benchmarks))
    if not rows:
        raise LookupError(f"expected results in {run}, got none: `hf-robust evaluate` was asked for no benchmark there")
    if any(str(row["benchmark"]).startswith(PREFIX) for row in rows):
        raise ValueError(f"expected results on whole benchmarks, got miniatures in {run}: those are never published")
    doubts = obstacles(rows)
    if doubts and not allow_incomplete:
        raise ValueError(
            f"expected results on whole benchmarks, got {len(doubts)} that are not: {'; '.join(doubts)}; "
            "finish the run, or --allow-incomplete publishes what there is, marked"
        )
    plots = {} if report is None else plots_of(report, rows)
    return Publication(rows, plots, _date(run), predictions)


def _public(row: Result, run: Path) -> Result:
    """The row without the folders of this machine: in its reason, and before a model's file."""
    model, reason = str(row["model"]), row["reason"]
    shown = model.rpartition("/")[2] if re.match(r"~|/|[A-Za-z]:", model) else model
    return {**row, "model": shown, "reason": None if reason is None else str(reason).replace(f"{run.parent}/", "")}


def _is_fit(row: Result, benchmarks: Mapping[str, Benchmark]) -> bool:
    return row["benchmark"] in benchmarks and benchmarks[row["benchmark"]].fit_only


def obstacles(rows: Sequence[Result]) -> list[str]:
    """Why a benchmark's numbers are not those of the whole benchmark, a text each; a control not run is no obstacle."""
    texts = []
    for benchmark, own in groupby(ordered(rows), key=lambda row: row["benchmark"]):
        found = list(own)
        without = next((r for r in found if r["metric"] is None or (r["headline"] and r["value"] is None)), None)
        valued = [row for row in found if row["value"] is not None]
        if without is not None:
            texts.append(f"{benchmark or without['model']} failed ({without['reason']})")
        elif any(row["subset"] for row in valued):
            texts.append(f"{benchmark} is of a subset (--limit)")
        elif not all(row["complete"] for row in valued):
            note = next((n for row in valued if not row["complete"] for n in notes_of(row)), "no reason given")
            texts.append(f"{benchmark} is incomplete ({brief(note)})")
    return texts


def plots_of(report: Path, rows: Sequence[Result]) -> dict[str, bytes]:
    """The PNG plots of a report folder by their names; ValueError where it was written of other numbers."""
    path = report / "results.json"
    if not path.is_file():
        raise FileNotFoundError(f"expected a folder that `hf-robust report --out` wrote, got {report}: no results.json")
    there = {_place(row): row["value"] for row in json.loads(path.read_text(encoding="utf-8"))["results"]}
    other = [row for row in rows if row["value"] is not None and there.get(_place(row)) != row["value"]]
    if other:
        raise ValueError(
            f"expected the report in {report} to be of the same numbers, got another {other[0]['metric']} of "
            f"{other[0]['benchmark']}: run `hf-robust report` again"
        )
    return {path.name: path.read_bytes() for path in sorted((report / "plots").glob("*.png"))}


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("run", "benchmark", "metric", "split", "preprocessing"))


def _date(run: Path) -> str | None:
    """The day of the last work on a run, as its log says."""
    try:
        last = (run / LOG_FILE).read_text(encoding="utf-8").splitlines()[-1]
        return str(json.loads(last)["time"])[:10]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def files(
    this: Publication, benchmarks: Mapping[str, Benchmark], there: Mapping[str, str], *, name: str
) -> dict[str, bytes | None]:
    """What publishing writes: path in the repo -> its content, None for a file that goes.

    there  README.md and the files below .eval_results as they are on the Hub.
    name   of the model in a model-index that is not there yet.
    All that an earlier publication of ours wrote is replaced; all else, in the same files too, stays.
    """
    old = there.get("README.md", f"---\npipeline_tag: image-classification\n---\n\n# {name}\n")
    return {
        "README.md": card(this, benchmarks, old, name=name).encode(),
        f"{FOLDER}/results.json": _json(as_document(this.results)),
        **{f"{FOLDER}/plots/{plot}": content for plot, content in this.plots.items()},
        **dict(_eval_results(this, benchmarks, there)),
    }


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def _eval_results(
    this: Publication, benchmarks: Mapping[str, Benchmark], there: Mapping[str, str]
) -> Iterator[tuple[str, bytes | None]]:
    """The files below .eval_results: one a benchmark and preprocessing, other people's entries kept."""
    ours: dict[str, list[dict[str, Any]]] = {}
    for row in _valued(this.results):
        benchmark = benchmarks[row["benchmark"]]
        whole = benchmark.split is None
        if benchmark.repo_id is None or not _is_headline(row, benchmark) or is_whole(row) != whole:
            continue
        suffix = "" if row["preprocessing"] == "model" else f".{row['preprocessing']}"
        # the tasks of the data set's eval.yaml: one a split, named after it where there are several
        task = benchmark.name if whole else f"{benchmark.name}-{row['split']}"
        entry = eval_entry(row, benchmark.repo_id, task, date=this.date, predictions=this.predictions)
        ours.setdefault(f"{EVAL_RESULTS}/{benchmark.name}{suffix}.yaml", []).append(entry)
    # of other files only those that hold an entry of ours matter, however they are written
    theirs = {path for path, text in there.items() if path not in ours and _is_eval_results(path) and TOOL in text}
    for path in sorted({*ours, *theirs}):
        before = _entries(path, there[path]) if path in there else []
        entries = [*(entry for entry in before if not _is_our_entry(entry)), *ours.get(path, ())]
        if entries != before:
            yield path, dumped(entries).encode() if entries else None


def _entries(path: str, text: str) -> list[Any]:
    try:
        entries = loaded(text) or []
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"expected a list of results in {path}, got a {type(entries).__name__}: correct it first")
    return entries


def _is_headline(row: Result, benchmark: Benchmark) -> bool:
    return row["metric"] == benchmark.headline and row.get("ood_score") is None


def eval_entry(row: Result, dataset: str, task: str, *, date: str | None, predictions: str | None) -> dict[str, Any]:
    """One entry of `.eval_results/*.yaml` (the Hub's docs, "Evaluation Results"): a headline value, in [0, 1]."""
    entry: dict[str, Any] = {"dataset": {"id": dataset, "task_id": task}, "value": row["value"]}
    if date is not None:
        entry["date"] = date
    if predictions is not None:
        entry["source"] = {
            "url": network.page(predictions, "dataset"),
            "name": "Predictions",
            "user": predictions.split("/")[0],
        }
    low, high = row["ci95"] or (None, None)
    interval = "" if low is None else f", 95 % interval {low:.4f} to {high:.4f}"
    marks = "".join(f"; {text}" for text in _marks(row))
    how = f"{metric_name(row)}, {row['preprocessing']} preprocessing, n = {row['n']}"
    return {**entry, "notes": f"{TOOL} {__version__}: {how}{interval}{marks}"}


def _is_our_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and _OUR_NOTE.match(str(entry.get("notes", ""))) is not None


def _marks(row: Result) -> list[str]:
    """What keeps a value from being that of the whole benchmark, in words."""
    marks = ["subset (--limit)"] if row["subset"] else []
    return marks + (["incomplete"] if not row["complete"] else [])


def _valued(rows: Sequence[Result]) -> list[Result]:
    return [row for row in ordered(rows) if row["metric"] is not None and row["value"] is not None]


def card(this: Publication, benchmarks: Mapping[str, Benchmark], old: str, *, name: str) -> str:
    """The model's card with our entries of its model-index and our section renewed, all else as it was."""
    index = model_index(this.results, benchmarks, metadata(old).get("model-index"), name=name)
    return with_section(with_entry(old, "model-index", index or None), "results", section(this))


def model_index(
    rows: Sequence[Result], benchmarks: Mapping[str, Benchmark], old: Any, *, name: str
) -> list[dict[str, Any]]:
    """The model-index with one entry a benchmark and split, every value a metric of it.

    old  what is there: its entries stay word for word, but for the metrics whose args say that they are ours.
    """
    models = old if isinstance(old, list) else []
    kept = [{**model, "results": [*_others(model.get("results"))]} for model in models if isinstance(model, dict)]
    ours = list(_blocks(rows, benchmarks))
    if ours and not kept:
        kept = [{"name": name, "results": []}]
    if ours:
        kept[0] = {**kept[0], "results": [*kept[0]["results"], *ours]}
    return [model for model in kept if model["results"]]


def _others(blocks: Any) -> Iterator[Any]:
    for block in blocks if isinstance(blocks, list) else []:
        metrics = block.get("metrics") if isinstance(block, dict) else None
        if not isinstance(metrics, list):
            yield block
            continue
        kept = [metric for metric in metrics if not _is_our_metric(metric)]
        if kept or not metrics:
            yield block if kept == metrics else {**block, "metrics": kept}


def _is_our_metric(metric: Any) -> bool:
    args = metric.get("args") if isinstance(metric, dict) else None
    return isinstance(args, dict) and args.get("tool") == TOOL


def _blocks(rows: Sequence[Result], benchmarks: Mapping[str, Benchmark]) -> Iterator[dict[str, Any]]:
    for (name, split), own in groupby(sorted(_valued(rows), key=_block), key=_block):
        splits = recipes()[name].splits if name in recipes() else {}
        only = [split] if split else list(splits) if len(splits) == 1 else []
        dataset = {"name": benchmarks[name].title, "type": benchmarks[name].repo_id or _IMAGENET}
        dataset |= {"split": only[0]} if only else {}
        yield {"task": dict(_TASK), "dataset": dataset, "metrics": [_metric(row) for row in ordered(own)]}


def _block(row: Result) -> tuple[str, str]:
    return str(row["benchmark"]), "" if is_whole(row) else str(row["split"])


def _metric(row: Result) -> dict[str, Any]:
    """One value; its args tell what it depends on, since the readers of a model-index group by data set and split."""
    args: dict[str, Any] = {"tool": TOOL, "version": __version__, "preprocessing": row["preprocessing"], "n": row["n"]}
    if row["ci95"]:
        args["ci95"] = list(row["ci95"])
    args |= {mark.split()[0]: True for mark in _marks(row)}
    return {"type": row["metric"], "value": row["value"], "name": metric_name(row), "args": args}


def section(this: Publication) -> str:
    """The section of the card: the headline table, the plots, then every number with its protocol, folded away."""
    page = re.sub(r"^(#+ )", r"#\1", markdown(this.results), flags=re.MULTILINE).replace(
        "## Results", "## Robustness", 1
    )
    page = page.replace("results.json.", f"[results.json]({FOLDER}/results.json).")
    head, found, rest = page.partition("\n### ")
    lines = [head.strip()]
    lines += ["", *(f"![{_title(plot)}]({FOLDER}/plots/{plot})" for plot in this.plots)] if this.plots else []
    if this.predictions:
        link = f"[{this.predictions}]({network.page(this.predictions, 'dataset')})"
        lines += ["", f"The predictions that these numbers follow from: {link}."]
    if found:
        lines += ["", "<details>", "<summary>All numbers and their protocols</summary>", "", f"### {rest.strip()}"]
        lines += ["", "</details>"]
    return "\n".join(
        [*lines, "", f"Written by `{TOOL} publish results` {__version__}; the next one replaces this section."]
    )


def _title(plot: str) -> str:
    return Path(plot).stem.replace("-", " ")


def pending(this: Publication, benchmarks: Mapping[str, Benchmark], repo: str) -> Pending:
    """The push that puts these results into the model repo `repo`, beside what others wrote there.

    Raises HubError where the repo cannot be looked at, ValueError where its card or results cannot be read.
    """
    remote = network.look(repo, repo_type="model")
    shared = [path for path in remote.files if path == "README.md" or _is_eval_results(path)]
    there = {p: network.read_file(repo, p, repo_type="model", revision=remote.head).decode("utf-8-sig") for p in shared}
    new = files(this, benchmarks, there, name=repo.split("/")[-1])
    kept = {path: content for path, content in sorted(new.items()) if content is not None}
    ours = {path for path in remote.files if path.startswith(f"{FOLDER}/")} | set(new)
    message = f"Results of {TOOL} {__version__}"
    return Pending(repo, "model", remote, kept, message, there, tuple(sorted(ours - set(kept))))


def _is_eval_results(path: str) -> bool:
    return path.startswith(f"{EVAL_RESULTS}/") and path.endswith((".yaml", ".yml"))
