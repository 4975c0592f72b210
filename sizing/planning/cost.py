"""The cost of a demand: every way to pay on each type of GPU, and the energy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from sizing.answers.advice import nearest_miss
from sizing.answers.answer import Answer, OtherAnswer, Outcome, Suggestion
from sizing.answers.confidence import likely
from sizing.answers.estimate import answer, at_usual_limits, suggestions
from sizing.catalog import servers, shelf
from sizing.catalog.prices import ON_DEMAND, offers_of, typical_offer
from sizing.catalog.servers import CompleteServer, OwnFile
from sizing.model.extras import NOTHING
from sizing.planning.offers import ApiPrices, BreakEven, CostOption, api, compared, own, own_server, rented
from sizing.planning.tco import power_w
from sizing.planning.usage import BY_TIME, ByLoad, Split, Usage, usage_of
from sizing.question.question import Question
from sizing.specs import demand
from sizing.specs.bands import Band, Bands, Situation, find, region
from sizing.specs.errors import Fault, InputError, not_allowed, raise_any
from sizing.specs.gpu import Gpu, GpuType, Price
from sizing.specs.units import WATTS_PER_KW, kwh_per_million_tokens

K = TypeVar("K")
V = TypeVar("V")

BY_GPU = "GPUs are rented one by one, as llmsize estimate counts them"


class Ways(NamedTuple):
    """The ways to pay that `cost` compares: owned servers, rented GPUs by (provider, kind), and APIs, each any number.

    `at_price` adds rented GPUs at the planning price of their type, which is also there where no provider is named. With `split`
    None, the cost is split by the first API's prices, or by time where no API is named.
    """

    own: tuple[OwnFile, ...] = ()
    clouds: tuple[tuple[str, str], ...] = ()
    api: tuple[ApiPrices, ...] = ()
    split: Split | None = None
    at_price: bool = False


def check_ways(ways: Ways) -> None:
    """Raise InputError with every field of `ways` that has a wrong type or value."""
    if not isinstance(ways, Ways):
        allowed = (
            "Ways(own=(load_server('hgx-h100'),), clouds=(('aws', 'on-demand'),), api=(ApiPrices(...),)), each optional"
        )
        raise InputError(not_allowed("ways", ways, allowed))
    faults = [
        not_allowed("clouds", pair, "(provider, kind), as ('aws', 'on-demand')")
        for pair in ways.clouds
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(word, str) for word in pair))
    ]
    for name, kind in (("own", OwnFile), ("api", ApiPrices)):
        values = getattr(ways, name)
        if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
            faults.append(not_allowed(name, values, f"a tuple of {kind.__name__}"))
    split = ways.split
    if split is not None and split != BY_TIME and (isinstance(split, str) or not 0 <= split < float("inf")):
        faults.append(not_allowed("split", split, f"{BY_TIME}, or a number from 0 on"))
    raise_any(faults)


class Rental(NamedTuple):
    """Offers of one provider and kind for one type of GPU, and their title.

    `source` is set only for the planning price, which counts single GPUs. It replaces the source of the offer.
    """

    name: str
    contract: str
    offers: tuple[Price, ...]
    source: str | None = None


class Prices(NamedTuple):
    """The prices of own servers and rented GPUs of one type."""

    own: tuple[CompleteServer, ...]
    rentals: tuple[Rental, ...]


class PricedType(NamedTuple):
    """One type of GPU, or of separate pools the type of each: its prices, and the outcome of its search."""

    question: Question
    outcome: Outcome
    prices: Prices

    @property
    def name(self) -> str:
        """The name of the type, or of both types."""
        return _name(self.question)

    @property
    def best(self) -> Answer | None:
        """The answer; None without one, over the budget, or where the simulation did not confirm it."""
        return self.outcome.answer

    @property
    def shortfall(self) -> float:
        """How far the type is from an answer; 0 for an answer that only the budget or the simulation rejected."""
        miss = None if self.outcome.best is not None else nearest_miss(self.outcome)
        return 0.0 if miss is None else miss.shortfall


class SizedType(NamedTuple):
    """One type of GPU with an answer: its usage, its ways to pay, and the error band of its rate."""

    priced: PricedType
    best: Answer
    usage: Usage
    options: tuple[CostOption, ...]
    band: Band | None

    def server_of(self, option: CostOption) -> CompleteServer | None:
        """The owned server of a way to pay; None for the others."""
        return next((each for each in self.priced.prices.own if (option.kind, option.sku) == ("own", each.title)), None)


class Energy(NamedTuple):
    """The metered energy of one option's servers, including PUE."""

    of: str
    server_power_w: ByLoad
    pue: float
    kwh_per_year: ByLoad
    kwh_per_million_output_tokens: ByLoad
    kwh_per_million_tokens: ByLoad
    source: str


