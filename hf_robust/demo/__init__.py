"""The demo: miniatures of all benchmarks, made on this machine from photos that ship in Python packages."""

from .flow import REMARK, DemoOutcome, run_demo
from .pictures import draw

__all__ = ["REMARK", "DemoOutcome", "draw", "run_demo"]
