"""The limit of an answer in words: a latency limit, a capacity of the replica, or the reason why it is infeasible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sizing.answers.advice import ADVICE, LARGER_BUDGET, UNSURE, nearest_miss
from sizing.answers.answer import Answer, NextLimit, Outcome, Relaxation, Suggestion
from sizing.formats.view import Line
from sizing.formats.words import duration, milliseconds, number, number_down, of_limit, percent, plural
from sizing.model.architecture import is_moe
from sizing.question.question import Question
from sizing.replica.capacity import batch_s
from sizing.replica.histories import IDLE_CACHES
from sizing.replica.replica import Refusal
from sizing.report.parts.screen import MEASURE_FIRST, dollars, would_help
from sizing.report.parts.sentences import said
from sizing.specs.bands import EVEN, of_runs
from sizing.specs.demand import ROUNDING_SLACK
from sizing.specs.units import GIB, GIGA, MILLI
from sizing.specs.workload import LATENCIES, latency_name

TIMES_FROM = 2.0  # times a limit: from here on, a miss is written as a multiple of the limit


class Limiting(NamedTuple):
    """The limit on a replica's load, or the reason why it is infeasible, and changes that would help.

    `warning` says that the limit leaves replicas nearly idle.
    """

    limit: str
    statistic: str | None = None
    value_ms: float | None = None
    limit_ms: float | None = None
    detail: str = ""
    relaxed_limit_ms: float | None = None
    relaxed_gpus: int | None = None
    relaxed_gpu: str | None = None
    suggestions: tuple[str, ...] = ()
    warning: str | None = None


def limiting(best: Answer, outcome: Outcome) -> Limiting:
    """The limit on the load of a replica of the answer."""
    question, relaxation, beyond = outcome.question, outcome.hints.relaxation, outcome.hints.next_limit
    binding = best.pool.capacity.binding
    found = Limiting(binding)
    if relaxation is not None:
        found = found._replace(
            relaxed_limit_ms=relaxation.seconds / MILLI, relaxed_gpus=relaxation.gpus, relaxed_gpu=relaxation.gpu
        )
    limit = getattr(question.target.limits, binding, None)
    if limit is None:
        return found._replace(detail=_capacity_words(best, question))
    value_ms, limit_ms = best.latency_s(binding)[limit.statistic] / MILLI, limit.seconds / MILLI
    single = question.service.single_result
    reached = at_limit(binding, limit.statistic, milliseconds(value_ms), limit_ms, single=single)
    relaxed = _relaxed_words(best, question, relaxation, beyond)
    detail = "; ".join(filter(None, (f"{reached}, reached at {_most(best, question)}", relaxed)))
    warning = _idle_words(best, outcome)
    return found._replace(
        statistic=limit.statistic, value_ms=value_ms, limit_ms=limit_ms, detail=detail, warning=warning
    )


def _idle_words(best: Answer, outcome: Outcome) -> str | None:
    """Write that a replica keeps its limit only while it is nearly alone with a request, and what a looser limit takes."""
    found = outcome.hints.idle
    if found is None:
        return None
    name = latency_name(best.pool.capacity.binding, single=outcome.question.service.single_result)
    looser = found.looser
    takes = None if looser is None else _counted(looser.gpus, looser.pool.replica.gpu_type.name, best)
    return said("idle", found, limit=name, takes=takes)


def _counted(gpus: int, gpu: str, best: Answer) -> str:
    """Write a number of GPUs, with their type where it is not that of the answer."""
    return f"{gpus:,} x {gpu}" if gpu != best.pool.replica.gpu_type.name else plural(gpus, "GPU")


def at_limit(name: str, statistic: str, value: str, limit_ms: float, *, single: bool = False) -> str:
    """Write a latency and the limit on it: `TTFT (p95) 1.20 s, limit 1 s`."""
    return f"{latency_name(name, single=single)} ({statistic}) {value}, limit {milliseconds(limit_ms)}"


def _most(best: Answer, question: Question) -> str:
    """Write the highest load of a replica in the unit of the demand, with the words `a replica`.

    Without a demand, the load served is lower by the margin for a confidence, or for even odds.
    """
    capacity, margin, asked = best.pool.capacity, best.pool.margin, question.target.confidence
    if question.target.amount is None:
        odds, rate = None if asked is None else asked, capacity.requests_per_s * margin
        return said("load given", rate=rate, lowered=margin > 1, margin=margin, odds=odds)
    if question.target.requests_per_s is None:
        return f"{number(capacity.amount)} {question.target.unit} a replica"
    return f"{number(capacity.requests_per_s)} requests/s a replica"


def _relaxed_words(best: Answer, question: Question, relaxation: Relaxation | None, beyond: NextLimit | None) -> str:
    """Write the value of a limit at which fewer GPUs suffice, or that no near value saves a GPU, and what then binds."""
    if relaxation is not None:
        gpus = _counted(relaxation.gpus, relaxation.gpu, best)
        statistic: str = getattr(question.target.limits, relaxation.limit).statistic
        of = None if statistic == "mean" else statistic
        return said("relaxed", of=of, ms=relaxation.seconds / MILLI, gpus=gpus)
    if question.target.amount is None:
        return "a looser limit serves more"
    if best.gpus == 1:
        return ""
    unsure, binds = beyond is None or beyond.gpus < best.gpus, None
    if beyond is not None and beyond.binding != best.pool.capacity.binding:
        binds = limit_words(beyond.binding, single=question.service.single_result)
        if beyond.binding == "utilisation":
            binds = f"--max-utilisation {percent(question.target.max_utilisation)}"
    rate = None if beyond is None else beyond.requests_per_s
    return said("beyond", times=ADVICE.most_relaxed, unsure=unsure, binds=binds, requests_per_s=rate)


def _capacity_words(best: Answer, question: Question) -> str:
    """Write the capacity that limits a replica, the load at which it does, and settings that raise it."""
    key, slots = best.pool.capacity.binding, best.pool.replica.settings.max_num_seqs
    if key != "utilisation":  # of a task without output, slots and cache hold only the prompts of a step
        key = "prefill" if question.service.single_result else f"{key}{' offline' * question.target.offline}"
    return said(f"binds {key}", most=_most(best, question), share=question.target.max_utilisation, slots=slots)


def _unconfirmed(best: Answer, question: Question, tries: int) -> str:
    """Write the limit that the nearest simulated size broke although the closed form found the size feasible."""
    served = best.run
    detail = f"simulation confirmed none of {tries} sizes; the nearest, {best.gpus} x {best.pool.replica.gpu_type.name}"
    if served is None:
        return f"{detail}, did not hold"
    if not served.stable:
        return f"{detail}, has a queue that keeps growing"
    for name, limit in question.target.limits.stated.items():
        found = served.latencies_s[name].get(limit.statistic)
        if found is not None and found > limit.seconds:
            values = name, limit.statistic, milliseconds(found / MILLI), limit.seconds / MILLI
            return f"{detail}, has {at_limit(*values, single=question.service.single_result)}"
    from sizing.answers.sizes import serves_population  # with a run, the simulator is loaded already

    target = question.target
    if not serves_population(best, target):
        people = target.population_of(best.requests_per_s, best.latency_s("e2e")["mean"])
        return f"{detail}, was simulated with {people:,.4g} {target.unit}, and no rate tried has {target.amount:,.4g}"
    return f"{detail}, did not hold"


def unmet(outcome: Outcome) -> Limiting:
    """The nearest refusal, its distance from the demand, and changes that would help."""
    nearest, without = _unmet(outcome), outcome.by_runs.predicted
    if without is None:
        return nearest
    size = f"{without.gpus} x {without.pool.replica.gpu_type.name} ({without.pool.replica.layout})"
    how = "by the prediction alone" if outcome.by_runs.even else "without --confidence"
    return nearest._replace(detail=f"{nearest.detail}; {how} {size} do")


def _unmet(outcome: Outcome) -> Limiting:
    words = tuple(map(suggested, outcome.hints.suggestions))
    best, budget = outcome.best, outcome.question.rules.gpu_budget
    if best is not None and not outcome.simulation.passed:
        detail = _unconfirmed(best, outcome.question, outcome.simulation.tries)
        return Limiting("simulation", detail=detail, suggestions=words)
    if best is not None and budget is not None:
        size, like = _without_budget(outcome, best)
        detail = (
            f"{_served_within(like, outcome)}the demand takes {size.gpus} x {size.gpu} ({size.layout}{_less(best, size)}), "
            f"{size.gpus - budget} more than the budget of {budget}{_for_runs(like, outcome.question)}"
            f"{_nodes_and_cost(like, size.gpus)}"
        )
        return Limiting("gpu_budget", detail=detail, suggestions=words)
    miss = nearest_miss(outcome)
    if miss is None:
        return Limiting("none", detail="no layout was left to try", suggestions=words)
    detail = f"{miss.gpu_type.name} {miss.precision.upper()} {miss.layout}: {miss.detail}{_reads(miss, outcome)}"
    if miss.reason == UNSURE:
        detail += f"; {MEASURE_FIRST}"
    found = Limiting(miss.reason, detail=detail, suggestions=words)
    limit = getattr(outcome.question.target.limits, miss.reason, None)
    if limit is None:
        return found
    limit_ms = limit.seconds / MILLI
    value_ms = limit_ms * (1 + miss.shortfall)
    return found._replace(statistic=limit.statistic, value_ms=value_ms, limit_ms=limit_ms)


def _reads(miss: Refusal, outcome: Outcome) -> str:
    """Write what a decode step reads of the weights and how long that takes; empty where a step does not read them all."""
    weights_gib, service = miss.weights_gib, outcome.question.service
    if (
        miss.reason != "itl"
        or weights_gib is None
        or is_moe(service.model)
        or "speculative" in service.optimisations.asked()
    ):
        return ""
    gb_per_s = miss.gpu_type.gpu.datasheet.memory.bandwidth_gb_per_s
    read_ms = weights_gib * GIB / (gb_per_s * GIGA) * miss.layout.pp / MILLI
    stages = None if miss.layout.pp == 1 else miss.layout.pp
    return "; " + said("reads weights", miss, stages=stages, ms=read_ms, gb_per_s=gb_per_s)


def _without_budget(outcome: Outcome, best: Answer) -> tuple[Suggestion, Answer]:
    """The suggested larger budget, and the closed-form answer of its layout.

    Where nothing was suggested, it is the best answer with the fewest pipeline stages, as the answer without a budget.
    """
    sizes = ((Suggestion.of(LARGER_BUDGET, each), each) for each in reversed(outcome.answers))
    answers = {(size.gpu, size.layout): each for size, each in sizes}
    for size in outcome.hints.suggestions:
        if size.change == LARGER_BUDGET:
            return size, answers.get((size.gpu, size.layout), best)
    flat = min(outcome.answers, key=lambda each: each.decode.replica.layout.pp, default=best)
    return Suggestion.of(LARGER_BUDGET, flat), flat


def _less(best: Answer, size: Suggestion) -> str:
    """Write that another layout of the GPU type takes fewer GPUs, which a budget leaves no choice but to try."""
    of = best.pool.replica
    other = of.gpu_type.name == size.gpu and str(of.layout) != size.layout
    return f"; {best.gpus} as {of.layout}" if other and best.gpus < size.gpus else ""


def _served_within(like: Answer, outcome: Outcome) -> str:
    """Write the part of the demand that the budget serves, in the layout of the GPU type and precision that serves most.

    `like` is the answer without a budget. The layout is written where it is another one. GPUs that would serve the demand by
    the capacity of a replica, and do not, are said to be unconfirmed, or not at all where nothing is simulated.
    """
    question, own = outcome.question, like.pool.replica
    alike = [each for each in outcome.answers if _type_of(each) == _type_of(like)]
    documents = _documents(question)
    most = max((like, *alike), key=lambda each: _served(each, question))
    if documents is not None:
        most = min((like, *alike), key=lambda each: _seconds(each, question, documents))
    served, layout = _served(most, question), most.pool.replica.layout
    if not served:
        return ""
    replicas = (question.rules.gpu_budget or 0) // layout.gpus
    whole = question.target.requests_per_s is None  # users and requests in flight are whole numbers
    amount = number_down(math.floor(served) if whole else served)
    gpus = replicas * layout.gpus
    shape = "" if layout == own.layout else f" as {replicas} x {layout}"
    seconds = math.inf if documents is None else _seconds(most, question, documents)
    in_time = seconds <= (question.target.within_s or 0.0)
    if in_time or served >= (question.target.amount or math.inf) * (1 - ROUNDING_SLACK):
        return f"no simulation confirms {plural(gpus, 'GPU')}{shape}; " if outcome.simulation.tries else ""
    serve = f"{plural(gpus, 'GPU')}{shape} serve{'s' * (gpus == 1)} {amount} {question.target.unit}"
    if documents is not None:
        return f"{plural(gpus, 'GPU')}{shape} take{'s' * (gpus == 1)} {duration(seconds)}; "
    if most.pool.capacity.binding == "utilisation":
        return f"{serve}, {percent(question.target.max_utilisation)} of the highest stable rate (--max-utilisation); "
    if most.pool.capacity.binding == IDLE_CACHES:
        return f"{serve}, where the caches of idle conversations are full; "
    limit = limit_words(most.pool.capacity.binding, single=question.service.single_result)
    return f"{serve}, where {limit} reaches its limit; "


def _documents(question: Question) -> float | None:
    """The documents of a demand that states how long they may take; None for another."""
    demand = question.origin.workload.demand
    return None if demand is None else demand.documents


def _nodes_and_cost(like: Answer, gpus: int) -> str:
    """Write the whole nodes that GPUs of an answer's type take, where they are several, and what the GPUs cost."""
    each, gpu_type = like.usd_per_hour, like.pool.replica.gpu_type
    of_node = gpu_type.gpu.datasheet.node.gpus
    nodes = f"; {plural(-(-gpus // of_node), 'node')} of {of_node}" if gpus > of_node else ""
    return nodes if each is None else f"{nodes}{', ' if nodes else '; '}{dollars(each / like.gpus * gpus)}"


