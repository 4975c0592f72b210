"""The document of `llmsize curve`: lines judged by the limits, and the points that matter marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers import curve
from sizing.formats.view import Assumption, plain
from sizing.formats.words import milliseconds
from sizing.report.documents_curve import Curve, CurveAxis, CurveLimiting, CurveLine, CurvePoint, Metric, Percentiles
from sizing.report.parts.layouts import layout_in
from sizing.report.parts.pools import shape_words
from sizing.specs.units import MILLI
from sizing.specs.workload import Limits

METRICS: tuple[Metric, ...] = ("ttft", "itl", "e2e")
MARKS = ("pareto", "knee", "chosen")
OF_POINTS = (*MARKS, "bands", "latency_ms")  # what a point says beside the figures that make a mark of it
OF_LINES = ("points", "reason", "fits")

Place = tuple[int, int]  # a line's number and a point's on it


class _Placed(NamedTuple):
    """The points of some lines with their places, latencies and throughputs."""

    places: tuple[Place, ...]
    latency_ms: NDArray[np.float64]
    throughput: NDArray[np.float64]
    feasible: NDArray[np.bool_]


def build(
    lines: Sequence[CurveLine],
    limits: Limits,
    metric: Metric,
    inputs: dict[str, Any],
    assumptions: Callable[[int | None], Iterator[Assumption]],
) -> Curve:
    """Judge and mark the points.

    `assumptions` lists what the line of a number rests on: that of the chosen point, where there is none the first that
    fits, None where nothing does.
    """
    axis = axis_of(lines, limits, metric)
    judged = [line._replace(points=tuple(_judged(point, limits, axis) for point in line.points)) for line in lines]
    marked = {name: set[Place]() for name in MARKS}
    for origin in ("measured", "predicted"):
        placed = _placed(judged, lambda line, origin=origin: line.origin == origin)  # type: ignore[misc]
        front = curve.pareto(placed.latency_ms, placed.throughput)
        marked["pareto"].update(place for place, on in zip(placed.places, front, strict=True) if on)
        best = curve.best_within(placed.latency_ms, placed.throughput, placed.feasible)
        if best is not None and not marked["chosen"]:  # what was measured is not outdone by a prediction
            marked["chosen"].add(placed.places[best])
    marked["knee"].update(place for number, line in enumerate(judged) for place in _knee(number, line))
    shown = [_with_marks(number, line, marked) for number, line in enumerate(judged)]
    chosen = next(iter(_flat(shown, "chosen")), None)
    at = next(iter(marked["chosen"]), None)
    rests_on = at[0] if at is not None else next((number for number, line in enumerate(shown) if line.fits), None)
    return Curve(
        inputs=inputs,
        x=axis,
        limits=stated(limits),
        feasible=chosen is not None,
        limiting=None if chosen is not None else limiting(shown, limits),
        chosen=chosen,
        lines=tuple(shown),
        pareto=_flat(shown, "pareto"),
        knees=_flat(shown, "knee"),
        cache_full=tuple(_cache_full(line) for line in shown if line.cache_holds is not None),
        assumptions=tuple(dict.fromkeys(assumptions(rests_on))),
    )


def stated(limits: Limits) -> dict[str, Any]:
    """Return the limits in ms with the statistic that they bound; null where none is set."""
    found = {name: getattr(limits, name) for name in METRICS}
    return {
        name: None if limit is None else {"statistic": limit.statistic, "ms": limit.seconds / MILLI}
        for name, limit in found.items()
    }


def axis_of(lines: Sequence[CurveLine], limits: Limits, metric: Metric) -> CurveAxis:
    """Return the axis of a latency: in the statistic that its limit bounds where any point states it, else the mean.

    Sources that state medians alone are shown by those.
    """
    limit = getattr(limits, metric)
    wanted = limit.statistic if limit is not None else "mean"
    points = [point for line in lines for point in line.points]
    for statistic in (wanted, "mean", "p50"):
        if any(getattr(getattr(point.latency_ms, metric), statistic) is not None for point in points):
            drawn = limit is not None and statistic == limit.statistic
            return CurveAxis(metric, statistic, limit.seconds / MILLI if drawn else None)
    return CurveAxis(metric, wanted, None if limit is None else limit.seconds / MILLI)


def _judged(point: CurvePoint, limits: Limits, axis: CurveAxis) -> CurvePoint:
    """Return a point with the latency of the axis, and whether it keeps each limit."""
    met: dict[str, bool | None] = {
        name: _keeps(point.latency_ms, name, limits) for name in METRICS if getattr(limits, name) is not None
    }
    return point._replace(
        x_ms=getattr(getattr(point.latency_ms, axis.metric), axis.statistic),
        limits_met=met,
        feasible=point.requests_per_s is not None and all(met.values()),
    )


def _keeps(latency_ms: Percentiles, name: str, limits: Limits) -> bool | None:
    """Tell whether a limit is kept, None where the statistic that it bounds is not known."""
    limit = getattr(limits, name)
    value_ms = getattr(getattr(latency_ms, name), limit.statistic)
    return None if value_ms is None else bool(value_ms <= limit.seconds / MILLI)


def _placed(lines: Sequence[CurveLine], taken: Callable[[CurveLine], bool]) -> _Placed:
    found = [
        ((number, index), point)
        for number, line in enumerate(lines)
        if taken(line)
        for index, point in enumerate(line.points)
    ]
    return _Placed(
        tuple(place for place, _ in found),
        _array([point.x_ms for _, point in found]),
        _array([point.requests_per_s_per_8_gpus for _, point in found]),
        np.array([point.feasible for _, point in found], dtype=bool),
    )


def _array(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _knee(number: int, line: CurveLine) -> Iterator[Place]:
    placed = _placed([line], lambda _: True)
    index = curve.knee(placed.latency_ms, placed.throughput)
    if index is not None:
        yield number, index


def _with_marks(number: int, line: CurveLine, marked: Mapping[str, set[Place]]) -> CurveLine:
    def with_marks(index: int, point: CurvePoint) -> CurvePoint:
        pareto, knee, chosen = ((number, index) in marked[name] for name in MARKS)
        return point._replace(pareto=pareto, knee=knee, chosen=chosen)

    return line._replace(points=tuple(with_marks(index, point) for index, point in enumerate(line.points)))


def weights(precision: str) -> str:
    """Write a weight precision, and of a source that states none just that."""
    return precision.upper() or "weights not stated,"


def shape(line: CurveLine) -> str:
    """Write what a line runs: a replica's layout, or both pools."""
    return shape_of(line._asdict())


