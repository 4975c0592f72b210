"""What `llmsize simulate` prints: a run in real time, or in the teaching simulator's ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.formats.view import Assumption
from sizing.report.parts.bands import ErrorBand
from sizing.report.parts.memory import MemoryFigures

if TYPE_CHECKING:
    from sizing.report.documents_pools import SimulatedPools


class Spread(NamedTuple):
    """A latency in ms over the requests of a simulation; null where none was measured."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class QueueFigures(NamedTuple):
    """Requests that waited: mean over time and at the end over all replicas, most on one."""

    mean: float | None
    max: int | None
    end: int | None


class Extent(NamedTuple):
    """A quantity of one replica over time."""

    mean: float | None
    max: float | None


class SimulatedRun(NamedTuple):
    """One run in real time under one policy; every figure is null where nothing could be run.

    `wasted_slot_share` is slot time that was empty while requests waited; `missed` names the limits not kept.
    """

    policy: str
    arrived: int | None
    completed: int | None
    refused: int | None
    duration_s: float | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    output_tokens_per_s: float | None
    output_tokens_per_s_per_gpu: float | None
    ttft_ms: Spread
    itl_ms: Spread
    e2e_ms: Spread
    queue: QueueFigures
    batch: Extent
    kv_utilisation: Extent
    preemptions: int | None
    goodput_requests_per_s: float | None
    gpu_utilisation: float | None
    wasted_slot_share: float | None
    stable: bool | None
    missed: tuple[str, ...]


class SimulationReport(NamedTuple):
    """The document of `llmsize simulate`: a run for each policy, none of them run where the deployment does not fit.

    `disaggregated` is the state of each pool where prefill and decode are separate, else null.
    """

    passed: bool
    inputs: dict[str, Any]
    runs: tuple[SimulatedRun, ...]
    memory: MemoryFigures
    bands: dict[str, ErrorBand]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    disaggregated: SimulatedPools | None = None
    schema: str = "llmsize.simulation/1"


class TickFigures(NamedTuple):
    """One run of the teaching simulator; `timeline` has a text a slot, one character a tick, where it is short enough."""

    policy: str
    arrived: int
    completed: int
    end_tick: float
    mean_ttft: float | None
    mean_e2e: float | None
    mean_itl: float | None
    requests_per_1k_ticks: float
    tokens_per_1k_ticks: float
    queue_end: int
    queue_max: int
    gpu_utilisation: float
    wasted_slot_share: float
    timeline: tuple[str, ...] | None


class TickReport(NamedTuple):
    """The document of `llmsize simulate --ticks`: a run for each policy."""

    inputs: dict[str, Any]
    runs: tuple[TickFigures, ...]
    schema: str = "llmsize.simulation/1"
