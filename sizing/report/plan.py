"""From the answers of a search to the document of `llmsize plan`: sizes, reserves, hours, growth and money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sizing.answers.answer import Answer, Outcome
from sizing.catalog.prices import usd_per_gpu_hour
from sizing.planning import fleet as fleets
from sizing.planning.cloud import HOURS_PER_MONTH
from sizing.planning.fleet import Member, Pool
from sizing.planning.growth import growing
from sizing.planning.size import Rules, need_of, size_of
from sizing.report import plan_assumptions, plan_cloud, plan_parts
from sizing.report.documents import Users
from sizing.report.documents_plan import Growth, Hour, Move, Plan, PoolPlan, Uncertainty
from sizing.report.parts.question import Asked, habits, inputs
from sizing.report.plan_cloud import Rented
from sizing.specs.demand import Scaling


class WorkloadAnswer(NamedTuple):
    """What the search found for one workload, and how it is pooled."""

    name: str
    asked: Asked
    outcome: Outcome
    pool: fleets.Sharing

    @property
    def best(self) -> Answer | None:
        """The answer where there is one that holds."""
        return self.outcome.confirmed


class Asking(NamedTuple):
    """What a plan is of, and by which rules; `is_fleet` where it is of a file of several workloads."""

    title: str | None
    is_fleet: bool
    answers: tuple[WorkloadAnswer, ...]
    rules: Rules
    scaling: Scaling
    provider: str | None
    stated: dict[str, Any]


def member_of(answer: WorkloadAnswer, rules: Rules) -> Member:
    """Return the need and size of an answer, which there must be."""
    best, request = answer.best, answer.outcome.question
    assert best is not None
    need = need_of(best, request)
    if request.target.demanded is None:  # so many GPUs, whose spare ones serve nothing
        need = need.without(rules.spare)
    return Member(
        answer.name, best.pool.replica.gpu_type.id, answer.pool, need, size_of(need, rules), request.target.demanded
    )


def build(
    asking: Asking,
    *,
    problems: Sequence[str] = (),
    suggestions: Sequence[str] = (),
    moves: Sequence[Move] = (),
    uncertainty: Uncertainty | None = None,
) -> Plan:
    """Return the document; with `problems`, as a workload without an answer, its totals are null."""
    rules, answers = asking.rules, asking.answers
    if problems or any(answer.best is None for answer in answers):
        return _without_answer(asking, problems, suggestions)
    members = tuple(member_of(answer, rules) for answer in answers)
    pools = fleets.pools_of(members, rules)
    hours = fleets.hours_of(members)
    held = plan_cloud.rented(asking, pools)
    priced = {m.gpu_id: price_of(a, held) for m, a in zip(members, answers, strict=True)}
    workloads = tuple(plan_parts.workload(a.name, a, m, held) for a, m in zip(answers, members, strict=True))
    cloud = plan_cloud.cloud(asking, members, pools, hours, held)
    gpus, nodes = sum(pool.gpus for pool in pools), sum(pool.nodes for pool in pools)
    usd = usd_per_month(pools, priced, held)
    if cloud is not None and asking.provider is not None and hours > 1:
        usd = cloud.usd_per_month
    return Plan(
        feasible=True,
        inputs=_inputs(asking),
        mean_requests_per_s=_sum(workload.mean_requests_per_s for workload in workloads),
        peak_requests_per_s=plan_parts.peak_of_sums(members, hours) or sum(w.peak_requests_per_s for w in workloads),
        gpus=gpus,
        replicas=max(map(sum, zip(*(pool.replicas_by_hour for pool in pools), strict=True))),
        nodes=nodes,
        installed_gpus=sum(pool.nodes * pool.gpus_per_node for pool in pools),
        usd_per_month=usd,
        utilisation_mean=plan_cloud.utilisation(members, hours, gpus),
        workloads=workloads,
        pools=tuple(_pool(pool, asking, priced) for pool in pools),
        hours=_hours(members, pools, hours) if any(m.hours > 1 for m in members) else (),
        users=_users(answers[0], members[0]) if not asking.is_fleet else None,
        fleet=plan_parts.together(members, pools, hours) if asking.is_fleet else None,
        availability=plan_parts.availabilities(members, rules),
        growth=_growth(members, rules),
        cloud=cloud,
        moves=tuple(moves),
        uncertainty=uncertainty,
        problems=(),
        suggestions=(),
        assumptions=tuple(plan_assumptions.of(asking, cloud, uncertainty, held)),
    )


def _without_answer(asking: Asking, problems: Sequence[str], suggestions: Sequence[str]) -> Plan:
    return Plan(
        feasible=False,
        inputs=_inputs(asking),
        mean_requests_per_s=None,
        peak_requests_per_s=None,
        gpus=None,
        replicas=None,
        nodes=None,
        installed_gpus=None,
        usd_per_month=None,
        utilisation_mean=None,
        workloads=(),
        pools=(),
        hours=(),
        users=None,
        fleet=None,
        availability=(),
        growth=None,
        cloud=None,
        moves=(),
        uncertainty=None,
        problems=tuple(problems),
        suggestions=tuple(suggestions),
        assumptions=(),
    )


def _inputs(asking: Asking) -> dict[str, Any]:
    def of(answer: WorkloadAnswer) -> dict[str, Any]:
        best = answer.outcome.best
        return inputs(answer.asked, answer.outcome.question, best.pool.replica if best is not None else None)

    return {
        "fleet" if asking.is_fleet else "workload": asking.title,
        **asking.stated,
        "workloads": {answer.name: of(answer) for answer in asking.answers},
    }


def price_of(answer: WorkloadAnswer, held: Rented) -> float | None:
    """Return the price of an answer's GPU type, $ per GPU-hour: of the instances that are rented, else the one to plan with."""
    assert answer.best is not None
    option = answer.best.pool.replica.gpu_type
    return usd_per_gpu_hour(held[option.id].offer) if option.id in held else option.usd_per_gpu_hour


