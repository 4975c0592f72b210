"""Answers checked by simulation: the closed form's choice under the stated demand, and the next size where it hoped for too much.

Of equal replicas that do all of a request one is simulated, under its share of the demand: Poisson arrivals that a router
spreads at random are Poisson at each replica. Of separate pools all replicas are simulated together, or of large pools a
part of each in nearly the same ratio. What is measured is the steady state, after the start and before the end of the run.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

from sizing.answers.answer import Answer, Order, Outcome, Pool, preference
from sizing.answers.search import at_share, replicas, with_count, with_extras_found
from sizing.engine.requests import Lengths
from sizing.engine.simulation import ROUNDS, Run, Traffic, set_of, simulate
from sizing.question.question import Question, SeparatePools
from sizing.replica.capacity import Capacity, most_of, point_at_rate
from sizing.specs.data import Data
from sizing.specs.errors import UntimedError
from sizing.specs.workload import Limits, Tokens

REQUESTS = 1000  # measured at first: means within a few per cent, a rough 99th percentile, some hundredths of a second
# A limit no further than this share from what was measured is decided by so many times as many: a percentile of the first
# run is off by a tenth or so.
CLOSE, CLOSE_PERCENTILE, LONGER = 0.05, 0.2, 8
# In E2E times of a request: until a load has settled, the least that is measured then, and until those measured have ended
# under the same load.
WARM_UP, MEASURED, COOL_DOWN = 3.0, 4.0, 1.5
ROUNDING = 1e-6  # of a demand, by which sums over replicas may differ from it
E2E_ROUNDS, E2E_CLOSE = 3, 0.01  # of a rate that follows from E2E, which follows from the rate
MOST_TRIES = 24  # sizes simulated before giving up; a demand that none of them meets is reported as unverified
LESS_LOAD = 0.95  # of the load before, where the number of GPUs is fixed and a simulation misses a limit
MOST_CHUNKS = 30_000  # prefill steps simulated at most: prompts cut into very many chunks are sampled by fewer requests
FEWEST_REQUESTS = 200
MOST_REPLICAS = (
    16  # of separate pools, simulated together: a part of larger pools is as good, and takes a part of the time
)
LATENCIES = ("ttft", "itl", "e2e")


def verify(
    outcome: Outcome,
    data: Data,
    *,
    seed: int = 0,
    tries: int = MOST_TRIES,
    order: Order = preference,
) -> Outcome:
    """The outcome with the best size that the simulator confirms first, or the last one tried (`passed` False).

    Sizes are tried in their `order`. One that fails comes back with more replicas of the pool that missed its limit, or,
    where only a budget of GPUs is given, at less load, and waits for its turn among the others.
    """
    question = outcome.question
    heap = [(order(answer, question), number, answer) for number, answer in enumerate(outcome.answers)]
    heapq.heapify(heap)
    tried, passed, checked = 0, False, None
    while heap and tried < tries and not passed:
        tried += 1
        _, number, candidate = heapq.heappop(heap)
        last = simulated(candidate, question, seed=seed)
        checked = corrected(last, question)
        passed = (
            last.run is not None and meets(last.run, limits_of(last, question)) and keeps_headroom(checked, question)
        )
        following = None if passed or tried == tries else _following(last, question, data)
        if following is not None:
            heapq.heappush(heap, (order(following, question), number, following))
    if checked is None:
        return outcome
    others = (answer for *_, answer in sorted(heap, key=lambda entry: entry[:2]))
    found = replace(outcome, answers=(checked, *others), tries=tried, passed=passed)
    return found if checked.separate else with_extras_found(found)


def keeps_headroom(answer: Answer, question: Question) -> bool:
    """Whether a size serves the headroom that is asked for on top of the demand, as corrected by the simulation."""
    demand = question.target.amount
    if answer.separate or not demand or not question.rules.headroom:
        return True
    most = answer.pool.capacity.amount * answer.pool.count
    return most >= demand * (1 + question.rules.headroom) * (1 - ROUNDING)


def limits_of(answer: Answer, question: Question) -> Limits:
    """The limits that a simulation must keep: those asked for, each at the edge that its pool is sized on."""
    prefill, decode = (pool.edge.limits(question.target.limits) for pool in (answer.prefill, answer.decode))
    tighter = min((of.e2e for of in (prefill, decode) if of.e2e is not None), key=lambda e2e: e2e.seconds, default=None)
    return Limits(ttft=prefill.ttft, itl=decode.itl, e2e=tighter)


# --- the next size ---------------------------------------------------------------------------------------------------


def _following(failed: Answer, question: Question, data: Data) -> Answer | None:
    """The size to try after one that failed; None where no other is allowed."""
    scales = question.target.amount is not None
    if failed.separate:
        asked = question.space.pools
        assert asked is not None
        return (_larger if scales else _lighter)(failed, question, data, asked)
    pool = failed.pool
    if not scales:
        return Answer((at_share(pool, LESS_LOAD),))
    assert failed.run is not None
    return Answer((with_count(pool, next_size(pool, failed.run, question), question, data),))


def next_size(pool: Pool, run: Run, question: Question) -> int:
    """The replicas to try next: what the closed form asks for when corrected by the simulation, one more at least.

    The correction is gone half of the way at a time: it is largest where a limit is broken, and falls with the load.
    """
    most = _most(pool, tightened(pool, run, question.target.limits), question)
    needed = pool.count if most is None else replicas(question, pool.replica, most)
    return pool.count + max(1, (needed - pool.count) // 2)


def _larger(pair: Answer, question: Question, data: Data, asked: SeparatePools) -> Answer | None:
    """The pair with the replicas that the closed form asks for when corrected by the simulation; None where they are given.

    Where it outgrows its node the cache takes the network.
    """
    from sizing.answers.pools import fits_node, joined, phase_requests, with_counts

    phases = phase_requests(question, asked, None)
    more = lacking(pair, question)
    runs = _runs_of_phases(pair)
    counts = [
        next_size(pool, run, of) if grows else pool.count
        for pool, run, of, grows in zip(pair.pools, runs, phases, more, strict=True)
    ]
    if any(grows and fixed is not None for grows, fixed in zip(more, asked.given, strict=True)):
        return None
    grown = with_counts(pair, counts, phases, data)
    assert pair.transfer is not None
    if not pair.transfer.link.within_node or fits_node(grown):
        return grown
    try:
        apart = joined(grown, question, asked, within_node=False)
    except UntimedError:  # no network to grow over
        return None
    return replace(apart, pools=(with_count(apart.prefill, counts[0], phases[0], data), apart.decode))


def _runs_of_phases(pair: Answer) -> tuple[Run, Run]:
    """What was measured of each phase: TTFT as the client sees it for prefill, ITL and E2E of the decode pool alone."""
    whole, prefill, decode = pair.run, pair.prefill.run, pair.decode.run
    assert whole is not None and prefill is not None and decode is not None
    return (
        replace(prefill, latencies_s=whole.latencies_s | {"itl": {}, "e2e": {}}),
        replace(decode, latencies_s=decode.latencies_s | {"ttft": {}}),
    )


def _lighter(pair: Answer, question: Question, data: Data, asked: SeparatePools) -> Answer:
    from sizing.answers.pools import phase_requests, with_counts

    at = question.with_(requests_per_s=LESS_LOAD * pair.requests_per_s)
    return with_counts(pair, [pool.count for pool in pair.pools], phase_requests(at, asked, None), data)


def lacking(pair: Answer, question: Question) -> tuple[bool, bool]:
    """Whether each pool is too small by what a simulation measured: it misses its limit, or does not keep up."""
    limits, run = limits_of(pair, question), pair.run
    assert run is not None

    def short(pool: Pool, name: str) -> bool:
        limit, measured = getattr(limits, name), run.latencies_s[name]
        missed = limit is not None and bool(measured) and measured[limit.statistic] > limit.seconds
        return missed or (pool.run is not None and not pool.run.stable)

    prefill, decode = short(pair.prefill, "ttft"), short(pair.decode, "itl")
    if not prefill and not decode:  # E2E alone, or requests that no pool takes
        return pair.tightest.phase == "prefill", pair.tightest.phase == "decode"
    return prefill, decode


def corrected(answer: Answer, question: Question) -> Answer:
    """A simulated size with the most that it serves corrected by what the simulation saw.

    Where the simulated statistic is above the closed form's, the limit is tightened by that ratio before the closed form is
    asked how much more load it takes; so headroom and latencies of one answer come from one picture. Separate pools stay as
    they are.
    """
    if answer.separate or answer.run is None:
        return answer
    pool, limits = answer.pool, tightened(answer.pool, answer.run, question.target.limits)
    if limits is question.target.limits:
        return answer
    rate = pool.point.requests_per_s
    load = rate if question.target.amount is None else question.target.amount / pool.count
    most = _most(pool, limits, question)
    if most is None or most.amount <= load:
        most = replace(pool.capacity, amount=load, requests_per_s=rate)
    else:
        most = replace(most, decoding=pool.capacity.decoding)
    return replace(answer, pools=(replace(pool, capacity=most),))


def _most(pool: Pool, limits: Limits, question: Question) -> Capacity | None:
    (most,) = most_of([pool.load], question.with_(limits=limits).target)
    return most


def tightened(pool: Pool, run: Run, limits: Limits) -> Limits:
    """The limits, each that a simulation came nearer to than the closed form tightened by that ratio."""
    for name in LATENCIES:
        limit = getattr(limits, name)
        if limit is None or not run.latencies_s[name]:
            continue
        ratio = run.latencies_s[name][limit.statistic] / pool.closed_s(name)[limit.statistic]
        if ratio > 1:
            tighter = limit.model_copy(update={"seconds": limit.seconds / ratio})
            limits = limits.model_copy(update={name: tighter})
    return limits


# --- a size, simulated -----------------------------------------------------------------------------------------------


def simulated(answer: Answer, question: Question, *, seed: int = 0) -> Answer:
    """An answer with what a simulation measures of it under the demand, for longer where a limit is near."""
    found = _at_own_e2e(driven(answer, question, REQUESTS, seed), question, seed)
    assert found.run is not None
    if question.target.concurrency is None and is_close(found.run, limits_of(answer, question)):
        return driven(found, question, LONGER * REQUESTS, seed)
    return found


def _at_own_e2e(answer: Answer, question: Question, seed: int) -> Answer:
    """An answer for people, or requests in flight, at the rate that follows from the E2E measured at it."""
    for _ in range(E2E_ROUNDS if question.target.population is not None else 0):
        pool, run = answer.pool, answer.run
        assert question.target.population is not None and run is not None
        if not run.stable or not run.latencies_s["e2e"]:
            break
        own = question.target.population / pool.count
        before = pool.point.requests_per_s
        after = own / (run.latencies_s["e2e"]["mean"] + question.target.think_time_s)
        if abs(after / before - 1) < E2E_CLOSE:
            break
        rate = math.sqrt(before * after)  # half of the way, as E2E falls with the rate
        moved = replace(pool, point=point_at_rate(pool.load, rate, pool.capacity))
        answer = driven(replace(answer, pools=(moved,)), question, REQUESTS, seed)
    return answer


def driven(answer: Answer, question: Question, requests: int, seed: int) -> Answer:
    """An answer with what a simulation of about `requests` requests measures.

    Of large separate pools a part is driven, under its part of the load (`part_of`).
    """
    if not answer.separate:
        return replace(answer, run=_replica_driven(answer.pool, question, requests, seed))
    from sizing.engine import transfer

    assert answer.transfer is not None
    prefill, decode = answer.pools
    *counts, share = part_of(prefill.count, decode.count)
    traffic = _traffic(question, seed)
    rate = answer.requests_per_s * share
    in_flight = rate * answer.closed_s("e2e")["mean"]
    traffic = steady(traffic, rate, in_flight, max(prefill.load.batching.chunks, 1.0), requests)
    handed = transfer.simulate(
        set_of(prefill.load, counts[0]), set_of(decode.load, counts[1]), answer.transfer, traffic
    )
    pools = replace(prefill, run=handed.prefill), replace(decode, run=handed.decode)
    return replace(answer, pools=pools, run=handed.whole)


def _traffic(question: Question, seed: int) -> Traffic:
    isl, osl = lengths_of(question.origin.workload.tokens)
    return Traffic(isl, osl, 0, longest=question.service.max_model_len, seed=seed)


def part_of(prefills: int, decodes: int, most: int = MOST_REPLICAS) -> tuple[int, int, float]:
    """The replicas of each pool to simulate, and the share of the load: at least what any replica of a pool gets."""
    common = math.gcd(prefills, decodes)
    part = prefills // common, decodes // common
    scale = max(1.0, sum(part) / most)
    part = max(1, math.floor(part[0] / scale)), max(1, math.floor(part[1] / scale))
    return *part, max(part[0] / prefills, part[1] / decodes)


def _replica_driven(pool: Pool, question: Question, requests: int, seed: int) -> Run:
    """Simulate one replica of a pool that does all of a request, under its share of the demand."""
    deployed = set_of(pool.load)
    traffic = _traffic(question, seed)
    if question.target.offline and question.target.amount is None:
        full = pool.load.slots  # whatever comes, the next waits
        return simulate(deployed, replace(traffic, in_flight=full, count=ROUNDS * full))
    if question.target.concurrency is not None:
        share = max(1, -(-question.target.concurrency // pool.count))
        return simulate(deployed, replace(traffic, in_flight=share, count=ROUNDS * share))
    rate = pool.requests_per_s / pool.count
    in_flight = rate * pool.closed_s("e2e")["mean"]
    return simulate(
        deployed, steady(traffic, rate, in_flight, pool.load.batching.chunks, requests), routing="round-robin"
    )


def lengths_of(tokens: Tokens) -> tuple[Lengths, Lengths]:
    """Length distributions of prompt and output: fixed, or lognormal where a spread is stated."""
    return (
        turns_of(tokens) or _lengths(tokens.isl, tokens.isl_std, tokens.isl_max),
        _lengths(tokens.osl, tokens.osl_std, tokens.osl_max),
    )


def turns_of(tokens: Tokens) -> Lengths | None:
    """The distribution of prompts that are turns of conversations, or None without turns."""
    return Lengths(tokens.isl, shape="turns", among=tokens.prompts) if tokens.prompts else None


def _lengths(mean: float, std: float | None, longest: int | None) -> Lengths:
    return Lengths(mean, std, "lognormal", longest=longest) if std else Lengths(mean)


def is_close(served: Run, limits: Limits) -> bool:
    """Whether chance may decide on which side of a limit a run ends."""
    for name in LATENCIES:
        limit, found = getattr(limits, name), served.latencies_s[name]
        close = CLOSE if limit is not None and limit.statistic == "mean" else CLOSE_PERCENTILE
        if limit is not None and found and abs(found[limit.statistic] / limit.seconds - 1) < close:
            return True
    return False


def steady(traffic: Traffic, rate_per_s: float, in_flight: float, chunks: float, requests: int = REQUESTS) -> Traffic:
    """Poisson arrivals at `rate_per_s`, enough to measure the steady state of about `in_flight` requests.

    A prompt is cut into `chunks` steps. Requests before the load settles and after it ends are not measured.
    """
    measured = max(FEWEST_REQUESTS, MEASURED * in_flight, min(requests, MOST_CHUNKS / chunks))
    warm_up, cool_down = (math.ceil(share * in_flight) for share in (WARM_UP, COOL_DOWN))
    count = warm_up + math.ceil(measured) + cool_down
    return replace(traffic, count=count, rate_per_s=rate_per_s, warm_up=warm_up, cool_down=cool_down, exact_rate=True)


def meets(served: Run, limits: Limits) -> bool:
    """Whether a run was stable, served all requests, and kept each limit on the statistic that the limit bounds."""
    if not served.stable or served.refused or not served.completed:
        return False
    for name in LATENCIES:
        limit = getattr(limits, name)
        found = served.latencies_s[name]
        if limit is not None and found and found[limit.statistic] > limit.seconds:
            return False
    return True
