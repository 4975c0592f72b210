"""From a disaggregated answer, and the aggregated one beside it, to what a document says of both."""

from __future__ import annotations

from sizing.answers.answer import Answer, Outcome, Pool, spent
from sizing.formats.words import number, percent, plural
from sizing.question.question import Question
from sizing.report import estimate
from sizing.report.check_command import simulate_pools
from sizing.report.documents import Estimate, RejectedLayout
from sizing.report.documents_pools import Aggregated, Disaggregated, PoolFigures
from sizing.report.parts.figures import Statistics
from sizing.report.parts.layouts import sizes
from sizing.report.parts.limiting import limit_words
from sizing.report.parts.pools import (
    LATENCIES,
    assumptions,
    end_of,
    limit_of,
    of_turns,
    transfer_figures,
    unserved,
)
from sizing.specs.units import MILLI

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
IDLE = 0.6  # of what a pool serves within the limits: one less used than that is there because replicas are whole
LEAST_HELD = 0.9  # of the utilisation that is allowed: a pool that a limit holds below that is held back by it


def with_pools(document: Estimate, outcome: Outcome) -> Estimate:
    """Return the document of an outcome with what separate pools take for the same, where they are asked for."""
    found = outcome.separate_pools
    if found is None or found.question.space.pools is None:
        return document
    built, facts = build(found, outcome.answer), found.question.space.pools.facts
    if built.feasible and found.confirmed is not None:
        command = simulate_pools(found.confirmed, found.question, found.question.space.pools)
        built = built._replace(simulate_command=command)
    return document._replace(
        disaggregated=built,
        assumptions=(*document.assumptions, *assumptions(facts), *of_turns(found.question, facts)),
    )


def build(found: Outcome, aggregated: Answer | None) -> Disaggregated:
    """Return what is to be said of the pools.

    `aggregated` is the confirmed answer that serves as one, None where there is none.
    """
    request, asked = found.question, found.question.space.pools
    assert asked is not None
    why = unserved(found)
    best = found.confirmed if why is None else None
    beside = None if aggregated is None else _aggregated(aggregated)
    assert found.pairing is not None
    rejected: dict[str, tuple[RejectedLayout, ...]] = {
        phase: tuple(map(estimate.rejected, some)) for phase, some in found.pairing.refusals.items()
    }
    if best is None:
        nothing = Disaggregated(False, *[None] * (len(Disaggregated._fields) - 1))  # type: ignore[arg-type]
        return nothing._replace(
            aggregated=beside, beats_aggregated=False, why=why or "", needs=asked.facts.needs, rejected=rejected
        )
    assert best.transfer is not None
    return Disaggregated(
        feasible=True,
        gpus=best.gpus,
        requests_per_s=best.requests_per_s,
        requests_per_s_per_gpu=best.requests_per_s / best.gpus,
        usd_per_hour=best.usd_per_hour,
        power_w=best.power_w,
        prefill=_pool(best.prefill, ttft_ms=best.latency_s("ttft")["mean"] / MILLI),
        decode=_pool(best.decode, itl_ms=best.latency_s("itl")["mean"] / MILLI),
        kv_transfer_ms=best.transfer_s / MILLI,
        kv_transfer=transfer_figures(best.transfer, request.service.isl),
        ratio=best.prefill.gpus / best.decode.gpus,
        binding=best.tightest.phase,
        ttft_ms=_statistics(best.latency_s("ttft")),
        itl_ms=_statistics(best.latency_s("itl")),
        e2e_ms=_statistics(best.latency_s("e2e")),
        sizes_tried=found.tries or None,
        aggregated=beside,
        beats_aggregated=aggregated is None or beats(best, aggregated, request),
        why=_why(best, aggregated, request),
        needs=asked.facts.needs,
        rejected=rejected,
    )


def mean_ms(pair: Answer, name: str) -> float:
    """Return the mean of a latency in ms."""
    return pair.latency_s(name)["mean"] / MILLI


def beats(pooled: Answer, aggregated: Answer, question: Question) -> bool:
    """Return whether pools do better by what is asked: fewer GPUs (dollars, watts), or of a budget more requests/s."""
    if question.target.requests_per_s is None:
        return pooled.requests_per_s > aggregated.requests_per_s
    return spent(pooled, question.rules.objective) < spent(aggregated, question.rules.objective)


def _why(pooled: Answer, aggregated: Answer | None, question: Question) -> str:
    """Say why pools do better than serving as one, or why not."""
    if aggregated is None:
        return "no layout that serves as one meets the demand within the limits"
    whole = aggregated.pool
    most = f"{number(whole.capacity.requests_per_s)} requests/s a replica of {plural(whole.replica.layout.gpus, 'GPU')}"
    if beats(pooled, aggregated, question):
        reached = (
            f"{number(pooled.decode.capacity.requests_per_s)} on {plural(pooled.decode.replica.layout.gpus, 'GPU')}"
        )
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
    held = [
        f"the {pool.name} pool reaches the {limit_of(pool)} limit at {percent(_utilisation(pool))} of its highest rate"
        for pool in pooled.pools
        if pool.capacity.binding in LATENCIES
        and _utilisation(pool) < used[pool.name] * question.target.max_utilisation * LEAST_HELD
    ]
    if held:
        return " and ".join(held)
    return (
        f"what ends the load of serving as one is {limit_words(whole.capacity.binding)} at {most}, which pools do not relieve enough to pay "
        "for weights held twice"
    )


def _utilisation(pool: Pool) -> float:
    return pool.requests_per_s / (pool.count * pool.load.highest_per_s)


def _pool(pool: Pool, *, ttft_ms: float | None = None, itl_ms: float | None = None) -> PoolFigures:
    chosen = pool.replica
    layout = chosen.layout
    alone_s = pool.load.solo_itl_s if itl_ms is not None else pool.load.solo_ttft_s
    return PoolFigures(
        gpu=chosen.gpu_type.name,
        gpu_id=chosen.gpu_type.id,
        replicas=pool.count,
        **sizes(layout),
        gpus_per_replica=layout.gpus,
        nodes_per_replica=-(-layout.gpus // chosen.gpu_type.gpu.datasheet.island_gpus),
        gpus=pool.gpus,
        weight_precision=chosen.plan.weight_format,
        utilisation=_utilisation(pool),
        most_requests_per_s=pool.most_requests_per_s,
        limit=end_of(pool),
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        kv_cache_tokens=chosen.memory.kv_cache_tokens,
        solo_ms=alone_s / MILLI,
    )


def _aggregated(answer: Answer) -> Aggregated:
    return Aggregated(
        gpus=answer.gpus,
        requests_per_s=answer.requests_per_s,
        ttft_ms=answer.latency_s("ttft")["mean"] / MILLI,
        itl_ms=answer.latency_s("itl")["mean"] / MILLI,
        usd_per_hour=answer.usd_per_hour,
        power_w=answer.power_w,
    )


def _statistics(seconds: dict[str, float]) -> Statistics:
    return Statistics(**{name: seconds[name] / MILLI for name in STATISTICS})
