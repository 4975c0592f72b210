"""Prices by name: an API's price of a model, and how old a stated date makes a price."""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime
from typing import NamedTuple

from sizing.catalog.shelf import hyphenated, only
from sizing.specs.api_prices import ApiModel, ApiPriceList, ApiProvider
from sizing.specs.errors import Fault, InputError, nearest

OLD_MONTHS = 6  # from which on a price is said to be old
MONTHS = 12
_DAY = re.compile(r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{2})(?:-[0-9]{2})?)?(?![0-9])")


def today() -> date:
    """The day of the answer; SOURCE_DATE_EPOCH (seconds since 1970) fixes it, so that outputs can be compared."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(fixed), UTC).date() if fixed.isdecimal() else date.today()


def age_words(stated: str, on: date) -> str | None:
    """Write the age of a price older than six months on a day; None for a newer one, or where the date says no more.

    Of a span (`2026-03 to 2026-07`) the end counts, of a year its last month.
    """
    found = list(_DAY.finditer(stated))
    if not found:
        return None
    last = found[-1]
    months = (on.year - int(last["year"])) * MONTHS + on.month - int(last["month"] or MONTHS)
    return f"{months} months old" if months > OLD_MONTHS else None


class ApiOffer(NamedTuple):
    """The price of a model at a provider, with its date and source."""

    provider: str
    model: ApiModel
    date: str
    source: str


def api_offers() -> tuple[ApiOffer, ...]:
    """All API prices known, by provider."""
    known = only(ApiPriceList)
    return tuple(
        ApiOffer(provider.name, model, known.date, f"{provider.page}, by {known.source}")
        for provider in known.providers
        for model in provider.models
    )


def api_offer(provider: str, model: str, *, field: str) -> ApiOffer:
    """The price of a model at a provider. Raises InputError, naming `field`, for an unknown or ambiguous name."""
    known = only(ApiPriceList)
    found = next((each for each in known.providers if hyphenated(each.name) == hyphenated(provider)), None)
    if found is None:
        names = [each.name for each in known.providers]
        message = f"no API prices of {provider!r} are known"
        raise InputError(Fault(message, field=field, allowed=", ".join(names), nearest=nearest(provider, names)))
    hits = _models(found, model)
    if len(hits) != 1:
        names = [each.model for each in hits or found.models]
        message = f"{found.name} has {'several models' if hits else 'no model'} {model!r}"
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more (llmsize prices)" if len(names) > 8 else "")
        raise InputError(Fault(message, field=field, allowed=shown, nearest=None if hits else nearest(model, names)))
    return ApiOffer(found.name, hits[0], known.date, f"{found.page}, by {known.source}")


def _models(provider: ApiProvider, name: str) -> list[ApiModel]:
    """The models with a name: the whole of it, its part after the organisation, else all that begin so."""
    key, stems = hyphenated(name), [hyphenated(each.model.rpartition("/")[2]) for each in provider.models]
    whole = [each for each in provider.models if hyphenated(each.model) == key]
    own = [each for each, stem in zip(provider.models, stems, strict=True) if stem == key]
    return whole or own or [each for each, stem in zip(provider.models, stems, strict=True) if stem.startswith(key)]
