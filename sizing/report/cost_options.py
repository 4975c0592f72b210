"""The ways to serve a sized deployment, each with its cost: own servers, rented GPUs, an API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sizing.catalog.prices import source_of, usd_per_gpu_hour
from sizing.catalog.servers import Resolved
from sizing.formats.words import plural
from sizing.planning import cost
from sizing.planning.break_even import SECONDS_PER_DAY, CostCurve
from sizing.planning.cost import JOULES_PER_KWH, MONTHS_PER_YEAR, OwnServer, TokenPrices
from sizing.planning.size import Fit
from sizing.report.cost_service import Bundle, Service
from sizing.report.documents_cost import CostOption, Loads, Parts, TokenLoads
from sizing.specs import demand
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import Gpu, Price

NO_UNITS = float("inf")  # an API holds any load
LOWER_BOUND = "following the load is a lower bound: GPUs that come and go at once, paid by the second"


class ApiPrices(NamedTuple):
    """$ per million tokens of an API, and whose prices they are."""

    usd_in: float
    usd_out: float
    name: str
    date: str
    source: str


def own_server(server: Resolved, gpu: Gpu) -> OwnServer:
    """Return a server with its power at full load: as stated, else its GPUs' TDP times the factor of a whole server."""
    value = server.value
    gpus = int(value("gpus"))
    stated = server.numbers.get("server_power_w")
    full_w = stated.value if stated is not None else gpus * gpu.datasheet.tdp_w * value("server_factor")
    return OwnServer(
        gpus=gpus, price_usd=value("price_usd"), network_share=value("network_share"), residual_usd=value("residual_usd"),
        depreciation_years=value("depreciation_years"), interest_rate=value("interest_rate"),
        hosting_usd_per_year=value("hosting_usd_per_year"), licence_usd_per_gpu_year=value("licence_usd_per_gpu_year"),
        staff_share=value("staff_share"), staff_usd_per_year=value("staff_usd_per_year"), power_w=full_w,
        idle_share=value("idle_share"), pue=value("pue"), usd_per_kwh=value("usd_per_kwh"), uptime=value("uptime"),
    )  # fmt: skip


def own(service: Service, server: Resolved, gpu: Gpu) -> CostOption:
    """Return the cost of owned servers, as many whole ones as hold the replicas.

    Raises InputError for a server too small for a replica that needs its GPUs joined.
    """
    each = own_server(server, gpu)
    fit = Fit(service.gpus_per_replica, each.gpus)
    joined = min(service.gpus_per_replica, gpu.datasheet.node.gpus)
    if each.gpus < joined:
        raise InputError(_too_small(server, each.gpus, joined, service.gpu))
    bundle, units = Bundle.of(fit), fit.nodes(service.replicas)
    per_s = bundle.replicas * service.per_replica_per_s / bundle.units  # of one server
    busy = service.busy(units * per_s)
    full, year = cost.server_year(each, 1.0), cost.server_year(each, busy)
    idle = cost.server_year(each, 0.0).total
    # Power above idle goes with the requests: its joules per request at full use, whatever the number of servers.
    joules = each.power_w * (1 - each.idle_share) * each.pue / per_s
    curve = CostCurve(
        bundle.units * idle,
        service.requests_per_day_of(bundle.replicas) * each.uptime,
        joules / JOULES_PER_KWH * each.usd_per_kwh,
    )
    price = server.numbers["price_usd"].basis
    upfront = units * each.price_usd * (1 + each.network_share)
    return _option(
        service, f"own ({server.title})", "own", units * per_s,
        Loads(units * full.total, units * year.total), (curve,), uptime=each.uptime,
    )._replace(
        units=units, gpus_per_unit=each.gpus, gpus=units * each.gpus, sku=server.title, utilisation_at_load=busy,
        parts_usd_per_year=Parts(*(units * part for part in year)), upfront_usd=upfront, depreciation_years=each.depreciation_years, date=price.date, source=price.source,
    )  # fmt: skip


def _too_small(server: Resolved, gpus: int, joined: int, gpu: str) -> Fault:
    """Say that a server does not hold what a replica needs joined, and what would: a larger server, or part of the replica."""
    part = max(size for size in range(1, gpus + 1) if joined % size == 0)
    stated = server.numbers["gpus"]
    message = f"{server.title} has {plural(gpus, 'GPU')}, and a replica on {gpu} joins {joined}"
    allowed = f"a server of at least {joined} GPUs, or --tp {part} where that meets the limits"
    return Fault(message, stated.file, stated.line, "gpus" if stated.file else "--own", allowed)


def rented(service: Service, offers: Iterable[Price], gpu: Gpu, name: str, contract: str) -> tuple[CostOption, ...]:
    """Return the cost of rented GPUs around the clock and, where a mean load is known, following the load.

    Of a provider's offers the cheapest is taken that holds a replica in an instance; where none does, GPUs are counted as if
    those of several instances were joined, and the note says so.
    """
    needed = min(service.gpus_per_replica, gpu.datasheet.node.gpus)
    found = list(offers)
    holding = [offer for offer in found if offer.gpus >= needed]
    note = None
    if not holding:
        most = max(offer.gpus for offer in found)
        note = (
            f"{name} rents instances of at most {most}; whether the {service.gpus_per_replica} GPUs of a replica are joined there "
            "is not known"
        )
    kinds = (False,) if service.mean_per_s is None else (False, True)
    return tuple(
        _rented(
            service, holding or found, name + (", following the load" if elastic else ""), elastic=elastic
        )._replace(contract=contract, note=note)
        for elastic in kinds
    )


