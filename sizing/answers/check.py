"""Check a deployment of a given size against a demand: its capacity, its limits, and the replicas that it needs."""

from __future__ import annotations

from dataclasses import field, replace

from sizing.answers.answer import Answer, Outcome, Pool
from sizing.answers.confidence import SizeAtOdds, odds_of
from sizing.answers.estimate import answer
from sizing.answers.replay import BusiestMinute, replayed, replayed_at, surely
from sizing.answers.search import at_share, search, with_count
from sizing.answers.search import replicas as wanted
from sizing.answers.sizes import VERIFY
from sizing.answers.sure_size import Searched, Steps, sure_answers
from sizing.answers.verify import meets, simulated, simulated_for_display, verdict_on, worst_ratio
from sizing.question.question import Question
from sizing.replica.replica import Refusal
from sizing.specs.bands import USUAL, ConfidentSize
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.frozen import Frozen
from sizing.specs.workload import Limits


class SizeCheck(Frozen):
    """The result of `check_size`: whether a deployment of a given size serves a demand within its limits."""

    question: Question = field(repr=False)
    holds: bool
    why: str | None = None  # a refusal of the layout
    reason: str | None = None  # of that refusal; "capacity" beyond its capacity
    answer: Answer | None = None  # under its load; None where it is refused or its queue grows without end
    most_requests_per_s: float | None = None  # within the limits
    utilisation: float | None = None
    needed: Answer | None = None  # the same layout with the replicas that the demand needs
    odds: ConfidentSize | None = None  # what published runs say
    sure_answer: Answer | None = None
    verified: bool | None = None
    binding: str | None = None  # what limits it, beyond its capacity
    stable: float | None = None  # the most of the demand that it serves at any latency, where its queue grows


def check_size(
    question: Question,
    replicas: int,
    *,
    simulated: bool = True,
    confidence: float | None = None,
    minute: BusiestMinute | None = None,
) -> SizeCheck:
    """Check `replicas` replicas of a question's layout against its demand and limits, and of a trace against its busiest `minute`.

    The sure GPUs are those for a `confidence` (default 90 %). Separate pools are checked together, at the replicas that the
    question states. Raises InputError as a search does.
    """
    if question.space.pools is not None:
        return _of_pools(question, simulated, confidence or USUAL)
    found = search(question)
    if found.best is None:
        (refusal, *_) = found.refusals
        return SizeCheck(question, False, refusal.detail, refusal.reason)
    if simulated and minute is not None:
        return _of_trace(found, replicas, minute, confidence or USUAL)
    return _with_sure(_check(found, replicas, simulated), found, replicas, (confidence or USUAL, simulated))


def _check(outcome: Outcome, replicas: int, simulated: bool) -> SizeCheck:
    """Check replicas of a layout, as found by the closed form, against demand and limits alone."""
    assert outcome.best is not None
    pool, of = outcome.best.pool, outcome.question
    target = of.target
    by_rate = target.amount is not None and target.amount == target.requests_per_s and target.documents is None
    at_most = _at_most(of, replicas) if simulated and by_rate else None
    if at_most is not None:
        return _against(at_most, pool, of, replicas)
    most = pool.capacity.requests_per_s * replicas
    if pool.count > replicas:
        needed = answer(of, simulated=simulated, finds_sure=False).answer
        short = SizeCheck(of, False, None, "capacity", None, most, _used(pool, replicas, of), needed)
        return _overloaded(short, pool, replicas, simulated)
    size = Answer((pool if pool.count == replicas else with_count(pool, replicas, of),))
    verdict = verdict_on(size, of) if simulated else None
    holds, sized = (True, size) if verdict is None else (verdict.kept, simulated_for_display(verdict, of))
    needed = sized if holds else answer(of, simulated=simulated, finds_sure=False).answer
    used, verified = _used(sized.pool, replicas, of), None if verdict is None else holds
    return SizeCheck(of, holds, None, None, sized, sized.most_requests_per_s, used, needed, verified=verified)


