"""From sized deployments to the document of `llmsize cost`: options, break-even, energy, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from sizing.answers.answer import Answer, Outcome
from sizing.catalog.servers import Resolved
from sizing.question.demand import Demanded
from sizing.report import assumptions, estimate
from sizing.report.cost_bands import band_of_rate, bands_of
from sizing.report.cost_energy import energy_of
from sizing.report.cost_options import LOWER_BOUND, ApiPrices, api, own, rented
from sizing.report.cost_pairs import compared
from sizing.report.cost_service import Service, Split, service_of
from sizing.report.documents import Assumption
from sizing.report.documents_cost import CostOption, CostReport, Load, with_mean
from sizing.report.inputs import Asked, inputs
from sizing.report.lines import number
from sizing.specs.errors import InputError
from sizing.specs.gpu import Gpu, Price
from sizing.specs.server import NUMBERS, Server

LOADS_ASSUMED: dict[Load, str] = {
    "stated_demand": "the stated demand around the clock",
    "as_sized": "full use of the replicas sized, around the clock",
}
YEAR = "a year of 365 days"
BY_GPU = "counted by the GPU, as llmsize estimate does, though an instance may hold several"


class Rental(NamedTuple):
    """Offers of one provider and kind for one type of GPU, and what to call them.

    `source` stands for that of the offer where the price to plan with is meant, which is counted by the GPU.
    """

    name: str
    contract: str
    offers: tuple[Price, ...]
    source: str | None = None


class Priced(NamedTuple):
    """What the ways to serve cost on one type of GPU."""

    own: Resolved | None
    rentals: tuple[Rental, ...]


class GpuAnswer(NamedTuple):
    """What was found on one type of GPU, and the prices."""

    asked: Asked
    outcome: Outcome
    priced: Priced

    @property
    def best(self) -> Answer | None:
        """The answer; None where there is none, it is over the budget, or the simulation did not confirm it."""
        return self.outcome.answer


class Asking(NamedTuple):
    """Everything that the document is made from. `defaults` are those of servers; `split` None leaves the choice."""

    answers: tuple[GpuAnswer, ...]
    api: ApiPrices | None
    split: Split | None
    defaults: Server


class _Part(NamedTuple):
    """One type of GPU that has an answer, and its ways to serve."""

    answer: GpuAnswer
    best: Answer
    service: Service
    options: tuple[CostOption, ...]


def build(asking: Asking, problems: Sequence[str] = (), suggestions: Sequence[str] = ()) -> CostReport:
    """Return the document: of several types of GPU first the one whose first option costs least a request, then the others.

    `problems` say why a type of GPU is left out, `suggestions` what would help where all are. Raises InputError where owned
    servers are too small for a replica on every type.
    """
    split = _split(asking)
    several = sum(answer.best is not None for answer in asking.answers) > 1
    parts, left_out = _parts(asking.answers, split, several=several)
    parts.sort(key=lambda part: part.options[0].usd_per_1k_requests.at_load if part.options else 0.0)
    problems = [*problems, *left_out]
    first = parts[0].answer if parts else asking.answers[0]
    stated = inputs(first.asked, first.outcome.question, parts[0].best.pool.replica if parts else None)
    stated |= _inputs(asking, first)
    if not parts:
        return _unsized(first, stated, problems, suggestions)
    _, best, service, _ = parts[0]
    options = [option for part in parts for option in part.options]
    if asking.api is not None:
        options.append(api(service, asking.api))
    top = options[0]
    found = first.outcome.question.target.demanded
    document = CostReport(
        feasible=True,
        inputs=stated,
        basis=top.name,
        currency="USD",
        load=top.load,
        usd_per_hour=top.usd_per_hour,
        usd_per_month=top.usd_per_month,
        usd_per_year=top.usd_per_year,
        usd_per_1k_requests=top.usd_per_1k_requests,
        usd_per_million_tokens=top.usd_per_million_tokens,
        split=_split_in_words(asking, split),
        load_requests_per_s=service.load_per_s,
        demand=_demand(found),
        mean_requests_per_s=service.mean_per_s,
        peak_requests_per_s=found.peak_per_s if found is not None else None,
        full_use_requests_per_s=service.capacity_per_s,
        sized_to_mean=service.sized_to_load if service.mean_per_s is not None else None,
        deployments=tuple(estimate.deployment(part.best) for part in parts),
        verified=first.outcome.verified,
        options=tuple(options),
        break_even=tuple(compared(options)),
        energy=energy_of(top, service, first.priced.own, best.pool.replica.gpu_type.gpu, asking.defaults),
        bands=bands_of(
            options, {part.service.gpu: band_of_rate(part.best, part.answer.outcome.question) for part in parts}
        ),
        problems=tuple(problems),
        suggestions=(),
        assumptions=tuple(dict.fromkeys(_assumptions(asking, parts, options))),
    )
    return cast(CostReport, with_mean(document, known=service.mean_per_s is not None))


def _demand(found: Demanded | None) -> str | None:
    """Say which rate a demand states, and how; None where it states none."""
    if found is None or not found.steps:
        return None
    first = found.steps[0]
    return f"{first.what} {number(first.requests_per_s)} requests/s, {first.how}"


def _unsized(
    first: GpuAnswer, stated: dict[str, Any], problems: Sequence[str], suggestions: Sequence[str]
) -> CostReport:
    """Return the document where nothing meets the demand: every figure is null."""
    return CostReport(
        feasible=False, inputs=stated, basis=None, currency="USD", load=None, usd_per_hour=None, usd_per_month=None,
        usd_per_year=None, usd_per_1k_requests=None, usd_per_million_tokens=None, split=None, load_requests_per_s=None, demand=None, mean_requests_per_s=None,
        peak_requests_per_s=None, full_use_requests_per_s=None, sized_to_mean=None, deployments=(), verified=None, options=(),
        break_even=(), energy=None, bands={}, problems=tuple(problems), suggestions=tuple(suggestions),
        assumptions=tuple(assumptions.of_model(first.outcome.question, first.asked.notes)),
    )  # fmt: skip


def _inputs(asking: Asking, first: GpuAnswer) -> dict[str, Any]:
    priced, prices = first.priced, asking.api
    return {
        "own": {"title": priced.own.title, **{k: v.value for k, v in priced.own.numbers.items()}}
        if priced.own
        else None,
        "cloud": [{"name": one.name, "contract": one.contract} for one in priced.rentals],
        "api": {"usd_per_million_input": prices.usd_in, "usd_per_million_output": prices.usd_out} if prices else None,
        "split": asking.split,
    }


def _split(asking: Asking) -> Split:
    """Return how to split between input and output: as asked, else as the API's prices do, else by time."""
    if asking.split is not None:
        return asking.split
    prices = asking.api
    return prices.usd_out / prices.usd_in if prices is not None and prices.usd_in > 0 else "time"


