"""From the outcome of a search to the document of `llmsize estimate`."""

from __future__ import annotations

import math

from sizing.answers.advice import nearest_miss
from sizing.answers.answer import Answer, Outcome
from sizing.formats.view import Assumption
from sizing.planning import cost
from sizing.question.question import situation_of
from sizing.replica.replica import Refusal
from sizing.report import check_command, explain
from sizing.report.documents import (
    Alternative,
    Conservative,
    Cost,
    Deployment,
    Estimate,
    RejectedLayout,
    Simulation,
    Users,
)
from sizing.report.parts import assumptions, bands, conversation
from sizing.report.parts.bands import ErrorBand
from sizing.report.parts.figures import (
    MemoryFigures,
    latency,
    load_figures,
    memory_figures,
    phase_steps,
    throughput,
    utilisation,
)
from sizing.report.parts.limiting import limiting, unmet
from sizing.report.parts.question import habits, inputs
from sizing.specs.units import MILLI


def build(outcome: Outcome, *, explained: bool = False) -> Estimate:
    """Return the document of an outcome: the answer with all its figures, or what stands in its way."""
    best = outcome.answer
    request = outcome.question
    turned_down = tuple(rejected(entry) for entry in outcome.refusals)
    if best is None:
        lacking, lacking_bands = _lacking(outcome)
        return Estimate(
            feasible=False,
            inputs=inputs(request, None),
            deployment=None,
            load=None,
            throughput=None,
            latency=None,
            simulation=None,
            memory=lacking,
            utilisation=None,
            users=None,
            cost=None,
            limiting=unmet(outcome),
            bands=lacking_bands,
            conservative=_conservative(outcome),
            alternatives=tuple(map(_alternative, outcome.answers)),
            rejected=turned_down,
            assumptions=(*assumptions.of_model(request, request.origin.notes), *assumptions.of_limits(request)),
        )
    chosen = best.pool.replica
    prefill, decode = phase_steps(best, outcome)
    load, rates, times = load_figures(best, outcome), throughput(best, outcome), latency(best)
    held = memory_figures(chosen.memory, chosen.longest_that_fits())
    predicted = tuple(bands.of_estimate(best, outcome, load, rates, times, held))
    document = Estimate(
        feasible=True,
        inputs=inputs(request, chosen),
        deployment=deployment(best),
        load=load,
        throughput=rates,
        latency=times,
        simulation=_simulation(best, outcome),
        memory=held,
        utilisation=utilisation(prefill, decode),
        users=_users(best, outcome),
        cost=cost_figures(best, outcome),
        limiting=limiting(best, request, outcome.relaxation),
        bands=bands.bounds(predicted),
        conservative=_conservative(outcome),
        alternatives=tuple(map(_alternative, outcome.answers[1:])),
        rejected=turned_down,
        assumptions=_assumptions(best, outcome),
        simulate_command=check_command.simulate(best, outcome.question),
        idle_conversations=conversation.idle(best, request),
    )
    if not explained:
        return document
    document = explain.with_explanations(document, best, outcome, prefill, decode)
    return document._replace(
        explanations=(*document.explanations, *conversation.explanations(best), *bands.explanations(predicted))
    )


def _simulation(best: Answer, outcome: Outcome) -> Simulation | None:
    """Return what the check by simulation saw; the latencies are then its own."""
    served = best.run
    if served is None:
        return None
    return Simulation(
        passed=outcome.passed,
        sizes_tried=outcome.tries,
        requests=served.arrived,
        stable=served.stable,
        queue_mean=served.queue_mean,
        batch_mean=served.batch_mean,
        kv_utilisation_mean=served.cache_mean,
        kv_utilisation_max=served.cache_max,
        preemptions=served.preemptions,
    )


def _assumptions(best: Answer, outcome: Outcome) -> tuple[Assumption, ...]:
    request, chosen = outcome.question, best.pool.replica
    return (
        *assumptions.of_model(request, request.origin.notes),
        *assumptions.of_memory(request, chosen),
        *assumptions.of_time(request, chosen, best.pool.load.kernels),
        *assumptions.of_limits(request),
        *assumptions.of_planning(request, chosen),
    )


