"""`llmsize cost`: the ways to pay, their break-even, the energy, and a picture. All money is US dollars."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sizing.formats.view import (
    Assumption,
    Document,
    Explanation,
    Facts,
    Figure,
    Line,
    Mark,
    Row,
    Rows,
    Section,
    Series,
    Tick,
    filled,
    labelled,
    plain,
)
from sizing.formats.words import number, plural, rounded_usd
from sizing.planning.break_even import SECONDS_PER_DAY, usd_per_year
from sizing.planning.cost import Bill, Energy, PricedType, situation_of_rate
from sizing.planning.offers import BreakEven, CostOption, TokenCosts
from sizing.planning.usage import BY_TIME, ByLoad, LoadKind
from sizing.question.demand import Demanded
from sizing.report.parts import assumptions, costs, evidence
from sizing.report.parts.evidence import Evidence, Predicted, SureOf, is_to_measure, runs_of
from sizing.report.parts.layouts import BesideAnswer, SizedLayout, at_usual_limits, beside, deployment
from sizing.report.parts.limits import suggested
from sizing.report.parts.pools import PoolShapes, limit_and_reason, shape_words, shapes
from sizing.report.parts.question import Inputs, inputs, is_limited, is_rate, not_replayed, replica_lines
from sizing.report.parts.screen import (
    ASSUMED,
    DERIVED,
    EXPLAINS,
    assumption_lines,
    first_lines,
    less_margin,
    limits_verdict,
    next_line,
    unused,
    verdict,
    would_help,
)
from sizing.report.parts.sentences import line, said
from sizing.specs.bands import ErrorBand
from sizing.specs.units import WATTS_PER_KW

FULL_USE = "usd_per_1k_requests.full_use"
POINTS = 3_000  # along the axis of a picture: steps look like steps
LEAST, MOST, NARROW = 0.1, 4.0, 1.25  # times the loads of interest, that the axis shows; least factor between its ends
FIRST_PAIRS, MOST_PAIRS = 2, 4  # of ways to pay, that a screen keeps longest, and that it has at most
PAIR = ASSUMED + 1  # the rank of the first pairs among spare lines
NO_COST = "Infeasible: no cost, as no layout meets the demand within the limits"


class CostInputs(NamedTuple):
    """The resolved inputs of a bill: the question, and the ways to pay; servers and APIs after the first are the others."""

    of_question: Inputs
    own: dict[str, Any] | None
    cloud: tuple[dict[str, Any], ...]
    api: dict[str, float] | None
    split: str | float | None
    own_others: tuple[dict[str, Any], ...] = ()
    api_others: tuple[dict[str, float], ...] = ()


class SureCost(NamedTuple):
    """What the sure number of GPUs costs in the way that `basis` names, at the same load; `units` hold them."""

    gpus: int
    units: int | None
    usd_per_hour: float
    usd_per_month: float
    usd_per_year: float


class CostReport(NamedTuple):
    """The record of `llmsize cost`. Figures at the top are those of the option that `basis` names, null where nothing is sized.

    `load` is `mean_load`; where no mean is known `stated_demand`, served around the clock; without a demand `as_sized`, the most
    of the replicas sized. `full_use_requests_per_s` is what the deployment itself serves within its limits, before whole servers
    or instances; `sized_to_mean` is the rate sized for, headroom in it, over the mean; `demand` says which rate is stated, and
    how. `confidence` and `evidence` are of the sure GPUs of the first deployment; `sure` is their cost, null where they are no
    more than its own. Of separate pools `pools` has both in place of `deployments`. The `margin` of a stated confidence lowers
    its rates at full use. Of what is infeasible `problems` say what is in the way, and `suggestions` are single changes that
    help.
    """

    feasible: bool
    inputs: CostInputs
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
    deployments: tuple[SizedLayout, ...] = ()
    verified: bool | None = None
    options: tuple[CostOption, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    energy: Energy | None = None
    bands: dict[str, ErrorBand] = {}  # noqa: RUF012 - never changed
    problems: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    confidence: float | None = None
    evidence: Evidence | None = None
    margin: float = 1.0
    sure: SureCost | None = None
    explanations: tuple[Explanation, ...] = ()
    pools: tuple[PoolShapes, ...] = ()
    usual_limits: BesideAnswer | None = None
    schema: str = "llmsize.cost/1"


def record(bill: Bill, *, explained: bool = False) -> CostReport:
    """The record of a bill. Its figures at the top are those of the first option, which has the cheapest GPU type."""
    first = bill.deployed[0].priced if bill.deployed else bill.priced[0]
    question = first.outcome.question
    replica = bill.deployed[0].best.decode.replica if bill.deployed else None
    stated = _inputs(bill, first, inputs(question, replica))
    if not bill.deployed:
        return CostReport(
            feasible=False,
            inputs=stated,
            problems=tuple(_problems(bill)),
            suggestions=tuple(map(suggested, bill.suggestions)),
            assumptions=tuple(assumptions.of_model(question, question.origin.notes)),
        )
    predicted = tuple(_predicted(bill))
    usage, top, found = bill.deployed[0].usage, bill.options[0], question.origin.demanded
    return filled(
        CostReport,
        evidence.by_runs(first.outcome, predicted),
        bill,
        top,
        feasible=True,
        inputs=stated,
        basis=top.name,
        currency="USD",
        split=_split(bill),
        load_requests_per_s=usage.load_per_s,
        demand=_demand(found),
        mean_requests_per_s=usage.mean_per_s,
        peak_requests_per_s=found.peak_per_s if found is not None else None,
        full_use_requests_per_s=usage.capacity_per_s,
        sized_to_mean=usage.sized_to_load if usage.mean_per_s is not None else None,
        margin=bill.deployed[0].best.decode.margin,
        sure=_sure(bill),
        usual_limits=beside(bill.usual, question),
        deployments=tuple(
            deployment(each.best, each.priced.outcome) for each in bill.deployed if not each.best.separate
        ),
        pools=tuple(shapes(each.best) for each in bill.deployed if each.best.separate),
        verified=first.outcome.verified,
        bands=dict(_bands(bill)),
        problems=tuple(_problems(bill)),
        suggestions=(),
        assumptions=tuple(dict.fromkeys(costs.assumptions(bill))),
        explanations=(*costs.explanations(bill), *evidence.explanations(predicted)) if explained else (),
    )


def _sure(bill: Bill) -> SureCost | None:
    found, sure = bill.sure_option, bill.deployed[0].priced.outcome.by_runs.sure_answer
    return None if found is None or sure is None else filled(SureCost, found, gpus=sure.gpus)


def _inputs(bill: Bill, first: PricedType, of_question: Inputs) -> CostInputs:
    servers = {server.title: server.numbers for each in bill.priced for server in each.prices.own}
    own = tuple({"title": title, **{k: v.value for k, v in held.items()}} for title, held in servers.items())
    api = tuple(
        {"usd_per_million_input": each.usd_in, "usd_per_million_output": each.usd_out} for each in bill.ways.api
    )
    cloud = tuple({"name": rental.name, "contract": rental.contract} for rental in first.prices.rentals)
    first_of = next(iter(own), None), cloud, next(iter(api), None)
    return CostInputs(of_question, *first_of, bill.ways.split, own[1:], api[1:])


def _problems(bill: Bill) -> Iterator[str]:
    """Why GPU types are left out: no prices, no answer, servers too small for a replica."""
    why = "{0} is left out: {1}"
    yield from (why.format(name, fault.message) for name, fault in bill.left_out)
    yield from (f"{name} is not bought, only rented: {fault.message}" for name, fault in bill.unowned)
    for priced in bill.priced:
        if priced.best is None:
            name, (_, detail) = priced.name, limit_and_reason(priced.outcome)
            yield detail if detail and name in detail else f"{name}: {detail}"
    yield from (why.format(name, fault.message) for name, fault in bill.too_small)


def _split(bill: Bill) -> str:
    by_time, pools, api = bill.split == BY_TIME, bill.deployed[0].best.separate, len(bill.ways.api)
    how = {"by_pool": by_time and pools, "by_phase": by_time and not pools, "ratio": not by_time}
    return said("split", bill, asked=bill.ways.split is not None, several=api > 1, **how)


def _demand(demanded: Demanded | None) -> str | None:
    """The kind of rate that a demand states; None where it states none."""
    if demanded is None or not demanded.steps:
        return None
    first = demanded.steps[0]
    return f"{first.what} {number(first.requests_per_s)} requests/s, {first.how}"


def _bands(bill: Bill) -> Iterator[tuple[str, ErrorBand]]:
    """The bands of costs at full use. They follow from the band of the highest rate, which divides the cost."""
    of_rates = {deployed.usage.gpu: deployed.band for deployed in bill.deployed}
    for index, option in enumerate(bill.options):
        band = of_rates.get(option.gpu or "")
        if band is not None:
            usd = option.usd_per_1k_requests.full_use
            error = ErrorBand(usd / band.high, usd / band.low, band.n)
            if index == 0:
                yield FULL_USE, error
            yield f"options.{index}.{FULL_USE}", error


def _predicted(bill: Bill) -> Iterator[Predicted]:
    """Yield the rate that the first deployment's cost at full use divides by."""
    first = bill.deployed[0]
    situation = situation_of_rate(first.best, first.priced.outcome.question)
    if situation is not None:
        yield Predicted(FULL_USE, first.usage.capacity_per_s, "throughput", situation)


