"""What is assumed of the hand-over between the pools of a disaggregated deployment."""

from __future__ import annotations

from functools import cache

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Found
from sizing.specs.pools import HandOver


@cache
def load_hand_over() -> Found[HandOver]:
    """Return how a cache goes from one pool to the other. Read only where pools are asked for."""
    path = data_folder("hardware_profiles") / "_disaggregation.yaml"
    return Found(validate(HandOver, read_yaml(path)), path.stem, path)
