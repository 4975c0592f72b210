"""The size of one workload: replicas, GPUs and whole nodes for its peak, plus reserves.

A node holds several replicas, or a replica spans several nodes. Reserves keep enough replicas up with a target
probability.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from sizing.answers.answer import Answer, preference
from sizing.planning.rules import ProvisionRules
from sizing.question.question import Question
from sizing.specs import demand
from sizing.specs.errors import InputError


class Fit(NamedTuple):
    """The GPUs of a replica and of the server that it runs on."""

    gpus_per_replica: int
    gpus_per_node: int

    @property
    def replicas_per_node(self) -> int:
        """Replicas that fit on one node; 0 where a replica spans several nodes."""
        return self.gpus_per_node // self.gpus_per_replica

    @property
    def nodes_per_replica(self) -> int:
        """Whole nodes that one replica needs; 1 where replicas share a node."""
        return -(-self.gpus_per_replica // self.gpus_per_node)

    @property
    def replicas_together(self) -> int:
        """Replicas lost while one node is down; also the replicas of the smallest purchase of whole nodes."""
        return max(1, self.replicas_per_node)

    def nodes(self, replicas: int) -> int:
        """Nodes for `replicas` replicas; each replica is on as few nodes as possible."""
        if self.replicas_per_node == 0:
            return replicas * self.nodes_per_replica
        return -(-replicas // self.replicas_per_node)


def packed(replicas: Mapping[int, int], gpus_per_node: int) -> int:
    """The nodes for `replicas`, a count by GPUs of a replica; large replicas are placed first, on the fullest node."""
    nodes, free = 0, Counter[int]()
    for size in sorted(replicas, reverse=True):
        count = replicas[size]
        if size > gpus_per_node:
            nodes += count * -(-size // gpus_per_node)
            continue
        for room in sorted(room for room in free if room >= size):
            fit = room // size
            used = min(free[room], -(-count // fit))
            free[room] -= used
            added = min(count, used * fit)
            _leave(free, room, size, used, added)
            count -= added
        fit = gpus_per_node // size
        new = -(-count // fit)
        nodes += new
        _leave(free, gpus_per_node, size, new, count)
    return nodes


def _leave(free: Counter[int], room: int, size: int, nodes: int, replicas: int) -> None:
    """Record the room left on nodes that take replicas of one size; all but the last node are filled."""
    fit = room // size
    full, rest = divmod(replicas, fit)
    free[room - fit * size] += full
    if nodes > full:
        free[room - rest * size] += nodes - full


MOST_SPARE = 2_000  # the largest reserve tried for a target; beyond it, better nodes are needed
CHANCE_ROUNDING = 1e-12  # rounding error of a probability that is a sum of many terms
DIGITS_OF_AVAILABILITY = 1e-4


class UnreachableError(Exception):
    """No reserve of a reasonable size reaches a target; the message gives the node availability that would."""


ALONE = Fit(1, 1)  # replicas that fail one by one


def up(n: int, k: int, availability: float, fit: Fit = ALONE) -> float:
    """P(at least k of n are up) = sum over i >= k of C(n, i) A^i (1 - A)^(n - i), with independent availability A.

    Replicas that share a node fail together. They are spread evenly over the smallest number of nodes.
    """
    if not 0 <= k <= n:
        return 0.0
    nodes = fit.nodes(n)
    if fit.replicas_per_node <= 1 or nodes == 0:
        return min(1.0, math.fsum(_exactly(n, down, 1 - availability) for down in range(n - k + 1)))
    each, fuller = divmod(n, nodes)
    total = 0.0
    for down_full in range(fuller + 1):
        for down_rest in range(nodes - fuller + 1):
            if n - down_full * (each + 1) - down_rest * each < k:
                break
            total += _exactly(fuller, down_full, 1 - availability) * _exactly(
                nodes - fuller, down_rest, 1 - availability
            )
    return min(1.0, total)


def fewest(k: int, availability: float, target: float, fit: Fit = ALONE) -> int | None:
    """The smallest n for which at least k are up with probability `target`; None where no n is enough."""
    most = _most(k, fit)
    if not reaches(up(most, k, availability, fit), target):
        return None
    if fit.replicas_per_node > 1:  # a larger n may lower the probability, so every n is tried
        return next(n for n in range(k, most + 1) if reaches(up(n, k, availability, fit), target))
    spare = 1  # doubled until it is enough: usually few are, and longer reserves make longer sums
    while not reaches(up(min(k + spare, most), k, availability), target):
        spare *= 2
    tried = range(k, min(k + spare, most) + 1)
    return tried[bisect_left(tried, True, key=lambda n: reaches(up(n, k, availability), target))]


def enough(k: int, target: float, fit: Fit) -> float:
    """The lowest availability of a replica at which the largest reserve reaches `target`, to four digits."""
    most, low, high = _most(k, fit), 0.0, 1.0
    while high - low > DIGITS_OF_AVAILABILITY:
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(up(most, k, middle, fit), target) else (middle, high)
    return high


def reaches(chance: float, target: float) -> bool:
    """Whether a probability reaches a target, up to rounding."""
    return chance >= target - CHANCE_ROUNDING


def _most(k: int, fit: Fit) -> int:
    """The largest number of replicas to try, on full nodes."""
    each = fit.replicas_together
    return -(-(k + MOST_SPARE) // each) * each


def _exactly(n: int, hits: int, share: float) -> float:
    """Binomial probability of exactly `hits` hits; logarithms avoid overflow and underflow for large n."""
    if share <= 0 or share >= 1:
        return float(hits == (0 if share <= 0 else n))
    log = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    return math.exp(log + hits * math.log(share) + (n - hits) * math.log1p(-share))


ROUNDING = 1e-9
HUNDREDTHS = 1e4  # hundredths of a per cent in 1: availabilities are shown with two decimals


class Reserve(NamedTuple):
    """Replicas in addition to those for the peak.

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


