"""Demand: from the stated figures to the rate to size for.

The steps are the mean, the busiest time, and chance, which is the number of Poisson arrivals in one second. Each step is kept
for display.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.shelf import only
from sizing.formats.words import duration
from sizing.specs import demand as capacity
from sizing.specs.bisection import ends
from sizing.specs.demand import HOURS_OF_DAY, Demand
from sizing.specs.errors import InputError
from sizing.specs.units import HOURS_PER_DAY, SECONDS_PER_HOUR
from sizing.specs.values import Kind, Range
from sizing.specs.workload import Defaults, Planning

SPREAD = 12.0  # standard deviations summed on either side of the mean; the rest has a probability below 1e-30
FEWEST_TERMS = 40  # terms summed above a mean near 0, where the standard deviation is too small
MOST_SUMMED = 1e6  # above it the sum would be long, and the normal approximation is right to about one count


def quantile(mean: float, share: float) -> int:
    """The fewest arrivals k with P(X <= k) >= `share`, for a Poisson count X with this mean.

    The terms around the mean are computed in logarithms, so that no factorial overflows. The result is exact up to a mean of
    a million, and right to about one count above.
    """
    if mean <= 0:
        return 0
    if mean > MOST_SUMMED:
        sigmas = NormalDist().inv_cdf(share)
        # Cornish-Fisher expansion: the normal quantile with skew 1 / sqrt(mean), and a continuity correction of one half.
        return math.ceil(mean + sigmas * math.sqrt(mean) + (sigmas**2 - 1) / 6 - 0.5)
    reach = SPREAD * math.sqrt(mean)
    first = max(0, math.floor(mean - reach))
    counts = np.arange(first, math.ceil(mean + reach) + FEWEST_TERMS)
    # log P(k) - log P(first) = sum of log(mean / i) for i above first
    logs = np.concatenate(([0.0], np.cumsum(math.log(mean) - np.log(counts[1:]))))
    terms = np.exp(logs - logs.max())
    reached = np.cumsum(terms) / terms.sum()
    return int(counts[np.searchsorted(reached, share)])


def mean_of(count: float, share: float) -> float:
    """The largest mean whose `quantile` is at most `count`; 0 where there is none."""
    return ends(lambda mean: quantile(mean, share) <= count, 0.0, max(count, 0.0) + 1.0)[0]


SECONDS_PER_YEAR = SECONDS_PER_HOUR * capacity.hours_per_year()
# Kinds of demand that state the peak; the others state the mean, from which the peak follows.
BATCH = "documents"  # all offered at once, to be done within a time
OF_PEAK = ("requests_per_s", "sessions", BATCH)
OF_PEOPLE = ("concurrent_users", "sessions")  # people at the peak, who are there in their active hours
AT_ONCE = ("concurrency", "concurrent_users")  # kinds whose rate follows from the answer's own E2E
MEAN = "mean_requests_per_s"  # the mean around the clock
OF_USERS = ("daily_active_users", *AT_ONCE, *OF_PEAK)  # from users who are active in some hours, stated or not
OF_YEAR = ("calls_per_year", "documents_per_year")
ALLOWED_PEAKS = "planning.peak_to_mean, active_hours, profile or poisson_percentile (--peak-to-mean, --active-hours, --profile, --percentile)"

NO_RANGES: Mapping[str, Range] = MappingProxyType({})
Number = TypeVar("Number", int, float)


class Shape(NamedTuple):
    """An hourly load profile of a day or a week, in any unit, and its source."""

    name: str
    weights: tuple[float, ...]
    source: str
    kind: Kind

    @property
    def peak_to_mean(self) -> float:
        """The busiest hour divided by the mean of all hours."""
        return max(self.weights) * len(self.weights) / sum(self.weights)


class Arrivals(NamedTuple):
    """The mean rate of a trace, and the rate in its busiest window."""

    mean_per_s: float
    busiest_per_s: float
    window_s: float
    count_of: int


class RateStep(NamedTuple):
    """One step from the stated figures to the rate to size for."""

    what: str
    requests_per_s: float
    how: str


class Habits(NamedTuple):
    """The requests of a daily active user, and the ratio of peak to mean. Every conversion to or from users needs them."""

    requests_per_user_per_day: float
    active_hours: float
    peak_to_mean: float
    poisson_percentile: float | None = None
    peak_hours: int = 1  # of a day without a profile

    def users_of(self, requests_per_s: float) -> float:
        """The number of daily active users who cause this peak rate."""
        share = self.poisson_percentile
        busy = requests_per_s if share is None else mean_of(requests_per_s, share)
        return capacity.daily_active_users(busy, self.requests_per_user_per_day, self.active_hours, self.peak_to_mean)

    def mean_of(self, busy_per_s: float) -> float:
        """The mean rate around the clock for this rate in the busiest hour."""
        return busy_per_s / self.peak_to_mean * self.active_hours / HOURS_PER_DAY


class Readings(NamedTuple):
    """One load in three units: requests/s, requests in flight, and users who wait or think for `think_time_s`."""

    requests_per_s: float
    in_flight: float
    users: float
    think_time_s: float


def readings(requests_per_s: float, e2e_s: float, think_time_s: float) -> Readings:
    """Convert a rate and its E2E to requests in flight and concurrent users, by Little's law."""
    in_flight = requests_per_s * e2e_s
    return Readings(requests_per_s, in_flight, in_flight + requests_per_s * think_time_s, think_time_s)


