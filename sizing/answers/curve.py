"""Points of latency against throughput, whatever they came from: the Pareto set, the knee of a line, the best within limits.

Latencies and throughputs are arrays of one length in any unit; NaN stands for a number that is not known.

Latency against throughput: a layout under one number of requests in flight after another.

A line is a layout of one GPU type and weight precision; its points are numbers in flight on one replica: held fixed in a
closed loop, as benchmark tools do, or the mean of Poisson arrivals. They are simulated through the engine's scheduler, or
taken from the closed form, which knows nothing of what waits for a slot.

Latency against throughput under Poisson arrivals: a layout's replica at one rate after another, as an answer to a rate is sized.

`curve` asks by requests in flight; here the steps are shares of the highest stable rate, simulated as `verify` simulates an answer,
so that the answer's own load is a point of its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sizing.answers.answer import Answer
from sizing.answers.verify import FEWEST_REQUESTS, deployed_as, lengths_of, limits_of, simulated, steady
from sizing.engine.simulation import ROUNDS, Deployed, Traffic, simulate
from sizing.model import memory
from sizing.question.question import Data, GpuType, Question
from sizing.replica import batching
from sizing.replica.batching import Point
from sizing.replica.capacity import Capacity, Load, Timing
from sizing.replica.replica import Refusal, Replica, candidates
from sizing.specs.errors import UntimedError
from sizing.specs.workload import Limits, Tokens

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEAST_POINTS_OF_A_KNEE = 3  # two are their own chord
LEAST_RISE = 1e-9  # above the chord, in the logarithm: less is rounding


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
    """Return the index of a line's knee: beyond it latency grows much faster than throughput. None where there is none.

    It is the point that lies furthest above the chord from the line's fastest to its slowest point where both axes are
    logarithmic. Which one that is does not depend on the axes' units or scales.
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
    """Return the index of the highest throughput among the allowed points, the fastest of equals; None where none is."""
    fit = np.flatnonzero(allowed & np.isfinite(throughput))
    if fit.size == 0:
        return None
    order = np.lexsort((np.nan_to_num(latency[fit], nan=np.inf), -throughput[fit]))
    return int(fit[order[0]])


