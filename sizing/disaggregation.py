"""Prefill and decode on GPUs of their own: the layouts and sizes of both pools, and how they compare with serving as one.

A pool is sized as any replicas are, by the same step times: prefill replicas serve requests of one output token, decode
replicas requests whose prompt is in cache already. The transfer of the cache is time that a request takes outside the steps
of prefill, so it counts to TTFT; the limit on TTFT is the prefill pool's, that on ITL the decode pool's, and one on E2E is
split between them where that takes the fewest GPUs. As in DistServe (https://arxiv.org/abs/2401.09670) the pools follow as
GPUs = rate * seconds of a prompt / utilisation, and rate * OSL * ITL(b) / (b * utilisation), in whole replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sizing import capacity
from sizing import search as searching
from sizing.candidates import Candidate, Rejected, candidates
from sizing.errors import UntimedError
from sizing.handover import Transfer, transfer_of
from sizing.load import Load, Loads, Most
from sizing.pooled import (
    ALIKE,
    Asked,
    Found,
    Pooled,
    delayed,
    fits_node,
    phase_requests,
    preference,
    unlike,
    with_counts,
)
from sizing.request import Data, GpuOption, Request
from sizing.search import Evaluated, Timed, alone, evaluate
from sizing.specs.workload import Limit, Limits

TTFT_SHARES = 6  # ways to split a limit on E2E that are tried
# Pairs tried: those of the best pools by themselves. A transfer takes less than a prefill, so it seldom changes their order.
MOST_KINDS, MOST_PREFILLS = 12, 24
LEAST_OVER_SOLO = 1.05  # of the shortest prefill: the least of an E2E limit that is worth giving to prefill


class _Paired(NamedTuple):
    """What pairing found: pairs, the layouts of each pool that won't do, the pools for which any does, and near misses as
    of `Found`.
    """

    pairs: list[Pooled]
    rejected: dict[str, list[Rejected]]
    able: set[str]
    short: list[Pooled]
    unpaired: list[Rejected]


def search(request: Request, asked: Asked, precisions: Sequence[str | None], data: Data) -> Found:
    """Find pairs of layouts that meet the demand, those with the fewest GPUs (or best by another objective) first."""
    rejected: dict[str, tuple[Rejected, ...]] = {"prefill": (), "decode": ()}
    found: list[Pooled] = []
    short: list[Pooled] = []
    unpaired: list[Rejected] = []
    served: set[str] = set()
    for precision in precisions:
        prefill_request, _ = phase_requests(request, asked, None)
        loads = Loads(prefill_request, data)
        prefills, refused = _tabulated(prefill_request, asked.prefill.options, precision, loads)
        shares = list(_ttft_shares(request, prefills))
        if not shares:  # a prompt alone takes all of a limit on E2E
            whole, _ = phase_requests(request, asked, request.limits.e2e)
            refused += _best_alone(prefills, whole)[1]
        early: list[Rejected] = []
        late: list[Rejected] = []  # as of the first share, which leaves decode the most
        for number, share in enumerate(shares):
            tried = _paired(request, asked, share, precision, prefills, data)
            found += tried.pairs
            short += tried.short
            unpaired += tried.unpaired
            served |= tried.able
            late = late if number else tried.rejected["decode"]
            early = tried.rejected["prefill"]  # as of the last, which leaves prefill the most
        rejected["prefill"] += (*refused, *early)
        rejected["decode"] += tuple(late)
    ranked = tuple(sorted(found, key=lambda pair: preference(pair, request)))
    lacking = tuple(phase for phase in rejected if phase not in served)
    return Found(ranked, rejected, request, lacking, tuple(short), tuple(unpaired))


def _tabulated(
    request: Request, options: Sequence[GpuOption], precision: str | None, loads: Loads
) -> tuple[list[Timed], list[Rejected]]:
    """Return every layout of the prefill pool whose step times can be tabulated, limits aside, and the others."""
    unlimited = replace(request, limits=Limits())
    entries = [
        searching.timed(entry, replace(loads, request=unlimited)) if isinstance(entry, Candidate) else entry
        for option in options
        for entry in candidates(request, option, precision, loads.data)
    ]
    return (
        [entry for entry in entries if isinstance(entry, Timed)],
        [entry for entry in entries if isinstance(entry, Rejected)],
    )


def _ttft_shares(request: Request, prefills: Sequence[Timed]) -> Iterator[Limit | None]:
    """Yield what prefill may take of a limit on E2E: from little more than a lone prompt takes to nearly all."""
    limit = request.limits.e2e
    if limit is None or not prefills:
        yield None
        return
    shortest_s = LEAST_OVER_SOLO * min(entry.load.solo_ttft_s for entry in prefills)
    if shortest_s >= limit.seconds:
        return
    for seconds in np.geomspace(shortest_s, limit.seconds, TTFT_SHARES, endpoint=False):
        yield limit.model_copy(update={"seconds": float(seconds)})


def _paired(
    request: Request,
    asked: Asked,
    ttft_share: Limit | None,
    precision: str | None,
    prefills: Sequence[Timed],
    data: Data,
) -> _Paired:
    """Return every prefill pool with the best decode pool of each kind that a transfer can tell apart."""
    prefill_request, decode_request = phase_requests(request, asked, ttft_share)
    decoded = searching.search(decode_request, asked.decode.options, (precision,), data)
    prefills, refused = _best_alone(prefills, prefill_request)
    turned_down: dict[str, list[Rejected]] = {"prefill": refused, "decode": list(decoded.rejected)}
    able = {phase for phase, some in (("prefill", prefills), ("decode", decoded.ranked)) if some}
    pairs: list[Pooled] = []
    short: list[Pooled] = []
    unpaired: list[Rejected] = []
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


def _best_alone(prefills: Sequence[Timed], request: Request) -> tuple[list[Timed], list[Rejected]]:
    """Return the prefill layouts that serve with the fewest GPUs where the transfer takes no time, and those that can't even so."""
    entries = [alone(entry, request) for entry in prefills]
    timed = [entry for entry in entries if isinstance(entry, Timed)]
    results = evaluate(timed, request)
    good = [
        (searching.preference(result, request), entry)
        for result, entry in zip(results, timed, strict=True)
        if isinstance(result, Evaluated)
    ]
    best = [entry for _, entry in sorted(good, key=lambda one: one[0])[:MOST_PREFILLS]]
    return best, [entry for entry in (*entries, *results) if isinstance(entry, Rejected)]


