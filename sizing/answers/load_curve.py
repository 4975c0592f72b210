"""Measured load curves: requests/s and latencies of one replica by requests in flight, applied to other loads.

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

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers.points import CurvePoint
from sizing.specs.frozen import Frozen
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES

Array = NDArray[np.float64]
Statistic = tuple[str, str]  # metric and statistic of a latency: ("ttft", "p95")
# Latencies are unknown where states above the heaviest measured load occur more often than this.
UNKNOWN_SHARE = 0.01
# Arrivals of one state are spread evenly between its percentiles; those below the median count as the median (or mean).
MEDIAN = 0.5
SHARES = np.array([MEDIAN / 2, *np.linspace(MEDIAN, 1.0, 51)])
WIDTHS = np.array([MEDIAN - 0.005, *[0.01] * 50, 0.005])
TRIES = 60  # bisections: more precise than any digit shown


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


def closed_loop(curve: LoadCurve, in_flight: float) -> ReplicaLoad:
    """The load of a closed loop with `in_flight` requests, at most the heaviest measured load."""
    return ReplicaLoad(
        in_flight,
        float(_rate(curve, np.array([in_flight]))[0]),
        {name: float(np.interp(in_flight, curve.in_flight, values)) for name, values in curve.latencies_s.items()},
    )


def open_loop(curve: LoadCurve, requests_per_s: float) -> ReplicaLoad | None:
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
        load = open_loop(curve, rate)
        return load is not None and all(load.latencies_s[name] <= limit for name, limit in within.items())

    return most if keeps(most) else highest(keeps, most)


def highest(keeps: Callable[[float], bool], most: float) -> float:
    """The highest number below `most` for which `keeps` is true, by bisection; 0 without one. All lower numbers keep it too."""
    low, high = 0.0, most
    for _ in range(TRIES):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def heaviest_measured(curve: LoadCurve, within: Mapping[Statistic, float]) -> int | None:
    """The index of the heaviest measured load within the limits; None where no load is."""
    kept = np.ones(len(curve.in_flight), dtype=bool)
    for name, limit in within.items():
        kept &= curve.latencies_s[name] <= limit
    return int(np.flatnonzero(kept)[-1]) if kept.any() else None


def _rate(curve: LoadCurve, in_flight: Array) -> Array:
    """X(n), interpolated from X(0) = 0."""
    return np.interp(in_flight, np.concatenate(([0.0], curve.in_flight)), np.concatenate(([0.0], curve.requests_per_s)))
