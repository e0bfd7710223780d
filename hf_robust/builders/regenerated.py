"""A regenerated set as a built data set: the columns of the published one it follows, and the record of what it is."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import base
from .archive import Archive
from .cache import Built, building, cache_root, install
from .errors import BuildError
from .recipe import Recipe


def build_regenerated(
    like: Recipe,
    archive: Archive,
    chosen: base.Chosen,
    *,
    names: Sequence[str],
    record: Mapping[str, Any],
    out: Path,
    progress: base.Progress | None = None,
) -> Built:
    """The set of these pictures below `out`, found there by its name.

    like    recipe of the published set whose columns it has.
    chosen  (member of `archive`, what it shows) a picture; names the classes of the class column, in label order.
    record  what the set is, as benchmarks.derived.Derived gives it.
    BuildError names a picture that cannot be read, and a file name given twice.
    """
    name = str(record["name"])
    doubled = [n for n, count in Counter(picture.file_name for _, picture in chosen).items() if count > 1]
    if doubled or not chosen:
        raise BuildError(f"expected pictures with one file name each for {name}, got {doubled[:1] or 'none'}")
    splits = Counter(picture.split for _, picture in chosen)
    in_order = {s: splits[s] for s in [*like.splits, *sorted(set(splits) - set(like.splits))] if s in splits}
    recipe = replace(
        like, name=name, title=str(record["title"]), names=tuple(names), splits=in_order, square=False,
        columns_of=like.name,
    )  # fmt: skip
    root = cache_root(out)
    with building(root, name) as work, archive:
        tally = base.write(
            recipe, archive, sorted(chosen, key=lambda pair: pair[1].file_name), work / "staged", progress
        )
        if tally.differences:
            raise BuildError(f"expected pictures that can be read for {name}, got: {tally.differences[0]}")
        fingerprint = tally.fingerprint()
        facts = {"pictures": f"{len(tally.pairs):,}", "fingerprint": fingerprint}
        base.describe_build(work / "staged", recipe, (), facts)
        key = hashlib.sha256(json.dumps([tally.columns.hexdigest(), dict(record)]).encode()).hexdigest()
        known = {"name": name, "complete": True, "differences": [], "notes": tally.notes, "archive": None}
        counts = {"fingerprint": fingerprint, "rows": len(tally.pairs)}
        return install(work / "staged", root, name, key, {**known, **counts, "set": dict(record)})
