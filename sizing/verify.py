"""The answer checked by simulation: the closed form's choice under the stated demand, and the next size where it hoped for too much.

One replica is simulated under its share of the demand (Poisson arrivals thin to Poisson, and equal replicas are alike).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

from sizing.engine.load import Lengths
from sizing.engine.rules import of_engine
from sizing.request import Request
from sizing.search import Evaluated, Outcome, objective_key
from sizing.simulation import Deployed, Served, Traffic, simulate
from sizing.specs.workload import Limits, Tokens

REQUESTS = 1500  # enough for a mean within a few per cent and a rough 99th percentile, in a tenth of a second
ROUNDS = 3  # of a closed loop: each requests slot is filled at least so often
WARM_UP_SHARE = 0.1
MOST_TRIES = 12  # sizes simulated before giving up; a demand that none of them meets is reported as unverified
LESS_LOAD = 0.95  # of the load before, where the number of GPUs is fixed and a simulation misses a limit
TOLERANCE = 0.02  # of a limit: what so short a run leaves open


@dataclass(frozen=True, slots=True)
class Verified:
    """An outcome whose best answer was simulated; `passed` is False where no size tried was confirmed."""

    outcome: Outcome
    passed: bool
    tries: int


def lengths_of(tokens: Tokens) -> tuple[Lengths, Lengths]:
    """Return the length distributions of a workload: fixed, or lognormal where a spread is stated."""
    return _lengths(tokens.isl, tokens.isl_std), _lengths(tokens.osl, tokens.osl_std)


def _lengths(mean: float, std: float | None) -> Lengths:
    return Lengths(mean, std, "lognormal") if std else Lengths(mean)


def verify(outcome: Outcome, tokens: Tokens, *, seed: int = 0) -> Verified:
    """Return the outcome with the best size that the simulator confirms first, or the last one tried (`passed` False).

    Sizes are tried in the order of the objective: a layout that fails comes back with one replica more, or, where only a
    budget of GPUs is given, at less load.
    """
    request = outcome.request
    heap = [(objective_key(e, request.objective), number, e) for number, e in enumerate(outcome.ranked)]
    if _scales(request):
        heapq.heapify(heap)
    tried = 0
    while heap and tried < MOST_TRIES:
        tried += 1
        _, number, candidate = heapq.heappop(heap) if _scales(request) else heap.pop(0)
        served = simulated(candidate, request, tokens, seed=seed)
        checked = replace(candidate, served=served)
        if meets(served, request.limits) or tried == MOST_TRIES:
            others = [e for n, e in enumerate(outcome.ranked) if n != number]
            passed = meets(served, request.limits)
            return Verified(replace(outcome, ranked=(checked, *others)), passed, tried)
        if _scales(request):
            more = candidate.with_replicas(candidate.replicas + 1, request)
            heapq.heappush(heap, (objective_key(more, request.objective), number, more))
        else:
            heap.insert(0, (objective_key(candidate, request.objective), number, candidate.at_share(LESS_LOAD)))
    return Verified(outcome, False, tried)


def _scales(request: Request) -> bool:
    """A demand can be met by more replicas; a budget of GPUs alone cannot."""
    return request.requests_per_s is not None or request.concurrency is not None


def simulated(candidate: Evaluated, request: Request, tokens: Tokens, *, seed: int = 0) -> Served:
    """Simulate one replica of a size under its share of the demand."""
    chosen = candidate.candidate
    deployed = Deployed(
        model=request.model,
        layout=chosen.layout,
        kernels=candidate.load.kernels,
        memory=chosen.memory,
        rules=of_engine(chosen.settings),
    )
    isl, osl = lengths_of(tokens)
    traffic = Traffic(isl, osl, REQUESTS, longest=request.max_model_len, warm_up_share=WARM_UP_SHARE, seed=seed)
    if request.concurrency is not None:
        share = max(1, -(-request.concurrency // candidate.replicas))
        return simulate(
            deployed,
            replace(traffic, in_flight=share, count=max(ROUNDS * share, 2 * share), warm_up_share=0.0),
        )
    rate = candidate.requests_per_s / candidate.replicas
    return simulate(deployed, replace(traffic, rate_per_s=rate))


def meets(served: Served, limits: Limits) -> bool:
    """Return whether a run was stable, served all, and kept every limit on the statistic that it bounds."""
    if not served.stable or served.refused or not served.completed:
        return False
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        found = served.latencies_s[name]
        if limit is not None and found and found[limit.statistic] > limit.seconds * (1 + TOLERANCE):
            return False
    return True
