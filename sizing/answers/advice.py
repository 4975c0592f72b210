"""Changes that would help: a looser limit that saves GPUs, or what makes an infeasible question feasible.

Each is found by the search with that one change, has at least even odds where similar runs are known, and is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sizing.answers.answer import (
    Answer,
    NearlyIdle,
    NextLimit,
    OtherAnswer,
    Outcome,
    Pool,
    Relaxation,
    Suggestion,
    layout_key,
    objective_value,
    preference,
)
from sizing.answers.search import outcome_over, sized_anew, timed, with_count
from sizing.catalog import shelf
from sizing.model.architecture import SIZES
from sizing.model.precision import narrower, stored_as
from sizing.question.question import Question
from sizing.replica.replica import Refusal, Replica, candidates
from sizing.replica.timing import Timed, Timing
from sizing.specs.data import Advice, Formats
from sizing.specs.gpu import GpuType
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES, Limit, limit_name

ADVICE = shelf.only(Advice)
LIMITED = (*LATENCIES, "capacity", "gpu_budget")  # reasons of refusals that a looser limit may remove
# Refused for want of published runs that keep the limits, though it serves the demand as predicted.
UNSURE = "confidence"
Sized = Callable[[Sequence[Timed], Question], Outcome]
LARGER_BUDGET = "a larger budget of GPUs"


def nearly_idle(best: Answer, question: Question, answered: Callable[[Question], Answer | None]) -> NearlyIdle | None:
    """How far a latency limit leaves a replica of an answer idle, and the answer at a looser limit where it spends less.

    `answered` gives the answer to a changed question. None where a replica is well used, or where no latency limit binds.
    """
    if best.separate or best.pool.capacity.binding not in LATENCIES:
        return None
    pool, name, limits = best.pool, best.pool.capacity.binding, question.target.limits
    share = pool.capacity.requests_per_s / pool.timed.highest_per_s
    if share >= ADVICE.nearly_idle:
        return None
    looser = limits.at(name, limits.stated[name].seconds * ADVICE.most_relaxed)
    found = None if question.target.amount is None else answered(question.with_(limits=looser))
    objective = question.rules.objective
    less = found is not None and objective_value(found, objective) < objective_value(best, objective)
    return NearlyIdle(share, ADVICE.most_relaxed, found if less else None)


def usual(outcome: Outcome, answered: Callable[[Question], Answer | None]) -> OtherAnswer | None:
    """The answer at usual limits, where a question states none and its answer misses them; else None.

    Offline work and models that do not decode have no usual limits.
    """
    best, question, limits = outcome.answer, outcome.question, ADVICE.usual_limits
    target = question.target
    if best is None or best.separate or target.limits.stated or target.offline or question.service.single_result:
        return None
    if all(best.latency_s(name)[limit.statistic] <= limit.seconds for name, limit in limits.stated.items()):
        return None
    budget = question.rules.gpu_budget if target.amount is None else None
    objective = "cost" if question.rules.objective == "request-cost" else question.rules.objective
    options = (f"--{name} {of.statistic}:{of.seconds / MILLI:g}ms" for name, of in limits.stated.items())
    return OtherAnswer(
        " ".join(options), answered(question.with_(limits=limits, gpu_budget=budget, objective=objective))
    )


def relaxation(outcome: Outcome, *, simulated: bool) -> Relaxation | None:
    """The smallest relaxation of the binding limit that saves GPUs; None where none up to three times the limit does.

    It is None without a demand too: fewer GPUs than the given ones would serve less.
    The closed form gives the threshold to half a per cent, and it is rounded up to a readable figure. Where sizes are
    simulated, the threshold is at least the latency of the confirmed size.
    """
    best, question = outcome.best, outcome.question
    if best is None or question.target.amount is None or best.pool.capacity.binding not in LATENCIES:
        return None
    name = best.pool.capacity.binding
    limit: Limit = getattr(question.target.limits, name)

    def at(seconds: float) -> Question:
        return question.with_(limits=question.target.limits.at(name, seconds))

    loosest_s = limit.seconds * ADVICE.most_relaxed

    def fewer_at(seconds: float, loads: Sequence[Timed], sized: Sized = sized_anew) -> list[Pool]:
        """The layouts that take fewer GPUs than the answer at a limit of `seconds`, best first."""
        return [of.pool for of in sized(loads, at(seconds)).answers if of.gpus < best.gpus]

    def threshold(low: float, able: Sequence[Timed], sized: Sized) -> float:
        """The smallest multiple of the limit, from `low` on, at which a layout saves GPUs; the largest that is tried if none does."""
        high = ADVICE.most_relaxed
        while high / low > ADVICE.threshold_step:
            middle = math.sqrt(low * high)
            # A layout that saves nothing at a looser limit saves nothing at a tighter one.
            fewer = [pool.timed for pool in fewer_at(limit.seconds * middle, able, sized)]
            low, high, able = (low, middle, fewer) if fewer else (middle, high, able)
        return high

    def confirmed_at(loads: Sequence[Timed], seconds: float, question: Question) -> Answer | None:
        """The best size that saves GPUs at a limit of `seconds`, confirmed under `question`."""
        fewer = fewer_at(seconds, loads)
        sizes = [Answer((with_count(pool, pool.count, at(seconds)),)) for pool in fewer]
        ranked = tuple(sorted(sizes, key=lambda each: preference(each, at(seconds))))
        found = confirmed_soon(replace(outcome, question=question, answers=ranked), simulated).answer
        return found if found is not None and found.gpus < best.gpus else None

    below = _loads_below(outcome, at(loosest_s))
    loads = [pool.timed for pool in fewer_at(loosest_s, below)]
    if not loads:
        return None
    times = threshold(1.0, below, outcome_over)  # finding as much in the cache as the answer does
    if times == ADVICE.most_relaxed or not fewer_at(limit.seconds * times, loads):
        times = threshold(times if times < ADVICE.most_relaxed else 1.0, loads, sized_anew)
    seconds = rounded_up_readably(limit.seconds * times)
    size = confirmed_at(loads, seconds, at(loosest_s))
    if size is None:
        return None
    gpu = size.pool.replica.gpu_type.name
    if not simulated:
        return Relaxation(name, seconds, size.gpus, gpu)
    measured_s = size.latency_s(name)[limit.statistic]
    if name != "ttft" and limit.statistic == "mean":
        sure: float = getattr(ADVICE.sure, name)
        return Relaxation(name, max(seconds, rounded_up_readably(measured_s * sure)), size.gpus, gpu)
    seconds, more = max(seconds, rounded_up_readably(measured_s)), ADVICE.legible_share
    while seconds < loosest_s:
        again = confirmed_at((size.pool.timed,), seconds, at(seconds))
        if again is not None:
            return Relaxation(name, seconds, again.gpus, gpu)
        # A longer run near its limit measures a little more; a run at a load raised by the margin may measure much more.
        seconds, more = rounded_up_readably(seconds * (1 + more)), 2 * more
    return Relaxation(name, loosest_s, size.gpus, gpu)


def next_limit(outcome: Outcome) -> NextLimit | None:
    """What binds the answer's layout next, where its limit is as long as any that is tried; None where no latency binds."""
    best, question = outcome.best, outcome.question
    if best is None or best.separate or best.pool.capacity.binding not in LATENCIES:
        return None
    name = best.pool.capacity.binding
    loosest_s = getattr(question.target.limits, name).seconds * ADVICE.most_relaxed
    loosest = question.with_(limits=question.target.limits.at(name, loosest_s), gpu_budget=None)
    found = sized_anew((best.pool.timed,), loosest).best
    if found is None:
        return None
    capacity = found.pool.capacity
    return NextLimit(capacity.binding, capacity.requests_per_s, found.gpus)


