"""What the money of a sized deployment depends on: its full use, and the load that a year is counted at."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from sizing.answers.answer import Answer
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.size import need_of
from sizing.question.demand import Demanded
from sizing.question.question import Question
from sizing.replica.capacity import point_at_rate
from sizing.specs import demand
from sizing.specs.demand import HOURS_OF_DAY
from sizing.specs.workload import Planning

LoadKind = Literal["mean_load", "stated_demand", "as_sized"]
Split = float | Literal["time"]
BY_TIME: Literal["time"] = "time"


class ByLoad(NamedTuple):
    """A figure at the highest rate within the limits around the clock, at the load of the report, and at the mean load.

    The last two are the same where the mean is known; where it is not, the last is None.
    """

    full_use: float
    at_load: float
    mean_load: float | None = None


class Usage(NamedTuple):
    """The usage of a deployment: replicas of `gpus_per_replica`, requests/s of one at full use, and the load.

    `load_per_s` is the rate around the clock that a year is counted at: the mean where it is known; else the demand as
    stated, which the load does not exceed; without a demand what the replicas sized serve at most. `sized_to_load` is
    the rate sized for, headroom in it, over that. `input_shares` are the parts of a request's time that are prefill.
    `split` divides a request's cost: `time`, or the price of an output token over that of an input token. `hours` are the
    rates sized for in each hour, as shares of the busiest; `hours_said` says where they are from.
    """

    gpu: str
    isl: int
    osl: int
    replicas: int
    gpus_per_replica: int
    per_replica_per_s: float
    load: LoadKind
    load_per_s: float
    sized_to_load: float
    split: Split
    input_shares: ByLoad
    hours: tuple[float, ...] = (1.0,)
    hours_said: str = ""

    @property
    def mean_per_s(self) -> float | None:
        """The mean rate around the clock, None where nothing states it."""
        return self.load_per_s if self.load == "mean_load" else None

    @property
    def capacity_per_s(self) -> float:
        """Requests/s of the deployment at full use."""
        return self.replicas * self.per_replica_per_s

    def by_load(self, full_use: float, at_load: float) -> ByLoad:
        """A figure by load: at full use, and at the load of the report, which is also the mean load where the mean is known."""
        return ByLoad(full_use, at_load, at_load if self.load == "mean_load" else None)

    def busy(self, capacity_per_s: float) -> float:
        """The load as a share of `capacity_per_s`."""
        return min(1.0, self.load_per_s / capacity_per_s)

    def requests_per_day_of(self, replicas: int) -> float:
        """Requests a day on `replicas` replicas, with the peak of such a load within full use."""
        return replicas * self.per_replica_per_s * SECONDS_PER_DAY / self.sized_to_load


def usage_of(best: Answer, question: Question, planning: Planning, split: Split) -> Usage:
    """The usage of an answer; `planning` relates the mean of requests in flight to the peak."""
    each = full_use_per_replica(best, question)
    found = question.origin.demanded and question.origin.demanded.at_rate(best.requests_per_s, planning)
    load = load_of(found, question.rules.headroom, each * best.pool.count)
    service = question.service
    return Usage(
        best.pool.replica.gpu_type.name, service.isl, service.osl, best.pool.count, best.pool.replica.layout.gpus, each,
        load.kind, load.per_s, load.sized_to_load, split, _input_shares(best, load.per_s), load.hours, load.hours_said,
    )  # fmt: skip


class YearLoad(NamedTuple):
    """The load that a year is counted at, the rate sized for over it, at least 1, and the hours of a `Usage`."""

    kind: LoadKind
    per_s: float
    sized_to_load: float
    hours: tuple[float, ...] = (1.0,)
    hours_said: str = ""


def load_of(found: Demanded | None, headroom: float, capacity_per_s: float) -> YearLoad:
    """The load of a year of a demand with rates; without a demand, `capacity_per_s`: what the replicas sized serve."""
    if found is None:
        return YearLoad("as_sized", capacity_per_s, 1.0)
    assert found.busy_per_s is not None and found.peak_per_s is not None
    kind: LoadKind = "stated_demand" if found.mean_per_s is None else "mean_load"
    per_s = found.busy_per_s if found.mean_per_s is None else found.mean_per_s
    rates = found.by_hour_per_s()
    hours = tuple(rate / max(rates) for rate in rates)
    return YearLoad(kind, per_s, max(1.0, found.peak_per_s * (1 + headroom) / per_s), hours, _hours_said(found))


def _hours_said(found: Demanded) -> str:
    """Write by which hours replicas follow a load."""
    if found.shape is not None:
        return f"by the profile {found.shape.name}"
    active = math.ceil(found.habits.active_hours)
    idle = f", one replica in the other {HOURS_OF_DAY - active}" if active < HOURS_OF_DAY else ""
    return f"assumed: one of {active} active hours at the peak, the rest of the load in the others{idle}"


def full_use_per_replica(best: Answer, question: Question) -> float:
    """Requests/s of one replica at full use: the most within all limits.

    Where a simulation needed more replicas than that, it is the confirmed rate.
    """
    need, pool = need_of(best, question), best.pool
    if not need.in_flight:
        return need.per_replica
    explained = demand.replicas_for(need.demand * (1 + need.headroom), pool.capacity.amount) == pool.count
    return pool.capacity.requests_per_s if explained else best.requests_per_s / pool.count


def _input_shares(best: Answer, load_per_s: float) -> ByLoad:
    pool, most = best.pool, best.pool.capacity

    def share(decoding: float) -> float:
        prefill_s, decode_s = pool.load.phases_s(decoding)
        return prefill_s / (prefill_s + decode_s)

    rate = min(load_per_s / pool.count, most.requests_per_s)
    return ByLoad(share(most.decoding), share(point_at_rate(pool.load, rate, most).decoding))