CSV = (
    "option", "kind", "provider", "contract", "gpu", "sku", "units", "gpus", "load", "requests_per_s", "usd_per_year",
    "usd_per_1k_requests", "usd_per_million_input_tokens", "usd_per_million_output_tokens", "usd_per_million_tokens",
    "capacity_requests_per_s", "utilisation_at_load", "date", "source",
)  # fmt: skip


def rows(record: CostReport) -> Rows:
    """A row for each option at full use and at the load, with the requests/s that its year is of."""
    return Rows(CSV, [tuple(map(plain, row)) for option in record.options for row in _rows(option)])


def _rows(o: CostOption) -> Iterator[Row]:
    tokens = o.usd_per_million_tokens
    loads = (("full_use", o.capacity_requests_per_s), (o.load, o.load_requests_per_s))
    for index, load in enumerate(loads):
        yield (
            o.name, o.kind, o.provider, o.contract, o.gpu, o.sku, o.units, o.gpus, *load, o.usd_per_year_by_load[index],
            o.usd_per_1k_requests[index], tokens.input[index], tokens.output[index], tokens.total[index],
            o.capacity_requests_per_s, o.utilisation_at_load, o.date, o.source,
        )  # fmt: skip


def sections(record: CostReport) -> Iterator[Section]:
    """Yield the answer, the ways to pay for it, their break-even points, and what the load is."""
    if not record.options:
        apart = "disaggregate" in record.inputs.of_question.optimisations  # for which no change is tried
        helps = () if apart else would_help(record.suggestions)
        yield Facts((*labelled("Nearest", record.problems), *helps), NO_COST)
        return
    yield Facts(tuple(_answer(record)), _headline(record))
    yield costs.table(record.options, "/options", crowded=True)
    facts = [*_pays(record), *_load(record), *_at_full_use(record)]
    facts += first_lines("Left out", record.problems, "GPU type")
    about = (*replica_lines(record.inputs.of_question), *assumption_lines(record.assumptions))
    yield Facts((*facts, *about, next_line(DERIVED, *([] if record.explanations else [EXPLAINS]))))


