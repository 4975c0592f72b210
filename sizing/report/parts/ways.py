"""Ways to pay, predicted or measured: the load of their figures, a table of them, and where one costs less than another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter

from sizing.formats.view import Quantity, Table, in_words
from sizing.formats.words import number, rounded_usd
from sizing.planning.break_even import SECONDS_PER_DAY
from sizing.planning.cost import REQUESTS
from sizing.planning.offers import BreakEven, CostOption
from sizing.planning.usage import LoadKind
from sizing.report.parts import quantities
from sizing.report.parts.said import said

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
        _usd("usd_per_million_tokens.total.at_load", "$/M tokens in + out"),
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
    """Write from which load on one way to pay, which costs `at_scale_usd` per 1,000 requests if always full at the peak, costs less than another."""
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
