"""The record of `llmsize plan`: sizes, reserves, hours, growth, money, and assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.formats.view import Assumption, filled
from sizing.model.architecture import Layout
from sizing.planning.cloud import Cloud
from sizing.planning.fleet import (
    Availability,
    FleetFigures,
    GpuPool,
    Hour,
    Tenant,
    availability,
    hours_of_load,
    together,
    utilisation,
)
from sizing.planning.growth import Growing
from sizing.planning.plan import MovedWorkload, Plan
from sizing.planning.provision import PlanAnswer, Provision, peak_of, tenants_sure, total
from sizing.planning.size import Reserve
from sizing.planning.uncertainty import Ranges
from sizing.report.parts import assumptions, evidence
from sizing.report.parts.evidence import Evidence
from sizing.report.parts.figures import Latency, Users, latency, load_figures
from sizing.report.parts.limits import suggested, unmet
from sizing.report.parts.question import DemandInputs, Inputs, demand, habits, inputs, of_replica, of_service
from sizing.report.parts.sentences import assumed


class WorkloadPlan(NamedTuple):
    """One workload: its demand, the load of one replica (requests/s, or requests in flight), and its size.

    Latencies are those of the replicas at the peak. `gpus` are `replicas` times `gpus_per_replica`. `nodes` are whole servers of
    `gpus_per_node` for this workload alone. With `gpus_sure` GPUs, reserve included, most similar published runs would keep the
    limits; it is null where too few runs are similar, as `evidence` says.
    """

    name: str
    model: str
    weight_precision: str
    gpu: str
    gpu_id: str
    pool: str
    sizes: Layout
    gpus_per_replica: int
    gpus_per_node: int
    replicas_per_node: int
    demand: DemandInputs
    demand_unit: str
    demand_at_peak: float
    headroom: float
    most_per_replica: float
    base_replicas: int
    reserve: Reserve
    replicas: int
    gpus: int
    nodes: int
    mean_requests_per_s: float | None
    peak_requests_per_s: float
    usd_per_gpu_hour: float | None
    price_source: str | None
    latency: Latency
    limit: str
    verified: bool | None
    gpus_sure: int | None = None
    evidence: Evidence | None = None
    margin: float = 1.0


class PoolPlan(NamedTuple):
    """The GPUs of one type, shared by its workloads. `installed_gpus` counts all GPUs of the whole nodes.

    The shared reserve is `reserve_gpus`. With a reserve for each workload it would be `reserve_gpus_apart`.
    """

    gpu: str
    gpu_id: str
    pool: str
    workloads: tuple[str, ...]
    gpus: int
    gpus_sum_of_peaks: int
    reserve_gpus: int
    reserve_gpus_apart: int
    nodes: int
    gpus_per_node: int
    installed_gpus: int
    usd_per_gpu_hour: float | None


class Move(NamedTuple):
    """The effect of moving one workload to another GPU type. `gpus`, `nodes` and costs are those of the whole fleet."""

    workload: str
    gpu_from: str
    gpu_to: str
    feasible: bool
    detail: str
    workload_gpus: int | None
    gpus: int | None
    nodes: int | None
    usd_per_month: float | None
    usd_per_month_now: float | None


class PlanReport(NamedTuple):
    """The record of `llmsize plan`; every total is null if a workload has no answer.

    `gpus` are the GPUs of all pools, `installed_gpus` all GPUs of their whole nodes. `utilisation_mean` is the mean load divided
    by the load that `gpus` serve within the limits; `utilisation_peak` is the same for the peak of a single workload. `users`
    is for a single workload. `suggestions` are changes that make the plan feasible. With `gpus_sure` GPUs, every workload is
    served with the `confidence`, in `nodes_sure` whole nodes; they are null if this is unknown for one workload.
    """

    feasible: bool
    inputs: dict[str, Any]
    mean_requests_per_s: float | None = None
    peak_requests_per_s: float | None = None
    gpus: int | None = None
    replicas: int | None = None
    nodes: int | None = None
    installed_gpus: int | None = None
    usd_per_month: float | None = None
    utilisation_mean: float | None = None
    workloads: tuple[WorkloadPlan, ...] = ()
    pools: tuple[PoolPlan, ...] = ()
    hours: tuple[Hour, ...] = ()
    users: Users | None = None
    fleet: FleetFigures | None = None
    availability: tuple[Availability, ...] = ()
    growth: Growing | None = None
    cloud: Cloud | None = None
    moves: tuple[Move, ...] = ()
    uncertainty: Ranges | None = None
    problems: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    gpus_sure: int | None = None
    confidence: float | None = None
    utilisation_peak: float | None = None
    nodes_sure: int | None = None
    schema: str = "llmsize.plan/1"


def record(plan: Plan, *, title: str | None, is_fleet: bool) -> PlanReport:
    """The record of a plan; `title` is the name of the fleet or workload."""
    stated = {"fleet" if is_fleet else "workload": title, **_rules(plan), "workloads": dict(_inputs(plan))}
    fleet = plan.fleet
    if fleet is None:
        return PlanReport(False, stated, problems=tuple(_problems(plan)), suggestions=tuple(_suggestions(plan)))
    first, tenant = fleet.answers[0], fleet.tenants[0]
    pools = tuple(_pool(pool, fleet) for pool in fleet.pools)
    sizes_sure = [None if each is None else each.size.gpus for each in tenants_sure(fleet)]
    found = (availability(each, plan.rules) for each in fleet.tenants)
    return filled(
        PlanReport,
        plan,
        fleet,
        inputs=stated,
        usd_per_month=plan.usd_per_month,
        mean_requests_per_s=total(_mean_per_s(each) for each in fleet.tenants),
        installed_gpus=sum(pool.installed_gpus for pool in pools),
        utilisation_mean=utilisation(fleet.tenants, fleet.gpus),
        workloads=tuple(
            _workload(answer, each, fleet)._replace(gpus_sure=gpus)
            for answer, each, gpus in zip(fleet.answers, fleet.tenants, sizes_sure, strict=True)
        ),
        pools=pools,
        hours=hours_of_load(fleet.tenants, fleet.pools),
        users=None if is_fleet else _users(first, tenant),
        fleet=together(fleet.tenants, fleet.pools) if is_fleet else None,
        availability=tuple(each for each in found if each is not None),
        moves=tuple(_move(move, fleet) for move in plan.moves),
        uncertainty=plan.draws,
        problems=tuple(_problems(plan)),
        suggestions=(),
        assumptions=tuple(_assumptions(plan, fleet)),
        gpus_sure=None if plan.sure_fleet is None else plan.sure_fleet.gpus,
        nodes_sure=None if plan.sure_fleet is None else plan.sure_fleet.nodes,
        confidence=None if (odds := first.outcome.by_runs.odds) is None else odds.confidence,
        utilisation_peak=None if is_fleet else _peak_share(first, tenant),
    )


def _rules(plan: Plan) -> dict[str, Any]:
    rules = plan.rules
    return {
        "spare": rules.spare,
        "availability": rules.availability,
        "node_availability": rules.unit_availability,
        "mtbf_hours": rules.mtbf_hours,
        "mttr_hours": rules.mttr_hours,
        "failures": "node" if rules.by_node else "replica",
        "maintenance": rules.maintenance,
        "growth_per_month": rules.growth_per_month,
        "from": rules.start.isoformat() if rules.growth_per_month is not None else None,
        "until": rules.until.isoformat() if rules.until is not None else None,
        "lead_time_days": None if rules.lead_time is None else rules.lead_time.days,
        "cloud": rules.provider,
        "min_replicas": rules.min_replicas,
        "spot": rules.spot_share,
    }


def _inputs(plan: Plan) -> Iterator[tuple[str, Inputs]]:
    for answer in plan.answers:
        name, outcome = answer.workload.name, answer.outcome
        yield name, inputs(outcome.question, outcome.best.pool.replica if outcome.best is not None else None)


def _problems(plan: Plan) -> Iterator[str]:
    """The obstacles to a plan: workloads without an answer, a target out of reach, the budget."""
    if plan.unreachable is not None:
        yield plan.unreachable
    elif plan.fleet is None:
        several = len(plan.answers) > 1
        yield from (_problem(each, several=several) for each in plan.answers if each.confirmed is None)
    elif plan.gpus_over_budget:
        gpus, over = plan.fleet.gpus, plan.gpus_over_budget
        yield f"the plan takes {gpus:,} GPUs, {over:,} more than the budget of {gpus - over:,}"


def _problem(answer: PlanAnswer, *, several: bool = True) -> str:
    return f"{answer.workload.name}: " * several + unmet(answer.outcome).detail


def _suggestions(plan: Plan) -> Iterator[str]:
    if plan.unreachable is not None:
        yield "a lower --availability, or better nodes"
    for name, change in plan.suggestions:
        yield f"{name}: " * (len(plan.answers) > 1) + suggested(change)


def _mean_per_s(tenant: Tenant) -> float | None:
    return tenant.demanded.mean_per_s if tenant.demanded is not None else None


def _workload(answer: PlanAnswer, tenant: Tenant, fleet: Provision) -> WorkloadPlan:
    best, question, need, size = answer.best, answer.outcome.question, tenant.need, tenant.size
    price = fleet.price(tenant.gpu_id)
    return filled(
        WorkloadPlan,
        tenant,
        size,
        need.fit,
        price,
        of_service(question.service),
        of_replica(best.pool.replica),
        demand=demand(question),
        demand_unit="requests in flight" if need.in_flight else "requests/s",
        demand_at_peak=need.demand,
        headroom=need.headroom,
        most_per_replica=need.per_replica,
        base_replicas=size.base,
        mean_requests_per_s=_mean_per_s(tenant),
        peak_requests_per_s=peak_of(answer, tenant),
        price_source=price.source,
        latency=latency(best),
        limit=best.pool.capacity.binding,
        verified=answer.outcome.verified,
        gpus_sure=None,
        evidence=evidence.of_outcome(answer.outcome),
        margin=best.pool.margin,
    )


def _peak_share(answer: PlanAnswer, tenant: Tenant) -> float | None:
    """The peak's requests/s divided by the most that all replicas, reserve included, serve within the limits; None without a demand."""
    if answer.outcome.question.target.amount is None:
        return None
    share = load_figures(answer.best, answer.outcome).share_of_max_requests_per_s
    return share * tenant.need.base / tenant.size.replicas