def _type_of(answer: Answer) -> tuple[str, str]:
    replica = answer.pool.replica
    return replica.gpu_type.id, replica.plan.weight_format


def _served(answer: Answer, question: Question) -> float:
    """The demand that the budget serves in an answer's layout, with the headroom and margin asked for."""
    pool = answer.pool
    replicas = (question.rules.gpu_budget or 0) // pool.replica.layout.gpus
    return replicas * pool.capacity.amount / (pool.margin * (1 + question.rules.headroom))


def _seconds(answer: Answer, question: Question, documents: float) -> float:
    """The time in which the budget does documents in an answer's layout; infinite where it holds no replica."""
    replicas = (question.rules.gpu_budget or 0) // answer.pool.replica.layout.gpus
    return batch_s(answer.pool.timed, documents / replicas) if replicas else math.inf


def _for_runs(best: Answer, question: Question) -> str:
    """Write the share of published runs that must keep the limits, if that raises the number of GPUs."""
    if best.pool.margin == 1.0:
        return ""
    share = EVEN if question.target.confidence is None else question.target.confidence
    keeps = "the limits to hold" if question.target.limits.stated else "the demand to be served"
    return f", for {keeps} in {share:.0%} of {of_runs(best.pool.timed.replica.gpu_type.gpu.own_runs is not None)}"


