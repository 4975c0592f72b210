"""Prices with their sources: offers of GPU-hours, the planning price of a GPU type, API prices of models, and their age."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, get_args

from sizing.catalog.shelf import Found, hyphenated, only
from sizing.specs.errors import InputError, nearest
from sizing.specs.gpu import Gpu, GpuType, Price, PriceKind

if TYPE_CHECKING:  # answers without API prices do not load these
    from sizing.specs.prices import ApiModel, ApiPriceList, ApiProvider

OLD_MONTHS = 6  # older prices are reported as old
MONTHS = 12
_DAY = re.compile(r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{2})(?:-[0-9]{2})?)?(?![0-9])")


def today() -> date:
    """The day of the answer. SOURCE_DATE_EPOCH (seconds since 1970) fixes it, so that outputs can be compared."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(fixed), UTC).date() if fixed.isdecimal() else date.today()


def age_words(stated: str, on: date) -> str | None:
    """Describe the age of a price that is older than six months on a day; None for a newer price or an unreadable date.

    For a span (`2026-03 to 2026-07`) the end counts, for a year its last month.
    """
    found = list(_DAY.finditer(stated))
    if not found:
        return None
    last = found[-1]
    months = (on.year - int(last["year"])) * MONTHS + on.month - int(last["month"] or MONTHS)
    return f"{months} months old" if months > OLD_MONTHS else None


ON_DEMAND = "on-demand"


def offers(gpu: Gpu, provider: str | None = None, kind: str | None = None) -> tuple[Price, ...]:
    """The hourly offers of a profile, optionally only of a `provider` and a `kind`. Names match in any case."""
    return tuple(
        price
        for price in gpu.prices
        if price.usd_per_gpu_hour is not None
        and (provider is None or _same(price.provider, provider))
        and (kind is None or _same(price.kind, kind))
    )


def offers_of(gpu: Gpu, provider: str, kind: str = ON_DEMAND, *, field: str = "--cloud") -> tuple[Price, ...]:
    """A provider's hourly offers of a kind, at least one.

    Raises InputError, naming `field`, for an unknown provider, and for a provider without a price of this kind.
    """
    found = offers(gpu, provider, kind)
    if found:
        return found
    message = f"no {kind} price of {gpu.name} by {provider!r} is known"
    quote = _own_quote(kind, field)
    if offers(gpu, provider):
        kinds = sorted({price.kind for price in offers(gpu, provider)})
        raise InputError(message, field=field, allowed=f"{', '.join(kinds)}, {quote}", nearest=nearest(kind, kinds))
    known = sorted({price.provider for price in offers(gpu, kind=kind)})
    near = nearest(provider, known)
    allowed = ", ".join((*known, *([] if near else [quote if known else quote.removeprefix("or ")])))
    raise InputError(message, field=field, allowed=allowed, nearest=near)


def provider_and_kind(text: str) -> tuple[str, str]:
    """The provider and the kind of price of `nebius:spot`; the default kind is on demand."""
    provider, _, kind = (part.strip() for part in text.partition(":"))
    return provider, kind or ON_DEMAND


def _own_quote(kind: str, field: str) -> str:
    """Say how to state one's own price of a kind where none is known."""
    kinds = [each for each in get_args(PriceKind) if kind.lower() in each] or [ON_DEMAND]
    file = f"a GPU file (llmsize gpus NAME --yaml) that lists it under prices, of kind {' or '.join(kinds)}"
    return f"or your own quote: --price 2.5 in place of {field}, or {file}"


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


@lru_cache
def providers_offers(gpu: Gpu) -> tuple[Price, ...]:
    """The on-demand price of each provider, sorted by price: its median offer, because instance sizes differ in price.

    A provider counts once, however many products it lists. Contract rentals and owners' costs are excluded, because they are not
    comparable.
    """
    by_provider: dict[str, list[Price]] = {}
    for offer in offers(gpu, kind=ON_DEMAND):
        by_provider.setdefault(offer.provider, []).append(offer)
    return tuple(sorted(map(_median, by_provider.values()), key=usd_per_gpu_hour))


