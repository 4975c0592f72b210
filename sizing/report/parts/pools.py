"""Separate pools for prefill and decode: their layouts, the KV cache transfer, and reasons why they are infeasible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sizing.formats.view import Assumption, filled
from sizing.formats.words import milliseconds, number, plural
from sizing.model.architecture import Layout
from sizing.model.memory import MemoryUse
from sizing.report.parts.limits import at_limit, limit_words, unmet
from sizing.report.parts.sentences import assumed, said
from sizing.specs.units import GIGA, MILLI

if TYPE_CHECKING:  # a report does not need to load the simulator or the sizing of pools
    from sizing.answers.answer import Answer, Outcome, Pool
    from sizing.answers.deployment import Resolved
    from sizing.engine.simulation import Run
    from sizing.engine.transfer import Transfer
    from sizing.question.question import Question
    from sizing.replica.replica import Refusal
    from sizing.specs.gpu import GpuType
from sizing.specs.optimisations import HandOver

UNSERVED = "pools"  # the limit if no pair serves the demand; the reason explains it


class PoolShape(NamedTuple):
    """GPU type, replicas and layout of one pool."""

    gpu: str
    gpu_id: str
    replicas: int
    sizes: Layout
    gpus: int


class PoolFigures(NamedTuple):
    """One pool: its deployment, its utilisation and the limit on its load.

    `utilisation` is its rate divided by the highest rate without any limits. `most_requests_per_s` is the highest rate within
    the limits, and `limit` is the limit that ends it. The prefill pool has a TTFT, which includes the transfer, and the decode
    pool an ITL; the other latency is null. `kv_cache_tokens` is the KV cache of one replica. `all2all_backend` is how its tokens
    reach their experts; null where none are sent. `memory` is that of one GPU.
    """

    gpu: str
    gpu_id: str
    replicas: int
    sizes: Layout
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
    all2all_backend: str | None = None
    memory: MemoryUse | None = None


class PoolShapes(NamedTuple):
    """Both pools in a list of deployments; `kv_transfer_ms` delays the first token of a mean prompt."""

    prefill: PoolShape
    decode: PoolShape
    kv_transfer_ms: float


class TransferSummary(NamedTuple):
    """The KV cache transfer of a mean prompt: its size on the GPU with the largest part, and the link."""

    gb_per_gpu: float
    link: str
    gb_per_s_per_gpu: float
    within_node: bool
    by_layer: bool


class SimulatedPool(NamedTuple):
    """One pool in a simulation: its layout and its state over time. Batch and cache are means over replicas."""

    gpu: str
    gpu_id: str
    replicas: int
    sizes: Layout
    gpus: int
    requests_per_s: float
    gpu_utilisation: float
    queue_mean: float
    queue_max: int
    batch_mean: float
    batch_max: int
    kv_utilisation_mean: float
    kv_utilisation_max: float


class SimulatedPools(NamedTuple):
    """Both pools of a simulation. `kv_transfer_ms` is the mean wait for a KV cache, including transfers of other prompts."""

    prefill: SimulatedPool
    decode: SimulatedPool
    kv_transfer_ms: float
    kv_transfer: TransferSummary
    ratio: float


def unserved(outcome: Outcome) -> str | None:
    """The reason why no pair serves the demand within limits and budget; None if a pair does."""
    best = outcome.best
    if best is None or not outcome.simulation.passed:
        return why_not(outcome)
    if not outcome.within_budget:
        return f"both pools take {plural(best.gpus, 'GPU')}, the budget is {outcome.question.rules.gpu_budget or 0:,}"
    return None


def why_not(outcome: Outcome) -> str:
    """The reason why no pair is feasible: the simulation, or the nearest refusal of a pool or the transfer."""
    if outcome.simulation.tries:
        return _unconfirmed(outcome)
    pairing, e2e = outcome.pairing, outcome.question.target.limits.e2e
    assert pairing is not None
    parts = []
    for phase in pairing.lacking:
        entries = pairing.refusals[phase]
        # A layout that has room misses a limit, which is the better reason.
        sized = [entry for entry in entries if entry.reason != "memory"]
        nearest = min(sized or entries, key=lambda entry: entry.shortfall, default=None)
        if nearest is not None:
            of_e2e = f" (of {milliseconds(e2e.seconds / MILLI)} for both pools)" if e2e else ""
            parts.append(_miss(nearest, phase) + of_e2e * (nearest.reason == "e2e"))
    if parts:
        return "; ".join(parts)
    if pairing.short:
        return _too_few(pairing.short, outcome.question)
    if pairing.unpaired:
        return _miss(min(pairing.unpaired, key=lambda entry: entry.shortfall), "prefill")
    if e2e is not None:
        return f"no split of the E2E limit of {milliseconds(e2e.seconds / MILLI)} between prefill and decode leaves both enough"
    return "no pair of layouts carries the demand within the limits"


def _miss(entry: Refusal, phase: str) -> str:
    return f"{phase}: {entry.gpu_type.name} {entry.layout}: {entry.detail}"


def _too_few(short: Sequence[Answer], question: Question) -> str:
    """Write which pool has too few replicas, its limit and the number needed; or that no pair fits the budget."""
    given = _given(question)

    def gpus(pair: Answer, least: int) -> int:
        """The GPUs of a pair with the stated replicas, or at least the replicas needed times `least`."""
        return sum(max(given[pool.name] or 1, least * pool.count) * pool.replica.layout.gpus for pool in pair.pools)

    if question.target.requests_per_s is None:
        nearest = min(short, key=lambda pair: gpus(pair, 0))
        shapes = (_shape(pool, given[pool.name]) for pool in nearest.pools)
        taken = plural(gpus(nearest, 0), "GPU")
        return f"{' and '.join(shapes)} take {taken}, the budget is {question.rules.gpu_budget or 0:,}; nearest: --gpus {gpus(nearest, 0)}"
    nearest = min(short, key=lambda pair: gpus(pair, 1))
    return "; ".join(
        f"{_shape(pool, count)} carries at most {number(count * pool.capacity.requests_per_s)} of "
        f"{number(question.target.requests_per_s)} requests/s, ended by {limit_of(pool)}; nearest: "
        f"{plural(pool.count, f'{pool.name} replica')}"
        for pool in nearest.pools
        if (count := given[pool.name]) is not None and count < pool.count
    )


def _given(question: Question) -> dict[str, int | None]:
    assert question.space.pools is not None
    return dict(zip(("prefill", "decode"), question.space.pools.given, strict=True))


def _shape(pool: Pool, count: int | None) -> str:
    return f"{pool.name}: {count or 1} x {pool.replica.gpu_type.name} {pool.replica.layout}"


def _unconfirmed(outcome: Outcome) -> str:
    """Write the limit that the last simulated size missed, and the pool with too few stated replicas."""
    from sizing.answers.sizes import lacking

    pair, question = outcome.best, outcome.question
    tried = f"no size was confirmed by simulation ({outcome.simulation.tries} tried)"
    assert pair is not None and pair.run is not None
    missed = []
    for name, limit in question.target.limits.stated.items():
        measured_s = pair.latency_s(name)[limit.statistic]
        if measured_s > limit.seconds:
            missed.append(at_limit(name, limit.statistic, milliseconds(measured_s / MILLI), limit.seconds / MILLI))
    small = [
        f"more than {plural(fixed, f'{phase} replica')}"
        for (phase, fixed), short in zip(_given(question).items(), lacking(pair, question), strict=True)
        if short and fixed is not None
    ]
    if not pair.run.stable:
        missed.append("a queue that kept growing")
    what = f"; the last had {' and '.join(missed)}" if missed else ""
    return tried + what + (f"; nearest: {' and '.join(small)}" if small else "")


def limit_of(pool: Pool) -> str:
    """Write the limit that ends a pool's load."""
    return limit_words(pool.ended_by)


