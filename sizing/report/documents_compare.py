"""The document of `llmsize compare`."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.formats.view import Assumption
from sizing.report.documents_pools import PoolShapes
from sizing.report.parts.bands import ErrorBand


class Limited(NamedTuple):
    """A latency in the statistic that its limit bounds, and the limit."""

    statistic: str
    ms: float | None
    limit_ms: float


class CompareCandidate(NamedTuple):
    """One GPU type and weight precision at its best, or a pair of pools; figures are null where it can't serve the demand.

    Then `reason` says why.

    Latencies are means; `limited` holds each that has a limit in the limit's statistic. `bands` are by the name of a number,
    of `limited` ones as `limited.ttft_ms`. `assumed` counts the assumptions that the figures rest on; `borrowed_kernels`
    tells that kernel efficiencies of another GPU stand in for this one's. `gpus_per_replaced_gpu` is null where none are replaced.
    Where prefill and decode are `disaggregated`, `pools` has the layouts, and what a replica alone has is null: its layout, an id
    or a price of two GPU types, bands; `limit` is then what ends the load of the pool nearer to its most, `pools` without any.
    """

    gpu: str
    gpu_id: str | None
    weight_precision: str
    feasible: bool
    gpus: int | None
    replicas: int | None
    gpus_per_replica: int | None
    tp: int | None
    pp: int | None
    ep: int | None
    dp: int | None
    cp: int | None
    dcp: int | None
    gpus_per_replaced_gpu: float | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    concurrency: float | None
    max_requests_per_s: float | None
    headroom: float | None
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    limited: dict[str, Limited | None]
    bands: dict[str, ErrorBand]
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: float | None
    price_source: str | None
    power_w: float | None
    kwh_per_million_output_tokens: float | None
    limit: str
    reason: str | None
    verified: bool
    assumed: int | None
    borrowed_kernels: bool | None
    notes: tuple[str, ...]
    disaggregated: bool
    pools: PoolShapes | None


class Replaced(NamedTuple):
    """GPUs to replace, and the most that they serve within the limits: the demand of the comparison.

    `gpus_used` are those of whole replicas; `verified` says whether a simulation confirmed what they serve.
    """

    gpu: str
    gpu_id: str
    gpus: int
    gpus_used: int
    weight_precision: str
    replicas: int
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    requests_per_s: float
    verified: bool


class Compare(NamedTuple):
    """The document of `llmsize compare`: candidates in the order of `sort`, those that can't serve the demand last.

    `best` is the first of them, null where none serves it. `assumptions` are those that all feasible ones share.
    """

    feasible: bool
    inputs: dict[str, Any]
    demand: dict[str, Any]
    sort: str
    replaces: Replaced | None
    best: CompareCandidate | None
    candidates: tuple[CompareCandidate, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.compare/1"
