"""The demo: miniatures of all benchmarks, made on this machine from photos that ship in Python packages."""

from __future__ import annotations

from .pictures import draw as draw
