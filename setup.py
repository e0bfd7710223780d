"""What pyproject.toml cannot say: the metric modules at the top of the repository travel inside the package."""

from __future__ import annotations

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["hf_robust", "hf_robust.*"]), "hf_robust.metric_modules"],
    package_dir={"hf_robust.metric_modules": "metrics"},
)
