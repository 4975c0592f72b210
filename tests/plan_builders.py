"""What tests of plans need: a size's inputs, tenants of a pool and their hours."""

from __future__ import annotations

from dataclasses import replace

from sizing.planning.nodes import Fit
from sizing.planning.size import Need


def need(demand: float, per_replica: float = 10.0, *, gpus: int = 1, headroom: float = 0.0) -> Need:
    found = Need(demand, per_replica, headroom, Fit(gpus, 8), 0, False)
    return replace(found, base=found.replicas())
