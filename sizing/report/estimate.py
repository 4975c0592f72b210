"""From the outcome of a search to the document of `llmsize estimate`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sizing import capacity, memory
from sizing import request as requests
from sizing import step as step_model
from sizing.advice import Relaxation, Suggestion, nearest_miss
from sizing.attention.terms import Numeric
from sizing.candidates import Candidate, Rejected
from sizing.memory import MemoryUse
from sizing.report import assumptions, explain
from sizing.report.documents import (
    Alternative,
    Assumption,
    Cost,
    Deployment,
    Estimate,
    Latency,
    Limiting,
    LoadFigures,
    MemoryFigures,
    RejectedLayout,
    Statistics,
    Throughput,
    Users,
    Utilisation,
)
from sizing.report.inputs import Asked, inputs
from sizing.report.lines import milliseconds, percent
from sizing.request import Request
from sizing.search import Evaluated, Outcome
from sizing.steady_state import Point
from sizing.step import Batch, Step
from sizing.units import MILLI


def build(
    outcome: Outcome,
    asked: Asked,
    *,
    relaxation: Relaxation | None = None,
    suggestions: Sequence[Suggestion] = (),
    explained: bool = False,
) -> Estimate:
    """Return the document of an outcome: the answer with all its figures, or what stands in its way."""
    best = outcome.best
    request = outcome.request
    turned_down = tuple(_rejected(entry) for entry in outcome.rejected)
    if best is None or not within_budget(outcome):
        return Estimate(
            feasible=False,
            inputs=inputs(asked, request, None),
            deployment=None,
            load=None,
            throughput=None,
            latency=None,
            memory=_lacking(outcome),
            utilisation=None,
            users=None,
            cost=None,
            limiting=_infeasible(outcome, suggestions),
            alternatives=tuple(map(_alternative, outcome.ranked)),
            rejected=turned_down,
            assumptions=tuple(assumptions.of_model(request, asked)),
        )
    chosen = best.candidate
    prefill, decode = phase_steps(best, outcome)
    load = load_figures(best, outcome)
    document = Estimate(
        feasible=True,
        inputs=inputs(asked, request, chosen),
        deployment=_deployment(best),
        load=load,
        throughput=throughput(best, outcome),
        latency=latency(best),
        memory=memory_figures(chosen.memory, _longest(chosen, outcome)),
        utilisation=utilisation(prefill, decode),
        users=_users(best, asked),
        cost=_cost(best, outcome),
        limiting=_limiting(best, request, relaxation),
        alternatives=tuple(map(_alternative, outcome.ranked[1:])),
        rejected=turned_down,
        assumptions=_assumptions(best, outcome, asked),
    )
    if not explained:
        return document
    return explain.with_explanations(document, best, outcome, asked, prefill, decode)


def within_budget(outcome: Outcome) -> bool:
    """Return whether the answer keeps the budget of GPUs, where a demand and a budget are both given."""
    budget = outcome.request.gpu_budget
    return outcome.best is not None and (budget is None or outcome.best.gpus <= budget)


def _assumptions(best: Evaluated, outcome: Outcome, asked: Asked) -> tuple[Assumption, ...]:
    request, chosen = outcome.request, best.candidate
    return (
        *assumptions.of_model(request, asked),
        *assumptions.of_memory(request, chosen),
        *assumptions.of_time(request, chosen, best.load.kernels),
        *assumptions.of_planning(request, asked, chosen),
    )


def _deployment(best: Evaluated) -> Deployment:
    layout = best.candidate.layout
    return Deployment(
        gpu=best.candidate.option.gpu.name,
        gpu_id=best.candidate.option.id,
        gpus=best.gpus,
        replicas=best.replicas,
        gpus_per_replica=layout.gpus,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
    )


def _lacking(outcome: Outcome) -> MemoryFigures | None:
    """Return the memory of the nearest miss where memory is what it lacks."""
    miss = nearest_miss(outcome) if outcome.best is None else None
    if miss is None or miss.sized is None:
        return None
    return memory_figures(miss.sized.memory, _longest(miss.sized, outcome))


def _longest(chosen: Candidate, outcome: Outcome) -> int:
    request = outcome.request
    return memory.longest_that_fits(
        request.model,
        chosen.option.gpu,
        chosen.layout,
        chosen.plan,
        chosen.settings,
        cuda_graphs_gib=request.serving.cuda_graphs_gib,
    )


def load_figures(best: Evaluated, outcome: Outcome) -> LoadFigures:
    """Return the load: in flight by Little's law, and headroom towards the most that these replicas serve."""
    running = float(best.point.running[0])
    most = best.most_requests_per_s * best.replicas
    served = best.requests_per_s
    in_flight = outcome.request.concurrency
    if in_flight is not None:
        headroom = best.most_per_replica * best.replicas / in_flight - 1
    else:
        headroom = most / served - 1
    return LoadFigures(
        requests_per_s=served,
        concurrency=float(in_flight) if in_flight is not None else running * best.replicas,
        concurrency_per_replica=running,
        max_requests_per_s=most,
        headroom=max(0.0, headroom),
        utilisation=min(1.0, served / most) if most else 0.0,
    )