class Bill(NamedTuple):
    """The result of `cost`."""

    ways: Ways
    split: Split
    priced: tuple[PricedType, ...]  # all that were searched
    left_out: tuple[tuple[str, Fault], ...]  # types without the requested prices
    too_small: tuple[tuple[str, Fault], ...]  # types whose servers are too small for a replica
    deployed: tuple[SizedType, ...]  # types with an answer, cheapest first
    options: tuple[CostOption, ...]  # the ways to pay for these
    break_even: tuple[BreakEven, ...]
    energy: Energy | None
    suggestions: tuple[Suggestion, ...]  # what would help where no type has an answer
    sure_option: CostOption | None = None  # the first one of the sure number of GPUs, if that is more
    usual: OtherAnswer | None = None  # at usual limits, where none is set
    unowned: tuple[tuple[str, Fault], ...] = ()  # types that the servers lack, which are only rented


RENTED = Ways()  # at the planning price


def cost(question: Question, ways: Ways = RENTED, *, simulated: bool = True) -> Bill:
    """Size each type of GPU separately and price it in every way; types without the requested prices are left out.

    Without ways GPUs are rented at their planning price, as `llmsize cost` does without options.
    Separate pools are priced together, for each type of GPU or the types that they name. Raises InputError where no type has the
    requested prices, and where the owned servers are too small for a replica on every type.

    >>> from sizing import Ways, ask
    >>> bill = cost(ask("chat", gpu="h100-sxm", rps=2), Ways(clouds=(("lambda", "on-demand"),)), simulated=False)
    >>> [option.name for option in bill.options]
    ['Lambda', 'Lambda, following the load']
    """
    check_ways(ways)
    held = {gpu_type.id: gpu_type.gpu for alone in _alone(question) for gpu_type in _types(alone)}
    for file in ways.own:
        if file.spec.gpu not in (None, *held):
            servers.complete_server(file, *next(iter(held.items())))
    prices, unpriced = _each(_alone(question), partial(_prices, ways))
    if not prices:
        raise unpriced[0][1]
    unowned: list[tuple[Question, InputError]] = []
    if ways.own and unpriced:  # rented, the sized answer of another type may cost less than an owned server
        unowned = unpriced
        rentable, unpriced = _each([alone for alone, _ in unpriced], partial(_prices, ways._replace(own=())))
        prices += rentable
        unowned = [each for each in unowned if any(each[0] is alone for alone, _ in rentable)]
    priced = [PricedType(alone, answer(alone, simulated=simulated), found) for alone, found in prices]
    feasible = [each for each in priced if each.best is not None]
    helps: tuple[Suggestion, ...] = ()
    if not feasible and question.space.pools is None:
        nearest = min(priced, key=lambda each: each.shortfall)
        helps = suggestions(nearest.outcome, simulated=simulated)
    split = split_of(ways)
    sized, too_small = _each(feasible, partial(_deployed, split, len(feasible) > 1))
    if too_small and not sized:
        raise InputError(fault for _, error in too_small for fault in error.faults)
    deployed = sorted((each for _, each in sized), key=_usd_per_1k)
    options = [option for each in deployed for option in each.options]
    if deployed:
        model = deployed[0].priced.outcome.question.service.model.name
        options += [api(deployed[0].usage, each)._replace(note=each.note(model)) for each in ways.api]
    return Bill(
        ways=ways,
        split=split,
        priced=tuple(priced),
        left_out=_faults(unpriced),
        unowned=_faults(unowned),
        too_small=_faults([(each.question, error) for each, error in too_small]),
        deployed=tuple(deployed),
        options=tuple(options),
        break_even=tuple(compared(options)),
        energy=_energy(options[0], deployed[0]) if options else None,
        suggestions=helps,
        sure_option=_sure_option(split, deployed[0]) if deployed else None,
        usual=at_usual_limits(deployed[0].priced.outcome, question) if deployed else None,
    )


def _alone(question: Question) -> list[Question]:
    """The question for each type of GPU, or for each pair of types of separate pools."""
    space = question.space
    if space.pools is None:
        return [question.with_(gpu_types=(gpu_type,)) for gpu_type in space.gpu_types]
    return [
        question.with_(gpu_types=pools.prefill.gpu_types[:1], pools=pools)
        for pools in space.pools.by_type(space.gpu_types)
    ]


def _types(question: Question) -> tuple[GpuType, ...]:
    """The type of GPU of a question about one, or the two types of its separate pools."""
    if (pools := question.space.pools) is None:
        return question.space.gpu_types
    return tuple({each.id: each for each in (pools.prefill.gpu_types[0], pools.decode.gpu_types[0])}.values())