def _pool(pool: GpuPool, fleet: Provision) -> PoolPlan:
    return filled(
        PoolPlan,
        pool,
        gpu=fleet.gpu_types[pool.gpu_id].name,
        installed_gpus=pool.nodes * pool.gpus_per_node,
        usd_per_gpu_hour=fleet.price(pool.gpu_id).usd_per_gpu_hour,
    )


def _users(answer: PlanAnswer, tenant: Tenant) -> Users | None:
    """The daily active users that the load corresponds to; None for a closed loop, whose rate follows the latency."""
    question, need = answer.outcome.question, tenant.need
    stated = question.origin.workload.demand
    if need.in_flight:
        return None
    user = habits(question)
    rate = need.demand if question.origin.demanded is not None else need.per_replica * need.base
    stated_users = stated is None or stated.daily_active_users is not None
    return filled(Users, user, daily_active_users=user.users_of(rate), stated=stated_users)


def _move(move: MovedWorkload, now: Provision) -> Move:
    name = move.answer.workload.name
    source = next(answer.best.pool.replica.gpu_type.name for answer in now.answers if answer.workload.name == name)
    if move.fleet is None:
        target = ", ".join(gpu_type.name for gpu_type in move.answer.workload.question.space.gpu_types)
        why = _problem(move.answer)
        return Move(name, source, target, False, why, None, None, None, None, now.usd_per_month)
    replica = move.answer.best.pool.replica
    size = next(tenant.size for tenant in move.fleet.tenants if tenant.name == name)
    return filled(
        Move,
        move.fleet,
        workload=name,
        gpu_from=source,
        gpu_to=replica.gpu_type.name,
        feasible=True,
        detail=f"{size.replicas} replicas x {replica.layout}",
        workload_gpus=size.gpus,
        usd_per_month_now=now.usd_per_month,
    )


