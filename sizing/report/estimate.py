"""`llmsize estimate`: the fewest GPUs for a demand, as one pool of replicas and, if requested, as separate pools."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sizing.answers.advice import nearest_miss
from sizing.answers.answer import Outcome
from sizing.answers.deployment import warning_of
from sizing.formats.view import Assumption, Document, Explanation, Facts, Line, Rows, Section, fields, filled, rows_of
from sizing.formats.words import milliseconds, number, plural, rounded_usd
from sizing.model.architecture import SIZES
from sizing.model.memory import MemoryUse
from sizing.question.demand import Readings
from sizing.replica.histories import IDLE_CACHES
from sizing.report.parts import assumptions, evidence, layouts, repeat_command, screen
from sizing.report.parts.evidence import Evidence, SureOf, doubts, limited_latencies
from sizing.report.parts.figures import (
    BatchJob,
    Cost,
    IdleConversations,
    Latency,
    LoadFigures,
    Simulation,
    Throughput,
    Users,
    Utilisation,
    batch_job,
    cost_figures,
    figures,
    latency,
    memory_of,
    users_of,
)
from sizing.report.parts.layouts import Alternative, BesideAnswer, Limited, RejectedLayout, SizedLayout, headline
from sizing.report.parts.limits import Limiting, limit_words, limiting, nearest, shortfall, unmet
from sizing.report.parts.memory import queued_words
from sizing.report.parts.prices import PriceOrder, price_order
from sizing.report.parts.quantities import at_limit, limited_percentiles
from sizing.report.parts.question import (
    Inputs,
    Replayed,
    demand_line,
    inputs,
    is_by_day,
    is_demanded,
    is_limited,
    labels,
    not_replayed,
    readings,
    replica_lines,
)
from sizing.report.parts.screen import DERIVED, LimitRow, assumption_lines, next_line
from sizing.specs.bands import ConfidentSize, ErrorBand, of_runs

if TYPE_CHECKING:  # loaded only for separate pools or a trace
    from sizing.answers.replay import BusiestMinute
    from sizing.report.parts.disaggregation import Disaggregated


NEXT = f"{DERIVED}; llmsize report: a page"
INFEASIBLE = "Infeasible: no layout meets the demand within the limits"
INFEASIBLE_BY = {  # the limit that the nearest layout misses
    "memory": "Infeasible: no layout has room for the model",
    "gpu_budget": "Infeasible: the demand takes more GPUs than the budget",
    "gpu_budget alone": "Infeasible: a replica takes more GPUs than the budget",  # no demand
}
COMMANDS = "llmsize report: a page; llmsize deploy: start it"
MEASURED = "llmsize deploy --benchmark vllm: measure it"  # where no published runs, or none on such GPUs, are like it
# null without an answer
OF_ANSWER = ("deployment", "load", "throughput", "latency", "simulation", "utilisation", "users", "cost")
OF_ONE_POOL = ("memory", "conservative", "idle_conversations", "readings", "batch_job")
# What a short screen leaves out after all usual spare lines; the last three only where every doubt is told.
MEMORY_LAST, PRICES_LAST, BINDS_LAST, TYPES_LAST, FP8_LAST = 10, 11, 13, 14, 15
COMPARED = "One pool, for comparison"  # what is derived where separate pools answer


class Conservative(NamedTuple):
    """The cost of sizing for a confidence, compared with the answer as predicted. Fields are null where infeasible.

    The demand was multiplied by `margin`, which covers all limits and rates together. `factors` (one for each limit or rate)
    are therefore null.
    """

    gpus_without: int | None
    extra_gpus: int | None
    requests_per_s_without: float | None
    margin: float | None
    factors: None = None
    gpu_without: str | None = None


class Estimate(NamedTuple):
    """The record of `llmsize estimate`. `simulate_command` simulates its answer; the keys of `bands` are paths of numbers.

    `disaggregated` is of separate pools; it is null where no pools were asked for. The latency, users, cost and assumptions are
    then of both pools, and fields that only one pool has are null. `serves` names the field with the answer: `disaggregated`
    where pools were asked for, else `deployment`, or null without an answer. --quiet, the exit code, deploy and check use the
    answer that `serves` names.
    """

    feasible: bool
    inputs: Inputs
    deployment: SizedLayout | None
    load: LoadFigures | None
    throughput: Throughput | None
    latency: Latency | None
    simulation: Simulation | None
    memory: MemoryUse | None
    utilisation: Utilisation | None
    users: Users | None
    cost: Cost | None
    limiting: Limiting
    bands: dict[str, ErrorBand]
    conservative: Conservative | None
    alternatives: tuple[Alternative, ...]
    rejected: tuple[RejectedLayout, ...]
    assumptions: tuple[Assumption, ...]
    simulate_command: str | None = None
    disaggregated: Disaggregated | None = None
    explanations: tuple[Explanation, ...] = ()
    idle_conversations: IdleConversations | None = None
    readings: Readings | None = None
    confidence: float | None = None
    evidence: Evidence | None = None
    trace: Replayed | None = None
    serves: Literal["deployment", "disaggregated"] | None = None
    prices: PriceOrder | None = None
    batch_job: BatchJob | None = None
    usual_limits: BesideAnswer | None = None
    with_fp8: BesideAnswer | None = None
    schema: str = "llmsize.estimate/1"


def record(outcome: Outcome, *, explained: bool = False, minute: BusiestMinute | None = None) -> Estimate:
    """The record of an outcome: the answer with all its figures or the reason why it is infeasible, and the separate pools.

    `minute` is the busiest minute of the trace, if the demand comes from a trace.
    """
    found = _serving_as_one(outcome, explained) if outcome.one_pool is None else _with_pools(outcome, explained)
    if minute is None:
        return found
    rows, count = len(minute.rows), minute.end - minute.start
    return found._replace(trace=Replayed(minute.name, rows, minute.start_s, count, minute.per_s, minute.mean_per_s))


def _serving_as_one(outcome: Outcome, explained: bool) -> Estimate:
    best, question = outcome.answer, outcome.question
    nothing = _unserved(outcome)
    if best is None:
        return nothing
    pool, found = best.pool, figures(best, outcome)
    predicted = tuple(evidence.of_answer(best, outcome, found))
    served = filled(
        Estimate,
        evidence.by_runs(outcome, predicted),
        found,
        nothing,
        feasible=True,
        serves="deployment",
        inputs=inputs(question, pool.replica),
        deployment=layouts.deployment(best, outcome),
        bands=evidence.bounds(predicted),
        alternatives=nothing.alternatives[1:],
        assumptions=tuple(assumptions.of_answer(best, question)),
        simulate_command=repeat_command.command(best, question),
        prices=price_order(outcome.answers, question),
        usual_limits=layouts.beside(outcome.hints.usual, question),
        with_fp8=layouts.beside(outcome.hints.in_fp8, question),
    )
    if not explained:
        return served
    from sizing.report.parts import derivations  # loaded where asked for

    derived = derivations.of_answer(best, outcome, found)
    return served._replace(explanations=(*derived, *evidence.explanations(predicted)))


def _with_pools(outcome: Outcome, explained: bool) -> Estimate:
    """The record of separate pools. The answer from one pool for the same demand is the first of the alternatives."""
    from sizing.report.parts import disaggregation, pools

    whole, best, question = outcome.one_pool, outcome.answer, outcome.question
    asked = question.space.pools
    assert whole is not None and asked is not None
    one, found = _serving_as_one(whole, explained), disaggregation.disaggregated(outcome)
    transfers = (*pools.assumptions(asked.facts), *pools.of_turns(question, asked.facts))
    derived = tuple(each._replace(about=f"{COMPARED}: {each.about}" if each.about else "") for each in one.explanations)
    others = () if whole.answer is None else (layouts.alternative(whole.answer, question),)
    without = one._replace(
        **dict.fromkeys((*OF_ANSWER, *OF_ONE_POOL)),  # type: ignore[arg-type]
        feasible=found.feasible,
        limiting=Limiting(pools.UNSERVED, detail=found.why),
        bands={},
        alternatives=(*others, *one.alternatives),
        assumptions=tuple(dict.fromkeys((*assumptions.of_answer(best, question), *transfers))),
        simulate_command=found.simulate_command,
        disaggregated=found,
        explanations=derived,
        confidence=found.confidence,
        evidence=found.evidence,
        serves=None,
    )
    if best is None:
        return without
    return without._replace(
        latency=latency(best),
        users=users_of(best, question),
        cost=cost_figures(best, question),
        batch_job=batch_job(best, question),
        limiting=Limiting(pools.limit_of(best.tightest), detail=found.why),
        serves="disaggregated",
    )


def _unserved(outcome: Outcome) -> Estimate:
    """The record without an answer: the reason why it is infeasible, and the memory figures if memory is too small."""
    question, best, without = outcome.question, outcome.answer, outcome.by_runs.predicted
    miss = nearest_miss(outcome) if outcome.best is None else None
    lacking, known = None, {}
    if miss is not None and miss.sized is not None:
        lacking = memory_of(miss.sized)
        known = evidence.bounds(evidence.of_memory(lacking, evidence.memory_situation(question, miss.sized)))
    conservative = None
    if question.target.confidence is not None:
        conservative = Conservative(
            gpus_without=without.gpus if without else None,
            extra_gpus=best.gpus - without.gpus if best and without else None,
            requests_per_s_without=without.requests_per_s if without else None,
            margin=best.pool.margin if best else None,
            gpu_without=without.pool.replica.gpu_type.name if without else None,
        )
    return Estimate(
        feasible=False,
        inputs=inputs(question, None),
        **dict.fromkeys(OF_ANSWER),  # type: ignore[arg-type]
        memory=lacking,
        limiting=unmet(outcome) if best is None else limiting(best, outcome),
        bands=known,
        conservative=conservative,
        alternatives=tuple(layouts.alternative(each, question) for each in outcome.answers),
        rejected=tuple(map(layouts.rejected, outcome.refusals)),
        assumptions=tuple(assumptions.of_answer(None, question)),
    )


def shortest(record: Estimate) -> str:
    """The number of GPUs, with their type if several types were considered."""
    if record.disaggregated is not None:
        return str(record.disaggregated.gpus)
    assert record.deployment is not None
    several = len(record.inputs.gpus_considered) > 1
    return f"{record.deployment.gpus} {record.deployment.gpu_id}" if several else str(record.deployment.gpus)


COLUMNS = (
    "status", "gpu", "weight_precision", "gpus", "replicas", "tp", "pp", "ep", "dp", "cp", "dcp", "requests_per_s_per_gpu",
    "concurrency_per_replica", "ttft_ms", "itl_ms", "e2e_ms", "usd_per_hour", "power_w", "limit", "detail",
    "requests_per_s", "gpus_sure",
)  # fmt: skip


def rows(record: Estimate) -> Rows:
    """A row for each layout: the answer, its separate pools, the alternatives, and rejected layouts with reasons.

    A limit on a percentile adds a column for that percentile.
    """

    def row(layout: NamedTuple, status: str, **own: Any) -> dict[str, Any]:
        return {"limited": {}, **dict(fields(layout)), "status": status, **own}

    found, load, times = [], record.load, record.latency
    if load is not None and times is not None:
        own = {"itl_ms": times.itl_ms.mean, "concurrency_per_replica": load.concurrency_per_replica}
        own |= {"requests_per_s": load.requests_per_s, "gpus_sure": record.deployment and record.deployment.gpus_sure}
        (best,) = _as_alternative(record)
        found.append(row(best, "answer", detail=record.limiting.detail, **own))
    if (both := record.disaggregated) is not None:
        own = {"requests_per_s_per_gpu": both.requests_per_s_per_gpu}
        if times is not None:
            means = {name: getattr(times, name).mean for name in ("ttft_ms", "itl_ms", "e2e_ms")}
            found.append(row(both, "answer", **own, **means, limited=_limited(record.inputs, times), detail=both.why))
        named = zip((both.prefill, both.decode), ("prefill pool", "decode pool"), strict=True)
        found += [row(pool, name, **own, detail=both.why) for pool, name in named if pool is not None]
    rates = [one.requests_per_s_per_gpu * one.gpus for one in record.alternatives]
    served = zip(record.alternatives, rates, strict=True)
    found += [row(one, "feasible", detail="", requests_per_s=rate) for one, rate in served]
    found += [row(one, "rejected", limit=one.reason) for one in record.rejected]
    percentiles = (at_limit(each, at.statistic) for each, at in limited_percentiles(record.inputs.limits))
    return rows_of(found, (*COLUMNS, *percentiles), labels(record.inputs))


def _as_alternative(record: Estimate) -> Iterator[Alternative]:
    """Yield the answer in the fields of an alternative, with its own latencies."""
    latency, sources = record.latency, (record.deployment, record.cost, record.throughput, record.inputs)
    if latency and all(sources):
        means = {name: getattr(latency, name).mean or 0.0 for name in record.inputs.limits}
        limited = _limited(record.inputs, latency)
        yield filled(Alternative, *sources, **means, limit=record.limiting.limit, limited=limited)


def _limited(inputs: Inputs, latency: Latency) -> dict[str, Limited | None]:
    """The limited statistic of each latency with a limit."""
    return {
        name: None if at is None else Limited(at.statistic, getattr(getattr(latency, name), at.statistic), at.ms)
        for name, at in inputs.limits.items()
    }


def sections(record: Estimate) -> Iterator[Section]:
    """Yield the first screen: the answer, the separate pools where asked for, or the reason why it is infeasible."""
    if record.disaggregated is not None:
        from sizing.report.parts import disaggregation

        yield from disaggregation.sections(record.disaggregated, record.inputs, record.batch_job)
        yield Facts((*assumption_lines(record.assumptions, by_day=is_by_day(record.inputs.demand)), next_line(NEXT)))
        return
    yield answer(record)
    if record.latency is not None:
        yield screen.figures(_judged(record), note=screen.waits(record.inputs.mode, batch=record.batch_job is not None))
    derive = "" if record.explanations else "--explain; "
    known = record.evidence is None or (record.evidence.groups and not record.evidence.any_gpu)
    commands = COMMANDS if known else MEASURED
    after = (f"--verbose, --explain; {commands}", f"{derive}{commands}") if record.feasible else (NEXT,)
    around = tuple(_around(record))
    by_day = _by_day(record)
    inputs_known = assumption_lines(record.assumptions, counted=record.latency is not None, by_day=by_day)
    yield Facts((*around, *inputs_known, next_line(*after)))


def answer(record: Estimate) -> Facts:
    """The GPUs, their cost, and the verdict; or that the demand is infeasible, and by how much."""
    d, load, cost = record.deployment, record.load, record.cost
    if not (d and load and cost):
        of = record.limiting.limit
        title = INFEASIBLE_BY.get(of if is_demanded(record.inputs.demand) else f"{of} alone")
        short = shortfall(record.limiting, single=record.inputs.single_result)
        return Facts((screen.verdict(short, good=False),), title or INFEASIBLE_BY.get(of, INFEASIBLE))
    several = len(record.inputs.gpus_considered)
    first = f", the {screen.OBJECTIVES[record.inputs.objective]} of {several} GPU types" if several > 1 else ""
    shape = f"{plural(d.replicas, 'replica')} x {d.sizes}"
    return Facts(tuple(_verdict(record)), headline(d.gpus, d.gpu, shape, cost.usd_per_hour) + first)


def _verdict(record: Estimate) -> Iterator[Line]:
    """Yield whether the limits are kept, the share of the GPUs in use, and the cost of sizing for a confidence."""
    d, load = record.deployment, record.load
    assert d and load
    limited, tokens = is_limited(record.inputs.limits), record.inputs.isl + record.inputs.osl
    parts = [screen.limits_verdict(limited, record.simulation is not None, not_replayed(record.inputs.demand, ""))]
    served = record.inputs.mode != "offline" and not limited  # offline work always keeps a queue
    queued = queued_words(record.memory, load.concurrency_per_replica, tokens, record.latency) if served else ""
    if queued:
        parts.append(queued)
    elif is_demanded(record.inputs.demand):
        by_rate = load.headroom_of == "requests_per_s"
        parts.append(screen.load_words(load.share_of_max_requests_per_s, by_rate=by_rate))
    if left := screen.unused(record.inputs.gpu_budget, d.gpus):
        parts.append(left)
    if d.nodes_per_replica > 1:
        parts.append(f"a replica over {d.nodes_per_replica} nodes")
    if d.replicas == 1:
        parts.append(screen.SINGLE)
    yield screen.verdict("; ".join(parts), good=not queued)
    yield from layouts.at_usual_limits(record.usual_limits, demanded=is_demanded(record.inputs.demand))
    if not queued:
        yield from _evident(record)


def _evident(record: Estimate) -> Iterator[Line]:
    """Yield what published runs say about the GPUs: the sure number, and the number by the prediction."""
    d, found, confidence, c = record.deployment, record.evidence, record.confidence, record.conservative
    if d is None or found is None or confidence is None:
        return
    limited, (best,) = is_limited(record.inputs.limits), _as_alternative(record)
    ranges = limited_latencies(best.limited, record.bands, "latency.{}.{}")
    alike = of_runs(found.own, any_gpu=found.any_gpu, short=True)
    if not is_demanded(record.inputs.demand):
        known_of = filled(ConfidentSize, found, gpus=None, confidence=confidence)
        yield from screen.served(known_of, limited, None if c is None else c.requests_per_s_without)
        if (more := found.requests_per_s_as_predicted) is not None:
            yield Line(f"Prediction alone: {number(more)} requests/s, kept in under half of {alike}")
        yield from doubts(found, d.gpu, ranges, ranged=True)
        return
    by_rate = record.load is not None and record.load.headroom_of == "requests_per_s"
    without = "" if c is None or c.gpus_without is None else f"{c.gpus_without:,}"
    if c is not None and without and c.gpu_without not in (None, d.gpu):
        without += f" x {c.gpu_without}"
    price = record.cost and record.cost.usd_per_gpu_hour
    known = SureOf(d.gpus, d.gpus_sure, confidence, found, limited, by_rate, d.gpu, price)
    yield from known.lines(ranges, without=without, gpus_without=c and c.gpus_without, ranged=True)
    if found.gpus_as_predicted is not None:
        of_type = f" x {found.gpu_as_predicted}" if found.gpu_as_predicted != d.gpu else ""
        fewer = f"{found.gpus_as_predicted:,}{of_type or (' GPU' if found.gpus_as_predicted == 1 else ' GPUs')}"
        yield Line(f"Prediction alone: {fewer}, enough in under half of {alike}")


def _judged(record: Estimate) -> Iterator[LimitRow]:
    """Yield the latencies and the rate, each with its limit."""
    load, latency, found, demand = record.load, record.latency, record.bands, record.inputs.demand
    assert load and latency and record.deployment
    asked, reserve = is_demanded(demand), record.inputs.headroom
    full = load.full(record.deployment.replicas, reserve) if asked else not load.headroom
    ranges, binding = screen.bands_in(found, "latency."), record.limiting.limit if full else ""
    yield from screen.latencies(screen.by_name(latency), record.inputs.limits, ranges, binding)
    binds = full and record.limiting.limit_ms is None and record.inputs.mode != "offline"
    most, served = found.get("load.max_requests_per_s"), found.get("load.requests_per_s")
    people = demand.concurrency if demand.concurrency is not None else demand.concurrent_users
    if people is not None:
        yield screen.rate("requests/s", load.requests_per_s, band=served)
        noun = "most in flight" if demand.concurrency is not None else "most users"
        yield screen.rate(noun, people * (1 + load.headroom), people, binds=binds)
    elif demand.requests_per_s is not None:
        yield screen.rate("most requests/s", load.max_requests_per_s, demand.requests_per_s, most, binds=binds)
    else:
        yield screen.rate("requests/s", load.requests_per_s, band=served or most, down=True)
    if record.throughput is not None and record.cost is not None and not record.throughput.output_tokens_per_s:
        yield screen.rate("input tokens/s", record.throughput.input_tokens_per_s)
        if (usd := record.cost.usd_per_million_input_tokens) is not None:
            yield screen.rate("$/M input tokens", usd)._replace(predicted=rounded_usd(usd))


def _converse(record: Estimate) -> bool:
    """Whether people may converse: not with offline work, nor with a model that does not generate."""
    of = record.throughput
    return record.inputs.mode != "offline" and of is not None and of.output_tokens_per_s > 0


def _by_day(record: Estimate) -> bool:
    """Whether the screen states users of a whole day: those of the demand, or those whom given GPUs serve."""
    return is_by_day(record.inputs.demand) or (not is_demanded(record.inputs.demand) and _converse(record))


def _around(record: Estimate) -> Iterator[Line]:
    """Yield the demand, the replica, the binding limit and other layouts; without an answer, changes that would help."""
    i, load, users = record.inputs, record.load, record.users
    other = None if users is None or users.stated or not _by_day(record) else users.daily_active_users
    told = load is not None and record.readings
    yield demand_line(i, same=readings(i.demand, told, other, people=_converse(record)) if told else "")
    if record.trace is not None:
        yield record.trace.line(replayed=record.simulation is not None if record.feasible else None)
    bests = tuple(_as_alternative(record))
    demanded, beside = is_demanded(i.demand), (record.alternatives, record.rejected)
    types = [each for best in bests for each in layouts.other_types(best, *beside, demanded=demanded)]
    # The other GPU types come before other layouts in full and the memory.
    yield from replica_lines(i)
    if record.memory is None or not record.feasible:
        said = answer(record).lines[0].text.lower() == record.limiting.detail.lower()
        of = () if record.memory is None else (screen.memory_line(record.memory, None, i.optimisations),)
        yield from nearest(record.limiting, of)[said:]
        asked = any(i.serving[name] is not None for name in SIZES)
        others = layouts.not_possible(record.rejected, record.limiting.limit, asked=asked)
        yield from screen.first_lines("Refused", others, "reason", 2)
        return
    warning = warning_of(record.memory)
    memory = screen.memory_line(record.memory, i.serving, i.optimisations)
    yield memory._replace(spare=0 if warning is not None else MEMORY_LAST if types else TYPES_LAST)
    for warned in (warning, record.limiting.warning):
        if warned is not None:
            yield Line(warned, "Warning")
    worded = ((record.batch_job, "Batch"), (record.idle_conversations, "Idle caches"))
    yield from (Line(each.words, label) for each, label in worded if each is not None)
    binding, offline = record.limiting, i.mode == "offline"
    crowded = types or any(a.gpus < best.gpus for best in bests for a in record.alternatives[:1])
    minor = crowded or (binding.limit_ms is None and binding.limit != IDLE_CACHES)
    rank = BINDS_LAST if minor and not offline else 0
    yield Line(_binds(record), "Capacity" if offline else "Binds", spare=rank)
    yield from layouts.with_fp8(record.with_fp8, FP8_LAST)
    yield from (line._replace(spare=TYPES_LAST) for line in types)
    if record.prices is not None:
        turn = record.prices.turn
        yield record.prices.line()._replace(spare=0 if turn and turn.near else PRICES_LAST)
    for best in bests:
        instead = layouts.instead(best, record.alternatives, demanded=demanded)
        last = layouts.MOST_OTHERS + 1 if types else PRICES_LAST + 1
        yield from (line._replace(spare=line.spare or last) for line in instead)


def _binds(record: Estimate) -> str:
    """Write the limit of a replica, the load where it binds, and what a looser limit saves or how to raise a capacity."""
    limit, d, load = record.limiting, record.deployment, record.load
    assert d and load
    if limit.limit_ms is None:
        return limit.detail
    each = (
        f"{limit_words(limit.limit, single=record.inputs.single_result)}, "
        f"at a capacity of {number(load.max_requests_per_s / d.replicas)} requests/s a replica"
    )
    if limit.relaxed_gpus is None or limit.relaxed_limit_ms is None:
        return f"{each}{limit.detail.partition(';')[1]}{limit.detail.partition(';')[2]}"
    saved = f"saves at least {plural(d.gpus - limit.relaxed_gpus, 'GPU')}"
    if limit.relaxed_gpu != d.gpu:
        saved = f"takes at most {limit.relaxed_gpus} ({limit.relaxed_gpu})"
    of_what = "" if limit.statistic == "mean" else f"{limit.statistic} "
    return f"{each}; a {of_what}limit of {milliseconds(limit.relaxed_limit_ms)} {saved}"


document = partial(Document, sections=sections, rows=rows)
