"""Replicas that follow the load: by the hour, what they cost in GPU-hours, and what is at risk while more are loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.specs.profile import HOURS_OF_DAY
from sizing.specs.scaling import Scaling
from sizing.units import GIGA, SECONDS_PER_HOUR

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
