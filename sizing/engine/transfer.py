"""Disaggregated serving, simulated: prefill replicas, the cache on its way between the pools, decode replicas.

Two runs of the one simulator. In the first every request ends with its first token; what it ends with, delayed by the
transfer of its cache, arrives at the second, whose replicas take prompts with their cache and first token. A request's
TTFT is over when its cache has arrived, since the decode replica answers from then on; waits for a slot there count to ITL.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sizing.engine import run, simulation
from sizing.engine.requests import Requests
from sizing.engine.run import History, Record, Routing
from sizing.engine.simulation import ReplicaSet, Run, Traffic, longest_of, measure, open_requests, watched
from sizing.model import memory
from sizing.model.architecture import Shard
from sizing.model.attention.terms import Numeric
from sizing.replica import roofline
from sizing.replica.kernels import Kernels
from sizing.specs.workload import Limits


@dataclass(frozen=True, slots=True)
class PoolLink:
    """What joins two pools, for one GPU of the side that is slower: kind, bytes/s that it reaches, start-up in s.

    `within_node` is set where both pools stand in one node.
    """

    kind: str
    bytes_per_s: float
    alpha_s: float
    within_node: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """The cache of a prompt on its way: bytes a token and a sequence of the GPU with the most to send or take, and the link.

    Every GPU of a replica sends its own share at once. With `layers` above 0 each layer is sent while later ones are
    computed.
    """

    bytes_per_token: float
    bytes_per_sequence: float
    link: PoolLink
    layers: int = 0

    def seconds(self, prompt_tokens: Numeric) -> Numeric:
        """Seconds on the link: bytes / bandwidth and the start-up."""
        sent = self.bytes_per_token * prompt_tokens + self.bytes_per_sequence
        return roofline.send_s(sent, alpha_s=self.link.alpha_s, bytes_per_s=self.link.bytes_per_s)

    def exposed_s(self, prompt_tokens: Numeric, prefill_s: Numeric) -> Numeric:
        """Seconds from the end of a prefill of `prefill_s` to the cache's arrival.

        All of the transfer; layer by layer the last layer's share, or what prefill was too short to hide.
        """
        whole_s = self.seconds(prompt_tokens)
        if not self.layers:
            return whole_s
        hidden_s = prefill_s * (1 - 1 / self.layers)
        return np.maximum(whole_s / self.layers, whole_s - hidden_s)


class Handed(NamedTuple):
    """What a disaggregated run served: requests as the client sees them, each pool by itself, mean seconds of transfer.

    TTFT of the prefill pool is without the transfer, ITL of the decode pool from the arrival of the cache.
    """

    whole: Run
    prefill: Run
    decode: Run
    transfer_s: float


def cache_rates(shard: Shard) -> tuple[float, float]:
    """The most cache bytes of a token, and those fixed to a sequence, that one GPU of a layout holds; a draft's too."""
    rates = [(*memory.rate_bytes(shard, stage), memory.draft_cache_bytes(shard, stage)) for stage in shard.stages]
    return max((per_token + draft, fixed) for per_token, fixed, draft in rates)


def link_between(prefill: Kernels, decode: Kernels, *, within_node: bool) -> PoolLink:
    """What joins two pools: inside a node the link of its GPUs, else the network, as fast as the slower side's.

    Raises UntimedError where a profile states no network.
    """
    ends = [
        kernels.links.link(min(2, kernels.gpu.datasheet.node.gpus)) if within_node else kernels.links.inter_node_link()
        for kernels in (prefill, decode)
    ]
    kind, bytes_per_s, _ = min(ends, key=lambda end: end[1])
    return PoolLink(kind, bytes_per_s, max(alpha_s for _, _, alpha_s in ends), within_node)


def transfer_of(prefill: Kernels, decode: Kernels, *, within_node: bool, by_layer: bool) -> Transfer:
    """How a prompt's cache goes from a prefill replica to a decode replica: bound by the GPU with the most of it.

    Raises UntimedError where a profile states no network.
    """
    sides = [cache_rates(kernels.shard) for kernels in (prefill, decode)]
    return Transfer(
        bytes_per_token=max(per_token for per_token, _ in sides),
        bytes_per_sequence=max(fixed for _, fixed in sides),
        link=link_between(prefill, decode, within_node=within_node),
        layers=len(decode.shard.model.layers) if by_layer else 0,
    )


