"""Lines of latency against throughput: one deployment at increasing load.

A deployment is one replica of a layout, or separate pools for prefill and decode (`pool_lines`). Its load is a number of
requests in flight: fixed in a closed loop, as in benchmark tools, or the mean number of Poisson arrivals at a rate. A point
is simulated with the engine's scheduler, or computed by the closed form, which does not model waiting for a slot. In
`by_rate`, the loads are shares of the highest stable rate. They are simulated as in `verify`, so that an answer's own load
is a point of its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from sizing.answers.answer import Answer, Outcome, Pool, layout_key
from sizing.answers.confidence import least_of, likely
from sizing.answers.curve_points import CurvePoint, LoadSample, applying, judged, point_of, sample_at, sample_of
from sizing.answers.search import timed
from sizing.answers.sizes import VERIFY
from sizing.answers.verify import lengths_of, simulated, steady
from sizing.catalog import shelf
from sizing.engine.deployment import Deployment, deployment_of
from sizing.engine.simulation import ROUNDS, Traffic, simulate
from sizing.formats.words import joined
from sizing.model.architecture import Layout
from sizing.model.extras import NOTHING
from sizing.question.question import Question, SeparatePools
from sizing.replica import batching
from sizing.replica import step as step_model
from sizing.replica.capacity import highest_stable, last_of_leading, point_at_rate, points_of
from sizing.replica.replica import Refusal, cache_format, candidates
from sizing.replica.step import Batch
from sizing.replica.timing import Timed, Timing, requests_per_s
from sizing.specs.bands import Band, BandMetric, Bands, ErrorBand, find, region
from sizing.specs.errors import InputError, listed, not_known, not_whole, raise_any
from sizing.specs.frozen import Frozen
from sizing.specs.units import MILLI
from sizing.specs.workload import LATENCIES, Metric

Origin = Literal["predicted", "measured"]
Arrivals = Literal["closed", "poisson"]

ARRIVALS: tuple[Arrivals, ...] = ("closed", "poisson")
BANDED: dict[str, BandMetric] = {"ttft_ms": "ttft", "itl_ms": "itl", "e2e_ms": "e2e", "requests_per_s": "throughput"}
# Shares of the highest stable rate; at 1 queues grow without end.
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
TP, PP, LOADS = (1, 2, 4, 8), (1,), tuple(2**power for power in range(10))  # drawn where nothing else is asked for
LOADS_TRIED, LIGHTEST = 400, 1e-4  # the loads from which the rate for a number in flight is interpolated


class Pair(Frozen):
    """Two pools as asked for, the pair that serves them, and the loads: requests in flight over both pools."""

    asked: SeparatePools
    pair: Answer
    in_flight: tuple[int, ...]


class CurveLine(Frozen):
    """A deployment with its points by load; without points, `reason` or `pools` (the outcome of their search) say why.

    `source`, `arrivals`, `ran_with`, `sent` and `pooled` are those of a measured line.
    """

    origin: Origin
    gpu: str
    weight_precision: str  # empty if a measured line does not state it
    engine: str
    engine_version: str | None
    kv_precision: str | None = None
    layout: Layout | None = None
    gpus: int | None = None  # of one replica or of both pools
    reason: str | None = None
    cache_holds: float | None = None  # requests of mean length in a replica's KV cache
    cache_over_predicted: float | None = None  # its tokens over the predicted ones, by an engine's log
    source: str | None = None
    arrivals: Arrivals | None = None
    ran_with: str | None = None  # what tells its runs from plain ones
    sent: str | None = None  # how arrivals at a rate were not random
    pooled: str | None = None  # the GPUs of two measured pools
    parts: tuple[Timed, ...] = ()  # the predicted replica, or those of `pools`: prefill, decode
    pools: Pair | Outcome | None = None
    points: tuple[CurvePoint, ...] = ()

    @property
    def timed(self) -> Timed | None:
        """The timed replica of a line of one replica; None for pools."""
        return self.parts[0] if len(self.parts) == 1 else None


class Layouts(NamedTuple):
    """The sizes of tensor and pipeline parallelism to draw; the question states all other sizes."""

    tp: tuple[int, ...]
    pp: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The layouts to draw, one line each, and their loads, simulated or in closed form.

    `in_flight_of_pools` defaults to doublings from 1 to the most that the pools hold in a stable state. With `heaviest`, each
    layout also has the heaviest load within the limits, as `estimate` finds it. `metric` is the latency of the axis; its
    default is `curve.metric_of`.
    """

    layouts: Layouts
    in_flight: tuple[int, ...]
    in_flight_of_pools: tuple[int, ...] | None = None
    arrivals: Arrivals = "poisson"
    simulated: bool = True
    seed: int = 0
    metric: Metric | None = None
    heaviest: bool = False

    def __post_init__(self) -> None:
        """Raise InputError with every invalid field."""
        in_flight = {name: getattr(self, name) for name in ("in_flight", "in_flight_of_pools")}
        whole = {"layouts.tp": self.layouts.tp, "layouts.pp": self.layouts.pp, **in_flight}
        faults = [fault for name, values in whole.items() for fault in listed(name, values, not_whole)]
        faults += [*not_known("arrivals", ARRIVALS, self.arrivals), *not_known("metric", LATENCIES, self.metric)]
        raise_any((*faults, *not_whole("seed", self.seed, least=0)))


