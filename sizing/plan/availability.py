"""Reserves for failures: how many replicas keep so many up, with what probability."""

from __future__ import annotations

import math
from bisect import bisect_left

from sizing.plan.nodes import Fit

MOST_SPARE = 2_000  # tried for a target: beyond, better nodes are the answer
ROUNDING = 1e-12  # of a probability: the sum of many terms is that far from its value
DIGITS_OF_AVAILABILITY = 1e-4


class UnreachableError(Exception):
    """No reserve of a sensible size reaches a target; the message says which node would."""


def of_times(mtbf_hours: float, mttr_hours: float) -> float:
    """Return the share of time that something is up which runs `mtbf_hours` between failures and is repaired in `mttr_hours`."""
    return mtbf_hours / (mtbf_hours + mttr_hours)


def up(n: int, k: int, availability: float) -> float:
    """Return P(at least k of n are up) = sum over i >= k of C(n, i) A^i (1 - A)^(n - i), each up by itself with A."""
    if not 0 <= k <= n:
        return 0.0
    return min(1.0, math.fsum(_exactly(n, down, 1 - availability) for down in range(n - k + 1)))


def fewest(k: int, availability: float, target: float) -> int | None:
    """Return the fewest n of which at least k are up with the target's probability, None where none is enough."""
    spare = 1  # doubled until it is enough: few are, and the sums are as long as the spare are many
    while spare < MOST_SPARE and not reaches(up(k + spare, k, availability), target):
        spare = min(2 * spare, MOST_SPARE)
    tried = range(k, k + spare + 1)
    found = bisect_left(tried, True, key=lambda n: reaches(up(n, k, availability), target))
    return tried[found] if found < len(tried) else None


def up_by_node(n: int, k: int, availability: float, fit: Fit) -> float:
    """Return the same where the replicas of a node fail with it, spread evenly over as few nodes as hold them."""
    nodes = fit.nodes(n)
    if fit.replicas_per_node <= 1 or nodes == 0:
        return up(n, k, availability)
    each, fuller = divmod(n, nodes)
    total = 0.0
    for down_full in range(fuller + 1):
        for down_rest in range(nodes - fuller + 1):
            if n - down_full * (each + 1) - down_rest * each < k:
                break
            total += _exactly(fuller, down_full, 1 - availability) * _exactly(
                nodes - fuller, down_rest, 1 - availability
            )
    return min(1.0, total)


def fewest_by_node(k: int, availability: float, target: float, fit: Fit) -> int | None:
    """Return the fewest replicas of which at least k are up with the target's probability where whole nodes fail."""
    most = _most_by_node(k, fit)
    if not reaches(up_by_node(most, k, availability, fit), target):
        return None
    return next(n for n in range(k, most + 1) if reaches(up_by_node(n, k, availability, fit), target))


def enough(k: int, target: float, fit: Fit, *, by_node: bool) -> float:
    """Return the least availability of a replica with which the largest reserve reaches a target, to the fourth digit."""
    most = _most_by_node(k, fit) if by_node else k + MOST_SPARE
    low, high = 0.0, 1.0
    while high - low > DIGITS_OF_AVAILABILITY:
        middle = (low + high) / 2
        found = up_by_node(most, k, middle, fit) if by_node else up(most, k, middle)
        low, high = (low, middle) if reaches(found, target) else (middle, high)
    return high


def reaches(chance: float, target: float) -> bool:
    """Say whether a probability is as high as a target, but for the rounding of its sum."""
    return chance >= target - ROUNDING


def _most_by_node(k: int, fit: Fit) -> int:
    """Return the most replicas that are tried, on full nodes."""
    each = max(1, fit.replicas_per_node)
    return -(-(k + MOST_SPARE) // each) * each


def _exactly(n: int, hits: int, share: float) -> float:
    """Binomial probability of exactly so many hits, in logarithms: counts of thousands neither over- nor underflow."""
    if share <= 0 or share >= 1:
        return float(hits == (0 if share <= 0 else n))
    log = math.lgamma(n + 1) - math.lgamma(hits + 1) - math.lgamma(n - hits + 1)
    return math.exp(log + hits * math.log(share) + (n - hits) * math.log1p(-share))