def _of_trace(outcome: Outcome, replicas: int, minute: BusiestMinute, confidence: float) -> SizeCheck:
    """Check replicas against the replay of a trace: they hold where an estimate of their layout takes no more."""
    question, sized = outcome.question, replayed(answer(outcome.question, finds_sure=False), minute)
    needed = sized.best if sized.simulation.passed else None
    first = sized.best or outcome.best
    assert first is not None
    size = replayed_at(first.pool, replicas, question, minute.traffic(question.service.max_model_len))
    if needed is None:
        return SizeCheck(question, False, None, "capacity", size, verified=False)
    assert size.run is not None
    holds = replicas >= needed.pool.count and worst_ratio(size.run, question.target.limits, steady=False) <= 1
    sure = surely(needed, question.with_(confidence=confidence))
    used, reason = _used(size.pool, replicas, question), None if holds else "capacity"
    odds, binding = _said(size, question, confidence, sure), size.pool.capacity.binding
    most = size.most_requests_per_s
    return SizeCheck(question, holds, None, reason, size, most, used, needed, odds, sure, holds, binding)


def _with_sure(result: SizeCheck, outcome: Outcome, replicas: int, asked: tuple[float, bool]) -> SizeCheck:
    """The result with the sure size of its layout, as an estimate finds it, and the chance of the `replicas` that run.

    `asked` has the confidence and whether it simulates.
    """
    confidence, simulate = asked
    assert outcome.best is not None
    (sure,) = sure_answers([Searched(outcome, outcome)], Steps.of(simulated=simulate), confidence)
    pool, most, size = outcome.best.pool, result.most_requests_per_s, result.answer
    if size is None:  # the replicas that run serve at most `most` requests/s together, whatever the load of `pool`
        times = 1.0 if most is None else most / (pool.capacity.requests_per_s * replicas)
        size = Answer((replace(pool, count=replicas, capacity=pool.capacity.times(times)),))
    return replace(result, odds=_said(size, result.question, confidence, sure), sure_answer=sure)


def _at_most(question: Question, replicas: int) -> Answer | None:
    """`replicas` replicas at the highest rate that a simulation confirms, whatever the demand.

    None where not even the share `VERIFY.least_most` of the predicted capacity is confirmed, or the demand is not a rate.
    """
    alone = question.with_(requests_per_s=None, headroom=0.0)
    best = search(alone).best
    if alone.target.amount is not None or best is None:
        return None
    full = with_count(best.pool, replicas, alone)

    def kept_at(share: float) -> Answer | None:
        tried = simulated(Answer((at_share(full, share),)), alone)
        return tried if tried.run is not None and meets(tried.run, alone.target.limits) else None

    low, high, confirmed = VERIFY.least_most, 1.0, kept_at(1.0)
    if confirmed is not None:
        return confirmed
    confirmed = kept_at(low)
    while confirmed is not None and high - low > VERIFY.most_within * high:
        middle = (low + high) / 2
        kept = kept_at(middle)
        confirmed, low, high = (confirmed, low, middle) if kept is None else (kept, middle, high)
    return confirmed


def _against(at_most: Answer, pool: Pool, question: Question, replicas: int) -> SizeCheck:
    """Check a demand against the confirmed capacity: a demand within it keeps the limits, a larger one does not."""
    most = at_most.requests_per_s
    lowered = most < pool.capacity.requests_per_s * replicas * (1 - ROUNDING_SLACK)
    binding = (_nearest(at_most, question.target.limits) if lowered else None) or pool.capacity.binding
    capacity = replace(pool.capacity, amount=most / replicas, requests_per_s=most / replicas, binding=binding)
    pool = replace(pool, capacity=capacity)
    count = wanted(question, pool.replica, capacity)
    used = _used(pool, replicas, question)
    if count > replicas:
        needed = Answer((with_count(pool, count, question),))
        short = SizeCheck(question, False, None, "capacity", None, most, used, needed)
        return _overloaded(short, pool, replicas, simulate=True)
    sized = simulated(Answer((replace(with_count(pool, replicas, question), capacity=capacity),)), question)
    if sized.run is None or not meets(sized.run, question.target.limits):
        sized = replace(sized, run=at_most.run)  # chance in a short run: a higher load kept the limits
    return SizeCheck(question, True, None, None, sized, most, used, sized, verified=True)


def _nearest(size: Answer, limits: Limits) -> str | None:
    """The limit that the simulated latencies are nearest to, or farthest beyond; None without limits."""
    found = limits.used(size.latency_s)
    return max(found, key=lambda name: found[name], default=None)


