"""Transfer of prompt caches from prefill replicas to decode replicas."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from sizing.engine.requests import NEVER, Requests
from sizing.engine.run import History
from sizing.model import memory
from sizing.model.architecture import Shard
from sizing.model.attention import Numeric
from sizing.replica import links
from sizing.replica.kernels import Kernels
from sizing.specs.frozen import Frozen


class PoolLink(Frozen):
    """The link between two pools, for one GPU of the slower side: kind, bytes/s reached, start-up in s.

    `within_node` is set if both pools are in one node.
    """

    kind: str
    bytes_per_s: float
    alpha_s: float
    within_node: bool = False


class HandedOver(Frozen):
    """What arrives at a decode pool, in the order in which the caches arrive.

    `numbers` are the requests' numbers in the prefill pool, `taken_s` the transfer times, `outside_s` the times outside the
    steps.
    """

    requests: Requests
    numbers: list[int]
    taken_s: list[float]
    outside_s: list[float]

    def land(self, whole: Requests) -> None:
        """Write the times and counts of the decode pool into the requests of the prefill pool, as the client sees them."""
        for number, tokens in enumerate(whole.osl):
            if tokens > 1:
                whole.admitted[number] = whole.first_token[number] = whole.finished[number] = NEVER
        own = self.requests
        for later, (number, outside_s) in enumerate(zip(self.numbers, self.outside_s, strict=True)):
            whole.admitted[number] = own.admitted[later]
            whole.first_token[number] = own.arrival[later] + outside_s
            whole.finished[number] = own.finished[later] + outside_s
            whole.generated[number] = own.generated[later]
            whole.preemptions[number] += own.preemptions[later]


class Transfer(Frozen):
    """The transfer of a prompt's cache: bytes per token and per sequence of the GPU that sends or takes most, and the link.

    All GPUs of a replica send their shares at the same time. With `layers` above 0, each layer is sent while later ones are
    computed.
    """

    bytes_per_token: float
    bytes_per_sequence: float
    link: PoolLink
    layers: int = 0

    def seconds(self, prompt_tokens: Numeric) -> Numeric:
        """Seconds on the link: bytes / bandwidth, plus the start-up."""
        sent = self.bytes_per_token * prompt_tokens + self.bytes_per_sequence
        return links.send_s(sent, alpha_s=self.link.alpha_s, bytes_per_s=self.link.bytes_per_s)

    def exposed_s(self, prompt_tokens: Numeric, prefill_s: Numeric) -> Numeric:
        """Seconds from the end of a prefill of `prefill_s` to the arrival of the cache.

        This is the whole transfer. If layers are sent one by one, it is the last layer's share, or the part that prefill
        was too short to hide.
        """
        whole_s = self.seconds(prompt_tokens)
        if not self.layers:
            return whole_s
        hidden_s = prefill_s * (1 - 1 / self.layers)
        return np.maximum(whole_s / self.layers, whole_s - hidden_s)

    def handed_over(self, first: History, osl: Sequence[int], ranks: int) -> HandedOver:
        """Send each prompt's cache when its prefill is over. The link of each rank carries one cache after another.

        `osl` has the output tokens of each request; the prefill pool saw one output token.
        """
        requests, replicas = first.requests, first.replicas
        outside_s = [replicas[at].clock.outside(isl) for at, isl in zip(first.placed, requests.isl, strict=False)]
        ended = sorted(
            (finished - outside_s[number], number)
            for number, finished in enumerate(requests.finished)
            if osl[number] > 1 and not math.isnan(finished)
        )
        free_at = [[0.0] * ranks for _ in replicas]
        found: list[tuple[float, float, int]] = []
        for done, number in ended:
            place, isl = first.placed[number], requests.isl[number]
            link_s = float(self.seconds(isl))
            exposed_s = float(self.exposed_s(isl, done - requests.admitted[number]))
            arrives = max(done + exposed_s, free_at[place][0] + link_s)
            heapq.heapreplace(free_at[place], arrives)  # the rank whose link is free first
            found.append((arrives, arrives - done, number))
        found.sort()
        store = Requests()
        for arrives, _, number in found:
            store.add(arrives, requests.isl[number], osl[number])
        numbers, taken_s = [number for *_, number in found], [taken_s for _, taken_s, _ in found]
        return HandedOver(store, numbers, taken_s, [outside_s[number] for number in numbers])


def cache_rates(shard: Shard) -> tuple[float, float]:
    """(bytes per token, fixed bytes per sequence) of the GPU of a layout that holds the most cache, including a draft's."""
    rates = [(*memory.rate_bytes(shard, stage), memory.draft_cache_bytes(shard, stage)) for stage in shard.stages]
    return max((per_token + draft, fixed) for per_token, fixed, draft in rates)


def link_between(prefill: Kernels, decode: Kernels, *, within_node: bool) -> PoolLink:
    """The link between two pools: the GPUs' link within a node, else the network, as fast as the slower side.

    Raises UntimedError if a profile states no network.
    """
    ends = [
        kernels.links.link(min(2, kernels.gpu.datasheet.node.gpus)) if within_node else kernels.links.inter_node_link()
        for kernels in (prefill, decode)
    ]
    kind, bytes_per_s, _ = min(ends, key=lambda end: end[1])
    return PoolLink(kind, bytes_per_s, max(alpha_s for _, _, alpha_s in ends), within_node)


def transfer_of(prefill: Kernels, decode: Kernels, *, within_node: bool, by_layer: bool) -> Transfer:
    """The transfer of a prompt's cache from a prefill replica to a decode replica, limited by the GPU with the most cache.

    Raises UntimedError if a profile states no network.
    """
    sides = [cache_rates(kernels.shard) for kernels in (prefill, decode)]
    return Transfer(
        bytes_per_token=max(per_token for per_token, _ in sides),
        bytes_per_sequence=max(fixed for _, fixed in sides),
        link=link_between(prefill, decode, within_node=within_node),
        layers=len(decode.shard.model.layers) if by_layer else 0,
    )
