"""A built data set as a Hub data set: Parquet made here, sent, then one commit with data, card, manifest and record."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..benchmarks import benchmarks
from ..benchmarks.derived import derive, from_record
from ..benchmarks.spec import Benchmark
from ..builders import MANIFEST, Built
from ..builders.cache import RECORD, building
from ..schema import FILE_NAME, IMAGE, SHA256
from . import cards
from .network import Content, Gate, HubError, Push, Remote, Say, changes, look, page, push, read_file
from .patience import check_repo_name

if TYPE_CHECKING:
    from datasets import Dataset

SHARD_BYTES = 500_000_000
_ROWS_AT_ONCE = 100
_SHARD = r"data/[^/]+-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.parquet"


@dataclass(frozen=True)
class Publication:
    """What publishing a data set did or, as a dry run, would do.

    push       files and commit; of a dry run without the Hub every file is "new" and `unseen` says why.
    card_diff  from the card that is on the Hub to the new one, as unified diff; empty where they are equal.
    private    whether only its owners see the repo afterwards.
    """

    push: Push
    card_diff: str
    private: bool
    gated: bool
    unseen: str | None = None


def benchmark_of(built: Built) -> Benchmark:
    """What a build is as a benchmark: of the catalog, or regenerated; errors as in `publishable`."""
    return publishable(built.name) if built.own_set is None else derive(from_record(built.own_set))


def publishable(name: str) -> Benchmark:
    """The benchmark of that name; ValueError where its pictures are never published or the catalog lacks it."""
    benchmark = benchmarks().get(name)
    if benchmark is None:
        raise ValueError(f"expected a benchmark of the catalog, got the data set {name!r}: its card has no facts")
    if benchmark.repo_id is None:
        raise ValueError(
            f"expected a benchmark that may be passed on, got {name}, which is under ImageNet's own terms and is never "
            "pushed: everyone gets it from image-net.org"
        )
    return benchmark


def publish_dataset(
    built: Built,
    repo: str,
    *,
    private: bool | None = None,
    gated: Gate | None = None,
    allow_incomplete: bool = False,
    eval_page: bool = False,
    dry_run: bool = False,
    shard_bytes: int = SHARD_BYTES,
    say: Say | None = None,
) -> Publication:
    """Makes the data set `repo` hold the build, in one commit; again, it sends only what the Hub lacks.

    private           None: as it is; a new repo is private unless the pictures carry a licence.
    gated             who sees it has to ask: "auto" lets everyone in who accepts, "manual" waits for you; False opens.
    allow_incomplete  publish a build that differs from the official archive, marked so in its card.
    eval_page         adds eval.yaml. The Hub checks it against a list of evaluation frameworks when it is pushed, and
                      refuses the whole push where ours is not on it.
    dry_run           makes everything here and compares, sends nothing; needs no Hub.
    ValueError for sets that are never published, builds that are incomplete, and public repos without --public;
    HubError in one sentence where the Hub refuses: its head is then as before.
    """
    check_repo_name(repo)
    benchmark = benchmark_of(built)
    if not built.complete and not allow_incomplete:
        raise ValueError(
            f"expected a complete {built.name}, got one with {len(built.differences):,} differences, the first: "
            f"{built.differences[0]}. Build it from the official archive, or pass --allow-incomplete to publish it "
            "marked as incomplete"
        )
    before, unseen = _seen(repo, tolerate=dry_run, say=say)
    private = _visibility(benchmark, before, repo, private)
    gate = bool(before.gated if gated is None else gated)
    old = _old_card(repo, before)
    with building(built.path.parents[3], built.name) as work:
        make = _Making(built, benchmark, repo, work, shard_bytes, say)
        files = make.files(gated=gate, old=old, eval_page=eval_page)
        stale = [path for path in before.files if re.fullmatch(_SHARD, path)]
        if dry_run:
            done = Push(before.head, page(repo, "dataset"), before, changes(before, files, delete=stale))
        else:
            message = f"{benchmark.title}: {built.rows:,} pictures, fingerprint {built.fingerprint[:12]}"
            done = push(
                repo, files, repo_type="dataset", message=message, delete=stale, private=private, gated=gated, say=say
            )  # fmt: skip
    closed = before.private if private is None else private
    return Publication(done, _difference(old, _text(files[cards.CARD])), closed, gate, unseen)


def _seen(repo: str, *, tolerate: bool, say: Say | None) -> tuple[Remote, str | None]:
    """The repo as it is; with `tolerate` an empty one and the reason where the Hub does not answer."""
    try:
        return look(repo, repo_type="dataset", say=say), None
    except HubError as error:
        if not tolerate:
            raise
        return Remote(False), str(error)


def _old_card(repo: str, before: Remote) -> str | None:
    if cards.CARD not in before.files:
        return None
    return read_file(repo, cards.CARD, repo_type="dataset", revision=before.head).decode("utf-8")


def _visibility(benchmark: Benchmark, before: Remote, repo: str, private: bool | None) -> bool | None:
    unlicensed = benchmark.picture_licence is None
    if private is not None:
        return private
    if not before.exists:
        return unlicensed
    if unlicensed and not before.private:
        raise ValueError(
            f"expected a private repo for {benchmark.name}, got the public {repo}, and its pictures carry no licence "
            "grant: pass --private to close it first, or --public to publish them all the same"
        )
    return None


@dataclass(frozen=True)
class _Making:
    """The files of the repo, made from a build."""

    built: Built
    benchmark: Benchmark
    repo: str
    work: Path
    shard_bytes: int
    say: Say | None

    def files(self, *, gated: bool, old: str | None, eval_page: bool) -> dict[str, Content]:
        """Path in the repo -> content; the Parquet files lie in the work folder."""
        splits = self.built.load()
        files: dict[str, Content] = {}
        sizes = {}
        for name, rows in splits.items():
            shards = self._shards(name, rows)
            on_disk = sum(path.stat().st_size for path in shards.values())
            sizes[name] = cards.Sizes(rows.num_rows, rows.info.splits[name].num_bytes, on_disk)
            files |= shards
        known = cards.record(self.built)
        pairs = [pair for rows in splits.values() for pair in zip(rows[FILE_NAME][:], rows[SHA256][:], strict=True)]
        texts = {
            cards.CARD: cards.dataset_card(
                self.built, self.benchmark, self.repo, splits, sizes=sizes, gated=gated, old=old
            ),
            MANIFEST: cards.manifest(pairs),
            RECORD: json.dumps(known, indent=1, ensure_ascii=False) + "\n",
            cards.FIFTYONE: cards.fiftyone_yml(self.benchmark, next(iter(splits.values())).features),
        }
        if eval_page:
            texts[cards.EVAL] = cards.eval_yaml(self.benchmark, list(splits))
        return {**files, **{path: text.encode() for path, text in texts.items()}}

    def _shards(self, split: str, rows: Dataset) -> dict[str, Path]:
        bounds = shard_bounds(_picture_sizes(rows), self.shard_bytes)
        shards: dict[str, Path] = {}
        for number, (start, stop) in enumerate(bounds):
            path = f"data/{split}-{number:05d}-of-{len(bounds):05d}.parquet"
            target = self.work / path.replace("/", "-")
            if self.say is not None:
                self.say(f"writing {path}: {stop - start:,} pictures")
            write_parquet(rows.select(range(start, stop)), target)
            shards[path] = target
        return shards


def shard_bounds(sizes: Sequence[int], limit: int) -> tuple[tuple[int, int], ...]:
    """(first, one past the last) row of each shard: as many rows as stay within `limit` bytes, at least one.

    >>> shard_bounds([4, 4, 4, 9, 1], 8)
    ((0, 2), (2, 3), (3, 4), (4, 5))
    """
    starts, filled = [0], 0
    for row, size in enumerate(sizes):
        if filled and filled + size > limit:
            starts.append(row)
            filled = 0
        filled += size
    return tuple(zip(starts, [*starts[1:], len(sizes)], strict=True))


def _picture_sizes(rows: Dataset) -> list[int]:
    import pyarrow.compute as pc

    content = pc.struct_field(rows.data.column(IMAGE), "bytes")
    return [int(size) for size in pc.binary_length(content).to_pylist()]


def write_parquet(rows: Dataset, path: Path) -> None:
    """Writes the rows as they are stored; ValueError where the bytes of a picture are not those of its SHA-256."""
    import pyarrow.parquet as pq

    schema = rows.features.arrow_schema
    with pq.ParquetWriter(path, schema, write_page_index=True, use_content_defined_chunking=True) as writer:
        for batch in rows.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE):
            for picture, said, name in zip(*(batch[c].to_pylist() for c in (IMAGE, SHA256, FILE_NAME)), strict=True):
                if hashlib.sha256(picture["bytes"]).hexdigest() != said:
                    raise ValueError(
                        f"expected the bytes that were built for {name!r}, got others (SHA-256 differs): the build is "
                        "damaged, build it again"
                    )
            writer.write_table(batch.cast(schema))


def _text(content: Content) -> str:
    return (content if isinstance(content, bytes) else content.read_bytes()).decode("utf-8")


def _difference(old: str | None, new: str) -> str:
    before = [] if old is None else old.splitlines(keepends=True)
    lines = difflib.unified_diff(before, new.splitlines(keepends=True), "README.md on the Hub", "README.md made here")
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
