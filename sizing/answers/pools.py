"""Disaggregated deployments: separate pools for prefill and decode, with a KV cache transfer between them.

Layouts and sizes of both pools are searched for, or taken from the question.

A pool is sized with the same step times as any replicas: prefill replicas serve requests with one output token, and decode
replicas serve requests whose prompt is already in the cache. The transfer time is added to TTFT. The limit on TTFT applies to
the prefill pool and the limit on ITL to the decode pool. A limit on E2E is split where that needs the fewest GPUs. As in
DistServe (https://arxiv.org/abs/2401.09670), the pools need rate * seconds of a prompt / utilisation GPUs for prefill and
rate * OSL * ITL(b) / (b * utilisation) GPUs for decode, in whole replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sizing.answers import search as searching
from sizing.answers.answer import Answer, Outcome, Pairing, Pool, preference
from sizing.answers.deployment import Resolved, running
from sizing.answers.search import evaluate, resized, with_count
from sizing.engine.transfer import Transfer, transfer_of
from sizing.model.settings import Phase
from sizing.question.names import SEPARATE
from sizing.question.question import Question, SeparatePools
from sizing.replica.capacity import Capacity
from sizing.replica.replica import Refusal, Replica
from sizing.replica.timing import Timed
from sizing.specs import demand
from sizing.specs.errors import InputError, UntimedError
from sizing.specs.optimisations import HandOver
from sizing.specs.workload import Limit, Limits

# The conditions under which one pool can take the caches of the other.
COMPATIBLE = "GPU types of one vendor, and a --kv-precision that both have"


def phase_questions(question: Question, pools: SeparatePools, ttft_share: Limit | None) -> tuple[Question, Question]:
    """The questions of the prefill and the decode pool. `ttft_share` is the prefill part of an E2E limit, or None."""
    limits, after_first = question.target.limits, question.service.osl - 1
    # The decode pool's ITL runs from the arrival of the cache, so a limit on it bounds the whole time there.
    whole = None if limits.itl is None else limits.itl.at(limits.itl.seconds * after_first)
    if limits.e2e is not None and ttft_share is not None:
        left = limits.e2e.at(limits.e2e.seconds - ttft_share.seconds)
        if whole is None or whole.statistic != left.statistic or left.seconds < whole.seconds:
            whole = left
    common, serving = question.with_(concurrency=None, offline=False), question.service.serving
    if question.target.offline:  # as in one pool, a queue may wait
        common = common.with_(max_utilisation=1.0)
    first, rest = Limits(ttft=limits.ttft, e2e=ttft_share), Limits(itl=limits.itl, e2e=whole)
    prefill = common.with_(osl=1, limits=first, serving=pools.prefill.serving(serving), phase="prefill")
    return prefill, common.with_(limits=rest, serving=pools.decode.serving(serving), phase="decode")


def delayed(timed: Timed, transfer: Transfer, prompt_tokens: int) -> Timed:
    """A prefill load whose first tokens wait for the transfer of their cache.

    The transfer moves the cache of the whole prompt, including tokens that the prefill pool found in its cache or in host
    memory.
    """
    own_s = timed.solo_ttft_s - timed.curves.front_end_s
    more_s = float(transfer.exposed_s(prompt_tokens, own_s))
    return replace(timed, curves=replace(timed.curves, front_end_s=timed.curves.front_end_s + more_s))


def joined(pair: Answer, question: Question, pools: SeparatePools, *, within_node: bool) -> Answer:
    """The pair with a transfer over the link within a node, or over the network.

    Raises UntimedError where a profile states no network.
    """
    prefill, decode = pair.pools
    undelayed = prefill.undelayed
    assert undelayed is not None
    transfer = transfer_of(
        undelayed.kernels, decode.timed.kernels, within_node=within_node, by_layer=pools.facts.by_layer
    )
    prefill = replace(prefill, timed=delayed(undelayed, transfer, question.service.isl))
    return replace(pair, pools=(prefill, decode), transfer=transfer)


def unlike(prefill: Replica, decode: Replica) -> str | None:
    """Why `decode` cannot take the caches of `prefill`, or None: formats differ, or no connector joins the GPUs."""
    vendors = prefill.gpu_type.gpu.vendor, decode.gpu_type.gpu.vendor
    if vendors[0] != vendors[1]:
        return f"no cache connector joins GPUs of {vendors[0]} and {vendors[1]}"
    one, other = prefill.plan.kv_format, decode.plan.kv_format
    return None if one == other else f"the prefill pool's cache is {one}, the decode pool's {other}"


def fits_node(pair: Answer) -> bool:
    """Whether both pools have one GPU type and fit in one node together."""
    prefill, decode = (pool.replica.gpu_type for pool in pair.pools)
    return prefill.id == decode.id and pair.gpus <= prefill.gpu.datasheet.node.gpus


def with_counts(pair: Answer, counts: Sequence[int], phases: Sequence[Question]) -> Answer:
    """The same layouts with other numbers of replicas and the resulting loads."""
    pools = (with_count(*entry) for entry in zip(pair.pools, counts, phases, strict=True))
    return replace(pair, pools=tuple(pools), run=None)


TTFT_SHARES = 6  # splits of an E2E limit to try
# Only the individually best pools are paired. A transfer takes less time than a prefill, so it seldom changes their order.
MOST_KINDS, MOST_PREFILLS = 12, 24
LEAST_OVER_SOLO = 1.05  # the smallest prefill part of an E2E limit, as a multiple of the shortest prefill


class _Paired(NamedTuple):
    """The result of pairing: pairs, rejected layouts by pool, pools with a usable layout, and near misses as in `Pairing`."""

    pairs: list[Answer]
    refusals: dict[Phase, list[Refusal]]
    able: set[Phase]
    short: list[Answer]
    unpaired: list[Refusal]


def search(question: Question) -> Outcome:
    """Find pairs of layouts that meet the demand, best by the objective first.

    Where no pair within the question's reach does, all layouts are tried. Of a batch of documents, the last one takes its own
    time in both pools, and all of them arrive in the time before that.
    """
    found = _in_steady_state(question)
    target, asked = question.target, question.space.pools
    if target.documents is None or target.within_s is None or asked is None or not found.answers:
        return found
    left_s = target.within_s - min(pair.last_s for pair in found.answers)
    if left_s <= 0:
        return replace(found, answers=())
    faster = _in_steady_state(question.with_(requests_per_s=target.documents / left_s))
    phases = phase_questions(question, asked, None)
    answers = (with_counts(pair, [pool.count for pool in pair.pools], phases) for pair in faster.answers)
    return replace(faster, question=question, answers=tuple(answers))


def _in_steady_state(question: Question) -> Outcome:
    found = _within_reach(question)
    if found.answers or question.space.layouts == "all":
        return found
    return replace(_within_reach(question.with_(layouts="all")), question=question)


def _within_reach(question: Question) -> Outcome:
    asked = question.space.pools
    assert asked is not None
    refusals: dict[Phase, tuple[Refusal, ...]] = {"prefill": (), "decode": ()}
    tried: list[_Paired] = []
    for precision in question.space.precisions:
        prefill_question, _ = phase_questions(question, asked, None)
        of_prefill = prefill_question.with_(gpu_types=asked.prefill.gpu_types, precisions=(precision,))
        (entries,) = searching.tabulated([of_prefill])
        prefills = [entry for entry in entries if isinstance(entry, Timed)]
        refusals["prefill"] += tuple(entry for entry in entries if isinstance(entry, Refusal))
        shares = _ttft_shares(question, prefills)
        by_share = [_paired(question, asked, share, precision, prefills) for share in shares]
        if by_share:  # the first share leaves the most time for decode, the last for prefill
            refusals["prefill"] += tuple(by_share[-1].refusals["prefill"])
            refusals["decode"] += tuple(by_share[0].refusals["decode"])
        else:  # a lone prompt takes the whole E2E limit
            whole, _ = phase_questions(question, asked, question.target.limits.e2e)
            refusals["prefill"] += tuple(_best_alone(prefills, whole)[1])
        tried += by_share
    ranked = sorted((pair for each in tried for pair in each.pairs), key=lambda pair: preference(pair, question))
    pairing = Pairing(
        refusals,
        lacking=tuple(phase for phase in refusals if not any(phase in each.able for each in tried)),
        short=tuple(pair for each in tried for pair in each.short),
        unpaired=tuple(refusal for each in tried for refusal in each.unpaired),
    )
    return Outcome(question, tuple(ranked), pairing=pairing)


def _ttft_shares(question: Question, prefills: Sequence[Timed]) -> Iterator[Limit | None]:
    """Yield the prefill parts of an E2E limit to try, from little more than a lone prompt's time to nearly the whole limit."""
    limit = question.target.limits.e2e
    if limit is None or not prefills:
        yield None
        return
    shortest_s = LEAST_OVER_SOLO * min(entry.solo_ttft_s for entry in prefills)
    if shortest_s >= limit.seconds:
        return
    for seconds in np.geomspace(shortest_s, limit.seconds, TTFT_SHARES, endpoint=False):
        yield limit.at(float(seconds))


