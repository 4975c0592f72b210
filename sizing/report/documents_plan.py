"""The document of `llmsize plan`: plain values with their units in the names, ready for JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

from sizing.formats.view import Assumption
from sizing.planning.growth import Month
from sizing.planning.uncertainty import Influence, Quantiles
from sizing.report.documents import Users
from sizing.report.parts.figures import Latency


class ReserveFigures(NamedTuple):
    """Replicas on top of those that the peak takes: the larger of `spare` and `for_availability`, and `maintenance`."""

    spare: int
    for_availability: int
    maintenance: int
    replicas: int


class WorkloadPlan(NamedTuple):
    """One workload: its demand, what one replica serves of it (requests/s, or in flight), and its size.

    Latencies are those of the replicas for the peak. `gpus` are replicas times GPUs of one; `nodes` are whole servers of `gpus_per_node`, of this workload alone.
    """

    name: str
    model: str
    weight_precision: str
    gpu: str
    gpu_id: str
    pool: str
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    gpus_per_replica: int
    gpus_per_node: int
    replicas_per_node: int
    demand: dict[str, Any]
    demand_unit: str
    demand_at_peak: float
    headroom: float
    most_per_replica: float
    base_replicas: int
    reserve: ReserveFigures
    replicas: int
    gpus: int
    nodes: int
    mean_requests_per_s: float | None
    peak_requests_per_s: float
    usd_per_gpu_hour: float | None
    price_source: str | None
    latency: Latency
    limit: str
    verified: bool | None


class PoolPlan(NamedTuple):
    """GPUs of one type that some workloads run on; installed are those of its whole nodes.

    `reserve_gpus` of them are in reserve, for all; `reserve_gpus_apart` would be where each workload had its own.
    """

    gpu: str
    gpu_id: str
    pool: str
    workloads: tuple[str, ...]
    gpus: int
    gpus_sum_of_peaks: int
    reserve_gpus: int
    reserve_gpus_apart: int
    nodes: int
    gpus_per_node: int
    installed_gpus: int
    usd_per_gpu_hour: float | None


class Hour(NamedTuple):
    """One hour of the profile, from midnight, or Monday midnight; replicas and GPUs that follow the load, with reserve."""

    hour: int
    requests_per_s: float | None
    replicas: int
    gpus: int
    capacity_requests_per_s: float | None


class Availability(NamedTuple):
    """The chance that enough replicas are up for the peak, failing by themselves, and with their nodes."""

    workload: str
    target: float | None
    node_availability: float
    replicas_needed: int
    replicas_for_failures: int
    achieved: float
    achieved_by_node: float
    replicas_for_target_by_node: int | None


class Growth(NamedTuple):
    """Growth of the demand by the month: size at the date, and in which months nodes are added."""

    per_month: float
    start: str
    until: str | None
    at_date: Month | None
    next_node: Month | None
    additions: tuple[Month, ...]


class ScaleUp(NamedTuple):
    """What passes until a new replica of a workload serves, and the share of its requests that come above what is up."""

    workload: str
    weights_gb: float
    node_start_s: float
    load_s: float
    engine_start_s: float
    total_s: float
    share_of_requests_at_risk: float | None


class MixFigures(NamedTuple):
    """The cheapest mix of contracts for one type of GPU over the hours, and what its ends would cost, for a month.

    GPUs are those paid for: of whole instances where a provider is named (`sku`, of `gpus_per_instance` GPUs).
    """

    gpu: str
    reserved_gpus: int
    on_demand_gpu_hours_per_month: float
    spot_gpu_hours_per_month: float
    reserved_usd_per_gpu_hour: float
    on_demand_usd_per_gpu_hour: float
    spot_usd_per_gpu_hour: float | None
    usd_per_month: float
    usd_per_month_all_on_demand: float
    usd_per_month_peak_always_on: float
    sources: tuple[str, ...]
    sku: str | None
    gpus_per_instance: int | None
    peak_instances: int | None


class Cloud(NamedTuple):
    """GPUs paid for over the hours of a profile, those of whole instances where a provider is named, and what they cost.

    `utilisation_mean` is the mean load over what they serve within the limits.
    """

    provider: str | None
    peak_gpus: int
    mean_gpus: float
    min_replicas: int
    gpu_hours_per_day: float
    gpu_hours_per_month: float
    utilisation_mean: float | None
    share_of_requests_at_risk: float | None
    scale_up: tuple[ScaleUp, ...]
    mixes: tuple[MixFigures, ...]
    usd_per_month: float | None


class FleetFigures(NamedTuple):
    """Workloads together: sums of their peaks, and the peak of their sum hour by hour; None where no rates are known."""

    sum_of_peaks_requests_per_s: float | None
    peak_of_sums_requests_per_s: float | None
    sum_of_peaks_gpus: int
    peak_of_sums_gpus: int


class Move(NamedTuple):
    """What changes where one workload runs on another type of GPU; GPUs and cost are those of the whole fleet."""

    workload: str
    gpu_from: str
    gpu_to: str
    feasible: bool
    detail: str
    workload_gpus: int | None
    gpus: int | None
    nodes: int | None
    usd_per_month: float | None
    usd_per_month_now: float | None


class Uncertainty(NamedTuple):
    """GPUs and cost that 10, 50 and 90 % of the draws do not exceed, and which input matters most."""

    draws: int
    seed: int
    gpus: Quantiles
    usd_per_month: Quantiles | None
    measure: str
    influences: tuple[Influence, ...]
    certain: tuple[str, ...]


class Plan(NamedTuple):
    """The document of `llmsize plan`; every total is null where a workload has no answer.

    `gpus` are those of all pools, `installed_gpus` those of their whole nodes. `utilisation_mean` is the mean load over what
    `gpus` serve within the limits. `users` is of a single workload. `suggestions` are changes that make it feasible.
    """

    feasible: bool
    inputs: dict[str, Any]
    mean_requests_per_s: float | None
    peak_requests_per_s: float | None
    gpus: int | None
    replicas: int | None
    nodes: int | None
    installed_gpus: int | None
    usd_per_month: float | None
    utilisation_mean: float | None
    workloads: tuple[WorkloadPlan, ...]
    pools: tuple[PoolPlan, ...]
    hours: tuple[Hour, ...]
    users: Users | None
    fleet: FleetFigures | None
    availability: tuple[Availability, ...]
    growth: Growth | None
    cloud: Cloud | None
    moves: tuple[Move, ...]
    uncertainty: Uncertainty | None
    problems: tuple[str, ...]
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.plan/1"
