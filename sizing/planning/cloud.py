"""Replicas that follow the load: by the hour, what they cost in GPU-hours, and what is at risk while more are loading.

What a GPU costs an hour under each contract: a provider's prices where they are known, usual discounts where not.

Whole instances: which of a provider's offers holds the pools of a type of GPU, and how many of it each hour takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.catalog.prices import offers, offers_of, source_of, usd_per_gpu_hour
from sizing.planning.fleet import Pool
from sizing.specs.demand import HOURS_OF_DAY, Scaling
from sizing.specs.gpu import Gpu, Price
from sizing.specs.units import GIGA, SECONDS_PER_HOUR

DAYS_PER_MONTH = 365 / 12
HOURS_PER_MONTH = HOURS_OF_DAY * DAYS_PER_MONTH


class Delay(NamedTuple):
    """Seconds until a new replica serves: a node, the weights over the slower of network and disk, the engine."""

    node_start_s: float
    load_s: float
    engine_start_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.node_start_s + self.load_s + self.engine_start_s


def delay(weights_bytes: float, rules: Scaling) -> Delay:
    """Return how long a replica with these weights takes until it serves."""
    slower = min(rules.network_gb_per_s, rules.disk_gb_per_s)
    return Delay(rules.node_start_s, weights_bytes / (slower * GIGA), rules.engine_start_s)


def at_risk(rates_per_s: Sequence[float], replicas: Sequence[int], per_replica: float, delay_s: float) -> float:
    """Return the share of requests that come above what the replicas of the hour before serve while more are loading.

    The load changes at the full hour, and scaling begins then; hours follow each other around. Such requests wait longer
    than the limits allow, or are refused. Replicas that are started so much earlier leave none.
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
    """Return the GPUs that are cheaper reserved around the clock than rented for the hours that need them.

    The n-th GPU is reserved where its share of hours times the on-demand price is at least the reserved price.
    """
    worth = [n for n in set(gpus) if on_demand_price * sum(g >= n for g in gpus) >= price * len(gpus)]
    return max(worth, default=0)


class Mix(NamedTuple):
    """A base that is reserved, and what comes on top of it by the hour: on demand, and a share of that as spot."""

    reserved_gpus: int
    on_demand_gpu_hours: float
    spot_gpu_hours: float
    reserved_usd_per_gpu_hour: float
    on_demand_usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None
    usd_per_month: float
    usd_per_month_all_on_demand: float
    usd_per_month_peak_always_on: float


def mix(gpus: Sequence[int], prices: tuple[float, float, float | None], spot_share: float) -> Mix:
    """Return the cheapest base to reserve, and the costs of a month; `prices` are reserved, on-demand and spot, $/GPU-h.

    Hours of the mix are those of a month. A spot share without a price is rented on demand.
    """
    base_price, price, spot_price = prices
    base = reserved(gpus, base_price, price)
    per_month = HOURS_PER_MONTH / len(gpus)
    above = sum(max(0, g - base) for g in gpus) * per_month
    spot = above * spot_share if spot_price is not None else 0.0
    usd = base * base_price * HOURS_PER_MONTH + (above - spot) * price + spot * (spot_price or 0.0)
    return Mix(
        reserved_gpus=base,
        on_demand_gpu_hours=above - spot,
        spot_gpu_hours=spot,
        reserved_usd_per_gpu_hour=base_price,
        on_demand_usd_per_gpu_hour=price,
        spot_usd_per_gpu_hour=spot_price,
        usd_per_month=usd,
        usd_per_month_all_on_demand=sum(gpus) * per_month * price,
        usd_per_month_peak_always_on=max(gpus) * HOURS_PER_MONTH * price,
    )


RESERVED, SPOT = "reserved", "spot"


class Contracts(NamedTuple):
    """$ per GPU-hour by contract, each with where it is from."""

    on_demand: float
    on_demand_source: str
    reserved: float
    reserved_source: str
    spot: float
    spot_source: str


def contracts(gpu: Gpu, on_demand: tuple[float, str], rules: Scaling, offer: Price | None = None) -> Contracts:
    """Return the prices of all contracts, from a price on demand and usual discounts.

    Of an offer its provider's other prices for as many GPUs count, where there are any.
    """

    def of(kind: str, discount: float) -> tuple[float, str]:
        alike = [] if offer is None else [o for o in offers(gpu, offer.provider, kind) if o.gpus == offer.gpus]
        if alike:
            cheapest = min(alike, key=usd_per_gpu_hour)
            return usd_per_gpu_hour(cheapest), source_of(cheapest)
        why = f"{discount * 100:g} % below on demand, assumed: no {kind} price is known"
        return on_demand[0] * (1 - discount), why

    return Contracts(*on_demand, *of(RESERVED, rules.reserved_discount), *of(SPOT, rules.spot_discount))


class Instances(NamedTuple):
    """Instances of one offer, by hour; `joined` says that one of them holds the largest replica, or a node's part of it."""

    offer: Price
    by_hour: tuple[int, ...]
    joined: bool

    @property
    def gpus_by_hour(self) -> tuple[int, ...]:
        """GPUs paid for at each hour."""
        return tuple(count * self.offer.gpus for count in self.by_hour)

    @property
    def usd_per_hour(self) -> float:
        """What the busiest hour costs, and so all of it around the clock."""
        return max(self.gpus_by_hour) * usd_per_gpu_hour(self.offer)


def instances(pools: Sequence[Pool], gpu: Gpu, provider: str) -> Instances:
    """Return the provider's cheapest offer for pools of one type of GPU, each on instances of its own.

    An offer counts that holds a replica in one instance; where none does, GPUs count as if instances were joined. Raises
    InputError where the provider has no price of the type.
    """
    largest = max(size for pool in pools for held in pool.held_by_hour for size, _ in held)
    found = offers_of(gpu, provider)
    holding = [offer for offer in found if offer.gpus >= min(largest, gpu.datasheet.node.gpus)]

    def held(offer: Price) -> Instances:
        hours = zip(*(pool.units_by_hour(offer.gpus) for pool in pools), strict=True)
        return Instances(offer, tuple(map(sum, hours)), bool(holding))

    return min(map(held, holding or found), key=lambda one: one.usd_per_hour)
