"""Tables as an Arrow data set in the layout that `datasets` reads back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import datasets
import pyarrow as pa

VERSION = "1.0.0"
ROWS_IN_TABLE = 100  # of each record batch: what is read at once when a single row is wanted

# `datasets` replaces `open` and parts of `os.path` in the module that defines a builder, unless it finds this mark of
# its own; it imports scipy and pandas to do so, a third of a second. Without the mark's effect everything still works.
_patched_for_streaming = True

Tables = Callable[[], Iterator[pa.Table]]


class PictureBuilder(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """A data set whose splits are given as functions that yield tables of at most ROWS_IN_TABLE rows."""

    VERSION = datasets.Version(VERSION)
    DEFAULT_WRITER_BATCH_SIZE = ROWS_IN_TABLE

    def __init__(self, *args: Any, features: datasets.Features, splits: Mapping[str, Tables], **kwargs: Any) -> None:
        # not passed on: features given to the base class would become part of the config's id
        self.own_features, self.own_splits = features, splits
        super().__init__(*args, **kwargs)

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=self.own_features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [
            datasets.SplitGenerator(name=datasets.NamedSplit(name), gen_kwargs={"tables": tables})
            for name, tables in self.own_splits.items()
        ]

    def _generate_tables(self, tables: Tables) -> Iterator[tuple[int, pa.Table]]:
        yield from enumerate(tables())
