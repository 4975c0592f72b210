"""The histories of idle conversations that a replica's cache keeps, and the load that leaves room for them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sizing.replica.batching import Point
from sizing.replica.capacity import Capacity, as_population, loads_of
from sizing.replica.replica import Replica
from sizing.replica.timing import Timed
from sizing.specs.workload import Target

IDLE_CACHES = "idle_caches"  # what binds a replica whose cache has no room for more idle conversations


class IdleHistories(NamedTuple):
    """The idle conversations that a replica's cache should keep, and those that fit in addition to live requests."""

    needed: float
    room: float

    @property
    def kept(self) -> float:
        """The share of turns that find their history.

        Exact for exponential think times, where the cache drops ended conversations first.
        """
        return min(1.0, self.room / self.needed) if self.needed > 0 else 1.0


def idle_conversations(replica: Replica, target: Target, point: Point, replicas: int) -> IdleHistories | None:
    """The idle conversations that each of `replicas` replicas should keep; None without a think time.

    Their number is the number of turns within a think time: at this replica, or at all replicas where any replica may get
    the next turn. The room is counted in whole conversations of mean length, in the memory that live requests leave.
    """
    cached = replica.service.extras.cached
    if cached.think_time_s is None or cached.conversation is None:
        return None
    per_s = point.requests_per_s if target.requests_per_s is None else target.requests_per_s / replicas
    needed = per_s * cached.think_time_s * (1 if cached.affinity else replicas * replica.layout.dp)
    return IdleHistories(needed, max(0.0, _room(replica) - point.running))


def _room(replica: Replica) -> float:
    """The whole conversations of mean length that the cache of a replica holds."""
    conversation = replica.service.extras.cached.conversation
    assert conversation is not None
    return replica.memory_at(math.ceil(conversation.mean_isl + conversation.osl)).max_concurrency


def keeping(capacity: Capacity, timed: Timed, target: Target) -> tuple[Capacity, float]:
    """The capacity, but no more than leaves room for the histories that the caches are taken to keep.

    Also returns the rate that leaves this room over the rate of `capacity`. A demand sets the load of a replica; `decoding` is
    then only the end of the loads to search, and stays.
    """
    cached = timed.replica.service.extras.cached
    if cached.think_time_s is None or cached.conversation is None:
        return capacity, math.inf
    ((amounts, points),) = loads_of([timed], target)
    idle = points.requests_per_s * cached.think_time_s * cached.kept * (1 if cached.affinity else cached.engines)
    held, room = np.maximum.accumulate(points.running + idle), _room(timed.replica)
    rate = float(np.interp(room, held, points.requests_per_s)) * max(1.0, room / float(held[-1]))
    if rate >= capacity.requests_per_s:
        return capacity, rate / capacity.requests_per_s
    amount = rate if target.concurrency is None else float(max(1, math.floor(np.interp(room, held, amounts))))
    decoding = capacity.decoding if target.amount is not None else float(np.interp(room, held, points.decoding))
    most = Capacity(amount, rate, decoding, IDLE_CACHES)
    share = rate / capacity.requests_per_s
    return most if target.population is None else as_population(timed, most, target), share
