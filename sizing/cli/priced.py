"""What `llmsize cost` is asked beside its workload: owned servers, providers, an API, and how to split a request's cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from sizing.catalog import servers
from sizing.catalog.names import Found
from sizing.catalog.servers import Resolved
from sizing.cli.collecting import Part
from sizing.cli.options import comma_separated
from sizing.errors import Fault, InputError
from sizing.prices import ON_DEMAND, offers_of, typical_offer
from sizing.report.cost import Priced, Rental
from sizing.report.cost_options import ApiPrices
from sizing.report.cost_service import Split
from sizing.request import GpuOption
from sizing.specs.gpu import Price
from sizing.specs.server import Server

MOST_USD_PER_MILLION = 100_000.0
BY_TIME: Literal["time"] = "time"
MOST_RATIO = 1_000.0


class Prices(NamedTuple):
    """What was asked for; providers are not yet looked up, as each type of GPU has its own."""

    own: Found[Server] | None
    clouds: tuple[tuple[str, str], ...]
    api: ApiPrices | None
    split: Split | None
    price: float | None


def ask(values: Mapping[str, Any]) -> Prices:
    """Read the options. Raises InputError with the faults of all."""
    stated = values["own"]
    own = Part(lambda: servers.load_server(stated) if stated is not None else None, _of_own)
    clouds = Part(lambda: _clouds(values["cloud"]))
    api, split = Part(lambda: _api(values["api"])), Part(lambda: _split(values["split"]))
    faults = [fault for part in (own, clouds, api, split) for fault in part.faults]
    if faults:
        raise InputError(faults)
    return Prices(own.value, clouds.value, api.value, split.value, values["price"])


def _of_own(fault: Fault) -> Fault:
    """Name the option in a fault that no file has a place for."""
    return replace(fault, field=fault.field or "--own") if fault.file is None or fault.line is None else fault


def _clouds(text: str | None) -> tuple[tuple[str, str], ...]:
    """Return (provider, kind) of each `provider` or `provider:kind`, on demand unless said."""
    if text is None:
        return ()
    found = []
    for part in comma_separated(text):
        provider, _, kind = (piece.strip() for piece in part.partition(":"))
        found.append((provider, kind or ON_DEMAND))
    if not found or any(not provider for provider, _ in found):
        raise InputError(Fault("names no provider", field="--cloud", allowed="aws,lambda, or with a kind aws:spot"))
    return tuple(dict.fromkeys(found))


def _api(text: str | None) -> ApiPrices | None:
    if text is None:
        return None
    try:
        usd_in, usd_out = (float(part) for part in text.split(","))
    except ValueError:
        usd_in = usd_out = math.nan
    highest = MOST_USD_PER_MILLION
    if not (0 <= usd_in <= highest and 0 <= usd_out <= highest and usd_in + usd_out > 0):
        allowed = f"IN,OUT as 1.0,3.0: $ per million tokens, from 0 to {highest:,.0f}"
        raise InputError(Fault(f"{text!r} is not two prices", field="--api", allowed=allowed))
    return ApiPrices(usd_in, usd_out, f"API at ${usd_in:g} / ${usd_out:g}", "as asked", "as asked")


def _split(text: str | None) -> Split | None:
    if text is None:
        return None
    if text.strip().lower() == BY_TIME:
        return BY_TIME
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 0 <= ratio <= MOST_RATIO:
        allowed = f"{BY_TIME}, or the price of an output token over that of an input token, from 0 to {MOST_RATIO:,.0f}"
        raise InputError(Fault(f"{text!r} splits nothing", field="--split", allowed=allowed))
    return ratio


def priced(asked: Prices, option: GpuOption) -> Priced:
    """Return the prices for one type of GPU; where neither servers nor rentals are asked for, the price to plan with.

    Raises InputError for an unknown provider, a server of other GPUs, and a type that nothing has a price of.
    """
    own = Part(lambda: _own(asked, option))
    rentals = Part(lambda: _rentals(asked, option))
    faults = [*own.faults, *rentals.faults]
    if faults:
        raise InputError(faults)
    found = Priced(own.value, rentals.value)
    if found.own is not None or found.rentals:
        return found
    if option.usd_per_gpu_hour is None:
        if asked.api is not None:
            return found
        message = f"no price of {option.gpu.name} is known"
        raise InputError(Fault(message, field="--gpu", allowed="another type, or with --price, --own or --cloud"))
    return found._replace(rentals=(_planned(option),))


def _own(asked: Prices, option: GpuOption) -> Resolved | None:
    return servers.resolve(asked.own, option.id, option.gpu) if asked.own is not None else None


def _rentals(asked: Prices, option: GpuOption) -> tuple[Rental, ...]:
    """Return what is rented: at the price given, and of each provider. Raises InputError with the faults of all."""
    found = [Part(lambda pair=pair: _rental(option, *pair)) for pair in asked.clouds]  # type: ignore[misc]
    faults = [fault for part in found for fault in part.faults]
    if faults:
        raise InputError(faults)
    given = (_planned(option),) if asked.price is not None else ()
    return (*given, *(part.value for part in found))


def _rental(option: GpuOption, provider: str, kind: str) -> Rental:
    found = offers_of(option.gpu, provider, kind)
    said = found[0].kind
    name = found[0].provider if said == ON_DEMAND else f"{found[0].provider} {said}"
    return Rental(name, said, found)


def _planned(option: GpuOption) -> Rental:
    """Return the price to plan with, counted by the GPU as `llmsize estimate` does."""
    typical = typical_offer(option.gpu)
    if typical is None or typical.usd_per_gpu_hour != option.usd_per_gpu_hour:
        typical = Price(provider="as asked", sku="GPU", kind=ON_DEMAND, gpus=1, date="as asked", source="as asked")
    offer = typical.model_copy(update={"gpus": 1, "usd_per_gpu_hour": option.usd_per_gpu_hour})
    return Rental(f"rented at ${option.usd_per_gpu_hour:g} per GPU-hour", ON_DEMAND, (offer,), option.price_source)
