"""The demo's miniatures as benchmarks, under names that cannot be mistaken for the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from .catalog import PUBLISHED
from .spec import Benchmark, Source

PREFIX = "mini-"
# ImageNet-1k classes of the photos at hand whose surroundings can be shown without the object; not the official 100.
SPURIOUS_CLASSES = (22, 99, 129, 305, 317, 609, 915, 967, 990)


@cache
def miniatures() -> Mapping[str, Benchmark]:
    """Each published benchmark over the demo's pictures: same protocol, same measures, other name."""
    return MappingProxyType({PREFIX + b.name: _miniature(b) for b in PUBLISHED})


def _miniature(benchmark: Benchmark) -> Benchmark:
    return replace(
        benchmark,
        name=PREFIX + benchmark.name,
        title=f"miniature of {benchmark.title}",
        sources=tuple(_source(source) for source in benchmark.sources),
        caveats=("A miniature of a few pictures: no benchmark result.",),
    )


def _source(source: Source) -> Source:
    return replace(source, classes=SPURIOUS_CLASSES) if source.role == "validation" else source