def throughput(best: Evaluated, outcome: Outcome) -> Throughput:
    """Return throughput per replica, per GPU and in tokens."""
    rate, osl, isl = best.requests_per_s, outcome.request.osl, outcome.request.isl
    return Throughput(
        requests_per_s_per_replica=rate / best.replicas,
        requests_per_s_per_gpu=rate / best.gpus,
        output_tokens_per_s=rate * osl,
        output_tokens_per_s_per_gpu=rate * osl / best.gpus,
        total_tokens_per_s=rate * (isl + osl),
    )


def latency(best: Evaluated) -> Latency:
    """Return latencies in ms under the load, and alone."""
    decodes = best.load.service.osl > 1
    return Latency(
        ttft_ms=_statistics(best.point, "ttft"),
        itl_ms=_statistics(best.point, "itl") if decodes else Statistics(*[None] * 5),
        e2e_ms=_statistics(best.point, "e2e"),
        solo_ttft_ms=best.load.solo_ttft_s / MILLI,
        solo_itl_ms=best.load.solo_itl_s / MILLI if decodes else None,
    )


def _statistics(point: Point, name: str) -> Statistics:
    values = getattr(point, f"{name}_s")
    return Statistics(**{key: float(values[key][0]) / MILLI for key in ("mean", "p50", "p90", "p95", "p99")})


def memory_figures(used: MemoryUse, longest: int) -> MemoryFigures:
    """Return the memory of a layout under the names of the contract, and the longest sequence that fits."""
    return MemoryFigures(
        visible_gib=used.visible_gib,
        budget_gib=used.budget_gib,
        weights_gib=used.weights_gib,
        activation_gib=used.activation_gib,
        non_torch_gib=used.non_torch_gib,
        cuda_graphs_gib=used.cuda_graphs_gib,
        cuda_graphs_in_budget=used.graphs_in_budget,
        kv_cache_gib=used.kv_cache_gib,
        kv_bytes_per_token=used.kv_bytes_per_token,
        state_bytes_per_sequence=used.fixed_bytes_per_sequence,
        kv_cache_tokens=used.kv_cache_tokens,
        max_concurrency=used.max_concurrency,
        sequence_gib=used.sequence_gib,
        max_model_len=used.max_model_len,
        max_model_len_that_fits=longest,
        fits=used.fits,
        deficit_gib=used.deficit_gib,
    )


def phase_steps(best: Evaluated, outcome: Outcome) -> tuple[Step, Step | None]:
    """Time one prefill step (one prompt's chunk) and one decode step (the batch at this load), exactly."""
    load, request = best.load, outcome.request
    chunk = load.service.chunk_tokens

    def timed(batch: Batch) -> Step:
        return step_model.step(request.model, best.candidate.layout, load.kernels, batch)

    prefill = timed(Batch(prefill_sequences=1.0, prefill_tokens=float(chunk), finishing=1.0))
    if request.osl <= 1:
        return prefill, None
    micro: Numeric = max(1.0, float(best.point.decoding[0]) / load.service.pp)
    context = request.isl + request.osl / 2
    return prefill, timed(Batch(decode_sequences=micro, decode_context_tokens=context))


def utilisation(prefill: Step, decode: Step | None) -> Utilisation:
    """Return MFU and MBU of the two kinds of step, each bound by the peak that it comes nearer to."""
    return Utilisation(
        prefill_mfu=prefill.mfu,
        prefill_bound=bound(prefill),
        decode_mbu=decode.mbu if decode else None,
        decode_mfu=decode.mfu if decode else None,
        decode_bound=bound(decode) if decode else None,
    )


def bound(step: Step) -> str:
    """Return which peak a step comes nearer to: `compute` or `memory`."""
    return "compute" if step.mfu > step.mbu else "memory"


def _users(best: Evaluated, asked: Asked) -> Users:
    per_user, hours, peak = requests.users_of(asked.workload.planning, asked.defaults)
    served = capacity.daily_active_users(best.requests_per_s, per_user, hours, peak)
    return Users(served, per_user, hours, peak)