def _median(prices: Sequence[Price]) -> Price:
    """The median offer; the lower one of the two in the middle."""
    return sorted(prices, key=usd_per_gpu_hour)[(len(prices) - 1) // 2]


def typical_offer(gpu: Gpu) -> Price | None:
    """The median of the providers' on-demand offers; None without offers."""
    found = providers_offers(gpu)
    return _median(found) if found else None


def among(gpu: Gpu) -> str:
    """Describe how the typical offer was chosen among the providers' offers."""
    count = len(providers_offers(gpu))
    return f"median of {count} providers" if count > 1 else "the only provider known"


def typical_price(gpu: Gpu) -> tuple[float | None, str | None]:
    """($ per GPU-hour, source) of the typical offer; the source states the number of providers. (None, None) without offers."""
    chosen = typical_offer(gpu)
    if chosen is None:
        return None, None
    values = [usd_per_gpu_hour(offer) for offer in providers_offers(gpu)]
    span = f" from ${min(values):g} to ${max(values):g}" if len(values) > 1 else ""
    what = f"{chosen.provider} {chosen.sku} on demand, {chosen.date}"
    return usd_per_gpu_hour(chosen), f"{what}; {among(gpu)}{span} ({chosen.source})"


def _same(one: str, other: str) -> bool:
    return one.lower() == other.strip().lower()


class PriceRule(NamedTuple):
    """The planning prices: one for all GPU types, some by id, or a provider's of one kind; else the typical prices."""

    of_all: float | None = None
    by_id: Mapping[str, float] = {}
    provider: str | None = None
    kind: str = ON_DEMAND

    @property
    def of_others(self) -> PriceRule:
        """The prices of GPU types that were not asked for; a price for all is one of those that were."""
        return self._replace(of_all=None)

    def offers(self, gpu: Found[Gpu]) -> bool:
        """Whether the provider, where one is stated, offers a GPU type."""
        return self.provider is None or bool(offers(gpu.spec, self.provider, self.kind))

    def priced(self, gpu: Found[Gpu]) -> GpuType:
        """A GPU type with its planning price; the source of a price older than six months says so."""
        price, source, providers = self._of(gpu)
        day = (source or "").partition("(")[0].partition(";")[0].rpartition(",")[2]
        aged = f"{source}; {age}" if (age := age_words(day, today())) is not None else source
        return GpuType(gpu.id, gpu.spec, price, aged, price_providers=providers)

    def _of(self, gpu: Found[Gpu]) -> tuple[float | None, str | None, int | None]:
        """The price, its source, and of a median the number of providers."""
        stated = self.by_id.get(gpu.id, self.of_all)
        if stated is not None:
            return stated, "as asked", None
        if self.provider is not None and self.offers(gpu):
            return (*price_of(gpu.spec, self.provider, self.kind, field="--provider"), None)
        return (*typical_price(gpu.spec), len(providers_offers(gpu.spec)) or None)


class ApiOffer(NamedTuple):
    """The price of a model at a provider, with its date and source."""

    provider: str
    model: ApiModel
    date: str
    source: str


def _api_prices() -> ApiPriceList:
    from sizing.specs.prices import ApiPriceList

    return only(ApiPriceList)


def _api_offer(provider: ApiProvider, model: ApiModel) -> ApiOffer:
    known = _api_prices()
    return ApiOffer(provider.name, model, known.date, f"{provider.page}, by {known.source}")


def api_offers() -> tuple[ApiOffer, ...]:
    """All known API prices, by provider."""
    return tuple(_api_offer(each, model) for each in _api_prices().providers for model in each.models)


def api_offer(provider: str, model: str, *, field: str) -> ApiOffer:
    """The price of a model at a provider. Raises InputError, naming `field`, for an unknown or ambiguous name."""
    known = _api_prices().providers
    found = next((each for each in known if hyphenated(each.name) == hyphenated(provider)), None)
    if found is None:
        names = [each.name for each in known]
        message = f"no API prices of {provider!r} are known"
        raise InputError(message, field=field, allowed=", ".join(names), nearest=nearest(provider, names))
    hits = _models(found, model)
    if len(hits) != 1:
        names = [each.model for each in hits or found.models]
        message = f"{found.name} has {'several models' if hits else 'no model'} {model!r}"
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more (llmsize prices)" if len(names) > 8 else "")
        raise InputError(message, field=field, allowed=shown, nearest=None if hits else nearest(model, names))
    return _api_offer(found, hits[0])


def _models(provider: ApiProvider, name: str) -> list[ApiModel]:
    """The models with this whole name, or this name after the organisation; otherwise all that begin with `name`."""
    key, stems = hyphenated(name), [hyphenated(each.model.rpartition("/")[2]) for each in provider.models]
    whole = [each for each in provider.models if hyphenated(each.model) == key]
    own = [each for each, stem in zip(provider.models, stems, strict=True) if stem == key]
    return whole or own or [each for each, stem in zip(provider.models, stems, strict=True) if stem.startswith(key)]
