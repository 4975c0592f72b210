"""What is known from published benchmarks: how they were run, how constants are refitted from them, how far off they are."""

from __future__ import annotations

from functools import cache

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Found
from sizing.specs.bands import Bands
from sizing.specs.benchmark import Conventions
from sizing.specs.calibration import Calibration


@cache
def load_conventions() -> Found[Conventions]:
    """Return how benchmarks were run where their rows leave it unsaid."""
    path = data_folder("workloads") / "_benchmarks.yaml"
    return Found(validate(Conventions, read_yaml(path)), path.stem, path)


@cache
def load_calibration() -> Found[Calibration]:
    """Return what a calibration may change and which rows it learns from."""
    path = data_folder("hardware_profiles") / "_calibration.yaml"
    return Found(validate(Calibration, read_yaml(path)), path.stem, path)


@cache
def load_bands() -> Found[Bands]:
    """Return how far measurements lie from predictions."""
    path = data_folder("hardware_profiles") / "_bands.yaml"
    return Found(validate(Bands, read_yaml(path)), path.stem, path)