def confirmed_soon(outcome: Outcome, simulated: bool) -> Outcome:
    """The outcome after few simulations, perhaps with a larger size than needed; unchanged where not `simulated`."""
    if not simulated:
        return outcome
    from sizing.answers.verify import verify

    return verify(outcome, tries=ADVICE.tries)


def _loads_below(outcome: Outcome, loosest: Question) -> tuple[Timed, ...]:
    """The layouts that may need fewer GPUs under a looser limit: those found, and those that a limit rejected.

    Where the objective is not GPUs, only layouts of the answer's GPU type and precision count, because fewer GPUs of one type
    also cost less.
    """
    best = outcome.best
    assert best is not None
    any_type, own = outcome.question.rules.objective == "gpus", layout_key(best.pool.replica)

    def is_smaller(replica: Replica | Refusal) -> bool:
        return replica.layout.gpus < best.gpus and (any_type or layout_key(replica)._replace(layout=own.layout) == own)

    found = [answer.pool.timed for answer in outcome.answers if is_smaller(answer.pool.replica)]
    rejected = {layout_key(each) for each in outcome.refusals if each.reason in LIMITED and is_smaller(each)}
    again = [
        entry
        for gpu_type in loosest.space.gpu_types
        if any(gpu_type.id == key.gpu_type for key in rejected)
        for precision in loosest.space.precisions
        for entry in candidates(loosest.service, gpu_type, precision)
        if isinstance(entry, Replica) and layout_key(entry) in rejected
    ]
    return (*found, *(load for load in timed(again, Timing()) if isinstance(load, Timed)))


