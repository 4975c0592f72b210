"""GPU profiles, assumed efficiencies and storage formats as they stand in the catalogue's files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from places import ROOT

from sizing.specs.data import Formats
from sizing.specs.gpu import (
    Gpu,
)

HARDWARE = ROOT / "hardware_profiles"

FILES = {path.stem: path for path in sorted((HARDWARE / "gpus").glob("*.yaml"))}


def _load(path: Path) -> object:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


GPUS = {stem: Gpu.model_validate(_load(path)) for stem, path in FILES.items()}

FORMATS = Formats.model_validate(_load(HARDWARE / "_formats.yaml")).formats

EVERY = pytest.mark.parametrize("stem", sorted(GPUS))
