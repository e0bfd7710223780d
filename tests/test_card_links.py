"""Links of the cards: of every metric, and of a data set as it would be published."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from builder_archives import as_folder
from toy_world import SETS

from hf_robust.builders import build
from hf_robust.hub.datasets import publish_dataset

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HOSTS = ("arxiv.org", "github.com", "pypi.org", "huggingface.co", "www.image-net.org", "scikit-learn.org")


def check_links(text: str, files: set[str]) -> int:
    """Every link goes to a known host by https, or to a file beside the card; how many there are."""
    found = LINK.findall(text)
    for target in found:
        host = re.match(r"https://([^/]+)/", target)
        assert host[1] in HOSTS if host else target.partition("#")[0] in {"", *files}, target
    return len(found)


@pytest.mark.parametrize("card", sorted(ROOT.glob("metrics/*/README.md")), ids=lambda path: path.parent.name)
def test_the_links_of_a_metrics_card_lead_somewhere(card: Path) -> None:
    check_links(card.read_text(encoding="utf-8"), {p.name for p in card.parent.iterdir()})  # it may have none


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-o", "spurious-imagenet", "imagenet-d"])
def test_the_links_of_a_data_sets_card_lead_somewhere(name: str, tmp_path: Path) -> None:
    pictures = list(SETS[name][0](np.random.default_rng(0)))[:12]
    source = as_folder(tmp_path / "source", {picture.path: picture.content for picture in pictures})
    built = build(name, source, allow_incomplete=True, out=tmp_path / "out")
    done = publish_dataset(built, "tester/set", allow_incomplete=True, dry_run=True)
    card = "\n".join(line[1:] for line in done.card_diff.splitlines() if line.startswith("+"))
    assert check_links(card, {change.path for change in done.push.changes}) >= 2