def rounded_up_readably(value: float) -> float:
    """Round up to a multiple of 1, 2 or 5 times a power of ten, at most a hundredth of the value: 44.83 to 45."""
    most = value * ADVICE.legible_share
    power = math.floor(math.log10(most))
    step = max(step for step in (1, 2, 5) if step * 10.0**power <= most or step == 1)
    # Rounded in decimals, so that a figure that is already readable does not change.
    digits = max(0, -power) + 3
    return round(math.ceil(round(value / (step * 10.0**power), 9)) * step * 10.0**power, digits)


def nearest_miss(outcome: Outcome) -> Refusal | None:
    """The refusal that came closest to an answer; None without refusals.

    A layout that serves the demand as predicted, and is only not sure to, is the nearest. A layout that fits and misses a limit
    is nearer than a layout that does not fit. Where the GPU budget is too small for any replica, the layout within the budget
    that lacks the least memory is returned.
    """
    nearest = min(outcome.refusals, key=_miss, default=None)
    if nearest is None or nearest.reason != "gpu_budget":
        return nearest
    budget = outcome.question.rules.gpu_budget or 0
    within = [r for r in outcome.refusals if r.reason == "memory" and r.layout.gpus <= budget]
    return min(within, key=_miss, default=nearest)


def _miss(refusal: Refusal) -> tuple[bool, bool, float, int]:
    return refusal.reason != UNSURE, refusal.reason not in LIMITED, refusal.shortfall, refusal.layout.gpus


def suggestions(
    outcome: Outcome, answered: Callable[[Question], Answer | None], gpu_types: Sequence[GpuType] = ()
) -> tuple[Suggestion, ...]:
    """The single changes that would make an infeasible question feasible, each found by searching again.

    `answered` gives the answer to a changed question, with at least even odds where runs like it are known. `gpu_types` are GPU
    types that are not asked for: the best one is tried where a latency limit is missed. Of several values of one limit, the
    tightest feasible one is returned, and looser ones that halve the GPUs.
    """
    found: list[Suggestion] = []
    fewest: dict[str, int] = {}
    changes = ((change, change, question) for change, question in _changes(outcome))
    for of_what, change, question in (*changes, *_looser(outcome)):
        best = answered(question)
        if best is not None and best.gpus <= fewest.get(of_what, math.inf) * ADVICE.still_looser:
            found.append(Suggestion.of(change, best)._replace(looser=of_what in fewest))
            fewest[of_what] = best.gpus
    types = [Suggestion.of(change, best) for change, best in _of_other_types(outcome, answered, gpu_types)]
    return (*types, *found)


def _of_other_types(
    outcome: Outcome, answered: Callable[[Question], Answer | None], gpu_types: Sequence[GpuType]
) -> Iterator[tuple[str, Answer]]:
    """Yield the best other GPU type that meets a latency limit, with the weights as asked and else with FP8 weights."""
    question, miss = outcome.question, nearest_miss(outcome)
    if miss is None or miss.reason not in (*LATENCIES, UNSURE) or not gpu_types or len(question.space.gpu_types) != 1:
        return
    for precisions, option in ((question.space.precisions, ""), (("fp8",), " --precision fp8")):
        if option and precisions[0] in (*question.space.precisions, question.service.model.quantisation.precision):
            continue
        best = answered(question.with_(gpu_types=tuple(gpu_types), precisions=precisions))
        if best is not None:
            yield f"--gpu {best.pool.replica.gpu_type.id}{option}", best


