"""A provider's instances: the cheapest offer for the pools of a type of GPU, and its price by contract.

Usual discounts replace unknown prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.catalog.prices import offers, offers_of, source_of, usd_per_gpu_hour
from sizing.planning.fleet import GpuPool
from sizing.specs.demand import Scaling
from sizing.specs.gpu import Gpu, Price, PriceKind

RESERVED: tuple[PriceKind, ...] = ("1-year reserved", "3-year reserved")  # the shorter commitment first
SPOT: tuple[PriceKind, ...] = ("spot",)


class Contracts(NamedTuple):
    """$ per GPU-hour by contract, each with its source."""

    on_demand: float
    on_demand_source: str
    reserved: float
    reserved_source: str
    spot: float
    spot_source: str


def contracts(gpu: Gpu, on_demand: tuple[float, str], rules: Scaling, offer: Price | None = None) -> Contracts:
    """The prices of all contracts, from the `on_demand` price and the usual discounts.

    With an `offer`, the provider's known prices for the same number of GPUs replace the discounts.
    """

    def of(kinds: Sequence[PriceKind], discount: float) -> tuple[float, str]:
        for kind in kinds:
            if offer is None:
                break
            if alike := [each for each in offers(gpu, offer.provider, kind) if each.gpus == offer.gpus]:
                cheapest = min(alike, key=usd_per_gpu_hour)
                return usd_per_gpu_hour(cheapest), source_of(cheapest)
        why = f"{discount * 100:g} % below on demand, assumed: no {kinds[0].split()[-1]} price is known"
        return on_demand[0] * (1 - discount), why

    return Contracts(*on_demand, *of(RESERVED, rules.reserved_discount), *of(SPOT, rules.spot_discount))


class Instances(NamedTuple):
    """Instances of one offer by hour; `joined`: one instance holds the largest replica, or a whole node of it."""

    offer: Price
    by_hour: tuple[int, ...]
    joined: bool

    @property
    def gpus_by_hour(self) -> tuple[int, ...]:
        """GPUs paid for at each hour."""
        return tuple(count * self.offer.gpus for count in self.by_hour)

    @property
    def usd_per_hour(self) -> float:
        """The cost of the busiest hour; instances that run around the clock cost this every hour."""
        return max(self.gpus_by_hour) * usd_per_gpu_hour(self.offer)


def instances(pools: Sequence[GpuPool], gpu: Gpu, provider: str) -> Instances:
    """The provider's cheapest offer for pools of one type of GPU; pools do not share instances.

    One instance of the offer must hold a replica. Where no offer does, GPUs count as if instances were joined. Raises
    InputError where the provider has no price for the type.
    """
    largest = max(size for pool in pools for held in pool.held_by_hour for size, _ in held)
    found = offers_of(gpu, provider)
    holding = [offer for offer in found if offer.gpus >= min(largest, gpu.datasheet.node.gpus)]

    def held(offer: Price) -> Instances:
        hours = zip(*(pool.units_by_hour(offer.gpus) for pool in pools), strict=True)
        return Instances(offer, tuple(map(sum, hours)), bool(holding))

    return min(map(held, holding or found), key=lambda one: one.usd_per_hour)
