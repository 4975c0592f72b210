"""What a sized deployment serves, in the terms that money is counted in: full use, mean load, and what is bought at once."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sizing import capacity
from sizing.break_even import SECONDS_PER_DAY
from sizing.load import Most
from sizing.plan.nodes import Fit
from sizing.plan.size import need_of
from sizing.report.documents_cost import Loads
from sizing.request import Request
from sizing.search import Evaluated

Split = float | Literal["time"]


class Service(NamedTuple):
    """What a deployment serves: replicas of `gpus_per_replica`, requests/s of one at full use, and the mean it sees.

    `sized_to_mean` is the rate it is sized for, headroom in it, over the mean; 1 where no mean is known. `input_shares` are the
    parts of a request's time that are prefill, at full use and at the mean load.
    """

    gpu: str
    isl: int
    osl: int
    replicas: int
    gpus_per_replica: int
    per_replica_per_s: float
    mean_per_s: float | None
    sized_to_mean: float
    split: Split
    input_shares: Loads

    @property
    def load(self) -> str:
        """The load of what is quoted a year: the mean where it is known."""
        return "full_use" if self.mean_per_s is None else "mean_load"

    @property
    def capacity_per_s(self) -> float:
        """Requests/s of the deployment at full use."""
        return self.replicas * self.per_replica_per_s

    def busy(self, capacity_per_s: float) -> float | None:
        """Return the share of a capacity that the mean load is, None where no mean is known."""
        return None if self.mean_per_s is None else min(1.0, self.mean_per_s / capacity_per_s)

    def requests_per_day_of(self, replicas: int) -> float:
        """Mean requests a day that so many replicas hold, their peak within full use."""
        return replicas * self.per_replica_per_s * SECONDS_PER_DAY / self.sized_to_mean


class Bundle(NamedTuple):
    """The least that is bought at once: units (servers, instances) that together hold whole replicas, and how many of them."""

    units: int
    replicas: int

    @classmethod
    def of(cls, fit: Fit) -> Bundle:
        """Return the bundle of a replica and a unit."""
        return cls(fit.nodes_per_replica, max(1, fit.replicas_per_node))


def service_of(best: Evaluated, request: Request, split: Split) -> Service:
    """Return what an answer of the search serves."""
    found = request.demanded
    mean = found.mean_per_s if found is not None else None
    peak = found.peak_per_s if found is not None else None
    ratio = 1.0 if mean is None or peak is None else max(1.0, peak * (1 + request.headroom) / mean)
    full, at_mean = _input_shares(best, mean)
    return Service(
        best.candidate.option.name, request.isl, request.osl, best.replicas, best.candidate.layout.gpus,
        full_use_per_replica(best, request), mean, ratio, split, Loads(full, at_mean),
    )  # fmt: skip


def full_use_per_replica(best: Evaluated, request: Request) -> float:
    """Return requests/s of one replica at full use: the most within all limits; where a simulation asked for more replicas
    than that explains, the rate that it confirmed."""
    need = need_of(best, request)
    if not need.in_flight:
        return need.per_replica
    explained = capacity.replicas_for(need.demand * (1 + need.headroom), best.most_per_replica) == best.replicas
    return best.most_requests_per_s if explained else best.requests_per_s / best.replicas


def _input_shares(best: Evaluated, mean_per_s: float | None) -> tuple[float, float | None]:
    """Return the share of prefill in the time that a replica is busy with a request, at full use and at the mean load."""

    def share(decoding: float) -> float:
        prefill_s, decode_s = best.load.phases_s(decoding)
        return prefill_s / (prefill_s + decode_s)

    full = share(best.most_decoding)
    if mean_per_s is None:
        return full, None
    most = Most(best.most_per_replica, best.most_requests_per_s, best.most_decoding, best.binding)
    rate = min(mean_per_s / best.replicas, best.most_requests_per_s)
    return full, share(float(best.load.at_rate(rate, most).decoding[0]))