class Rented(NamedTuple):
    """One offer as it would hold a deployment: instances, what one of them serves, and what the year costs."""

    offer: Price
    units: int
    per_s: float
    usd: Loads
    curve: CostCurve

    @property
    def usd_per_year(self) -> float:
        """What it is chosen by: the year at the load."""
        return self.usd.at_load


def _rented(service: Service, offers: Iterable[Price], name: str, *, elastic: bool) -> CostOption:
    """Return the cost with the cheapest of offers."""
    found = [_held(service, offer, elastic=elastic) for offer in offers]
    best = min(found, key=lambda one: one.usd_per_year)
    offer, capacity_per_s = best.offer, best.units * best.per_s
    curves = tuple(one.curve for one in found)
    return _option(service, name, "cloud", capacity_per_s, best.usd, curves)._replace(
        provider=offer.provider, follows_load=elastic, sku=offer.sku, units=best.units, gpus_per_unit=offer.gpus,
        gpus=best.units * offer.gpus, usd_per_gpu_hour=offer.usd_per_gpu_hour,
        utilisation_at_load=service.busy(capacity_per_s), date=offer.date, source=source_of(offer),
    )  # fmt: skip


def _held(service: Service, offer: Price, *, elastic: bool) -> Rented:
    """Return what holding a deployment with instances of one offer costs: all of them always, or those that the load fills."""
    fit = Fit(service.gpus_per_replica, offer.gpus)
    bundle, units = Bundle.of(fit), fit.nodes(service.replicas)
    per_s = bundle.replicas * service.per_replica_per_s / bundle.units
    unit_year = offer.gpus * usd_per_gpu_hour(offer) * demand.hours_per_year()
    least, always = bundle.units * unit_year, units * unit_year
    busy = service.busy(units * per_s)
    if not elastic:
        curve = CostCurve(least, service.requests_per_day_of(bundle.replicas), 0.0)
        return Rented(offer, units, per_s, Loads(always, always), curve)
    curve = CostCurve(least, bundle.replicas * service.per_replica_per_s * SECONDS_PER_DAY, 0.0, elastic=True)
    return Rented(offer, units, per_s, Loads(always, max(least, always * busy)), curve)


def api(service: Service, prices: ApiPrices) -> CostOption:
    """Return the cost of an API; a year at full use is that of what the deployment itself would serve then."""
    per_1k = cost.api_usd_per_1k_requests(prices.usd_in, prices.usd_out, service.isl, service.osl)
    a_year = per_1k / cost.REQUESTS * cost.SECONDS_PER_YEAR  # at one request/s
    curve = CostCurve(0.0, NO_UNITS, per_1k / cost.REQUESTS)
    tokens = TokenPrices(
        prices.usd_in,
        prices.usd_out,
        cost.split_by_ratio(per_1k, service.isl, service.osl, 1.0).total,
        cost.split_by_ratio(per_1k, service.isl, service.osl, 1.0).output_bearing_all,
    )
    full = service.capacity_per_s
    option = _option(service, prices.name, "api", full, Loads(a_year * full, a_year * service.load_per_s), (curve,))
    same = TokenLoads(*(Loads(value, value) for value in tokens))
    return option._replace(gpu=None, usd_per_million_tokens=same, date=prices.date, source=prices.source)


def _option(
    service: Service,
    name: str,
    kind: str,
    per_s: float,
    usd: Loads,
    curves: tuple[CostCurve, ...],
    *,
    uptime: float = 1.0,
) -> CostOption:
    """Return an option with the figures that follow from its yearly cost and what it serves."""
    full_year, year, _ = usd
    each = Loads(
        cost.usd_per_1k_requests(full_year, per_s, uptime), cost.usd_per_1k_requests(year, service.load_per_s, uptime)
    )
    return CostOption(
        name=name, kind=kind, provider=None, contract=None, follows_load=kind == "api", gpu=service.gpu, sku=None,
        units=None, gpus_per_unit=None, gpus=None, usd_per_gpu_hour=None, capacity_requests_per_s=per_s,
        utilisation_at_load=None, load=service.load, load_requests_per_s=service.load_per_s, usd_per_hour=year / demand.hours_per_year(),
        usd_per_month=year / MONTHS_PER_YEAR, usd_per_year=year, usd_per_year_by_load=usd,
        usd_per_1k_requests=each, usd_per_million_tokens=_by_token(service, each),
        parts_usd_per_year=None, upfront_usd=None, date="", source="", note=None, depreciation_years=None, curves=curves,
    )  # fmt: skip


def _by_token(service: Service, usd_per_1k: Loads) -> TokenLoads:
    """Return a cost per 1,000 requests as prices of tokens, split as asked."""

    def prices(usd: float, input_share: float) -> TokenPrices:
        if service.split == "time":
            return cost.split_by_time(usd, service.isl, service.osl, input_share)
        return cost.split_by_ratio(usd, service.isl, service.osl, service.split)

    shares = service.input_shares
    full, here = prices(usd_per_1k.full_use, shares.full_use), prices(usd_per_1k.at_load, shares.at_load)
    return TokenLoads(*map(Loads, full, here))