class Demanded(NamedTuple):
    """A resolved demand: the rate to size for, the mean around the clock (None where unknown), the load by hour.

    `busy_per_s` is the rate of the busiest time without the allowance for chance, `peak_per_s` the rate with it. For a
    demand in requests in flight or concurrent users, rates are None; `at_rate` sets them from the answer.
    """

    kind: str
    peak_per_s: float | None
    busy_per_s: float | None
    mean_per_s: float | None
    habits: Habits
    steps: tuple[RateStep, ...]
    shape: Shape | None

    @property
    def shares(self) -> tuple[float, ...]:
        """The load of each hour divided by that of the busiest hour; empty without a profile."""
        weights = self.shape.weights if self.shape else ()
        return tuple(weight / max(weights) for weight in weights)

    def at_rate(self, requests_per_s: float, planning: Planning) -> Demanded:
        """This demand with the rate of its answer, where it has no rate itself."""
        if self.busy_per_s is not None:
            return self
        mean = self.habits.mean_of(requests_per_s) if _has_mean(self.kind, planning) else None
        return self._replace(peak_per_s=requests_per_s, busy_per_s=requests_per_s, mean_per_s=mean)

    def by_hour_per_s(self) -> tuple[float, ...]:
        """The rate to size for in each hour of a day or a week, with the allowance for chance.

        Without a profile, `peak_hours` have the peak, the other active hours share the rest of the load equally, and the
        remaining hours have none. Active hours are rounded up to whole hours.
        """
        if self.busy_per_s is None or self.shape is not None:
            return self.rates_per_s(sized=True)
        active, share = self.habits.active_hours, self.habits.poisson_percentile
        peak = min(self.habits.peak_hours, math.ceil(active))
        others = math.ceil(active) - peak
        left = self.busy_per_s * (active / self.habits.peak_to_mean - peak)
        rates = (*[self.busy_per_s] * peak, *[max(0.0, left / others) for _ in range(others)])
        return tuple(_with_chance(rate, share) for rate in rates) + (0.0,) * (HOURS_OF_DAY - len(rates))

    def rates_per_s(self, *, sized: bool) -> tuple[float, ...]:
        """The rate of each hour, with the allowance for chance if `sized`; empty without a rate or a profile."""
        if self.busy_per_s is None:
            return ()
        share = self.habits.poisson_percentile if sized else None
        return tuple(_with_chance(part * self.busy_per_s, share) for part in self.shares)


def comes_of_users(demand: Demand | None, planning: Planning, *, offline: bool = False) -> bool:
    """Whether the default active hours and peak of users apply to a demand that states neither.

    They do not apply to yearly calls and documents, which come at any hour and must state their peak. They do not apply to a
    mean rate of offline work, which can wait, or to a mean rate with only a percentile, which gives the peak by chance.
    """
    if demand is not None and demand.kind == MEAN:
        return not offline and (planning.says_shape or planning.poisson_percentile is None)
    return demand is None or demand.kind in OF_USERS


