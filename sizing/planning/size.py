"""The size of one workload: replicas, GPUs and whole nodes for its peak, plus reserves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from sizing.answers.answer import Answer, Order, Rank, preference
from sizing.planning.nodes import ALONE, MOST_SPARE, Fit, UnreachableError, enough, fewest, node_needed, of_replica
from sizing.planning.rules import ProvisionRules
from sizing.question.question import Question
from sizing.specs import demand
from sizing.specs.errors import InputError
from sizing.specs.frozen import Frozen

ROUNDING = 1e-9


class Reserve(NamedTuple):
    """Replicas in addition to the replicas for the peak.

    `replicas` is max(`spare`, `for_availability`) + `maintenance`. `spare` is the requested number; `maintenance` is the
    number lost while one node is out of service.
    """

    spare: int
    for_availability: int
    maintenance: int
    replicas: int

    @property
    def failures(self) -> int:
        """The replicas in reserve for failures."""
        return max(self.spare, self.for_availability)


class Size(NamedTuple):
    """Replicas, GPUs and nodes of one workload; `base` is the number of replicas for its peak alone."""

    base: int
    reserve: Reserve
    replicas: int
    gpus: int
    nodes: int


class Need(Frozen):
    """The demand of one workload at the peak and the capacity of one replica, in requests/s or requests in flight.

    A multiple of a demand in users, or in requests in flight at random times, takes the replicas that `users` says. A rate does
    not: users ask less often where answers take longer.
    """

    demand: float
    per_replica: float  # what a replica is sized for
    headroom: float
    fit: Fit
    base: int
    in_flight: bool  # whether both are requests in flight
    most: float | None = None  # within the limits, without a margin for published runs
    users: float | None = None
    users_per_replica: float = 0.0

    @property
    def within_limits(self) -> float:
        """The most that a replica serves within the limits, and no less than its part of the demand."""
        return self.per_replica if self.most is None else max(self.most, self.demand / self.base)

    def replicas(self, times: float = 1.0) -> int:
        """The replicas for `times` times the demand plus headroom, rounded up once."""
        if self.users is not None:
            return demand.replicas_for(times * self.users * (1 + self.headroom), self.users_per_replica)
        return demand.replicas_for(times * self.demand * (1 + self.headroom), self.per_replica)

    def with_replicas(self, replicas: int) -> Need:
        """This need with a `per_replica` that gives `replicas`, the count that was found to serve it."""
        found, needed = self, 1 + self.headroom
        if demand.replicas_for(self.demand * needed, self.per_replica) != replicas:
            found = replace(found, per_replica=self.demand * needed / replicas)
        if self.users is not None and self.replicas() != replicas:
            found = replace(found, users_per_replica=self.users * needed / replicas)
        return found

    def grown(self, times: float) -> Need:
        """This need for `times` times the demand, or the users."""
        users = None if self.users is None else times * self.users
        return replace(self, demand=self.demand * times, users=users, base=self.replicas(times))

    def without(self, replicas: int) -> Need:
        """This need and its demand without `replicas` idle replicas. Raises InputError where no replica is left."""
        if replicas >= self.base:
            message = f"{replicas} spare of {self.base} replicas leave none to serve"
            raise InputError(message, field="--spare", allowed=f"at most {self.base - 1}")
        left = self.base - replicas
        return replace(self, base=left, demand=self.per_replica * left)


def need_of(best: Answer, question: Question) -> Need:
    """The need of an answer of the search.

    The capacity of one replica is its highest load within all limits, divided by the margin for published runs that fall
    short. Where the simulation needed more replicas, the capacity is the confirmed load of one. For users, and for requests
    in flight that arrive at random times, the demand is the rate of the answer.
    """
    pool, target = best.pool, question.target
    fit = Fit(pool.replica.layout.gpus, pool.replica.gpu_type.gpu.datasheet.node.gpus)
    most, in_flight, demand = pool.capacity.amount, target.concurrency is not None, target.amount
    if target.population is not None:
        most, demand = pool.capacity.requests_per_s, best.requests_per_s
    if demand is None:
        return Need(most * pool.count, most, 0.0, fit, pool.count, in_flight)
    each, users = pool.capacity.amount / pool.margin, target.population
    found = Need(demand, most / pool.margin, question.rules.headroom, fit, pool.count, in_flight, most, users, each)
    return found.with_replicas(pool.count)


def reserve_of(base: int, fit: Fit, rules: ProvisionRules) -> Reserve:
    """The reserve of `base` replicas. Raises UnreachableError where no reserve reaches the target."""
    lost = fit.replicas_together if rules.maintenance else 0
    if rules.availability is None or rules.unit_availability is None:
        return Reserve(rules.spare, 0, lost, rules.spare + lost)
    unit, target = of_replica(fit, rules.unit_availability), rules.availability
    failing = fit if rules.by_node else ALONE
    found = fewest(base, unit, target, failing)
    if found is None:
        raise UnreachableError(
            f"no reserve of up to {MOST_SPARE:,} replicas keeps {base:,} up {target * 100:g} % of the time with "
            f"nodes that are up {rules.unit_availability * 100:.3g} % of it; nodes from "
            f"{node_needed(enough(base, target, failing), fit) * 100:.2f} % on would"
        )
    spare = found - base
    return Reserve(rules.spare, spare, lost, max(rules.spare, spare) + lost)


def size_of(need: Need, rules: ProvisionRules) -> Size:
    """The size of a need with its reserve."""
    reserve = reserve_of(need.base, need.fit, rules)
    total = need.base + reserve.replicas
    return Size(need.base, reserve, total, total * need.fit.gpus_per_replica, need.fit.nodes(total))


def order_with(rules: ProvisionRules) -> Order:
    """The order of preference among sizes including reserves: many small replicas need a smaller reserve."""

    def order(answer: Answer, question: Question) -> Rank:
        rank = preference(answer, question)
        if question.target.amount is None:
            return rank
        try:
            gpus = float(size_of(need_of(answer, question), rules).gpus)
        except UnreachableError:
            gpus = math.inf
        return rank._replace(size=(rank.size[0] * gpus / answer.gpus, gpus, *rank.size))

    return order
