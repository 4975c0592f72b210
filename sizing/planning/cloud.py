"""Replicas that follow the load: their GPU-hours and cost, and the requests at risk while replicas start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import NamedTuple

from sizing.planning.fleet import Tenant, rates_of, utilisation
from sizing.planning.provision import Contracts, PlanAnswer, Provision, contracts
from sizing.specs.demand import HOURS_OF_DAY, Scaling
from sizing.specs.units import DAYS_PER_MONTH, GIB, GIGA, HOURS_PER_MONTH, SECONDS_PER_HOUR


def delays_s(weights_gb: float, rules: Scaling) -> tuple[float, float, float]:
    """Seconds until a new replica serves: node start, loading of weights (network or disk, the slower), engine start."""
    return rules.node_start_s, weights_gb / min(rules.network_gb_per_s, rules.disk_gb_per_s), rules.engine_start_s


def at_risk(rates_per_s: Sequence[float], replicas: Sequence[int], per_replica: float, delay_s: float) -> float:
    """The share of requests that exceed the capacity of the previous hour's replicas while more replicas start.

    The load changes on the hour, and scaling starts then. The last hour is followed by the first. These requests wait longer
    than the limits allow, or are refused. Starting replicas earlier by the delay avoids this.
    """
    total = sum(rates_per_s) * SECONDS_PER_HOUR
    if total <= 0:
        return 0.0
    late_s = min(delay_s, SECONDS_PER_HOUR)
    above = sum(
        max(0.0, rate - replicas[hour - 1] * per_replica)
        for hour, rate in enumerate(rates_per_s)
        if replicas[hour] > replicas[hour - 1]
    )
    return above * late_s / total


def reserved(gpus: Sequence[int], price: float, on_demand_price: float) -> int:
    """The number of GPUs that are cheaper to reserve around the clock than to rent for the hours that need them.

    The n-th GPU is reserved where the share of hours that need it, times the on-demand price, is at least the reserved
    price.
    """
    worth = [n for n in set(gpus) if on_demand_price * sum(g >= n for g in gpus) >= price * len(gpus)]
    return max(worth, default=0)


class Mix(NamedTuple):
    """The cheapest monthly mix of contracts for one type of GPU, and the cost on demand alone.

    GPUs are those paid for. With a provider they come in whole instances (`sku`, with `gpus_per_instance` GPUs each).
    """

    gpu: str
    reserved_gpus: int
    on_demand_gpu_hours_per_month: float
    spot_gpu_hours_per_month: float
    reserved_usd_per_gpu_hour: float
    on_demand_usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None
    usd_per_month: float
    usd_per_month_all_on_demand: float
    usd_per_month_peak_always_on: float
    sources: tuple[str, ...]
    sku: str | None = None
    gpus_per_instance: int | None = None
    peak_instances: int | None = None


def mix(gpu: str, gpus: Sequence[int], terms: Contracts, spot_share: float) -> Mix:
    """The cheapest number of GPUs to reserve for hourly `gpus`; the rest is on demand, with `spot_share` of it on spot."""
    base = reserved(gpus, terms.reserved, terms.on_demand)
    per_month = HOURS_PER_MONTH / len(gpus)
    above = sum(max(0, count - base) for count in gpus) * per_month
    spot = above * spot_share
    usd = base * terms.reserved * HOURS_PER_MONTH + (above - spot) * terms.on_demand
    return Mix(
        gpu=gpu,
        reserved_gpus=base,
        on_demand_gpu_hours_per_month=above - spot,
        spot_gpu_hours_per_month=spot,
        reserved_usd_per_gpu_hour=terms.reserved,
        on_demand_usd_per_gpu_hour=terms.on_demand,
        spot_usd_per_gpu_hour=terms.spot if spot_share else None,
        usd_per_month=usd + spot * terms.spot,
        usd_per_month_all_on_demand=sum(gpus) * per_month * terms.on_demand,
        usd_per_month_peak_always_on=max(gpus) * HOURS_PER_MONTH * terms.on_demand,
        sources=(terms.on_demand_source, terms.reserved_source, *((terms.spot_source,) if spot_share else ())),
    )


class ScaleUp(NamedTuple):
    """The start-up delay of a workload's replica, and the share of its requests that exceed the running capacity."""

    workload: str
    weights_gb: float
    node_start_s: float
    load_s: float
    engine_start_s: float
    total_s: float
    share_of_requests_at_risk: float | None


