"""Several workloads on one fleet: pools of one GPU type, shared or separate, and their totals by hour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from sizing.planning.nodes import fewest, of_replica, packed, up
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import Need, Reserve, Size, size_of
from sizing.question.demand import Demanded, over_hours

Held = tuple[tuple[int, int], ...]  # (GPUs of a replica, number of replicas)
Sharing = Literal["shared", "separate"]
SHARED: Sharing = "shared"


class Tenant(NamedTuple):
    """A workload of the fleet: its need and size on a type of GPU, shared or separate, and its demand by hour."""

    name: str
    gpu_id: str
    pool: Sharing
    need: Need
    size: Size
    demanded: Demanded | None

    @property
    def hours(self) -> int:
        """Hours of its profile; 1 for a constant load."""
        return max(1, len(self.demanded.shares)) if self.demanded is not None else 1

    def rates_per_s(self, hours: int) -> tuple[float, ...] | None:
        """Requests/s by hour; without a profile, the peak in every hour. None where no rate is known."""
        if self.demanded is None or self.demanded.busy_per_s is None:
            return None
        return over_hours(self.demanded.rates_per_s(sized=False) or (self.demanded.busy_per_s,), hours)

    def base_replicas(self, hours: int, rules: ProvisionRules) -> tuple[int, ...]:
        """The replicas needed in each hour without the reserve, at least `rules.min_replicas`."""
        need = self.need
        each = (max(rules.min_replicas, need.replicas(part) if part > 0 else 0) for part in self.parts())
        return over_hours(tuple(min(need.base, count) for count in each) or (need.base,), hours)

    def parts(self) -> tuple[float, ...]:
        """The demand to size for in each hour, as a share of the peak; the allowance for chance is larger for small loads."""
        if self.demanded is None:
            return ()
        rates = self.demanded.rates_per_s(sized=True)
        return tuple(rate / max(rates) for rate in rates) or self.demanded.shares

    def replicas(self, hours: int, rules: ProvisionRules) -> tuple[int, ...]:
        """The replicas needed in each hour, plus the reserve, which always runs."""
        return tuple(base + self.size.reserve.replicas for base in self.base_replicas(hours, rules))


def grown(tenant: Tenant, times: float, rules: ProvisionRules) -> Tenant:
    """A workload with its demand multiplied by `times`."""
    need = tenant.need.grown(times)
    return tenant._replace(need=need, size=size_of(need, rules))


class GpuPool(NamedTuple):
    """The GPUs of one type that one or several workloads run on.

    A shared pool is sized for the busiest hour of its workloads together, plus one reserve of `reserve_gpus`.
    `gpus_sum_of_peaks` and `reserve_gpus_apart` are the sums of GPUs and reserves with each workload sized separately.
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
        """The whole servers or instances of `gpus_per_unit` GPUs that the replicas of each hour need."""
        units = {hour: packed(hour, gpus_per_unit) for hour in set(self.held_by_hour)}
        return tuple(units[hour] for hour in self.held_by_hour)


def hours_of(tenants: Sequence[Tenant]) -> int:
    """The common number of hours of all profiles: a day, a week, or 1 without profiles."""
    return math.lcm(*(tenant.hours for tenant in tenants))


def pools_of(tenants: Sequence[Tenant], rules: ProvisionRules) -> tuple[GpuPool, ...]:
    """The pools of a fleet: one for each separate workload, and one for each GPU type with shared workloads."""
    hours = hours_of(tenants)
    return tuple(_pool([tenants[index] for index in pool], hours, rules) for pool in pooled(tenants))


def pooled(tenants: Sequence[Tenant]) -> Iterable[list[int]]:
    """The workloads of each pool, by index."""
    pools: dict[str | int, list[int]] = {}
    for index, tenant in enumerate(tenants):
        pools.setdefault(tenant.gpu_id if tenant.pool == SHARED else index, []).append(index)
    return pools.values()


def _pool(tenants: Sequence[Tenant], hours: int, rules: ProvisionRules) -> GpuPool:
    """The pool of workloads on one type of GPU."""
    first = tenants[0]
    node = first.need.fit.gpus_per_node
    by_hour = [tenant.base_replicas(hours, rules) for tenant in tenants]
    sizes = [tenant.need.fit.gpus_per_replica for tenant in tenants]
    reserve = reserve_of_pool(tenants, rules)
    by_size = tuple((*zip(sizes, counts, strict=True), *reserve) for counts in zip(*by_hour, strict=True))
    gpus = tuple(sum(size * count for size, count in hour) for hour in by_size)
    spare = sum(count for _, count in reserve)
    return GpuPool(
        gpu_id=first.gpu_id,
        pool=first.pool,
        workloads=tuple(tenant.name for tenant in tenants),
        gpus=max(gpus),
        nodes=max(packed(hour, node) for hour in set(by_size)),
        gpus_per_node=node,
        gpus_sum_of_peaks=sum(tenant.size.gpus for tenant in tenants),
        gpus_by_hour=gpus,
        replicas_by_hour=tuple(sum(counts) + spare for counts in zip(*by_hour, strict=True)),
        held_by_hour=by_size,
        reserve_gpus=sum(size * count for size, count in reserve),
        reserve_gpus_apart=sum(
            size * tenant.size.reserve.replicas for size, tenant in zip(sizes, tenants, strict=True)
        ),
    )