def shape_of(labels: Mapping[str, Any]) -> str:
    """Write the same of a point with the keys of its line."""
    if labels["pools"] is not None:
        return shape_words(labels["pools"])
    return "separate pools" if labels["tp"] is None else layout_in(labels)


def labels(line: CurveLine) -> dict[str, Any]:
    """Return what a point of a line is of."""
    return {name: value for name, value in line._asdict().items() if name not in OF_LINES}


def flat(line: CurveLine, point: CurvePoint) -> dict[str, Any]:
    """Return a point's figures with the keys of its line."""
    figures = {name: plain(value) for name, value in point._asdict().items() if name not in OF_POINTS}
    return {**labels(line), **figures}


def _flat(lines: Sequence[CurveLine], mark: str) -> tuple[dict[str, Any], ...]:
    return tuple(flat(line, point) for line in lines for point in line.points if getattr(point, mark))


def _cache_full(line: CurveLine) -> dict[str, Any]:
    first = next((point for point in line.points if point.cache_full), None)
    return {**labels(line), "concurrency": None if first is None else first.concurrency}


def limiting(lines: Sequence[CurveLine], limits: Limits) -> CurveLimiting:
    """Say why no point will do: nothing fits, nothing states what a limit bounds, or the limit that the nearest breaks."""
    points = [(line, point) for line in lines for point in line.points if point.requests_per_s is not None]
    if not points:
        reasons = [
            f"{line.gpu} {weights(line.weight_precision)} {shape(line)}: {line.reason}" for line in lines if line.reason
        ]
        detail = f"no layout fits; {reasons[0]}" if reasons else "no point has a throughput"
        return CurveLimiting(None, detail, None, None)
    over = [
        (_excess(point, limits), line, point)
        for line, point in points
        if all(v is not None for v in point.limits_met.values())
    ]
    if not over:
        names = ", ".join(f"{_statistic(limits, name)} {name.upper()}" for name in METRICS if _unstated(points, name))
        return CurveLimiting(None, f"no point states all that the limits bound: {names}", None, None)
    (name, excess), line, point = min(over, key=lambda entry: entry[0][1])
    limit = getattr(limits, name)
    value_ms = getattr(getattr(point.latency_ms, name), limit.statistic)
    detail = (
        f"no point keeps {limit.statistic} {name.upper()} <= {milliseconds(limit.seconds / MILLI)}; the nearest is "
        f"{weights(line.weight_precision)} {shape(line)} on {line.gpu} with {point.concurrency:,} in flight: "
        f"{milliseconds(value_ms)}"
    )
    return CurveLimiting(name, detail, excess, flat(line, point))


def _excess(point: CurvePoint, limits: Limits) -> tuple[str, float]:
    """Return the limit that a point breaks by the largest factor, and how far it is over."""
    found = {}
    for name in METRICS:
        limit = getattr(limits, name)
        if limit is not None:
            found[name] = getattr(getattr(point.latency_ms, name), limit.statistic) * MILLI / limit.seconds - 1
    worst = max(found, key=lambda name: found[name])
    return worst, found[worst]


def _statistic(limits: Limits, name: str) -> str:
    return str(getattr(limits, name).statistic)


def _unstated(points: Sequence[tuple[CurveLine, CurvePoint]], name: str) -> bool:
    return any(point.limits_met.get(name, True) is None for _, point in points)
