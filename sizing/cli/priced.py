"""What `llmsize cost` is asked beside its workload: owned servers, providers, an API, and how to split a request's cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from sizing.catalog import servers
from sizing.catalog.prices import ON_DEMAND, offers_of, typical_offer
from sizing.catalog.servers import OwnFile, Resolved
from sizing.cli.collecting import Part
from sizing.cli.options import comma_separated
from sizing.question.question import GpuType
from sizing.report.cost import Priced, Rental
from sizing.report.cost_options import ApiPrices
from sizing.report.cost_service import Split
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import Price

LEAST_USD_PER_MILLION, MOST_USD_PER_MILLION = 1e-4, 100_000.0
BY_TIME: Literal["time"] = "time"
LEAST_RATIO, MOST_RATIO = 1e-3, 1_000.0
# As people write numbers: ASCII, nothing between the digits.
NUMBER = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*\Z")


class Prices(NamedTuple):
    """What was asked for; providers are not yet looked up, as each type of GPU has its own."""

    own: OwnFile | None
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
    least, most = LEAST_USD_PER_MILLION, MOST_USD_PER_MILLION
    found = [_number(part, least, most) for part in text.split(",")]
    usd_in, usd_out = found if len(found) == 2 else (math.nan, math.nan)
    if not usd_in + usd_out > 0:
        allowed = f"IN,OUT as 1.0,3.0: $ per million tokens, each from {least:g} to {most:,.0f}, or one of them 0"
        raise InputError(Fault(f"{text!r} is not two prices", field="--api", allowed=allowed))
    return ApiPrices(usd_in, usd_out, f"API at ${usd_in:g} / ${usd_out:g}", "as asked", "as asked")


def _split(text: str | None) -> Split | None:
    if text is None:
        return None
    if text.strip().lower() == BY_TIME:
        return BY_TIME
    ratio = _number(text, LEAST_RATIO, MOST_RATIO)
    if math.isnan(ratio):
        of = f"the price of an output token over that of an input token, 0 or from {LEAST_RATIO:g} to {MOST_RATIO:,.0f}"
        allowed = f"{BY_TIME}, or {of}"
        raise InputError(Fault(f"{text!r} splits nothing", field="--split", allowed=allowed))
    return ratio


def _number(text: str, least: float, most: float) -> float:
    """Return a number that is 0 or within a range, NaN where the text is none."""
    value = float(text) if NUMBER.match(text) else math.nan
    return value if value == 0 or least <= value <= most else math.nan


def priced(asked: Prices, gpu_type: GpuType) -> Priced:
    """Return the prices for one type of GPU; where neither servers nor rentals are asked for, the price to plan with.

    Raises InputError for an unknown provider, a server of other GPUs, and a type that nothing has a price of.
    """
    own = Part(lambda: _own(asked, gpu_type))
    rentals = Part(lambda: _rentals(asked, gpu_type))
    faults = [*own.faults, *rentals.faults]
    if faults:
        raise InputError(faults)
    found = Priced(own.value, rentals.value)
    if found.own is not None or found.rentals:
        return found
    if gpu_type.usd_per_gpu_hour is None:
        if asked.api is not None:
            return found
        message = f"no price of {gpu_type.gpu.name} is known"
        raise InputError(Fault(message, field="--gpu", allowed="another type, or with --price, --own or --cloud"))
    return found._replace(rentals=(_planned(gpu_type),))


def _own(asked: Prices, gpu_type: GpuType) -> Resolved | None:
    return servers.resolve(asked.own, gpu_type.id, gpu_type.gpu) if asked.own is not None else None


def _rentals(asked: Prices, gpu_type: GpuType) -> tuple[Rental, ...]:
    """Return what is rented: at the price given, and of each provider. Raises InputError with the faults of all."""
    found = [Part(lambda pair=pair: _rental(gpu_type, *pair)) for pair in asked.clouds]  # type: ignore[misc]
    faults = [fault for part in found for fault in part.faults]
    if faults:
        raise InputError(faults)
    given = (_planned(gpu_type),) if asked.price is not None else ()
    return (*given, *(part.value for part in found))


def _rental(gpu_type: GpuType, provider: str, kind: str) -> Rental:
    found = offers_of(gpu_type.gpu, provider, kind)
    said = found[0].kind
    name = found[0].provider if said == ON_DEMAND else f"{found[0].provider} {said}"
    return Rental(name, said, found)


def _planned(gpu_type: GpuType) -> Rental:
    """Return the price to plan with, counted by the GPU as `llmsize estimate` does."""
    typical = typical_offer(gpu_type.gpu)
    if typical is None or typical.usd_per_gpu_hour != gpu_type.usd_per_gpu_hour:
        typical = Price(provider="as asked", sku="GPU", kind=ON_DEMAND, gpus=1, date="as asked", source="as asked")
    offer = typical.model_copy(update={"gpus": 1, "usd_per_gpu_hour": gpu_type.usd_per_gpu_hour})
    return Rental(f"rented at ${gpu_type.usd_per_gpu_hour:g} per GPU-hour", ON_DEMAND, (offer,), gpu_type.price_source)