def default_grid(question: Question) -> Grid:
    """The grid of `llmsize curve` without options: the layouts that the question leaves open, doublings, the heaviest load."""
    tp, pp = question.service.serving.tp, question.service.serving.pp
    return Grid(Layouts(TP if tp is None else (tp,), PP if pp is None else (pp,)), LOADS, heaviest=True)


# --- which lines ---------------------------------------------------------------------------------------------------------


def check_demanded(arrivals: Arrivals, *, pooled: bool, field: str = "demanded") -> None:
    """Raise InputError for a demand whose answer is no line of a curve: of separate pools, or beside closed loops."""
    if pooled:
        remedy = "use llmsize estimate; or without it"
        raise InputError("sizes one pool, and a curve draws both", field=field, remedy=remedy)
    if arrivals == "closed":
        raise InputError(
            "arrives at random, and a closed loop does not", field=field, remedy="use it without --closed-loop"
        )


def lines(question: Question, grid: Grid) -> Iterator[CurveLine]:
    """Yield a line without points for each GPU type, precision and layout; `reason` says why one cannot be drawn."""
    timing = Timing()
    for gpu_type in question.space.gpu_types:
        for precision in question.space.precisions:
            for tp, pp in product(*grid.layouts):
                serving = question.service.serving.model_copy(update={"tp": tp, "pp": pp})
                found = candidates(question.with_(serving=serving).service, gpu_type, precision)
                yield from (_line(entry, question) for entry in timed(found, timing))


def line_of(answer: Answer, question: Question) -> CurveLine | None:
    """The line of an answer's layout, without points; None where the layout does not fit `question`."""
    replica = answer.pool.replica
    sizes = Layouts((replica.layout.tp,), (replica.layout.pp,))
    alone = question.with_(gpu_types=(replica.gpu_type,), precisions=(replica.precision,))
    found = lines(alone, Grid(sizes, (1,)))
    return next((line for line in found if line.parts and line.layout == replica.layout), None)


def _line(entry: Timed | Refusal, question: Question) -> CurveLine:
    if isinstance(entry, Refusal):
        engine, layout = (question.service.engine.title, question.service.engine_version), entry.layout
        of = (entry.gpu_type.name, entry.precision, *engine)
        return CurveLine("predicted", *of, layout=layout, gpus=layout.gpus, reason=entry.detail)
    return line_of_load(entry, question)


def line_of_load(timed: Timed, question: Question) -> CurveLine:
    """The line of a replica, without points."""
    replica = timed.replica
    holds = replica.memory_at(replica.service.isl + replica.service.output_tokens).max_concurrency
    return predicted((timed,), question, layout=replica.layout, gpus=replica.layout.gpus, cache_holds=holds)


def is_of(line: CurveLine, answer: Answer) -> bool:
    """Whether a line is of the layout, GPU type and weights of an answer from one pool."""
    timed = line.timed
    return timed is not None and layout_key(timed.replica) == layout_key(answer.pool.replica)


