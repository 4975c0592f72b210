"""`llmsize estimate`: the fewest GPUs for a demand, as one pool of replicas and, if requested, as separate pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.answers.advice import nearest_miss
from sizing.answers.answer import Answer, Outcome
from sizing.formats.view import Assumption, Document, Explanation, Facts, Line, Rows, Section, Text, plain
from sizing.formats.words import milliseconds, money, number, percent, plural, stated
from sizing.question.demand import Readings
from sizing.question.question import situation_of
from sizing.report.parts import assumptions, bands, conversations, explain, layouts, pools, repeat
from sizing.report.parts.conversations import IdleConversations
from sizing.report.parts.figures import (
    Cost,
    Latency,
    LoadFigures,
    MemoryFigures,
    Throughput,
    Users,
    Utilisation,
    figures,
    memory_of,
    readings_of,
)
from sizing.report.parts.layouts import Alternative, Deployment, RejectedLayout, headline, latencies, layout
from sizing.report.parts.limiting import Limiting, limiting, unmet, what_would_help
from sizing.report.parts.memory import memory_line
from sizing.report.parts.question import LABELS, inputs, lengths, model_line, optimised, steps_line
from sizing.specs.bands import ErrorBand

if TYPE_CHECKING:  # what sizes pools is loaded where they are asked for
    from sizing.report.parts.disaggregated import Disaggregated
    from sizing.specs.bands import Edge


class Conservative(NamedTuple):
    """The cost of sizing on the worse edges of the error bands, against the answer without them; null where infeasible.

    The answer's limits were divided by the latencies' factors, and the highest rate was multiplied by that of
    throughput.
    """

    gpus_without: int | None
    extra_gpus: int | None
    requests_per_s_without: float | None
    factors: Edge | None


class Simulation(NamedTuple):
    """The check of an answer by simulation, one replica under its share of the demand.

    `batch_mean` counts requests in the running batch, `queue_mean` those that wait for it; in the front end are the rest of
    a replica's concurrency.
    """

    passed: bool
    sizes_tried: int
    requests: int
    stable: bool
    queue_mean: float
    batch_mean: float
    kv_utilisation_mean: float
    kv_utilisation_max: float
    preemptions: int


class Estimate(NamedTuple):
    """The record of `llmsize estimate`; `simulate_command` simulates its answer, `bands` are by the path of a number.

    `readings` say its load by its rate, its requests in flight and its concurrent users. `disaggregated` is what serves
    the same from separate pools, null where they were not asked for; all else serves as one.
    """

    feasible: bool
    inputs: dict[str, Any]
    deployment: Deployment | None
    load: LoadFigures | None
    throughput: Throughput | None
    latency: Latency | None
    simulation: Simulation | None
    memory: MemoryFigures | None
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
    schema: str = "llmsize.estimate/1"


def record(outcome: Outcome, *, explained: bool = False) -> Estimate:
    """The record of an outcome: the answer with all its figures, or what makes it infeasible; and the separate pools."""
    found = _serving_as_one(outcome, explained)
    return found if outcome.separate_pools is None else _with_pools(found, outcome.separate_pools, outcome.answer)


def _serving_as_one(outcome: Outcome, explained: bool) -> Estimate:
    best, question = outcome.answer, outcome.question
    nothing = _unserved(outcome)
    if best is None:
        return nothing
    pool, found = best.pool, figures(best, outcome)
    predicted = tuple(bands.of_answer(best, outcome, found))
    served = nothing._replace(
        feasible=True,
        inputs=inputs(question, pool.replica),
        deployment=layouts.deployment(best),
        load=found.load,
        throughput=found.throughput,
        latency=found.latency,
        simulation=_simulation(best, outcome),
        memory=found.memory,
        utilisation=found.utilisation,
        users=found.users,
        cost=found.cost,
        bands=bands.bounds(predicted),
        alternatives=nothing.alternatives[1:],
        assumptions=tuple(assumptions.of_answer(best, question)),
        simulate_command=repeat.command(best, question),
        idle_conversations=conversations.idle(pool, question),
        readings=readings_of(found.load, question),
    )
    if not explained:
        return served
    return served._replace(explanations=(*explain.of_answer(best, outcome, found), *bands.explanations(predicted)))


def _with_pools(one: Estimate, outcome: Outcome, best: Answer | None) -> Estimate:
    """The record with the separate pools for the same demand; `best` is the answer that serves as one."""
    from sizing.report.parts.disaggregated import disaggregated

    asked = outcome.question.space.pools
    assert asked is not None
    rests_on = (*pools.assumptions(asked.facts), *pools.of_turns(outcome.question, asked.facts))
    found = disaggregated(outcome, best)
    return one._replace(disaggregated=found, assumptions=(*one.assumptions, *rests_on))


def _unserved(outcome: Outcome) -> Estimate:
    """The record without an answer: what makes it infeasible, and the memory where that is too small."""
    question, best, lacking = outcome.question, outcome.answer, None
    miss = nearest_miss(outcome) if outcome.best is None else None
    if miss is not None and miss.sized is not None:
        lacking = memory_of(miss.sized)
    of_memory = (
        () if miss is None or lacking is None else bands.of_memory(lacking, situation_of(question, miss.gpu_type.gpu))
    )
    return Estimate(
        feasible=False,
        inputs=inputs(question, None),
        deployment=None,
        load=None,
        throughput=None,
        latency=None,
        simulation=None,
        memory=lacking,
        utilisation=None,
        users=None,
        cost=None,
        limiting=unmet(outcome) if best is None else limiting(best, question, outcome.relaxation),
        bands=bands.bounds(of_memory),
        conservative=_conservative(best, outcome.predicted) if question.target.pessimistic else None,
        alternatives=tuple(map(layouts.alternative, outcome.answers)),
        rejected=tuple(map(layouts.rejected, outcome.refusals)),
        assumptions=(*assumptions.of_model(question, question.origin.notes), *assumptions.of_limits(question)),
    )


def _conservative(best: Answer | None, without: Answer | None) -> Conservative:
    return Conservative(
        gpus_without=None if without is None else without.gpus,
        extra_gpus=None if best is None or without is None else best.gpus - without.gpus,
        requests_per_s_without=None if without is None else without.requests_per_s,
        factors=None if best is None else best.pool.edge,
    )


def _simulation(best: Answer, outcome: Outcome) -> Simulation | None:
    """The figures of the check by simulation, from which the latencies then come."""
    run = best.run
    if run is None:
        return None
    return Simulation(
        passed=outcome.passed,
        sizes_tried=outcome.tries,
        requests=run.arrived,
        stable=run.stable,
        queue_mean=run.queue_mean,
        batch_mean=run.batch_mean,
        kv_utilisation_mean=run.cache_mean,
        kv_utilisation_max=run.cache_max,
        preemptions=run.preemptions,
    )


def document(record: Estimate) -> Document[Estimate]:
    """The document of an estimate."""
    return Document(record, sections, rows)


COLUMNS = (
    "status", "gpu", "weight_precision", "gpus", "replicas", "tp", "pp", "ep", "dp", "cp", "dcp", "requests_per_s_per_gpu",
    "concurrency_per_replica", "ttft_ms", "itl_ms", "e2e_ms", "usd_per_hour", "power_w", "limit", "detail",
)  # fmt: skip


def rows(record: Estimate) -> Rows:
    """A row for each layout: the answer, its separate pools, the alternatives, and the rejected layouts with their
    reasons.
    """
    labels = {key: record.inputs.get(key) for key in LABELS if key != "weight_precision"}

    def row(layout: NamedTuple, **own: Any) -> tuple[Any, ...]:
        """The values of a layout by column: from `own`, else from its fields."""
        return (*labels.values(), *plain([own.get(name, getattr(layout, name, None)) for name in COLUMNS]))

    found, load, latency = [], record.load, record.latency
    if load is not None and latency is not None:
        own = {"itl_ms": latency.itl_ms.mean, "concurrency_per_replica": load.concurrency_per_replica}
        (best,) = _as_alternative(record)
        found.append(row(best, status="answer", detail=record.limiting.detail, **own))
    separate = record.disaggregated
    for name in ("prefill", "decode") if separate is not None else ():
        pool = getattr(separate, name)
        if separate is not None and pool is not None:
            per_gpu = separate.requests_per_s_per_gpu
            found.append(row(pool, status=f"{name} pool", requests_per_s_per_gpu=per_gpu, detail=separate.why))
    found += [row(one, status="feasible", detail="") for one in record.alternatives]
    found += [row(one, status="rejected", limit=one.reason) for one in record.rejected]
    return Rows((*labels, *COLUMNS), found)


def _as_alternative(record: Estimate) -> Iterator[Alternative]:
    """Yield the answer in the fields of an alternative, with its own latencies."""
    d, latency, cost, throughput = record.deployment, record.latency, record.cost, record.throughput
    if d and latency and cost and throughput:
        yield Alternative(
            gpu=d.gpu,
            weight_precision=record.inputs["weight_precision"],
            **layouts.sizes(d),
            replicas=d.replicas,
            gpus=d.gpus,
            requests_per_s_per_gpu=throughput.requests_per_s_per_gpu,
            ttft_ms=latency.ttft_ms.mean or 0.0,
            itl_ms=latency.itl_ms.mean or 0.0,
            e2e_ms=latency.e2e_ms.mean or 0.0,
            usd_per_hour=cost.usd_per_hour,
            power_w=cost.power_w,
            limit=record.limiting.limit,
        )


def sections(record: Estimate) -> Iterator[Section]:
    """Yield the answer, the question, figures, other layouts, assumptions; separate pools come first."""
    separate, explained, i = record.disaggregated, bool(record.explanations), record.inputs
    if separate is not None:
        from sizing.report.parts import disaggregated

        yield from disaggregated.sections(separate, i["limits"])
    yield answer(record)
    yield Facts(tuple(_asked(record)))
    yield Facts(tuple(_figures(record))) if record.feasible else nearest(record)
    several, others = len(i["gpus_considered"]) > 1, record.alternatives
    yield from layouts.compared(
        (*_as_alternative(record), *others), several=several, simulated=record.simulation is not None
    )
    if record.feasible or len(record.rejected) > 1:
        served = {one.gpu for one in (*_as_alternative(record), *others)}
        misses = layouts.not_possible(record.rejected, served, several=several, feasible=record.feasible)
        yield Facts(tuple(misses))
    yield from explain.explained(record.explanations)
    if explained and record.simulate_command:
        yield Text(repeat.shell_lines(record.simulate_command), "Check it with")
    if explained and separate is not None and separate.simulate_command:
        yield Text(repeat.shell_lines(separate.simulate_command), "Check the pools with")
    yield assumptions.assumed(record.assumptions, sources=explained)


def answer(record: Estimate) -> Facts:
    """The layout, its load and its latencies; or that the demand is infeasible."""
    d, load, latency = record.deployment, record.load, record.latency
    throughput, users, cost, i = record.throughput, record.users, record.cost, record.inputs
    if not (d and load and latency and throughput and users and cost):
        return Facts((), "Infeasible: no layout meets the demand within the limits")
    lines = [
        Line(
            f"Serves {_served(load, i)} ({number(throughput.requests_per_s_per_gpu)} per GPU, "
            f"{number(throughput.requests_per_s_per_replica)} per replica){_headroom(load, i)}"
        ),
        Line(latencies(latency[:3], i["limits"])),
    ]
    if latency.itl_ms.mean is None and i["limits"]["itl_ms"] is not None:
        lines.append(assumptions.NO_ITL_LINE)
    conservative = record.conservative is not None
    lines.append(bands.answer_words(record.bands, load, latency, i, conservative=conservative))
    lines += _caution(record, d, load)
    if users.stated:
        lines.append(Line(f"{number(users.daily_active_users)} daily active users served ({_habits(users)})"))
    if _is_demanded(i) and i["objective"] != "cost":  # else each layout serves another load
        (best,) = _as_alternative(record)
        lines += layouts.cheaper(best, record.alternatives, simulated=record.simulation is not None)
    shape = f"{plural(d.replicas, 'replica')} x {layout(d)}"
    return Facts(tuple(lines), headline(d.gpus, d.gpu, shape, cost.usd_per_hour))


def nearest(record: Estimate) -> Facts:
    """What makes the demand infeasible, and changes that would help."""
    memory = () if record.memory is None else (memory_line(record.memory),)
    return Facts((Line(record.limiting.detail, "Nearest"), *memory, *what_would_help(record.limiting.suggestions)))


def _is_demanded(inputs: dict[str, Any]) -> bool:
    return any(inputs["demand"][name] is not None for name in ("requests_per_s", "concurrency", "concurrent_users"))


def _served(load: LoadFigures, inputs: dict[str, Any]) -> str:
    """Write the load: the unit of the demand comes first; without a demand it is the most that is served."""
    rate = f"{number(load.requests_per_s)} requests/s"
    if load.headroom_of == "concurrency":
        return f"{number(load.concurrency)} requests in flight: {rate}"
    if load.headroom_of == "users":
        i = inputs["demand"]
        users = f"{number(i['concurrent_users'])} users who think {number(i['think_time_s'])} s after an answer"
        return f"{users}: {rate}, {number(load.concurrency)} in flight"
    return rate if inputs["demand"]["requests_per_s"] is not None else f"at most {rate}"


def _headroom(load: LoadFigures, inputs: dict[str, Any]) -> str:
    """Write the headroom in the unit of the demand; empty where the load is the most already."""
    if not _is_demanded(inputs):
        return ""
    of = "" if load.headroom_of == "requests_per_s" else f" in {load.headroom_of}"
    asked = f" ({percent(inputs['headroom'])} asked)" if inputs["headroom"] else ""
    return f", {percent(load.headroom)} headroom{of}{asked}"


def _caution(record: Estimate, d: Deployment, load: LoadFigures) -> Iterator[Line]:
    """Write the cost of sizing on the worse edges of the bands: GPUs of a demand, else requests/s of stated GPUs."""
    c = record.conservative
    if c is None or c.gpus_without is None or c.requests_per_s_without is None:
        return
    said = f"{plural(d.gpus, 'GPU')} instead of {c.gpus_without:,} ({c.extra_gpus:+,})"
    if not _is_demanded(record.inputs):
        said = f"{number(load.requests_per_s)} requests/s instead of {number(c.requests_per_s_without)}"
    # Latencies have bands only where published runs were similar.
    of = "" if any(path.startswith("latency.") for path in record.bands) else " of plain serving"
    yield Line(f"Conservative: {said}, sized on the worse edges of the error bands{of}")


def _habits(users: Users) -> str:
    return (
        f"{users.requests_per_user_per_day:g} requests each a day, {users.active_hours:g} h window, "
        f"peak {stated(users.peak_to_mean)} x mean"
    )


def _asked(record: Estimate) -> Iterator[Line]:
    """Yield the six labels (model, precision, ISL, OSL, concurrency, TP), the engine, and matched names."""
    i, load, d = record.inputs, record.load, record.deployment
    engine = f"{i['engine_title']} {i['engine_version']}"
    if load is None or d is None:
        yield Line(f"{i['model']}, {i['weight_precision'].upper()} weights", "Model")
        yield Line(lengths(i), "Workload")
        yield Line(engine, "Engine")
        yield from optimised(i)
        return
    yield model_line(i["model"], i["weight_precision"], i["kv_precision"])
    each = f", {number(load.concurrency_per_replica)} a replica" if d.replicas > 1 else ""
    yield Line(f"{lengths(i)}, concurrency {number(load.concurrency)} in flight{each}", "Workload")
    demanded = steps_line(i["demand"])
    if demanded is not None:
        yield demanded
    nodes = f", a replica over {d.nodes_per_replica} nodes" if d.nodes_per_replica > 1 else ""
    yield Line(f"{engine}, {layout(d)}{nodes}", "Engine")
    yield from optimised(i)
    if record.idle_conversations is not None and i.get("conversation") is not None:
        yield conversations.idle_line(record.idle_conversations)
    if i["gpu_asked"]:
        asked = ", ".join(f"{asked!r} is {known}" for known, asked in i["gpu_asked"].items())
        yield Line(asked, "Matched", style="dim")


def _figures(record: Estimate) -> Iterator[Line]:
    m, u, latency = record.memory, record.utilisation, record.latency
    throughput, cost, users, i = record.throughput, record.cost, record.users, record.inputs
    assert m and u and throughput and cost and latency and users
    yield memory_line(m)
    yield Line(
        f"{m.kv_cache_tokens:,} tokens a replica, {number(m.max_concurrency)} sequences of {m.max_model_len:,} tokens; "
        f"longest that fits {m.max_model_len_that_fits:,}",
        "Cache holds",
    )
    yield bands.memory_words(record.bands)._replace(label="Memory band")
    decode = "no decode (OSL 1)" if i["osl"] else "no decode"
    if u.decode_mbu is not None:
        decode = f"decode {u.decode_bound}-bound, MBU {percent(u.decode_mbu)}, MFU {percent(u.decode_mfu)}"
    yield Line(f"prefill {u.prefill_bound}-bound, MFU {percent(u.prefill_mfu)}; {decode}", "Bound by")
    itl = f", ITL {milliseconds(latency.solo_itl_ms)}" if latency.solo_itl_ms is not None else ""
    yield Line(f"TTFT {milliseconds(latency.solo_ttft_ms)}{itl}", "Alone")
    spread = (
        f"{name} p50 {milliseconds(s.p50)}, p95 {milliseconds(s.p95)}, p99 {milliseconds(s.p99)}"
        for name, s in (("TTFT", latency.ttft_ms), ("ITL", latency.itl_ms))
        if s.p50 is not None
    )
    yield Line("; ".join(spread), "Percentiles")
    yield from _throughput_and_cost(throughput, cost, generates=bool(i["osl"]))
    if not users.stated and i["mode"] != "offline":
        dau = number(users.daily_active_users)
        yield Line(f"this rate would be that of {dau} daily active users ({_habits(users)})", "Users")
    yield Line(record.limiting.detail, "What limits it")
    yield Line(_simulated(record.simulation), "Simulated")


def _throughput_and_cost(throughput: Throughput, cost: Cost, *, generates: bool) -> Iterator[Line]:
    """Yield tokens/s, cost per token and the price; prompt tokens for a task without output."""
    if generates:
        tokens = (
            f"{number(throughput.output_tokens_per_s)} output tokens/s ({number(throughput.output_tokens_per_s_per_gpu)} per "
            f"GPU), {number(throughput.total_tokens_per_s)} with prompts"
        )
        of, kwh, each = "output", cost.kwh_per_million_output_tokens, cost.usd_per_million_output_tokens
    else:
        tokens = f"{number(throughput.input_tokens_per_s)} input tokens/s"
        of, kwh, each = "input", cost.kwh_per_million_input_tokens, cost.usd_per_million_input_tokens
    yield Line(tokens, "Throughput")
    energy = f"{number(cost.power_w)} W TDP, {number(kwh)} kWh per million {of} tokens"
    if each is not None:
        usd = f"{money(each)} per million {of} tokens at this rate around the clock"
        if cost.usd_per_million_output_tokens_mean_load is not None:
            usd += f", {money(cost.usd_per_million_output_tokens_mean_load)} at the mean load of the users' day"
        energy = f"{usd}; {energy}"
    yield Line(energy, "Cost")
    if cost.usd_per_gpu_hour is not None:
        yield Line(f"{money(cost.usd_per_gpu_hour)} per GPU-hour: {cost.price_source}", "Price")


def _simulated(s: Simulation | None) -> str:
    if s is None:
        return "no: latencies are the closed form's (--no-verify)"
    preempted = f", {plural(s.preemptions, 'preemption')}" if s.preemptions else ""
    return (
        f"{s.requests:,} requests of one replica: of those in flight {number(s.batch_mean)} in the running batch and "
        f"{number(s.queue_mean)} queued on average, cache {percent(s.kv_utilisation_mean)} full{preempted}; latencies "
        "and percentiles are from it"
    )
