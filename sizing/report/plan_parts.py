"""Parts of a plan: the size of each workload, the chance that enough of it is up, and all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sizing.catalog.prices import source_of, usd_per_gpu_hour
from sizing.planning import size as availability
from sizing.planning.fleet import Member, Pool
from sizing.planning.size import Rules, of_replica
from sizing.report.documents_plan import Availability, FleetFigures, ReserveFigures, WorkloadPlan
from sizing.report.parts.figures import latency
from sizing.report.parts.question import demand
from sizing.report.plan_cloud import Rented

if TYPE_CHECKING:
    from sizing.report.plan import WorkloadAnswer


def workload(name: str, answer: WorkloadAnswer, member: Member, held: Rented) -> WorkloadPlan:
    """Return the figures of one workload."""
    best, request = answer.best, answer.outcome.question
    assert best is not None
    chosen, need, size = best.pool.replica, member.need, member.size
    layout = chosen.layout
    demanded = member.demanded
    offer = held[member.gpu_id].offer if member.gpu_id in held else None
    return WorkloadPlan(
        name=name,
        model=request.service.model.name,
        weight_precision=chosen.plan.weight_format,
        gpu=chosen.gpu_type.name,
        gpu_id=chosen.gpu_type.id,
        pool=member.pool,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        cp=layout.cp,
        dcp=layout.dcp,
        gpus_per_replica=layout.gpus,
        gpus_per_node=need.fit.gpus_per_node,
        replicas_per_node=need.fit.replicas_per_node,
        demand=demand(answer.asked, request),
        demand_unit="requests in flight" if need.in_flight else "requests/s",
        demand_at_peak=need.demand,
        headroom=need.headroom,
        most_per_replica=need.per_replica,
        base_replicas=size.base,
        reserve=ReserveFigures(*size.reserve, size.reserve.replicas),
        replicas=size.replicas,
        gpus=size.gpus,
        nodes=size.nodes,
        mean_requests_per_s=demanded.mean_per_s if demanded is not None else None,
        peak_requests_per_s=best.requests_per_s if need.in_flight else need.demand,
        usd_per_gpu_hour=chosen.gpu_type.usd_per_gpu_hour if offer is None else usd_per_gpu_hour(offer),
        price_source=chosen.gpu_type.price_source if offer is None else source_of(offer),
        latency=latency(best),
        limit=best.pool.capacity.binding,
        verified=answer.outcome.verified,
    )


def availabilities(members: Sequence[Member], rules: Rules) -> tuple[Availability, ...]:
    """Return the chance that enough replicas of each workload are up; nothing where no node's availability is stated."""
    node = rules.unit_availability
    if node is None:
        return ()
    return tuple(_availability(member, rules, node) for member in members)


def _availability(member: Member, rules: Rules, node: float) -> Availability:
    """Replicas for maintenance do not count: a node may be out of service when another fails."""
    fit, size = member.need.fit, member.size
    unit = of_replica(fit, node)
    running = size.base + size.reserve.failures
    by_node = None
    if rules.availability is not None and fit.replicas_per_node > 1:
        by_node = availability.fewest_by_node(size.base, unit, rules.availability, fit)
    return Availability(
        workload=member.name,
        target=rules.availability,
        node_availability=node,
        replicas_needed=size.base,
        replicas_for_failures=running,
        achieved=availability.up(running, size.base, unit),
        achieved_by_node=availability.up_by_node(running, size.base, unit, fit),
        replicas_for_target_by_node=by_node,
    )


def peak_of_sums(members: Sequence[Member], hours: int) -> float | None:
    """Return the busiest hour of all workloads together, None where one states no rate; chance is left out."""
    rates = [member.rates_per_s(hours) for member in members]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    if len(members) == 1:  # with the chance that it is sized for
        return members[0].need.demand
    return max(map(sum, zip(*known, strict=True)))


def together(members: Sequence[Member], pools: Sequence[Pool], hours: int) -> FleetFigures:
    """Return the workloads of a fleet together, in requests/s and GPUs."""
    rates = [member.rates_per_s(hours) for member in members]
    known = [rate for rate in rates if rate is not None]
    return FleetFigures(
        sum_of_peaks_requests_per_s=sum(map(max, known)) if len(known) == len(rates) else None,
        peak_of_sums_requests_per_s=max(map(sum, zip(*known, strict=True))) if len(known) == len(rates) else None,
        sum_of_peaks_gpus=sum(pool.gpus_sum_of_peaks for pool in pools),
        peak_of_sums_gpus=sum(pool.gpus for pool in pools),
    )
