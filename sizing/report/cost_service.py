"""What a sized deployment serves, in the terms that money is counted in: full use, mean load, and what is bought at once."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sizing.answers.answer import Answer
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.size import Fit, need_of
from sizing.question.demand import says_shape
from sizing.question.question import Question
from sizing.replica.capacity import Capacity
from sizing.report.documents_cost import Load, Loads
from sizing.specs import demand
from sizing.specs.workload import Planning

Split = float | Literal["time"]


class Service(NamedTuple):
    """What a deployment serves: replicas of `gpus_per_replica`, requests/s of one at full use, and the load it sees.

    `load_per_s` is the rate around the clock that a year is counted at: the mean where it is known; else the demand as stated,
    which the load does not exceed; without a demand what the replicas sized serve at most. `sized_to_load` is the rate sized
    for, headroom in it, over that. `input_shares` are the parts of a request's time that are prefill, at full use and at it.
    """

    gpu: str
    isl: int
    osl: int
    replicas: int
    gpus_per_replica: int
    per_replica_per_s: float
    load: Load
    load_per_s: float
    sized_to_load: float
    split: Split
    input_shares: Loads

    @property
    def mean_per_s(self) -> float | None:
        """The mean around the clock, None where nothing says it."""
        return self.load_per_s if self.load == "mean_load" else None

    @property
    def capacity_per_s(self) -> float:
        """Requests/s of the deployment at full use."""
        return self.replicas * self.per_replica_per_s

    def busy(self, capacity_per_s: float) -> float:
        """Return the share of a capacity that the load is."""
        return min(1.0, self.load_per_s / capacity_per_s)

    def requests_per_day_of(self, replicas: int) -> float:
        """Requests a day that so many replicas hold, the peak of such a load within full use."""
        return replicas * self.per_replica_per_s * SECONDS_PER_DAY / self.sized_to_load


class Bundle(NamedTuple):
    """The least that is bought at once: units (servers, instances) that together hold whole replicas, and how many of them."""

    units: int
    replicas: int

    @classmethod
    def of(cls, fit: Fit) -> Bundle:
        """Return the bundle of a replica and a unit."""
        return cls(fit.nodes_per_replica, max(1, fit.replicas_per_node))


class _Seen(NamedTuple):
    """The load that a year is counted at, and the rate that is sized for, in requests/s."""

    load: Load
    per_s: float
    sized_per_s: float


def service_of(best: Answer, question: Question, planning: Planning, split: Split) -> Service:
    """Return what an answer of the search serves; `planning` says of requests in flight how far their mean is below the peak."""
    each = full_use_per_replica(best, question)
    seen = _seen(best, question, planning, each * best.pool.count)
    return Service(
        best.pool.replica.gpu_type.name, question.service.isl, question.service.osl, best.pool.count, best.pool.replica.layout.gpus,
        each, seen.load, seen.per_s, max(1.0, seen.sized_per_s / seen.per_s), split, _input_shares(best, seen.per_s),
    )  # fmt: skip


def _seen(best: Answer, question: Question, planning: Planning, capacity_per_s: float) -> _Seen:
    """Return the load: the mean, else the demand around the clock, else what is sized at most.

    Requests in flight are as many requests/s as the deployment answers while they are all there.
    """
    found = question.target.demanded
    if found is None:
        return _Seen("as_sized", capacity_per_s, capacity_per_s)
    if found.peak_per_s is None or found.busy_per_s is None:
        busy = sized = best.requests_per_s
        mean = found.habits.mean_of(busy) if says_shape(planning) else None
    else:
        busy, sized, mean = found.busy_per_s, found.peak_per_s, found.mean_per_s
    sized_per_s = sized * (1 + question.rules.headroom)
    return _Seen("stated_demand", busy, sized_per_s) if mean is None else _Seen("mean_load", mean, sized_per_s)


def full_use_per_replica(best: Answer, question: Question) -> float:
    """Return requests/s of one replica at full use: the most within all limits; where a simulation asked for more replicas
    than that explains, the rate that it confirmed."""
    need = need_of(best, question)
    if not need.in_flight:
        return need.per_replica
    explained = demand.replicas_for(need.demand * (1 + need.headroom), best.pool.capacity.amount) == best.pool.count
    return best.pool.capacity.requests_per_s if explained else best.requests_per_s / best.pool.count


def _input_shares(best: Answer, load_per_s: float) -> Loads:
    """Return the share of prefill in the time that a replica is busy with a request, at full use and at the load."""

    def share(decoding: float) -> float:
        prefill_s, decode_s = best.pool.load.phases_s(decoding)
        return prefill_s / (prefill_s + decode_s)

    most = Capacity(
        best.pool.capacity.amount,
        best.pool.capacity.requests_per_s,
        best.pool.capacity.decoding,
        best.pool.capacity.binding,
    )
    rate = min(load_per_s / best.pool.count, best.pool.capacity.requests_per_s)
    return Loads(share(best.pool.capacity.decoding), share(float(best.pool.load.at_rate(rate, most).decoding[0])))
