"""A disaggregated deployment: what is asked of each of its pools, and both of them with the way between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from sizing import answer
from sizing.architecture import SIZES
from sizing.candidates import Rejected
from sizing.handover import Handed, Transfer, transfer_of
from sizing.load import Load
from sizing.precision import PrecisionPlan
from sizing.request import GpuOption, Request
from sizing.search import Evaluated
from sizing.specs.pools import HandOver, Pool
from sizing.specs.workload import Limit, Limits, Serving

# What lets one pool take the caches of the other.
ALIKE = "GPU types of one vendor, and a --kv-precision that both have"


class HasCache(Protocol):
    """What a pool's cache depends on: GPU type and formats."""

    @property
    def option(self) -> GpuOption:
        """The GPU type."""

    @property
    def plan(self) -> PrecisionPlan:
        """The formats of weights and cache."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is asked of one pool: the GPU types to consider, and sizes that are given."""

    options: tuple[GpuOption, ...]
    pool: Pool

    def serving(self, of: Serving) -> Serving:
        """Return how this pool's engine is run: in the layout given for it, else in that of the workload."""
        sizes = {name: getattr(self.pool, name) for name in SIZES}
        return of.model_copy(update=sizes) if any(sizes.values()) else of


@dataclass(frozen=True, slots=True)
class Asked:
    """Both pools as they are asked for, and what is assumed of the hand-over."""

    prefill: Side
    decode: Side
    facts: HandOver


