"""What a GPU costs an hour under each contract: a provider's prices where they are known, usual discounts where not."""

from __future__ import annotations

from typing import NamedTuple

from sizing.prices import offers, source_of, usd_per_gpu_hour
from sizing.specs.gpu import Gpu, Price
from sizing.specs.scaling import Scaling

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