def _paired(
    question: Question,
    pools: SeparatePools,
    ttft_share: Limit | None,
    precision: str | None,
    prefills: Sequence[Timed],
) -> _Paired:
    """Pair every prefill pool with the best decode pool of each kind (`_kinds`)."""
    prefill_question, decode_question = phase_questions(question, pools, ttft_share)
    decoded = searching.search(decode_question.with_(gpu_types=pools.decode.gpu_types, precisions=(precision,)))
    prefills, refused = _best_alone(prefills, prefill_question)
    phases = prefill_question, decode_question
    turned_down: dict[Phase, list[Refusal]] = {"prefill": refused, "decode": list(decoded.refusals)}
    usable: tuple[tuple[Phase, bool], ...] = (("prefill", bool(prefills)), ("decode", bool(decoded.answers)))
    pairs: list[Answer] = []
    short: list[Answer] = []
    unpaired: list[Refusal] = []
    for decode in _kinds(decoded.answers)[:MOST_KINDS]:
        for within_node in (False, True):
            found, refused = _prefills(prefill_question, prefills, decode, pools, within_node=within_node)
            unpaired += refused
            for prefill, transfer in found:
                needed = _linked(Answer((prefill, decode), transfer), phases)
                pair = _sized(needed, phases, pools)
                if not within_node or fits_node(pair or needed):
                    pairs += [] if pair is None else [pair]
                    short += [needed] if pair is None else []
    turned_down["prefill"] += unpaired
    return _Paired(pairs, turned_down, {phase for phase, is_usable in usable if is_usable}, short, unpaired)


