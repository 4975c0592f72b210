"""Separate pools for prefill and decode compared with one pool: the figures of both, the better one, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome, Pool, objective_value
from sizing.formats.view import Facts, Line, Section, filled, labelled
from sizing.formats.words import milliseconds, number, of_limit, percent, plural
from sizing.question.question import Question
from sizing.report.parts import evidence, repeat_command, screen
from sizing.report.parts.evidence import Evidence, SureOf
from sizing.report.parts.figures import BatchJob, memory_of, statistics
from sizing.report.parts.layouts import RejectedLayout, figures_by_name, headline, nodes, rejected
from sizing.report.parts.limits import limit_words
from sizing.report.parts.pools import (
    PoolFigures,
    TransferSummary,
    limit_of,
    pools_words,
    transfer_figures,
    transfer_words,
    unserved,
)
from sizing.report.parts.question import (
    Inputs,
    backend_in_force,
    demand_line,
    is_limited,
    is_rate,
    not_replayed,
    of_replica,
    replica_lines,
)
from sizing.report.parts.sentences import said
from sizing.specs.units import MILLI, Statistics
from sizing.specs.workload import LATENCIES

IDLE = 0.6  # use of a pool within the limits: below it, the pool is large only because replicas are whole
NARROW = "no pipelines within a pool, which may take fewer GPUs: --layouts all"
LEAST_HELD = 0.9  # share of the allowed utilisation: a limit that holds a pool below it holds the pool back


class Aggregated(NamedTuple):
    """The answer from one pool, for the same demand and limits, by prediction alone, as that of pools is.

    `gpus_even` is what at least half of similar published runs need, where that is more.
    """

    gpus: int
    requests_per_s: float
    ttft_ms: float
    itl_ms: float | None
    usd_per_hour: float | None
    power_w: float
    gpus_even: int | None = None


class Disaggregated(NamedTuple):
    """A disaggregated deployment compared with aggregated serving. Figures are null if it is infeasible.

    `gpus_sure` is null because no runs of pools are published, as `evidence` says. `ratio` is the GPUs of prefill divided by the
    GPUs of decode. `binding` is the pool nearer to its maximum load. `sizes_tried` counts simulated sizes (null: none).
    `simulate_command` simulates the answer. `beats_aggregated` compares by the objective, and `why` explains the result.
    """

    feasible: bool = False
    gpus: int | None = None
    requests_per_s: float | None = None
    requests_per_s_per_gpu: float | None = None
    usd_per_hour: float | None = None
    power_w: float | None = None
    prefill: PoolFigures | None = None
    decode: PoolFigures | None = None
    kv_transfer_ms: float | None = None
    kv_transfer: TransferSummary | None = None
    ratio: float | None = None
    binding: str | None = None
    ttft_ms: Statistics | None = None
    itl_ms: Statistics | None = None
    e2e_ms: Statistics | None = None
    sizes_tried: int | None = None
    aggregated: Aggregated | None = None
    beats_aggregated: bool = False
    why: str = ""
    needs: str = ""
    rejected: dict[str, tuple[RejectedLayout, ...]] = {}  # noqa: RUF012 - never changed
    simulate_command: str | None = None
    layouts: str = "all"
    gpus_sure: int | None = None
    confidence: float | None = None
    evidence: Evidence | None = None


def disaggregated(outcome: Outcome) -> Disaggregated:
    """The record of the pools found, compared with the answer from one pool, if there is one."""
    best, question, pairing, pools = outcome.answer, outcome.question, outcome.pairing, outcome.question.space.pools
    whole = outcome.one_pool
    one = None if whole is None else whole.as_predicted
    even = None if whole is None or whole.best is None or not whole.by_runs.even else whole.best.gpus
    assert pairing is not None and pools is not None
    nothing = Disaggregated(
        aggregated=None if one is None else filled(Aggregated, one, figures_by_name(one, question), gpus_even=even),
        why=unserved(outcome) or "",
        needs=pools.facts.needs,
        rejected={phase: tuple(map(rejected, refusals)) for phase, refusals in pairing.refusals.items()},
    )
    if best is None:
        return nothing
    ttft, itl, e2e = (statistics(best.latency_s(name)) for name in LATENCIES)
    assert best.transfer is not None
    return filled(
        Disaggregated,
        evidence.by_runs(outcome),
        best,
        nothing,
        feasible=True,
        requests_per_s_per_gpu=best.requests_per_s / best.gpus,
        prefill=_pool(best.prefill, question, best.prefill.timed.solo_ttft_s, ttft_ms=ttft.mean),
        decode=_pool(best.decode, question, best.decode.timed.solo_itl_s, itl_ms=itl.mean),
        kv_transfer_ms=best.transfer_s / MILLI,
        kv_transfer=transfer_figures(best.transfer, question.service.isl),
        ratio=best.prefill.gpus / best.decode.gpus,
        binding=best.tightest.phase,
        ttft_ms=ttft,
        itl_ms=itl,
        e2e_ms=e2e,
        sizes_tried=outcome.simulation.tries or None,
        beats_aggregated=one is None or beats(best, one, question),
        why=_why(best, one, question),
        simulate_command=repeat_command.command(best, question),
        layouts=question.space.layouts,
    )


def beats(pooled: Answer, aggregated: Answer, question: Question) -> bool:
    """Whether pools are better by the objective: fewer GPUs (dollars, watts), or more requests/s from a budget."""
    if question.target.requests_per_s is None:
        return pooled.requests_per_s > aggregated.requests_per_s
    return objective_value(pooled, question.rules.objective) < objective_value(aggregated, question.rules.objective)


def _why(pooled: Answer, aggregated: Answer | None, question: Question) -> str:
    if aggregated is None:
        return "no layout that serves as one meets the demand within the limits"
    whole = aggregated.pool
    most = f"{number(whole.capacity.requests_per_s)} requests/s a replica of {plural(whole.replica.layout.gpus, 'GPU')}"
    if beats(pooled, aggregated, question):
        gpus = plural(pooled.decode.replica.layout.gpus, "GPU")
        reached = f"{number(pooled.decode.capacity.requests_per_s)} on {gpus}"
        if whole.capacity.binding == "itl":
            return (
                f"prompts beside them lengthen the steps of sequences that decode: serving as one reaches the ITL limit at "
                f"{most}, a decode replica without prompts serves {reached}"
            )
        if whole.capacity.binding == "ttft":
            return f"serving as one reaches the TTFT limit at {most}; prefill replicas have no decode steps to wait for"
        return "each pool runs in the layout that suits it"
    used = {pool.name: pool.requests_per_s / pool.most_requests_per_s for pool in pooled.pools}
    idle = [f"{name} carries {percent(share)}" for name, share in used.items() if share < IDLE]
    if idle:
        return f"pools come in whole replicas: {' and '.join(idle)} of what it could within the limits"
    limited = [
        f"the {pool.name} pool reaches the {limit_of(pool)} limit at {percent(_utilisation(pool))} of its highest rate"
        for pool in pooled.pools
        if pool.capacity.binding in LATENCIES
        and _utilisation(pool) < used[pool.name] * question.target.max_utilisation * LEAST_HELD
    ]
    if limited:
        return " and ".join(limited)
    return (
        f"one pool reaches its limit ({limit_words(whole.capacity.binding)}) at {most}; separate pools raise it by less than "
        "the second copy of the weights costs"
    )


def _utilisation(pool: Pool) -> float:
    return pool.requests_per_s / (pool.count * pool.timed.highest_per_s)


def _pool(
    pool: Pool, question: Question, alone_s: float, *, ttft_ms: float | None = None, itl_ms: float | None = None
) -> PoolFigures:
    chosen = pool.replica
    return filled(
        PoolFigures,
        pool,
        of_replica(chosen),
        chosen.memory,
        replicas=pool.count,
        nodes_per_replica=nodes(pool),
        utilisation=_utilisation(pool),
        limit=pool.ended_by,
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        solo_ms=alone_s / MILLI,
        all2all_backend=backend_in_force(question, chosen),
        memory=memory_of(chosen),
    )


def _one_pool_instead(one: Aggregated | None, budget: int | None) -> Iterator[Line]:
    """Yield that one pool serves the demand, where it keeps the budget."""
    gpus = 0 if one is None else one.gpus_even or one.gpus
    if one is not None and gpus <= (budget or gpus):
        yield Line(f"one pool (without --disaggregate): {plural(gpus, 'GPU')}", "Try")


def sections(disaggregated: Disaggregated, inputs: Inputs, batch: BatchJob | None = None) -> Iterator[Section]:
    """Yield both pools with their figures next to one pool, and when a `batch` is done; or the reason why they are infeasible."""
    prefill, decode, way = disaggregated.prefill, disaggregated.decode, disaggregated.kv_transfer
    if prefill is None or decode is None or way is None:
        title = "Infeasible: no pools for prefill and decode meet the demand within the limits"
        instead = _one_pool_instead(disaggregated.aggregated, inputs.gpu_budget)
        about = (*instead, demand_line(inputs), *replica_lines(inputs))
        yield Facts((screen.verdict(disaggregated.why, good=False), *about), title)
        return
    shape, gpu = " + ".join(pools_words(prefill, decode)), decode.gpu if prefill.gpu == decode.gpu else None
    limited, by_rate = is_limited(inputs.limits), is_rate(inputs.demand)
    holds = screen.limits_verdict(limited, disaggregated.sizes_tried is not None, not_replayed(inputs.demand, ""))
    left = screen.unused(inputs.gpu_budget, disaggregated.gpus or 0)
    words = "; ".join(filter(None, (holds, _against(disaggregated), left)))
    sure = SureOf(
        disaggregated.gpus or 0,
        disaggregated.gpus_sure,
        disaggregated.confidence,
        disaggregated.evidence,
        limited,
        by_rate,
    )
    yield Facts(
        (screen.verdict(words, good=True), *sure.lines()),
        headline(disaggregated.gpus or 0, gpu, shape, disaggregated.usd_per_hour),
    )
    rows = screen.latencies(screen.by_name(disaggregated), inputs.limits)
    most = min(prefill.most_requests_per_s, decode.most_requests_per_s)
    yield screen.figures([*rows, screen.rate("most requests/s", most, disaggregated.requests_per_s)], banded=False)
    transfer = f"{milliseconds(disaggregated.kv_transfer_ms)} a prompt, in TTFT: {transfer_words(way)}"
    yield Facts(
        (
            demand_line(inputs),
            *replica_lines(inputs),
            Line(_used(prefill, disaggregated.requests_per_s or 0.0, inputs), "Prefill"),
            Line(_used(decode, disaggregated.requests_per_s or 0.0, inputs), "Decode"),
            *_memory(prefill, decode),
            Line(transfer, "Transfer"),
            *([] if batch is None else [Line(batch.words, "Batch")]),
            Line(disaggregated.why, "Why", spare=2),
            *([] if disaggregated.layouts == "all" else [Line(NARROW, "Tried", spare=3)]),
            Line(disaggregated.needs, "Needs", spare=1),
        )
    )


def _memory(prefill: PoolFigures, decode: PoolFigures) -> Iterator[Line]:
    """Yield the memory of one GPU of each pool; of both where it is the same."""
    texts = {pool: screen.memory_line(pool.memory).text for pool in (prefill, decode) if pool.memory is not None}
    named = list(dict.fromkeys(texts.values()))
    if len(named) > 1:
        named = [f"{'prefill' if pool is prefill else 'decode'}: {texts[pool]}" for pool in texts]
    yield from labelled("Memory", named, spare=6)


def _against(disaggregated: Disaggregated) -> str:
    other = disaggregated.aggregated
    if other is None:
        return "no single pool meets the demand"
    return said("against one pool", other, better=disaggregated.beats_aggregated)


def _used(pool: PoolFigures, requests_per_s: float, inputs: Inputs) -> str:
    nodes = pool.nodes_per_replica if pool.nodes_per_replica > 1 else None
    share = of_limit(requests_per_s / pool.most_requests_per_s)
    name = limit_words(pool.limit)
    within = f"within the {name} limit" if pool.limit in LATENCIES else f"by {name}"
    if pool.limit == "utilisation":
        most = 1.0 if inputs.mode == "offline" else inputs.max_utilisation
        within = f"at {percent(most)} of the stable rate"
    return said("use of a pool", pool, share=share, nodes=nodes, within=within)