def habits(demand: Demand | None, planning: Planning, shape: Shape | None = None, *, offline: bool = False) -> Habits:
    """The habits of users: from the workload, else from the profile `shape`, else from the defaults.

    Documents come once a day, over the time that they state.
    """
    by_users, defaults = comes_of_users(demand, planning, offline=offline), only(Defaults)
    hours = planning.active_hours or (defaults.active_hours if by_users else HOURS_PER_DAY)
    peak = planning.peak_to_mean or (defaults.peak_to_mean if by_users else 1.0)
    if shape is not None:
        hours, peak = HOURS_PER_DAY, shape.peak_to_mean
    if demand is not None and demand.within_s is not None:
        hours, peak = min(HOURS_PER_DAY, demand.within_s / SECONDS_PER_HOUR), 1.0
    each = planning.requests_per_user_per_day or defaults.requests_per_user_per_day
    return Habits(each, hours, peak, planning.poisson_percentile, defaults.peak_hours)


def resolve_demand(
    demand: Demand,
    planning: Planning,
    *,
    offline: bool = False,
    shape: Shape | None = None,
    arrivals: Arrivals | None = None,
    ranges: Mapping[str, Range] = NO_RANGES,
) -> Demanded:
    """The rate to size for, and the steps that lead to it.

    `arrivals` are those of a trace. `ranges` are the stated ranges by dotted field; `demand` has their middles. Raises
    InputError where nothing relates the peak to a yearly mean, and for a peak or percentile that a trace or requests in
    flight cannot take.
    """
    _check(demand, planning, offline=offline)
    user = habits(demand, planning, shape, offline=offline)
    if arrivals is not None:
        user = user._replace(active_hours=HOURS_PER_DAY, peak_to_mean=arrivals.busiest_per_s / arrivals.mean_per_s)
    if demand.kind in AT_ONCE:
        return Demanded(demand.kind, None, None, None, user, (), shape)
    steps = list(_before_chance(demand, user, shape, arrivals, _how_stated(demand, ranges)))
    busy = steps[-1].requests_per_s
    share = planning.poisson_percentile
    if share is not None:
        how = f"{share * 100:g} % of the seconds of Poisson arrivals with that mean have no more"
        steps.append(RateStep("with chance", _with_chance(busy, share), how))
    if arrivals is not None:
        mean: float | None = arrivals.mean_per_s
    elif demand.kind in OF_PEAK:
        mean = user.mean_of(busy) if _has_mean(demand.kind, planning) else None
    else:
        mean = steps[0].requests_per_s
    return Demanded(demand.kind, steps[-1].requests_per_s, busy, mean, user, tuple(steps), shape)


def of_trace(arrivals_s: NDArray[np.float64], window_s: float) -> Arrivals:
    """The mean rate of sorted arrivals (n - 1 intervals over their span), and the rate in the fullest window.

    Raises InputError where all requests arrive at once, and for a trace shorter than the window.
    """
    span_s = float(arrivals_s[-1] - arrivals_s[0])
    if span_s <= 0:
        raise InputError("all requests of the trace arrive at once, which is no rate", field="demand.trace")
    if span_s < window_s:
        message = f"the trace lasts {span_s:.3g} s, less than the {window_s:g} s whose fullest are the peak"
        allowed = f"a trace of at least {window_s:g} s, or the rate itself (demand.requests_per_s)"
        raise InputError(message, field="demand.trace", allowed=allowed)
    mean = (arrivals_s.size - 1) / span_s
    ends = np.searchsorted(arrivals_s, arrivals_s + window_s, side="left")
    fullest = int(np.max(ends - np.arange(arrivals_s.size)))
    return Arrivals(mean, max(mean, fullest / window_s), window_s, int(arrivals_s.size))


