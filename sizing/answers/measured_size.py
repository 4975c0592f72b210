"""The GPUs that a demand needs by measurements alone: the load curve of a measured replica, and how many of them serve it.

A benchmark that keeps n requests in flight measures the rate X(n) at which a replica completes them. Random arrivals see a
varying number in flight. The replica is modelled as a queue with service rate X(n). With arrivals at rate r, the probability
of n in flight is p(n) = p(0) r^n / (X(1) ... X(n)), a birth-death chain. An arrival that finds n in flight has the latencies
measured at n + 1. Means and percentiles are those of the mixture over all arrivals. So the mean E2E is the mean TTFT plus
OSL - 1 mean ITLs, as in the rows. The mean number in flight follows from the mean E2E by Little's law.

A benchmark that sends requests at a rate has random arrivals already. Its points are interpolated in the rate, and nothing is
converted.

Figures are interpolated between measured loads. Scatter is removed first, so that rate and latencies never fall with load.
Below the lightest load, the rate falls in proportion and latencies stay. Above the heaviest load nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers.curve_lines import Arrivals, CurveLine
from sizing.answers.curve_points import CurvePoint
from sizing.specs.bisection import ends
from sizing.specs.demand import replicas_for
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.frozen import Frozen
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES, Limits, Target

Array = NDArray[np.float64]
Statistic = tuple[str, str]  # metric and statistic of a latency: ("ttft", "p95")
# Latencies are unknown where states above the heaviest measured load occur more often than this.
UNKNOWN_SHARE = 0.01
# Arrivals of one state are spread evenly between its percentiles; those below the median count as the median (or mean).
MEDIAN = 0.5
SHARES = np.array([MEDIAN / 2, *np.linspace(MEDIAN, 1.0, 51)])
WIDTHS = np.array([MEDIAN - 0.005, *[0.01] * 50, 0.005])


class LoadCurve(Frozen):
    """One replica's rate in requests/s and measured latencies in s, by `in_flight` in ascending order.

    At `random` arrivals a benchmark set the rate, and `in_flight` is a mean. Otherwise it set the number in flight.
    """

    in_flight: Array
    requests_per_s: Array
    latencies_s: Mapping[Statistic, Array]
    random: bool = False

    @property
    def most_requests_per_s(self) -> float:
        """The highest rate that was measured."""
        return float(self.requests_per_s[-1])

    @cached_property
    def states(self) -> Array:
        """The numbers of requests in flight from 1 to the heaviest measured load, shape (n,)."""
        return np.arange(1, int(np.ceil(self.in_flight[-1])) + 1, dtype=float)

    @cached_property
    def spreads(self) -> Mapping[str, tuple[Array, NDArray[np.intp], Array]]:
        """For each metric with percentiles: latencies in s of all states in ascending order, their state, and their share of it."""
        found: dict[str, tuple[Array, NDArray[np.intp], Array]] = {}
        for metric in LATENCIES:
            known = {
                float(name[1:]) / 100: of
                for (one, name), of in self.latencies_s.items()
                if (one, name[0]) == (metric, "p")
            }
            if not known:
                continue
            if (metric, "mean") in self.latencies_s:
                known.setdefault(MEDIAN, self.latencies_s[metric, "mean"])
            at = np.stack([np.interp(self.states, self.in_flight, known[share]) for share in sorted(known)], axis=1)
            values = np.stack([np.interp(SHARES, sorted(known), of) for of in at]).ravel()
            order = np.argsort(values, kind="stable")
            found[metric] = (values[order], order // len(SHARES), WIDTHS[order % len(SHARES)])
        return found

    def percentile(self, metric: str, percent: float, met: Array) -> float:
        """A percentile of latency in s over all arrivals; `met`, shape (n,), is the share of arrivals in each state."""
        seconds, state, share = self.spreads[metric]
        weights = met[state] * share
        return float(np.interp(percent / 100, np.cumsum(weights) - weights / 2, seconds))


class ReplicaLoad(NamedTuple):
    """One load of a replica: mean requests in flight, requests/s, and latencies in s by metric and statistic."""

    in_flight: float
    requests_per_s: float
    latencies_s: Mapping[Statistic, float]


def load_curve(points: Sequence[CurvePoint], *, random: bool = False) -> LoadCurve | None:
    """The curve through points measured in a closed loop or at `random` arrivals; None where no point states a rate.

    A latency statistic is used only where every point with a rate states it. Of runs that repeat a load, the mean counts.
    """
    stated = sorted(
        (point for point in points if point.requests_per_s is not None), key=lambda point: point.concurrency
    )
    if not stated:
        return None
    names = {(metric, name) for metric in LATENCIES for name in getattr(stated[0].latency_ms, metric)._fields}
    found = {name: [point.latency(*name) for point in stated] for name in sorted(names)}
    loads, place, repeats = np.unique([point.concurrency for point in stated], return_inverse=True, return_counts=True)

    def rising(values: Sequence[float | None]) -> Array:
        means = np.bincount(place, weights=np.array(values, dtype=float)) / repeats
        return np.asarray(np.maximum.accumulate(means), dtype=np.float64)

    return LoadCurve(
        loads.astype(float),
        rising([point.requests_per_s for point in stated]),
        {name: rising(values) * MILLI for name, values in found.items() if None not in values},
        random,
    )


def load_in_flight(curve: LoadCurve, in_flight: float) -> ReplicaLoad:
    """The load of a closed loop with `in_flight` requests, at most the heaviest measured load."""
    return ReplicaLoad(
        in_flight,
        float(_rate(curve, np.array([in_flight]))[0]),
        {name: float(np.interp(in_flight, curve.in_flight, values)) for name, values in curve.latencies_s.items()},
    )


def load_at_rate(curve: LoadCurve, requests_per_s: float) -> ReplicaLoad | None:
    """The load of Poisson arrivals; None where more than 1 % of the time is spent above the heaviest measured load.

    Points that were measured at random arrivals give the load directly; None above the highest of their rates.
    """
    if curve.random:
        return _at_rate(curve, requests_per_s) if requests_per_s <= curve.most_requests_per_s else None
    rates = _rate(curve, curve.states)
    if requests_per_s >= curve.most_requests_per_s:
        return None
    # In logarithms, because products of hundreds of factors overflow.
    logs = np.concatenate(([0.0], np.cumsum(np.log(requests_per_s / rates))))
    weights = np.exp(logs - logs.max())
    busiest = requests_per_s / rates[-1]
    beyond = weights[-1] * busiest / (1 - busiest)  # the states above the heaviest load, all at its rate
    total = weights.sum() + beyond
    if beyond / total > UNKNOWN_SHARE:
        return None
    seen = weights / weights.sum()  # probability of the number in flight that an arrival finds, among known loads
    met = np.concatenate((seen[: len(rates) - 1], [seen[len(rates) - 1 :].sum()]))  # by state with the arrival
    found = {
        (metric, name): curve.percentile(metric, float(name[1:]), met)
        if name[0] == "p"
        else float(met @ np.interp(curve.states, curve.in_flight, values))
        for (metric, name), values in curve.latencies_s.items()
    }
    e2e_s = found.get(("e2e", "mean"))
    in_flight = float(seen @ np.arange(len(seen))) if e2e_s is None else requests_per_s * e2e_s
    return ReplicaLoad(in_flight, requests_per_s, found)


def _at_rate(curve: LoadCurve, requests_per_s: float) -> ReplicaLoad:
    """The load at a rate, interpolated between measured rates.

    A heavier point without a higher rate was overloaded: more arrived than was served. It is not used.
    """
    rises = np.diff(curve.requests_per_s, prepend=0.0) > 0
    rates = curve.requests_per_s[rises]
    found = {name: float(np.interp(requests_per_s, rates, of[rises])) for name, of in curve.latencies_s.items()}
    in_flight = np.interp(requests_per_s, np.append(0.0, rates), np.append(0.0, curve.in_flight[rises]))
    return ReplicaLoad(float(in_flight), requests_per_s, found)


def highest_rate(curve: LoadCurve, most: float, within: Mapping[Statistic, float]) -> float:
    """The highest rate of Poisson arrivals, at most `most`, within the latency limits `within` in s; 0 without one."""

    def keeps(rate: float) -> bool:
        load = load_at_rate(curve, rate)
        return load is not None and all(load.latencies_s[name] <= limit for name, limit in within.items())

    return most if keeps(most) else ends(keeps, 0.0, most)[0]


def heaviest_measured(curve: LoadCurve, within: Mapping[Statistic, float]) -> int | None:
    """The index of the heaviest measured load within the limits; None where no load is."""
    kept = np.ones(len(curve.in_flight), dtype=bool)
    for name, limit in within.items():
        kept &= curve.latencies_s[name] <= limit
    return int(np.flatnonzero(kept)[-1]) if kept.any() else None


def _rate(curve: LoadCurve, in_flight: Array) -> Array:
    """X(n), interpolated from X(0) = 0."""
    return np.interp(in_flight, np.concatenate(([0.0], curve.in_flight)), np.concatenate(([0.0], curve.requests_per_s)))


E2E: Statistic = ("e2e", "mean")
UTILISATION, MEASURED_END = "utilisation", "measured end"


class Short(Frozen):
    """A measured layout that keeps the limits at no load: the limit it exceeds most, and its latency at the lightest load, in s."""

    line: CurveLine
    limit: Statistic
    allowed_s: float
    reached_s: float


class MeasuredSize(Frozen):
    """A number of replicas of a measured layout, the load of each, and the capacity of one."""

    line: CurveLine
    curve: LoadCurve
    replicas: int
    load: ReplicaLoad
    most: float  # requests/s of a replica, or requests in flight
    by_flight: bool  # whether the demand is in flight
    binds: str  # what limits it: a latency, the utilisation, or the heaviest measured load
    other_replicas: int | None = None  # for the other arrivals, closed loop or random; None for rows at a rate
    other_most: float | None = None  # requests/s of each

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.replicas * (self.line.gpus or 1)

    @property
    def requests_per_s(self) -> float:
        """The rate of all replicas."""
        return self.replicas * self.load.requests_per_s


class _Most(NamedTuple):
    requests_per_s: float
    in_flight: float
    binds: str


def measured_sizes(
    lines: Sequence[CurveLine], target: Target, headroom: float, *, closed: bool
) -> tuple[tuple[MeasuredSize, ...], tuple[Short, ...]]:
    """The answer of each measured layout, fewest GPUs first, and the layouts that keep the limits at no load.

    With `closed`, the curves are used as measured, in a closed loop; otherwise arrivals are random. Of a layout that was
    measured both ways, the rows with the arrivals of the demand are used. Raises InputError where the rows lack a statistic
    that the limits need, or where there is no demand.
    """
    if target.amount is None:
        allowed = "one of --rps, --users, --dau, --concurrency (or demand: in the workload)"
        raise InputError("nothing says how much to serve", field="demand", allowed=allowed)
    closed = closed or target.concurrency is not None
    asked = {way: _as_read(target, closed=way) for way in (True, False)}
    found: list[MeasuredSize] = []
    short: list[Short] = []
    for line in _of_arrivals(lines, "closed" if closed else "poisson"):
        curve = load_curve(line.points, random=line.arrivals == "poisson")
        if curve is None:
            continue
        within = _within(line, curve, target.limits, needs_e2e=target.population is not None)
        index = heaviest_measured(curve, within)
        if index is None:
            short.append(_short(line, curve, within))
            continue
        readings = (closed,) if curve.random else (closed, not closed)
        ways = {way: _most(curve, index, within, target.max_utilisation, closed=way) for way in readings}
        counts = {way: _replicas(curve, asked[way], headroom, most, closed=way) for way, most in ways.items()}
        count = counts[closed]
        if count is None:
            continue
        most = ways[closed]
        rate = _rate_of_each(curve, asked[closed], count, most, closed=closed)
        load = _load(curve, rate, closed=closed)
        assert load is not None
        by_flight = asked[closed].concurrency is not None
        bound = most.in_flight if by_flight else most.requests_per_s
        other = None if (others := counts.get(not closed)) is None else ways[not closed].requests_per_s
        found.append(MeasuredSize(line, curve, count, load, bound, by_flight, most.binds, others, other))
    return tuple(sorted(found, key=lambda each: (each.gpus, -each.most))), tuple(short)


def _as_read(target: Target, *, closed: bool) -> Target:
    """The target as arrivals read it: in a closed loop, a mean number of requests in flight is the exact number."""
    if not closed or target.population is None or target.think_time_s > 0:
        return target
    return replace(target, concurrency=round(target.population), population=None)


def _of_arrivals(lines: Sequence[CurveLine], wanted: Arrivals) -> list[CurveLine]:
    """The lines to use: of each layout those measured at the `wanted` arrivals if there are any, otherwise all."""

    def plain(line: CurveLine) -> CurveLine:
        return replace(line, arrivals=None, points=(), source=None, cache_holds=None, cache_over_predicted=None)

    as_wanted = {plain(line) for line in lines if line.arrivals == wanted}
    return [line for line in lines if line.arrivals == wanted or plain(line) not in as_wanted]


def _within(line: CurveLine, curve: LoadCurve, limits: Limits, *, needs_e2e: bool) -> dict[Statistic, float]:
    """The limits in s by statistic. Raises InputError for statistics that the rows do not state."""
    within: dict[Statistic, float] = {(name, limit.statistic): limit.seconds for name, limit in limits.stated.items()}
    absent = [name for name in (*within, *([E2E] if needs_e2e else [])) if name not in curve.latencies_s]
    stated = ", ".join(f"{metric} {statistic}" for metric, statistic in curve.latencies_s)
    rows = [point for point in line.points if point.requests_per_s is not None]
    without = {name: [point.row for point in rows if point.latency(*name) is None] for name in absent}
    raise_any(
        Fault(f"{_which(of, len(rows))} not state the {statistic} of {metric.upper()}", field="--from", allowed=stated)
        for (metric, statistic), of in without.items()
    )
    return within


def _which(without: Sequence[str | None], rows: int) -> str:
    """The rows without a statistic, with their verb."""
    if len(without) == rows:
        return "the measured rows do"
    return f"row {without[0]} does" if len(without) == 1 else f"{len(without)} of {rows} rows ({without[0]}, ...) do"


def _short(line: CurveLine, curve: LoadCurve, within: Mapping[Statistic, float]) -> Short:
    name = _tightest(curve, 0, within)
    return Short(line, name, within[name], float(curve.latencies_s[name][0]))


def _most(
    curve: LoadCurve, index: int, within: Mapping[Statistic, float], utilisation: float, *, closed: bool
) -> _Most:
    """The capacity of a replica.

    In a closed loop it is the heaviest measured load within the limits, with `utilisation` times its rate.
    """
    cap = utilisation * curve.most_requests_per_s
    if closed:
        in_flight, rate = float(curve.in_flight[index]), float(curve.requests_per_s[index])
        ends = MEASURED_END if index == len(curve.in_flight) - 1 else _tightest(curve, index + 1, within)[0]
        return _Most(rate * utilisation, in_flight, UTILISATION if utilisation < 1 and ends == MEASURED_END else ends)
    rate = highest_rate(curve, cap, within)
    load = load_at_rate(curve, rate) if rate > 0 else None
    if load is None or rate >= cap:
        return _Most(rate, 0.0 if load is None else load.in_flight, UTILISATION if rate >= cap else MEASURED_END)
    close = [name for name in within if load.latencies_s[name] > within[name] * (1 - 1e-3)]
    return _Most(rate, load.in_flight, close[0][0] if close else MEASURED_END)


def _tightest(curve: LoadCurve, index: int, within: Mapping[Statistic, float]) -> Statistic:
    return max(within, key=lambda name: curve.latencies_s[name][index] / within[name])


def _replicas(curve: LoadCurve, target: Target, headroom: float, most: _Most, *, closed: bool) -> int | None:
    if most.requests_per_s <= 0:
        return None
    if target.concurrency is not None:
        return replicas_for(target.concurrency * (1 + headroom), most.in_flight) if closed else None
    if target.population is not None:
        load = _load(curve, most.requests_per_s, closed=closed)
        if load is None:
            return None
        each = target.population_of(most.requests_per_s, load.latencies_s[E2E])
        return replicas_for(target.population * (1 + headroom), each)
    assert target.requests_per_s is not None
    return replicas_for(target.requests_per_s * (1 + headroom), most.requests_per_s)


def _rate_of_each(curve: LoadCurve, target: Target, replicas: int, most: _Most, *, closed: bool) -> float:
    """The rate of each of `replicas` replicas under the demand."""
    if target.requests_per_s is not None:
        return target.requests_per_s / replicas
    if target.concurrency is not None:
        return float(load_in_flight(curve, min(target.concurrency / replicas, most.in_flight)).requests_per_s)
    assert target.population is not None
    each = target.population / replicas

    def serves(rate: float) -> bool:
        load = _load(curve, rate, closed=closed)
        return load is not None and target.population_of(rate, load.latencies_s[E2E]) <= each

    return ends(serves, 0.0, most.requests_per_s)[0]


def _load(curve: LoadCurve, requests_per_s: float, *, closed: bool) -> ReplicaLoad | None:
    if not closed:
        return load_at_rate(curve, requests_per_s)
    loads, rates = (np.concatenate(([0.0], values)) for values in (curve.in_flight, curve.requests_per_s))
    lightest = float(np.interp(requests_per_s * (1 - 1e-15), rates, loads))  # the lightest load that reaches the rate
    return load_in_flight(curve, lightest)._replace(requests_per_s=requests_per_s)
