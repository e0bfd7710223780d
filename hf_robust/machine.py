"""What of the machine this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """How many cores this process may use: of a job of Slurm's or a container's, not of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
