"""The planning price of a GPU type: as stated, a provider's offer, or the typical price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sizing.catalog import prices
from sizing.catalog.prices import ON_DEMAND, age_words, today
from sizing.catalog.shelf import Found
from sizing.specs.gpu import Gpu, GpuType


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

    def offers(self, found: Found[Gpu]) -> bool:
        """Whether the provider, where one is stated, offers a GPU type."""
        return self.provider is None or bool(prices.offers(found.spec, self.provider, self.kind))

    def priced(self, found: Found[Gpu]) -> GpuType:
        """A GPU type with its planning price; the source of a price older than six months says so."""
        price, source, providers = self._of(found)
        day = (source or "").partition("(")[0].partition(";")[0].rpartition(",")[2]
        aged = f"{source}; {age}" if (age := age_words(day, today())) is not None else source
        return GpuType(found.id, found.spec, price, aged, price_providers=providers)

    def _of(self, found: Found[Gpu]) -> tuple[float | None, str | None, int | None]:
        """The price, its source, and of a median the number of providers."""
        stated = self.by_id.get(found.id, self.of_all)
        if stated is not None:
            return stated, "as asked", None
        if self.provider is not None and self.offers(found):
            return (*prices.price_of(found.spec, self.provider, self.kind, field="--provider"), None)
        return (*prices.typical_price(found.spec), len(prices.providers_offers(found.spec)) or None)
