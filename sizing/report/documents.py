"""The neutral documents that every format writes: plain values with their units in the names, ready for JSON.

They are named tuples, not dataclasses: two dozen of those would cost each command 8 ms to define.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.formats.view import Assumption, Explanation
from sizing.report.parts.bands import ErrorBand
from sizing.report.parts.conversation import IdleConversations
from sizing.report.parts.figures import Latency, LoadFigures, MemoryFigures, Throughput, Utilisation
from sizing.report.parts.limiting import Limiting

if TYPE_CHECKING:
    from sizing.report.documents_pools import Disaggregated
    from sizing.specs.bands import Edge


class Conservative(NamedTuple):
    """What sizing on the worse edges of the error bands costs, beside the answer without; null what is infeasible.

    The answer's limits were divided by the latencies' factors, and the highest rate was multiplied by that of throughput.
    """

    gpus_without: int | None
    extra_gpus: int | None
    requests_per_s_without: float | None
    factors: Edge | None


class Deployment(NamedTuple):
    """What to run: GPUs in all, replicas, the layout of one, and over how many nodes (or larger link domains) that goes."""

    gpu: str
    gpu_id: str
    gpus: int
    replicas: int
    gpus_per_replica: int
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    nodes_per_replica: int


class Users(NamedTuple):
    """Daily active users that the load means, never without what a user does.

    `stated` is False where neither demand nor options speak of users: then it is what the rate would correspond to.
    """

    daily_active_users: float
    requests_per_user_per_day: float
    active_hours: float
    peak_to_mean: float
    stated: bool


class Cost(NamedTuple):
    """Cost at the load above, around the clock at that load; and at the mean load of the users' day, GPUs always on.

    Figures by output token are null where a task gives none; it has the one by input token.
    """

    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_output_tokens_mean_load: float | None
    usd_per_gpu_hour: float | None
    price_source: str | None
    power_w: float
    kwh_per_million_output_tokens: float | None
    usd_per_million_input_tokens: float | None = None
    kwh_per_million_input_tokens: float | None = None


class Alternative(NamedTuple):
    """Another layout that also meets the demand."""

    gpu: str
    weight_precision: str
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    replicas: int
    gpus: int
    requests_per_s_per_gpu: float
    ttft_ms: float
    itl_ms: float
    e2e_ms: float
    usd_per_hour: float | None
    power_w: float
    limit: str


class RejectedLayout(NamedTuple):
    """A layout that won't do, why, and by how much: 0.1 is 10 % over a limit or the memory, null where no size helps."""

    gpu: str
    weight_precision: str
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    reason: str
    detail: str
    shortfall: float | None


class Simulation(NamedTuple):
    """The check of an answer by simulation, one replica under its share of the demand.

    `batch_mean` counts requests in the running batch, `queue_mean` those that wait for it; in the front end are the rest of
    a replica's concurrency.
    """

    passed: bool
    sizes_tried: int
    requests: int
    stable: bool
    queue_mean: float
    batch_mean: float
    kv_utilisation_mean: float
    kv_utilisation_max: float
    preemptions: int


class Estimate(NamedTuple):
    """The document of `llmsize estimate`; `simulate_command` simulates its answer, `bands` are by the path of a number.

    `disaggregated` is what serves the same from separate pools, null where they were not asked for; all else serves as one.
    """

    feasible: bool
    inputs: dict[str, Any]
    deployment: Deployment | None
    load: LoadFigures | None
    throughput: Throughput | None
    latency: Latency | None
    simulation: Simulation | None
    memory: MemoryFigures | None
    utilisation: Utilisation | None
    users: Users | None
    cost: Cost | None
    limiting: Limiting
    bands: dict[str, ErrorBand]
    conservative: Conservative | None
    alternatives: tuple[Alternative, ...]
    rejected: tuple[RejectedLayout, ...]
    assumptions: tuple[Assumption, ...]
    simulate_command: str | None = None
    disaggregated: Disaggregated | None = None
    explanations: tuple[Explanation, ...] = ()
    idle_conversations: IdleConversations | None = None
    schema: str = "llmsize.estimate/1"
