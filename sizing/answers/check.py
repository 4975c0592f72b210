"""A deployment of a given size against a demand: what it serves, whether the limits hold, and how many replicas would do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.answers.counts import sure
from sizing.answers.estimate import answer
from sizing.answers.search import search, with_count
from sizing.answers.sizes import corrected, keeps_headroom
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
    most = pool.capacity.requests_per_s * replicas
    of = found.question
    if pool.count > replicas:
        return Held(
            of, False, None, "capacity", None, most, _used(pool, replicas, of), _needed(question, data, simulate)
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
        needed=sized if holds else _needed(question, data, simulate),
        sure=sure(sized, of, data.runs),
        verified=holds if simulate else None,
    )


def _used(pool: Pool, replicas: int, question: Question) -> float | None:
    """The demand as a share of the most that so many replicas serve within the limits."""
    demand = question.target.amount
    return None if demand is None else demand / (pool.capacity.amount * replicas) * (1 - ROUNDING_SLACK)


def _needed(question: Question, data: Data, simulate: bool) -> Answer | None:
    return answer(question, data, simulated=simulate).answer


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
