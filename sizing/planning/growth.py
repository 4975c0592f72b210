"""Monthly growth: the demand at a date, and the month of the next node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from sizing.specs.units import MONTHS_PER_YEAR

MOST_MONTHS = 240  # the farthest month to look ahead: twenty years
MOST_TIMES = 1e6  # the largest growth factor of a demand that can be planned for


class Month(NamedTuple):
    """The size at a date or at the end of a month; `times` is the growth factor of the demand until then.

    `gpus_sure` are the GPUs that keep the limits with the stated confidence, in `nodes_sure`; null where that is unknown.
    `order_by` is the lead time before the month, where one is stated.
    """

    month: str
    times: float
    replicas: int
    gpus: int
    nodes: int
    gpus_sure: int | None = None
    nodes_sure: int | None = None
    order_by: str | None = None


GrownSize = tuple[int, int, int, int | None, int | None]  # replicas, GPUs, nodes, sure GPUs and their nodes


class Growing(NamedTuple):
    """The size at a date, the months until then in which nodes are added, and the month of the next node.

    `next_node_sure` and `additions_sure` are these months of the sure size. `months` are those from the start to the date. Where
    there are a date and prices: the cost of the month that ends then, and of all months from the start.
    """

    per_month: float
    start: str
    until: str | None
    at_date: Month | None
    next_node: Month | None
    additions: tuple[Month, ...]
    usd_of_last_month: float | None = None
    usd_in_all: float | None = None
    months: float | None = None
    next_node_sure: Month | None = None
    additions_sure: tuple[Month, ...] = ()


def months_between(start: date, end: date) -> float:
    """The months between two dates. The days of the last month count as a fraction, so growth is continuous."""
    whole = (end.year - start.year) * MONTHS_PER_YEAR + end.month - start.month
    if months_later(start, whole) > end:
        whole -= 1
    since, next_one = months_later(start, whole), months_later(start, whole + 1)
    return whole + (end - since) / (next_one - since)


def paid_months(per_month: float, start: date, until: date) -> Iterator[tuple[float, float]]:
    """Yield each month from `start`, as the multiple of today's demand at its end and the share of it before `until`."""
    months = months_between(start, until)
    for month in range(math.ceil(months)):
        end = min(month + 1.0, months)
        yield (1 + per_month) ** end, end - month


def month_after(start: date, months: int) -> str:
    """The month that is `months` after a date, as 2027-12."""
    return f"{_first(start, months):%Y-%m}"


def growing(
    per_month: float, start: date, until: date | None, size: Callable[[float], GrownSize], lead: timedelta | None = None
) -> Growing:
    """The growth of a size; `size` gives it for a multiple of today's demand.

    A node is due in a month where the demand at the end of the month needs it, and ordered the `lead` before its first day.
    """

    def at(month: str, day: date) -> Month:
        times = (1 + per_month) ** months_between(start, day)
        return Month(month, times, *size(times))

    @cache
    def at_end(month: int) -> Month:
        return at(month_after(start, month), _first(start, month + 1))

    today, at_date = at(month_after(start, 0), start), at(f"{until:%Y-%m}", until) if until is not None else None

    def due(nodes_of: Callable[[Month], int | None]) -> tuple[Month | None, tuple[Month, ...]]:
        """The first month with a new node, and all such months until the date; none for a size that is not known."""
        next_node: Month | None = None
        within: list[Month] = []
        nodes = nodes_of(today) or math.inf
        for month in range(MOST_MONTHS + 1):
            first, end = _first(start, month), _first(start, month + 1)
            if (1 + per_month) ** (month + 1) > MOST_TIMES or (next_node and (until is None or first > until)):
                break
            if (nodes_of(at_end(month)) or 0) <= nodes:
                continue
            order_by = None if lead is None else (first - lead).isoformat()
            found = at_end(month)._replace(order_by=order_by)
            next_node = next_node or found
            if until is not None and end <= until:
                within.append(found)
            elif at_date is not None and until is not None and first < until and (nodes_of(at_date) or 0) > nodes:
                within.append(at_date._replace(order_by=order_by))
            nodes = nodes_of(found) or math.inf
        return next_node, tuple(within)

    next_node, additions = due(attrgetter("nodes"))
    next_node_sure, additions_sure = due(attrgetter("nodes_sure"))
    return Growing(
        per_month,
        start.isoformat(),
        until.isoformat() if until is not None else None,
        at_date,
        next_node,
        additions,
        months=None if until is None else months_between(start, until),
        next_node_sure=next_node_sure,
        additions_sure=additions_sure,
    )


def _first(start: date, months: int) -> date:
    years, month = divmod(start.month - 1 + months, MONTHS_PER_YEAR)
    return date(start.year + years, month + 1, 1)


def months_later(start: date, months: int) -> date:
    """The day on which `months` whole months from `start` are over; the last day where that month is too short."""
    first = _first(start, months)
    last = _first(start, months + 1) - timedelta(days=1)
    return first.replace(day=min(start.day, last.day))
