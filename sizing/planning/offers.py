"""The cost of a sized deployment by way to pay (owned servers, rented GPUs, an API), and the break-even of two ways.

All money is in US dollars.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from sizing.catalog.prices import source_of, usd_per_gpu_hour
from sizing.catalog.servers import CompleteServer
from sizing.catalog.shelf import hyphenated
from sizing.formats.words import plural, rounded_usd
from sizing.planning import tco
from sizing.planning.break_even import SECONDS_PER_DAY, CostCurve, Crossing, crossing, payback_months, usd_per_year
from sizing.planning.tco import OwnServer, ServerYear, TokenPrices
from sizing.planning.usage import BY_TIME, ByLoad, LoadKind, Usage
from sizing.specs import demand
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import Gpu, Price
from sizing.specs.units import JOULES_PER_KWH, MONTHS_PER_YEAR

NO_UNITS = float("inf")  # an API holds any load
FOLLOWING = "each hour has as many instances as it needs ({}); starts are free"
IN_RATIO = "; both pools follow it together, in their ratio"


class ApiPrices(NamedTuple):
    """$ per million tokens of an API, and the source of the prices.

    `model` is the model that they are of, and `doubt` why they may be wrong; both are None where nothing states them.
    """

    usd_in: float
    usd_out: float
    name: str
    date: str
    source: str
    model: str | None = None
    doubt: str | None = None

    def note(self, model: str) -> str | None:
        """A warning if the prices are in doubt, or of another model than `model`."""
        return "; ".join(filter(None, (self.doubt, self.other_model(model)))) or None

    def other_model(self, model: str) -> str | None:
        """A warning if the prices are of another model than `model`; None if the names are alike, or none is stated."""
        names = [each.rpartition("/")[2] for each in (self.model or model, model)]
        one, other = map(hyphenated, names)
        alike = one.startswith(other) or other.startswith(one)
        return None if alike else "{} is another model than {}".format(*names)


class TokenCosts(NamedTuple):
    """$ per million tokens: of input and output by the split, averaged over all tokens, and with the whole cost on output."""

    input: ByLoad
    output: ByLoad
    total: ByLoad
    output_bearing_all: ByLoad


class CostOption(NamedTuple):
    """One way to serve: `own`, `cloud` (rented around the clock, or following the load) or `api`.

    `units` whole servers or instances of `gpus_per_unit` GPUs hold the replicas. `capacity_requests_per_s` is the rate within
    the limits on all GPUs paid for. Costs per hour, month and year are at `load_requests_per_s`, which is the same for all
    ways with one type of GPU; `load` is its kind. `utilisation_at_load` is the load as a share of the capacity. `curves` give
    the yearly cost by requests a day; the cheapest of them counts. `gpus` are the GPUs at the peak, `mean_gpus` the mean
    number paid for over the hours.
    """

    name: str
    kind: str
    provider: str | None
    contract: str | None
    follows_load: bool
    gpu: str | None
    sku: str | None
    units: int | None
    gpus_per_unit: int | None
    gpus: int | None
    mean_gpus: float | None
    usd_per_gpu_hour: float | None
    capacity_requests_per_s: float
    utilisation_at_load: float | None
    load: LoadKind
    load_requests_per_s: float
    usd_per_hour: float
    usd_per_month: float
    usd_per_year: float
    usd_per_year_by_load: ByLoad
    usd_per_1k_requests: ByLoad
    usd_per_million_tokens: TokenCosts
    parts_usd_per_year: ServerYear | None
    upfront_usd: float | None
    depreciation_years: float | None
    date: str
    source: str
    note: str | None
    curves: tuple[CostCurve, ...]


def own_server(server: CompleteServer, gpu: Gpu) -> OwnServer:
    """A server with its power at full load: as stated, else the TDP of its GPUs times the server factor."""
    stated = server.numbers.get("server_power_w")
    gpus = int(server.value("gpus"))
    full_w = stated.value if stated is not None else gpus * gpu.datasheet.tdp_w * server.value("server_factor")
    computed = {"gpus", "power_w"}
    return OwnServer(
        gpus=gpus, power_w=full_w, **{name: server.value(name) for name in OwnServer._fields if name not in computed}
    )


def own(usage: Usage, server: CompleteServer, gpu: Gpu) -> CostOption:
    """The cost of the owned servers that hold all replicas.

    Raises InputError for a server that has fewer GPUs than a replica must join in one server.
    """
    each = own_server(server, gpu)
    fit = usage.fit(each.gpus)
    joined = min(usage.joined_gpus, gpu.datasheet.node.gpus)
    if each.gpus < joined:
        raise InputError(_too_small(server, each.gpus, joined, usage.gpu))
    units = fit.nodes(usage.replicas)
    per_s = usage.per_unit_per_s(fit)
    busy = usage.busy(units * per_s)
    full, year = tco.server_year(each, 1.0), tco.server_year(each, busy)
    idle = tco.server_year(each, 0.0).total
    # Power above idle is proportional to requests: the joules per request do not depend on the number of servers.
    joules = each.power_w * (1 - each.idle_share) * each.pue / per_s
    curve = CostCurve(
        fit.nodes_per_replica * idle,
        usage.requests_per_day_of(fit.replicas_together) * each.uptime,
        joules / JOULES_PER_KWH * each.usd_per_kwh,
    )
    price = server.numbers["price_usd"].basis
    usd = usage.by_load(units * full.total, units * year.total)
    return _option(usage, "own", units * per_s, usd, (curve,), each.uptime)._replace(
        name=f"own ({server.title})",
        units=units,
        gpus_per_unit=each.gpus,
        gpus=units * each.gpus,
        mean_gpus=units * each.gpus,
        sku=server.title,
        utilisation_at_load=busy,
        parts_usd_per_year=ServerYear(*(units * part for part in year)),
        upfront_usd=units * each.price_usd * (1 + each.network_share),
        depreciation_years=each.depreciation_years,
        date=price.date,
        source=price.source,
    )


def _too_small(server: CompleteServer, gpus: int, joined: int, gpu: str) -> Fault:
    """The fault of a server that is too small for a replica; it suggests a larger server or a smaller `--tp`."""
    part = max(size for size in range(1, gpus + 1) if joined % size == 0)
    stated = server.numbers["gpus"]
    message = f"{server.title} has {plural(gpus, 'GPU')}, and a replica on {gpu} joins {joined}"
    allowed = f"a server of at least {joined} GPUs, or --tp {part} where that meets the limits"
    return Fault(message, stated.file, stated.line, "gpus" if stated.file else "--own", allowed)


def rented(
    usage: Usage, offers: Iterable[Price], gpu: Gpu, name: str, contract: str, *, by_gpu: bool = False
) -> tuple[CostOption, ...]:
    """The cost of rented GPUs around the clock and, where the mean load is known, following the load.

    The cheapest offer whose instance holds a replica is used. Where no instance does, GPUs count as if several instances
    were joined, and the note says so, unless the price is counted `by_gpu`.
    """
    needed = min(usage.joined_gpus, gpu.datasheet.node.gpus)
    found = list(offers)
    holding = [offer for offer in found if offer.gpus >= needed]
    note = None
    if not holding and not by_gpu:
        note = (
            f"{name} rents instances of at most {max(offer.gpus for offer in found)}; whether the {usage.joined_gpus} "
            "GPUs of a replica are joined there is not known"
        )
    always = _rented(usage, holding or found, follows=False)._replace(name=name, contract=contract, note=note)
    if usage.mean_per_s is None:
        return (always,)
    following = _rented(usage, holding or found, follows=True)
    by_hour = FOLLOWING.format(usage.hours_said) + IN_RATIO * bool(usage.of_pools)
    said = by_hour if note is None else f"{note}; {by_hour}"
    return always, following._replace(name=f"{name}, following the load", contract=contract, note=said)


def _rented(usage: Usage, offers: Iterable[Price], *, follows: bool) -> CostOption:
    """The cost with the offer that is cheapest per year at the load."""
    found = [_on_instances(usage, offer, follows=follows) for offer in offers]
    best = min(found, key=lambda option: option.usd_per_year)
    return best._replace(curves=tuple(curve for option in found for curve in option.curves))


def _on_instances(usage: Usage, offer: Price, *, follows: bool) -> CostOption:
    """The cost on instances of one offer: of all instances or, with `follows`, of those that each hour needs."""
    fit = usage.fit(offer.gpus)
    units = fit.nodes(usage.replicas)
    capacity_per_s = units * usage.per_unit_per_s(fit)
    gpu_year = usd_per_gpu_hour(offer) * demand.hours_per_year()
    least, always = fit.nodes_per_replica * offer.gpus * gpu_year, units * offer.gpus * gpu_year
    capacity = usage.requests_per_day_of(fit.replicas_together)
    curve = CostCurve(least, capacity, 0.0, usage.hours if follows else (1.0,), follows, usage.at_rest)
    here = float(curve.usd_per_year(np.array([usage.load_per_s * SECONDS_PER_DAY]))[0]) if follows else always
    return _option(usage, "cloud", capacity_per_s, usage.by_load(always, here), (curve,))._replace(
        provider=offer.provider,
        follows_load=follows,
        sku=offer.sku,
        units=units,
        gpus_per_unit=offer.gpus,
        gpus=units * offer.gpus,
        mean_gpus=here / gpu_year,
        usd_per_gpu_hour=offer.usd_per_gpu_hour,
        utilisation_at_load=usage.busy(capacity_per_s),
        date=offer.date,
        source=source_of(offer),
    )


def api(usage: Usage, prices: ApiPrices) -> CostOption:
    """The cost of an API; full use means the capacity of the deployment that it replaces."""
    per_1k = tco.api_usd_per_1k_requests(prices.usd_in, prices.usd_out, usage.isl, usage.osl)
    a_year = per_1k / tco.REQUESTS * tco.SECONDS_PER_YEAR  # at one request/s
    tokens = tco.split_by_ratio(per_1k, usage.isl, usage.osl, 1.0)._replace(input=prices.usd_in, output=prices.usd_out)
    full = usage.capacity_per_s
    usd = usage.by_load(a_year * full, a_year * usage.load_per_s)
    curve = CostCurve(0.0, NO_UNITS, per_1k / tco.REQUESTS)
    return _option(usage, "api", full, usd, (curve,))._replace(
        name=prices.name,
        gpu=None,
        usd_per_million_tokens=TokenCosts(*(usage.by_load(value, value) for value in tokens)),
        date=prices.date,
        source=prices.source,
    )


def _option(
    usage: Usage, kind: str, per_s: float, usd: ByLoad, curves: tuple[CostCurve, ...], uptime: float = 1.0
) -> CostOption:
    """An option without a name, with the figures derived from its yearly cost and its rate."""
    year = usd.at_load
    each = usage.by_load(
        tco.usd_per_1k_requests(usd.full_use, per_s, uptime), tco.usd_per_1k_requests(year, usage.load_per_s, uptime)
    )
    return CostOption(
        name="", kind=kind, provider=None, contract=None, follows_load=kind == "api", gpu=usage.gpu, sku=None,
        units=None, gpus_per_unit=None, gpus=None, mean_gpus=None, usd_per_gpu_hour=None, capacity_requests_per_s=per_s,
        utilisation_at_load=None, load=usage.load, load_requests_per_s=usage.load_per_s,
        usd_per_hour=year / demand.hours_per_year(), usd_per_month=year / MONTHS_PER_YEAR, usd_per_year=year,
        usd_per_year_by_load=usd, usd_per_1k_requests=each, usd_per_million_tokens=_by_token(usage, each),
        parts_usd_per_year=None, upfront_usd=None, depreciation_years=None, date="", source="", note=None, curves=curves,
    )  # fmt: skip


def _by_token(usage: Usage, usd_per_1k: ByLoad) -> TokenCosts:
    """A cost per 1,000 requests as prices of tokens, in the chosen split."""

    def prices(usd: float, input_share: float) -> TokenPrices:
        if usage.split == BY_TIME:
            return tco.split_by_time(usd, usage.isl, usage.osl, input_share)
        return tco.split_by_ratio(usd, usage.isl, usage.osl, usage.split)

    shares = usage.input_shares
    full, here = prices(usd_per_1k.full_use, shares.full_use), prices(usd_per_1k.at_load, shares.at_load)
    return TokenCosts(*map(usage.by_load, full, here))


class BreakEven(NamedTuple):
    """The loads at which `one` costs no more than `other`, with the demand's daily profile.

    `first_requests_per_day` is the lowest such load. From `requests_per_day` on, `one` costs no more at every load. Above
    `last_requests_per_day` it always costs more. Each is None where there is no such load; `reason` says why. The first
    two are 0 where `one` costs no more at every load. `months` is the time until purchase and running cost of `one` are
    no more than the cost of `other`, at the load of the report. `months_reason` explains why `months` is None or exceeds
    the depreciation period.
    """

    one: str
    other: str
    requests_per_day: float | None
    first_requests_per_day: float | None
    last_requests_per_day: float | None
    reason: str | None
    cheaper_at_this_load: str
    months: float | None
    months_reason: str | None


def compared(options: Sequence[CostOption]) -> Iterator[BreakEven]:
    """Yield the break-even of owned servers against every other way to pay, and of rented GPUs against an API."""
    by_kind = {kind: [option for option in options if option.kind == kind] for kind in ("own", "cloud", "api")}
    for kind, other_kind in (("own", "cloud"), ("own", "api"), ("cloud", "api")):
        for one, other in product(by_kind[kind], by_kind[other_kind]):
            if other.gpu is None or other.gpu == one.gpu:
                yield _break_even(one, other)


def _break_even(one: CostOption, other: CostOption) -> BreakEven:
    """Compare two options at the load of `one`; the load differs between types of GPU."""
    found = crossing(one.curves, other.curves)
    here = np.array([one.load_requests_per_s * SECONDS_PER_DAY])
    mine, others = (float(usd_per_year(option.curves, here)[0]) for option in (one, other))
    cheaper, loads = (one if mine <= others else other), (found.stays, found.first, found.last)
    why = _reason(one, other, found)
    return BreakEven(one.name, other.name, *loads, why, cheaper.name, *_months(one, other, others))


def _reason(one: CostOption, other: CostOption, crossing: Crossing) -> str | None:
    """Why no load is the break-even: `one` never stays cheaper, or it is cheaper or equal at every load."""
    if crossing.stays == 0:
        return "cheaper or equal at every load"
    if crossing.stays is not None:
        return None
    each, others = (
        rounded_usd(tco.REQUESTS * usd) for usd in (crossing.one_usd_per_request, crossing.other_usd_per_request)
    )
    at_scale = f"with every server or instance full at the peak, {one.name} costs {each} per 1,000 requests, {other.name} {others}"
    if crossing.first is None:
        return f"never cheaper: {at_scale}"
    return f"no load from which it stays cheaper: {at_scale}; at some lower loads it costs less"


def _months(one: CostOption, other: CostOption, other_usd_per_year: float) -> tuple[float | None, str | None]:
    """The months until the purchase of `one` has paid off, or why it never does."""
    if one.parts_usd_per_year is None or one.upfront_usd is None:
        return None, "nothing is bought"
    running = one.parts_usd_per_year.running
    months = payback_months(one.upfront_usd, running, other_usd_per_year)
    if months is None:
        both = f"running {one.name} costs {rounded_usd(running)} a year, {other.name} {rounded_usd(other_usd_per_year)}"
        return None, both
    if one.depreciation_years is not None and months > one.depreciation_years * MONTHS_PER_YEAR:
        return months, f"the {one.depreciation_years:g} years that it is written off over"
    return months, None