def _name(question: Question) -> str:
    return " + ".join(each.name for each in _types(question))


def _faults(failed: Iterable[tuple[Question, InputError]]) -> tuple[tuple[str, Fault], ...]:
    return tuple((_name(alone), fault) for alone, error in failed for fault in error.faults)


def _prices(ways: Ways, question: Question) -> Prices:
    """The prices for the GPUs of a question. Pools of two types have planning prices alone, which are known with their sizes.

    Raises InputError as `prices_of` does, and for servers or instances for pools of two types.
    """
    one, *others = _types(question)
    if not others:
        return prices_of(ways, one)
    wrong = [field for field, asked in (("--own", ways.own), ("--cloud", ways.clouds)) if asked]
    what, allowed = "has one type of GPU, and these pools have two", "pools of one type, or rented GPUs by --price"
    raise_any([Fault(what, field=field, allowed=allowed) for field in wrong])
    for each in (one, *others):
        prices_of(Ways(), each)
    return Prices((), ())


def _each(keys: Iterable[K], read: Callable[[K], V]) -> tuple[list[tuple[K, V]], list[tuple[K, InputError]]]:
    """The results of `read` by key, and the errors by key where `read` raised InputError."""
    found, failed = list[tuple[K, V]](), list[tuple[K, InputError]]()
    for key in keys:
        try:
            found.append((key, read(key)))
        except InputError as error:
            failed.append((key, error))
    return found, failed


def _usd_per_1k(deployed: SizedType) -> float:
    return min((option.usd_per_1k_requests.at_load for option in deployed.options), default=0.0)


def split_of(ways: Ways) -> Split:
    """The split between input and output: as stated, else by the API's prices, else by time."""
    if ways.split is not None:
        return ways.split
    return ways.api[0].usd_out / ways.api[0].usd_in if ways.api and ways.api[0].usd_in > 0 else BY_TIME


def prices_of(ways: Ways, gpu_type: GpuType) -> Prices:
    """The prices for one type of GPU; its planning price where `ways` names no provider. Of several servers those that hold it count.

    Raises InputError for an unknown provider, a server with other GPUs, and a type without any price.
    """
    mine = [file for file in ways.own if file.spec.gpu in (None, gpu_type.id)]
    found, wrong = _each(mine or ways.own, lambda file: servers.complete_server(file, gpu_type.id, gpu_type.gpu))
    offered, unknown = _each(ways.clouds, partial(_rental, gpu_type))
    if wrong or unknown:
        raise InputError(fault for _, error in (*wrong, *unknown) for fault in error.faults)
    rentals = tuple(rental for _, rental in offered)
    if ways.at_price or (not rentals and gpu_type.usd_per_gpu_hour is not None):
        rentals = (_at_price(gpu_type), *rentals)
    if not found and not rentals and not ways.api:
        message = f"no price of {gpu_type.gpu.name} is known"
        raise InputError(message, field="--gpu", remedy="use another type, or with --price, --own or --cloud")
    return Prices(tuple(server for _, server in found), rentals)


def _rental(gpu_type: GpuType, asked: tuple[str, str]) -> Rental:
    found = offers_of(gpu_type.gpu, *asked)
    provider, kind = found[0].provider, found[0].kind
    return Rental(provider if kind == ON_DEMAND else f"{provider} {kind}", kind, found)


# An offer at the user's own price, which has no date.
SAID = "as asked"
AS_ASKED = Price(
    provider=SAID, date=SAID, source=SAID, sku="GPU", kind="on-demand", gpus=1, purchase_usd=None, confidence=None
)


def _at_price(gpu_type: GpuType) -> Rental:
    """The planning price, per GPU as in `llmsize estimate`."""
    usd, typical = gpu_type.usd_per_gpu_hour, typical_offer(gpu_type.gpu)
    if typical is None or typical.usd_per_gpu_hour != usd:
        typical = AS_ASKED
    offer = typical.model_copy(update={"gpus": 1, "usd_per_gpu_hour": usd})
    return Rental(f"rented at ${usd:g} per GPU-hour", ON_DEMAND, (offer,), gpu_type.price_source)


def _at_both_prices(best: Answer) -> Rental:
    """The planning prices of pools of two types, as their mean by GPU."""
    types = [pool.replica.gpu_type for pool in best.pools]
    usd = " and ".join(f"${each.usd_per_gpu_hour:g}" for each in types)
    source = " ; ".join(each.price_source or "" for each in types)
    offer = AS_ASKED.model_copy(update={"usd_per_gpu_hour": (best.usd_per_hour or 0.0) / best.gpus})
    return Rental(f"rented at {usd} per GPU-hour", ON_DEMAND, (offer,), source)


