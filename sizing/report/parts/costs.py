"""Ways to pay, predicted or measured: a table of them, where one costs less than another, and what a bill rests on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from sizing.catalog import shelf
from sizing.catalog.servers import CompleteServer
from sizing.formats.view import Assumption, Explanation, Quantity, Table, in_words
from sizing.formats.words import number, plural, rounded_usd
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.cost import Bill, SizedType
from sizing.planning.offers import BreakEven, CostOption, own_server
from sizing.planning.tco import REQUESTS
from sizing.planning.usage import BY_TIME, LoadKind
from sizing.question.question import Question
from sizing.report.parts import quantities
from sizing.report.parts.assumptions import of_budget, of_limits, of_model, of_planning, of_replica
from sizing.report.parts.pools import assumptions as pool_assumptions
from sizing.report.parts.screen import HABITS
from sizing.report.parts.sentences import assumed, derived, said
from sizing.specs.demand import hours_per_year
from sizing.specs.prices import NUMBERS
from sizing.specs.workload import Defaults

LOAD = "Load"


def explanations(bill: Bill) -> Iterator[Explanation]:
    """Yield the derivation of the load, of each way to pay, and of the break-even points."""
    for deployed in bill.deployed:
        yield from _load(deployed, several=len(bill.deployed) > 1)
    usages = {deployed.usage.gpu: deployed for deployed in bill.deployed}
    for option in bill.options:
        yield from _option(option, usages.get(option.gpu or "", bill.deployed[0]))
    yield from map(_break_even, bill.break_even)


def _load(deployed: SizedType, *, several: bool) -> Iterator[Explanation]:
    usage, about = deployed.usage, f"{LOAD} ({deployed.usage.gpu})" if several else LOAD
    found = deployed.priced.outcome.question.origin.demanded
    for step in found.steps if found is not None and found.mean_per_s is not None else ():
        yield derived("step of load", step.requests_per_s, step, about=about)
    count = plural(usage.replicas, usage.unit)
    yield derived("full use", usage.capacity_per_s, usage, count=count, about=about)
    yield derived("sized for", usage.sized_to_load, usage, gpus=deployed.best.gpus, about=about)


def _option(option: CostOption, deployed: SizedType) -> Iterator[Explanation]:
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


def _of_deployed(deployed: SizedType) -> Iterator[Assumption]:
    question, chosen, load = deployed.priced.outcome.question, deployed.best.decode.replica, deployed.usage.load
    if load != "mean_load":
        yield assumed("load", load=LOADS[load], sized=load == "as_sized")
    yield from of_model(question, question.origin.notes)
    for pool in deployed.best.pools:
        yield from of_replica(question, pool.replica, pool.timed.kernels)
    if question.space.pools is not None:
        yield from pool_assumptions(question.space.pools.facts)
    yield from of_budget(question, deployed.best.gpus)
    yield from of_limits(question)
    unpriced = replace(chosen, gpu_type=replace(chosen.gpu_type, usd_per_gpu_hour=None))
    yield from (each for each in of_planning(question, unpriced) if _enters(each, question, load))
    demanded = question.origin.demanded
    if load == "mean_load" and demanded is not None and demanded.shape is None:
        yield assumed("hours at the peak", shelf.only(Defaults), peak_hours=demanded.habits.peak_hours)
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


LOADS: dict[LoadKind, str] = {
    "mean_load": "the mean load",
    "stated_demand": "the stated demand around the clock",
    "as_sized": "full use of the replicas sized",
}
DIGITS = 2  # of a break-even, which rests on a predicted rate
OTHER, FOLLOWING = "{other}", ", following"
FOLLOWS, PER_GPU_HOUR = "same, following the load", " per GPU-hour"


def table(options: Sequence[CostOption], path: str, *, crowded: bool = False) -> Table:
    """The cost of each way: an hour to a year at the load of the figures, and per 1,000 requests; `path` is that of `options`.

    On a `crowded` screen the note on what follows the load may be left out.
    """
    columns = (
        in_words("name", f"at {LOADS[options[0].load]}", _called),
        Quantity("gpus", "GPUs", str, _count),
        quantities.USD_PER_HOUR._replace(write=rounded_usd),
        _usd("usd_per_month", "$/month"),
        _usd("usd_per_year", "$/year"),
        _usd("usd_per_1k_requests.at_load", "$/1,000 requests"),
        _usd("usd_per_million_tokens.total.at_load", "$/M tokens"),
    )
    parts = dict.fromkeys(part for o in options if _follows(o) and o.note for part in o.note.split("; "))
    following = (f"Following the load: {'; '.join(parts)}",) if parts else ()
    notes = tuple(f"Note: {o.note}" for o in options if o.kind == "api" and o.note)
    made = Table(columns, options, path, spare=("$/h", "$/month"), notes=notes, spare_notes=following)
    return made if crowded else made._replace(notes=(*following, *notes), spare_notes=())


def _called(option: CostOption) -> str:
    """The name of a way in a table. A way that follows the load stands below the same way around the clock."""
    return FOLLOWS if _follows(option) else option.name.replace(PER_GPU_HOUR, "/GPU-hour")


def _follows(option: CostOption) -> bool:
    """Whether rented GPUs follow the load; an API always does, and has no other way beside it."""
    return option.kind == "cloud" and option.follows_load


def _usd(path: str, heading: str) -> Quantity:
    return Quantity(path, heading, rounded_usd, attrgetter(path))


def _count(option: CostOption) -> str | None:
    if option.units is None or option.gpus_per_unit is None:
        return None
    if option.follows_load:
        return f"{number(option.mean_gpus)} mean"
    return f"{option.gpus:,}" if option.gpus_per_unit == 1 else f"{option.units:,} x {option.gpus_per_unit}"


def paying(pairs: Sequence[BreakEven], options: Sequence[CostOption]) -> Iterator[str]:
    """Yield a sentence for each way to pay and the other ways that it compares with alike."""
    at_scale = {o.name: REQUESTS * min(curve.usd_per_request_at_scale for curve in o.curves) for o in options}
    alike: dict[str, list[BreakEven]] = {}
    for pair in sorted(pairs, key=lambda pair: FOLLOWING in pair.one + pair.other):
        text = f"{pair.one} {when_cheaper(pair._replace(other=OTHER), at_scale[pair.one])}"
        alike.setdefault(text, []).append(pair)
    for text, found in alike.items():
        names = [pair.other for pair in found]
        kept = [pair for pair in found if pair.other.partition(FOLLOWING)[0] not in set(names) - {pair.other}]
        others = " and ".join(pair.other for pair in kept)
        yield text.replace(OTHER, others.replace(FOLLOWING, " following")) + _paid_back(kept)


def _paid_back(pairs: Sequence[BreakEven]) -> str:
    """After how many months at this load a purchase costs no more than each other way; nothing where it is written off before."""
    months = [number(pair.months, DIGITS) for pair in pairs if pair.months is not None and pair.months_reason is None]
    return f"; paid back in {' and '.join(months)} months" if months else ""


def when_cheaper(pair: BreakEven, at_scale_usd: float) -> str:
    """Write from which load on one way to pay costs less than another.

    It costs `at_scale_usd` per 1,000 requests where all its servers are full at the peak.
    """
    first, stays, last, other = (
        pair.first_requests_per_day, pair.requests_per_day, pair.last_requests_per_day, pair.other
    )  # fmt: skip
    if stays == 0:
        return said("load at any", other=other)
    if stays is not None:
        earlier = _a_day(first) if first and first < stays else None
        return said("load from", other=other, stays=_a_day(stays), first=earlier)
    if first is None:
        return said("load never", other=other, usd=at_scale_usd)
    less = pair.cheaper_at_this_load == pair.one
    return said("load here", other=other, less=less, last=None if last is None else _a_day(last))


def _a_day(requests_per_day: float) -> str:
    """Write a load, rounded up, so that what holds from it on, or above it, does."""
    step = 10 ** (math.floor(math.log10(requests_per_day)) + 1 - DIGITS)
    up = math.ceil(requests_per_day / step - 1e-9) * step
    return f"{number(up, DIGITS)} requests a day ({number(up / SECONDS_PER_DAY, DIGITS)}/s)"
