"""The worked example of docs/spurious.md: a planted shortcut is found, measured and reduced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spurious.md"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """What the example's code leaves behind; its own checks hold as well."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    source = next(block for block in blocks if "has_patch" in block)
    content: dict[str, Any] = {}
    exec(compile(source, str(PAGE), "exec"), content)
    return content


def test_the_shortcut_is_the_first_component(example: dict[str, Any]) -> None:
    first, *others = example["found"]
    assert first > 0.98
    assert max(abs(value - 0.5) for value in others) < 0.3
    assert example["pca"].eigenvalues[0] > 2 * example["pca"].eigenvalues[1]


def test_the_shortcut_is_measured_and_reduced_at_no_cost_in_accuracy(example: dict[str, Any]) -> None:
    (before, accuracy_before, fooled_before), *_, (after, accuracy_after, fooled_after) = example["curve"].values()
    assert before < 0.8
    assert after > before + 0.15
    assert abs(accuracy_after - accuracy_before) < 0.01
    assert fooled_after < fooled_before


def test_more_strength_is_more_correction(example: dict[str, Any]) -> None:
    scores = [score for score, _, _ in example["curve"].values()]
    assert scores == sorted(scores)