class Cloud(NamedTuple):
    """The GPUs paid for over the hours of a profile, and their cost; with a provider, in whole instances.

    `utilisation_mean` is the mean load divided by the capacity of these GPUs within the limits.
    """

    provider: str | None
    peak_gpus: int
    mean_gpus: float
    min_replicas: int
    gpu_hours_per_day: float
    gpu_hours_per_month: float
    utilisation_mean: float | None
    share_of_requests_at_risk: float | None
    scale_up: tuple[ScaleUp, ...]
    mixes: tuple[Mix, ...]
    usd_per_month: float | None


def cloud_of(fleet: Provision, scaling: Scaling) -> Cloud | None:
    """The hourly cloud use, in whole instances where a provider is named; None without both profile and provider."""
    if fleet.hours == 1 and fleet.rules.provider is None:
        return None
    by_type = {gpu_id: _paid_for(gpu_id, fleet) for gpu_id in fleet.gpus_by_type}
    by_hour = [sum(counts) for counts in zip(*by_type.values(), strict=True)]
    mean = sum(by_hour) / fleet.hours
    ups = tuple(_scale_up(*each, fleet, scaling) for each in zip(fleet.answers, fleet.tenants, strict=True))
    mixes = tuple(_mixes(fleet, by_type, scaling))
    return Cloud(
        provider=fleet.rules.provider,
        peak_gpus=max(by_hour),
        mean_gpus=mean,
        min_replicas=fleet.rules.min_replicas,
        gpu_hours_per_day=mean * HOURS_OF_DAY,
        gpu_hours_per_month=mean * HOURS_OF_DAY * DAYS_PER_MONTH,
        utilisation_mean=utilisation(fleet.tenants, mean),
        share_of_requests_at_risk=_at_risk(fleet, ups),
        scale_up=ups,
        mixes=mixes,
        usd_per_month=sum(each.usd_per_month for each in mixes) if len(mixes) == len(by_type) else None,
    )


def _paid_for(gpu_id: str, fleet: Provision) -> tuple[int, ...]:
    """The GPUs of a type paid for in each hour; with a provider, those of whole instances."""
    if gpu_id in fleet.rented:
        return fleet.rented[gpu_id].gpus_by_hour
    return tuple(map(sum, zip(*(pool.gpus_by_hour for pool in fleet.pools if pool.gpu_id == gpu_id), strict=True)))


def _scale_up(answer: PlanAnswer, tenant: Tenant, fleet: Provision, scaling: Scaling) -> ScaleUp:
    """The start-up delay of a replica with the weights of all its GPUs."""
    chosen = answer.best.pool.replica
    weights_gb = chosen.memory.weights_gib * GIB * chosen.layout.gpus / GIGA
    late_s = delays_s(weights_gb, scaling)
    rates, risk = tenant.rates_per_s(fleet.hours), None
    if rates is not None and not tenant.need.in_flight:
        risk = at_risk(rates, tenant.replicas(fleet.hours, fleet.rules), tenant.need.per_replica, sum(late_s))
    return ScaleUp(tenant.name, weights_gb, *late_s, sum(late_s), risk)


def _at_risk(fleet: Provision, ups: Sequence[ScaleUp]) -> float | None:
    """The share of all requests that exceed the running capacity; None where a workload states no rate."""
    by_hour = rates_of(fleet.tenants, fleet.hours)
    risks = [up.share_of_requests_at_risk for up in ups if up.share_of_requests_at_risk is not None]
    if by_hour is None or len(risks) < len(ups):
        return None
    rates = list(map(sum, by_hour))
    return sum(map(mul, risks, rates)) / sum(rates) if any(rates) else 0.0


def _mixes(fleet: Provision, by_type: Mapping[str, Sequence[int]], scaling: Scaling) -> Iterator[Mix]:
    """Yield the mix of contracts of each type of GPU with a price."""
    for gpu_id, gpus in by_type.items():
        gpu_type, rented = fleet.gpu_types[gpu_id], fleet.rented.get(gpu_id)
        price = fleet.price(gpu_id)
        if gpu_type.usd_per_gpu_hour is None or price.usd_per_gpu_hour is None:
            continue
        terms = contracts(gpu_type.gpu, (price.usd_per_gpu_hour, price.source or ""), scaling, rented and rented.offer)
        found = mix(gpu_type.name, gpus, terms, fleet.rules.spot_share)
        if rented is not None:
            unsure = () if rented.joined else ("that the GPUs of a replica come joined is not said",)
            found = found._replace(sources=(*found.sources, *unsure), sku=rented.offer.sku)
            found = found._replace(gpus_per_instance=rented.offer.gpus, peak_instances=max(rented.by_hour))
        yield found
