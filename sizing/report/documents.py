"""The neutral documents that every format writes: plain values with their units in the names, ready for JSON.

They are named tuples, not dataclasses: two dozen of those would cost each command 8 ms to define.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing import __version__
from sizing.specs.bands import ErrorBand as ErrorBand
from sizing.specs.units import Statistics as Statistics
from sizing.specs.values import Kind

if TYPE_CHECKING:
    from sizing.report.documents_pools import Disaggregated
    from sizing.specs.bands import Edge


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
