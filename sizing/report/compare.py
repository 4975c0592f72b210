"""From what searches of single candidates found to the document of `llmsize compare`: every figure is that of `estimate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sizing.answers.compare import Compared, place
from sizing.planning import cost
from sizing.question.question import Question
from sizing.report import estimate
from sizing.report.documents import Assumption, Deployment, ErrorBand, Estimate
from sizing.report.documents_compare import Compare, CompareCandidate, Limited, Replaced
from sizing.report.inputs import Asked, demand, inputs
from sizing.specs.workload import Objective

LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")


class Told(NamedTuple):
    """A candidate's line, its place in the order, and the assumptions that it rests on."""

    place: tuple[float, ...]
    line: CompareCandidate
    assumptions: tuple[Assumption, ...]


def told(found: Compared, asked: Asked, sort: Objective, replaced: int | None = None) -> Told:
    """Return a candidate's line; `replaced` is how many GPUs it is to take the place of."""
    one = estimate.build(found.outcome, _alone(found, asked))
    return Told(place(found.outcome.answer, sort), _line(one, found, replaced), one.assumptions if one.feasible else ())


def build(
    lines: Sequence[Told], asked: Asked, question: Question, sort: str, replaces: Replaced | None = None
) -> Compare:
    """Return the document of all candidates, in order."""
    candidates = tuple(entry.line for entry in sorted(lines, key=lambda entry: entry.place))
    best = next((line for line in candidates if line.feasible), None)
    return Compare(
        feasible=best is not None,
        inputs=inputs(asked, question, None),
        demand=demand(asked, question),
        sort=sort,
        replaces=replaces,
        best=best,
        candidates=candidates,
        assumptions=tuple(_shared([entry.assumptions for entry in lines if entry.line.feasible])),
    )


def replaced(found: Compared, asked: Asked, gpus: int) -> Replaced | None:
    """Return what so many GPUs serve at most within the limits; None where that is nothing."""
    one = estimate.build(found.outcome, asked)
    d, load = one.deployment, one.load
    if d is None or load is None:
        return None
    return Replaced(
        gpu=d.gpu,
        gpu_id=d.gpu_id,
        gpus=gpus,
        gpus_used=d.gpus,
        weight_precision=one.inputs["weight_precision"],
        replicas=d.replicas,
        tp=d.tp,
        pp=d.pp,
        ep=d.ep,
        dp=d.dp,
        cp=d.cp,
        dcp=d.dcp,
        requests_per_s=load.requests_per_s,
        verified=found.outcome.tries > 0,
    )


def _alone(found: Compared, asked: Asked) -> Asked:
    return asked._replace(options=(found.gpu_type,), precisions=(found.precision,))


def _line(one: Estimate, found: Compared, replaced: int | None) -> CompareCandidate:
    d, load, rates, times, money = one.deployment, one.load, one.throughput, one.latency, one.cost
    best = found.outcome.answer
    return CompareCandidate(
        gpu=found.gpu_type.name,
        gpu_id=found.gpu_type.id,
        weight_precision=one.inputs["weight_precision"],
        feasible=one.feasible,
        **_layout(d),
        gpus_per_replaced_gpu=d.gpus / replaced if d and replaced else None,
        requests_per_s=load.requests_per_s if load else None,
        requests_per_s_per_gpu=rates.requests_per_s_per_gpu if rates else None,
        concurrency=load.concurrency if load else None,
        max_requests_per_s=load.max_requests_per_s if load else None,
        headroom=load.headroom if load else None,
        ttft_ms=times.ttft_ms.mean if times else None,
        itl_ms=times.itl_ms.mean if times else None,
        e2e_ms=times.e2e_ms.mean if times else None,
        limited=dict(_limited(one)),
        bands=dict(_bands(one)),
        usd_per_hour=money.usd_per_hour if money else None,
        usd_per_million_output_tokens=money.usd_per_million_output_tokens if money else None,
        usd_per_million_tokens=_usd_per_million_tokens(one),
        price_source=money.price_source if money else None,
        power_w=money.power_w if money else None,
        kwh_per_million_output_tokens=money.kwh_per_million_output_tokens if money else None,
        limit=one.limiting.limit,
        reason=None if one.feasible else one.limiting.detail,
        verified=one.simulation is not None,
        assumed=sum(a.kind == "assumed" for a in one.assumptions) if one.feasible else None,
        borrowed_kernels=any(choice.borrowed_from for choice in best.pool.load.kernels.used.values()) if best else None,
        notes=best.pool.replica.plan.notes if best else (),
        disaggregated=False,
        pools=None,
    )


def _usd_per_million_tokens(one: Estimate) -> float | None:
    """Return what a million tokens cost, prompts and outputs alike; None without a price."""
    if one.cost is None or one.throughput is None or one.cost.usd_per_hour is None:
        return None
    return cost.usd_per_million_tokens(one.cost.usd_per_hour, one.throughput.total_tokens_per_s)


def _layout(d: Deployment | None) -> dict[str, int | None]:
    names = ("gpus", "replicas", "gpus_per_replica", "tp", "pp", "ep", "dp", "cp", "dcp")
    return {name: getattr(d, name) if d else None for name in names}


def _limited(one: Estimate) -> Iterator[tuple[str, Limited | None]]:
    """Yield each latency that has a limit in the limit's statistic; None of those without."""
    for name in LATENCIES:
        limit = one.inputs["limits"][name]
        if limit is None:
            yield name, None
            continue
        value = getattr(getattr(one.latency, name), limit["statistic"]) if one.latency else None
        yield name, Limited(limit["statistic"], value, limit["ms"])


def _bands(one: Estimate) -> Iterator[tuple[str, ErrorBand]]:
    """Yield the bands of the figures that a line has, by their names there."""
    paths = {name: f"latency.{name}.mean" for name in LATENCIES}
    for name, limited in _limited(one):
        if limited is not None:
            paths[f"limited.{name}"] = f"latency.{name}.{limited.statistic}"
    paths |= {name: f"load.{name}" for name in ("requests_per_s", "max_requests_per_s")}
    for name, path in paths.items():
        if path in one.bands:
            yield name, one.bands[path]


def _shared(lists: Sequence[Sequence[Assumption]]) -> Iterator[Assumption]:
    """Yield the assumptions that are in every list, in the order of the first."""
    if lists:
        rest = [set(other) for other in lists[1:]]
        yield from (entry for entry in dict.fromkeys(lists[0]) if all(entry in other for other in rest))