def _cost(best: Evaluated, outcome: Outcome) -> Cost:
    tokens_per_s = best.requests_per_s * outcome.request.osl
    usd = best.usd_per_hour
    return Cost(
        usd_per_hour=usd,
        usd_per_million_output_tokens=None
        if usd is None
        else capacity.usd_per_million_tokens(usd, tokens_per_s),
        usd_per_gpu_hour=best.candidate.option.usd_per_gpu_hour,
        price_source=best.candidate.option.price_source,
        power_w=best.power_w,
        kwh_per_million_output_tokens=capacity.kwh_per_million_tokens(best.power_w, tokens_per_s),
    )


def _limiting(best: Evaluated, request: Request, relaxation: Relaxation | None) -> Limiting:
    limit = getattr(request.limits, best.binding, None)
    value_ms = limit_ms = statistic = None
    if limit is None:
        detail = _capacity_words(best, request)
    else:
        statistic = limit.statistic
        value_ms = float(getattr(best.point, f"{best.binding}_s")[statistic][0]) / MILLI
        limit_ms = limit.seconds / MILLI
        detail = (
            f"{best.binding.upper()} ({statistic}) {milliseconds(value_ms)}, limit {milliseconds(limit_ms)}"
        )
        if relaxation is None:
            detail += "; relaxing it alone saves no GPU"
        else:
            detail += f"; a limit of {milliseconds(relaxation.seconds / MILLI)} takes {relaxation.gpus} GPUs"
    return Limiting(
        limit=best.binding,
        statistic=statistic,
        value_ms=value_ms,
        limit_ms=limit_ms,
        detail=detail,
        relaxed_limit_ms=relaxation.seconds / MILLI if relaxation else None,
        relaxed_gpus=relaxation.gpus if relaxation else None,
        suggestions=(),
    )


def _capacity_words(best: Evaluated, request: Request) -> str:
    """Say which capacity of a replica binds, and what raises it."""
    if best.binding == "utilisation":
        return f"stable utilisation ({percent(request.max_utilisation)}): beyond it queues grow in bursts; --max-utilisation"
    if best.binding == "kv_cache":
        return "KV cache: more memory per GPU, a larger TP or an FP8 cache holds more sequences"
    most = best.candidate.settings.max_num_seqs
    return f"max_num_seqs ({most:,}): the engine runs no more sequences at once; --max-num-seqs"


def _infeasible(outcome: Outcome, found: Sequence[Suggestion]) -> Limiting:
    words = tuple(f"{s.change}: {s.gpus} x {s.gpu} ({s.layout})" for s in found)
    best, budget = outcome.best, outcome.request.gpu_budget
    if best is not None and budget is not None:
        detail = (
            f"the demand takes {best.gpus} x {best.candidate.option.gpu.name} ({best.candidate.layout}), "
            f"{best.gpus - budget} more than the budget of {budget}"
        )
        return Limiting("gpu_budget", None, None, None, detail, None, None, words)
    miss = nearest_miss(outcome)
    if miss is None:
        return Limiting("none", None, None, None, "no layout was left to try", None, None, words)
    detail = f"{miss.option.gpu.name} {miss.precision} {miss.layout}: {miss.detail}"
    limit = getattr(outcome.request.limits, miss.reason, None)
    limit_ms = limit.seconds / MILLI if limit else None
    value_ms = limit_ms * (1 + miss.shortfall) if limit_ms is not None else None
    return Limiting(
        miss.reason, limit.statistic if limit else None, value_ms, limit_ms, detail, None, None, words
    )


def _alternative(found: Evaluated) -> Alternative:
    layout, point = found.candidate.layout, found.point

    def mean_ms(values: dict[str, np.ndarray]) -> float:
        return float(values["mean"][0]) / MILLI

    return Alternative(
        gpu=found.candidate.option.gpu.name,
        weight_precision=found.candidate.plan.weight_format,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        replicas=found.replicas,
        gpus=found.gpus,
        requests_per_s_per_gpu=found.requests_per_s / found.gpus,
        ttft_ms=mean_ms(point.ttft_s),
        itl_ms=mean_ms(point.itl_s),
        e2e_ms=mean_ms(point.e2e_s),
        usd_per_hour=found.usd_per_hour,
        power_w=found.power_w,
        limit=found.binding,
    )


def _rejected(entry: Rejected) -> RejectedLayout:
    layout = entry.layout
    return RejectedLayout(
        gpu=entry.option.gpu.name,
        weight_precision=entry.precision,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        reason=entry.reason,
        detail=entry.detail,
        shortfall=entry.shortfall if math.isfinite(entry.shortfall) else None,
    )
