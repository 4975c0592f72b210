"""What a document says of a disaggregated deployment: its pools, the way between them, and aggregated serving beside it."""

from __future__ import annotations

from typing import NamedTuple

from sizing.report.documents import RejectedLayout
from sizing.report.parts.figures import Statistics
from sizing.report.parts.pools import Transfer


class PoolFigures(NamedTuple):
    """One pool: what to run, how full it is, what ends its load.

    `utilisation` is its rate over the highest that it could serve without any limit, `most_requests_per_s` what it serves
    within the limits, `limit` what ends that. TTFT is the prefill pool's and counts the transfer, ITL the decode pool's; the
    other is null. `kv_cache_tokens` are those that one replica holds.
    """

    gpu: str
    gpu_id: str
    replicas: int
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    gpus_per_replica: int
    nodes_per_replica: int
    gpus: int
    weight_precision: str
    utilisation: float
    most_requests_per_s: float
    limit: str
    ttft_ms: float | None
    itl_ms: float | None
    kv_cache_tokens: int
    solo_ms: float


class Aggregated(NamedTuple):
    """The answer that serves as one, for the same demand and limits."""

    gpus: int
    requests_per_s: float
    ttft_ms: float
    itl_ms: float | None
    usd_per_hour: float | None
    power_w: float


class Disaggregated(NamedTuple):
    """A disaggregated deployment beside aggregated serving; figures are null where it is infeasible.

    `ratio` is GPUs of prefill over those of decode, `binding` the pool that is nearer to its most, `sizes_tried` those
    simulated (null: none), `simulate_command` simulates the answer. `beats_aggregated` tells by the objective, and `why` in words.
    """

    feasible: bool
    gpus: int | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    usd_per_hour: float | None
    power_w: float | None
    prefill: PoolFigures | None
    decode: PoolFigures | None
    kv_transfer_ms: float | None
    kv_transfer: Transfer | None
    ratio: float | None
    binding: str | None
    ttft_ms: Statistics | None
    itl_ms: Statistics | None
    e2e_ms: Statistics | None
    sizes_tried: int | None
    aggregated: Aggregated | None
    beats_aggregated: bool
    why: str
    needs: str
    rejected: dict[str, tuple[RejectedLayout, ...]]
    simulate_command: str | None = None