def _best_alone(prefills: Sequence[Timed], question: Question) -> tuple[list[Timed], list[Refusal]]:
    """The best prefill layouts without transfer time, and refusals of those that fail even so."""
    results = evaluate(prefills, question)
    good = [
        (preference(Answer((result,)), question), load)
        for result, load in zip(results, prefills, strict=True)
        if isinstance(result, Pool)
    ]
    best = [load for _, load in sorted(good, key=lambda item: item[0])[:MOST_PREFILLS]]
    return best, [result for result in results if isinstance(result, Refusal)]


def _kinds(ranked: Iterable[Answer]) -> list[Pool]:
    """The best pool of each GPU type, cache bytes per token and cache format; transfers differ only in these."""
    first: dict[tuple[str, float, str], Pool] = {}
    for answer in ranked:
        chosen = answer.pool.replica
        first.setdefault((chosen.gpu_type.id, chosen.memory.kv_bytes_per_token, chosen.plan.kv_format), answer.pool)
    return list(first.values())


def _prefills(
    question: Question, prefills: Sequence[Timed], decode: Pool, pools: SeparatePools, *, within_node: bool
) -> tuple[list[tuple[Pool, Transfer]], list[Refusal]]:
    """Every prefill pool that can transfer caches to `decode`, with the transfer, and the refusals."""
    own = decode.replica.gpu_type.id
    near = [load for load in prefills if not within_node or load.replica.gpu_type.id == own]
    sent = [_sent(load, decode, pools, within_node=within_node) for load in near]
    later = (
        transfer if isinstance(transfer, Refusal) else delayed(load, transfer, question.service.isl)
        for load, transfer in zip(near, sent, strict=True)
    )
    results = evaluate(later, question)
    found = [
        (replace(result, undelayed=load), transfer)
        for result, load, transfer in zip(results, near, sent, strict=True)
        if isinstance(result, Pool) and isinstance(transfer, Transfer)
    ]
    return found, [result for result in results if isinstance(result, Refusal)]


def _sent(timed: Timed, decode: Pool, pools: SeparatePools, *, within_node: bool) -> Transfer | Refusal:
    """The transfer of caches from a prefill layout to `decode`, or why there is none."""
    apart = unlike(timed.replica, decode.replica)
    if apart is not None:
        return timed.replica.rejected("link", f"{apart}; allowed: {COMPATIBLE}")
    by_layer = pools.facts.by_layer
    try:
        return transfer_of(timed.kernels, decode.timed.kernels, within_node=within_node, by_layer=by_layer)
    except UntimedError as error:
        return timed.replica.rejected("link", "; ".join(fault.message for fault in error.faults))


