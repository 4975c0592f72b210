"""A disaggregated deployment: what is asked of each of its pools, and both of them with the way between them.

Prefill and decode on GPUs of their own: the layouts and sizes of both pools, and how they compare with serving as one.

A pool is sized as any replicas are, by the same step times: prefill replicas serve requests of one output token, decode
replicas requests whose prompt is in cache already. The transfer of the cache is time that a request takes outside the steps
of prefill, so it counts to TTFT; the limit on TTFT is the prefill pool's, that on ITL the decode pool's, and one on E2E is
split between them where that takes the fewest GPUs. As in DistServe (https://arxiv.org/abs/2401.09670) the pools follow as
GPUs = rate * seconds of a prompt / utilisation, and rate * OSL * ITL(b) / (b * utilisation), in whole replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from sizing.answers import answer
from sizing.answers import search as searching
from sizing.answers.search import Evaluated, alone, evaluate
from sizing.engine.transfer import Handed, Transfer, transfer_of
from sizing.model.precision import PrecisionPlan
from sizing.question.question import Question, SeparatePools
from sizing.replica.capacity import Capacity
from sizing.replica.replica import Refusal, Replica, candidates
from sizing.replica.timing import Timed, Timing
from sizing.specs import demand
from sizing.specs.data import Data
from sizing.specs.errors import UntimedError
from sizing.specs.gpu import GpuType
from sizing.specs.workload import Limit, Limits

# What lets one pool take the caches of the other.
ALIKE = "GPU types of one vendor, and a --kv-precision that both have"


class HasCache(Protocol):
    """What a pool's cache depends on: GPU type and formats."""

    @property
    def gpu_type(self) -> GpuType:
        """The GPU type."""

    @property
    def plan(self) -> PrecisionPlan:
        """The formats of weights and cache."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """A disaggregated deployment that meets demand and limits. `undelayed` is the prefill load without the transfer.

    `served` is what a simulation of it measured, where there was one.
    """

    prefill: Evaluated
    decode: Evaluated
    transfer: Transfer
    undelayed: Timed
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
        after_first = self.decode.load.batching.osl - 1
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
    rejected: dict[str, tuple[Refusal, ...]]
    question: Question
    lacking: tuple[str, ...] = ()
    short: tuple[Pooled, ...] = ()
    unpaired: tuple[Refusal, ...] = ()

    @property
    def best(self) -> Pooled | None:
        """The answer, or None where there is none."""
        return self.ranked[0] if self.ranked else None

    def confirmed(self, checked: Checked | None) -> Pooled | None:
        """Return the answer as simulated, where there was a check; None where none was confirmed. It may exceed the budget."""
        if checked is None:
            return self.best
        return checked.best if checked.passed else None


def within_budget(pair: Pooled, question: Question) -> bool:
    """Return whether an answer keeps the budget of GPUs, where there is one."""
    return question.rules.gpu_budget is None or pair.gpus <= question.rules.gpu_budget


def phase_requests(question: Question, asked: SeparatePools, ttft_share: Limit | None) -> tuple[Question, Question]:
    """Return what is asked of each pool. `ttft_share` is what prefill may take of a limit on E2E, None without such a limit."""
    limits, after_first = question.target.limits, question.service.osl - 1
    # The decode pool's ITL runs from the arrival of the cache, so a limit on it bounds the whole time there.
    whole = None if limits.itl is None else _times(limits.itl, after_first)
    if limits.e2e is not None and ttft_share is not None:
        left = limits.e2e.model_copy(update={"seconds": limits.e2e.seconds - ttft_share.seconds})
        whole = left if whole is None or whole.statistic != left.statistic else min(whole, left, key=_seconds)
    common = question.with_(concurrency=None, offline=False)
    prefill = common.with_(
        osl=1,
        limits=Limits(ttft=limits.ttft, e2e=ttft_share),
        serving=asked.prefill.serving(question.service.serving),
        phase="prefill",
    )
    decode = common.with_(
        limits=Limits(itl=limits.itl, e2e=whole),
        serving=asked.decode.serving(question.service.serving),
        phase="decode",
    )
    return prefill, decode


def _seconds(limit: Limit) -> float:
    return limit.seconds


def _times(limit: Limit, factor: float) -> Limit:
    return limit.model_copy(update={"seconds": limit.seconds * factor})


def delayed(load: Timed, transfer: Transfer, prompt_tokens: int) -> Timed:
    """Return a prefill load whose first tokens wait for the transfer of their cache.

    The whole prompt's moves, also what the prefill pool found in its own cache or host memory and so did not compute.
    """
    own_s = load.solo_ttft_s - load.curves.front_end_s
    more_s = float(transfer.exposed_s(prompt_tokens, own_s))
    return replace(load, curves=replace(load.curves, front_end_s=load.curves.front_end_s + more_s))


def preference(pair: Pooled, question: Question) -> tuple[float, ...]:
    """Order of what is asked: the objective; where only a GPU budget is given the most throughput."""
    return (*answer.throughput_first(pair, question), *answer.objective_key(pair, question.rules.objective))


def joined(pair: Pooled, question: Question, asked: SeparatePools, *, within_node: bool) -> Pooled:
    """Return a pair whose caches go over the link in a node, or over the network.

    Raises UntimedError where a profile states no network.
    """
    transfer = transfer_of(
        question.service.model,
        (pair.prefill.replica.layout, pair.undelayed.kernels),
        (pair.decode.replica.layout, pair.decode.load.kernels),
        within_node=within_node,
        by_layer=asked.facts.by_layer,
    )
    prefill = replace(pair.prefill, load=delayed(pair.undelayed, transfer, question.service.isl))
    return replace(pair, prefill=prefill, transfer=transfer, within_node=within_node)


def unlike(prefill: HasCache, decode: HasCache) -> str | None:
    """Return why one pool cannot take the other's caches: another format, or GPUs that no cache connector joins."""
    vendors = prefill.gpu_type.gpu.vendor, decode.gpu_type.gpu.vendor
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
    prefill, decode = pair.prefill.replica.gpu_type, pair.decode.replica.gpu_type
    return prefill.id == decode.id and pair.gpus <= prefill.gpu.datasheet.node.gpus


