"""`llmsize cost`: options, break-even, energy, and what the figures rest on. All money is US dollars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.catalog.servers import Resolved
from sizing.formats.view import Assumption
from sizing.formats.words import number
from sizing.planning.bill import Bill, BreakEven, Deployed, Energy, Priced
from sizing.planning.offers import CostOption, TokenCosts
from sizing.planning.usage import BY_TIME, ByLoad, LoadKind
from sizing.question.demand import Demanded
from sizing.question.question import GpuType
from sizing.report import estimate
from sizing.report.documents import Deployment
from sizing.report.parts import assumptions
from sizing.report.parts.bands import ErrorBand
from sizing.report.parts.limiting import unmet
from sizing.report.parts.question import inputs
from sizing.specs.errors import Fault
from sizing.specs.server import NUMBERS

LOADS: dict[LoadKind, str] = {
    "mean_load": "the mean load",
    "stated_demand": "the stated demand around the clock",
    "as_sized": "full use of the replicas sized",
}
FULL_USE = "usd_per_1k_requests.full_use"


class CostReport(NamedTuple):
    """The record of `llmsize cost`. Figures at the top are those of the option that `basis` names, null where nothing is sized.

    `load` is `mean_load`; where no mean is known `stated_demand`, served around the clock; without a demand `as_sized`, the
    most of the replicas sized. `full_use_requests_per_s` is what the deployment itself serves within its limits, before whole
    servers or instances; `sized_to_mean` is the rate sized for, headroom in it, over the mean; `demand` says which rate is
    stated, and how. Of what is infeasible `problems` say what is in the way, and `suggestions` are single changes that help.
    """

    feasible: bool
    inputs: dict[str, Any]
    basis: str | None = None
    currency: str = "USD"
    load: LoadKind | None = None
    usd_per_hour: float | None = None
    usd_per_month: float | None = None
    usd_per_year: float | None = None
    usd_per_1k_requests: ByLoad | None = None
    usd_per_million_tokens: TokenCosts | None = None
    split: str | None = None
    load_requests_per_s: float | None = None
    demand: str | None = None
    mean_requests_per_s: float | None = None
    peak_requests_per_s: float | None = None
    full_use_requests_per_s: float | None = None
    sized_to_mean: float | None = None
    deployments: tuple[Deployment, ...] = ()
    verified: bool | None = None
    options: tuple[CostOption, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    energy: Energy | None = None
    bands: dict[str, ErrorBand] = {}  # noqa: RUF012 - never changed
    problems: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    schema: str = "llmsize.cost/1"


def record(bill: Bill) -> CostReport:
    """The record of a bill: its figures at the top are those of the first option, the cheapest type of GPU's."""
    first = bill.deployed[0].priced if bill.deployed else bill.priced[0]
    question = first.outcome.question
    replica = bill.deployed[0].best.pool.replica if bill.deployed else None
    stated = {**inputs(question, replica), **_inputs(bill, first)}
    if not bill.deployed:
        nearest = min(bill.priced, key=lambda priced: priced.shortfall)
        return CostReport(
            feasible=False,
            inputs=stated,
            problems=tuple(_problems(bill)),
            suggestions=unmet(nearest.outcome, bill.suggestions).suggestions,
            assumptions=tuple(assumptions.of_model(question, question.origin.notes)),
        )
    usage, top, found = bill.deployed[0].usage, bill.options[0], question.target.demanded
    return CostReport(
        feasible=True,
        inputs=stated,
        basis=top.name,
        load=top.load,
        usd_per_hour=top.usd_per_hour,
        usd_per_month=top.usd_per_month,
        usd_per_year=top.usd_per_year,
        usd_per_1k_requests=top.usd_per_1k_requests,
        usd_per_million_tokens=top.usd_per_million_tokens,
        split=_split(bill),
        load_requests_per_s=usage.load_per_s,
        demand=_demand(found),
        mean_requests_per_s=usage.mean_per_s,
        peak_requests_per_s=found.peak_per_s if found is not None else None,
        full_use_requests_per_s=usage.capacity_per_s,
        sized_to_mean=usage.sized_to_load if usage.mean_per_s is not None else None,
        deployments=tuple(estimate.deployment(deployed.best) for deployed in bill.deployed),
        verified=first.outcome.verified,
        options=bill.options,
        break_even=bill.break_even,
        energy=bill.energy,
        bands=dict(_bands(bill)),
        problems=tuple(_problems(bill)),
        assumptions=tuple(dict.fromkeys(_assumptions(bill))),
    )