Progress = Callable[[int], None]  # called with the points that are done
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
Arrivals = Literal["closed", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = ("closed", "poisson")
LOADS_TRIED, LIGHTEST = 400, 1e-4  # from which the rate is found that keeps so many in flight


@dataclass(frozen=True, slots=True)
class Line:
    """A layout that holds the model, with its load and how many requests of mean length its cache holds at once."""

    replica: Replica
    load: Load
    cache_holds: float


class Layouts(NamedTuple):
    """The sizes of tensor and pipeline parallelism to draw lines of; the request states any others."""

    tp: tuple[int, ...]
    pp: tuple[int, ...]


class Seen(NamedTuple):
    """What is seen of one replica with so many requests in flight; what is not known is None, and has no latencies.

    `latencies_s` maps ttft, itl and e2e to {mean, p50, ...}, an empty mapping where there is none. `cache_used` is the
    highest share of the KV cache that was in use, `waiting` the mean number of requests outside of the engine's slots.
    """

    in_flight: int
    latencies_s: dict[str, dict[str, float]]
    requests_per_s: float | None
    decoding: float | None
    cache_used: float | None
    waiting: float | None
    preemptions: int


def lines(
    question: Question, options: Sequence[GpuType], precisions: Sequence[str | None], layouts: Layouts, data: Data
) -> Iterator[Line | Refusal]:
    """Yield a line for each GPU type, precision and layout; what does not fit or can't be timed comes with its reason."""
    loads = Timing(question, data)
    for option in options:
        for precision in precisions:
            for tp in layouts.tp:
                for pp in layouts.pp:
                    serving = question.service.serving.model_copy(update={"tp": tp, "pp": pp})
                    for entry in candidates(question.with_(serving=serving), option, precision, data):
                        yield _line(entry, question, loads) if isinstance(entry, Replica) else entry


def _line(replica: Replica, question: Question, loads: Timing) -> Line | Refusal:
    try:
        load = loads.of(replica)
    except UntimedError as error:
        detail = "; ".join(fault.message for fault in error.faults)
        return Refusal(replica.gpu_type, replica.plan.weight_format, replica.layout, "efficiency", detail)
    mean_length = memory.use(
        question.service.model,
        replica.gpu_type.gpu,
        replica.layout,
        replica.plan,
        replica.settings,
        max_model_len=question.service.isl + question.service.output_tokens,
        cuda_graphs_gib=question.service.serving.cuda_graphs_gib,
        extras=question.service.extras,
    )
    return Line(replica, load, mean_length.max_concurrency)


def closed_form(line: Line, in_flight: Sequence[int], arrivals: Arrivals = "closed") -> list[Seen]:
    """Return what the closed form says of equal lengths: of requests that start together, or of Poisson arrivals.

    Beyond the slots, or where the queue would have no end, some wait, of which it knows nothing: such a number in flight has
    no latencies and no rate.
    """
    load = line.load
    if arrivals == "poisson":
        decoding = {n: _decoding_of(load, n) for n in in_flight}
        within = [n for n in in_flight if decoding[n] is not None]
        loads = np.array([decoding[n] for n in within], dtype=float)
    else:
        within = [n for n in in_flight if n <= load.slots]
        loads = np.array(within, dtype=float)
    if not within:
        return [unknown(n) for n in in_flight]
    evaluate = batching.open_loop if arrivals == "poisson" else batching.closed_loop
    return _of_point(line, evaluate(load.curves, load.service, loads), in_flight, within)


def _decoding_of(load: Load, in_flight: int) -> float | None:
    """Return how many decode where Poisson arrivals keep so many in flight on average; None where no stable rate does."""
    ceiling = batching.decoding_limit(load.service, load.slots)
    tried = np.geomspace(LIGHTEST * min(1.0, ceiling), ceiling, LOADS_TRIED)
    point = batching.open_loop(load.curves, load.service, tried, {})
    ok = point.stable & (point.running <= load.slots)
    last = int(np.argmin(ok)) if not ok.all() else ok.size
    if last == 0 or in_flight > point.running[last - 1]:
        return None
    return float(np.interp(in_flight, point.running[:last], tried[:last]))


def _of_point(line: Line, point: Point, in_flight: Sequence[int], within: Sequence[int]) -> list[Seen]:
    decodes = line.load.service.osl > 1
    seen = {
        n: Seen(
            in_flight=n,
            latencies_s={
                name: {statistic: float(values[i]) for statistic, values in getattr(point, f"{name}_s").items()}
                if decodes or name != "itl"
                else {}
                for name in ("ttft", "itl", "e2e")
            },
            requests_per_s=float(point.requests_per_s[i]),
            decoding=float(point.decoding[i]),
            cache_used=min(1.0, n / line.cache_holds),
            waiting=0.0,
            preemptions=0,
        )
        for i, n in enumerate(within)
    }
    return [seen.get(n) or unknown(n) for n in in_flight]


def unknown(in_flight: int) -> Seen:
    """Return what is seen where nothing is known of so many in flight."""
    return Seen(in_flight, {"ttft": {}, "itl": {}, "e2e": {}}, None, None, None, None, 0)


class Run(NamedTuple):
    """One point to simulate; no traffic where none of the kind keeps so many in flight."""

    deployed: Deployed
    in_flight: int
    traffic: Traffic | None

    @property
    def requests(self) -> int:
        """Requests to simulate."""
        return self.traffic.count if self.traffic is not None else 0


def simulated_lines(
    found: Sequence[Line],
    question: Question,
    tokens: Tokens,
    in_flight: Sequence[int],
    *,
    seed: int = 0,
    arrivals: Arrivals = "closed",
    each: Each = map,
    progress: Progress | None = None,
) -> list[list[Seen]]:
    """Simulate every number in flight on every line; `each` maps over the runs in order, in other processes if it likes.

    Each place of a closed loop is filled `ROUNDS` times, as benchmark tools do; lengths that spread take some hundred requests
    at least, so that a few drawn ones do not decide. Poisson arrivals come at the rate that keeps so many in flight by the
    closed form, and are measured in the steady state; where no stable rate does, nothing is known.
    """
    run = _poisson_run if arrivals == "poisson" else _run
    runs = [run(line, question, tokens, n, seed) for line in found for n in in_flight]
    order = sorted(range(len(runs)), key=lambda i: -runs[i].requests)  # the longest first: processes end together
    done = {}
    for number, (i, seen) in enumerate(zip(order, each(_seen, [runs[i] for i in order]), strict=True), start=1):
        done[i] = seen
        if progress is not None:
            progress(number)
    width = len(in_flight)
    return [[done[row * width + column] for column in range(width)] for row in range(len(found))]


def _run(line: Line, question: Question, tokens: Tokens, in_flight: int, seed: int) -> Run:
    traffic = _traffic(question, tokens, seed)
    fewest = 1 if traffic.isl.shape == traffic.osl.shape == "fixed" else FEWEST_REQUESTS
    count = max(fewest, ROUNDS * in_flight)
    return Run(
        deployed_as(line.replica, line.load, question), in_flight, replace(traffic, count=count, in_flight=in_flight)
    )


def _poisson_run(line: Line, question: Question, tokens: Tokens, in_flight: int, seed: int) -> Run:
    load = line.load
    decoding = _decoding_of(load, in_flight)
    traffic = None
    if decoding is not None:
        rate = float(batching.requests_per_s(load.curves, load.service, np.array([decoding]))[0])
        traffic = steady(_traffic(question, tokens, seed), rate, in_flight, load.service.chunks)
    return Run(deployed_as(line.replica, line.load, question), in_flight, traffic)


def _traffic(question: Question, tokens: Tokens, seed: int) -> Traffic:
    return Traffic(*lengths_of(tokens), 0, longest=question.service.max_model_len, seed=seed)


def _seen(run: Run) -> Seen:
    """Simulate one point."""
    in_flight = run.in_flight
    if run.traffic is None:
        return unknown(in_flight)
    served = simulate(run.deployed, run.traffic, routing="round-robin")
    if not served.completed or not (served.stable or run.traffic.in_flight):
        return unknown(in_flight)
    ttft, e2e = served.latencies_s["ttft"]["mean"], served.latencies_s["e2e"]["mean"]
    return Seen(
        in_flight=in_flight,
        latencies_s=served.latencies_s,
        requests_per_s=served.requests_per_s,
        decoding=served.requests_per_s * (e2e - ttft),  # Little's law: of those past their first token
        cache_used=served.cache_max,
        waiting=served.queue_mean,
        preemptions=served.preemptions,
    )


SHARES = (
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
)  # of the highest stable rate; queues have no end at 1
LATENCIES = ("ttft", "itl", "e2e")


class AtRate(NamedTuple):
    """One replica at a rate: `size` holds its operating point, `share` is of the highest stable rate."""

    size: Answer
    share: float
    feasible: bool


def highest_stable(load: Load) -> Capacity:
    """Return what a replica serves with all slots taken, or where prefill alone fills the time, whatever the latencies."""
    rate = load.highest_per_s
    return Capacity(rate, rate, batching.decoding_limit(load.service, load.slots), "utilisation")


def line(best: Answer, question: Question, tokens: Tokens | None) -> Iterator[AtRate]:
    """Yield one replica of a layout at ascending rates, simulated with `tokens`, of the closed form without.

    Rates at which the queue keeps growing are left out: their latencies depend on how long one looks.
    """
    most = highest_stable(best.pool.load)
    for share in SHARES:
        rate = share * most.requests_per_s
        pool = replace(best.pool, count=1, point=best.pool.load.at_rate(rate, most))
        size = Answer((pool,))
        if not bool(pool.point.stable[0]) or float(pool.point.running[0]) > pool.load.slots:
            continue
        if tokens is not None:
            size = simulated(size, question, tokens)
        if size.run is None or size.run.stable:
            yield AtRate(size, share, keeps(size, limits_of(best, question)))


def own_point(best: Answer, question: Question) -> AtRate:
    """Return one replica of an answer at its share of the demand."""
    share = best.requests_per_s / best.pool.count / highest_stable(best.pool.load).requests_per_s
    return AtRate(best, share, keeps(best, limits_of(best, question)))


def keeps(size: Answer, limits: Limits) -> bool:
    """Tell whether a size keeps each limit on the statistic that it bounds."""
    for name in LATENCIES:
        limit = getattr(limits, name)
        if limit is not None and size.latency_s(name)[limit.statistic] > limit.seconds:
            return False
    return True
