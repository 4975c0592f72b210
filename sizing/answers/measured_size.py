"""The GPUs that a demand needs by measurements alone: the number of measured replicas that serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sizing.answers.lines import Arrivals, CurveLine
from sizing.answers.load_curve import (
    LoadCurve,
    ReplicaLoad,
    Statistic,
    closed_loop,
    heaviest_measured,
    highest,
    highest_rate,
    load_curve,
    open_loop,
)
from sizing.specs.demand import replicas_for
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.frozen import Frozen
from sizing.specs.workload import Limits, Target

E2E: Statistic = ("e2e", "mean")
UTILISATION, MEASURED_END = "utilisation", "measured end"


class Short(Frozen):
    """A measured layout that keeps the limits at no load: the limit it exceeds most, and its latency at the lightest load, in s."""

    line: CurveLine
    limit: Statistic
    allowed_s: float
    reached_s: float


class MeasuredSize(Frozen):
    """A number of replicas of a measured layout, the load of each, and the capacity of one.

    `most` is the capacity of a replica in requests/s, or in requests in flight where the demand is (`by_flight`). `binds` is
    what limits it: a latency by name, the utilisation, or the heaviest measured load. `other_replicas` is the number with the
    other arrivals, closed loop in place of random or the reverse, each with `other_most` requests/s; None without an answer, and
    for rows measured at a rate.
    """

    line: CurveLine
    curve: LoadCurve
    replicas: int
    load: ReplicaLoad
    most: float
    by_flight: bool
    binds: str
    other_replicas: int | None = None
    other_most: float | None = None

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
        rate = _rate(curve, asked[closed], count, most, closed=closed)
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
    load = open_loop(curve, rate) if rate > 0 else None
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


def _rate(curve: LoadCurve, target: Target, replicas: int, most: _Most, *, closed: bool) -> float:
    """The rate of each of `replicas` replicas under the demand."""
    if target.requests_per_s is not None:
        return target.requests_per_s / replicas
    if target.concurrency is not None:
        return float(closed_loop(curve, min(target.concurrency / replicas, most.in_flight)).requests_per_s)
    assert target.population is not None
    each = target.population / replicas

    def serves(rate: float) -> bool:
        load = _load(curve, rate, closed=closed)
        return load is not None and target.population_of(rate, load.latencies_s[E2E]) <= each

    return highest(serves, most.requests_per_s)


def _load(curve: LoadCurve, requests_per_s: float, *, closed: bool) -> ReplicaLoad | None:
    if not closed:
        return open_loop(curve, requests_per_s)
    loads, rates = (np.concatenate(([0.0], values)) for values in (curve.in_flight, curve.requests_per_s))
    lightest = float(np.interp(requests_per_s * (1 - 1e-15), rates, loads))  # the lightest load that reaches the rate
    return closed_loop(curve, lightest)._replace(requests_per_s=requests_per_s)
