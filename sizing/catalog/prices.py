"""The price of a GPU-hour: the offers in its profile by provider and kind, and one price to plan with, with its source."""

from __future__ import annotations

from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.gpu import Gpu, Price

ON_DEMAND = "on-demand"


def offers(gpu: Gpu, provider: str | None = None, kind: str | None = None) -> tuple[Price, ...]:
    """The hourly offers of a profile, of `provider` and `kind` where given; names match in any case."""
    return tuple(
        price
        for price in gpu.prices
        if price.usd_per_gpu_hour is not None
        and (provider is None or _same(price.provider, provider))
        and (kind is None or _same(price.kind, kind))
    )


def offers_of(gpu: Gpu, provider: str, kind: str = ON_DEMAND, *, field: str = "--cloud") -> tuple[Price, ...]:
    """A provider's hourly offers of a kind, at least one.

    Raises InputError, naming `field`, for an unknown provider, and for one without a price of the kind.
    """
    found = offers(gpu, provider, kind)
    if found:
        return found
    if offers(gpu, provider):
        kinds = sorted({price.kind for price in offers(gpu, provider)})
        message = f"no {kind} price of {gpu.name} by {provider!r} is known"
        raise InputError(Fault(message, field=field, allowed=", ".join(kinds), nearest=nearest(kind, kinds)))
    known = sorted({price.provider for price in offers(gpu, kind=kind)})
    message = f"no {kind} price of {gpu.name} by {provider!r} is known"
    allowed = ", ".join(known) or "none is known of this GPU; --price"
    raise InputError(Fault(message, field=field, allowed=allowed, nearest=nearest(provider, known)))


def price_of(gpu: Gpu, provider: str, kind: str = ON_DEMAND, *, field: str = "--cloud") -> tuple[float, str]:
    """($ per GPU-hour, source) of a provider's cheapest offer of a kind. Raises InputError as `offers_of` does."""
    cheapest = min(offers_of(gpu, provider, kind, field=field), key=usd_per_gpu_hour)
    return usd_per_gpu_hour(cheapest), source_of(cheapest)


def usd_per_gpu_hour(offer: Price) -> float:
    """The price of an hourly offer."""
    if offer.usd_per_gpu_hour is None:
        raise ValueError(f"{offer.sku} is no hourly offer")
    return offer.usd_per_gpu_hour


def source_of(price: Price) -> str:
    """Write the source of a price: provider, product, date and address."""
    return f"{price.provider} {price.sku} {price.kind}, {price.date} ({price.source})"


def typical_offer(gpu: Gpu) -> Price | None:
    """The median on-demand offer of a profile, the lower of two in the middle; None without any.

    Rentals by contract and owners' cost are other kinds, and mixing them would compare unlike things.
    """
    found = sorted(offers(gpu, kind=ON_DEMAND), key=usd_per_gpu_hour)
    return found[(len(found) - 1) // 2] if found else None


def typical_price(gpu: Gpu) -> tuple[float | None, str | None]:
    """($ per GPU-hour, source) of the typical offer, with the number of offers; (None, None) without one."""
    chosen = typical_offer(gpu)
    if chosen is None:
        return None, None
    values = [usd_per_gpu_hour(offer) for offer in offers(gpu, kind=ON_DEMAND)]
    lowest, highest = min(values), max(values)
    among = (
        f"median of {len(values)} offers from ${lowest:g} to ${highest:g}"
        if len(values) > 1
        else "the only offer known"
    )
    return usd_per_gpu_hour(
        chosen
    ), f"{chosen.provider} {chosen.sku} on demand, {chosen.date}; {among} ({chosen.source})"


def _same(one: str, other: str) -> bool:
    return one.lower() == other.strip().lower()