def deployment(best: Answer) -> Deployment:
    """Return what runs: GPUs, replicas and the layout of each."""
    layout = best.pool.replica.layout
    return Deployment(
        gpu=best.pool.replica.gpu_type.name,
        gpu_id=best.pool.replica.gpu_type.id,
        gpus=best.gpus,
        replicas=best.pool.count,
        gpus_per_replica=layout.gpus,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        nodes_per_replica=-(-layout.gpus // best.pool.replica.gpu_type.gpu.datasheet.island_gpus),
    )


def _conservative(outcome: Outcome) -> Conservative | None:
    """Return what caution costs, None where it was not asked for."""
    if not outcome.question.target.pessimistic:
        return None
    best, other = outcome.answer, outcome.predicted
    extra = best.gpus - other.gpus if best is not None and other is not None else None
    return Conservative(
        gpus_without=other.gpus if other is not None else None,
        extra_gpus=extra,
        requests_per_s_without=other.requests_per_s if other is not None else None,
        factors=best.pool.edge if best is not None else None,
    )


def _lacking(outcome: Outcome) -> tuple[MemoryFigures | None, dict[str, ErrorBand]]:
    """Return the memory of the nearest miss where memory is what it lacks, with its bands."""
    miss = nearest_miss(outcome) if outcome.best is None else None
    if miss is None or miss.sized is None:
        return None, {}
    figures = memory_figures(miss.sized.memory, miss.sized.longest_that_fits())
    return figures, bands.bounds(bands.of_memory(figures, situation_of(outcome.question, miss.gpu_type.gpu)))


def _users(best: Answer, outcome: Outcome) -> Users:
    """Return the users that the load is of; stated where the demand counts them, or planning says what they do."""
    user = habits(outcome.question)
    workload = outcome.question.origin.workload
    demand, planning = workload.demand, workload.planning
    own = (planning.requests_per_user_per_day, planning.active_hours, planning.peak_to_mean)
    by_rate = demand is None or demand.kind in ("requests_per_s", "concurrency")
    stated = (demand is not None and demand.daily_active_users is not None) or (
        by_rate and any(value is not None for value in own)
    )
    return Users(user.users_of(best.requests_per_s), *user[:3], stated)


def cost_figures(best: Answer, outcome: Outcome) -> Cost:
    """Return what an answer costs, and the energy it takes."""
    request, usd = outcome.question, best.usd_per_hour
    pooled = request.service.model.pooled  # whose tokens are those of its prompts
    tokens_per_s = best.requests_per_s * (request.service.isl if pooled else request.service.output_tokens)
    per_million = None if usd is None else cost.usd_per_million_tokens(usd, tokens_per_s)
    energy = cost.kwh_per_million_tokens(best.power_w, tokens_per_s)
    stated, found = outcome.question.origin.workload.demand, outcome.question.origin.demanded
    by_users = stated is not None and stated.daily_active_users is not None
    mean_per_s = found.mean_per_s if found is not None and by_users else None
    at_mean = None if per_million is None or mean_per_s is None else per_million * best.requests_per_s / mean_per_s
    return Cost(
        usd_per_hour=usd,
        usd_per_million_output_tokens=None if pooled else per_million,
        usd_per_million_output_tokens_mean_load=None if pooled else at_mean,
        usd_per_gpu_hour=best.pool.replica.gpu_type.usd_per_gpu_hour,
        price_source=best.pool.replica.gpu_type.price_source,
        power_w=best.power_w,
        kwh_per_million_output_tokens=None if pooled else energy,
        usd_per_million_input_tokens=per_million if pooled else None,
        kwh_per_million_input_tokens=energy if pooled else None,
    )


def _alternative(found: Answer) -> Alternative:
    layout, point = found.pool.replica.layout, found.pool.point
    return Alternative(
        gpu=found.pool.replica.gpu_type.name,
        weight_precision=found.pool.replica.plan.weight_format,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        replicas=found.pool.count,
        gpus=found.gpus,
        requests_per_s_per_gpu=found.requests_per_s / found.gpus,
        ttft_ms=point.ttft_s["mean"] / MILLI,
        itl_ms=point.itl_s["mean"] / MILLI,
        e2e_ms=point.e2e_s["mean"] / MILLI,
        usd_per_hour=found.usd_per_hour,
        power_w=found.power_w,
        limit=found.pool.capacity.binding,
    )


def rejected(entry: Refusal) -> RejectedLayout:
    """Return a layout that was turned down, under the names of the document."""
    layout = entry.layout
    return RejectedLayout(
        gpu=entry.gpu_type.name,
        weight_precision=entry.precision,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        reason=entry.reason,
        detail=entry.detail,
        shortfall=entry.shortfall if math.isfinite(entry.shortfall) else None,
    )