def _inputs(bill: Bill, first: Priced) -> dict[str, Any]:
    server, prices = first.prices.own, bill.ways.api
    return {
        "own": {"title": server.title, **{k: v.value for k, v in server.numbers.items()}} if server else None,
        "cloud": [{"name": rental.name, "contract": rental.contract} for rental in first.prices.rentals],
        "api": {"usd_per_million_input": prices.usd_in, "usd_per_million_output": prices.usd_out} if prices else None,
        "split": bill.ways.split,
    }


def _problems(bill: Bill) -> Iterator[str]:
    """Why types of GPU are left out: no prices, no answer, servers too small for a replica."""
    yield from _left_out(bill.left_out)
    for priced in bill.priced:
        if priced.best is None:
            name, detail = priced.gpu_type.name, unmet(priced.outcome, ()).detail
            yield detail if name in detail else f"{name}: {detail}"
    yield from _left_out(bill.too_small)


def _left_out(faults: Iterable[tuple[GpuType, Fault]]) -> Iterator[str]:
    yield from (f"{gpu_type.name} is left out: {fault.message}" for gpu_type, fault in faults)


def _split(bill: Bill) -> str:
    if bill.split == BY_TIME:
        return "by the time of prefill and of decode, as predicted"
    source = "as asked" if bill.ways.split is not None else "as the API charges"
    return f"an output token costs {bill.split:.4g} times an input token, {source}"


def _demand(found: Demanded | None) -> str | None:
    """Which rate a demand states, and how; None where it states none."""
    if found is None or not found.steps:
        return None
    first = found.steps[0]
    return f"{first.what} {number(first.requests_per_s)} requests/s, {first.how}"


def _bands(bill: Bill) -> Iterator[tuple[str, ErrorBand]]:
    """The bands of costs at full use, which are as unsure as the highest rate that they are divided by."""
    of_rates = {deployed.usage.gpu: deployed.band for deployed in bill.deployed}
    for index, option in enumerate(bill.options):
        band = of_rates.get(option.gpu or "")
        if band is not None:
            usd = option.usd_per_1k_requests.full_use
            error = ErrorBand(usd / band.high, usd / band.low, band.n)
            if index == 0:
                yield FULL_USE, error
            yield f"options.{index}.{FULL_USE}", error


def _assumptions(bill: Bill) -> Iterator[Assumption]:
    yield Assumption("money", "US dollars, without taxes", "", "assumed", "prices as their sources state them")
    yield Assumption("hours", "8,760 a year, 730 a month", "", "assumed", "a year of 365 days")
    for deployed in bill.deployed:
        yield from _of_deployed(deployed)
    for option in bill.options:
        if option.kind == "cloud":
            price = option.usd_per_gpu_hour or 0.0
            yield Assumption(f"price, {option.provider}", price, "$ per GPU-hour", "assumed", option.source)
    prices = bill.ways.api
    if prices is not None:
        value = f"{prices.usd_in:g} in, {prices.usd_out:g} out"
        yield Assumption("API prices", value, "$ per million tokens", "assumed", prices.source)


def _of_deployed(deployed: Deployed) -> Iterator[Assumption]:
    question, chosen, load = deployed.priced.outcome.question, deployed.best.pool.replica, deployed.usage.load
    if load != "mean_load":
        around = LOADS[load] if load == "stated_demand" else f"{LOADS[load]}, around the clock"
        yield Assumption("load", around, "", "assumed", "nothing says how far the mean is below it")
    yield from assumptions.of_model(question, question.origin.notes)
    yield from assumptions.of_memory(question, chosen)
    yield from assumptions.of_time(question, chosen, deployed.best.pool.load.kernels)
    yield from assumptions.of_limits(question)
    unpriced = replace(chosen, gpu_type=replace(chosen.gpu_type, usd_per_gpu_hour=None))
    yield from assumptions.of_planning(question, unpriced)
    if deployed.priced.prices.own is not None:
        yield from _of_server(deployed.priced.prices.own)


def _of_server(server: Resolved) -> Iterator[Assumption]:
    """Each number of a server with where it is from; the factor of its power only where its power is not stated."""
    for name, stated in server.numbers.items():
        if name == "server_factor" and "server_power_w" in server.numbers:
            continue
        basis, what = stated.basis, name
        for unit in ("_usd", "_per_gpu_year", "_per_year"):
            what = what.replace(unit, "")
        source = f"{basis.source} ({basis.date})"
        yield Assumption(f"server, {what.replace('_', ' ')}", stated.value, NUMBERS[name], basis.kind, source)
