"""Points of a curve: the figures of a deployment at one load, simulated, computed or measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sizing.answers.answer import Answer
from sizing.engine.simulation import Run
from sizing.question.question import Question
from sizing.specs.bands import ErrorBand
from sizing.specs.units import MILLI, Statistics
from sizing.specs.workload import LATENCIES, Limits, Metric

GPUS_COMPARED = 8  # the usual server: throughput is compared per 8 GPUs
Latencies = Mapping[str, Mapping[str, float]]  # ttft, itl, e2e in s by statistic; empty where unknown


def metrics_of(limits: Mapping[str, object], mode: str) -> tuple[Metric, ...]:
    """The latencies that matter: the limited ones; without limits, TTFT for streaming and E2E for other modes."""
    limited = tuple(name for name in LATENCIES if limits[name] is not None)
    return limited or ("ttft" if mode == "streaming" else "e2e",)


class LoadSample(NamedTuple):
    """The figures of one load: `cache_used` is the peak share of the KV cache, `waiting` the mean number without a slot.

    `heaviest` marks the heaviest load within the limits, as `estimate` finds it.
    """

    in_flight: float
    latencies_s: Latencies
    requests_per_s: float | None
    decoding: float | None = None
    cache_used: float | None = None
    waiting: float | None = None
    preemptions: int = 0
    heaviest: bool = False

    @classmethod
    def unknown(cls, in_flight: float) -> LoadSample:
        """A load without known figures."""
        return cls(in_flight, {}, None)


def sample_of(run: Run, in_flight: float, share: float = 1.0) -> LoadSample:
    """The figures of a simulated load of one replica; or of pools, of whose load a `share` was simulated."""
    found, rate = run.latencies_s, run.requests_per_s / share
    decoding = rate * (found["e2e"]["mean"] - found["ttft"]["mean"])  # past their first token, by Little's law
    return LoadSample(in_flight, found, rate, decoding, run.cache_max, run.queue_mean / share, run.preemptions)


def sample_at(answer: Answer, osl: int, in_flight: float | None = None) -> LoadSample:
    """The figures of an answer at its own load; without ITL where an output has one token."""
    latencies_s = {str(name): answer.latency_s(name) for name in LATENCIES if osl > 1 or name != "itl"}
    held = answer.in_flight if in_flight is None else in_flight
    return LoadSample(held, latencies_s, answer.requests_per_s, answer.decode.point.decoding * answer.decode.count)


class Percentiles(NamedTuple):
    """The latencies of a point in ms, each with its mean and percentiles; null where unknown."""

    ttft: Statistics
    itl: Statistics
    e2e: Statistics


class CurvePoint(NamedTuple):
    """The figures of one replica (instance) at a number of requests in flight; null where unknown.

    `ttft_ms`, `itl_ms` and `e2e_ms` are means, `latency_ms` also has percentiles, and `x_ms` is the latency of the axis. `mbu`
    and `mfu` are of the decode step at this load. `kv_cache_utilisation` is the peak share of the KV cache in use, and
    `memory_used_gib` the memory of one GPU at that peak. `waiting` is the mean number of requests without a slot;
    `beyond_slots` is set where more requests are in flight than the engine runs at once. `limits_met` is null where a point
    does not state the statistic that a limit bounds; the point is then not `feasible`. `bands` has the error ranges of
    ttft_ms, itl_ms, e2e_ms and requests_per_s where these are known. `heaviest` marks the heaviest load within the limits, as
    `estimate` finds it by longer runs; heavier points of its line are not chosen.
    """

    concurrency: float
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    x_ms: float | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    requests_per_s_per_8_gpus: float | None
    output_tokens_per_s_per_gpu: float | None
    output_tokens_per_s_per_user: float | None
    mbu: float | None
    mfu: float | None
    kv_cache_utilisation: float | None
    memory_used_gib: float | None
    waiting: float | None
    beyond_slots: bool | None
    cache_full: bool | None
    limits_met: dict[str, bool | None]
    feasible: bool
    latency_ms: Percentiles
    bands: dict[str, ErrorBand]
    row: str | None = None
    pareto: bool = False
    knee: bool = False
    heaviest: bool = False
    chosen: bool = False

    def latency(self, metric: str, statistic: str) -> float | None:
        """A statistic of `ttft`, `itl` or `e2e` in ms."""
        found: float | None = getattr(getattr(self.latency_ms, metric), statistic)
        return found


def applying(question: Question) -> Limits:
    """The limits that apply: an output of one token has no ITL."""
    limits = question.target.limits
    return limits if question.service.osl > 1 else limits.model_copy(update={"itl": None})


def judged(point: CurvePoint, limits: Limits) -> CurvePoint:
    """A point with the limits that it keeps; None for a limit whose statistic is unknown."""
    met: dict[str, bool | None] = {}
    for name, limit in limits.stated.items():
        value_ms = point.latency(name, limit.statistic)
        met[name] = None if value_ms is None else value_ms <= limit.seconds / MILLI
    return point._replace(limits_met=met, feasible=point.requests_per_s is not None and all(met.values()))


def point_of(sample: LoadSample, gpus: int, output_tokens_per_s: float | None) -> CurvePoint:
    """The figures of a load that do not depend on the kind of deployment, on `gpus` GPUs."""
    latency_ms = Percentiles(*(_statistics(sample.latencies_s.get(name, {})) for name in LATENCIES))
    rate, tokens = sample.requests_per_s, output_tokens_per_s
    unknown: dict[str, Any] = dict.fromkeys(("x_ms", "mbu", "mfu", "memory_used_gib", "beyond_slots", "cache_full"))
    return CurvePoint(
        concurrency=sample.in_flight,
        **{f"{name}_ms": of.mean for name, of in latency_ms._asdict().items()},
        requests_per_s=rate,
        requests_per_s_per_gpu=None if rate is None else rate / gpus,
        requests_per_s_per_8_gpus=None if rate is None else rate / gpus * GPUS_COMPARED,
        output_tokens_per_s_per_gpu=None if tokens is None else tokens / gpus,
        output_tokens_per_s_per_user=None if tokens is None else tokens / sample.in_flight,
        kv_cache_utilisation=sample.cache_used,
        waiting=sample.waiting,
        limits_met={},
        feasible=True,
        latency_ms=latency_ms,
        bands={},
        heaviest=sample.heaviest,
        **unknown,  # of some kinds of deployment
    )


def _statistics(seconds: Mapping[str, float]) -> Statistics:
    return Statistics(*(seconds[name] / MILLI if name in seconds else None for name in Statistics._fields))