def _assumptions(plan: Plan, fleet: Provision) -> Iterator[Assumption]:
    """Yield the assumptions of a plan, each once: the peak, reserves, scaling, and draws."""
    yield from dict.fromkeys(entry for answer in fleet.answers for entry in _of_answer(answer, fleet))
    yield from assumptions.of_budget(fleet.answers[0].outcome.question, fleet.gpus)
    rules = plan.rules
    if rules.availability is not None and not rules.by_node:
        yield assumed("failures")
    if rules.growth_per_month is not None:
        yield assumed("growth")
    if plan.cloud is not None:
        for key in ("network speed", "disk speed", "start of a node", "start of the engine"):
            yield assumed(key, plan.scaling)
        if plan.cloud.mixes:
            yield assumed("reserved price", plan.scaling, value=plan.scaling.reserved_discount * 100)
        yield assumed("load within an hour")
    if plan.draws is not None:
        yield assumed("draws", plan.draws)


def _of_answer(answer: PlanAnswer, fleet: Provision) -> Iterator[Assumption]:
    best, question = answer.best, answer.outcome.question
    yield from assumptions.of_model(question, question.origin.notes)
    yield from assumptions.of_replica(question, best.pool.replica, best.pool.timed.kernels)
    yield from assumptions.of_limits(question)
    if question.service.extras.cached.varies:
        yield assumed("caches of a plan", count=best.pool.count)
    gpu_type, price = best.pool.replica.gpu_type, fleet.price(best.pool.replica.gpu_type.id)
    count = gpu_type.price_providers if price.source == gpu_type.price_source else None
    priced = replace(
        gpu_type, usd_per_gpu_hour=price.usd_per_gpu_hour, price_source=price.source, price_providers=count
    )
    yield from assumptions.of_planning(question, replace(best.pool.replica, gpu_type=priced))
