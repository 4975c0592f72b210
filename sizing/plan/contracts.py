"""What a GPU costs an hour under each contract: a provider's prices where they are known, usual discounts where not."""

from __future__ import annotations

from typing import NamedTuple

from sizing.prices import offers, price_of
from sizing.specs.gpu import Gpu
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


def contracts(gpu: Gpu, provider: str | None, on_demand: tuple[float, str], rules: Scaling) -> Contracts:
    """Return the prices of all contracts, from a price on demand and the provider's others, or usual discounts."""

    def of(kind: str, discount: float) -> tuple[float, str]:
        if provider is not None and offers(gpu, provider, kind):
            return price_of(gpu, provider, kind)
        why = f"{discount * 100:g} % below on demand, assumed: no {kind} price is known"
        return on_demand[0] * (1 - discount), why

    return Contracts(*on_demand, *of(RESERVED, rules.reserved_discount), *of(SPOT, rules.spot_discount))