def _overloaded(short: SizeCheck, pool: Pool, replicas: int, simulate: bool) -> SizeCheck:
    """A deployment beyond its capacity, with what limits it, and its latencies under the demand where its queue does not grow."""
    question, short = short.question, replace(short, binding=pool.capacity.binding)
    best = search(question.with_(limits=Limits(), headroom=0.0, max_utilisation=1.0)).best
    if best is None:
        return short
    stable = best.pool.capacity.amount * replicas
    if best.pool.count > replicas:
        return replace(short, stable=stable)
    size = Answer((with_count(best.pool, replicas, question),))
    over = simulated(size, question) if simulate else size
    if over.run is not None and not over.run.stable:
        return replace(short, stable=stable)
    return replace(short, answer=replace(over, pools=(replace(over.pool, capacity=pool.capacity),)))


def _used(pool: Pool, replicas: int, question: Question) -> float | None:
    """The demand as a share of the capacity of `replicas` replicas within the limits."""
    demand = question.target.amount
    return None if demand is None else demand / (pool.capacity.amount * replicas) * (1 - ROUNDING_SLACK)


def _of_pools(question: Question, simulated: bool, confidence: float) -> SizeCheck:
    found = answer(question, simulated=simulated)
    best, rate = found.answer, question.target.requests_per_s
    if best is None:
        lacking = _lacking(found)
        if lacking is not None:
            return SizeCheck(question, False, lacking.detail, lacking.reason)
        needed = _free(question, simulated)
        short = SizeCheck(question, False, None, "capacity", needed=needed)
        return short if needed is None else _short_pools(short, needed, simulated, confidence)
    used = None if rate is None else rate / best.most_requests_per_s
    held = SizeCheck(
        found.question, True, None, None, best, best.most_requests_per_s, used, best, verified=found.verified
    )
    return replace(held, odds=_said(best, question, confidence))


def _said(size: Answer, question: Question, confidence: float, sure: Answer | None = None) -> ConfidentSize:
    """What published runs say of a size; of separate pools, why they say nothing."""
    said = SizeAtOdds(size, question.with_(confidence=confidence), sure)
    return odds_of([said])[0]


def _short_pools(short: SizeCheck, needed: Answer, simulate: bool, confidence: float) -> SizeCheck:
    """Pools with too few replicas: the most that they serve within the limits, and their latencies under the demand.

    Where their queue grows without end there are no latencies, and `stable` is the most that they serve at any latency.
    """
    question = short.question
    asked, rate = question.space.pools, question.target.requests_per_s
    assert asked is not None and rate is not None
    gpus = sum((n or 1) * pool.replica.layout.gpus for n, pool in zip(asked.given, needed.pools, strict=True))
    at_most = question.with_(requests_per_s=None, headroom=0.0, gpu_budget=gpus)
    best = answer(at_most, simulated=simulate).answer
    if best is not None:
        most = best.most_requests_per_s
        used, binding = rate / most, best.tightest.ended_by
        short = replace(short, most_requests_per_s=most, utilisation=used, binding=binding)
    short = replace(short, odds=_said(best or needed, question, confidence))
    unlimited = question.with_(limits=Limits(), headroom=0.0, max_utilisation=1.0)
    pair = answer(unlimited, simulated=False).answer
    over = simulated(pair, question) if pair is not None and simulate else pair
    if over is not None and (over.run is None or over.run.stable):
        return replace(short, answer=over)
    stable = answer(unlimited.with_(requests_per_s=None, gpu_budget=gpus), simulated=False).answer
    return short if stable is None else replace(short, stable=stable.most_requests_per_s)


def _free(question: Question, simulated: bool) -> Answer | None:
    """The same layouts of both pools with the replicas that the demand needs."""
    pools = question.space.pools
    assert pools is not None
    prefill, decode = (
        side._replace(pool=side.pool.model_copy(update={"replicas": None})) for side in (pools.prefill, pools.decode)
    )
    return answer(question.with_(pools=pools._replace(prefill=prefill, decode=decode)), simulated=simulated).answer


def below_share(held: SizeCheck, share: float) -> Answer | None:
    """Pools with the layouts of a checked deployment whose demand takes at most `share` of what they serve; None if none are known."""
    rate = held.question.target.requests_per_s
    if rate is None or held.needed is None:
        return None
    grown = held.question.with_(requests_per_s=rate / share)
    sized = _free(grown, simulated=held.verified is not None)
    return sized if sized is not None and rate <= share * sized.most_requests_per_s else None


def _lacking(outcome: Outcome) -> Refusal | None:
    """The refusal of pools that fail at any size; None where only their replicas are too few."""
    pairing = outcome.pairing
    if pairing is None:
        return None
    refused = [refusal for phase in pairing.lacking for refusal in pairing.refusals[phase][:1]]
    return refused[0]._replace(detail="; ".join(each.detail for each in refused)) if refused else None
