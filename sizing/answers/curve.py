"""Curves of latency against throughput: points within the limits, the Pareto set, the knee of each line, the best point.

Latencies and throughputs are arrays of equal length in any unit; NaN means unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers import curve_lines
from sizing.answers.answer import Answer, Mapper, Outcome, Pool, Progress
from sizing.answers.curve_lines import CurveLine, Grid, Pair, with_points
from sizing.answers.curve_points import CurvePoint, LoadSample, applying, judged, sample_at, sample_of
from sizing.answers.search import evaluate
from sizing.answers.verify import verify
from sizing.question.question import Question
from sizing.specs.units import MILLI
from sizing.specs.workload import Limits, Metric

if TYPE_CHECKING:
    from sizing.answers.pool_lines import PairJob  # loaded where pools are drawn

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST_POINTS_OF_A_KNEE = 3  # two points lie on their chord
LEAST_RISE = 1e-9  # the smallest height above the chord, in logarithms: less is rounding


class CurveAxis(NamedTuple):
    """The latency axis; its statistic is the one that the limit bounds, where the points state it."""

    metric: Metric
    statistic: str
    limit_ms: float | None


class Curve(NamedTuple):
    """Lines whose points are judged by the limits; each origin (measured, predicted) has its own Pareto set.

    `chosen` is the best point within the limits. Where a measured point keeps them, it is chosen from the measured lines.
    With the outcome of a demand (`sized`), it is the load of the answer.
    """

    axis: CurveAxis
    limits: Limits
    lines: tuple[CurveLine, ...]
    sized: Outcome | None = None

    @property
    def points(self) -> list[tuple[CurveLine, CurvePoint]]:
        """All points, each with its line."""
        return [(line, point) for line in self.lines for point in line.points]

    @property
    def chosen(self) -> tuple[CurveLine, CurvePoint] | None:
        """The chosen point with its line: the highest throughput within the limits; None where no point keeps them."""
        return next(((line, point) for line, point in self.points if point.chosen), None)

    @property
    def nearest(self) -> Nearest | None:
        """The point that is nearest to the limits; None where no point states every latency that they bound."""
        found = [
            Nearest(*_excess(point, self.limits), line, point)
            for line, point in self.points
            if point.requests_per_s is not None and None not in point.limits_met.values()
        ]
        return min(found, key=lambda near: near.excess, default=None)


class Nearest(NamedTuple):
    """A point, and the limit that it exceeds most: an `excess` of 0.1 is 10 % over."""

    limit: Metric
    excess: float
    line: CurveLine
    point: CurvePoint


def _excess(point: CurvePoint, limits: Limits) -> tuple[Metric, float]:
    found = {
        name: (point.latency(name, limit.statistic) or 0.0) * MILLI / limit.seconds - 1
        for name, limit in limits.stated.items()
    }
    worst = max(found, key=lambda name: found[name])
    return worst, found[worst]


def curve(
    question: Question,
    grid: Grid | None = None,
    *,
    measured: Sequence[CurveLine] = (),
    demanded: Question | None = None,
    each: Mapper = map,
    progress: Progress | None = None,
) -> Curve:
    """Latency against throughput for every deployment of a grid (by default `lines.default_grid`), together with `measured` lines.

    The demand of `question` is ignored: each load is the load of one replica.
    The answer to `demanded`, the question with its demand, has a line, and its load is the chosen point.
    `each` maps over the simulations in order, possibly in other processes.
    Raises InputError where `demanded` is of separate pools, or the loads are closed loops.

    >>> from sizing import Grid, Layouts, ask
    >>> question = ask("chat", model="llama-3.1-8b", gpu="h100-sxm")
    >>> drawn = curve(question, Grid(Layouts(tp=(1,), pp=(1,)), in_flight=(1, 8, 64), simulated=False))
    >>> len(drawn.lines), len(drawn.points)
    (1, 3)
    """
    grid = grid or curve_lines.default_grid(question)
    sized = None
    if demanded is not None:
        curve_lines.check_demanded(grid.arrivals, pooled=demanded.space.pools is not None)
        from sizing.answers.estimate import answer  # loaded where a demand is drawn

        sized = answer(demanded, simulated=grid.simulated)
    question = question.with_(requests_per_s=None, concurrency=None, population=None)
    found = list(curve_lines.lines(question, grid))
    if question.space.pools is not None:
        from sizing.answers import pool_lines

        found += pool_lines.lines(question, grid)
    best = None if sized is None else sized.answer
    if best is not None and not any(curve_lines.is_of(line, best) for line in found):
        found.append(curve_lines.line_of_load(best.pool.timed, question))
    predicted = evaluated(found, question, grid, each=each, progress=progress)
    if sized is not None and best is not None:
        predicted = [_with_answer(line, best, sized.question) for line in predicted]
    limits = applying(question)
    metric = grid.metric or metric_of(limits, question.origin.workload.mode)
    return marked([*measured, *predicted], limits, metric)._replace(sized=sized)


def _with_answer(line: CurveLine, best: Answer, question: Question) -> CurveLine:
    """The line with the load of one replica of the answer as its chosen point; a line of another layout stays as it is."""
    if not curve_lines.is_of(line, best):
        return line
    point = curve_lines.point_of_answer(line, best, question)._replace(chosen=True)
    return replace(line, points=tuple(sorted((*line.points, point), key=lambda each: each.concurrency)))


def metric_of(limits: Limits, mode: str = "streaming") -> Metric:
    """The latency of the axis: E2E if not streaming; else the first limited one of TTFT, ITL and E2E, by default TTFT."""
    if mode.strip().lower() != "streaming":
        return "e2e"
    return next(iter(limits.stated), "ttft")


def evaluated(
    lines: Sequence[CurveLine], question: Question, grid: Grid, *, each: Mapper = map, progress: Progress | None = None
) -> list[CurveLine]:
    """Evaluate each line that has parts under the loads of the grid."""
    drawn = [line for line in lines if line.parts]
    samples = iter(
        _closed_form(drawn, question, grid) if not grid.simulated else _simulated(drawn, question, grid, each, progress)
    )
    return [with_points(line, next(samples), question, grid.arrivals) if line.parts else line for line in lines]


def _closed_form(drawn: Iterable[CurveLine], question: Question, grid: Grid) -> Iterator[list[LoadSample]]:
    for line in drawn:
        if isinstance(line.pools, Pair):
            from sizing.answers import pool_lines

            yield pool_lines.closed_form(line.pools, question)
        else:
            most, holds = heaviest(line, question, grid), line.cache_holds
            assert holds is not None
            own = [] if most is None else [most.closed_form(holds)]
            yield [*curve_lines.closed_form(line, grid.in_flight, grid.arrivals), *own]


def _simulated(
    drawn: Sequence[CurveLine], question: Question, grid: Grid, each: Mapper, progress: Progress | None
) -> Iterator[list[LoadSample]]:
    rows = [_jobs(line, question, grid) for line in drawn]
    jobs = [job for row in rows for job in row]
    order = sorted(range(len(jobs)), key=lambda i: -jobs[i].requests)  # longest first, so that processes end together
    done: dict[int, LoadSample | None] = {}
    for i, sample in zip(order, each(methodcaller("run"), [jobs[i] for i in order]), strict=True):
        done[i] = sample
        if progress is not None:
            progress(len(done), len(jobs))
    in_order = iter(done[i] for i in range(len(jobs)))
    return ([sample for _ in row if (sample := next(in_order)) is not None] for row in rows)


def _jobs(line: CurveLine, question: Question, grid: Grid) -> Sequence[curve_lines.ReplicaJob | PairJob | HeaviestJob]:
    if isinstance(line.pools, Pair):
        from sizing.answers import pool_lines

        return pool_lines.jobs(line.pools, question, grid)
    most = heaviest(line, question, grid)
    return [*curve_lines.jobs(line, question, grid), *([] if most is None else [most])]


class HeaviestJob(NamedTuple):
    """A replica under the closed form's heaviest load within the limits, to simulate."""

    size: Answer
    question: Question
    seed: int

    @property
    def requests(self) -> float:
        """Infinite, so that these simulations, the longest ones, start first."""
        return math.inf

    def run(self) -> LoadSample | None:
        """Simulate the load, and lighter ones until one keeps the limits; None where none does."""
        found = verify(Outcome(self.question, (self.size,), ()), seed=self.seed).answer
        if found is None or found.run is None:
            return None
        return sample_of(found.run, found.in_flight)._replace(heaviest=True)

    def closed_form(self, cache_holds: float) -> LoadSample:
        """The load by the closed form, where a KV cache holds so many requests of mean length."""
        used = min(1.0, self.size.in_flight / cache_holds)
        found = sample_at(self.size, self.question.service.osl)
        return found._replace(cache_used=used, waiting=0.0, heaviest=True)


