"""The answer checked by simulation: the closed form's choice under the stated demand, and the next size where it hoped for too much.

One replica is simulated under its share of the demand: Poisson arrivals that a router spreads at random are Poisson at each
replica, and equal replicas are alike. What is measured is the steady state, after the start and before the end of the run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sizing.answers.search import Evaluated, Outcome, found_with, preference, replicas
from sizing.engine.requests import Lengths
from sizing.engine.rules import of_engine
from sizing.engine.simulation import ROUNDS, Deployed, Served, Traffic, simulate
from sizing.question.question import Question
from sizing.replica.capacity import most_of
from sizing.replica.timing import Timed
from sizing.specs.workload import Limits, Tokens

REQUESTS = 1000  # measured at first: means within a few per cent, a rough 99th percentile, some hundredths of a second
# A limit no further than this share from what was measured is decided by so many times as many: a percentile of the first
# run is off by a tenth or so.
CLOSE, CLOSE_PERCENTILE, LONGER = 0.05, 0.2, 8
# In E2E times of a request: until a load has settled, the least that is measured then, and until those measured have ended
# under the same load.
WARM_UP, MEASURED, COOL_DOWN = 3.0, 4.0, 1.5
ROUNDING = 1e-6  # of a demand, by which sums over replicas may differ from it
MOST_TRIES = 24  # sizes simulated before giving up; a demand that none of them meets is reported as unverified
LESS_LOAD = 0.95  # of the load before, where the number of GPUs is fixed and a simulation misses a limit
MOST_CHUNKS = 30_000  # prefill steps simulated at most: prompts cut into very many chunks are sampled by fewer requests
FEWEST_REQUESTS = 200

Order = Callable[[Evaluated, Question], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Verified:
    """An outcome whose best answer was simulated; `passed` is False where no size tried was confirmed."""

    outcome: Outcome
    passed: bool
    tries: int


def lengths_of(tokens: Tokens) -> tuple[Lengths, Lengths]:
    """Return the length distributions of a workload: fixed, or lognormal where a spread is stated."""
    return (
        turns_of(tokens) or _lengths(tokens.isl, tokens.isl_std, tokens.isl_max),
        _lengths(tokens.osl, tokens.osl_std, tokens.osl_max),
    )


def turns_of(tokens: Tokens) -> Lengths | None:
    """Return the distribution of prompts that are turns of conversations, None where they are not."""
    return Lengths(tokens.isl, shape="turns", among=tokens.prompts) if tokens.prompts else None


def _lengths(mean: float, std: float | None, longest: int | None) -> Lengths:
    return Lengths(mean, std, "lognormal", longest=longest) if std else Lengths(mean)


def verify(
    outcome: Outcome, tokens: Tokens, *, seed: int = 0, tries: int = MOST_TRIES, order: Order = preference
) -> Verified:
    """Return the outcome with the best size that the simulator confirms first, or the last one tried (`passed` False).

    Sizes are tried in their `order`, that of preference unless another is given. A layout that fails comes back with more replicas, or, where only a budget
    of GPUs is given, at less load, and waits for its turn among the others.
    """
    request = outcome.question
    heap = [(order(e, request), number, e) for number, e in enumerate(outcome.ranked)]
    heapq.heapify(heap)
    tried = 0
    while heap and tried < tries:
        tried += 1
        _, number, candidate = heapq.heappop(heap)
        served = simulated(candidate, request, tokens, seed=seed)
        checked = corrected(replace(candidate, served=served), request)
        passed = meets(served, limits_of(candidate, request)) and keeps_headroom(checked, request)
        if passed or tried == tries:
            others = tuple(e for _, _, e in sorted(heap, key=lambda entry: entry[:2]))
            return Verified(found_with(replace(outcome, ranked=(checked, *others))), passed, tried)
        less = (
            candidate.with_replicas(next_size(replace(candidate, served=served), request), request)
            if _scales(request)
            else candidate.at_share(LESS_LOAD)
        )
        heapq.heappush(heap, (order(less, request), number, less))
    return Verified(outcome, False, tried)


def keeps_headroom(checked: Evaluated, question: Question) -> bool:
    """Return whether a size serves the headroom that is asked for on top of the demand, as corrected by the simulation."""
    demand = question.target.concurrency or question.target.requests_per_s
    if not demand or not question.rules.headroom:
        return True
    return checked.most_per_replica * checked.replicas >= demand * (1 + question.rules.headroom) * (1 - ROUNDING)


def limits_of(found: Evaluated, question: Question) -> Limits:
    """Return the limits that a simulation of a size must keep: those asked for, at the edge that it is sized on."""
    return found.edge.limits(question.target.limits)


def next_size(failed: Evaluated, question: Question) -> int:
    """Return the replicas to try next: what the closed form asks for when corrected by the simulation, one more at least.

    The correction is gone half of the way at a time: it is largest where a limit is broken, and falls with the load.
    """
    most = most_of([failed.load], question.with_(limits=tightened_by(failed, question)).target)[0]
    needed = failed.replicas if most is None else replicas(question, failed.replica, most)
    return failed.replicas + max(1, (needed - failed.replicas) // 2)


def corrected(found: Evaluated, question: Question) -> Evaluated:
    """Return a simulated size with the most that it serves corrected by what the simulation saw.

    Where the simulated statistic is above the closed form's, the limit is tightened by that ratio before the closed form is
    asked how much more load it takes; so headroom and latencies beside it come from one picture.
    """
    tightened = tightened_by(found, question)
    if tightened is question.target.limits:
        return found
    load = question.target.concurrency / found.replicas if question.target.concurrency else found.point.requests_per_s
    most = most_of([found.load], question.with_(limits=tightened).target)[0]
    if most is None or most.amount <= load:
        return replace(found, most_per_replica=load, most_requests_per_s=found.point.requests_per_s)
    return replace(found, most_per_replica=most.amount, most_requests_per_s=most.requests_per_s, binding=most.binding)


def tightened_by(found: Evaluated, question: Question) -> Limits:
    """Return the limits with each that the simulation came nearer to than the closed form tightened by that ratio."""
    served = found.served
    tightened = question.target.limits
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(question.target.limits, name)
        if limit is None or served is None or not served.latencies_s[name]:
            continue
        closed_s = getattr(found.point, f"{name}_s")[limit.statistic]
        ratio = served.latencies_s[name][limit.statistic] / closed_s
        if ratio > 1:
            tighter = limit.model_copy(update={"seconds": limit.seconds / ratio})
            tightened = tightened.model_copy(update={name: tighter})
    return tightened


def _scales(question: Question) -> bool:
    """A demand can be met by more replicas; a budget of GPUs alone cannot."""
    return question.target.requests_per_s is not None or question.target.concurrency is not None


def simulated(candidate: Evaluated, question: Question, tokens: Tokens, *, seed: int = 0) -> Served:
    """Simulate one replica of a size under its share of the demand, for longer where a limit is near."""
    served = _simulated(candidate, question, tokens, REQUESTS, seed)
    if question.target.concurrency is None and is_close(served, limits_of(candidate, question)):
        return _simulated(candidate, question, tokens, LONGER * REQUESTS, seed)
    return served


def is_close(served: Served, limits: Limits) -> bool:
    """Return whether chance may decide on which side of a limit a run comes out."""
    for name in ("ttft", "itl", "e2e"):
        limit, found = getattr(limits, name), served.latencies_s[name]
        close = CLOSE if limit is not None and limit.statistic == "mean" else CLOSE_PERCENTILE
        if limit is not None and found and abs(found[limit.statistic] / limit.seconds - 1) < close:
            return True
    return False


def _simulated(candidate: Evaluated, question: Question, tokens: Tokens, requests: int, seed: int) -> Served:
    deployed = deployed_as(candidate.load)
    isl, osl = lengths_of(tokens)
    traffic = Traffic(isl, osl, 0, longest=question.service.max_model_len, seed=seed)
    if question.target.offline and question.target.requests_per_s is None and question.target.concurrency is None:
        full = candidate.load.slots  # whatever comes, the next waits
        return simulate(deployed, replace(traffic, in_flight=full, count=ROUNDS * full))
    if question.target.concurrency is not None:
        share = max(1, -(-question.target.concurrency // candidate.replicas))
        return simulate(deployed, replace(traffic, in_flight=share, count=ROUNDS * share))
    rate = candidate.requests_per_s / candidate.replicas
    in_flight = rate * candidate.point.e2e_s["mean"]
    chunks = candidate.load.batching.chunks
    return simulate(deployed, steady(traffic, rate, in_flight, chunks, requests), routing="round-robin")


def deployed_as(load: Timed, replicas: int = 1) -> Deployed:
    """Return equal replicas of a layout, to be simulated."""
    replica = load.replica
    extras = replica.service.extras
    return Deployed(
        model=replica.service.model,
        layout=replica.layout,
        kernels=load.kernels,
        memory=replica.memory,
        rules=of_engine(replica.settings, verified=extras.verified),
        replicas=replicas,
        prefix_hit=extras.cached.share,
    )


def steady(traffic: Traffic, rate_per_s: float, in_flight: float, chunks: float, requests: int = REQUESTS) -> Traffic:
    """Return Poisson arrivals at a rate, long enough to measure the steady state of about so many in flight.

    `chunks` are the steps that a prompt is cut into; what comes before the load has settled and what ends after it is not
    measured.
    """
    measured = max(FEWEST_REQUESTS, MEASURED * in_flight, min(requests, MOST_CHUNKS / chunks))
    warm_up, cool_down = (math.ceil(share * in_flight) for share in (WARM_UP, COOL_DOWN))
    count = warm_up + math.ceil(measured) + cool_down
    return replace(traffic, count=count, rate_per_s=rate_per_s, warm_up=warm_up, cool_down=cool_down, exact_rate=True)


def meets(served: Served, limits: Limits) -> bool:
    """Return whether a run was stable, served all, and kept every limit on the statistic that it bounds."""
    if not served.stable or served.refused or not served.completed:
        return False
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        found = served.latencies_s[name]
        if limit is not None and found and found[limit.statistic] > limit.seconds:
            return False
    return True