@dataclass(frozen=True, slots=True)
class Pooled:
    """A disaggregated deployment that meets demand and limits. `undelayed` is the prefill load without the transfer.

    `served` is what a simulation of it measured, where there was one.
    """

    prefill: Evaluated
    decode: Evaluated
    transfer: Transfer
    undelayed: Load
    within_node: bool
    served: Handed | None = None

    @property
    def parts(self) -> dict[str, Evaluated]:
        """Both pools by name."""
        return {"prefill": self.prefill, "decode": self.decode}

    @property
    def most_requests_per_s(self) -> float:
        """The most requests/s within the limits: of the pool that serves less."""
        return min(pool.most_requests_per_s * pool.replicas for pool in self.parts.values())

    @property
    def most_per_gpu(self) -> float:
        """The most requests/s of a GPU within the limits, with as many replicas of each pool."""
        return self.most_requests_per_s / self.gpus

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.prefill.gpus + self.decode.gpus

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all GPUs an hour, or None without a price of each."""
        one, other = self.prefill.usd_per_hour, self.decode.usd_per_hour
        return None if one is None or other is None else one + other

    @property
    def power_w(self) -> float:
        """Thermal design power of all GPUs."""
        return self.prefill.power_w + self.decode.power_w

    @property
    def requests_per_s(self) -> float:
        """Requests/s that pass through both pools."""
        return self.prefill.requests_per_s

    @property
    def transfer_s(self) -> float:
        """Seconds by which the transfer of its cache delays a prompt of the mean length."""
        return self.prefill.load.curves.front_end_s - self.undelayed.curves.front_end_s

    @property
    def binding(self) -> str:
        """The pool that is nearer to the most that it serves."""

        def filled(pool: Evaluated) -> float:
            return pool.requests_per_s / (pool.most_requests_per_s * pool.replicas)

        return "prefill" if filled(self.prefill) >= filled(self.decode) else "decode"

    def latency_s(self, name: str) -> dict[str, float]:
        """Return the statistics of `ttft`, `itl` or `e2e` in seconds: as simulated, else of the closed form.

        ITL is the time from the arrival of the cache to the last token, over the tokens after the first. Percentiles of
        E2E are sums of both pools', which is more than they can be together.
        """
        if self.served is not None and self.served.whole.latencies_s[name]:
            return self.served.whole.latencies_s[name]
        first, rest = self.prefill.latency_s("ttft"), self.decode.latency_s("e2e")
        if name == "ttft":
            return first
        after_first = self.decode.load.service.osl - 1
        if name == "itl":
            return {statistic: seconds / after_first for statistic, seconds in rest.items()}
        return {statistic: first[statistic] + rest[statistic] for statistic in first}


@dataclass(frozen=True, slots=True)
class Checked:
    """A disaggregated deployment that was simulated; `passed` is False where no size tried was confirmed."""

    best: Pooled
    passed: bool
    tries: int


@dataclass(frozen=True, slots=True)
class Found:
    """Disaggregated deployments that meet the demand, best first, and the layouts of each pool that won't do.

    `lacking` are the pools for which no layout does, whatever the other pool is. `short` are pairs, at the replicas that
    each pool needs, of which too few are given or none fits the budget; `unpaired` prefill layouts that would do, were it
    not for the way to a decode pool.
    """

    ranked: tuple[Pooled, ...]
    rejected: dict[str, tuple[Rejected, ...]]
    request: Request
    lacking: tuple[str, ...] = ()
    short: tuple[Pooled, ...] = ()
    unpaired: tuple[Rejected, ...] = ()

    @property
    def best(self) -> Pooled | None:
        """The answer, or None where there is none."""
        return self.ranked[0] if self.ranked else None

    def confirmed(self, checked: Checked | None) -> Pooled | None:
        """Return the answer as simulated, where there was a check; None where none was confirmed. It may exceed the budget."""
        if checked is None:
            return self.best
        return checked.best if checked.passed else None


def within_budget(pair: Pooled, request: Request) -> bool:
    """Return whether an answer keeps the budget of GPUs, where there is one."""
    return request.gpu_budget is None or pair.gpus <= request.gpu_budget


def phase_requests(request: Request, asked: Asked, ttft_share: Limit | None) -> tuple[Request, Request]:
    """Return what is asked of each pool. `ttft_share` is what prefill may take of a limit on E2E, None without such a limit."""
    limits, after_first = request.limits, request.osl - 1
    # The decode pool's ITL runs from the arrival of the cache, so a limit on it bounds the whole time there.
    whole = None if limits.itl is None else _times(limits.itl, after_first)
    if limits.e2e is not None and ttft_share is not None:
        left = limits.e2e.model_copy(update={"seconds": limits.e2e.seconds - ttft_share.seconds})
        whole = left if whole is None or whole.statistic != left.statistic else min(whole, left, key=_seconds)
    common = replace(request, concurrency=None, offline=False)
    prefill = replace(
        common,
        osl=1,
        limits=Limits(ttft=limits.ttft, e2e=ttft_share),
        serving=asked.prefill.serving(request.serving),
        phase="prefill",
    )
    decode = replace(
        common,
        limits=Limits(itl=limits.itl, e2e=whole),
        serving=asked.decode.serving(request.serving),
        phase="decode",
    )
    return prefill, decode


def _seconds(limit: Limit) -> float:
    return limit.seconds


def _times(limit: Limit, factor: float) -> Limit:
    return limit.model_copy(update={"seconds": limit.seconds * factor})


def delayed(load: Load, transfer: Transfer, prompt_tokens: int) -> Load:
    """Return a prefill load whose first tokens wait for the transfer of their cache.

    The whole prompt's moves, also what the prefill pool found in its own cache or host memory and so did not compute.
    """
    own_s = load.solo_ttft_s - load.curves.front_end_s
    more_s = float(transfer.exposed_s(prompt_tokens, own_s))
    return replace(load, curves=replace(load.curves, front_end_s=load.curves.front_end_s + more_s))


def preference(pair: Pooled, request: Request) -> tuple[float, ...]:
    """Order of what is asked: the objective; where only a GPU budget is given the most throughput."""
    return (*answer.throughput_first(pair, request), *answer.objective_key(pair, request.objective))


def by_type(asked: Asked, options: Iterable[GpuOption]) -> tuple[Asked, ...]:
    """Return the same for each GPU type, which both pools are of unless they name their own; once where both do."""
    found: dict[tuple[str, str], Asked] = {}
    for option in options:
        prefill, decode = (
            side if side.pool.gpu is not None else replace(side, options=(option,))
            for side in (asked.prefill, asked.decode)
        )
        of_both = (prefill.options[0].id, decode.options[0].id)
        found.setdefault(of_both, replace(asked, prefill=prefill, decode=decode))
    return tuple(found.values())


def joined(pair: Pooled, request: Request, asked: Asked, *, within_node: bool) -> Pooled:
    """Return a pair whose caches go over the link in a node, or over the network.

    Raises UntimedError where a profile states no network.
    """
    transfer = transfer_of(
        request.model,
        (pair.prefill.candidate.layout, pair.undelayed.kernels),
        (pair.decode.candidate.layout, pair.decode.load.kernels),
        within_node=within_node,
        by_layer=asked.facts.by_layer,
    )
    prefill = replace(pair.prefill, load=delayed(pair.undelayed, transfer, request.isl))
    return replace(pair, prefill=prefill, transfer=transfer, within_node=within_node)


def unlike(prefill: HasCache, decode: HasCache) -> str | None:
    """Return why one pool cannot take the other's caches: another format, or GPUs that no cache connector joins."""
    vendors = prefill.option.gpu.vendor, decode.option.gpu.vendor
    if vendors[0] != vendors[1]:
        return f"no cache connector joins GPUs of {vendors[0]} and {vendors[1]}"
    formats = prefill.plan.kv_format, decode.plan.kv_format
    return (
        None
        if formats[0] == formats[1]
        else f"the prefill pool's cache is {formats[0]}, the decode pool's {formats[1]}"
    )


def fits_node(pair: Pooled) -> bool:
    """Return whether both pools are of one GPU type and stand in one node."""
    prefill, decode = pair.prefill.candidate.option, pair.decode.candidate.option
    return prefill.id == decode.id and pair.gpus <= prefill.gpu.datasheet.node.gpus


def with_counts(pair: Pooled, prefills: int, decodes: int, prefill: Request, decode: Request) -> Pooled:
    """Return the same layouts with other numbers of replicas, at the load that each then gets."""
    return replace(
        pair,
        prefill=pair.prefill.with_replicas(prefills, prefill),
        decode=pair.decode.with_replicas(decodes, decode),
        served=None,
    )
