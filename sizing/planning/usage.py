"""The usage that the cost of a sized deployment depends on: its rate at full use, and the yearly load."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal, NamedTuple

from sizing.answers.answer import Answer
from sizing.formats.words import joined
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.nodes import Fit, packed
from sizing.planning.size import need_of
from sizing.question.demand import BATCH, Demanded
from sizing.question.question import Question
from sizing.replica.capacity import point_at_rate
from sizing.specs import demand
from sizing.specs.demand import HOURS_OF_DAY
from sizing.specs.workload import Planning

LoadKind = Literal["mean_load", "stated_demand", "as_sized"]
Split = float | Literal["time"]
BY_TIME: Literal["time"] = "time"


class ByLoad(NamedTuple):
    """A figure at three loads: full use (the highest rate within the limits, around the clock), the report's load, the mean.

    Where the mean load is known, `mean_load` equals `at_load`. Otherwise `mean_load` is null.
    """

    full_use: float
    at_load: float
    mean_load: float | None = None


class YearLoad(NamedTuple):
    """The yearly load of a `Usage`; `sized_to_load` is at least 1."""

    kind: LoadKind
    per_s: float
    sized_to_load: float
    hours: tuple[float, ...] = (1.0,)
    hours_said: str = ""


class Usage(NamedTuple):
    """The usage of a deployment, and the load of a year.

    Of separate pools a replica is the smallest number of replicas of both in their ratio.
    """

    gpu: str
    isl: int
    osl: int
    replicas: int
    gpus_per_replica: int
    per_replica_per_s: float  # at full use
    split: Split  # of a request's cost: by `time`, or by the ratio of prices of output and input tokens
    input_shares: ByLoad  # of prefill in a request's time
    load: LoadKind
    load_per_s: float  # the mean where known, else the stated demand, else the highest rate
    sized_to_load: float  # the rate sized for, with headroom, divided by `load_per_s`
    hours: tuple[float, ...] = (1.0,)  # the rates sized for, as shares of the busiest hour
    hours_said: str = ""  # the source of these
    at_rest: int = 1  # replicas that wait in an hour without requests; offline work needs none
    of_pools: tuple[tuple[int, int], ...] = ()  # (GPUs, how many) of a pair's replicas

    @property
    def unit(self) -> str:
        """What `replicas` counts."""
        return "pair of pools" if self.of_pools else "replica"

    @property
    def joined_gpus(self) -> int:
        """The GPUs that one replica joins: of separate pools, those of the largest replica."""
        return max((gpus for gpus, _ in self.of_pools), default=self.gpus_per_replica)

    def fit(self, gpus_per_node: int) -> Fit:
        """How the replicas fit on nodes; the replicas of separate pools share nodes."""
        if not self.of_pools or self.gpus_per_replica <= gpus_per_node:
            return Fit(self.gpus_per_replica, gpus_per_node)
        return Fit(packed(self.of_pools, gpus_per_node) * gpus_per_node, gpus_per_node)

    @property
    def mean_per_s(self) -> float | None:
        """The mean rate around the clock, None where nothing states it."""
        return self.load_per_s if self.load == "mean_load" else None

    @property
    def capacity_per_s(self) -> float:
        """Requests/s of the deployment at full use."""
        return self.replicas * self.per_replica_per_s

    def per_unit_per_s(self, fit: Fit) -> float:
        """Requests/s of one server or instance at full use."""
        return fit.replicas_together * self.per_replica_per_s / fit.nodes_per_replica

    def by_load(self, full_use: float, at_load: float) -> ByLoad:
        """A figure by load; `at_load` is also the figure at the mean load where the mean is known."""
        return ByLoad(full_use, at_load, at_load if self.load == "mean_load" else None)

    def busy(self, capacity_per_s: float) -> float:
        """The load as a share of `capacity_per_s`."""
        return min(1.0, self.load_per_s / capacity_per_s)

    def requests_per_day_of(self, replicas: int) -> float:
        """The requests a day of a load whose peak, including headroom, brings `replicas` replicas to full use."""
        return replicas * self.per_replica_per_s * SECONDS_PER_DAY / self.sized_to_load


def usage_of(best: Answer, question: Question, planning: Planning, split: Split) -> Usage:
    """The usage of an answer; for users or requests in flight, `planning` decides whether the mean rate is known."""
    found = question.origin.demanded and question.origin.demanded.at_rate(best.requests_per_s, planning)
    replicas, sizes = math.gcd(*(pool.count for pool in best.pools)), Counter[int]()
    for pool in best.pools if best.separate else ():
        sizes[pool.replica.layout.gpus] += pool.count // replicas
    each = best.most_requests_per_s / replicas if best.separate else full_use_per_replica(best, question)
    load = load_of(found, question.rules.headroom, each * replicas)
    names = joined(pool.replica.gpu_type.name for pool in best.pools)
    deployed = (names, question.service.isl, question.service.osl, replicas, best.gpus // replicas)
    shares = _shares_of_pools(best) if best.separate else _input_shares(best, load.per_s)
    at_rest = 0 if question.target.offline else 1
    return Usage(*deployed, each, split, shares, *load, at_rest=at_rest, of_pools=tuple(sizes.items()))


def _shares_of_pools(best: Answer) -> ByLoad:
    """Input tokens bear the cost of the prefill pool, output tokens that of the decode pool."""
    usd = [pool.usd_per_hour for pool in best.pools]
    costs = [float(pool.gpus) for pool in best.pools] if None in usd else [each or 0.0 for each in usd]
    return ByLoad(costs[0] / sum(costs), costs[0] / sum(costs))


def load_of(demanded: Demanded | None, headroom: float, capacity_per_s: float) -> YearLoad:
    """The yearly load of a demand with rates; without a demand, `capacity_per_s`, the capacity of the sized replicas."""
    if demanded is None:
        return YearLoad("as_sized", capacity_per_s, 1.0)
    assert demanded.busy_per_s is not None and demanded.peak_per_s is not None
    kind: LoadKind = "stated_demand" if demanded.mean_per_s is None else "mean_load"
    per_s = demanded.busy_per_s if demanded.mean_per_s is None else demanded.mean_per_s
    rates = demanded.by_hour_per_s()
    hours = tuple(rate / max(rates) for rate in rates)
    return YearLoad(kind, per_s, max(1.0, demanded.peak_per_s * (1 + headroom) / per_s), hours, _hours_said(demanded))


def _hours_said(demanded: Demanded) -> str:
    """Write which hourly profile the replicas follow."""
    if demanded.kind == BATCH:
        rest = ", no replica runs in the others" if demanded.habits.active_hours < HOURS_OF_DAY else ""
        return f"the batch takes {demanded.habits.active_hours:.3g} hours of a day{rest}"
    if demanded.shape is not None:
        return f"by the profile {demanded.shape.name}"
    active = math.ceil(demanded.habits.active_hours)
    idle = f", 1 replica in the other {HOURS_OF_DAY - active}" if active < HOURS_OF_DAY else ""
    return f"assumed: {demanded.habits.peak_hours} of {active} active hours at the peak, the rest even{idle}"


def full_use_per_replica(best: Answer, question: Question) -> float:
    """Requests/s of one replica at full use: the highest rate within all limits.

    Where the simulation needed more replicas than that rate requires, the confirmed rate per replica is returned.
    """
    need, pool = need_of(best, question), best.pool
    if not need.in_flight:
        return need.per_replica
    explained = demand.replicas_for(need.demand * (1 + need.headroom), pool.capacity.amount) == pool.count
    return pool.capacity.requests_per_s if explained else best.requests_per_s / pool.count


def _input_shares(best: Answer, load_per_s: float) -> ByLoad:
    pool, most = best.pool, best.pool.capacity

    def share(decoding: float) -> float:
        prefill_s, decode_s = pool.timed.phases_s(decoding)
        return prefill_s / (prefill_s + decode_s)

    rate = min(load_per_s / pool.count, most.requests_per_s)
    return ByLoad(share(most.decoding), share(point_at_rate(pool.timed, rate, most).decoding))