def over_hours(values: tuple[Number, ...], hours: int) -> tuple[Number, ...]:
    """A daily profile repeated to fill `hours`; a weekly profile is unchanged."""
    return values * (hours // len(values)) if values else values


NOT_REPLAYED = "bursts and single lengths of the trace are not replayed"


def _has_mean(kind: str, planning: Planning) -> bool:
    """Whether the mean around the clock follows from a peak: of people or documents, or where the workload says how."""
    return kind in (*OF_PEOPLE, BATCH) or planning.says_shape


def _check(demand: Demand, planning: Planning, *, offline: bool) -> None:
    shaped = planning.says_shape
    kind = demand.kind
    if kind == "trace" and shaped:
        message = (
            "the trace says itself how high its peak is, and planning.peak_to_mean, active_hours or profile say it too"
        )
        raise InputError(message, field="demand.trace", remedy="state one of them")
    if kind in AT_ONCE and planning.poisson_percentile is not None:
        message = "has no meaning for requests in flight and concurrent users, who come back as they are answered"
        raise InputError(message, field="planning.poisson_percentile", remedy="use it with a rate, users or sessions")
    if kind == "concurrent_users" and offline:
        message = "has no meaning for offline work, where nobody thinks about an answer"
        raise InputError(message, field="demand.concurrent_users", remedy="use another mode, or a rate")
    if kind == BATCH and (shaped or planning.poisson_percentile is not None):
        message = "documents come as fast as they are answered, and planning says how their arrivals are spread"
        raise InputError(
            message, field="demand.documents", remedy="use it without a peak, hours, a profile or a percentile"
        )
    unsaid = not shaped and planning.poisson_percentile is None and not offline
    if kind in OF_YEAR and unsaid:
        message = (
            "nothing says how far the peak is above this mean; a size for the mean would be overloaded half of the time"
        )
        raise InputError(message, field=f"demand.{kind}", allowed=ALLOWED_PEAKS)


def _with_chance(rate_per_s: float, share: float | None) -> float:
    return rate_per_s if share is None else float(quantile(rate_per_s, share))


def _how_stated(demand: Demand, ranges: Mapping[str, Range]) -> str:
    span = ranges.get(f"demand.{demand.kind}")
    return "as stated" if span is None else f"the middle of {span.low:g} to {span.high:g}"


def _before_chance(
    demand: Demand, user: Habits, shape: Shape | None, arrivals: Arrivals | None, as_stated: str
) -> Iterator[RateStep]:
    if arrivals is not None:
        how = f"{arrivals.count_of:,} requests over its time"
        yield RateStep("mean of the trace", arrivals.mean_per_s, how)
        yield RateStep("busiest time", arrivals.busiest_per_s, f"the fullest {arrivals.window_s:g} s of the trace")
    elif demand.requests_per_s is not None:
        yield RateStep("peak", demand.requests_per_s, as_stated)
    elif demand.sessions is not None:
        s = demand.sessions
        how = f"{s.concurrent_users:,.10g} users x {s.requests_per_session:g} requests / {s.session_s:,.10g} s of a session"
        yield RateStep("peak", s.requests_per_s, how)
    elif demand.documents is not None and demand.within_s is not None:
        how = f"{demand.documents:,.10g} request{'s' * (demand.documents != 1)} in {duration(demand.within_s)}"
        yield RateStep("peak", demand.documents / demand.within_s, how)
    else:
        mean = _mean(demand, user, as_stated)
        yield mean
        active = mean.requests_per_s * HOURS_PER_DAY / user.active_hours
        if user.active_hours != HOURS_PER_DAY:
            how = f"{user.active_hours:g} of {HOURS_OF_DAY} hours are active"
            yield RateStep("mean of the active hours", active, how)
        how = f"peak {user.peak_to_mean:g} x mean"
        if shape is not None:
            how = f"busiest hour of the profile {shape.name}, {user.peak_to_mean:.3g} x mean"
        yield RateStep("busiest time", active * user.peak_to_mean, how)


def _mean(demand: Demand, user: Habits, as_stated: str) -> RateStep:
    """The mean rate around the clock: from daily users, from a yearly count, or as stated."""
    if demand.daily_active_users is not None:
        each, users = user.requests_per_user_per_day, demand.daily_active_users
        rate = users * each / (SECONDS_PER_HOUR * HOURS_PER_DAY)
        return RateStep(
            "mean", rate, f"{users:,.10g} daily active user{'s' * (users != 1)} x {each:g} requests / 86,400 s"
        )
    if demand.mean_requests_per_s is not None:
        return RateStep("mean", demand.mean_requests_per_s, as_stated)
    if demand.calls_per_year is not None:
        count, each, noun = demand.calls_per_year.calls, demand.calls_per_year.requests_each, "calls"
    else:
        assert demand.documents_per_year is not None  # the last kind
        count, each = demand.documents_per_year.documents, demand.documents_per_year.requests_per_document
        noun = "documents"
    how = f"{count:,.10g} {noun} a year x {each:g} requests / {SECONDS_PER_YEAR:,.0f} s"
    return RateStep("mean", count * each / SECONDS_PER_YEAR, how)
