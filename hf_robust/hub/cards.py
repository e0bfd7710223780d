"""The texts that travel with a published data set: card, manifest, record, and what FiftyOne and the Hub read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..benchmarks.spec import Benchmark
from ..builders import MANIFEST, Built
from ..builders.cache import RECORD
from .merging import metadata

if TYPE_CHECKING:
    from datasets import DatasetDict, Features

CARD, FIFTYONE, EVAL = "README.md", "fiftyone.yml", "eval.yaml"
KEPT = "<!-- hf-robust: what stands below this line is kept when the card is made again -->"
_SHOWN = 20
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))

# How the pictures were found or made, from the papers (benchmarks/catalog.py cites them).
CONSTRUCTION: Mapping[str, str] = {
    "imagenet-a": "Candidates for each class came from iNaturalist, Flickr and web search. Whatever two ResNet-50s "
    "classify correctly was dropped: over ten crops, the true class had to get less than 15 % probability. People then "
    "kept only clear pictures of a single class. A file is named after what the filter said: probability of the true "
    "class, two wrong labels, confidence in them.",
    "imagenet-o": "The pictures show ImageNet-22k classes outside ImageNet-1k. Those that a ResNet-50 takes for an "
    "ImageNet-1k class with high confidence were kept, and people chose 2,000 good ones. A folder is named after the "
    "class that the picture is confused with, a file after what it shows.",
    "spurious-imagenet": "For 100 ImageNet classes a network relies on a feature that is not the object: a feeder for "
    "hummingbirds, a label for wine. Pictures from OpenImages were ranked by the component of a class-wise principal "
    "component analysis of an adversarially robust ResNet-50's features; those that it takes for the class were kept, "
    "and people dropped all that show the object.",
    "imagenet-d": "Stable Diffusion drew every category with many backgrounds, textures and materials. Pictures that "
    "all of several surrogate models get wrong were kept. Qualified workers then answered whether the object can be "
    "recognised and whether it can be used as such, in tasks with pictures of known answers between them.",
}
COLUMNS: Mapping[str, str] = {
    "image": "the bytes as published, never encoded again",
    "file_name": "path in the official archive",
    "sha256": "of the image's bytes",
    "imagenet_1k": "every acceptable ImageNet-1k index; empty where the picture shows none of the classes",
    "label": "the class: WordNet id, or the category's folder",
    "true_class_probability": "what the filter gave the true class, from the file name",
    "wrong_label_1": "first wrong label of the filter, from the file name",
    "wrong_label_2": "second wrong label of the filter, from the file name",
    "wrong_label_confidence": "confidence of the filter in the wrong label, from the file name",
    "confused_with": "the ImageNet class that a ResNet-50 takes it for: **not a label**",
    "true_lemmas": "what the picture shows (WordNet lemmas outside ImageNet-1k), from the file name",
    "confidence": "confidence of the ResNet-50 in its wrong answer, from the file name",
    "spurious_class": "the class whose spurious feature is shown, without the object; number = ImageNet-1k index",
    "component": "neural principal component of the class",
    "feature": "the spurious feature in words",
    "category": "folder of the category",
    "nuisance": "background, texture or material",
    "top1_prediction": "most likely category of the authors' zero-shot model, where the archive says so",
    "top2_prediction": "its second most likely category",
}


# The same in a regenerated set, where they mean something else.
OWN_COLUMNS: Mapping[str, str] = {
    "image": "the bytes as generated or found",
    "file_name": "path in the set",
    "confused_with": "the ImageNet class that the filter takes it for: **not a label**",
    "confidence": "confidence of the filter in its wrong answer",
    "true_lemmas": "what the picture shows, outside ImageNet-1k",
    "top1_prediction": "most likely category of the first surrogate of texts and pictures, where there is one",
}


@dataclass(frozen=True)
class Sizes:
    """Bytes of one split: as rows in memory, and as Parquet files."""

    rows: int
    in_memory: int
    files: int


def record(built: Built) -> dict[str, Any]:
    """What is known of the build: the content of hf-robust.json in the repo; the same for equal builds."""
    known = json.loads((built.path / RECORD).read_text(encoding="utf-8"))
    kept = {
        key: known.get(key) for key in ("name", "complete", "differences", "notes", "archive", "fingerprint", "rows")
    }
    kept |= {} if built.own_set is None else {"set": dict(built.own_set)}
    return {**kept, "hf_robust": __version__}


def manifest(pairs: Sequence[tuple[str, str]]) -> str:
    """One line a picture, sorted by file name, as `sha256sum --check` reads it.

    >>> manifest([("b.jpg", "22"), ("a b.jpg", "11")])
    '11  a b.jpg\\n22  b.jpg\\n'
    """
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(pairs))


def dataset_card(
    built: Built,
    benchmark: Benchmark,
    repo: str,
    splits: DatasetDict,
    *,
    sizes: Mapping[str, Sizes],
    gated: bool = False,
    old: str | None = None,
) -> str:
    """README.md of the repo, made from the catalog and the build.

    old  the card that is there: entries of its metadata that are not made here and all below the KEPT line stay.
    """
    features = next(iter(splits.values())).features
    ours = _metadata(benchmark, splits, sizes, gated)
    theirs = {} if old is None else {k: v for k, v in metadata(old).items() if k not in ours}
    sections = (
        _opening(built, benchmark),
        _use(repo, splits),
        _section("How it was made", _construction(built)),
        _copy(built),
        _columns(built, features, sizes),
        _protocol(benchmark),
        _evaluate(built, repo),
        _licence(benchmark),
        _section("Caveats", "\n".join(f"- {caveat}" for caveat in benchmark.caveats)),
        _check(built, repo),
        _section("In FiftyOne", _fiftyone_code(repo)),
        _section("Citation", f"```bibtex\n{benchmark.citation}\n```"),
    )
    below = "\n" if old is None or KEPT not in old else old.split(KEPT, 1)[1]
    front = _dumped({**ours, **theirs})
    return f"---\n{front}---\n\n" + "\n\n".join(s for s in sections if s) + f"\n\n{KEPT}{below}"


def _construction(built: Built) -> str:
    return CONSTRUCTION.get(built.name, "") if built.own_set is None else str(built.own_set["made"])


def _dumped(data: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=10_000))


def _metadata(benchmark: Benchmark, splits: DatasetDict, sizes: Mapping[str, Sizes], gated: bool) -> dict[str, Any]:
    rows = sum(size.rows for size in sizes.values())
    found: dict[str, Any] = {"pretty_name": benchmark.title, "license": benchmark.picture_licence or "other"}
    if benchmark.picture_licence is None:
        link = {} if benchmark.repo_id is None else {"license_link": benchmark.homepage}  # of a set made anew: none
        found |= {"license_name": "no-licence-grant-for-the-pictures", **link}
    features = next(iter(splits.values())).features
    if "label" in features:  # only where a class is shown that a classifier should answer
        found["task_categories"] = ["image-classification"]
    found["tags"] = ["hf-robust", "robustness", "imagenet", "benchmark", "fiftyone"]
    found["size_categories"] = [next((name for limit, name in _SIZES if rows < limit), "1M<n<10M")]
    if gated:
        found["extra_gated_prompt"] = f"{benchmark.licence} By asking for access you accept to use them for research."
    found["dataset_info"] = _dataset_info(features, sizes)
    files = [{"split": name, "path": f"data/{name}-*"} for name in sizes]
    found["configs"] = [{"config_name": "default", "data_files": files}]
    return found


def _dataset_info(features: Features, sizes: Mapping[str, Sizes]) -> Any:
    from datasets import DatasetInfo, SplitDict, SplitInfo
    from datasets.info import DatasetInfosDict
    from huggingface_hub import DatasetCardData

    splits = SplitDict()
    for name, size in sizes.items():
        splits.add(SplitInfo(name, num_bytes=size.in_memory, num_examples=size.rows))
    info = DatasetInfo(
        features=features,
        splits=splits,
        download_size=sum(size.files for size in sizes.values()),
        dataset_size=sum(size.in_memory for size in sizes.values()),
    )
    data = DatasetCardData()
    DatasetInfosDict({"default": info}).to_dataset_card_data(data)
    return data["dataset_info"]


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _opening(built: Built, benchmark: Benchmark) -> str:
    papers = [f"[arXiv {n}](https://arxiv.org/abs/{n})" for n in _papers(benchmark)]
    links = ", ".join([*papers, f"[code and data of the authors]({benchmark.homepage})"])
    lines = [f"# {benchmark.title}", benchmark.description, links + "."]
    if not built.complete:
        shown = [f"> - {difference}" for difference in built.differences[:_SHOWN]]
        more = len(built.differences) - len(shown)
        shown += [f"> - … and {more:,} more, see `{RECORD}`"] if more > 0 else []
        lines.append(
            "> **INCOMPLETE.** This copy is not the official data set: numbers on it are not comparable. "
            "It differs from the official archive:\n>\n" + "\n".join(shown)
        )
    return "\n\n".join(lines)


def _papers(benchmark: Benchmark) -> list[str]:
    return re.findall(r"eprint = {([\d.]+)}", benchmark.citation)


def _use(repo: str, splits: DatasetDict) -> str:
    first = next(iter(splits))
    code = f"""from datasets import load_dataset

