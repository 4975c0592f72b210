"""Latency against throughput: a layout under one number of requests in flight after another.

A line is a layout of one GPU type and weight precision; its points are numbers in flight on one replica: held fixed in a
closed loop, as benchmark tools do, or the mean of Poisson arrivals. They are simulated through the engine's scheduler, or
taken from the closed form, which knows nothing of what waits for a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from sizing import memory, steady_state
from sizing.candidates import Candidate, Rejected, candidates
from sizing.errors import UntimedError
from sizing.load import Load, Loads
from sizing.request import Data, GpuOption, Request
from sizing.simulation import ROUNDS, Deployed, Traffic, simulate
from sizing.specs.workload import Tokens
from sizing.steady_state import Point
from sizing.verify import FEWEST_REQUESTS, deployed_as, lengths_of, steady

Progress = Callable[[int], None]  # called with the points that are done
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
Arrivals = Literal["closed", "poisson"]
ARRIVALS: tuple[Arrivals, ...] = ("closed", "poisson")
LOADS_TRIED, LIGHTEST = 400, 1e-4  # from which the rate is found that keeps so many in flight


@dataclass(frozen=True, slots=True)
class Line:
    """A layout that holds the model, with its load and how many requests of mean length its cache holds at once."""

    candidate: Candidate
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
    request: Request, options: Sequence[GpuOption], precisions: Sequence[str | None], layouts: Layouts, data: Data
) -> Iterator[Line | Rejected]:
    """Yield a line for each GPU type, precision and layout; what does not fit or can't be timed comes with its reason."""
    loads = Loads(request, data)
    for option in options:
        for precision in precisions:
            for tp in layouts.tp:
                for pp in layouts.pp:
                    serving = request.serving.model_copy(update={"tp": tp, "pp": pp})
                    for entry in candidates(replace(request, serving=serving), option, precision, data):
                        yield _line(entry, request, loads) if isinstance(entry, Candidate) else entry


def _line(candidate: Candidate, request: Request, loads: Loads) -> Line | Rejected:
    try:
        load = loads.of(candidate)
    except UntimedError as error:
        detail = "; ".join(fault.message for fault in error.faults)
        return Rejected(candidate.option, candidate.plan.weight_format, candidate.layout, "efficiency", detail)
    mean_length = memory.use(
        request.model,
        candidate.option.gpu,
        candidate.layout,
        candidate.plan,
        candidate.settings,
        max_model_len=request.isl + request.output_tokens,
        cuda_graphs_gib=request.serving.cuda_graphs_gib,
        extras=request.extras,
    )
    return Line(candidate, load, mean_length.max_concurrency)


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
    evaluate = steady_state.open_loop if arrivals == "poisson" else steady_state.closed_loop
    return _of_point(line, evaluate(load.curves, load.service, loads), in_flight, within)


def _decoding_of(load: Load, in_flight: int) -> float | None:
    """Return how many decode where Poisson arrivals keep so many in flight on average; None where no stable rate does."""
    ceiling = steady_state.decoding_limit(load.service, load.slots)
    tried = np.geomspace(LIGHTEST * min(1.0, ceiling), ceiling, LOADS_TRIED)
    point = steady_state.open_loop(load.curves, load.service, tried, {})
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


def simulated(
    found: Sequence[Line],
    request: Request,
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
    runs = [run(line, request, tokens, n, seed) for line in found for n in in_flight]
    order = sorted(range(len(runs)), key=lambda i: -runs[i].requests)  # the longest first: processes end together
    done = {}
    for number, (i, seen) in enumerate(zip(order, each(_seen, [runs[i] for i in order]), strict=True), start=1):
        done[i] = seen
        if progress is not None:
            progress(number)
    width = len(in_flight)
    return [[done[row * width + column] for column in range(width)] for row in range(len(found))]


def _run(line: Line, request: Request, tokens: Tokens, in_flight: int, seed: int) -> Run:
    traffic = _traffic(request, tokens, seed)
    fewest = 1 if traffic.isl.shape == traffic.osl.shape == "fixed" else FEWEST_REQUESTS
    count = max(fewest, ROUNDS * in_flight)
    return Run(
        deployed_as(line.candidate, line.load, request), in_flight, replace(traffic, count=count, in_flight=in_flight)
    )


def _poisson_run(line: Line, request: Request, tokens: Tokens, in_flight: int, seed: int) -> Run:
    load = line.load
    decoding = _decoding_of(load, in_flight)
    traffic = None
    if decoding is not None:
        rate = float(steady_state.requests_per_s(load.curves, load.service, np.array([decoding]))[0])
        traffic = steady(_traffic(request, tokens, seed), rate, in_flight, load.service.chunks)
    return Run(deployed_as(line.candidate, line.load, request), in_flight, traffic)


def _traffic(request: Request, tokens: Tokens, seed: int) -> Traffic:
    return Traffic(*lengths_of(tokens), 0, longest=request.max_model_len, seed=seed)


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
