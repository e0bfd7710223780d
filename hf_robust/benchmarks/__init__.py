"""Benchmarks as data: what each is made of and how it is scored."""

from ..schema import Outputs
from .catalog import benchmark, benchmarks
from .spec import Benchmark, Mode, Role, Rule, Source, Value

__all__ = ["Benchmark", "Mode", "Outputs", "Role", "Rule", "Source", "Value", "benchmark", "benchmarks"]