def _pays(record: CostReport) -> Iterator[Line]:
    """Yield the break-even of each pair of ways. Every screen has those of the first own way with the APIs, which come first.

    A screen that is too short keeps the first other pair, then what is assumed.
    """
    own = next((option.name for option in record.options if option.kind == "own"), None)
    apis = {option.name for option in record.options if option.kind == "api"}
    asked = tuple(pair for pair in record.break_even if pair.one == own and pair.other in apis)
    others = tuple(pair for pair in record.break_even if pair not in asked)
    yield from labelled("Pays", costs.paying(asked, record.options))
    label = " " if asked else "Pays"
    found = first_lines(
        label, tuple(costs.paying(others, record.options)), "pair of ways", max(1, MOST_PAIRS - len(asked))
    )
    first = 1 if asked else FIRST_PAIRS
    yield from (each._replace(spare=PAIR if at < first else ASSUMED - 1) for at, each in enumerate(found))


def _headline(record: CostReport) -> str:
    """The cheapest way, and what it costs."""
    least = min(record.options, key=lambda option: option.usd_per_1k_requests.at_load)
    count, other = len(record.options), least.note if least.kind == "api" else None
    return said("headline of cost", least, other=other, count=count if count > 1 else None)


def _held(record: CostReport) -> Iterator[Line]:
    """Yield the servers or instances of the first way, what is paid upfront, and what the sure number of GPUs takes."""
    top, sure = record.options[0], record.sure
    each = top.gpus_per_unit or 0
    if top.units is None or (each == 1 and sure is None):
        return
    called = "server" if top.kind == "own" else "instance"
    held = plural(top.units, called if each > 1 else "GPU")
    if top.upfront_usd is not None:
        held += f", {rounded_usd(top.upfront_usd)} upfront"
    if sure is not None and not is_to_measure(top.gpus or sure.gpus, sure.gpus, record.evidence):
        units = sure.units or 0
        count = f"{units:,}" if each > 1 else plural(sure.gpus, "GPU")
        more = f"{count} to be sure, {rounded_usd(sure.usd_per_year)} a year"
        held += f"; {'enough to be sure, too' if units == top.units else more}"
    yield Line(f"{top.name}: {held}")


