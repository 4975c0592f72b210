"""How much is to be served, how fast, and how sure."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.specs.bands import LATENCIES
from sizing.specs.runs import Confidence
from sizing.specs.workload import Limits


@dataclass(frozen=True, slots=True)
class Target:
    """How much is to be served, and how fast: at most one kind of demand; rates are those of the peak.

    Without a `confidence` sizes are as predicted.
    """

    requests_per_s: float | None
    concurrency: int | None
    limits: Limits
    offline: bool
    max_utilisation: float
    confidence: Confidence | None = None

    @property
    def decisive(self) -> tuple[str, ...]:
        """The times that decide whether a size keeps limits and demand; offline work has no limits."""
        stated = () if self.offline else tuple(name for name in LATENCIES if getattr(self.limits, name) is not None)
        return stated if self.concurrency is not None else (*stated, "throughput")
