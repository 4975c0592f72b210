"""The size of one workload: what its peak takes, and the reserves on top of it, in replicas, GPUs and nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import NamedTuple

from sizing import capacity
from sizing.errors import Fault, InputError
from sizing.plan import availability
from sizing.plan.nodes import Fit
from sizing.request import Request
from sizing.search import Evaluated, preference

ROUNDING = 1e-9
HUNDREDTHS = 1e4  # of a per cent in a whole: availabilities are said to two decimals


@dataclass(frozen=True, slots=True)
class Rules:
    """What is added to the size of the peak, and what the load does over time; nothing of it unless asked for."""

    spare: int = 0
    availability: float | None = None
    unit_availability: float | None = None
    by_node: bool = False
    maintenance: bool = False
    growth_per_month: float | None = None
    start: date = date(2000, 1, 1)
    until: date | None = None
    min_replicas: int = 1
    spot_share: float = 0.0


class Reserve(NamedTuple):
    """Replicas on top of those that the peak takes.

    `failures` is the larger of the spare ones that were asked for and those that keep the availability; `maintenance` are
    those that are lost while one node is out of service.
    """

    spare: int
    for_availability: int
    maintenance: int

    @property
    def failures(self) -> int:
        """What stands in for failed replicas."""
        return max(self.spare, self.for_availability)

    @property
    def replicas(self) -> int:
        """All of them."""
        return self.failures + self.maintenance


class Size(NamedTuple):
    """Replicas, GPUs and nodes of one workload, and the replicas that its peak alone takes."""

    base: int
    reserve: Reserve
    replicas: int
    gpus: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Need:
    """What one workload asks of its GPUs: the demand at the peak, and what one replica serves of it.

    Both are in requests/s or, of a closed loop, in requests in flight (`in_flight`).
    """

    demand: float
    per_replica: float
    headroom: float
    fit: Fit
    base: int
    in_flight: bool

    def replicas(self, times: float = 1.0) -> int:
        """Return the replicas that so many times the demand takes, with its headroom, rounded up once."""
        return capacity.replicas_for(times * self.demand * (1 + self.headroom), self.per_replica)

    def without(self, replicas: int) -> Need:
        """Return the same with so many of its replicas kept idle, and less served. Raises InputError where none is left."""
        if replicas >= self.base:
            message = f"{replicas} spare of {self.base} replicas leave none to serve"
            raise InputError(Fault(message, field="--spare", allowed=f"at most {self.base - 1}"))
        left = self.base - replicas
        return replace(self, base=left, demand=self.per_replica * left)


def need_of(best: Evaluated, request: Request) -> Need:
    """Return the need of an answer of the search.

    What one replica serves is the most within all limits; where a simulation asked for more replicas than that most
    explains, it is the load that was confirmed.
    """
    layout, gpu = best.candidate.layout, best.candidate.option.gpu
    fit = Fit(layout.gpus, gpu.datasheet.node.gpus)
    demand = request.concurrency or request.requests_per_s
    in_flight = request.concurrency is not None
    if demand is None:
        most = best.most_per_replica
        return Need(most * best.replicas, most, 0.0, fit, best.replicas, in_flight)
    found = Need(float(demand), best.most_per_replica, request.headroom, fit, best.replicas, in_flight)
    if found.replicas() != best.replicas:
        confirmed = found.demand * (1 + found.headroom) / best.replicas
        found = replace(found, per_replica=confirmed)
    return found


def reserve_of(base: int, fit: Fit, rules: Rules) -> Reserve:
    """Return the reserve of so many replicas. Raises UnreachableError for a target that none of a sensible size reaches."""
    lost = fit.replicas_lost_with_a_node if rules.maintenance else 0
    if rules.availability is None or rules.unit_availability is None:
        return Reserve(rules.spare, 0, lost)
    unit, target = of_replica(fit, rules.unit_availability), rules.availability
    found = availability.fewest(base, unit, target)
    if rules.by_node:
        found = availability.fewest_by_node(base, unit, target, fit)
    if found is None:
        raise availability.UnreachableError(
            f"no reserve of up to {availability.MOST_SPARE:,} replicas keeps {base:,} up {target * 100:g} % of the time with "
            f"nodes that are up {rules.unit_availability * 100:.3g} % of it; nodes from "
            f"{_node_needed(base, target, fit, rules) * 100:.2f} % on would"
        )
    return Reserve(rules.spare, found - base, lost)


def _node_needed(base: int, target: float, fit: Fit, rules: Rules) -> float:
    """Return the least availability of a node that reaches a target with the largest reserve."""
    unit = availability.enough(base, target, fit, by_node=rules.by_node)
    return math.ceil(float(unit ** (1 / fit.nodes_per_replica)) * HUNDREDTHS) / HUNDREDTHS


def of_replica(fit: Fit, node_availability: float) -> float:
    """Return the availability of a replica: that of all nodes that it spans together."""
    return float(node_availability**fit.nodes_per_replica)


def size_of(need: Need, rules: Rules) -> Size:
    """Return the size of a need with its reserve."""
    reserve = reserve_of(need.base, need.fit, rules)
    total = need.base + reserve.replicas
    return Size(need.base, reserve, total, total * need.fit.gpus_per_replica, need.fit.nodes(total))


def order_with(rules: Rules) -> Callable[[Evaluated, Request], tuple[float, ...]]:
    """Return the order of preference among sizes that counts their reserves: many small replicas spare less than few large ones."""

    def order(found: Evaluated, request: Request) -> tuple[float, ...]:
        first, *others = preference(found, request)
        if request.requests_per_s is None and request.concurrency is None:
            return (first, *others)
        try:
            gpus = float(size_of(need_of(found, request), rules).gpus)
        except availability.UnreachableError:
            gpus = math.inf
        return (first * gpus / found.gpus, gpus, first, *others)

    return order
