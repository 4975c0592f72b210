"""The neutral documents that every format writes: plain values with their units in the names, ready for JSON.

They are named tuples, not dataclasses: two dozen of those would cost each command 8 ms to define.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing import __version__
from sizing.specs.base import Kind

if TYPE_CHECKING:
    from sizing.bands import Edge
    from sizing.report.documents_pools import Disaggregated, SimulatedPools
    from sizing.validation.errors import ErrorFigures, Group


class Assumption(NamedTuple):
    """A number that the result rests on, and how it is known."""

    what: str
    value: float | str
    unit: str
    kind: Kind
    source: str


NO_ITL = Assumption("limit on ITL", "does not apply, there is no token after the first", "", "derived", "OSL 1")


class Explanation(NamedTuple):
    """How a printed number came about: its formula, the values put in, and where those are from."""

    what: str
    value: float | str
    unit: str
    kind: Kind
    formula: str
    inputs: str
    source: str


class Statistics(NamedTuple):
    """A latency in ms: its mean and percentiles; null where the model has none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


class ErrorBand(NamedTuple):
    """The range, in the number's own unit, into which 8 in 10 of `n` published measurements of its class put it."""

    low: float
    high: float
    n: int


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


class LoadFigures(NamedTuple):
    """The load that the deployment runs at, and how much more it could take.

    Concurrency counts requests from arrival to last token, those in the front end or a queue too. `headroom` is the growth
    of `headroom_of` that the limits leave, by which the demand is stated: `concurrency`, else `requests_per_s`.
    """

    requests_per_s: float
    concurrency: float
    concurrency_per_replica: float
    max_requests_per_s: float
    headroom: float
    headroom_of: str
    share_of_max_requests_per_s: float


class Throughput(NamedTuple):
    """Throughput at that load."""

    requests_per_s_per_replica: float
    requests_per_s_per_gpu: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    total_tokens_per_s: float
    input_tokens_per_s: float


class Latency(NamedTuple):
    """Latencies under load, and of a request that is alone."""

    ttft_ms: Statistics
    itl_ms: Statistics
    e2e_ms: Statistics
    solo_ttft_ms: float
    solo_itl_ms: float | None


class MemoryFigures(NamedTuple):
    """Memory of one GPU of the tightest rank, and what its cache pool holds over the replica.

    Of the weights `beside_gib` run beside the model (draft, adapters, image encoder); of the pool `shared_prefix_gib` are
    prefixes that sequences share.
    """

    visible_gib: float
    budget_gib: float
    weights_gib: float
    activation_gib: float
    non_torch_gib: float
    cuda_graphs_gib: float
    cuda_graphs_in_budget: bool
    kv_cache_gib: float
    kv_bytes_per_token: float
    state_bytes_per_sequence: float
    kv_cache_tokens: int
    max_concurrency: float
    sequence_gib: float
    max_model_len: int
    max_model_len_that_fits: int
    fits: bool
    deficit_gib: float
    beside_gib: float = 0.0
    shared_prefix_gib: float = 0.0


class Utilisation(NamedTuple):
    """Shares of the peaks that a prefill step and a decode step reach, and which of the two peaks is nearer."""

    prefill_mfu: float
    prefill_bound: str
    decode_mbu: float | None
    decode_mfu: float | None
    decode_bound: str | None


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


class Limiting(NamedTuple):
    """What keeps a replica from serving more, or the demand from being met, and what would change it."""

    limit: str
    statistic: str | None
    value_ms: float | None
    limit_ms: float | None
    detail: str
    relaxed_limit_ms: float | None
    relaxed_gpus: int | None
    relaxed_gpu: str | None
    suggestions: tuple[str, ...]


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


class IdleConversations(NamedTuple):
    """Conversations between two turns, of one replica: those whose cache should be kept, the room for them, and the share of
    turns that was taken to find their history.
    """

    needed: float
    room: float
    histories_kept: float


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


class MemoryReport(NamedTuple):
    """The document of `llmsize memory`."""

    fits: bool
    inputs: dict[str, Any]
    memory: MemoryFigures
    bands: dict[str, ErrorBand]
    reason: str | None
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    explanations: tuple[Explanation, ...] = ()
    schema: str = "llmsize.memory/1"


class StepOperation(NamedTuple):
    """One operation of a step: executions, work of all of them, seconds of all of them."""

    name: str
    count: float  # type: ignore[assignment]  # the tuple's own `count` gives way
    flops: float
    bytes: float
    message_bytes: float
    seconds: float
    share: float
    bound: str


class StepReport(NamedTuple):
    """The document of `llmsize step`."""

    inputs: dict[str, Any]
    total_s: float
    gpu_s: float
    launch_s: float
    host_s: float
    mbu: float
    mfu: float
    operations: tuple[StepOperation, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.step/1"


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


def plain(value: Any) -> Any:
    """Turn a document into JSON's own types: documents to objects, schema and version first, never NaN or infinity.

    Optional explanations are left out where empty; a single run's figures stand in the document itself.
    """
    if hasattr(value, "_fields"):
        body = {name: plain(entry) for name, entry in zip(value._fields, value, strict=True)}
        if not body.get("explanations", True):
            del body["explanations"]
        if len(body.get("runs", ())) == 1:
            body |= body.pop("runs")[0]
        if "schema" in body:
            return {"schema": body.pop("schema"), "version": __version__, **body}
        return body
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return _finite(value)
    return value


def kind_of(document: Any) -> str:
    """Return the kind of a document, as its schema names it: `estimate` of `llmsize.estimate/1`."""
    return str(document.schema).removeprefix("llmsize.").partition("/")[0]


def _finite(value: float) -> float | None:
    """Twelve significant digits: more is noise, and differs between machines."""
    return float(f"{value:.12g}") if math.isfinite(value) else None


class Listing(NamedTuple):
    """A list of what is known: column names and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    schema: str = "llmsize.listing/1"


class Entry(NamedTuple):
    """One entry of the catalogue as its file states it."""

    name: str
    file: str
    entry: dict[str, Any]
    schema: str = "llmsize.entry/1"


class Named(NamedTuple):
    """A row and the reason why it was skipped, or predicted as nothing."""

    id: str
    reason: str


class Taken(NamedTuple):
    """What was assumed where rows leave it unsaid, and for how many rows."""

    what: str
    rows: int


class ValidationReport(NamedTuple):
    """The document of `llmsize validate`.

    `rows` were read, `predicted` of them compared; `missed` ones count among these as predicted 0, for the model can't
    run them; `skipped` ones are not compared. Errors are shares: 0.1 is 10 %.
    """

    inputs: dict[str, Any]
    rows: int
    predicted: int
    skipped: tuple[Named, ...]
    missed: tuple[Named, ...]
    metrics: dict[str, ErrorFigures]
    groups: tuple[Group, ...]
    assumptions: tuple[Taken, ...]
    schema: str = "llmsize.validation/1"
