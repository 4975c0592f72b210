"""The document of `llmsize curve`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sizing.formats.view import Assumption
from sizing.report.parts.bands import ErrorBand
from sizing.report.parts.figures import Statistics
from sizing.report.parts.pools import PoolShapes

Origin = Literal["predicted", "measured"]
Metric = Literal["ttft", "itl", "e2e"]


class CurveAxis(NamedTuple):
    """The latency that throughput is drawn against, in the statistic that its limit bounds where the points state it."""

    metric: Metric
    statistic: str
    limit_ms: float | None


class Percentiles(NamedTuple):
    """The latencies of a point in ms, each with its mean and percentiles; null what is not known."""

    ttft: Statistics
    itl: Statistics
    e2e: Statistics


class CurvePoint(NamedTuple):
    """One number of requests in flight on one replica (instance), and what it serves; null what is not known.

    Latencies are means, `latency_ms` has the percentiles, `x_ms` is the one that the axis shows. `mbu` and `mfu` are of the
    decode step at this load; `kv_cache_utilisation` is the highest share of the cache in use, `memory_used_gib` what one
    GPU then uses. `waiting` requests are in no slot on average; `beyond_slots` is set where more are in flight than the
    engine runs at once. `limits_met` is null where a point does not state the statistic that a limit bounds, and then it is
    not `feasible`. `bands` hold ttft_ms, itl_ms and requests_per_s where their error is known.
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
    chosen: bool = False


class CurveLine(NamedTuple):
    """A layout of one GPU type and weight precision with its points by concurrency; `gpus` are those of one replica.

    `slots` are the requests that the engine runs at once, `cache_holds` those of mean length that its cache holds. One that
    does not fit has a reason and no points. `source` is where a measured line is from, whose weight precision may be empty:
    not stated. Of separate `pools` the GPUs are those of both, `concurrency` is over both, and what one replica alone has (its
    layout, slots, cache) is null; MBU, MFU and the cache in use of their points are the decode pool's.
    """

    origin: Origin
    gpu: str
    weight_precision: str
    kv_precision: str | None
    tp: int | None
    pp: int | None
    ep: int | None
    dp: int | None
    cp: int | None
    dcp: int | None
    gpus: int | None
    engine: str
    engine_version: str | None
    fits: bool
    reason: str | None
    slots: int | None
    slots_bound: str | None
    cache_holds: float | None
    source: str | None
    points: tuple[CurvePoint, ...]
    pools: PoolShapes | None = None


class CurveLimiting(NamedTuple):
    """Why no point will do: the limit that the nearest one breaks (null: nothing fits, or nothing is stated), and how far.

    `excess` is 0.1 where the nearest point, which stands in `nearest` with its line's keys, is 10 % over.
    """

    limit: str | None
    detail: str
    excess: float | None
    nearest: dict[str, Any] | None


class Curve(NamedTuple):
    """The document of `llmsize curve`: `chosen`, `pareto` and `knees` are points with the keys of their line.

    Measured lines, where there are any, are what is chosen from: no prediction outdoes a measurement. `pareto` is a set for
    each origin. `cache_full` names each line's first point at which no further request of mean length fits its cache.
    """

    inputs: dict[str, Any]
    x: CurveAxis
    limits: dict[str, Any]
    feasible: bool
    limiting: CurveLimiting | None
    chosen: dict[str, Any] | None
    lines: tuple[CurveLine, ...]
    pareto: tuple[dict[str, Any], ...]
    knees: tuple[dict[str, Any], ...]
    cache_full: tuple[dict[str, Any], ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.curve/1"
