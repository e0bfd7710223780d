"""Can this image classifier be trusted? The published robustness benchmarks, scored as published."""

__version__ = "0.1.0"
