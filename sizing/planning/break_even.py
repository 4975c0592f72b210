"""Break-even loads between two ways to serve, and the months until a purchase pays off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.specs.units import HOURS_PER_DAY, MONTHS_PER_YEAR, SECONDS_PER_HOUR

SECONDS_PER_DAY = SECONDS_PER_HOUR * HOURS_PER_DAY
DAYS_PER_YEAR = 365
MOST_STEPS = 200_000  # the most servers and instances compared: nobody buys more
FEW_STEPS = 100  # steps compared where both ways cost the same at scale
EQUAL = 1e-6  # relative difference of the costs at scale below which they count as equal

Days = NDArray[np.float64]


class CostCurve(NamedTuple):
    """Yearly cost as a function of requests a day: the cost of whole units, plus a cost per request.

    Units are servers or instances. Their number is what the peak needs, at least one. Where units follow the load, each hour has
    the number that it needs; `hours` are the loads as shares of the busiest hour, and `elastic`, which results state, is true. An
    hour without load has `at_rest` units. An API has no units, so its units cost nothing and have unlimited capacity.
    """

    usd_per_unit_year: float
    requests_per_day_of_unit: float
    usd_per_request: float
    hours: tuple[float, ...] = (1.0,)
    elastic: bool = False
    at_rest: int = 1

    @property
    def usd_per_request_at_scale(self) -> float:
        """The cost of an additional request where there are many units."""
        each = self.usd_per_unit_year / (self.requests_per_day_of_unit * DAYS_PER_YEAR)
        return each * sum(self.hours) / len(self.hours) + self.usd_per_request

    @property
    def sizes(self) -> list[float]:
        """The steps, in requests a day, at which some hour needs one more unit."""
        return [self.requests_per_day_of_unit / share for share in set(self.hours) if share > 0]

    def units(self, requests_per_day: Days) -> Days:
        """The units needed for `requests_per_day`, on average over the hours."""
        total = np.zeros_like(requests_per_day)
        for share, count in Counter(self.hours).items():
            needed = requests_per_day / self.requests_per_day_of_unit * share
            least = 1.0 if share > 0 else self.at_rest
            total += count * np.maximum(least, np.ceil(needed - 1e-9 * np.maximum(1.0, needed)))
        return total / len(self.hours)

    def usd_per_year(self, requests_per_day: Days) -> Days:
        """The yearly cost at `requests_per_day`."""
        return self.with_units(self.units(requests_per_day), requests_per_day)

    def with_units(self, units: Days, requests_per_day: Days) -> Days:
        """The yearly cost at `requests_per_day` on `units` units."""
        return units * self.usd_per_unit_year + requests_per_day * DAYS_PER_YEAR * self.usd_per_request


# Alternatives of one way to serve, such as a provider's instances of several sizes: the cheapest counts
Curves = Sequence[CostCurve]


class Crossing(NamedTuple):
    """The loads, in requests a day, at which one way to serve (`one`) costs no more than another.

    `first` is the lowest such load. From `stays` on, `one` costs no more at every load. Above `last` it always costs more.
    Each is None where there is no such load. `first` and `stays` are 0 where `one` costs no more at every load. They can
    differ because units are whole: in between, either way may be cheaper.
    """

    first: float | None
    stays: float | None
    last: float | None
    one_usd_per_request: float
    other_usd_per_request: float


def usd_per_year(curves: Curves, requests_per_day: Days) -> Days:
    """The yearly cost at `requests_per_day` with the cheapest alternative at each load."""
    return np.asarray(np.min([curve.usd_per_year(requests_per_day) for curve in curves], axis=0))


def crossing(one: Curves, other: Curves) -> Crossing:
    """The exact loads at which `one` costs no more than `other`.

    Between two steps both costs are straight lines. Above max(unit costs) / |difference at scale|, the way that is
    cheaper at scale is cheaper at every load, because rounding up to whole units adds at most the cost of one unit.
    """
    slopes = tuple(min(curve.usd_per_request_at_scale for curve in curves) for curves in (one, other))
    gap_usd = abs(slopes[0] - slopes[1]) * DAYS_PER_YEAR
    alike = gap_usd <= EQUAL * max(slopes) * DAYS_PER_YEAR
    edges = _edges((*one, *other), 0.0 if alike else gap_usd)
    left, right = edges[:-1], edges[1:]
    middle = (left + right) / 2

    def dearer(at: Days) -> Days:
        return _within(one, middle, at) - _within(other, middle, at)

    slack = EQUAL**2 * (usd_per_year(one, right) + usd_per_year(other, right))
    before, after = dearer(left), dearer(right)
    wins = before <= slack, after <= slack
    run = np.where(before == after, 1.0, before - after)
    crosses = np.where(wins[0] == wins[1], left, left + (right - left) * before / run)
    first, stays, last = _loads(left, right, crosses, *wins)
    cheaper = alike or slopes[0] < slopes[1]
    return Crossing(first, stays if cheaper else None, None if cheaper else last, *slopes)


def _within(curves: Curves, middle: Days, at: Days) -> Days:
    """The cost at `at`, one end of each interval, with the number of units at its `middle`."""
    costs = [curve.with_units(curve.units(middle), at) for curve in curves]
    return np.asarray(np.min(costs, axis=0))


def _edges(curves: Curves, gap_usd: float) -> Days:
    """The loads at which the comparison may change, up to the last change; a few steps where costs at scale are equal."""
    sizes = [size for curve in curves for size in curve.sizes if np.isfinite(size)]
    last = FEW_STEPS * max(sizes, default=1.0)
    if gap_usd > 0:
        last = max(max(curve.usd_per_unit_year for curve in curves) / gap_usd, *sizes, 1.0)
    if sizes:
        last = min(last, MOST_STEPS / sum(1 / size for size in sizes))
    found = [np.array([0.0, last]), *(size * np.arange(1.0, np.floor(last / size) + 1) for size in sizes)]
    edges = np.unique(np.concatenate(found))
    return np.asarray(edges[edges <= last])


def _loads(
    left: Days, right: Days, crosses: Days, before: NDArray[np.bool_], after: NDArray[np.bool_]
) -> tuple[float | None, float | None, float | None]:
    """(`first`, `stays`, `last`) of a crossing: `one` wins `before` and `after` each stretch from `left` to `right`."""
    won, lost = before | after, ~(before & after)
    if not won.any():
        return None, None, None
    start, end = int(np.argmax(won)), won.size - 1 - int(np.argmax(won[::-1]))
    first = float(left[start] if before[start] else crosses[start])
    last = None if after[-1] else float(right[end] if after[end] else crosses[end])
    if not lost.any():
        return first, 0.0, last
    again = lost.size - 1 - int(np.argmax(lost[::-1]))  # the last stretch in which it loses
    if after[again]:
        return first, float(crosses[again]), last
    return first, float(right[again]) if again < lost.size - 1 else None, last


def payback_months(upfront_usd: float, running_usd_per_year: float, other_usd_per_year: float) -> float | None:
    """Months until the savings over the other way repay a purchase; None where running it saves nothing.

    Simple payback: no interest, no residual value.
    """
    saved = other_usd_per_year - running_usd_per_year
    return upfront_usd / saved * MONTHS_PER_YEAR if saved > 0 else None