def _kinds(ranked: Iterable[Evaluated]) -> list[Evaluated]:
    """Return the first of each GPU type and split of the cache: others are no better to hand over to."""
    first: dict[tuple[str, float, str], Evaluated] = {}
    for entry in ranked:
        chosen = entry.candidate
        first.setdefault((chosen.option.id, chosen.memory.kv_bytes_per_token, chosen.plan.kv_format), entry)
    return list(first.values())


def _prefills(
    request: Request, prefills: Sequence[Timed], decode: Evaluated, asked: Asked, *, within_node: bool
) -> tuple[list[tuple[Evaluated, Transfer, Load]], list[Rejected]]:
    """Return every prefill pool that can hand over to a decode pool, with the transfer and the load without it."""
    ready: list[tuple[Timed, Transfer, Load]] = []
    refused: list[Rejected] = []
    for candidate, load in prefills:
        if within_node and candidate.option.id != decode.candidate.option.id:
            continue
        apart = unlike(candidate, decode.candidate)
        if apart is not None:
            refused.append(_reject(candidate, "link", f"{apart}; allowed: {ALIKE}"))
            continue
        try:
            transfer = _transfer(request, candidate, load, decode, asked, within_node=within_node)
        except UntimedError as error:
            refused.append(_reject(candidate, "link", "; ".join(fault.message for fault in error.faults)))
            continue
        entry = alone(Timed(candidate, delayed(load, transfer, request.isl)), request)
        if isinstance(entry, Timed):
            ready.append((entry, transfer, load))
        else:
            refused.append(entry)
    results = evaluate([entry for entry, _, _ in ready], request)
    refused += [result for result in results if isinstance(result, Rejected)]
    found = [
        (result, transfer, load)
        for result, (_, transfer, load) in zip(results, ready, strict=True)
        if isinstance(result, Evaluated)
    ]
    return found, refused


def _transfer(
    request: Request, candidate: Candidate, load: Load, decode: Evaluated, asked: Asked, *, within_node: bool
) -> Transfer:
    return transfer_of(
        request.model,
        (candidate.layout, load.kernels),
        (decode.candidate.layout, decode.load.kernels),
        within_node=within_node,
        by_layer=asked.facts.by_layer,
    )


def _reject(candidate: Candidate, reason: str, detail: str) -> Rejected:
    return Rejected(candidate.option, candidate.plan.weight_format, candidate.layout, reason, detail)


def _linked(pair: Pooled, prefill: Request, decode: Request) -> Pooled:
    """Return a pair with the replicas that it needs, its links no fuller than replicas may be."""
    linked_s = float(pair.transfer.seconds(prefill.isl))
    return replace(
        pair,
        prefill=_capped(pair.prefill, linked_s, prefill),
        decode=_capped(pair.decode, linked_s, decode),
    )


def _sized(pair: Pooled, prefill: Request, decode: Request, asked: Asked) -> Pooled | None:
    """Return a pair with the replicas that are asked for or needed, None where fewer are given or fit the budget."""
    if prefill.requests_per_s is None:
        return _most_within(pair, prefill, decode, asked)
    given = asked.prefill.pool.replicas, asked.decode.pool.replicas
    counts = [fixed or needed.replicas for fixed, needed in zip(given, (pair.prefill, pair.decode), strict=True)]
    if counts[0] < pair.prefill.replicas or counts[1] < pair.decode.replicas:
        return None
    if counts == [pair.prefill.replicas, pair.decode.replicas]:
        return pair
    return with_counts(pair, counts[0], counts[1], prefill, decode)


def _capped(found: Evaluated, linked_s: float, request: Request) -> Evaluated:
    """Return a pool that sends or takes no more caches than its links carry at the utilisation that is allowed."""
    most = request.max_utilisation * found.candidate.layout.dp / linked_s
    if found.most_requests_per_s <= most:
        return found
    decoding = found.most_decoding * most / found.most_requests_per_s
    return found.sized(Most(most, most, decoding, "link"), request)


def _most_within(pair: Pooled, prefill: Request, decode: Request, asked: Asked) -> Pooled | None:
    """Return the numbers of replicas that serve the most within the budget of GPUs, at that rate."""
    budget = prefill.gpu_budget or 0
    each = pair.prefill.candidate.layout.gpus, pair.decode.candidate.layout.gpus
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
    at = replace(prefill, requests_per_s=rate), replace(decode, requests_per_s=rate)
    least = tuple(
        capacity.replicas_for(rate, pool.most_requests_per_s) for pool in (pair.prefill, pair.decode)
    )  # no more than that rate takes
    counts = asked.prefill.pool.replicas or least[0], asked.decode.pool.replicas or least[1]
    return with_counts(pair, *counts, *at)
