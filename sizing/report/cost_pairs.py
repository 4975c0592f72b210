"""Break-even of the options, two by two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from sizing.formats.words import rounded_usd
from sizing.planning.break_even import SECONDS_PER_DAY, Crossing, crossing, payback_months, usd_per_year
from sizing.planning.cost import MONTHS_PER_YEAR, REQUESTS
from sizing.report.documents_cost import BreakEven, CostOption


def compared(options: Sequence[CostOption]) -> Iterator[BreakEven]:
    """Yield the break-even of owned servers against each other way, and of rented ones against an API."""
    by_kind = {kind: [option for option in options if option.kind == kind] for kind in ("own", "cloud", "api")}
    pairs = [*product(by_kind["own"], by_kind["cloud"]), *product(by_kind["own"], by_kind["api"])]
    pairs += product(by_kind["cloud"], by_kind["api"])
    for one, other in pairs:
        if other.gpu is None or other.gpu == one.gpu:
            yield _pair(one, other)


def _pair(one: CostOption, other: CostOption) -> BreakEven:
    """Return the break-even of two; what is told of this load is told of that of `one`, which has its own on each type of GPU."""
    found = crossing(one.curves, other.curves)
    here = np.array([one.load_requests_per_s * SECONDS_PER_DAY])
    mine, others = (float(usd_per_year(option.curves, here)[0]) for option in (one, other))
    months, why_not = _months(one, other, others)
    cheaper = one if mine <= others else other
    return BreakEven(
        one.name, other.name, found.stays, found.first, _reason(one, other, found), cheaper.name, months, why_not
    )


def _reason(one: CostOption, other: CostOption, found: Crossing) -> str | None:
    """Say why there is no load from which on `one` costs no more, or that there is none below it."""
    if found.stays == 0:
        return "cheaper or equal at every load"
    if found.stays is not None:
        return None
    each, others = (rounded_usd(REQUESTS * usd) for usd in (found.one_usd_per_request, found.other_usd_per_request))
    at_scale = f"with whole units filled at this peak {one.name} costs {each} per 1,000 requests, {other.name} {others}"
    if found.first is None:
        return f"never cheaper: {at_scale}"
    return f"no load from which it stays cheaper: {at_scale}; at some lower loads it costs less"


def _months(one: CostOption, other: CostOption, other_usd_per_year: float) -> tuple[float | None, str | None]:
    """Return the months until the purchase of `one` has paid, or why there are none."""
    parts = one.parts_usd_per_year
    if parts is None or one.upfront_usd is None:
        return None, "nothing is bought"
    running = parts.hosting + parts.power + parts.licence + parts.staff
    months = payback_months(one.upfront_usd, running, other_usd_per_year)
    if months is None:
        return (
            None,
            f"running {one.name} costs {rounded_usd(running)} a year, {other.name} {rounded_usd(other_usd_per_year)}",
        )
    if one.depreciation_years is not None and months > one.depreciation_years * MONTHS_PER_YEAR:
        return months, f"the {one.depreciation_years:g} years that it is written off over"
    return months, None
