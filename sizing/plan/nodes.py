"""Whole nodes: how many replicas fit a server, how many servers hold them, and how replicas of several sizes share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Fit(NamedTuple):
    """A replica and the server that it runs on, in GPUs."""

    gpus_per_replica: int
    gpus_per_node: int

    @property
    def replicas_per_node(self) -> int:
        """Replicas that fit one node; 0 where one replica spans several."""
        return self.gpus_per_node // self.gpus_per_replica

    @property
    def nodes_per_replica(self) -> int:
        """Whole nodes that one replica takes, 1 where it shares its node."""
        return -(-self.gpus_per_replica // self.gpus_per_node)

    @property
    def replicas_lost_with_a_node(self) -> int:
        """Replicas that are gone while one node is down."""
        return max(1, self.replicas_per_node)

    def nodes(self, replicas: int) -> int:
        """Nodes that so many replicas take: a replica is never split over more nodes than it must be."""
        if self.replicas_per_node == 0:
            return replicas * self.nodes_per_replica
        return -(-replicas // self.replicas_per_node)


def packed(replicas: Mapping[int, int], gpus_per_node: int) -> int:
    """Return the nodes that replicas take together, by GPUs of a replica; the largest are placed first, where they fit tightest."""
    nodes, free = 0, Counter[int]()
    for size in sorted(replicas, reverse=True):
        count = replicas[size]
        if size > gpus_per_node:
            nodes += count * -(-size // gpus_per_node)
            continue
        for room in sorted(room for room in free if room >= size):
            fit = room // size
            used = min(free[room], -(-count // fit))
            free[room] -= used
            placed = min(count, used * fit)
            _leave(free, room, size, used, placed)
            count -= placed
        fit = gpus_per_node // size
        new = -(-count // fit)
        nodes += new
        _leave(free, gpus_per_node, size, new, count)
    return nodes


def _leave(free: Counter[int], room: int, size: int, nodes: int, replicas: int) -> None:
    """Note the room left on nodes that take replicas of one size: all full but the last."""
    fit = room // size
    full, rest = divmod(replicas, fit)
    free[room - fit * size] += full
    if nodes > full:
        free[room - rest * size] += nodes - full
