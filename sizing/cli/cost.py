"""`llmsize cost`: the cost of a service with own servers, rented GPUs or an API, and the loads at which each pays."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sizing.cli.options import (
    COST_OPTIONS,
    EXPLAIN_OPTIONS,
    FORMAT_OPTIONS,
    MEASURED_OPTIONS,
    VERIFY_OPTIONS,
    WorkloadName,
    takes,
)
from sizing.question.options import QUESTION_OPTIONS, GivenOptions
from sizing.specs.errors import Fault, InputError
from sizing.specs.units import comma_separated

if TYPE_CHECKING:
    from sizing.planning.cost import Ways
    from sizing.planning.offers import ApiPrices
    from sizing.planning.usage import Split
    from sizing.question.question import Question

LEAST_USD_PER_MILLION, MOST_USD_PER_MILLION = 1e-4, 100_000.0
LEAST_RATIO, MOST_RATIO = 1e-3, 1_000.0
# Numbers have ASCII digits and no separators.
NUMBER = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*\Z")


class WayOptions(NamedTuple):
    """The ways to pay."""

    own: str | None
    cloud: str | None
    api: str | None
    split: str | None


@takes((*MEASURED_OPTIONS, *QUESTION_OPTIONS, *COST_OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS, *EXPLAIN_OPTIONS))
def command(
    given: GivenOptions,
    measured: str | None,
    plot: str | None,
    no_verify: bool,
    explain: bool,
    workload: WorkloadName = None,
) -> int:
    """Compare the cost of own servers, rented GPUs and an API.

    For each it shows $ a year, per 1,000 requests and per million tokens, and the load from which it is cheaper.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.cli.output import chosen_format, write, write_picture
    from sizing.cli.reader import picture_of
    from sizing.planning.cost import cost
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.options import check_rules, of_kind, options_of
    from sizing.report.cost import document, figure, record
    from sizing.specs.errors import Part

    output, ways = Part(lambda: chosen_format(given)), Part(lambda: ways_of(given))
    picture = Part(lambda: picture_of(plot))
    if measured is not None:
        from sizing.cli.measured import PAID, Additions, print_from
        from sizing.specs.errors import check

        check(output, picture, ways)
        return print_from(measured, workload, given, Additions(PAID, ways=ways.value))
    options = options_of(given)
    asked = question_of(workload, options, output, picture, ways, pooled=True)
    check_rules(of_kind(asked, rows=False), given)
    check_gpu(asked)
    bill = cost(with_confidence(asked, options), ways.value, simulated=not no_verify)
    found = record(bill, explained=explain)
    write(document(found), output.value)
    nothing = "--plot: nothing is drawn, as nothing meets the demand"
    write_picture(picture.value, lambda: [figure(found)] if found.options else [], nothing)
    return 0 if found.feasible else 1


def check_gpu(question: Question) -> None:
    """Raise InputError for a question without a GPU type."""
    if not question.origin.workload.gpu:
        allowed = "a name (llmsize gpus), or several"
        raise InputError("is needed: money is of one type of GPU", field="--gpu", allowed=allowed)


def ways_of(given: GivenOptions) -> Ways:
    """Read the options for ways to pay. Raises InputError with all faults."""
    from sizing.catalog.servers import load_server
    from sizing.planning.cost import Ways
    from sizing.specs.errors import Part, check

    stated = given.read(WayOptions)
    named = [] if stated.own is None else list(dict.fromkeys(comma_separated(stated.own) or [stated.own]))
    own = Part(lambda: tuple(map(load_server, named)), _of_own)
    clouds = Part(lambda: _clouds(stated.cloud))
    api, split = Part(lambda: _apis(stated.api)), Part(lambda: _split(stated.split))
    check(own, clouds, api, split)
    at_price = given.any_of(("price", "provider"))
    return Ways(own.value, clouds.value, api.value, split.value, at_price=at_price)


