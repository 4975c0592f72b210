"""How replicas fit on whole nodes: several on one node, or one over several nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Fit(NamedTuple):
    """The GPUs of a replica and of the server that it runs on."""

    gpus_per_replica: int
    gpus_per_node: int

    @property
    def replicas_per_node(self) -> int:
        """Replicas that fit on one node; 0 where a replica spans several nodes."""
        return self.gpus_per_node // self.gpus_per_replica

    @property
    def nodes_per_replica(self) -> int:
        """Whole nodes that one replica needs; 1 where replicas share a node."""
        return -(-self.gpus_per_replica // self.gpus_per_node)

    @property
    def replicas_together(self) -> int:
        """Replicas lost while one node is down; also the replicas of the smallest purchase of whole nodes."""
        return max(1, self.replicas_per_node)

    def nodes(self, replicas: int) -> int:
        """Nodes for `replicas` replicas; each replica is on as few nodes as possible."""
        if self.replicas_per_node == 0:
            return replicas * self.nodes_per_replica
        return -(-replicas // self.replicas_per_node)


def packed(replicas: Mapping[int, int], gpus_per_node: int) -> int:
    """The nodes for `replicas`, a count by GPUs of a replica; large replicas are placed first, on the fullest node."""
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
            added = min(count, used * fit)
            _leave(free, room, size, used, added)
            count -= added
        fit = gpus_per_node // size
        new = -(-count // fit)
        nodes += new
        _leave(free, gpus_per_node, size, new, count)
    return nodes


def _leave(free: Counter[int], room: int, size: int, nodes: int, replicas: int) -> None:
    """Record the room left on nodes that take replicas of one size; all but the last node are filled."""
    fit = room // size
    full, rest = divmod(replicas, fit)
    free[room - fit * size] += full
    if nodes > full:
        free[room - rest * size] += nodes - full