def _sized(record: CostReport) -> tuple[int, str, str, int | None]:
    """The GPUs, their types, the shape and the sure GPUs of the first deployment, or of both its pools."""
    if not record.pools:
        run = record.deployments[0]
        return run.gpus, run.gpu, f"{run.replicas:,} x {run.sizes}", run.gpus_sure
    prefill, decode, _ = pair = record.pools[0]
    return prefill.gpus + decode.gpus, " + ".join(dict.fromkeys((prefill.gpu, decode.gpu))), shape_words(pair), None


def _answer(record: CostReport) -> Iterator[Line]:
    gpus, gpu, layout, gpus_sure = _sized(record)
    shape = f"{gpus:,} x {gpu} = {layout}"
    asked = record.inputs.of_question
    limited, by_rate = is_limited(asked.limits), is_rate(asked.demand)
    holds = limits_verdict(limited, bool(record.verified), not_replayed(asked.demand))
    paid = max(gpus, *(option.gpus or 0 for option in record.options))
    left = unused(asked.gpu_budget, gpus, later=paid > gpus)
    words = filter(None, (f"{shape}. {holds}", left))
    yield verdict("; ".join(words), good=record.verified is not False)
    yield from at_usual_limits(record.usual_limits, demanded=record.load != "as_sized")
    known = SureOf(gpus, gpus_sure, record.confidence, record.evidence, limited, by_rate, gpu)
    yield from known.lines()
    yield from _held(record)
    band = record.bands.get(FULL_USE)
    if band is not None and band.low < band.high:
        yield line("range of cost", band, runs=runs_of(record.evidence))