def with_counts(pair: Pooled, prefills: int, decodes: int, prefill: Question, decode: Question) -> Pooled:
    """Return the same layouts with other numbers of replicas, at the load that each then gets."""
    return replace(
        pair,
        prefill=pair.prefill.with_replicas(prefills, prefill),
        decode=pair.decode.with_replicas(decodes, decode),
        served=None,
    )


TTFT_SHARES = 6  # ways to split a limit on E2E that are tried
# Pairs tried: those of the best pools by themselves. A transfer takes less than a prefill, so it seldom changes their order.
MOST_KINDS, MOST_PREFILLS = 12, 24
LEAST_OVER_SOLO = 1.05  # of the shortest prefill: the least of an E2E limit that is worth giving to prefill


class _Paired(NamedTuple):
    """What pairing found: pairs, the layouts of each pool that won't do, the pools for which any does, and near misses as
    of `Found`.
    """

    pairs: list[Pooled]
    rejected: dict[str, list[Refusal]]
    able: set[str]
    short: list[Pooled]
    unpaired: list[Refusal]


def search(question: Question, asked: SeparatePools, precisions: Sequence[str | None], data: Data) -> Found:
    """Find pairs of layouts that meet the demand, those with the fewest GPUs (or best by another objective) first."""
    rejected: dict[str, tuple[Refusal, ...]] = {"prefill": (), "decode": ()}
    found: list[Pooled] = []
    short: list[Pooled] = []
    unpaired: list[Refusal] = []
    served: set[str] = set()
    for precision in precisions:
        prefill_request, _ = phase_requests(question, asked, None)
        loads = Timing(data)
        prefills, refused = _tabulated(prefill_request, asked.prefill.gpu_types, precision, loads)
        shares = list(_ttft_shares(question, prefills))
        if not shares:  # a prompt alone takes all of a limit on E2E
            whole, _ = phase_requests(question, asked, question.target.limits.e2e)
            refused += _best_alone(prefills, whole)[1]
        early: list[Refusal] = []
        late: list[Refusal] = []  # as of the first share, which leaves decode the most
        for number, share in enumerate(shares):
            tried = _paired(question, asked, share, precision, prefills, data)
            found += tried.pairs
            short += tried.short
            unpaired += tried.unpaired
            served |= tried.able
            late = late if number else tried.rejected["decode"]
            early = tried.rejected["prefill"]  # as of the last, which leaves prefill the most
        rejected["prefill"] += (*refused, *early)
        rejected["decode"] += tuple(late)
    ranked = tuple(sorted(found, key=lambda pair: preference(pair, question)))
    lacking = tuple(phase for phase in rejected if phase not in served)
    return Found(ranked, rejected, question, lacking, tuple(short), tuple(unpaired))