def _of_own(fault: Fault) -> Fault:
    """Add the option to a fault without a place in a file, and to an unknown name those that are known."""
    from sizing.catalog.servers import SHELF

    if fault.message.startswith("unknown server"):
        known = f"{', '.join(SHELF.ids)}, or a file of your own with gpu and price_usd (docs/plan-and-cost.md)"
        fault = replace(fault, allowed=known)
    return replace(fault, field=fault.field or "--own") if fault.file is None or fault.line is None else fault


def _clouds(text: str | None) -> tuple[tuple[str, str], ...]:
    """(provider, kind) of each `provider` or `provider:kind`; the default kind is on demand."""
    from sizing.catalog.prices import provider_and_kind

    if text is None:
        return ()
    found = [provider_and_kind(part) for part in comma_separated(text)]
    if not found or any(not provider for provider, _ in found):
        raise InputError("names no provider", field="--cloud", allowed="aws,lambda, or with a kind aws:spot")
    return tuple(dict.fromkeys(found))


def _apis(text: str | None) -> tuple[ApiPrices, ...]:
    """Each API of a list with commas: PROVIDER:MODEL, or two prices."""
    parts = iter(part.strip() for part in (text or "").split(","))
    found = [_listed(part) if ":" in part else _stated(part, next(parts, None)) for part in parts if text is not None]
    return tuple(dict.fromkeys(found))


def _listed(text: str) -> ApiPrices:
    from sizing.catalog.prices import age_words, api_offer, today
    from sizing.planning.offers import ApiPrices

    offer = api_offer(*(part.strip() for part in text.split(":", 1)), field="--api")
    of, age = offer.model, age_words(offer.date, today())
    sure = ", ".join(part for part in (f"confidence {of.confidence}", of.note, age) if part)
    title = f"{offer.provider} {of.model} at ${of.input:g} / ${of.output:g}"
    doubt = (
        f"the price of {offer.provider} is of low confidence: {of.note}" if of.confidence == "low" and of.note else None
    )
    return ApiPrices(of.input, of.output, title, offer.date, f"{offer.source} ({sure})", of.model, doubt)


def _stated(first: str, second: str | None) -> ApiPrices:
    from sizing.planning.offers import ApiPrices

    text = first if second is None else f"{first},{second}"
    if not any(letter.isdigit() for letter in text):
        allowed = "PROVIDER:MODEL, as deepseek:deepseek-v3.2 (llmsize prices)"
        raise InputError(f"{text!r} names no model", field="--api", allowed=allowed)
    least, most = LEAST_USD_PER_MILLION, MOST_USD_PER_MILLION
    usd_in, usd_out = (_number(part or "", least, most) for part in (first, second))
    if not usd_in + usd_out > 0:
        allowed = f"IN,OUT as 1.0,3.0: $ per million tokens, or PROVIDER:MODEL (llmsize prices), each from {least:g} to {most:,.0f}, or one of them 0"
        raise InputError(f"{text!r} is not two prices", field="--api", allowed=allowed)
    return ApiPrices(usd_in, usd_out, f"API at ${usd_in:g} / ${usd_out:g}", "as asked", "as asked")


def _split(text: str | None) -> Split | None:
    from sizing.planning.usage import BY_TIME

    if text is None:
        return None
    if text.strip().lower() == BY_TIME:
        return BY_TIME
    ratio = _number(text, LEAST_RATIO, MOST_RATIO)
    if math.isnan(ratio):
        of = f"the price of an output token over that of an input token, 0 or from {LEAST_RATIO:g} to {MOST_RATIO:,.0f}"
        raise InputError(f"{text!r} splits nothing", field="--split", allowed=f"{BY_TIME}, or {of}")
    return ratio


def _number(text: str, least: float, most: float) -> float:
    """A number that is 0 or within a range; NaN if the text is no number."""
    value = float(text) if NUMBER.match(text) else math.nan
    return value if value == 0 or least <= value <= most else math.nan