def suggested(change: Suggestion) -> str:
    """A helpful change, and the deployment with it."""
    return f"{change.change}: {change.gpus} x {change.gpu} ({change.layout})"


def limit_words(name: str, *, single: bool = False) -> str:
    """Write the name of a limit: a latency in capitals, a capacity in words. A `single` latency is named so."""
    if name in LATENCIES:
        return latency_name(name, single=single)
    return name.replace("_", " ").replace("gpu", "GPU").replace("kv", "KV")


def shortfall(limiting: Limiting, *, single: bool) -> str:
    """Write the tightest limit and by how much it is missed. A `single` latency stands for all where nothing decodes."""
    value, limit = limiting.value_ms, limiting.limit_ms
    if value is None or limit is None or value <= limit:
        return limiting.detail[:1].upper() + limiting.detail[1:]
    over = (
        f"{of_limit(value / limit - 1, 0.0)} over" if value < TIMES_FROM * limit else f"{number(value / limit)} times"
    )
    return f"{limit_words(limiting.limit, single=single)} is {over} its limit at the nearest layout"


def nearest(limiting: Limiting, memory: Sequence[Line]) -> tuple[Line, ...]:
    """What makes the demand infeasible, with lines on its `memory`, and changes that would help."""
    found = helps = limiting.suggestions
    if limiting.limit == "gpu_budget":  # whose detail names the larger budget
        helps = tuple(each for each in found if not each.startswith(LARGER_BUDGET))
    tried = would_help(helps) if helps or not found else ()
    return (Line(limiting.detail, "Nearest"), *memory, *tried)
