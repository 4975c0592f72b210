"""What a cost rests on: its assumptions, and the formula, values and source of each way to pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sizing.catalog.servers import CompleteServer
from sizing.formats.view import Assumption, Explanation, taken
from sizing.formats.words import plural
from sizing.planning.bill import Bill, Deployed
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.cost import OwnServer, ServerYear
from sizing.planning.offers import BreakEven, CostOption, own_server
from sizing.planning.usage import BY_TIME, LoadKind, Usage
from sizing.question.question import Question
from sizing.report.parts import ways
from sizing.report.parts.assumptions import REQUESTS_OF_USER, of_limits, of_model, of_planning, of_replica
from sizing.report.parts.pools import assumptions as pool_assumptions
from sizing.report.parts.screen import HABITS
from sizing.specs.demand import hours_per_year
from sizing.specs.prices import NUMBERS

LOAD, BREAK_EVEN = "Load", "Break-even"
DEFINITION, CURVES = "definition", "cost of whole servers and instances over the load"
ANNUITY = "r (1+r)^n / ((1+r)^n - 1), 1/n without interest"
PARTS = {  # the formula of each part of an owned server's year
    "capital": f"payment share * (price - residual) + interest * residual; payment share = {ANNUITY}",
    "network": "payment share * price * network share",
    "hosting": "as stated",
    "power": "full power * (idle share + (1 - idle share) * use) / 1,000 * PUE * $/kWh * 8,760 h * uptime",
    "licence": "GPUs * licence",
    "staff": "staff share * a person's cost",
}


def explanations(bill: Bill) -> Iterator[Explanation]:
    """Yield the derivation of the load, of each way to pay, and of the break-even points."""
    for deployed in bill.deployed:
        yield from _load(deployed, several=len(bill.deployed) > 1)
    usages = {deployed.usage.gpu: deployed for deployed in bill.deployed}
    for option in bill.options:
        yield from _option(option, usages.get(option.gpu or "", bill.deployed[0]))
    for pair in bill.break_even:
        yield _break_even(pair)


def _load(deployed: Deployed, *, several: bool) -> Iterator[Explanation]:
    usage, best, about = deployed.usage, deployed.best, LOAD
    if several:
        about = f"{LOAD} ({usage.gpu})"
    found = deployed.priced.outcome.question.origin.demanded
    for step in found.steps if found is not None and found.mean_per_s is not None else ():
        yield Explanation(
            f"requests/s, {step.what}", step.requests_per_s, "", "derived", step.how, "as stated", DEFINITION, about
        )
    full = f"{plural(usage.replicas, usage.unit)}, {usage.per_replica_per_s:.4g} requests/s each"
    of, how = "replicas * the most of one replica within the limits", "search over layouts"
    yield Explanation("full use", usage.capacity_per_s, "requests/s", "derived", of, full, how, about)
    share = f"load {usage.load_per_s:.4g} requests/s; sized are {best.gpus:,} x {usage.gpu}"
    over = "rate sized for, with headroom / load"
    yield Explanation("sized for", usage.sized_to_load, "times the load", "derived", over, share, DEFINITION, about)


def _option(option: CostOption, deployed: Deployed) -> Iterator[Explanation]:
    usage, server = deployed.usage, deployed.server_of(option)
    formula, values = _year(option, usage)
    yield Explanation("$ a year", option.usd_per_year, "$", "derived", formula, values, option.source, option.name)
    if option.parts_usd_per_year is not None and server is not None:
        each = own_server(server, deployed.best.decode.replica.gpu_type.gpu)
        yield from _parts(option, option.parts_usd_per_year, each)
    year, rate = option.usd_per_year_by_load, (option.capacity_requests_per_s, option.load_requests_per_s)
    up = "" if option.parts_usd_per_year is None else " * uptime"
    values = f"at the load ${year.at_load:,.0f}, {rate[1]:.4g}/s; at full use ${year.full_use:,.0f}, {rate[0]:.4g}/s: ${option.usd_per_1k_requests.full_use:.4g}"
    per_1k = f"1,000 * $ a year / (requests/s * 31,536,000 s{up})"
    usd = option.usd_per_1k_requests.at_load
    yield Explanation("$ per 1,000 requests", usd, "$", "derived", per_1k, values, DEFINITION, option.name)
    yield _per_tokens(option, usage)


def _year(option: CostOption, usage: Usage) -> tuple[str, str]:
    """The formula of a year's cost, and its values."""
    if option.kind == "own":
        held = f"{plural(option.units or 0, 'server')} of {option.gpus_per_unit:,} GPUs for {plural(usage.replicas, usage.unit)}"
        return "servers * (capital + network + hosting + power + licence + staff)", held
    if option.kind == "api":
        requests = usage.load_per_s * hours_per_year() * 3600
        values = f"{requests:,.0f} requests a year, ISL {usage.isl:,}, OSL {usage.osl:,}; {option.name}"
        return "requests a year * (ISL * $ per input token + OSL * $ per output token)", values
    price = f"${option.usd_per_gpu_hour or 0:.4g} per GPU-hour"
    if option.follows_load:
        hours = "each hour takes the whole instances that it needs"
        return (
            f"mean GPUs over the hours * $ per GPU-hour * 8,760 h; {hours}",
            f"{option.mean_gpus or 0:.4g} GPUs on average, {price}; hours: {usage.hours_said}",
        )
    held = f"{plural(option.units or 0, 'instance')} of {plural(option.gpus_per_unit or 0, 'GPU')}, {price}"
    return "instances * GPUs of an instance * $ per GPU-hour * 8,760 h", held


