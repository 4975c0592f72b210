"""Curves: lines of latency against throughput, judged by limits; the Pareto set, the knee of each line, the best point.

Latencies and throughputs are arrays of one length in any unit; NaN stands for a number that is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers import lines as replica_lines
from sizing.answers.answer import Each, Progress
from sizing.answers.lines import CurveLine, Grid, Pair, with_points
from sizing.answers.points import METRICS, CurvePoint, LoadSample, Metric, applying, judged
from sizing.catalog import shelf
from sizing.question.question import Question, load_data
from sizing.specs.bands import Bands
from sizing.specs.data import Data
from sizing.specs.units import MILLI
from sizing.specs.workload import Limits

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST_POINTS_OF_A_KNEE = 3  # two are their own chord
LEAST_RISE = 1e-9  # above the chord, in the logarithm: less is rounding


class CurveAxis(NamedTuple):
    """The latency that throughput is drawn against, in the statistic that its limit bounds where the points state it."""

    metric: Metric
    statistic: str
    limit_ms: float | None


class Curve(NamedTuple):
    """Lines whose points are judged and marked: `chosen` is the best one within the limits, `pareto` a set for each origin.

    Measured lines, where there are any, are what is chosen from: no prediction outdoes a measurement.
    """

    axis: CurveAxis
    limits: Limits
    lines: tuple[CurveLine, ...]

    @property
    def points(self) -> list[tuple[CurveLine, CurvePoint]]:
        """All points, each with its line."""
        return [(line, point) for line in self.lines for point in line.points]

    @property
    def chosen(self) -> tuple[CurveLine, CurvePoint] | None:
        """The most throughput within the limits, with its line; None where no point keeps them."""
        return next(((line, point) for line, point in self.points if point.chosen), None)

    @property
    def nearest(self) -> Nearest | None:
        """The point that comes nearest to keeping the limits; None where none states all that they bound."""
        found = [
            Nearest(*_excess(point, self.limits), line, point)
            for line, point in self.points
            if point.requests_per_s is not None and None not in point.limits_met.values()
        ]
        return min(found, key=lambda near: near.excess, default=None)


class Nearest(NamedTuple):
    """A point that breaks `limit` by the largest factor: an `excess` of 0.1 is 10 % over."""

    limit: Metric
    excess: float
    line: CurveLine
    point: CurvePoint


def _excess(point: CurvePoint, limits: Limits) -> tuple[Metric, float]:
    found: dict[Metric, float] = {}
    for name in METRICS:
        limit = getattr(limits, name)
        if limit is not None:
            found[name] = (point.latency(name, limit.statistic) or 0.0) * MILLI / limit.seconds - 1
    worst = max(found, key=lambda name: found[name])
    return worst, found[worst]


def curve(
    question: Question,
    grid: Grid,
    data: Data | None = None,
    *,
    measured: Sequence[CurveLine] = (),
    each: Each = map,
    progress: Progress | None = None,
) -> Curve:
    """Draw latency against throughput of every deployment of a grid, beside lines that were `measured`.

    `each` maps over the simulations in order, in other processes if it likes.

    >>> from sizing import Grid, Layouts, ask
    >>> question = ask("chat", model="llama-3.1-8b", gpu="h100-sxm")
    >>> drawn = curve(question, Grid(Layouts(tp=(1,), pp=(1,)), in_flight=(1, 8, 64), simulated=False))
    >>> len(drawn.lines), len(drawn.points)
    (1, 3)
    """
    data = data or load_data()
    found = list(replica_lines.lines(question, grid, data))
    if question.space.pools is not None:
        from sizing.answers import pool_lines

        found += pool_lines.lines(question, grid, data)
    predicted = evaluated(found, question, grid, each=each, progress=progress)
    limits = applying(question)
    return marked([*measured, *predicted], limits, grid.metric or metric_of(limits, question.origin.workload.mode))


def metric_of(limits: Limits, mode: str = "streaming") -> Metric:
    """The latency to draw against: E2E of whole answers; of streams TTFT, or ITL or E2E where that alone is limited."""
    if mode.strip().lower() != "streaming":
        return "e2e"
    return next((name for name in METRICS if getattr(limits, name) is not None), "ttft")


def evaluated(
    found: Sequence[CurveLine], question: Question, grid: Grid, *, each: Each = map, progress: Progress | None = None
) -> list[CurveLine]:
    """Put each line that has parts under the loads of the grid."""
    drawn = [line for line in found if line.parts]
    samples = iter(
        _closed_form(drawn, question, grid) if not grid.simulated else _simulated(drawn, question, grid, each, progress)
    )
    bands = shelf.only(Bands).bands
    return [with_points(line, next(samples), question, bands) if line.parts else line for line in found]


def _closed_form(drawn: Iterable[CurveLine], question: Question, grid: Grid) -> Iterator[list[LoadSample]]:
    for line in drawn:
        if isinstance(line.pools, Pair):
            from sizing.answers import pool_lines

            yield pool_lines.closed_form(line.pools, question)
        else:
            yield replica_lines.closed_form(line, grid.in_flight, grid.arrivals)


def _simulated(
    drawn: Sequence[CurveLine], question: Question, grid: Grid, each: Each, progress: Progress | None
) -> Iterator[list[LoadSample]]:
    rows = [_jobs(line, question, grid) for line in drawn]
    jobs = [job for row in rows for job in row]
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].requests)  # the longest first: processes end together
    done: dict[int, LoadSample] = {}
    for i, sample in zip(order, each(replica_lines.run, [jobs[i] for i in order]), strict=True):
        done[i] = sample
        if progress is not None:
            progress(len(done), len(jobs))
    in_order = iter(done[i] for i in range(len(jobs)))
    return ([next(in_order) for _ in row] for row in rows)


def _jobs(line: CurveLine, question: Question, grid: Grid) -> Sequence[replica_lines.Job]:
    if isinstance(line.pools, Pair):
        from sizing.answers import pool_lines

        return pool_lines.jobs(line.pools, question, grid)
    return replica_lines.jobs(line, question, grid)


def marked(lines: Sequence[CurveLine], limits: Limits, metric: Metric) -> Curve:
    """Judge the points by the limits, and mark those that matter."""
    axis = _axis(lines, limits, metric)
    found = [
        [judged(point, limits)._replace(x_ms=point.latency(metric, axis.statistic)) for point in line.points]
        for line in lines
    ]
    has_chosen = False
    for origin in ("measured", "predicted"):
        places = [(n, i) for n, line in enumerate(lines) if line.origin == origin for i in range(len(found[n]))]
        points = [found[n][i] for n, i in places]
        latency, throughput = _coordinates(points)
        best = best_within(latency, throughput, np.array([point.feasible for point in points], dtype=bool))
        for index, ((n, i), on) in enumerate(zip(places, pareto(latency, throughput), strict=True)):
            found[n][i] = found[n][i]._replace(pareto=bool(on), chosen=index == best and not has_chosen)
        has_chosen = has_chosen or best is not None  # what was measured is not outdone by a prediction
    for row in found:
        if (at := knee(*_coordinates(row))) is not None:
            row[at] = row[at]._replace(knee=True)
    return Curve(axis, limits, tuple(replace(line, points=tuple(row)) for line, row in zip(lines, found, strict=True)))


def _axis(lines: Iterable[CurveLine], limits: Limits, metric: Metric) -> CurveAxis:
    """The axis of a latency: in the statistic that its limit bounds where any point states it, else the mean.

    Sources that state medians alone are shown by those.
    """
    limit = getattr(limits, metric)
    wanted = limit.statistic if limit is not None else "mean"
    points = [point for line in lines for point in line.points]
    stated = (
        name for name in (wanted, "mean", "p50") if any(point.latency(metric, name) is not None for point in points)
    )
    statistic = next(stated, wanted)
    return CurveAxis(metric, statistic, limit.seconds / MILLI if limit is not None and statistic == wanted else None)


def _coordinates(points: Sequence[CurvePoint]) -> tuple[Array, Array]:
    """Latencies and throughputs; NaN where a point has none."""
    both = [(point.x_ms, point.requests_per_s_per_8_gpus) for point in points]
    x, y = ([math.nan if pair[axis] is None else pair[axis] for pair in both] for axis in (0, 1))
    return np.array(x, dtype=float), np.array(y, dtype=float)


def pareto(latency: Array, throughput: Array) -> Mask:
    """Mark the points that no other dominates: none is as fast with more throughput, nor faster with as much.

    Equal points do not dominate each other. A point without latency or throughput is in no set.
    """
    marked = np.zeros(latency.shape, dtype=bool)
    known = np.flatnonzero(np.isfinite(latency) & np.isfinite(throughput))
    most, at = -np.inf, -np.inf
    for index in known[np.lexsort((-throughput[known], latency[known]))]:
        if throughput[index] > most or (throughput[index] == most and latency[index] == at):
            marked[index] = True
            most, at = throughput[index], latency[index]
    return marked


def knee(latency: Array, throughput: Array) -> int | None:
    """The index of a line's knee, or None. Beyond the knee latency grows much faster than throughput.

    The knee lies furthest above the chord from the fastest to the slowest point on logarithmic axes. It does not depend
    on the units or scales of the axes.
    """
    known = np.flatnonzero((latency > 0) & (throughput > 0) & np.isfinite(latency) & np.isfinite(throughput))
    if known.size < LEAST_POINTS_OF_A_KNEE:
        return None
    known = known[np.lexsort((throughput[known], latency[known]))]
    x, y = np.log(latency[known]), np.log(throughput[known])
    above = (x[-1] - x[0]) * (y - y[0]) - (y[-1] - y[0]) * (x - x[0])
    furthest = int(np.argmax(above))
    return int(known[furthest]) if above[furthest] > LEAST_RISE else None


def best_within(latency: Array, throughput: Array, allowed: Mask) -> int | None:
    """The index of the highest throughput among `allowed` points, or None. Lower latency decides among equals."""
    fit = np.flatnonzero(allowed & np.isfinite(throughput))
    if fit.size == 0:
        return None
    order = np.lexsort((np.nan_to_num(latency[fit], nan=np.inf), -throughput[fit]))
    return int(fit[order[0]])