def _tabulated(
    question: Question, options: Sequence[GpuType], precision: str | None, loads: Timing
) -> tuple[list[Timed], list[Refusal]]:
    """Return every layout of the prefill pool whose step times can be tabulated, limits aside, and the others."""
    entries = [
        searching.timed(entry, loads) if isinstance(entry, Replica) else entry
        for option in options
        for entry in candidates(question.service, option, precision, loads.data)
    ]
    return (
        [entry for entry in entries if isinstance(entry, Timed)],
        [entry for entry in entries if isinstance(entry, Refusal)],
    )


def _ttft_shares(question: Question, prefills: Sequence[Timed]) -> Iterator[Limit | None]:
    """Yield what prefill may take of a limit on E2E: from little more than a lone prompt takes to nearly all."""
    limit = question.target.limits.e2e
    if limit is None or not prefills:
        yield None
        return
    shortest_s = LEAST_OVER_SOLO * min(entry.solo_ttft_s for entry in prefills)
    if shortest_s >= limit.seconds:
        return
    for seconds in np.geomspace(shortest_s, limit.seconds, TTFT_SHARES, endpoint=False):
        yield limit.model_copy(update={"seconds": float(seconds)})


def _paired(
    question: Question,
    asked: SeparatePools,
    ttft_share: Limit | None,
    precision: str | None,
    prefills: Sequence[Timed],
    data: Data,
) -> _Paired:
    """Return every prefill pool with the best decode pool of each kind that a transfer can tell apart."""
    prefill_request, decode_request = phase_requests(question, asked, ttft_share)
    decoded = searching.search(decode_request, asked.decode.gpu_types, (precision,), data)
    prefills, refused = _best_alone(prefills, prefill_request)
    turned_down: dict[str, list[Refusal]] = {"prefill": refused, "decode": list(decoded.rejected)}
    able = {phase for phase, some in (("prefill", prefills), ("decode", decoded.ranked)) if some}
    pairs: list[Pooled] = []
    short: list[Pooled] = []
    unpaired: list[Refusal] = []
    for decode in _kinds(decoded.ranked)[:MOST_KINDS]:
        for within_node in (False, True):
            found, refused = _prefills(prefill_request, prefills, decode, asked, within_node=within_node)
            unpaired += refused
            for prefill, transfer, undelayed in found:
                needed = _linked(
                    Pooled(prefill, decode, transfer, undelayed, within_node), prefill_request, decode_request
                )
                pair = _sized(needed, prefill_request, decode_request, asked)
                if not within_node or fits_node(pair or needed):
                    (pairs if pair is not None else short).append(pair or needed)
    turned_down["prefill"] += unpaired
    return _Paired(pairs, turned_down, able, short, unpaired)


def _best_alone(prefills: Sequence[Timed], question: Question) -> tuple[list[Timed], list[Refusal]]:
    """Return the prefill layouts that serve with the fewest GPUs where the transfer takes no time, and those that can't even so."""
    entries = [alone(entry, question) for entry in prefills]
    timed = [entry for entry in entries if isinstance(entry, Timed)]
    results = evaluate(timed, question)
    good = [
        (searching.preference(result, question), entry)
        for result, entry in zip(results, timed, strict=True)
        if isinstance(result, Evaluated)
    ]
    best = [entry for _, entry in sorted(good, key=lambda one: one[0])[:MOST_PREFILLS]]
    return best, [entry for entry in (*entries, *results) if isinstance(entry, Refusal)]


def _kinds(ranked: Iterable[Evaluated]) -> list[Evaluated]:
    """Return the first of each GPU type and split of the cache: others are no better to hand over to."""
    first: dict[tuple[str, float, str], Evaluated] = {}
    for entry in ranked:
        chosen = entry.replica
        first.setdefault((chosen.gpu_type.id, chosen.memory.kv_bytes_per_token, chosen.plan.kv_format), entry)
    return list(first.values())