def point_of_answer(line: CurveLine, answer: Answer, question: Question) -> CurvePoint:
    """The load of one replica of an answer to a question, simulated if the answer is, as a point of its line.

    Its ranges are those of the answer; its rate is asked for, or follows from the latency.
    """
    sample = _of_replica(answer, question.service.osl)._replace(decoding=None)
    if answer.run is not None:
        sample = sample_of(answer.run, sample.in_flight)._replace(requests_per_s=sample.requests_per_s)
    known = {band.metric: band for band in likely(answer, question)}
    found = _point(line, sample, question, "poisson", known or None)
    return found._replace(bands={name: band for name, band in found.bands.items() if name != "requests_per_s"})


def _of_replica(size: Answer, osl: int) -> LoadSample:
    """The figures of one of an answer's replicas at its own load."""
    rate = size.requests_per_s / size.pool.count
    return sample_at(size, osl, rate * size.latency_s("e2e")["mean"])._replace(requests_per_s=rate)


def predicted(
    parts: tuple[Timed, ...],
    question: Question,
    *,
    gpus: int,
    layout: Layout | None = None,
    cache_holds: float | None = None,
    pools: Pair | None = None,
) -> CurveLine:
    """A predicted line of the replicas `parts`, without points."""
    replicas = [part.replica for part in parts]
    return CurveLine(
        "predicted",
        joined(replica.gpu_type.name for replica in replicas),
        joined(replica.plan.weight_format for replica in replicas),
        question.service.engine.title,
        question.service.engine_version,
        kv_precision=joined(cache_format(replica) for replica in replicas),
        layout=layout,
        gpus=gpus,
        cache_holds=cache_holds,
        parts=parts,
        pools=pools,
    )


# --- what a load does ----------------------------------------------------------------------------------------------------


def closed_form(line: CurveLine, in_flight: Sequence[int], arrivals: Arrivals) -> list[LoadSample]:
    """The closed form for equal lengths: requests that start together (closed loop), or Poisson arrivals.

    It does not model waiting. A number in flight above the slots, or without a stable rate, has no latencies and no rate.
    """
    timed, holds = line.timed, line.cache_holds
    assert timed is not None and holds is not None
    if arrivals == "poisson":
        decoding = {n: _decoding_of(timed, n) for n in in_flight}
    else:
        decoding = {n: float(n) if n <= timed.slots else None for n in in_flight}
    within = {n: held for n, held in decoding.items() if held is not None}
    if not within:
        return [LoadSample.unknown(n) for n in in_flight]
    evaluate = batching.open_loop if arrivals == "poisson" else batching.closed_loop
    point = evaluate(timed.curves, timed.batching, np.array([*within.values()]))
    seconds = {str(name): getattr(point, f"{name}_s") for name in LATENCIES if timed.batching.osl > 1 or name != "itl"}
    samples = {}
    for i, n in enumerate(within):
        latencies_s = {name: {key: float(of[i]) for key, of in each.items()} for name, each in seconds.items()}
        rate, held = float(point.requests_per_s[i]), float(point.decoding[i])
        samples[n] = LoadSample(n, latencies_s, rate, held, cache_used=min(1.0, n / holds), waiting=0.0)
    return [samples.get(n) or LoadSample.unknown(n) for n in in_flight]


def _decoding_of(timed: Timed, in_flight: int) -> float | None:
    """The mean number of decoding requests at `in_flight` mean requests of Poisson arrivals; None without a stable rate.

    More requests than slots are in flight only within a few percent of the highest rate. No closed form and no run of a limited
    length tells such a rate from one at which the queue keeps growing, so these loads have no rate either.
    """
    if in_flight > timed.slots:
        return None
    ceiling = timed.most_decoding
    tried = np.geomspace(LIGHTEST * min(1.0, ceiling), ceiling, LOADS_TRIED)
    point = batching.open_loop(timed.curves, timed.batching, tried, {})
    last = last_of_leading(point.stable & (point.running <= timed.slots))
    if last < 0 or in_flight > point.in_flight[last]:
        return None
    return float(np.interp(in_flight, point.in_flight[: last + 1], tried[: last + 1]))