def shapes(pair: Answer) -> PoolShapes:
    """The layouts and replicas of both pools."""
    prefill, decode = (_pool_shape(pool.replica.gpu_type, pool.count, pool.replica.layout) for pool in pair.pools)
    return PoolShapes(prefill, decode, pair.transfer_s / MILLI)


def _pool_shape(gpu_type: GpuType, replicas: int, layout: Layout) -> PoolShape:
    return PoolShape(gpu_type.name, gpu_type.id, replicas, layout, replicas * layout.gpus)


def simulated(resolved: Resolved, replicas: int, run: Run) -> SimulatedPool:
    """The layout of a simulated pool of equal replicas, and its state over time."""
    return filled(
        SimulatedPool,
        run,
        **_pool_shape(resolved.replica.gpu_type, replicas, resolved.replica.layout)._asdict(),
        gpu_utilisation=min(1.0, run.busy),
        kv_utilisation_mean=run.cache_mean,
        kv_utilisation_max=run.cache_max,
    )


def transfer_figures(transfer: Transfer, prompt_tokens: float) -> TransferSummary:
    """The record of the transfer of a prompt's cache."""
    return TransferSummary(
        gb_per_gpu=(transfer.bytes_per_token * prompt_tokens + transfer.bytes_per_sequence) / GIGA,
        link=transfer.link.kind,
        gb_per_s_per_gpu=transfer.link.bytes_per_s / GIGA,
        within_node=transfer.link.within_node,
        by_layer=transfer.layers > 0,
    )


def of_turns(question: Question, facts: HandOver) -> tuple[Assumption, ...]:
    """The assumption on prompts that contain earlier answers: the decode pool made their KV cache."""
    if question.service.extras.cached.conversation is None:
        return ()
    return (assumed("caches of answers", facts),)


def assumptions(facts: HandOver) -> tuple[Assumption, ...]:
    """The assumptions on the transfer."""
    keys = ("hand-over", "first token", "link of pools", "band of pools")
    return tuple(assumed(key, facts) for key in keys)


def transfer_words(transfer: TransferSummary) -> str:
    """Write the link of the transfer."""
    return said("transfer of a prompt", transfer)


def limit_and_reason(outcome: Outcome) -> tuple[str, str | None]:
    """The limit on the load of an answer; without one, the limit that is missed and the reason.

    With two pools it is the limit of the pool nearer to its maximum load; `UNSERVED` without a pair.
    """
    best = outcome.answer
    if outcome.question.space.pools is not None:
        return UNSERVED if best is None else best.tightest.ended_by, unserved(outcome)
    if best is not None:
        return best.pool.capacity.binding, None
    nearest = unmet(outcome)
    return nearest.limit, nearest.detail


def shape_words(shapes: PoolShapes | SimulatedPools, between: str = " + ") -> str:
    """Write the replicas and layouts of both pools."""
    return between.join(pools_words(shapes.prefill, shapes.decode))


def pools_words(*pools: PoolShape | SimulatedPool | PoolFigures) -> Iterator[str]:
    """Yield the replicas and the layout of the prefill and the decode pool, with GPU types if they differ."""
    named = len({pool.gpu for pool in pools}) > 1
    for name, pool in zip(("prefill", "decode"), pools, strict=True):
        yield f"{name} {pool.replicas} x {pool.sizes}" + (f" {pool.gpu}" if named else "")
