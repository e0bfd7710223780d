"""The demo: miniatures of all benchmarks, made on this machine from photos that ship in Python packages."""

from .command import add_demo

__all__ = ["add_demo"]
