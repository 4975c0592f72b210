"""How much is to be served, how fast, and how sure."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.specs.bands import Band, LoadRegion
from sizing.specs.workload import Limits


@dataclass(frozen=True, slots=True)
class Target:
    """How much is to be served, and how fast: at most one kind of demand; rates are those of the peak.

    `pessimistic` are the error bands on whose worse edges to size (empty: as predicted), at `pessimistic_load` where
    that is known.
    """

    requests_per_s: float | None
    concurrency: int | None
    limits: Limits
    offline: bool
    max_utilisation: float
    pessimistic: tuple[Band, ...] = ()
    pessimistic_load: LoadRegion | None = None