def _deployed(split: Split, several: bool, priced: PricedType) -> SizedType:
    """One type of GPU with its ways to pay; with `several` types the names include the type."""
    best, question = priced.best, priced.outcome.question
    assert best is not None
    usage = usage_of(best, question, question.origin.workload.planning, split)
    mark, prices = f" ({usage.gpu})" if several else "", priced.prices
    if len(_types(question)) > 1:
        prices = Prices((), (_at_both_prices(best),))
    options = tuple(
        option._replace(name=option.name + mark)
        for option in options_of_type(prices, usage, best.decode.replica.gpu_type.gpu)
    )
    return SizedType(priced, best, usage, options, _band(best, priced.outcome))


def _sure_option(split: Split, deployed: SizedType) -> CostOption | None:
    """The first way to pay with the sure number of GPUs; None where that is unknown, or no more than the answer's."""
    outcome, prices = deployed.priced.outcome, deployed.priced.prices
    sure, question = outcome.by_runs.sure_answer, outcome.question
    if sure is None or sure.gpus <= deployed.best.gpus:
        return None
    usage = usage_of(sure, question, question.origin.workload.planning, split)
    try:
        return next(options_of_type(prices, usage, sure.pool.replica.gpu_type.gpu), None)
    except InputError:  # servers too small for the replicas of the sure size
        return None


def options_of_type(prices: Prices, usage: Usage, gpu: Gpu) -> Iterator[CostOption]:
    """Yield the ways to pay for a usage of one type of GPU."""
    for server in prices.own:
        yield own(usage, server, gpu)
    for rental in prices.rentals:
        by_gpu = rental.source is not None
        for option in rented(usage, rental.offers, gpu, rental.name, rental.contract, by_gpu=by_gpu):
            if rental.source is None:
                yield option
                continue
            note = BY_GPU if option.note is None else f"{BY_GPU}; {option.note}"
            yield option._replace(source=rental.source, note=note)


def _band(best: Answer, outcome: Outcome) -> Band | None:
    """The error band of an answer's highest rate, by the runs of the sure count where these are known.

    None where the rate has no situation, or nothing of its kind was measured.
    """
    question = outcome.question
    by_runs = next((band for band in likely(best, question) if band.metric == "throughput"), None)
    if by_runs is not None or (situation := situation_of_rate(best, question)) is None:
        return by_runs
    return find(shelf.only(Bands).bands, "throughput", situation)


def situation_of_rate(best: Answer, question: Question) -> Situation | None:
    """The class of an answer's highest rate; None where the rate already includes a margin.

    Also None with optimisations and for pooled models: the published runs generated text without optimisations.
    """
    if best.separate or best.pool.margin != 1.0 or question.service.extras != NOTHING or question.service.model.pooled:
        return None
    heaviest = best.pool.capacity.amount if question.target.concurrency is not None else best.pool.capacity.decoding
    return question.service.situation(best.pool.replica.gpu_type.gpu, region(heaviest))


def _energy(option: CostOption, deployed: SizedType) -> Energy | None:
    """The energy of an option at full use and at the load; None for an API, whose servers are unknown.

    Rented servers are assumed to draw the TDP of their GPUs times the default server's factor.
    """
    if option.gpus is None or option.units is None:
        return None
    usage, server, gpu = deployed.usage, deployed.server_of(option), deployed.best.decode.replica.gpu_type.gpu
    if server is not None:
        stated = server.numbers.get("server_power_w")
        idle, pue, uptime = (server.value(name) for name in ("idle_share", "pue", "uptime"))
        full_w = option.units * own_server(server, gpu).power_w
        source = (stated or server.numbers["server_factor"]).basis.source
    else:
        defaults = servers.load_defaults()
        found = (defaults.server_factor, defaults.idle_share, defaults.pue, defaults.uptime)
        factor, idle, pue, uptime = (1.0 if value is None else value for value in found)
        full_w = option.gpus * deployed.best.power_w / deployed.best.gpus * factor
        source = defaults.sources["server_factor"].source

    def at(utilisation: float, rate: float) -> tuple[float, float, float, float]:
        """Power in W, energy a year in kWh, and kWh per million output tokens and all tokens."""
        drawn = power_w(full_w, idle, utilisation)
        year = drawn * pue / WATTS_PER_KW * demand.hours_per_year() * uptime
        output = kwh_per_million_tokens(drawn * pue, rate * usage.osl)
        return drawn, year, output, kwh_per_million_tokens(drawn * pue, rate * (usage.isl + usage.osl))

    full = at(1.0, option.capacity_requests_per_s)
    here = at(usage.busy(option.capacity_requests_per_s), usage.load_per_s)
    power, year, output, total = map(usage.by_load, full, here)
    return Energy(option.name, power, pue, year, output, total, source)