def _linked(pair: Answer, phases: tuple[Question, Question]) -> Answer:
    """`pair` with the replicas that it needs, where the utilisation limit applies to its links too."""
    assert pair.transfer is not None
    linked_s = float(pair.transfer.seconds(phases[0].service.isl))
    pools = (_capped(pool, linked_s, of) for pool, of in zip(pair.pools, phases, strict=True))
    return replace(pair, pools=tuple(pools))


def _sized(pair: Answer, phases: tuple[Question, Question], pools: SeparatePools) -> Answer | None:
    """`pair` with the requested or needed replicas; None where request or budget allow fewer than needed."""
    if phases[0].target.requests_per_s is None:
        return _most_within(pair, phases, pools)
    needed = [pool.count for pool in pair.pools]
    counts = [given or count for given, count in zip(pools.given, needed, strict=True)]
    if counts[0] < needed[0] or counts[1] < needed[1]:
        return None
    return pair if counts == needed else with_counts(pair, counts, phases)


def _capped(pool: Pool, linked_s: float, question: Question) -> Pool:
    """`pool` with its capacity limited to the transfers that its links carry at the allowed utilisation."""
    most = question.target.max_utilisation * pool.replica.layout.dp / linked_s
    if pool.capacity.requests_per_s <= most:
        return pool
    decoding = pool.capacity.decoding * most / pool.capacity.requests_per_s
    return resized(pool, Capacity(most, most, decoding, "link"), question)


def _most_within(pair: Answer, phases: tuple[Question, Question], pools: SeparatePools) -> Answer | None:
    """`pair` with the replica counts of the highest rate within the GPU budget; None where none fits."""
    budget = phases[0].rules.gpu_budget or 0
    each = [pool.replica.layout.gpus for pool in pair.pools]
    most = [pool.capacity.requests_per_s for pool in pair.pools]
    rate, counts = 0.0, (0, 0)
    given = pools.given
    for prefills in range(1, budget // each[0] + 1) if given[0] is None else (given[0],):
        decodes = (budget - prefills * each[0]) // each[1]
        tried = prefills, given[1] or decodes
        if tried[0] * each[0] + tried[1] * each[1] > budget:
            continue
        carried = min(tried[0] * most[0], tried[1] * most[1])
        rate, counts = max((rate, counts), (carried, tried))
    if rate <= 0:
        return None
    # No more replicas than this rate needs.
    least = [fixed or demand.replicas_for(rate, capacity) for fixed, capacity in zip(given, most, strict=True)]
    return with_counts(pair, least, [phase.with_(requests_per_s=rate) for phase in phases])


class PairOfLayouts(NamedTuple):
    """A layout of the prefill pool, a layout of the decode pool, and the KV cache transfer between them."""

    prefill: Resolved
    decode: Resolved
    transfer: Transfer
    facts: HandOver


def pair_of_layouts(question: Question) -> PairOfLayouts:
    """The layouts of both pools of a question about separate pools. Raises InputError as `paired` does."""
    pools = question.space.pools
    assert pools is not None
    return paired(pools, *(running(question, pool) for pool in (pools.prefill, pools.decode)))


def paired(pools: SeparatePools, prefill: Resolved, decode: Resolved) -> PairOfLayouts:
    """The layouts of both pools with the KV cache transfer from prefill to decode.

    Raises InputError for pools with different cache formats, or with GPUs that no connector joins.
    """
    apart = unlike(prefill.replica, decode.replica)
    if apart is not None:
        raise InputError(apart, field=SEPARATE, allowed=COMPATIBLE)
    gpus = sum((count or 1) * of.replica.layout.gpus for count, of in zip(pools.given, (prefill, decode), strict=True))
    same = prefill.replica.gpu_type.id == decode.replica.gpu_type.id
    within_node, facts = same and gpus <= prefill.replica.gpu_type.gpu.datasheet.node.gpus, pools.facts
    transfer = transfer_of(prefill.kernels(), decode.kernels(), within_node=within_node, by_layer=facts.by_layer)
    return PairOfLayouts(prefill, decode, transfer, facts)
