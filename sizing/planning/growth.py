"""Monthly growth: the demand at a date, and the month of the next node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import NamedTuple

from sizing.specs.units import MONTHS_PER_YEAR

MOST_MONTHS = 240  # the farthest month to look ahead: twenty years
MOST_TIMES = 1e6  # the largest growth factor of a demand that can be planned for


class Month(NamedTuple):
    """The size at a date or at the end of a month; `times` is the growth factor of the demand until then.

    `gpus_sure` are the GPUs that keep the limits with the stated confidence; None where that is unknown.
    """

    month: str
    times: float
    replicas: int
    gpus: int
    nodes: int
    gpus_sure: int | None = None


class Growing(NamedTuple):
    """The size at a date, the months until then in which nodes are added, and the month of the next node.

    `months` are those from the start to the date. Where there are a date and prices: the cost of the month that ends then, and of
    all months from the start.
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

    @property
    def goes_on(self) -> bool:
        """Whether the next node is due only if growth goes on after the date."""
        return self.until is not None and self.next_node is not None and self.next_node.month > self.until[:7]


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
    per_month: float, start: date, until: date | None, size: Callable[[float], tuple[int, int, int, int | None]]
) -> Growing:
    """The growth of a size; `size` gives (replicas, GPUs, nodes, sure GPUs) for a multiple of today's demand.

    A node is due in a month where the demand at the end of the month needs it.
    """

    def at(month: str, day: date) -> Month:
        times = (1 + per_month) ** months_between(start, day)
        return Month(month, times, *size(times))

    at_date = at(f"{until:%Y-%m}", until) if until is not None else None
    nodes = at(month_after(start, 0), start).nodes
    next_node: Month | None = None
    within: list[Month] = []
    for month in range(MOST_MONTHS + 1):
        if (1 + per_month) ** (month + 1) > MOST_TIMES or (
            next_node and (until is None or _first(start, month) > until)
        ):
            break
        end = _first(start, month + 1)
        found = at(month_after(start, month), end)
        if found.nodes > nodes:
            next_node = next_node or found
            if until is not None and end <= until:
                within.append(found)
            elif at_date is not None and until is not None and _first(start, month) < until and at_date.nodes > nodes:
                within.append(at_date)
            nodes = found.nodes
    return Growing(
        per_month,
        start.isoformat(),
        until.isoformat() if until is not None else None,
        at_date,
        next_node,
        tuple(within),
        months=None if until is None else months_between(start, until),
    )


def _first(start: date, months: int) -> date:
    years, month = divmod(start.month - 1 + months, MONTHS_PER_YEAR)
    return date(start.year + years, month + 1, 1)


def months_later(start: date, months: int) -> date:
    """The day on which `months` whole months from `start` are over; the last day where that month is too short."""
    first = _first(start, months)
    last = _first(start, months + 1) - timedelta(days=1)
    return first.replace(day=min(start.day, last.day))