@dataclass(frozen=True, slots=True)
class Need:
    """The demand of one workload at the peak, and the capacity of one replica.

    Both are in requests/s or, for a closed loop (`in_flight`), in requests in flight. `per_replica` is what a replica is
    sized for. `within_limits` is the most that it serves within the limits, without a margin for published runs.
    """

    demand: float
    per_replica: float
    headroom: float
    fit: Fit
    base: int
    in_flight: bool
    most: float | None = None

    @property
    def within_limits(self) -> float:
        """The most that a replica serves within the limits, and no less than its part of the demand."""
        return self.per_replica if self.most is None else max(self.most, self.demand / self.base)

    def replicas(self, times: float = 1.0) -> int:
        """The replicas for `times` times the demand plus headroom, rounded up once."""
        return demand.replicas_for(times * self.demand * (1 + self.headroom), self.per_replica)

    def confirmed(self, replicas: int) -> Need:
        """This need with a `per_replica` that gives `replicas`, the count that was found to serve it."""
        if self.replicas() == replicas:
            return self
        return replace(self, per_replica=self.demand * (1 + self.headroom) / replicas)

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
    return Need(demand, most / pool.margin, question.rules.headroom, fit, pool.count, in_flight, most).confirmed(
        pool.count
    )


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
            f"{_node_needed(enough(base, target, failing), fit) * 100:.2f} % on would"
        )
    spare = found - base
    return Reserve(rules.spare, spare, lost, max(rules.spare, spare) + lost)


def _node_needed(unit: float, fit: Fit) -> float:
    """The node availability that gives a replica the availability `unit`, rounded up."""
    return math.ceil(float(unit ** (1 / fit.nodes_per_replica)) * HUNDREDTHS) / HUNDREDTHS


def of_replica(fit: Fit, node_availability: float) -> float:
    """The availability of a replica: the probability that all of its nodes are up."""
    return float(node_availability**fit.nodes_per_replica)


def size_of(need: Need, rules: ProvisionRules) -> Size:
    """The size of a need with its reserve."""
    reserve = reserve_of(need.base, need.fit, rules)
    total = need.base + reserve.replicas
    return Size(need.base, reserve, total, total * need.fit.gpus_per_replica, need.fit.nodes(total))


def order_with(rules: ProvisionRules) -> Callable[[Answer, Question], tuple[float, ...]]:
    """The order of preference among sizes including reserves: many small replicas need a smaller reserve."""

    def order(found: Answer, question: Question) -> tuple[float, ...]:
        first, *others = preference(found, question)
        if question.target.amount is None:
            return (first, *others)
        try:
            gpus = float(size_of(need_of(found, question), rules).gpus)
        except UnreachableError:
            gpus = math.inf
        return (first * gpus / found.gpus, gpus, first, *others)

    return order