def _split_in_words(asking: Asking, split: Split) -> str:
    if split == "time":
        return "by the time of prefill and of decode, as predicted"
    of = "as asked" if asking.split is not None else "as the API charges"
    return f"an output token costs {split:.4g} times an input token, {of}"


def _parts(answers: Iterable[GpuAnswer], split: Split, *, several: bool) -> tuple[list[_Part], list[str]]:
    """Return the types of GPU that have an answer, and why servers are too small for others. Raises InputError for all."""
    found, faults = [], []
    for answer in answers:
        try:
            part = _part(answer, split, several=several)
        except InputError as error:
            faults += [(answer.asked.options[0].name, fault) for fault in error.faults]
        else:
            found += [part] if part is not None else []
    if faults and not found:
        raise InputError(fault for _, fault in faults)
    return found, [f"{name} is left out: {fault.message}" for name, fault in faults]


def _part(answer: GpuAnswer, split: Split, *, several: bool) -> _Part | None:
    """Return one type of GPU with its ways to serve; of several types their names say which. None without an answer."""
    best = answer.best
    if best is None:
        return None
    service = service_of(best, answer.outcome.question, answer.asked.workload.planning, split)
    mark = f" ({service.gpu})" if several else ""
    found = _options(answer.priced, service, best.pool.replica.gpu_type.gpu)
    return _Part(answer, best, service, tuple(option._replace(name=option.name + mark) for option in found))


def _options(priced: Priced, service: Service, gpu: Gpu) -> Iterator[CostOption]:
    if priced.own is not None:
        yield own(service, priced.own, gpu)
    for rental in priced.rentals:
        for option in rented(service, rental.offers, gpu, rental.name, rental.contract):
            if rental.source is None:
                yield option
            else:
                note = f"{BY_GPU}; {LOWER_BOUND}" if option.follows_load else BY_GPU
                yield option._replace(source=rental.source, note=note)


def _assumptions(asking: Asking, parts: Iterable[_Part], options: Iterable[CostOption]) -> Iterator[Assumption]:
    yield Assumption("money", "US dollars, without taxes", "", "assumed", "prices as their sources state them")
    yield Assumption("hours", "8,760 a year, 730 a month", "", "assumed", YEAR)
    for answer, best, service, _ in parts:
        request, chosen = answer.outcome.question, best.pool.replica
        if service.load in LOADS_ASSUMED:
            why = "nothing says how far the mean is below it"
            yield Assumption("load", LOADS_ASSUMED[service.load], "", "assumed", why)
        yield from assumptions.of_model(request, answer.asked.notes)
        yield from assumptions.of_memory(request, chosen)
        yield from assumptions.of_time(request, chosen, best.pool.load.kernels)
        yield from assumptions.of_limits(request)
        unpriced = replace(chosen, gpu_type=replace(chosen.gpu_type, usd_per_gpu_hour=None))
        yield from assumptions.of_planning(request, answer.asked, unpriced)
        if answer.priced.own is not None:
            yield from _of_server(answer.priced.own)
    for option in options:
        if option.kind == "cloud":
            price = option.usd_per_gpu_hour or 0.0
            yield Assumption(f"price, {option.provider}", price, "$ per GPU-hour", "assumed", option.source)
    if asking.api is not None:
        prices = asking.api
        value = f"{prices.usd_in:g} in, {prices.usd_out:g} out"
        yield Assumption("API prices", value, "$ per million tokens", "assumed", prices.source)


def _of_server(server: Resolved) -> Iterator[Assumption]:
    """Yield each number of a server with where it is from; the factor of its power only where its power is not stated."""
    for name, stated in server.numbers.items():
        if name == "server_factor" and "server_power_w" in server.numbers:
            continue
        basis = stated.basis
        what = f"server, {name.replace('_usd', '').replace('_per_gpu_year', '').replace('_per_year', '').replace('_', ' ')}"
        yield Assumption(what, stated.value, NUMBERS[name], basis.kind, f"{basis.source} ({basis.date})")
