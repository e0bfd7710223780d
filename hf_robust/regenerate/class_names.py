"""The names that people choose among when they name the class, and which of them a data set's own texts mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..benchmarks import Benchmark
from ..labels import imagenet_1k_index, imagenet_1k_names
from ..predictions.parts import RowTable

CATEGORY = "category"
# The file names of ImageNet-A spell these classes otherwise than the class list of this package.
_RELEASED = {
    "african bush elephant": "n02504458", "american bullfrog": "n01641577", "american robin": "n01558993",
    "baseball player": "n09835506", "billiard table": "n03982430", "chameleon": "n01694178",
    "clothes iron": "n03584829", "cottontail rabbit": "n02325366", "couch": "n04344873", "duck": "n01847000",
    "german shepherd dog": "n02106662", "golf cart": "n03445924", "gossamer-winged butterfly": "n02281787",
    "great egret": "n02009912", "green iguana": "n01677366", "hair dryer": "n03483316", "hockey puck": "n04019541",
    "hot dog": "n07697537", "jack-o_-lantern": "n03590841", "lighthouse": "n02814860",
    "monarch butterfly": "n02279972", "newt": "n01631663", "pufferfish": "n02655020",
    "rotary dial telephone": "n03187595", "salt shaker": "n04131690", "saxophone": "n04141076",
    "shipwreck": "n04606251", "small white": "n02280649", "stick insect": "n02231487", "teddy bear": "n04399382",
    "washing machine": "n04554684", "wheelbarrow": "n02797295", "white-headed capuchin": "n02492035",
}  # fmt: skip


class Names:
    """The names that people choose among, and the ImageNet-1k indices that each stands for."""

    def __init__(self, indices: Mapping[str, frozenset[int]]) -> None:
        self.indices = indices
        self._by_text = {name.lower(): name for name in indices}

    @classmethod
    def of(cls, benchmark: Benchmark, table: RowTable) -> Names:
        """The categories of a set that has such, else the classes of the protocol."""
        if CATEGORY in table.groups:
            found: dict[str, frozenset[int]] = {}
            for category, own in zip(table.groups[CATEGORY], table.labels, strict=True):
                found[in_words(category)] = found.get(in_words(category), frozenset()) | set(own)
            return cls(found)
        names = imagenet_1k_names()
        return cls({names[i]: frozenset({i}) for i in benchmark.mask or range(len(names))})

    def right(self, labels: Sequence[int]) -> tuple[str, ...]:
        """The names that share an index with the labels, in the order of names."""
        return tuple(name for name, own in self.indices.items() if own & set(labels))

    def known(self, text: str | None) -> str | None:
        """The name that a text of a data set means; None for one that is not offered."""
        if text is None:
            return None
        wnid = _RELEASED.get(text.lower())
        return self._by_text.get(_by_wnid(wnid) if wnid else in_words(text).lower())


def _by_wnid(wnid: str) -> str:
    return imagenet_1k_names()[imagenet_1k_index()[wnid]].lower()


def in_words(category: str) -> str:
    """A category as people read it.

    >>> in_words("coffee/french_press")
    'coffee or french press'
    """
    return category.replace("_", " ").replace("/", " or ").strip()
