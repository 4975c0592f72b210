"""The price to plan with: from the many in a profile, one that a buyer can expect, and said which."""

from __future__ import annotations

from statistics import median_low

from sizing.specs.gpu import Gpu

ON_DEMAND = "on-demand"


def typical_price(gpu: Gpu) -> tuple[float | None, str | None]:
    """Return ($ per GPU-hour, source): the median on-demand price of the profile, the lower of two in the middle.

    A GPU without an on-demand price has none: rentals by contract and owners' cost are other kinds, and mixing them
    would compare unlike things.
    """
    offers = [p for p in gpu.prices if p.kind == ON_DEMAND and p.usd_per_gpu_hour is not None]
    if not offers:
        return None, None
    values = [p.usd_per_gpu_hour for p in offers if p.usd_per_gpu_hour is not None]
    lowest, highest = min(values), max(values)
    price = median_low(values)
    chosen = next(p for p in offers if p.usd_per_gpu_hour == price)
    among = (
        f"median of {len(offers)} offers from ${lowest:g} to ${highest:g}"
        if len(offers) > 1
        else "the only offer known"
    )
    return price, f"{chosen.provider} {chosen.sku} on demand, {chosen.date}; {among} ({chosen.source})"
