"""Several workloads on one fleet: pools of GPUs of a type, shared over the hours or separate, and their totals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from sizing.planning.size import Need, Rules, Size, packed, size_of
from sizing.question.demand import Demanded, over_hours
from sizing.specs import demand

Held = tuple[tuple[int, int], ...]  # GPUs of a replica, and how many replicas
Sharing = Literal["shared", "separate"]
SHARED: Sharing = "shared"


class Member(NamedTuple):
    """A workload of the fleet: its need and size on a type of GPU, how it is pooled, and its demand by hour."""

    name: str
    gpu_id: str
    pool: Sharing
    need: Need
    size: Size
    demanded: Demanded | None

    @property
    def hours(self) -> int:
        """Hours of its profile; 1 where its load is the same at all hours."""
        return max(1, len(self.demanded.shares)) if self.demanded is not None else 1

    def rates_per_s(self, hours: int) -> tuple[float, ...] | None:
        """Return requests/s hour by hour, the peak at every hour without a profile; None where no rate is known."""
        if self.demanded is None or self.demanded.busy_per_s is None:
            return None
        return over_hours(self.demanded.rates_per_s(sized=False) or (self.demanded.busy_per_s,), hours)

    def base_replicas(self, hours: int, rules: Rules) -> tuple[int, ...]:
        """Return the replicas that each hour takes, at least the minimum, without the reserve."""
        need = self.need
        each = tuple(
            min(
                need.base,
                max(rules.min_replicas, _replicas(part * need.demand * (1 + need.headroom), need.per_replica)),
            )
            for part in self.parts()
        )
        return over_hours(each or (need.base,), hours)

    def parts(self) -> tuple[float, ...]:
        """Return the demand to size for at each hour over that of the peak; chance is more of what is little."""
        if self.demanded is None:
            return ()
        rates = self.demanded.rates_per_s(sized=True)
        return tuple(rate / max(rates) for rate in rates) or self.demanded.shares

    def replicas(self, hours: int, rules: Rules) -> tuple[int, ...]:
        """Return the same with the reserve, which stays up at all hours."""
        return tuple(base + self.size.reserve.replicas for base in self.base_replicas(hours, rules))


def _replicas(amount: float, per_replica: float) -> int:
    return demand.replicas_for(amount, per_replica) if amount > 0 else 0


def grown(member: Member, times: float, rules: Rules) -> Member:
    """Return a workload with so many times the demand."""
    need = replace(member.need, demand=member.need.demand * times, base=member.need.replicas(times))
    return member._replace(need=need, size=size_of(need, rules))


class Pool(NamedTuple):
    """The GPUs of one type that some workloads run on.

    `gpus_sum_of_peaks` would be theirs with each sized for its own peak; a shared pool has the GPUs of the busiest hour of all
    together, and the reserve of a pool (`reserve_gpus`; `reserve_gpus_apart` are those of each workload on its own).
    """

    gpu_id: str
    pool: Sharing
    workloads: tuple[str, ...]
    gpus: int
    nodes: int
    gpus_per_node: int
    gpus_sum_of_peaks: int
    gpus_by_hour: tuple[int, ...]
    replicas_by_hour: tuple[int, ...]
    held_by_hour: tuple[Held, ...]
    reserve_gpus: int
    reserve_gpus_apart: int

    def units_by_hour(self, gpus_per_unit: int) -> tuple[int, ...]:
        """Return the whole servers or instances of so many GPUs that hold the replicas of each hour."""
        units = {held: _nodes(held, gpus_per_unit) for held in set(self.held_by_hour)}
        return tuple(units[held] for held in self.held_by_hour)


def hours_of(members: Sequence[Member]) -> int:
    """Return the hours that the profiles of all have in common: those of a day or of a week."""
    return math.lcm(*(member.hours for member in members))


def pools_of(members: Sequence[Member], rules: Rules) -> tuple[Pool, ...]:
    """Return the pools of a fleet: one for each workload on its own, one for each GPU type that others share."""
    hours = hours_of(members)
    shared: dict[str, list[Member]] = {}
    groups: list[list[Member]] = []
    for member in members:
        if member.pool != SHARED:
            groups.append([member])
        elif member.gpu_id in shared:
            shared[member.gpu_id].append(member)
        else:
            groups.append(shared.setdefault(member.gpu_id, [member]))
    return tuple(_pool(group, hours, rules) for group in groups)


def _pool(members: Sequence[Member], hours: int, rules: Rules) -> Pool:
    """Return the pool of workloads on one type of GPU."""
    first = members[0]
    node = first.need.fit.gpus_per_node
    by_hour = [member.base_replicas(hours, rules) for member in members]
    sizes = [member.need.fit.gpus_per_replica for member in members]
    reserve = reserve_of_pool(members, rules)
    held = tuple((*zip(sizes, counts, strict=True), *reserve) for counts in zip(*by_hour, strict=True))
    gpus = tuple(sum(size * count for size, count in hour) for hour in held)
    spare = sum(count for _, count in reserve)
    return Pool(
        gpu_id=first.gpu_id,
        pool=first.pool,
        workloads=tuple(member.name for member in members),
        gpus=max(gpus),
        nodes=max(_nodes(hour, node) for hour in set(held)),
        gpus_per_node=node,
        gpus_sum_of_peaks=sum(member.size.gpus for member in members),
        gpus_by_hour=gpus,
        replicas_by_hour=tuple(sum(counts) + spare for counts in zip(*by_hour, strict=True)),
        held_by_hour=held,
        reserve_gpus=sum(size * count for size, count in reserve),
        reserve_gpus_apart=sum(size * m.size.reserve.replicas for size, m in zip(sizes, members, strict=True)),
    )


def reserve_of_pool(members: Sequence[Member], rules: Rules) -> list[tuple[int, int]]:
    """Return the reserve of a pool as (GPUs of a replica, replicas).

    A spare GPU can load any of the models, so the largest reserve is one for all. A target for each workload is not met by
    one reserve for all, so what it asks for adds up; only one node at a time is out for maintenance.
    """
    if rules.availability is None:
        return [max(((m.need.fit.gpus_per_replica, m.size.reserve.replicas) for m in members), key=math.prod)]
    failures = [(m.need.fit.gpus_per_replica, m.size.reserve.failures) for m in members]
    return [*failures, max(((m.need.fit.gpus_per_replica, m.size.reserve.maintenance) for m in members), key=math.prod)]


def _nodes(replicas: Sequence[tuple[int, int]], gpus_per_node: int) -> int:
    counts: Counter[int] = Counter()
    for size, count in replicas:
        counts[size] += count
    return packed(counts, gpus_per_node)