class ReplicaJob(NamedTuple):
    """One load of one replica to simulate; `traffic` is None where no stable rate keeps `in_flight`."""

    deployed: Deployment
    in_flight: int
    traffic: Traffic | None

    @property
    def requests(self) -> int:
        """Requests to simulate."""
        return self.traffic.count if self.traffic is not None else 0

    def run(self) -> LoadSample:
        """Simulate the load; a load under which the queue keeps growing has no figures."""
        if self.traffic is None:
            return LoadSample.unknown(self.in_flight)
        served = simulate(self.deployed, self.traffic, routing="round-robin")
        if not served.completed or not (served.stable or self.traffic.in_flight):
            return LoadSample.unknown(self.in_flight)
        return sample_of(served, self.in_flight)


def jobs(line: CurveLine, question: Question, grid: Grid) -> list[ReplicaJob]:
    """The simulations of a replica's line.

    In a closed loop each place in flight is filled `ROUNDS` times, as in benchmark tools. Random lengths need at least
    `VERIFY.fewest_requests`, so that a few draws do not decide. Poisson arrivals come at the rate that keeps the number in
    flight by the closed form, and are measured in the steady state. Without a stable rate there are no figures.
    """
    (timed,) = line.parts
    traffic = Traffic(
        *lengths_of(question.origin.workload.tokens), 0, longest=question.service.max_model_len, seed=grid.seed
    )
    fewest = 1 if traffic.isl.shape == traffic.osl.shape == "fixed" else VERIFY.fewest_requests

    def of(in_flight: int) -> Traffic | None:
        if grid.arrivals == "closed":
            return replace(traffic, count=max(fewest, ROUNDS * in_flight), in_flight=in_flight)
        decoding = _decoding_of(timed, in_flight)
        if decoding is None:
            return None
        rate = float(requests_per_s(timed.curves, timed.batching, np.array([decoding]))[0])
        return steady(traffic, rate, in_flight, float(timed.batching.chunks))

    return [ReplicaJob(deployment_of(timed), n, of(n)) for n in grid.in_flight]


class LineByRate(NamedTuple):
    """A line of one replica by rate, and each point's share of the highest stable rate."""

    line: CurveLine
    shares: tuple[float, ...]


def by_rate(best: Answer, question: Question, *, simulates: bool, is_answer: bool) -> LineByRate:
    """Evaluate one replica of a layout at shares of its highest stable rate, simulated where `simulates`, else in closed form.

    Rates at which the queue keeps growing are left out, because their latencies depend on the length of the run. Where
    `is_answer`, the load of `best` is one of the points and is marked as chosen.
    """
    most, limits = highest_stable(best.pool.timed), applying(question)
    own = best.requests_per_s / best.pool.count / most.requests_per_s
    found = [(own, best)] if is_answer else []
    for share in SHARES:
        rate = share * most.requests_per_s
        pool = replace(best.pool, count=1, point=point_at_rate(best.pool.timed, rate, most))
        if not pool.point.stable or pool.point.running > pool.timed.slots:
            continue
        size = Answer((pool,))
        if simulates:
            # For users and requests in flight, the rate would otherwise follow from the demand.
            size = simulated(size, question.with_(population=None, requests_per_s=rate))
        if size.run is None or size.run.stable:
            found.append((share, size))
    found.sort(key=lambda entry: entry[1].requests_per_s / entry[1].pool.count)
    layout, service = best.pool.replica.layout, question.service
    line, points = predicted((best.pool.timed,), question, layout=layout, gpus=layout.gpus), []
    for _, size in found:
        sample = _of_replica(size, service.osl)
        point = point_of(sample, layout.gpus, (sample.requests_per_s or 0.0) * service.output_tokens)
        points.append(judged(point, limits)._replace(chosen=size is best))
    return LineByRate(replace(line, points=tuple(points)), tuple(share for share, _ in found))


# --- its figures ---------------------------------------------------------------------------------------------------------


def with_points(line: CurveLine, samples: Iterable[LoadSample], question: Question, arrivals: Arrivals) -> CurveLine:
    """A predicted line with the figures of each load."""
    ordered = sorted(samples, key=lambda sample: sample.in_flight)
    return replace(line, points=tuple(_point(line, sample, question, arrivals) for sample in ordered))


