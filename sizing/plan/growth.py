"""Growth by the month: what a demand has become at a date, and when the next node is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import NamedTuple

MONTHS_PER_YEAR = 12
MOST_MONTHS = 240  # looked ahead: twenty years, several generations of GPUs
MOST_TIMES = 1e6  # that a demand may grow: beyond, a rate of growth is no plan


class Month(NamedTuple):
    """The size at the start of a month, after so many months of growth."""

    month: str
    times: float
    replicas: int
    gpus: int
    nodes: int


class Growing(NamedTuple):
    """The size at a date, each month in which nodes are added until then, and when the next is due."""

    per_month: float
    until: str | None
    at_date: Month | None
    next_node: Month | None
    additions: tuple[Month, ...]


def months_between(start: date, end: date) -> int:
    """Return the whole months from one date to another; the days of a month do not count."""
    return (end.year - start.year) * MONTHS_PER_YEAR + end.month - start.month


def month_after(start: date, months: int) -> str:
    """Return the month so many after a date, as 2027-12."""
    years, month = divmod(start.month - 1 + months, MONTHS_PER_YEAR)
    return f"{start.year + years:04d}-{month + 1:02d}"


def growing(
    per_month: float, start: date, until: date | None, size: Callable[[float], tuple[int, int, int]]
) -> Growing:
    """Return how a size grows; `size` says (replicas, GPUs, nodes) of a demand that has grown so many times."""
    ahead = months_between(start, until) if until is not None else None

    def at(months: int) -> Month:
        times = (1 + per_month) ** months
        return Month(month_after(start, months), times, *size(times))

    today = at(0)
    additions: list[Month] = []
    nodes = today.nodes
    for months in range(1, MOST_MONTHS + 1):
        if (ahead is not None and months > ahead and additions) or (1 + per_month) ** months > MOST_TIMES:
            break
        found = at(months)
        if found.nodes > nodes:
            nodes = found.nodes
            additions.append(found)
            if ahead is None:
                break
    next_node = additions[0] if additions else None
    within = tuple(month for month in additions if ahead is not None and month.month <= month_after(start, ahead))
    return Growing(
        per_month,
        month_after(start, ahead) if ahead is not None else None,
        at(ahead) if ahead is not None else None,
        next_node,
        within,
    )
