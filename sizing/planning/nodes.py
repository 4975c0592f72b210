"""Nodes: how replicas fit on whole ones, the probability that enough are up, and the reserve that reaches a target."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
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

    def outlasting(self, base: int) -> int:
        """The smallest reserve that keeps `base` replicas up while a node is down, spread evenly over as few nodes as can be."""
        most = self.replicas_together
        reserves = range(1, most + 1)
        return next(more for more in reserves if more * -(-(base + more) // most) >= base + more)

    def nodes(self, replicas: int) -> int:
        """Nodes for `replicas` replicas; each replica is on as few nodes as possible."""
        if self.replicas_per_node == 0:
            return replicas * self.nodes_per_replica
        return -(-replicas // self.replicas_per_node)


def packed(held: Iterable[tuple[int, int]], gpus_per_node: int) -> int:
    """The nodes for replicas, each size a pair of GPUs and count; large replicas are placed first, on the fullest node."""
    nodes, free, replicas = 0, Counter[int](), Counter[int]()
    for size, count in held:
        replicas[size] += count
    for size, count in sorted(replicas.items(), reverse=True):
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


MOST_SPARE = 2_000  # the largest reserve tried for a target; beyond it, better nodes are needed
CHANCE_ROUNDING = 1e-12  # rounding error of a probability that is a sum of many terms
DIGITS_OF_AVAILABILITY = 1e-4
HUNDREDTHS = 1e4  # hundredths of a per cent in 1: availabilities are shown with two decimals


class UnreachableError(Exception):
    """No reserve of a reasonable size reaches a target; the message gives the node availability that would."""


ALONE = Fit(1, 1)  # replicas that fail one by one


def up(n: int, k: int, availability: float, fit: Fit = ALONE) -> float:
    """P(at least k of n are up) = sum over i >= k of C(n, i) A^i (1 - A)^(n - i), with independent availability A.

    Replicas that share a node fail together. They are spread evenly over the smallest number of nodes.
    """
    if not 0 <= k <= n:
        return 0.0
    nodes = fit.nodes(n)
    if fit.replicas_per_node <= 1 or nodes == 0:
        return min(1.0, math.fsum(_exactly(n, down, 1 - availability) for down in range(n - k + 1)))
    each, fuller = divmod(n, nodes)
    of_full, of_rest = (
        [_exactly(count, down, 1 - availability) for down in range(count + 1)] for count in (fuller, nodes - fuller)
    )
    total = 0.0
    for down_full, chance_full in enumerate(of_full):
        for down_rest, chance_rest in enumerate(of_rest):
            if n - down_full * (each + 1) - down_rest * each < k:
                break
            total += chance_full * chance_rest
    return min(1.0, total)


def fewest(k: int, availability: float, target: float, fit: Fit = ALONE) -> int | None:
    """The smallest n for which at least k are up with probability `target`; None where no n is enough."""
    most = _most(k, fit)
    if not reaches(up(most, k, availability, fit), target):
        return None
    if fit.replicas_per_node > 1:  # a larger n may lower the probability, so every n is tried
        return next(n for n in range(k, most + 1) if reaches(up(n, k, availability, fit), target))
    spare = 1  # doubled until it is enough: usually few are, and longer reserves make longer sums
    while not reaches(up(min(k + spare, most), k, availability), target):
        spare *= 2
    tried = range(k, min(k + spare, most) + 1)
    return tried[bisect_left(tried, True, key=lambda n: reaches(up(n, k, availability), target))]


def enough(k: int, target: float, fit: Fit) -> float:
    """The lowest availability of a replica at which the largest reserve reaches `target`, to four digits."""
    most, low, high = _most(k, fit), 0.0, 1.0
    while high - low > DIGITS_OF_AVAILABILITY:
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(up(most, k, middle, fit), target) else (middle, high)
    return high


def reaches(chance: float, target: float) -> bool:
    """Whether a probability reaches a target, up to rounding."""
    return chance >= target - CHANCE_ROUNDING


def _most(k: int, fit: Fit) -> int:
    """The largest number of replicas to try, on full nodes."""
    each = fit.replicas_together
    return -(-(k + MOST_SPARE) // each) * each


def _exactly(n: int, hits: int, share: float) -> float:
    """Binomial probability of exactly `hits` hits; logarithms avoid overflow and underflow for large n."""
    if share <= 0 or share >= 1:
        return float(hits == (0 if share <= 0 else n))
    log = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    return math.exp(log + hits * math.log(share) + (n - hits) * math.log1p(-share))


def node_needed(unit: float, fit: Fit) -> float:
    """The node availability that gives a replica the availability `unit`, rounded up."""
    return math.ceil(float(unit ** (1 / fit.nodes_per_replica)) * HUNDREDTHS) / HUNDREDTHS


def of_replica(fit: Fit, node_availability: float) -> float:
    """The availability of a replica: the probability that all of its nodes are up."""
    return float(node_availability**fit.nodes_per_replica)