Known = dict[BandMetric, Band]


def _point(
    line: CurveLine, sample: LoadSample, question: Question, arrivals: Arrivals, of_answer: Known | None = None
) -> CurvePoint:
    assert line.gpus is not None
    rate, timed, used = sample.requests_per_s, line.timed, sample.cache_used
    found = point_of(sample, line.gpus, None if rate is None else rate * question.service.output_tokens)
    mbu, mfu = _decode_share(line, sample, question)
    found = found._replace(mbu=mbu, mfu=mfu, beyond_slots=rate is None)
    if timed is None:
        return found
    if used is not None:  # the cache at its highest use: full without room for one more request of mean length
        held = timed.replica.memory
        fixed_gib = held.weights_gib + held.activation_gib + held.non_torch_gib + held.cuda_graphs_gib
        holds = line.cache_holds
        full = None if holds is None else sample.preemptions > 0 or used + 1 / holds > 1
        found = found._replace(memory_used_gib=fixed_gib + used * held.kv_cache_gib, cache_full=full)
    found = found._replace(beyond_slots=sample.in_flight > timed.slots)
    return found._replace(bands=_bands(found, line, question, arrivals, of_answer))


def _decode_share(line: CurveLine, sample: LoadSample, question: Question) -> tuple[float | None, float | None]:
    """MBU and MFU of a decode step with the mean number of sequences at their mean context."""
    if sample.decoding is None or question.service.osl <= 1:
        return None, None
    load = line.parts[-1]
    replicas = line.pools.pair.decode.count if isinstance(line.pools, Pair) else 1
    micro = max(1.0, sample.decoding / replicas / load.batching.pp)
    batch = Batch(decode_sequences=micro, decode_context_tokens=question.service.isl + question.service.osl / 2)
    step = step_model.step(load.kernels, batch)
    return step.mbu, step.mfu


def _bands(
    point: CurvePoint, line: CurveLine, question: Question, arrivals: Arrivals, of_answer: Known | None = None
) -> dict[str, ErrorBand]:
    """The error bands of a point, by the rule of `estimate` for its load as a demand; else those of its class.

    `of_answer` are those of an answer. In a closed loop the band of the rate follows from that of the E2E. None with
    optimisations or for pooled models, which published runs do not cover.
    """
    if question.service.extras != NOTHING or question.service.model.pooled or point.requests_per_s is None:
        return {}
    held = max(1, round(point.concurrency))
    load = {"concurrency": held} if arrivals == "closed" else {"requests_per_s": point.requests_per_s}
    (timed,), asked = line.parts, question if of_answer is not None else question.with_(**load)
    by_runs = of_answer or _by_runs(timed, asked)
    situation = asked.service.situation(timed.replica.gpu_type.gpu, region(point.concurrency))
    alone, bands = situation._replace(mode="served", load="solo"), shelf.only(Bands).bands
    e2e = by_runs.get("e2e") or find(bands, "e2e", situation)
    if arrivals == "closed" and e2e is not None:  # the rate is a result, by Little's law
        by_rate = {"metric": "throughput", "low": 1 / e2e.high, "high": 1 / e2e.low}
        by_runs["throughput"] = e2e.model_copy(update=by_rate)
    least = least_of(timed.solo_ttft_s / MILLI, timed.solo_itl_s / MILLI, alone) if by_runs else {}
    bounds: dict[str, ErrorBand] = {}
    for name, metric in BANDED.items():
        band, value = by_runs.get(metric) or find(bands, metric, situation), getattr(point, name)
        if band is not None and value is not None:
            low = max(value * band.low, min(value, least.get(metric, 0.0)))
            bounds[name] = ErrorBand(low, value * band.high, band.n)
    return bounds


def _by_runs(timed: Timed, question: Question) -> Known:
    """The ranges of one replica under a demand, by published runs like it; empty without any."""
    most = highest_stable(timed)
    (at,) = points_of([timed], [question.target], [most], [1])
    known = likely(Answer((Pool(timed, 1, most, at),)), question)
    return {band.metric: band for band in known}
