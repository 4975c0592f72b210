"""The line of a comparison that is of separate pools: every figure is that of `estimate --disaggregate`."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.answers.answer import Answer
from sizing.answers.compare import Compared, place
from sizing.answers.pools import Asked as Pools
from sizing.planning import cost
from sizing.question.question import GpuType, Question
from sizing.report import assumptions, pools
from sizing.report.compare import LATENCIES, Told
from sizing.report.documents import Assumption
from sizing.report.documents_compare import CompareCandidate, Limited
from sizing.report.documents_pools import Disaggregated
from sizing.report.inputs import Asked, limits
from sizing.specs.workload import Objective


def told(found: Compared, asked: Asked, sort: Objective, replaced: int | None = None) -> Told:
    """Return the line of a pair of pools; `replaced` is how many GPUs it is to take the place of."""
    assert found.pools is not None
    request, best = found.outcome.question, found.outcome.answer
    one = pools.build(found.outcome, found.pools, None)
    rests_on = () if best is None else tuple(dict.fromkeys(_assumptions(best, request, asked, found.pools)))
    return Told(place(best, sort), _line(one, found, request, replaced, rests_on), rests_on)


def _line(
    one: Disaggregated,
    found: Compared,
    question: Question,
    replaced: int | None,
    rests_on: tuple[Assumption, ...],
) -> CompareCandidate:
    best = found.outcome.answer
    assert found.pools is not None
    options = (found.pools.prefill.options[0], found.pools.decode.options[0])
    tokens_per_s = None if best is None else best.requests_per_s * question.service.osl
    means = {name: spread.mean if (spread := getattr(one, name)) is not None else None for name in LATENCIES}
    return CompareCandidate(
        gpu=" + ".join(dict.fromkeys(option.name for option in options)),
        gpu_id=_shared(options, "id"),
        weight_precision=_precision(found, question),
        feasible=one.feasible,
        gpus=one.gpus,
        replicas=None,
        gpus_per_replica=None,
        tp=None,
        pp=None,
        ep=None,
        dp=None,
        cp=None,
        dcp=None,
        gpus_per_replaced_gpu=one.gpus / replaced if one.gpus and replaced else None,
        requests_per_s=one.requests_per_s,
        requests_per_s_per_gpu=one.requests_per_s_per_gpu,
        concurrency=None if best is None else best.requests_per_s * best.latency_s("e2e")["mean"],
        max_requests_per_s=None if best is None else best.most_requests_per_s,
        headroom=None if best is None else max(0.0, best.most_requests_per_s / best.requests_per_s - 1),
        **means,
        limited=dict(_limited(one, question)),
        bands={},
        usd_per_hour=one.usd_per_hour,
        usd_per_million_output_tokens=_per_million(one.usd_per_hour, tokens_per_s),
        usd_per_million_tokens=_per_million(
            one.usd_per_hour,
            None if best is None else best.requests_per_s * (question.service.isl + question.service.osl),
        ),
        price_source=_shared(options, "price_source") if best is not None else None,
        power_w=one.power_w,
        kwh_per_million_output_tokens=None
        if one.power_w is None or tokens_per_s is None
        else cost.kwh_per_million_tokens(one.power_w, tokens_per_s),
        limit=pools.binding_limit(one),
        reason=None if one.feasible else one.why,
        verified=one.sizes_tried is not None,
        assumed=sum(entry.kind == "assumed" for entry in rests_on) if best is not None else None,
        borrowed_kernels=None if best is None else _borrows(best),
        notes=() if best is None else tuple(dict.fromkeys(n for p in best.pools for n in p.replica.plan.notes)),
        disaggregated=True,
        pools=None if best is None else pools.shapes(best),
    )


def _shared(options: tuple[GpuType, GpuType], name: str) -> str | None:
    """Return what both GPU types have, None where they differ."""
    one, other = (getattr(option, name) for option in options)
    return str(one) if one == other and one is not None else None


def _precision(found: Compared, question: Question) -> str:
    best = found.outcome.answer
    if best is None:
        return found.precision or question.service.model.quantisation.precision
    return best.decode.replica.plan.weight_format


def _limited(one: Disaggregated, question: Question) -> Iterator[tuple[str, Limited | None]]:
    """Yield each latency that has a limit in the limit's statistic; None of those without."""
    for name, limit in limits(question).items():
        spread = getattr(one, name)
        value = None if limit is None or spread is None else getattr(spread, limit["statistic"])
        yield name, None if limit is None else Limited(limit["statistic"], value, limit["ms"])


def _per_million(usd_per_hour: float | None, tokens_per_s: float | None) -> float | None:
    if usd_per_hour is None or tokens_per_s is None:
        return None
    return cost.usd_per_million_tokens(usd_per_hour, tokens_per_s)


def _borrows(best: Answer) -> bool:
    used = (choice for pool in best.pools for choice in pool.load.kernels.used.values())
    return any(choice.borrowed_from for choice in used)


def _assumptions(best: Answer, question: Question, asked: Asked, sides: Pools) -> Iterator[Assumption]:
    yield from assumptions.of_model(question, asked.notes)
    for pool in best.pools:
        yield from assumptions.of_part(question, asked, pool)
    yield from assumptions.of_limits(question)
    yield from pools.assumptions(sides.facts)
