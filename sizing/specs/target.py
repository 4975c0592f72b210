"""How much is to be served, how fast, and how sure."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.specs.bands import LATENCIES
from sizing.specs.runs import Confidence
from sizing.specs.workload import Limits


@dataclass(frozen=True, slots=True)
class Target:
    """How much is to be served, and how fast: at most one kind of demand; rates are those of the peak.

    `concurrency` are requests in flight in a closed loop. A `population` asks at random times: so many are in flight on
    average or, with a think time, wait for an answer or think about it; the rate follows from the answer's own E2E.
    Without a `confidence` sizes are as predicted.
    """

    requests_per_s: float | None
    concurrency: int | None
    limits: Limits
    offline: bool
    max_utilisation: float
    confidence: Confidence | None = None
    population: float | None = None
    think_time_s: float = 0.0

    @property
    def amount(self) -> float | None:
        """What is demanded, in its `unit`; None where nothing is."""
        stated = (self.requests_per_s, self.concurrency, self.population)
        return next((float(value) for value in stated if value is not None), None)

    @property
    def unit(self) -> str:
        """The unit of the demand, requests/s where there is none."""
        if self.population is not None and self.think_time_s > 0:
            return "users"
        return "requests/s" if self.concurrency is None and self.population is None else "requests in flight"

    def population_of(self, requests_per_s: float, e2e_s: float) -> float:
        """Little's law: how many are in flight or think at a rate with this E2E."""
        return requests_per_s * (e2e_s + self.think_time_s)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The times that decide whether a size keeps limits and demand; offline work has no limits."""
        stated = () if self.offline else tuple(name for name in LATENCIES if getattr(self.limits, name) is not None)
        return stated if self.concurrency is not None else (*stated, "throughput")