def _load(record: CostReport) -> Iterator[Line]:
    """Yield the load that is paid for, and what the GPUs can serve."""
    rate = f"{_rates(record)} requests/s"
    if "," not in rate:
        rate += f" = {number((record.load_requests_per_s or 0.0) * SECONDS_PER_DAY)} a day"
    if record.load == "as_sized":
        yield line("load as sized", rate=rate)
    elif record.load == "stated_demand":
        yield line("load stated", rate=rate)
    else:
        how = (record.demand or "").removeprefix(f"mean {_rates(record)} requests/s, ")
        users = record.inputs.of_question.demand.concurrent_users
        if users is not None:
            how = f"{number(users)} users are those at the peak of the active hours"
        sized = f"sized for {number(record.sized_to_mean)} times as much"
        derived = (f"mean {rate} ({how}); {sized}",) if how else None
        yield Line(f"mean {rate}; {sized}", "Load", detailed=derived)
    gpus, top = _sized(record)[0], record.options[0]
    paid, per_1k = top.gpus if top.gpus != gpus else None, top.usd_per_1k_requests
    usd = per_1k.full_use if per_1k.full_use != per_1k.at_load else None
    less = less_margin(record.full_use_requests_per_s or 0.0, record.margin)
    of = {"paid": paid, "capacity": top.capacity_requests_per_s, "usd": usd, "less": less}
    yield line("at full use", record, gpus=gpus, **of)._replace(label=" ")


def _at_full_use(record: CostReport) -> Iterator[Line]:
    """Yield what full use changes of the year of own servers, whose power follows their use."""
    top, energy = record.options[0], record.energy
    year = top.usd_per_year_by_load
    if top.kind != "own" or energy is None or year.full_use == year.at_load:
        return
    watts = energy.server_power_w
    full_kw, kw = watts.full_use / WATTS_PER_KW, watts.at_load / WATTS_PER_KW
    yield line("power at full use", full_kw=full_kw, kw=kw, usd=year.full_use)._replace(label=" ")


def _rates(record: CostReport) -> str:
    """The load; by GPU type where the loads differ, as the rate of requests in flight depends on the latency."""
    rates = {option.gpu: number(option.load_requests_per_s) for option in record.options if option.gpu is not None}
    if len(set(rates.values())) < 2:
        return number(record.load_requests_per_s)
    return ", ".join(f"{rate} ({gpu})" for gpu, rate in rates.items())


def figure(record: CostReport) -> Figure:
    """Costs against load, around the load of the report and the break-even points.

    A mark is filled where an option stays cheaper at every higher load, hollow where it is so for the first time.
    """
    here = (record.load_requests_per_s or 0.0) * SECONDS_PER_DAY
    owned = {option.name for option in record.options if option.kind == "own"}
    crossings = [
        (pair, load)
        for pair in record.break_even
        if (load := pair.requests_per_day or pair.first_requests_per_day) and (not owned or pair.one in owned)
    ]
    found = [here, *(load for _, load in crossings)]
    span = LEAST * min(found), MOST * max(*found, NARROW * min(found))
    curves = {option.name: option.curves for option in record.options}

    def over(name: str, loads: Any) -> tuple[Mark, ...]:
        return tuple(map(Mark, loads.tolist(), usd_per_year(curves[name], loads).tolist()))

    def crossing(pair: BreakEven, load: float) -> Series:
        stays = pair.requests_per_day is not None
        name = f"{pair.one} = {pair.other}:\n{'from' if stays else 'first at'} {number(load, costs.DIGITS)} a day"
        return Series(name, over(pair.one, np.array([load])), hollow=not stays, look="points")

    i = record.inputs.of_question
    return Figure(
        "requests a day, at the demand's own ratio of peak to mean",
        "US dollars a year",
        tuple(Series(name, over(name, np.geomspace(*span, POINTS)), look="line") for name in curves),
        guides=tuple(crossing(*each) for each in crossings),
        limit=Tick(here, f"{costs.LOADS[record.load or 'mean_load'].removeprefix('the ')}: {number(here)} a day"),
        logarithmic="xy",
        title=f"{i.model}, {i.weight_precision.upper()} weights, ISL {i.isl:,}, OSL {i.osl:,}, on {_sized(record)[1]}, "
        f"{i.engine_title} {i.engine_version}",
        span=span,
    )


document = partial(Document, sections=sections, rows=rows)
