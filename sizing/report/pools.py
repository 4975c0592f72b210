"""From a disaggregated answer, and the aggregated one beside it, to what a document says of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sizing.answers.answer import spent
from sizing.answers.pools import Checked, Found, Pooled
from sizing.answers.search import Evaluated
from sizing.formats.words import number, percent, plural
from sizing.question.question import Question, SeparatePools
from sizing.report import estimate
from sizing.report.documents_pools import Aggregated, Disaggregated, PoolFigures
from sizing.report.parts.figures import Statistics
from sizing.report.parts.layouts import sizes
from sizing.report.parts.limiting import limit_words
from sizing.report.parts.pools import LATENCIES, end_of, limit_of, transfer_figures, unserved
from sizing.specs.units import MILLI

if TYPE_CHECKING:  # the simulator need not be loaded to report
    pass

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
IDLE = 0.6  # of what a pool serves within the limits: one less used than that is there because replicas are whole
LEAST_HELD = 0.9  # of the utilisation that is allowed: a pool that a limit holds below that is held back by it


def build(
    found: Found, asked: SeparatePools, aggregated: Evaluated | None, checked: Checked | None = None
) -> Disaggregated:
    """Return what is to be said of the pools; `checked` is the simulation that confirmed them, or could not.

    `aggregated` is the confirmed answer that serves as one, None where there is none.
    """
    request = found.question
    why = unserved(found, asked, checked)
    best = found.confirmed(checked) if why is None else None
    beside = None if aggregated is None else _aggregated(aggregated)
    rejected = {phase: tuple(map(estimate.rejected, entries)) for phase, entries in found.rejected.items()}
    if best is None:
        nothing = Disaggregated(False, *[None] * (len(Disaggregated._fields) - 1))  # type: ignore[arg-type]
        return nothing._replace(
            aggregated=beside, beats_aggregated=False, why=why or "", needs=asked.facts.needs, rejected=rejected
        )
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
        kv_transfer=transfer_figures(best.transfer, request.service.isl, within_node=best.within_node),
        ratio=best.prefill.gpus / best.decode.gpus,
        binding=best.binding,
        ttft_ms=_statistics(best.latency_s("ttft")),
        itl_ms=_statistics(best.latency_s("itl")),
        e2e_ms=_statistics(best.latency_s("e2e")),
        sizes_tried=checked.tries if checked is not None else None,
        aggregated=beside,
        beats_aggregated=aggregated is None or beats(best, aggregated, request),
        why=_why(best, aggregated, request),
        needs=asked.facts.needs,
        rejected=rejected,
    )


def mean_ms(pair: Pooled, name: str) -> float:
    """Return the mean of a latency in ms."""
    return pair.latency_s(name)["mean"] / MILLI


def beats(pooled: Pooled, aggregated: Evaluated, question: Question) -> bool:
    """Return whether pools do better by what is asked: fewer GPUs (dollars, watts), or of a budget more requests/s."""
    if question.target.requests_per_s is None:
        return pooled.requests_per_s > aggregated.requests_per_s
    return spent(pooled, question.rules.objective) < spent(aggregated, question.rules.objective)


def _why(pooled: Pooled, aggregated: Evaluated | None, question: Question) -> str:
    """Say why pools do better than serving as one, or why not."""
    if aggregated is None:
        return "no layout that serves as one meets the demand within the limits"
    most = f"{number(aggregated.most_requests_per_s)} requests/s a replica of {plural(aggregated.replica.layout.gpus, 'GPU')}"
    if beats(pooled, aggregated, question):
        reached = f"{number(pooled.decode.most_requests_per_s)} on {plural(pooled.decode.replica.layout.gpus, 'GPU')}"
        if aggregated.binding == "itl":
            return (
                f"prompts beside them lengthen the steps of sequences that decode: serving as one reaches the ITL limit at "
                f"{most}, a decode replica without prompts serves {reached}"
            )
        if aggregated.binding == "ttft":
            return f"serving as one reaches the TTFT limit at {most}; prefill replicas have no decode steps to wait for"
        return "each pool runs in the layout that suits it"
    pools = pooled.parts
    used = {name: pool.requests_per_s / (pool.replicas * pool.most_requests_per_s) for name, pool in pools.items()}
    idle = [f"{name} carries {percent(share)}" for name, share in used.items() if share < IDLE]
    if idle:
        return f"pools come in whole replicas: {' and '.join(idle)} of what it could within the limits"
    held = [
        f"the {name} pool reaches the {limit_of(pool, name)} limit at {percent(_utilisation(pool))} of its highest rate"
        for name, pool in pools.items()
        if pool.binding in LATENCIES and _utilisation(pool) < used[name] * question.target.max_utilisation * LEAST_HELD
    ]
    if held:
        return " and ".join(held)
    return (
        f"what ends the load of serving as one is {limit_words(aggregated.binding)} at {most}, which pools do not relieve enough to pay "
        "for weights held twice"
    )


def _utilisation(pool: Evaluated) -> float:
    return pool.requests_per_s / (pool.replicas * pool.load.highest_per_s)


def _pool(pool: Evaluated, *, ttft_ms: float | None = None, itl_ms: float | None = None) -> PoolFigures:
    chosen = pool.replica
    layout = chosen.layout
    alone_s = pool.load.solo_itl_s if itl_ms is not None else pool.load.solo_ttft_s
    return PoolFigures(
        gpu=chosen.gpu_type.name,
        gpu_id=chosen.gpu_type.id,
        replicas=pool.replicas,
        **sizes(layout),
        gpus_per_replica=layout.gpus,
        nodes_per_replica=-(-layout.gpus // chosen.gpu_type.gpu.datasheet.island_gpus),
        gpus=pool.gpus,
        weight_precision=chosen.plan.weight_format,
        utilisation=_utilisation(pool),
        most_requests_per_s=pool.most_requests_per_s * pool.replicas,
        limit=end_of(pool, "decode" if itl_ms is not None else "prefill"),
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        kv_cache_tokens=chosen.memory.kv_cache_tokens,
        solo_ms=alone_s / MILLI,
    )


def _aggregated(answer: Evaluated) -> Aggregated:
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