pictures = load_dataset("{repo}", split="{first}")
print(pictures[0]["file_name"], pictures[0]["image"].size)

for row in load_dataset("{repo}", split="{first}", streaming=True).take(2):  # without downloading it whole
    print(row["file_name"], row["imagenet_1k"])"""
    return _section("Load", f"```python\n{code}\n```")


def _copy(built: Built) -> str:
    known = record(built)
    published = "from the authors' archive, every picture byte by byte"
    origin = published if built.own_set is None else f"by `hf-robust regenerate {built.own_set['base']}`"
    lines = [
        f"Made by [hf-robust](https://pypi.org/project/hf-robust/) {__version__} {origin}. "
        f"`{MANIFEST}` holds the SHA-256 of each picture, `{RECORD}` what is known of the build.",
        "",
        f"- pictures: {built.rows:,}",
        f"- fingerprint (SHA-256 over the sorted pairs of file name and SHA-256): `{built.fingerprint}`",
    ]
    lines += [f"- archive: `{known['archive']}`"] if known["archive"] else []
    lines += [f"- {note}" for note in (known["notes"] or ())[:_SHOWN]]
    return _section("This copy", "\n".join(lines))


def _columns(built: Built, features: Features, sizes: Mapping[str, Sizes]) -> str:
    known = COLUMNS if built.own_set is None else {**COLUMNS, **OWN_COLUMNS}
    rows = [f"| `{name}` | {type_of(feature)} | {known.get(name, '')} |" for name, feature in features.items()]
    table = ["| column | type | what |", "|---|---|---|", *rows]
    counts = [f"| `{name}` | {s.rows:,} | {s.files:,} |" for name, s in sizes.items()]
    splits = ["| split | pictures | bytes of Parquet |", "|---|---:|---:|", *counts]
    return _section("Columns and splits", "\n".join([*table, "", *splits]))


def type_of(feature: Any) -> str:
    """The type of a column in words.

    >>> from datasets import ClassLabel, List, Value
    >>> type_of(ClassLabel(names=["a", "b"])), type_of(List(Value("int32")))
    ('class label, 2 names', 'list of int32')
    """
    kind = type(feature).__name__
    if kind == "ClassLabel":
        return f"class label, {feature.num_classes:,} names"
    if kind == "Image":
        return "image"
    return f"list of {type_of(feature.feature)}" if hasattr(feature, "feature") else str(feature.dtype)


def _protocol(benchmark: Benchmark) -> str:
    facts = {"classes": benchmark.mask_name, **benchmark.protocol}
    lines = [f"- {name.replace('_', ' ')}: {text}" for name, text in facts.items()]
    lines += [f"- needs also: {s.dataset} ({s.role})" for s in benchmark.sources if s.dataset != benchmark.name]
    metrics = [f"| `{m.__name__}` | {_first_line(m)} |" for m in benchmark.measures]
    lines += ["", "| metric | what |", "|---|---|", *metrics, "", f"The headline is `{benchmark.headline}`."]
    by_reason: dict[str, list[str]] = {}
    for name, reason in benchmark.refused.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    lines += [f"\nNot defined here ({', '.join(names)}): {reason}." for reason, names in by_reason.items()]
    return _section("Protocol", "\n".join(lines))


def _first_line(measure: Any) -> str:
    return (measure.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")


def _evaluate(built: Built, repo: str) -> str:
    name = built.name if built.own_set is None else repo
    code = f"""pip install "hf-robust[run,report]"
