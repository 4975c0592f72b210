"""The part of a plan that follows the load: GPU-hours, scale-up, requests at risk, and the mix of contracts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sizing.catalog.prices import source_of, usd_per_gpu_hour
from sizing.planning import cloud as contracts
from sizing.planning import cloud as scaling
from sizing.planning.cloud import DAYS_PER_MONTH, Instances, instances
from sizing.planning.fleet import Member, Pool
from sizing.question.question import GpuType
from sizing.report.documents_plan import Cloud, MixFigures, ScaleUp
from sizing.specs.demand import HOURS_OF_DAY
from sizing.specs.units import GIB, GIGA

if TYPE_CHECKING:
    from sizing.report.plan import Asking, WorkloadAnswer


Rented = Mapping[str, Instances]  # by type of GPU; empty without a provider, where a price to plan with is by the GPU


def rented(asking: Asking, pools: Sequence[Pool]) -> Rented:
    """Return the instances of the provider that hold the pools of each type of GPU."""
    if asking.provider is None:
        return {}
    return {
        gpu_id: instances([pool for pool in pools if pool.gpu_id == gpu_id], option.gpu, asking.provider)
        for gpu_id, option in _options(asking).items()
        if any(pool.gpu_id == gpu_id for pool in pools)
    }


def cloud(asking: Asking, members: Sequence[Member], pools: Sequence[Pool], hours: int, held: Rented) -> Cloud | None:
    """Return what a cloud takes by the hour, in whole instances of the provider's; None without a profile and a provider."""
    if hours == 1 and asking.provider is None:
        return None
    by_type = {gpu_id: _paid_for(gpu_id, pools, held) for gpu_id in dict.fromkeys(pool.gpu_id for pool in pools)}
    by_hour = [sum(counts) for counts in zip(*by_type.values(), strict=True)]
    mean = sum(by_hour) / hours
    ups = tuple(
        _scale_up(asking, answer, member, hours) for answer, member in zip(asking.answers, members, strict=True)
    )
    mixes = tuple(_mixes(asking, by_type, held))
    return Cloud(
        provider=asking.provider,
        peak_gpus=max(by_hour),
        mean_gpus=mean,
        min_replicas=asking.rules.min_replicas,
        gpu_hours_per_day=mean * HOURS_OF_DAY,
        gpu_hours_per_month=mean * HOURS_OF_DAY * DAYS_PER_MONTH,
        utilisation_mean=utilisation(members, hours, mean),
        share_of_requests_at_risk=_at_risk(members, ups, hours),
        scale_up=ups,
        mixes=mixes,
        usd_per_month=sum(mix.usd_per_month for mix in mixes) if len(mixes) == len(by_type) else None,
    )


def _paid_for(gpu_id: str, pools: Sequence[Pool], held: Rented) -> tuple[int, ...]:
    """Return the GPUs of a type that each hour takes, those of whole instances where they are of a provider."""
    if gpu_id in held:
        return held[gpu_id].gpus_by_hour
    return tuple(map(sum, zip(*(p.gpus_by_hour for p in pools if p.gpu_id == gpu_id), strict=True)))


def _options(asking: Asking) -> dict[str, GpuType]:
    return {a.best.pool.replica.gpu_type.id: a.best.pool.replica.gpu_type for a in asking.answers if a.best is not None}


def utilisation(members: Sequence[Member], hours: int, gpus: float) -> float | None:
    """Return the mean load over what so many GPUs serve within the limits, where they are filled as planned.

    None where a workload states no rate by hour and no mean.
    """
    busy = 0.0
    for member in members:
        rates = member.rates_per_s(hours)
        mean = member.demanded.mean_per_s if member.demanded is not None else None
        if mean is None and rates is not None and member.hours > 1:
            mean = sum(rates) / hours
        if mean is None or member.need.in_flight:
            return None
        busy += mean / member.need.per_replica * member.need.fit.gpus_per_replica
    return busy / gpus


def _scale_up(asking: Asking, answer: WorkloadAnswer, member: Member, hours: int) -> ScaleUp:
    """Return the delay of a new replica; its weights are those of all its GPUs."""
    assert answer.best is not None
    chosen = answer.best.pool.replica
    weights = chosen.memory.weights_gib * GIB * chosen.layout.gpus
    delay = scaling.delay(weights, asking.scaling)
    rates = member.rates_per_s(hours)
    risk = None
    if rates is not None and not member.need.in_flight:
        risk = scaling.at_risk(rates, member.replicas(hours, asking.rules), member.need.per_replica, delay.total_s)
    return ScaleUp(member.name, weights / GIGA, *delay, delay.total_s, risk)


def _at_risk(members: Sequence[Member], ups: Sequence[ScaleUp], hours: int) -> float | None:
    """Return the share of all requests that come above what is up, None where one workload states no rate."""
    sums = [rates for member in members if (rates := member.rates_per_s(hours)) is not None]
    risks = [up.share_of_requests_at_risk for up in ups if up.share_of_requests_at_risk is not None]
    if len(sums) < len(members) or len(risks) < len(ups):
        return None
    total = sum(map(sum, sums))
    return sum(risk * sum(rates) for risk, rates in zip(risks, sums, strict=True)) / total if total else 0.0


def _mixes(asking: Asking, by_type: Mapping[str, Sequence[int]], held: Rented) -> Iterator[MixFigures]:
    """Yield the mix of contracts of each type of GPU that has a price."""
    options = _options(asking)
    for gpu_id, gpus in by_type.items():
        option, found = options[gpu_id], held.get(gpu_id)
        offer = found.offer if found is not None else None
        if option.usd_per_gpu_hour is None:
            continue
        price = (option.usd_per_gpu_hour, option.price_source or "")
        if offer is not None:
            price = (usd_per_gpu_hour(offer), source_of(offer))
        terms = contracts.contracts(option.gpu, price, asking.scaling, offer)
        spot = asking.rules.spot_share
        mixed = scaling.mix(gpus, (terms.reserved, terms.on_demand, terms.spot if spot else None), spot)
        sources = (terms.on_demand_source, terms.reserved_source, *((terms.spot_source,) if spot else ()))
        if found is not None and not found.joined:
            sources = (*sources, "that the GPUs of a replica come joined is not said")
        yield MixFigures(
            option.name,
            *mixed,
            sources,
            sku=offer.sku if offer is not None else None,
            gpus_per_instance=offer.gpus if offer is not None else None,
            peak_instances=max(found.by_hour) if found is not None else None,
        )