def simulate(
    prefill: ReplicaSet,
    decode: ReplicaSet,
    transfer: Transfer,
    traffic: Traffic,
    *,
    limits: Limits | None = None,
    routing: Routing = "random",
    limit_s: float = math.inf,
) -> Handed:
    """Drive a load that no end of a request feeds back into through both pools. Deterministic for a seed."""
    longest = traffic.longest or longest_of(traffic, prefill.shard.model)
    drawn = list(open_requests(traffic, longest, np.random.default_rng(traffic.seed)))
    drawn = [request for request in drawn if request[0] < limit_s]
    taken = [request for request in drawn if request[1] + request[2] <= longest]
    requests = Requests()
    for arrival, isl, _ in taken:
        requests.add(arrival, isl, 1)

    def driven(of: ReplicaSet, store: Requests, *, handed: bool) -> History:
        return _driven(of, store, traffic, longest, routing=routing, limit_s=limit_s, handed=handed)

    first = driven(prefill, requests, handed=False)
    arrived = _arrivals(first, [osl for *_, osl in taken], transfer, prefill.shard.layout.dp)
    second = driven(decode, arrived.requests, handed=True)
    refused = [n for replica in first.replicas for n in replica.refused]
    refused_later = [arrived.numbers[n] for replica in second.replicas for n in replica.refused]
    joined = replace(second, requests=_joined(first, second, arrived, [osl for *_, osl in taken]))
    away = len(drawn) - len(taken)
    whole = measure(joined, traffic, limits, limit_s=limit_s, turned_away=away, refused=[*refused, *refused_later])
    of_prefill = measure(first, traffic, None, limit_s=limit_s, turned_away=away)
    of_decode = measure(second, traffic, None, limit_s=limit_s)
    return Handed(
        replace(
            whole,
            queue_mean=of_prefill.queue_mean + of_decode.queue_mean,
            queue_max=max(of_prefill.queue_max, of_decode.queue_max),
            queue_end=of_prefill.queue_end + of_decode.queue_end,
            stable=of_prefill.stable and of_decode.stable,
        ),
        of_prefill,
        of_decode,
        float(np.mean(arrived.taken_s)) if arrived.taken_s else 0.0,
    )


def _driven(
    of: ReplicaSet,
    requests: Requests,
    traffic: Traffic,
    longest: int,
    *,
    routing: Routing,
    limit_s: float,
    handed: bool,
) -> History:
    """Drive requests, ascending by arrival, through one pool."""
    replicas = simulation.schedulers(of, requests, longest=longest, handed=handed)
    for replica in replicas:
        replica.observer = Record(replica, None)
    return run.open_loop(
        requests,
        replicas,
        routing=routing,
        seed=traffic.seed + handed,  # a router that draws does so anew
        limit=limit_s,
        watched=watched(traffic),
    )


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """What comes to the decode pool: requests ascending by the arrival of their cache, their numbers in the first pool, and
    for each of those the seconds that it takes outside the steps.
    """

    requests: Requests
    numbers: list[int]
    outside_s: Callable[[int], float]
    taken_s: list[float]


def _arrivals(first: History, osl: list[int], transfer: Transfer, ranks: int) -> _Arrivals:
    """Send each prompt's cache when its prefill is over; the link of each of a replica's ranks carries one after another."""
    requests, replicas = first.requests, first.replicas

    def outside_s(number: int) -> float:
        return replicas[first.placed[number]].clock.outside(requests.isl[number])

    ended = [
        (requests.finished[n] - outside_s(n), n)
        for n in range(len(requests))
        if osl[n] > 1 and not math.isnan(requests.finished[n])
    ]
    free_at = [[0.0] * ranks for _ in replicas]
    found: list[tuple[float, int]] = []
    taken_s: list[float] = []
    for done, number in sorted(ended):
        place, isl = first.placed[number], requests.isl[number]
        link_s = float(transfer.seconds(isl))
        exposed_s = float(transfer.exposed_s(isl, done - requests.admitted[number]))
        arrives = max(done + exposed_s, free_at[place][0] + link_s)
        heapq.heapreplace(free_at[place], arrives)  # the rank whose link is free first
        found.append((arrives, number))
        taken_s.append(arrives - done)
    found.sort()
    store = Requests()
    for arrives, number in found:
        store.add(arrives, requests.isl[number], osl[number])
    return _Arrivals(store, [number for _, number in found], outside_s, taken_s)


def _joined(first: History, second: History, arrived: _Arrivals, osl: list[int]) -> Requests:
    """The requests as the client sees them, by their numbers in the first pool."""
    before, after = first.requests, second.requests
    joined = Requests()
    for number, (arrival, isl) in enumerate(zip(before.arrival, before.isl, strict=True)):
        joined.add(arrival, isl, osl[number])
        if osl[number] == 1:
            joined.admitted[number] = before.admitted[number]
            joined.first_token[number] = before.first_token[number]
            joined.finished[number] = before.finished[number]
            joined.generated[number] = before.generated[number]
    for later, number in enumerate(arrived.numbers):
        outside_s = arrived.outside_s(number)
        joined.admitted[number] = after.admitted[later]
        joined.first_token[number] = after.arrival[later] + outside_s
        joined.finished[number] = after.finished[later] + outside_s
        joined.generated[number] = after.generated[later]
        joined.preemptions[number] = before.preemptions[number] + after.preemptions[later]
    return joined
