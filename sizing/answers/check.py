"""A deployment of a given size against a demand: what it serves, whether the limits hold, and how many replicas would do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.answers.counts import sure
from sizing.answers.estimate import answer
from sizing.answers.search import at_share, search, with_count
from sizing.answers.search import replicas as wanted
from sizing.answers.sizes import RULES, corrected, keeps_headroom
from sizing.answers.verify import meets, simulated
from sizing.question.question import Question
from sizing.specs.bands import Sure
from sizing.specs.data import Data
from sizing.specs.demand import ROUNDING_SLACK


@dataclass(frozen=True, slots=True)
class Held:
    """What a deployment of a given size does under a demand.

    `answer` is the deployment under its load; None where it takes the load at no limits, or its engine does not start: `why`
    says so. `most_requests_per_s` is the most within the limits, `needed` the same layout with as many replicas as it takes.
    """

    question: Question = field(repr=False)
    holds: bool
    why: str | None = None
    reason: str | None = None
    answer: Answer | None = None
    most_requests_per_s: float | None = None
    utilisation: float | None = None
    needed: Answer | None = None
    sure: Sure | None = None
    verified: bool | None = None


def held(question: Question, replicas: int, data: Data, *, simulate: bool = True) -> Held:
    """Hold a question of one layout, at a number of replicas, against its demand and limits.

    Of separate pools, whose counts the question states, both together. Raises InputError as a search does.
    """
    if question.space.pools is not None:
        return _of_pools(question, data, simulate)
    found = search(question, data)
    if found.best is None:
        (refusal, *_) = found.refusals
        return Held(question, False, refusal.detail, refusal.reason)
    pool = found.best.pool
    of = found.question
    by_rate = of.target.amount is not None and of.target.amount == of.target.requests_per_s
    at_most = _at_most(of, replicas, data) if simulate and by_rate else None
    if at_most is not None:
        return _against(at_most, pool, of, replicas, data)
    most = pool.capacity.requests_per_s * replicas
    if pool.count > replicas:
        return Held(
            of,
            False,
            None,
            "capacity",
            None,
            most,
            _used(pool, replicas, of),
            answer(question, data, simulated=simulate).answer,
        )
    sized = Answer((pool if pool.count == replicas else with_count(pool, replicas, of, data),))
    if simulate:
        sized = corrected(simulated(sized, of), of)
    holds = sized.run is None or (meets(sized.run, of.target.limits) and keeps_headroom(sized, of))
    return Held(
        of,
        holds,
        answer=sized,
        most_requests_per_s=sized.most_requests_per_s,
        utilisation=_used(sized.pool, replicas, of),
        needed=sized if holds else answer(question, data, simulated=simulate).answer,
        sure=sure(sized, of, data.runs),
        verified=holds if simulate else None,
    )


def _at_most(question: Question, replicas: int, data: Data) -> Answer | None:
    """So many replicas at the most that a simulation confirms, whatever the demand is; None where a small share is too much."""
    alone = question.with_(requests_per_s=None, headroom=0.0)
    best = search(alone, data).best
    if alone.target.amount is not None or best is None:
        return None
    full = with_count(best.pool, replicas, alone, data)

    def kept_at(share: float) -> Answer | None:
        tried = simulated(Answer((at_share(full, share),)), alone)
        return tried if tried.run is not None and meets(tried.run, alone.target.limits) else None

    low, high, confirmed = RULES.least_most, 1.0, kept_at(1.0)
    if confirmed is not None:
        return confirmed
    confirmed = kept_at(low)
    while confirmed is not None and high - low > RULES.most_within * high:
        middle = (low + high) / 2
        kept = kept_at(middle)
        confirmed, low, high = (confirmed, low, middle) if kept is None else (kept, middle, high)
    return confirmed


def _against(at_most: Answer, pool: Pool, question: Question, replicas: int, data: Data) -> Held:
    """Replicas with their confirmed most against a demand: what is within the most keeps the limits, what is beyond does not."""
    most, amount = at_most.requests_per_s, question.target.amount
    assert amount is not None
    capacity = replace(pool.capacity, amount=most / replicas, requests_per_s=most / replicas)
    pool = replace(pool, capacity=capacity)
    count = wanted(question, pool.replica, capacity, pool.margin)
    used = amount / most * (1 - ROUNDING_SLACK)
    if count > replicas:
        needed = Answer((with_count(pool, count, question, data),))
        return Held(question, False, None, "capacity", None, most, used, needed)
    sized = simulated(Answer((replace(with_count(pool, replicas, question, data), capacity=capacity),)), question)
    if sized.run is None or not meets(sized.run, question.target.limits):
        sized = replace(sized, run=at_most.run)  # chance of a short run: at more load the limits were kept
    sure_of = sure(sized, question, data.runs)
    return Held(question, True, None, None, sized, most, used, sized, sure_of, True)


def _used(pool: Pool, replicas: int, question: Question) -> float | None:
    """The demand as a share of the most that so many replicas serve within the limits."""
    demand = question.target.amount
    return None if demand is None else demand / (pool.capacity.amount * replicas) * (1 - ROUNDING_SLACK)


def _of_pools(question: Question, data: Data, simulate: bool) -> Held:
    found = answer(question, data, simulated=simulate)
    best = found.answer
    if best is None:
        return Held(question, False, _lacking(found), "capacity", None, needed=_free(question, data, simulate))
    rate = question.target.requests_per_s
    used = None if rate is None else rate / best.most_requests_per_s
    return Held(found.question, True, None, None, best, best.most_requests_per_s, used, best, None, found.verified)


def _free(question: Question, data: Data, simulate: bool) -> Answer | None:
    """The same layouts of both pools with as many replicas as it takes."""
    pools = question.space.pools
    assert pools is not None
    prefill, decode = (
        replace(side, pool=side.pool.model_copy(update={"replicas": None})) for side in (pools.prefill, pools.decode)
    )
    return answer(question.with_(pools=replace(pools, prefill=prefill, decode=decode)), data, simulated=simulate).answer


def _lacking(found: Outcome) -> str | None:
    """Why pools will not do whatever their size; None where they are too few."""
    pairing = found.pairing
    if pairing is None or not pairing.lacking:
        return None
    refused = [refusal.detail for phase in pairing.lacking for refusal in pairing.refusals[phase][:1]]
    return "; ".join(refused) or None