def reserve_of_pool(tenants: Sequence[Tenant], rules: ProvisionRules) -> list[tuple[int, int]]:
    """The reserve of a pool as (GPUs of a replica, replicas).

    A spare GPU can load any of the models, so the pool needs only the largest reserve. With an availability target the
    reserves for failures add up, because one reserve does not meet the targets of all workloads. Only one node at a time
    is out for maintenance.
    """

    def largest(of: Callable[[Reserve], int]) -> tuple[int, int]:
        each = ((tenant.need.fit.gpus_per_replica, of(tenant.size.reserve)) for tenant in tenants)
        return max(each, key=math.prod)

    if rules.availability is None:
        return [largest(lambda reserve: reserve.replicas)]
    failures = [(tenant.need.fit.gpus_per_replica, tenant.size.reserve.failures) for tenant in tenants]
    return [*failures, largest(lambda reserve: reserve.maintenance)]


class Hour(NamedTuple):
    """One hour of the profile, with the replicas and GPUs that follow the load, including the reserve.

    Hour 0 starts at midnight, in a weekly profile on Monday.
    """

    hour: int
    requests_per_s: float | None
    replicas: int
    gpus: int
    capacity_requests_per_s: float | None


def hours_of_load(tenants: Sequence[Tenant], pools: Sequence[GpuPool]) -> tuple[Hour, ...]:
    """The load by hour, and the replicas and GPUs that follow it; empty where no workload has a profile.

    The capacity is stated only for a single workload, because requests of several workloads differ.
    """
    count = hours_of(tenants)
    if all(tenant.hours == 1 for tenant in tenants):
        return ()
    sums = sums_of(tenants, count)
    per_replica = tenants[0].need.per_replica if len(tenants) == 1 and sums is not None else None
    replicas = list(map(sum, zip(*(pool.replicas_by_hour for pool in pools), strict=True)))
    return tuple(
        Hour(
            hour=hour,
            requests_per_s=None if sums is None else sums[hour],
            replicas=replicas[hour],
            gpus=sum(pool.gpus_by_hour[hour] for pool in pools),
            capacity_requests_per_s=None if per_replica is None else replicas[hour] * per_replica,
        )
        for hour in range(count)
    )


def rates_of(tenants: Sequence[Tenant], hours: int) -> list[tuple[float, ...]] | None:
    """Requests/s of each workload by hour, None where one states no rate."""
    rates = [tenant.rates_per_s(hours) for tenant in tenants]
    known = [rate for rate in rates if rate is not None]
    return known if len(known) == len(rates) else None


def sums_of(tenants: Sequence[Tenant], hours: int) -> list[float] | None:
    """Requests/s of all workloads together by hour, None where one states no rate."""
    rates = rates_of(tenants, hours)
    return None if rates is None else list(map(sum, zip(*rates, strict=True)))


def peak_of_sums(tenants: Sequence[Tenant]) -> float | None:
    """Requests/s in the busiest hour of all workloads together; None where one states no rate.

    The allowance for chance is included only for a single workload.
    """
    sums = sums_of(tenants, hours_of(tenants))
    if sums is None:
        return None
    return tenants[0].need.demand if len(tenants) == 1 else max(sums)


def utilisation(tenants: Sequence[Tenant], gpus: float) -> float | None:
    """The mean load divided by the capacity of `gpus` within the limits.

    None where a workload has neither hourly rates nor a mean rate, or is sized in requests in flight.
    """
    hours, busy = hours_of(tenants), 0.0
    for tenant in tenants:
        rates = tenant.rates_per_s(hours)
        mean = tenant.demanded.mean_per_s if tenant.demanded is not None else None
        if mean is None and rates is not None and tenant.hours > 1:
            mean = sum(rates) / hours
        if mean is None or tenant.need.in_flight:
            return None
        busy += mean / tenant.need.within_limits * tenant.need.fit.gpus_per_replica
    return busy / gpus


class FleetFigures(NamedTuple):
    """The sum of the workloads' peaks, and the peak of their hourly sum; None where no rates are known."""

    sum_of_peaks_requests_per_s: float | None
    peak_of_sums_requests_per_s: float | None
    sum_of_peaks_gpus: int
    peak_of_sums_gpus: int


def together(tenants: Sequence[Tenant], pools: Sequence[GpuPool]) -> FleetFigures:
    """The sums over the workloads of a fleet, in requests/s and GPUs."""
    rates = rates_of(tenants, hours_of(tenants))
    return FleetFigures(
        sum_of_peaks_requests_per_s=None if rates is None else sum(map(max, rates)),
        peak_of_sums_requests_per_s=None if rates is None else max(map(sum, zip(*rates, strict=True))),
        sum_of_peaks_gpus=sum(pool.gpus_sum_of_peaks for pool in pools),
        peak_of_sums_gpus=sum(pool.gpus for pool in pools),
    )


class Availability(NamedTuple):
    """The probability that enough replicas are up for the peak.

    `achieved` is for replicas that fail independently, `achieved_by_node` for replicas that fail with their node.
    """

    workload: str
    target: float | None
    node_availability: float
    replicas_needed: int
    replicas_for_failures: int
    achieved: float
    achieved_by_node: float
    replicas_for_target_by_node: int | None


def availability(tenant: Tenant, rules: ProvisionRules) -> Availability | None:
    """The probability that enough replicas of a workload are up; None where no node availability is stated.

    Replicas for maintenance do not count, because a node may be out of service when another fails.
    """
    if rules.unit_availability is None:
        return None
    fit, size = tenant.need.fit, tenant.size
    unit = of_replica(fit, rules.unit_availability)
    running = size.base + size.reserve.failures
    by_node = None
    if rules.availability is not None and fit.replicas_per_node > 1:
        by_node = fewest(size.base, unit, rules.availability, fit)
    return Availability(
        workload=tenant.name,
        target=rules.availability,
        node_availability=rules.unit_availability,
        replicas_needed=size.base,
        replicas_for_failures=running,
        achieved=up(running, size.base, unit),
        achieved_by_node=up(running, size.base, unit, fit),
        replicas_for_target_by_node=by_node,
    )