def _changes(outcome: Outcome) -> Iterator[tuple[str, Question]]:
    """Yield (change in words, changed question) in the order in which a user would try them."""
    request = outcome.question
    serving = request.service.serving
    given = [name for name in SIZES if getattr(serving, name)]
    if given:
        free = serving.model_copy(update=dict.fromkeys(SIZES))
        flags = ", ".join(f"--{name}" for name in given)
        yield f"any layout (without {flags})", request.with_(serving=free)
    for name in (
        "memory_fraction",
        "max_num_seqs",
        "max_num_batched_tokens",
        "cuda_graphs_gib",
        "kv_cache_bytes",
        "max_total_tokens",
    ):
        if getattr(serving, name) is not None:
            default = request.with_(serving=serving.model_copy(update={name: None}))
            yield f"the engine's own {name} in place of {getattr(serving, name):g}", default
    if any(entry.reason == "token_budget" for entry in outcome.refusals):
        budget = serving.model_copy(update={"max_num_batched_tokens": request.service.isl})
        yield f"--max-num-batched-tokens {request.service.isl}", request.with_(serving=budget)
    stable = ADVICE.stable_utilisation
    if request.target.max_utilisation < stable:
        yield f"--max-utilisation {stable:g}", request.with_(max_utilisation=stable)
    stored, formats = request.service.model.quantisation, shelf.only(Formats)
    for name in narrower(stored.bits or stored_as(stored.precision, formats).bits, formats):
        if name not in request.space.precisions:
            note = " (weight-only)" if name == "int4" else ""
            yield f"--precision {name}{note}", request.with_(precisions=(name,))
    if request.service.kv_precision != "fp8":
        yield "--kv-precision fp8", request.with_(kv_precision="fp8")
    cached = request.service.extras.cached
    if not cached.affinity and (cached.conversation is not None or cached.prefixes > 1):
        routed = request.with_(extras=replace(request.service.extras, cached=replace(cached, affinity=True)))
        yield "--prefix-routing affinity", routed
    if request.rules.gpu_budget is not None and request.target.amount is not None:
        yield LARGER_BUDGET, request.with_(gpu_budget=None)
    elif request.rules.gpu_budget is not None:
        yield from ((f"--gpus {more}", request.with_(gpu_budget=more)) for more in _next_budget(outcome))


def _next_budget(outcome: Outcome) -> Iterator[int]:
    """Yield the fewest GPUs that hold a replica and that a node divides into equally, above a node in whole nodes.

    Yields nothing where a replica fits the budget.
    """
    too_large = [r for r in outcome.refusals if r.reason == "gpu_budget"]
    least = min(too_large, key=lambda r: r.layout.gpus, default=None)
    if least is not None:
        node = least.gpu_type.gpu.datasheet.node.gpus
        nodes = -(-least.layout.gpus // node)
        yield next((part for part in range(least.layout.gpus, node) if node % part == 0), nodes * node)


def _looser(outcome: Outcome) -> Iterator[tuple[str, str, Question]]:
    """Yield (limit, change in words, changed question) for each limit, with multiples of a lone request's latency.

    Under load requests wait for each other, so the latency of a lone request may not be feasible as a limit.
    """
    request = outcome.question
    for name, limit in request.target.limits.stated.items():
        for times in ADVICE.times_alone:
            seconds = _rounded_up(times * _attainable_s(outcome, name, limit.seconds) * 1e3) / 1e3
            limits = request.target.limits.at(name, seconds)
            called = limit_name(name, limit.statistic, single=request.service.single_result)
            yield name, f"{called} {_rounded_up(seconds * 1e3):,} ms", request.with_(limits=limits)


def _attainable_s(outcome: Outcome, name: str, limit_s: float) -> float:
    """A limit in s that the nearest miss would meet with some to spare, and that much above `limit_s` at least."""
    over = min((refusal.shortfall for refusal in outcome.refusals if refusal.reason == name), default=0.0)
    return _rounded_up(limit_s * (1 + over) * ADVICE.spare * 1e3) / 1e3


def _rounded_up(milliseconds: float) -> int:
    """Round up to two significant digits, as people state limits."""
    unit = int(10 ** max(0, int(math.log10(milliseconds)) - 1))
    return math.ceil(milliseconds / unit) * unit
