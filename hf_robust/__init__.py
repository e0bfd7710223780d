"""Can this image classifier be trusted? The published robustness benchmarks, scored as published.

Importing this loads nothing heavy: each name below is fetched from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "metrics": (
        "aupr", "auroc", "aurra", "calibration_error", "fpr_at_tpr", "l2_calibration_error", "response_rate_accuracy",
        "spurious_score", "wilson",
    ),
    "benchmarks": ("benchmark",),
    "models": ("load_model",),
    "builders": ("build",),
}  # fmt: skip
_HOME = {name: room for room, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hf_robust' has no attribute {name!r}; it has: {', '.join(__all__)}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
