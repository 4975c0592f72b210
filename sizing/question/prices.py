"""What a GPU-hour costs in a question: as stated, at a provider's offer, or as it typically does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from sizing.catalog import prices
from sizing.catalog.prices import ON_DEMAND, age_words, today
from sizing.catalog.shelf import Found
from sizing.question.values import Options, Part, check, comma_separated
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import Gpu, GpuType
from sizing.specs.units import parse_number
from sizing.specs.values import LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR

ALLOWED = "a price for all (2.5), or one of each GPU type (h100-sxm=2.5,h200-sxm=3.1)"
Gpus = Part[tuple[Found[Gpu], ...]]  # read where a price needs it: a fault of it hides none of a price


class PriceRule(NamedTuple):
    """What prices are planned with: one for all GPU types, some by id, or a provider's of a kind; else typical ones."""

    of_all: float | None = None
    by_id: Mapping[str, float] = MappingProxyType({})
    provider: str | None = None
    kind: str = ON_DEMAND

    def offers(self, found: Found[Gpu]) -> bool:
        """Whether the provider, where one is stated, offers a GPU type."""
        return self.provider is None or bool(prices.offers(found.spec, self.provider, self.kind))

    def priced(self, found: Found[Gpu]) -> GpuType:
        """A GPU type with the price to plan with; one older than six months says so."""
        price, source = self._of(found)
        age = (
            None
            if source is None
            else age_words(source.partition("(")[0].partition(";")[0].rpartition(",")[2], today())
        )
        return GpuType(found.id, found.spec, price, source if age is None else f"{source}; {age}")

    def _of(self, found: Found[Gpu]) -> tuple[float | None, str | None]:
        stated = self.by_id.get(found.id, self.of_all)
        if stated is not None:
            return stated, "as asked"
        if self.provider is not None and self.offers(found):
            return prices.price_of(found.spec, self.provider, self.kind, field="--provider")
        return prices.typical_price(found.spec)


def price_rule(options: Options, considered: Gpus, look_up: Callable[[str], Found[Gpu]]) -> PriceRule:
    """The prices that options state. Raises InputError for what is no price, and for an offer or GPU type that is not there."""
    if options.provider is not None:
        return _of_provider(options.provider, options.price, considered)
    if not isinstance(options.price, str):
        return PriceRule(checked_price(options.price))
    parts = [Part(partial(_price_of, item, considered, look_up)) for item in comma_separated(options.price)]
    check(*parts)
    by_id: dict[str, float] = {}
    for id_, price in (part.value for part in parts):
        if by_id.setdefault(id_, price) != price:
            raise InputError(Fault(f"states two prices of {id_}", field="--price", allowed="one"))
    return PriceRule(by_id=by_id)


def _of_provider(text: str, price: float | str | None, considered: Gpus) -> PriceRule:
    if price is not None:
        message = "contradicts --price, which says what a GPU-hour costs"
        raise InputError(Fault(message, field="--provider", allowed="one of them"))
    name, _, kind = (part.strip() for part in text.partition(":"))
    rule = PriceRule(provider=name, kind=kind or ON_DEMAND)
    if not any(map(rule.offers, considered.value)):
        prices.offers_of(considered.value[0].spec, name, rule.kind, field="--provider")
    return rule


def _price_of(item: str, considered: Gpus, look_up: Callable[[str], Found[Gpu]]) -> tuple[str, float]:
    """The id of a GPU type and its price from `h100-sxm=2.5`."""
    name, equals, text = (part.strip() for part in item.partition("="))
    try:
        price = parse_number(text)
    except ValueError as error:
        message = str(error) if equals else f"{item!r} is the price of no GPU type"
        raise InputError(Fault(message, field="--price", allowed=ALLOWED)) from None
    try:
        found = look_up(name)
    except InputError as error:
        raise InputError([replace(fault, field="--price") for fault in error.faults]) from None
    ids = [each.id for each in considered.value]
    if found.id not in ids:
        raise InputError(
            Fault(f"{found.id} is none of the GPU types asked for", field="--price", allowed=", ".join(ids))
        )
    checked_price(price)
    return found.id, price


def checked_price(price: float | None) -> float | None:
    """A price in $ per GPU-hour. Raises InputError where `price` is out of range."""
    if price is not None and not LEAST_USD_PER_HOUR <= price <= MOST_USD_PER_HOUR:
        allowed = f"$ per GPU-hour, from {LEAST_USD_PER_HOUR:g} to {MOST_USD_PER_HOUR:,}"
        raise InputError(Fault(f"{price:g} is out of range", field="--price", allowed=allowed))
    return price
