"""The conventions of published benchmarks, workloads/_benchmarks.yaml."""

from __future__ import annotations

from functools import cache

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Found
from sizing.specs.benchmark import Conventions


@cache
def load_conventions() -> Found[Conventions]:
    """Return how benchmarks were run where their rows leave it unsaid."""
    path = data_folder("workloads") / "_benchmarks.yaml"
    return Found(validate(Conventions, read_yaml(path)), path.stem, path)