def _prefills(
    question: Question, prefills: Sequence[Timed], decode: Evaluated, asked: SeparatePools, *, within_node: bool
) -> tuple[list[tuple[Evaluated, Transfer, Timed]], list[Refusal]]:
    """Return every prefill pool that can hand over to a decode pool, with the transfer and the load without it."""
    ready: list[tuple[Timed, Transfer, Timed]] = []
    refused: list[Refusal] = []
    for load in prefills:
        candidate = load.replica
        if within_node and candidate.gpu_type.id != decode.replica.gpu_type.id:
            continue
        apart = unlike(candidate, decode.replica)
        if apart is not None:
            refused.append(_reject(candidate, "link", f"{apart}; allowed: {ALIKE}"))
            continue
        try:
            transfer = _transfer(question, load, decode, asked, within_node=within_node)
        except UntimedError as error:
            refused.append(_reject(candidate, "link", "; ".join(fault.message for fault in error.faults)))
            continue
        entry = alone(delayed(load, transfer, question.service.isl), question)
        if isinstance(entry, Timed):
            ready.append((entry, transfer, load))
        else:
            refused.append(entry)
    results = evaluate([entry for entry, _, _ in ready], question)
    refused += [result for result in results if isinstance(result, Refusal)]
    found = [
        (result, transfer, load)
        for result, (_, transfer, load) in zip(results, ready, strict=True)
        if isinstance(result, Evaluated)
    ]
    return found, refused


def _transfer(
    question: Question, load: Timed, decode: Evaluated, asked: SeparatePools, *, within_node: bool
) -> Transfer:
    return transfer_of(
        question.service.model,
        (load.replica.layout, load.kernels),
        (decode.replica.layout, decode.load.kernels),
        within_node=within_node,
        by_layer=asked.facts.by_layer,
    )


def _reject(replica: Replica, reason: str, detail: str) -> Refusal:
    return Refusal(replica.gpu_type, replica.plan.weight_format, replica.layout, reason, detail)


def _linked(pair: Pooled, prefill: Question, decode: Question) -> Pooled:
    """Return a pair with the replicas that it needs, its links no fuller than replicas may be."""
    linked_s = float(pair.transfer.seconds(prefill.service.isl))
    return replace(
        pair,
        prefill=_capped(pair.prefill, linked_s, prefill),
        decode=_capped(pair.decode, linked_s, decode),
    )


def _sized(pair: Pooled, prefill: Question, decode: Question, asked: SeparatePools) -> Pooled | None:
    """Return a pair with the replicas that are asked for or needed, None where fewer are given or fit the budget."""
    if prefill.target.requests_per_s is None:
        return _most_within(pair, prefill, decode, asked)
    given = asked.prefill.pool.replicas, asked.decode.pool.replicas
    counts = [fixed or needed.replicas for fixed, needed in zip(given, (pair.prefill, pair.decode), strict=True)]
    if counts[0] < pair.prefill.replicas or counts[1] < pair.decode.replicas:
        return None
    if counts == [pair.prefill.replicas, pair.decode.replicas]:
        return pair
    return with_counts(pair, counts[0], counts[1], prefill, decode)


def _capped(found: Evaluated, linked_s: float, question: Question) -> Evaluated:
    """Return a pool that sends or takes no more caches than its links carry at the utilisation that is allowed."""
    most = question.target.max_utilisation * found.replica.layout.dp / linked_s
    if found.most_requests_per_s <= most:
        return found
    decoding = found.most_decoding * most / found.most_requests_per_s
    return found.sized(Capacity(most, most, decoding, "link"), question)


def _most_within(pair: Pooled, prefill: Question, decode: Question, asked: SeparatePools) -> Pooled | None:
    """Return the numbers of replicas that serve the most within the budget of GPUs, at that rate."""
    budget = prefill.rules.gpu_budget or 0
    each = pair.prefill.replica.layout.gpus, pair.decode.replica.layout.gpus
    rate, counts = 0.0, (0, 0)
    given = asked.prefill.pool.replicas
    for prefills in range(1, budget // each[0] + 1) if given is None else (given,):
        decodes = (budget - prefills * each[0]) // each[1]
        tried = prefills, asked.decode.pool.replicas or decodes
        if tried[0] * each[0] + tried[1] * each[1] > budget:
            continue
        carried = min(tried[0] * pair.prefill.most_requests_per_s, tried[1] * pair.decode.most_requests_per_s)
        rate, counts = max((rate, counts), (carried, tried))
    if rate <= 0:
        return None
    at = prefill.with_(requests_per_s=rate), decode.with_(requests_per_s=rate)
    least = tuple(
        demand.replicas_for(rate, pool.most_requests_per_s) for pool in (pair.prefill, pair.decode)
    )  # no more than that rate takes
    counts = asked.prefill.pool.replicas or least[0], asked.decode.pool.replicas or least[1]
    return with_counts(pair, *counts, *at)