def usd_per_month(pools: Sequence[Pool], priced: Mapping[str, float | None], held: Rented) -> float | None:
    """Return what all pools cost a month on demand around the clock, None where one has no price."""

    def per_hour(gpu_id: str) -> float | None:
        price = priced[gpu_id]
        if gpu_id in held:
            return held[gpu_id].usd_per_hour
        return None if price is None else price * sum(pool.gpus for pool in pools if pool.gpu_id == gpu_id)

    hourly = _sum(per_hour(gpu_id) for gpu_id in dict.fromkeys(pool.gpu_id for pool in pools))
    return None if hourly is None else hourly * HOURS_PER_MONTH


def _sum(values: Any) -> float | None:
    found = list(values)
    return None if None in found else float(sum(found))


def _pool(pool: Pool, asking: Asking, priced: dict[str, float | None]) -> PoolPlan:
    names = {
        a.best.pool.replica.gpu_type.id: a.best.pool.replica.gpu_type.name for a in asking.answers if a.best is not None
    }
    return PoolPlan(
        gpu=names[pool.gpu_id],
        gpu_id=pool.gpu_id,
        pool=pool.pool,
        workloads=pool.workloads,
        gpus=pool.gpus,
        gpus_sum_of_peaks=pool.gpus_sum_of_peaks,
        reserve_gpus=pool.reserve_gpus,
        reserve_gpus_apart=pool.reserve_gpus_apart,
        nodes=pool.nodes,
        gpus_per_node=pool.gpus_per_node,
        installed_gpus=pool.nodes * pool.gpus_per_node,
        usd_per_gpu_hour=priced[pool.gpu_id],
    )


def _hours(members: Sequence[Member], pools: Sequence[Pool], hours: int) -> tuple[Hour, ...]:
    """Return the load hour by hour, and the replicas and GPUs that follow it.

    What replicas serve is of a single workload: requests of several differ.
    """
    rates = [member.rates_per_s(hours) for member in members]
    known = [rate for rate in rates if rate is not None]
    by_rate = len(known) == len(rates)
    per_replica = members[0].need.per_replica if len(members) == 1 and by_rate else None
    found = []
    for hour in range(hours):
        replicas = sum(pool.replicas_by_hour[hour] for pool in pools)
        found.append(
            Hour(
                hour=hour,
                requests_per_s=sum(rate[hour] for rate in known) if by_rate else None,
                replicas=replicas,
                gpus=sum(pool.gpus_by_hour[hour] for pool in pools),
                capacity_requests_per_s=None if per_replica is None else replicas * per_replica,
            )
        )
    return tuple(found)


def _users(answer: WorkloadAnswer, member: Member) -> Users | None:
    """Return the daily active users that the load is of; None of a closed loop, whose rate follows the answers."""
    request, demand = answer.outcome.question, answer.asked.workload.demand
    if member.need.in_flight:
        return None
    user = habits(answer.asked, request)
    rate = member.need.demand if request.target.demanded is not None else member.need.per_replica * member.need.base
    stated = demand is None or demand.daily_active_users is not None
    return Users(user.users_of(rate), *user[:3], stated)


def _growth(members: Sequence[Member], rules: Rules) -> Growth | None:
    """Return how the fleet grows, every workload alike; None where no growth is stated."""
    if rules.growth_per_month is None:
        return None

    def size(times: float) -> tuple[int, int, int]:
        later = members if times == 1 else [fleets.grown(member, times, rules) for member in members]
        pools = fleets.pools_of(later, rules)
        replicas = max(map(sum, zip(*(pool.replicas_by_hour for pool in pools), strict=True)))
        return replicas, sum(pool.gpus for pool in pools), sum(pool.nodes for pool in pools)

    found = growing(rules.growth_per_month, rules.start, rules.until, size)
    return Growth(
        per_month=found.per_month,
        start=rules.start.isoformat(),
        until=found.until,
        at_date=found.at_date,
        next_node=found.next_node,
        additions=found.additions,
    )