hf-robust evaluate --model timm/resnet50 --benchmark {name} --imagenet-val FOLDER --out runs
hf-robust report runs --out report"""
    official = f"`evaluate` takes the build of this machine, else `hf_robust/{name}` from the Hub."
    text = official if built.own_set is None else "The protocol is read from this repo."
    return _section("Evaluate a classifier", f"```bash\n{code}\n```\n\n{text}")


def _licence(benchmark: Benchmark) -> str:
    text = benchmark.licence
    if benchmark.picture_licence is None:
        text += " `license: other` stands here for that; this repo grants nothing."
    return _section("Licence", text)


def _check(built: Built, repo: str) -> str:
    code = f"""import hashlib
from datasets import Image, load_dataset

for split in load_dataset("{repo}").values():
    for row in split.cast_column("image", Image(decode=False)):
        assert hashlib.sha256(row["image"]["bytes"]).hexdigest() == row["sha256"], row["file_name"]"""
    archive = f"In the folder of the extracted archive, `sha256sum --check {MANIFEST}` compares the same pictures."
    text = archive if built.own_set is None else f"`{MANIFEST}` holds the same hashes."
    return _section("Check the bytes", f"```python\n{code}\n```\n\n{text}")


def _fiftyone_code(repo: str) -> str:
    code = f'from fiftyone.utils.huggingface import load_from_hub\n\ndataset = load_from_hub("{repo}")'
    return f"```python\n{code}\n```\n\nIt reads rows through the Hub's viewer, which shows public repos."


def fiftyone_yml(benchmark: Benchmark, features: Features) -> str:
    """fiftyone.yml, by which FiftyOne's `load_from_hub` opens the repo: its ParquetFilesDataset format."""
    labels = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    return _dumped(
        {
            "name": benchmark.name,
            "format": "ParquetFilesDataset",
            "description": benchmark.description,
            "license": benchmark.picture_licence or benchmark.licence,
            "tags": ["hf-robust", "robustness", "imagenet"],
            "filepath": "image",
            "classification_fields": labels,
        }
    )


def eval_yaml(benchmark: Benchmark, splits: Sequence[str]) -> str:
    """eval.yaml, by which the Hub shows a data set as a benchmark with a table of results: one task a split."""
    tasks = [
        {"id": benchmark.name if len(splits) == 1 else f"{benchmark.name}-{split}", "config": "default", "split": split}
        for split in splits
    ]
    facts = {"name": benchmark.title, "description": benchmark.description, "evaluation_framework": "hf-robust"}
    return _dumped({**facts, "tasks": tasks})