def heaviest(line: CurveLine, question: Question, grid: Grid) -> HeaviestJob | None:
    """The heaviest load within the limits; None where there is none, or where the grid does not ask for it."""
    if not grid.heaviest or grid.arrivals == "closed" or question.target.offline:
        return None
    (load,) = line.parts
    alone = question.with_(gpu_budget=line.gpus)
    (pool,) = evaluate([load], alone)
    return HeaviestJob(Answer((pool,)), alone, grid.seed) if isinstance(pool, Pool) else None


def marked(lines: Sequence[CurveLine], limits: Limits, metric: Metric) -> Curve:
    """Judge the points by the limits, and mark the Pareto set, the knees and the chosen point."""
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
        # No load above the heaviest of its line within the limits, which longer runs decided.
        allowed = [found[n][i].feasible and not any(below.heaviest for below in found[n][:i]) for n, i in places]
        of_answer = (index for index, point in enumerate(points) if point.chosen)
        best = next(of_answer, best_within(latency, throughput, np.array(allowed, dtype=bool)))
        for index, ((n, i), on) in enumerate(zip(places, pareto(latency, throughput), strict=True)):
            found[n][i] = found[n][i]._replace(pareto=bool(on), chosen=index == best and not has_chosen)
        has_chosen = has_chosen or best is not None  # a measured point takes precedence over predictions
    for row in found:
        if (at := knee(*_coordinates(row))) is not None:
            row[at] = row[at]._replace(knee=True)
    return Curve(axis, limits, tuple(replace(line, points=tuple(row)) for line, row in zip(lines, found, strict=True)))


def _axis(lines: Iterable[CurveLine], limits: Limits, metric: Metric) -> CurveAxis:
    """The axis of a latency, in the statistic that its limit bounds, else the mean, else the median.

    The first of these that any point states is used.
    """
    limit = limits.stated.get(metric)
    wanted = "mean" if limit is None else limit.statistic
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
    """Mark the Pareto set: points that no other point beats in one of latency and throughput without losing in the other.

    Equal points do not dominate each other. A point without latency or throughput is not in the set.
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
    """The index of a line's knee, or None. Beyond the knee, latency grows much faster than throughput.

    The knee is the point furthest above the chord from the fastest to the slowest point, on logarithmic axes. It does not
    depend on units or scales.
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
