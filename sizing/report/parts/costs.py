"""What a cost rests on: its assumptions, and the formula, values and source of each way to pay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from sizing.catalog.servers import CompleteServer
from sizing.formats.view import Assumption, Explanation
from sizing.formats.words import plural
from sizing.planning.bill import Bill, Deployed
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.offers import BreakEven, CostOption, own_server
from sizing.planning.usage import BY_TIME, LoadKind
from sizing.question.question import Question
from sizing.report.parts import ways
from sizing.report.parts.assumptions import of_limits, of_model, of_planning, of_replica
from sizing.report.parts.pools import assumptions as pool_assumptions
from sizing.report.parts.said import assumed, derived
from sizing.report.parts.screen import HABITS
from sizing.specs.demand import hours_per_year
from sizing.specs.prices import NUMBERS

LOAD = "Load"


def explanations(bill: Bill) -> Iterator[Explanation]:
    """Yield the derivation of the load, of each way to pay, and of the break-even points."""
    for deployed in bill.deployed:
        yield from _load(deployed, several=len(bill.deployed) > 1)
    usages = {deployed.usage.gpu: deployed for deployed in bill.deployed}
    for option in bill.options:
        yield from _option(option, usages.get(option.gpu or "", bill.deployed[0]))
    yield from map(_break_even, bill.break_even)


def _load(deployed: Deployed, *, several: bool) -> Iterator[Explanation]:
    usage, about = deployed.usage, f"{LOAD} ({deployed.usage.gpu})" if several else LOAD
    found = deployed.priced.outcome.question.origin.demanded
    for step in found.steps if found is not None and found.mean_per_s is not None else ():
        yield derived("step of load", step.requests_per_s, step, about=about)
    count = plural(usage.replicas, usage.unit)
    yield derived("full use", usage.capacity_per_s, usage, count=count, about=about)
    yield derived("sized for", usage.sized_to_load, usage, gpus=deployed.best.gpus, about=about)


def _option(option: CostOption, deployed: Deployed) -> Iterator[Explanation]:
    usage, server, owned = deployed.usage, deployed.server_of(option), option.parts_usd_per_year is not None
    requests, count = usage.load_per_s * hours_per_year() * 3600, plural(usage.replicas, usage.unit)
    way = "following" if option.kind == "cloud" and option.follows_load else f"of {option.kind}"
    own = {"count": count, "requests": requests, "usd": option.usd_per_gpu_hour or 0.0, "gpus": option.mean_gpus or 0.0}
    yield derived(f"year {way}", option.usd_per_year, option, usage, **own)
    if option.parts_usd_per_year is not None and server is not None:
        each, use = own_server(server, deployed.best.decode.replica.gpu_type.gpu), option.utilisation_at_load or 0.0
        for name, usd in option.parts_usd_per_year._asdict().items():
            yield derived(name, usd, each, option, use=use)
    yield derived("per 1k", option.usd_per_1k_requests.at_load, option, owned=owned)
    by_time, api = usage.split == BY_TIME, option.kind == "api"
    ratio = None if by_time or api else usage.split
    ways_ = {"of_api": api, "by_time": by_time and not api, "split": ratio}
    yield derived("per million tokens", option.usd_per_million_tokens.total.at_load, option, usage, **ways_)


def _break_even(pair: BreakEven) -> Explanation:
    stays, first = pair.requests_per_day, pair.first_requests_per_day
    rate = None if stays is None else stays / SECONDS_PER_DAY
    unit, either = "" if stays is None else "requests a day", first is not None and first < (stays or 0.0)
    return derived("break-even", "no load" if stays is None else stays, pair, unit=unit, rate=rate, either=either)


def assumptions(bill: Bill) -> Iterator[Assumption]:
    """Yield what a bill assumes: money and hours, the load, the deployments, prices, and the numbers of a server."""
    yield assumed("money")
    yield assumed("hours of a year")
    for deployed in bill.deployed:
        yield from _of_deployed(deployed)
    for option in bill.options:
        if option.kind == "cloud":
            yield assumed("cloud price", option, value=option.usd_per_gpu_hour or 0.0)
    yield from (assumed("API prices", prices) for prices in bill.ways.api)


def _of_deployed(deployed: Deployed) -> Iterator[Assumption]:
    question, chosen, load = deployed.priced.outcome.question, deployed.best.decode.replica, deployed.usage.load
    if load != "mean_load":
        yield assumed("load", load=ways.LOADS[load], sized=load == "as_sized")
    yield from of_model(question, question.origin.notes)
    for pool in deployed.best.pools:
        yield from of_replica(question, pool.replica, pool.load.kernels)
    if question.space.pools is not None:
        yield from pool_assumptions(question.space.pools.facts)
    yield from of_limits(question)
    unpriced = replace(chosen, gpu_type=replace(chosen.gpu_type, usd_per_gpu_hour=None))
    yield from (each for each in of_planning(question, unpriced) if _enters(each, question, load))
    demanded = question.origin.demanded
    if load == "mean_load" and demanded is not None and demanded.shape is None:
        yield assumed("hours at the peak", question.origin.defaults, peak_hours=demanded.habits.peak_hours)
    for server in deployed.priced.prices.own:
        yield from _of_server(server, len(deployed.priced.prices.own) > 1)


def _enters(entry: Assumption, question: Question, load: LoadKind) -> bool:
    """Whether an assumption has a part in a cost.

    The hours and the peak of users have one only in a mean load, the requests of a user only where users are counted by day.
    """
    if entry.what in HABITS and load != "mean_load":
        return False
    stated = question.origin.workload.demand
    by_day = stated is not None and stated.kind == "daily_active_users"
    return by_day or entry.what != HABITS[0]


def _of_server(server: CompleteServer, several: bool) -> Iterator[Assumption]:
    """Each number of a server with its source; the power factor is left out where the power is stated."""
    for name, stated in server.numbers.items():
        if name == "server_factor" and "server_power_w" in server.numbers:
            continue
        what = re.sub("_usd|_per_gpu_year|_per_year", "", name).replace("_", " ")
        of, unit = server.title if several else "server", NUMBERS[name]
        yield assumed("number of a server", stated.basis, of=of, what=what, value=stated.value, unit=unit)
