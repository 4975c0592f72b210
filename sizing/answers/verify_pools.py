"""A disaggregated answer checked by simulation: both pools under the stated demand, and the next size where it hoped for too much.

All replicas of both pools are simulated together, or, of large pools, a part of each in nearly the same ratio.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

from sizing.answers.pools import (
    Checked,
    Found,
    Pooled,
    fits_node,
    joined,
    phase_requests,
    preference,
    with_counts,
)
from sizing.answers.verify import (
    COOL_DOWN,
    FEWEST_REQUESTS,
    LESS_LOAD,
    LONGER,
    MEASURED,
    MOST_CHUNKS,
    REQUESTS,
    WARM_UP,
    deployed_as,
    is_close,
    lengths_of,
    meets,
    next_size,
)
from sizing.engine import transfer
from sizing.engine.simulation import Traffic
from sizing.engine.transfer import Handed
from sizing.question.question import Question, SeparatePools
from sizing.specs.errors import UntimedError
from sizing.specs.workload import Limits, Tokens

MOST_REPLICAS = 16  # simulated together: a part of larger pools is as good, and takes a part of the time
MOST_TRIES = 24  # sizes simulated before giving up


def verify(
    found: Found, asked: SeparatePools, tokens: Tokens, *, seed: int = 0, tries: int = MOST_TRIES
) -> Checked | None:
    """Return the best pair at the first size that the simulator confirms, or the last tried; None where there is no pair.

    Pairs are tried in order of preference. One that fails comes back with more replicas of the pool that missed its limit,
    or, where only a budget of GPUs is given, at less load, and waits for its turn among the others.
    """
    request = found.question
    heap = [(preference(pair, request), number, pair) for number, pair in enumerate(found.ranked)]
    heapq.heapify(heap)
    tried, last = 0, None
    while heap and tried < tries:
        tried += 1
        _, number, pair = heapq.heappop(heap)
        last = replace(pair, served=simulated(pair, request, tokens, seed=seed))
        assert last.served is not None
        if meets(last.served.whole, limits_of(last, request)):
            return Checked(last, True, tried)
        less = (
            _larger(last, request, asked)
            if request.target.requests_per_s is not None
            else _lighter(last, request, asked)
        )
        if less is not None:
            heapq.heappush(heap, (preference(less, request), number, less))
    return None if last is None else Checked(last, False, tried)


def limits_of(pair: Pooled, question: Question) -> Limits:
    """Return the limits that a simulation must keep: those asked for, each at the edge that its pool is sized on."""
    prefill, decode = (pool.edge.limits(question.target.limits) for pool in (pair.prefill, pair.decode))
    tighter = min((of.e2e for of in (prefill, decode) if of.e2e is not None), key=lambda e2e: e2e.seconds, default=None)
    return Limits(ttft=prefill.ttft, itl=decode.itl, e2e=tighter)


def lacking(pair: Pooled, question: Question) -> tuple[bool, bool]:
    """Return whether each pool is too small by what a simulation measured: it misses its limit, or does not keep up."""
    served, limits = pair.served, limits_of(pair, question)
    assert served is not None

    def missed(name: str) -> bool:
        limit, measured = getattr(limits, name), served.whole.latencies_s[name]
        return limit is not None and bool(measured) and measured[limit.statistic] > limit.seconds

    prefill = not served.prefill.stable or missed("ttft")
    decode = not served.decode.stable or missed("itl")
    if not prefill and not decode:  # E2E alone, or requests that no pool takes
        return pair.binding == "prefill", pair.binding == "decode"
    return prefill, decode


def _larger(pair: Pooled, question: Question, asked: SeparatePools) -> Pooled | None:
    """Return the pair with the replicas that the closed form asks for when corrected by the simulation; None where they are given.

    Where it outgrows its node the cache takes the network.
    """
    assert pair.served is not None
    prefill, decode = phase_requests(question, asked, None)
    whole, alone = pair.served.whole, pair.served.decode
    seen = {
        "prefill": replace(pair.served.prefill, latencies_s=whole.latencies_s | {"itl": {}, "e2e": {}}),
        "decode": replace(alone, latencies_s=alone.latencies_s | {"ttft": {}}),
    }
    more = lacking(pair, question)
    counts = [
        next_size(replace(pool, served=seen[phase]), of) if grows else pool.replicas
        for phase, pool, of, grows in zip(seen, (pair.prefill, pair.decode), (prefill, decode), more, strict=True)
    ]
    given = asked.prefill.pool.replicas, asked.decode.pool.replicas
    if any(grows and fixed is not None for grows, fixed in zip(more, given, strict=True)):
        return None
    grown = with_counts(pair, counts[0], counts[1], prefill, decode)
    if not pair.within_node or fits_node(grown):
        return grown
    try:
        apart = joined(grown, question, asked, within_node=False)
    except UntimedError:  # no network to grow over
        return None
    return replace(apart, prefill=apart.prefill.with_replicas(counts[0], prefill))


def _lighter(pair: Pooled, question: Question, asked: SeparatePools) -> Pooled:
    at = question.with_(requests_per_s=LESS_LOAD * pair.requests_per_s)
    return with_counts(pair, pair.prefill.replicas, pair.decode.replicas, *phase_requests(at, asked, None))


def simulated(pair: Pooled, question: Question, tokens: Tokens, *, seed: int = 0) -> Handed:
    """Simulate both pools under the demand, for longer where a limit is near."""
    served = driven(pair, question, tokens, REQUESTS, seed)
    if is_close(served.whole, limits_of(pair, question)):
        return driven(pair, question, tokens, LONGER * REQUESTS, seed)
    return served


def part_of(prefills: int, decodes: int, most: int = MOST_REPLICAS) -> tuple[int, int, float]:
    """Return the replicas of each pool to simulate, and the share of the load: at least what any replica of a pool gets."""
    common = math.gcd(prefills, decodes)
    part = prefills // common, decodes // common
    scale = max(1.0, sum(part) / most)
    part = max(1, math.floor(part[0] / scale)), max(1, math.floor(part[1] / scale))
    return *part, max(part[0] / prefills, part[1] / decodes)


def driven(pair: Pooled, question: Question, tokens: Tokens, requests: int, seed: int) -> Handed:
    """Simulate as many `requests` as are asked for, or a part of large pools under its part of the load (`part_of`)."""
    prefills, decodes, share = part_of(pair.prefill.replicas, pair.decode.replicas)
    isl, osl = lengths_of(tokens)
    rate = pair.requests_per_s * share
    in_flight = rate * pair.latency_s("e2e")["mean"] if pair.served is None else rate * _closed_e2e_s(pair)
    most = MOST_CHUNKS / max(pair.prefill.load.batching.chunks, 1.0)
    measured = max(FEWEST_REQUESTS, MEASURED * in_flight, min(requests, most))
    warm_up, cool_down = (math.ceil(times * in_flight) for times in (WARM_UP, COOL_DOWN))
    traffic = Traffic(
        isl,
        osl,
        warm_up + math.ceil(measured) + cool_down,
        rate_per_s=rate,
        longest=question.service.max_model_len,
        warm_up=warm_up,
        cool_down=cool_down,
        exact_rate=True,
        seed=seed,
    )
    return transfer.simulate(
        deployed_as(pair.prefill.load, prefills), deployed_as(pair.decode.load, decodes), pair.transfer, traffic
    )


def _closed_e2e_s(pair: Pooled) -> float:
    return replace(pair, served=None).latency_s("e2e")["mean"]
