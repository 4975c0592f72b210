"""The error band of a number: how far published measurements of its class lie from what is predicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sizing.specs.bands import Band, BandMetric, Kind, Load, Mode

SOLO, FEW, MANY = 1, 8, 64  # bounds of the load regions, in requests in flight on one replica


class Situation(NamedTuple):
    """What a number is of: how the engine is driven, which engine and GPU generation, dense or experts, how loaded."""

    mode: Mode
    engine: str
    architecture: str
    kind: Kind
    load: Load | None


def region(in_flight: float) -> Load:
    """Return the load region of so many requests in flight on one replica."""
    if in_flight <= SOLO:
        return "solo"
    if in_flight <= FEW:
        return "low"
    return "medium" if in_flight <= MANY else "high"


def find(bands: Iterable[Band], metric: BandMetric, situation: Situation) -> Band | None:
    """Return the band of a metric, the first whose conditions hold; None where nothing of its kind was measured."""
    for band in bands:
        if band.metric == metric and all(
            getattr(band, name) in (None, value) for name, value in situation._asdict().items()
        ):
            return band
    return None