def _parts(option: CostOption, year: ServerYear, each: OwnServer) -> Iterator[Explanation]:
    values = {
        "capital": f"price ${each.price_usd:,.0f}, residual ${each.residual_usd:,.0f}, interest r {each.interest_rate:g}, years n {each.depreciation_years:g}",
        "network": f"price ${each.price_usd:,.0f}, network share {each.network_share:g}",
        "hosting": f"${each.hosting_usd_per_year:,.0f} a server and year",
        "power": f"full power {each.power_w:,.0f} W, idle share {each.idle_share:g}, use {option.utilisation_at_load or 0:.3g}, PUE {each.pue:g}, ${each.usd_per_kwh:g}/kWh, uptime {each.uptime:g}",
        "licence": f"{each.gpus:,} GPUs, ${each.licence_usd_per_gpu_year:,.0f} a GPU and year",
        "staff": f"staff share {each.staff_share:g}, ${each.staff_usd_per_year:,.0f} a person and year",
    }
    for name, usd in year._asdict().items():
        what, source = f"{name}, all servers", "the server's numbers, each under Inputs"
        yield Explanation(what, usd, "$ a year", "derived", PARTS[name], values[name], source, option.name)


def _per_tokens(option: CostOption, usage: Usage) -> Explanation:
    tokens = option.usd_per_million_tokens
    way = "split by the time of prefill and decode"
    if option.kind == "api":
        way = "the prices of the API"
    elif usage.split != BY_TIME:
        way = f"an output token costs {usage.split:.4g} times an input token"
    values = f"ISL {usage.isl:,}, OSL {usage.osl:,}; input ${tokens.input.at_load:.4g}, output ${tokens.output.at_load:.4g}; {way}"
    formula, usd = "$ per 1,000 requests * 1,000 / (ISL + OSL)", tokens.total.at_load
    return Explanation("$ per million tokens", usd, "$", "derived", formula, values, DEFINITION, option.name)


def _break_even(pair: BreakEven) -> Explanation:
    stays = pair.requests_per_day
    value: float | str = "no load" if stays is None else stays
    rate = "" if stays is None else f"{stays / SECONDS_PER_DAY:.3g}/s; "
    first = "" if pair.first_requests_per_day is None else f"first at {pair.first_requests_per_day:,.0f} a day; "
    either = pair.first_requests_per_day is not None and pair.first_requests_per_day < (stays or 0.0)
    below = "below it more at some loads, less at others, as whole units fill" if either else "more below it"
    values = f"{rate}{first}{pair.reason or f'{below}, less above it'}"
    what = f"{pair.one} costs no more than {pair.other} from"
    formula = "the lowest load above which the one yearly cost never exceeds the other"
    unit = "" if stays is None else "requests a day"
    return Explanation(what, value, unit, "derived", formula, values, CURVES, BREAK_EVEN)


def assumptions(bill: Bill) -> Iterator[Assumption]:
    """Yield what a bill assumes: money and hours, the load, the deployments, prices, and the numbers of a server."""
    yield taken("money", "US dollars, without taxes", "prices as their sources state them")
    yield taken("hours", "8,760 a year, 730 a month", "a year of 365 days")
    for deployed in bill.deployed:
        yield from _of_deployed(deployed)
    for option in bill.options:
        if option.kind == "cloud":
            price = option.usd_per_gpu_hour or 0.0
            yield Assumption(f"price, {option.provider}", price, "$ per GPU-hour", "assumed", option.source)
    for prices in bill.ways.api:
        value = f"{prices.usd_in:g} in, {prices.usd_out:g} out"
        yield Assumption("API prices", value, "$ per million tokens", "assumed", prices.source)


def _of_deployed(deployed: Deployed) -> Iterator[Assumption]:
    question, chosen, load = deployed.priced.outcome.question, deployed.best.decode.replica, deployed.usage.load
    if load != "mean_load":
        around = ways.LOADS[load] if load == "stated_demand" else f"{ways.LOADS[load]}, around the clock"
        yield taken("load", around, "nothing says how far the mean is below it")
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
        yield Assumption(
            "hours at the peak", demanded.habits.peak_hours, "h a day", "assumed", question.origin.defaults.source
        )
    for server in deployed.priced.prices.own:
        yield from _of_server(server, len(deployed.priced.prices.own) > 1)


def _enters(assumed: Assumption, question: Question, load: LoadKind) -> bool:
    """Whether an assumption has a part in a cost.

    The hours and the peak of users have one only in a mean load, the requests of a user only where users are counted by day.
    """
    if assumed.what in HABITS and load != "mean_load":
        return False
    stated = question.origin.workload.demand
    by_day = stated is not None and stated.kind == "daily_active_users"
    return by_day or assumed.what != REQUESTS_OF_USER


def _of_server(server: CompleteServer, several: bool) -> Iterator[Assumption]:
    """Each number of a server with its source; the power factor is left out where the power is stated."""
    for name, stated in server.numbers.items():
        if name == "server_factor" and "server_power_w" in server.numbers:
            continue
        basis, what = stated.basis, name
        for unit in ("_usd", "_per_gpu_year", "_per_year"):
            what = what.replace(unit, "")
        source = f"{basis.source} ({basis.date})"
        of = server.title if several else "server"
        yield Assumption(f"{of}, {what.replace('_', ' ')}", stated.value, NUMBERS[name], basis.kind, source)
